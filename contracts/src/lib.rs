//! What is said between the parts of effectd, and between effectd and the world.
//!
//! Everything that crosses a boundary — a request, a tool's description, a receipt, an event, a failure — has its one
//! type here, with its JSON form, its bounds and its JSON Schema. The crate does no I/O, so that a planner or a learner
//! written in Rust can depend on it alone. Read it in this order:

#![deny(missing_docs)]

pub mod limits;

pub mod canonical;
pub mod clock;
pub mod digest;
pub mod ids;
pub mod json;
pub mod merkle;
pub mod text;
pub mod trace;

pub mod effects;
pub mod failure;
pub mod outcome;
pub mod preview;
pub mod request;
pub mod risk;
pub mod tool;
pub mod toolcall;

pub mod approval;
pub mod event;
pub mod log;
pub mod millis;
pub mod notice;
pub mod operation;
pub mod receipt;

pub mod filter;

pub mod schemas;

pub use approval::{Approval, ApprovalData, ApprovalNews, ApprovalVerdict, Approved, Authority};
pub use clock::{Clock, ManualClock, Monotonic, SystemClock, Timestamp};
pub use digest::Digest;
pub use effects::{
    Effects, FileState, Inside, Observed, PathChange, Restore, Seen, Standing, Touch, Undeclared,
    UndeclaredKind,
};
pub use event::{
    ArtifactData, ArtifactNews, DeadLetterData, DecisionData, Event, ExecutedData, ToolNews, Topic,
};
pub use failure::{Code, Failure, Gate, Phase};
pub use filter::{Filter, FilterInvalid};
pub use ids::{
    ActionId, ApprovalId, Capability, EventId, GrantId, IdInvalid, IdempotencyKey, Principal, ReceiptId,
    SpaceId, SubjectId, ToolId, TraceId,
};
pub use log::{
    AmendmentEntry, BundleHead, EntryKind, InclusionProof, IntentEntry, KeyEntry, LogEntry, LogHead, LogLine,
};
pub use millis::Millis;
pub use notice::{NOTICE_ARTIFACT, NOTIFY_TOOL, Notice, Urgency};
pub use operation::Operation;
pub use outcome::{
    DeniedReason, InvocationBrief, InvocationStatus, Outcome, PlanStatus, Projection, RunStatus, StepStatus,
};
pub use preview::{Predicted, PreviewRecord, PreviewVerdict, Rehearsal, Rehearsed};
pub use receipt::{
    Attempt, Choice, Cost, DecisionRecord, Denial, DenialSource, GateResult, GateResults, Isolation, Receipt,
    Redaction, RedactionKind, Reward, RewardComponents, RewardInputs, RewardWeights, Signature, Status,
    Timing,
};
pub use request::{
    ActionRequest, Candidate, Contract, Origin, PolicyCtx, Qos, Rationale, Scope, Verification,
};
pub use risk::{Band, Mode, ModeSource, RiskLevel, RiskTier};
pub use tool::{
    BaseProfile, KeyField, Repeat, ResourceTemplate, SafetyClass, SandboxProfile, SideEffect, SpecInvalid,
    ToolSpec,
};
pub use toolcall::{
    ARTIFACT_GET_TOOL, Artifact, CallMode, ProbeVerdict, ToolCall, ToolOutput, ToolReply, UNDO_TOOL,
};
pub use trace::{TraceContext, TraceInvalid, TraceParent, TraceState};
