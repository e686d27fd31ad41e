//! effectd: the only process on a machine that may act on behalf of AI planners.
//!
//! A decision goes in; it is validated, gated by policy, de-duplicated, run in a fresh kernel-enforced sandbox, and comes
//! out as a signed receipt. This crate puts the parts together: as the program `effectd`, and as a library for programs
//! that want the runtime inside.
//!
//! ```no_run
//! use effectd::{Answer, Config, Runtime};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     effectd::init(); // first of all: in a sandbox's zygote this never returns
//!     let request = effectd::contracts::ActionRequest::parse(&std::fs::read("examples/write_note.json")?)?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let runtime = Runtime::start(Config::embedded(".effectd")?).await?;
//!         match runtime.exec(request).await {
//!             Answer::Done(done) => println!("{:?} {}", done.receipt.status, done.receipt.reward.scalar),
//!             Answer::Held(held) => println!("a person must decide: {}", held.approval_id),
//!             Answer::Refused(failure) => println!("{failure}"),
//!         }
//!         runtime.stop().await;
//!         Ok(())
//!     })
//! }
//! ```

#![deny(missing_docs)]

pub mod config;
pub mod error;
pub mod exit;
pub mod keys;
pub mod policy_store;
pub mod reload;
pub mod runtime;
pub mod spaces;
pub mod state;
pub mod tools;
pub mod witness;

pub mod backup;
mod desktop;
mod host;
pub mod judge;
pub mod notify;
pub mod serve;
pub mod settings;
pub mod signals;

pub mod cli;
pub mod telemetry;
pub mod tui;

pub use config::Config;
pub use effectd_actors::{Answer, Done, Held};
pub use effectd_contracts as contracts;
pub use error::Error;
pub use exit::Exit;
pub use runtime::{Runtime, Ticket};

/// What tools are made of, for programs that bring their own.
pub use effectd_adapters as adapters;

/// To be called first in `main`, before any thread is started. In an ordinary process it returns at once; in a process that
/// the sandbox started it never returns, and the tools run there.
pub fn init() {
    tools::init(&[]);
}

/// The same as [`init`] for a program that brings tools of its own. They run in the sandbox like all others; no id of a
/// built-in tool can be taken.
pub fn init_with(own: tools::Tools) {
    tools::init(own);
}
