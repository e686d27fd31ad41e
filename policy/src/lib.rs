//! The policy: a pure function from recorded facts to an explained decision.
//!
//! ```
//! use effectd_policy::{Overlay, Policy, Preset};
//!
//! let policy = Policy::compile(&Preset::Household.source(), &Overlay::default())?;
//! assert_eq!(policy.examples(), 9);
//! # Ok::<(), effectd_policy::PolicyError>(())
//! ```
//!
//! The crate is synchronous, without clocks or sockets; only [`dir`] does I/O. Start with `evaluate.rs`, then `gates.rs`.

pub mod limits;

pub mod decision;
pub mod evaluate;
pub mod explain;
pub mod facts;
mod gates;
mod mode;
pub mod replay;
pub mod risk;

pub mod authority;
pub mod grant;

mod abac;
pub mod policy;
mod tables;

pub mod dir;
pub mod document;
pub mod error;
mod example;
pub mod glob;
pub mod overlay;
pub mod presets;
pub mod source;

pub mod inspect;
pub mod redact;

pub use abac::RuleAnswers;
pub use authority::Decider;
pub use decision::{Clamp, Decision, Denier, Reason, Verdict};
pub use dir::{DirStamp, PolicyDir};
pub use document::{Document, OrgRole, PrincipalRole};
pub use error::{ExampleFailed, Location, PolicyError};
pub use evaluate::{evaluate, offered};
pub use explain::{Explanation, StepView, explain};
pub use facts::{Facts, Finding, InspectionFacts, Param, RedactionCounts, ToolFacts};
pub use grant::{Grant, GrantAsk, GrantState, is_tool_pattern};
pub use inspect::Inspection;
pub use overlay::{Change, ConsentChange, EntryChange, Overlay, SetMode};
pub use policy::{Policy, RealTool, inspect, inspect_to_show};
pub use presets::Preset;
pub use redact::{prune_result, prune_to, redact_secrets};
pub use replay::{Recorded, Replayed, replay};
pub use source::{Source, SourceFile};
pub use tables::commands::NamedCommand;
pub use tables::modes::mode_key;
