//! How it flows: the stages of the pipeline, as factories of workers under one supervisor.
//!
//! ```text
//! door -> intake -> validator -> gate -> idempotency -> executor -> recorder -> receipt, event, answer
//! ```
//!
//! What the policy asks a person about goes from the gate to [`held`]. Casts only, in one direction; a refusal at any stage goes straight to the recorder. Start reading at [`action`], which
//! says what an action has to prove before it may go on, then at [`messages`], then stage by stage.

pub mod limits;

pub mod action;
pub mod messages;

pub mod answers;
pub mod artifacts;
mod at_work;
mod changes;
pub mod control;
pub mod decisions;
mod disturbed;
pub mod failpoint;
pub mod held;
pub mod history;
pub mod identity;
mod leases;
pub mod log;
pub mod metrics;
pub mod notifications;
pub mod open;
pub mod operations;
mod overreach;
pub mod parts;
pub mod preimage;
pub mod preview;
pub mod proof;
pub mod quarantine;
pub mod registry;
mod resources;
mod review;
mod running;
pub mod settings;
mod stage;
mod streams;
pub mod switches;

mod attempt;
mod call;
mod capture;
pub mod erasure;
pub mod executor;
mod expected;
pub mod gate;
pub mod idempotency;
mod intake;
pub mod intent;
mod keeping;
pub mod key;
pub mod letters;
mod recent;
mod recorder;
pub mod retention;
pub mod retry;
pub mod reward;
mod seize;
mod sweeper;
mod undo;
pub mod validator;
pub mod withdraw;

pub mod pipeline;
mod supervisor;

pub use action::{Action, Asked, Claimed, Finished, Gated, Submitted, Ticket, Validated};
pub use answers::{Answer, Done};
/// The Store's own words, for doors that show what is remembered.
pub use effectd_bus::{
    Blobs, Body, Cursor, GroupName, LetterGroup, LetterOrigin, LogStanding, Order, ReceiptPage, ReceiptQuery,
    Retained, Retention, SeekTo, Store, StoreError, StoredEntry, StoredEvent, StoredLetter, Swap, TopicName,
    Turn, Watch,
};
pub use effectd_policy::{Decider, Grant};
pub use held::Held;
pub use identity::{DeviceKey, Identity};
pub use metrics::Metrics;
pub use overreach::{Mark, Scan};
pub use parts::{Ingredients, Parts, SpaceRoots};
pub use pipeline::{Incoming, Pipeline, StartError};
pub use preimage::{Looked, Witness};
pub use registry::{Definition, Entry, OWN, ParamRule, Registry, RegistryError, Source};
pub use settings::Settings;
pub use supervisor::STAGES;
pub use withdraw::{Canceller, Withdrawal};
