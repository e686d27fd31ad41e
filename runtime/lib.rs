//! effectd carries out what AI planners decide: gated by policy, confined by the kernel, with a signed receipt for each action.
//!
//! This crate is the program `effectd`, and the library for programs that embed it:
//!
//! ```standalone_crate
//! use effectd::contracts::{ActionRequest, Status};
//! use effectd::{Effectd, Executed};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     effectd::init(&[]); // first in `main`: tools run in this program, started again by the sandbox
//!     let request = ActionRequest::parse(&std::fs::read("examples/write_note.json")?)?;
//!     let folder = tempfile::tempdir()?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let effectd = Effectd::builder(folder.path().join(".effectd"))
//!             .policy_dir("policy/presets/household")
//!             .start()
//!             .await?;
//!         let executed = effectd.execute(request).await;
//!         effectd.shutdown().await;
//!         match executed? {
//!             Executed::Done(done) => assert_eq!(done.receipt.status, Status::Ok),
//!             Executed::AwaitingApproval(approval) => panic!("nobody decides about {}", approval.approval_id),
//!         }
//!         Ok(())
//!     })
//! }
//! ```

#![deny(missing_docs)]

mod builder;
mod effectd;
mod error;
mod exit;

mod tool_registry;

#[allow(missing_docs, reason = "not part of the library")]
mod settings;
mod state;

mod desktop;
#[allow(missing_docs, reason = "not part of the library")]
mod host;

mod backup;
mod daemon;
#[allow(missing_docs, reason = "not part of the library")]
mod telemetry;
#[allow(missing_docs, reason = "not part of the library")]
mod tui;

pub mod cli;

pub use self::effectd::{ActionHandle, ActionStatus, Cancellation, Effectd, Executed, Rejected};
pub use builder::EffectdBuilder;
pub use effectd_actors::{Done, Held as PendingApproval};
pub use effectd_gateway::views::BatchView;
pub use error::Error;
pub use exit::Exit;
pub use tool_registry::{Tools, init};

/// Requests, receipts and everything else that effectd reads and writes.
pub use effectd_contracts as contracts;

/// The parts that tools are made of, for programs with their own tools.
pub use effectd_adapters as adapters;

/// For the tests and benchmarks of this repository; not part of the library, and free to change.
#[doc(hidden)]
pub mod internal {
    pub use crate::host::file_inspector::WorkspaceInspector;
    pub use crate::host::runtime::{Runtime, Ticket};
    pub use crate::settings::config::Config;
    pub use crate::tool_registry::{egress, registry};

    pub mod settings {
        pub use crate::settings::{KEYS, Key, Takes};
    }

    pub mod telemetry {
        pub use crate::telemetry::{LogForm, start};
    }

    pub mod tui {
        pub use crate::tui::{Event, Events, Screen, ratatui, shown};
    }
}
