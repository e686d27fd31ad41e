//! The pipeline: its stages as factories of workers under one supervisor.
//!
//! ```text
//! intake -> validator -> gate -> idempotency -> executor -> recorder -> receipt, event, answer
//! ```
//!
//! The gate sends actions that need an approval to the approval stage. Stages only cast, in one direction; a refusal at any stage
//! goes straight to the recorder. Start reading at [`action`], which says what an action must prove in each state, then at
//! [`messages`], then at the stages.
//!
//! Each folder uses only folders above it in this list:
//!
//! | folder | subject |
//! |---|---|
//! | `registry` | the tools, their schemas and views |
//! | `control` | breakers, rates, budgets, fair queues, switches |
//! | `services` | what all stages share: store, files, sandbox, signer, policy, and the callers who wait |
//! | `claims` | keys, resources, intents, takeover |
//! | `action` | the action, its ticket, its proofs, its decision on the bus |
//! | `effects` | snapshots, pre-images, changes, undo, artifacts, undeclared effects |
//! | `execution` | call, attempt, settlement, retry, receipt, recording |
//! | `preview` | runs on a copy, assessment by the policy |
//! | `approvals` | holds, questions, decisions, grants, expiry |
//! | `operator` | operations on record, dead letters, retention, erasure, withdrawal |
//! | `batches` | runs a batch's items one after another, and undoes them |
//! | `stages` | the stages themselves |
//!
//! Files beside the folders: `limits`, `settings`, `metrics`, `failpoint` and `stored` lie below every folder, `messages` and
//! `stage` right above `action`, `supervisor` and `pipeline` above every folder.

pub mod failpoint;
pub mod limits;
pub mod metrics;
pub mod settings;
mod stored;

pub mod registry;

pub mod control;

pub mod services;

pub mod claims;

pub mod action;
pub mod messages;
mod stage;

pub mod effects;

pub mod execution;

pub mod preview;

pub mod approvals;

pub mod operator;

pub mod batches;

mod stages;

pub mod pipeline;
mod supervisor;

pub use effectd_policy::{Decider, Grant, GrantState, OrgRole, PrincipalRole};

pub use action::{Action, Asked, Claimed, Finished, Gated, Submitted, Ticket, Validated};
pub use metrics::Metrics;
pub use operator::withdraw::Withdrawal;
pub use pipeline::{Pipeline, StartError};
pub use registry::{
    CurrentRegistry, Definition, OWN, ParamRule, RegisteredTool, Registry, RegistryError, Source,
};
pub use services::answers::{Answer, Done, Held};
pub use services::caches::{CacheSize, Caches};
pub use services::callers::Incoming;
pub use services::files::{FileInspector, Inspected};
pub use services::signer::{DeviceKey, Identity};
pub use services::{Services, ServicesBuilder, SpaceRoots};
pub use settings::Settings;
pub use supervisor::{STAGES, TreeNode};
