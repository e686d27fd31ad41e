//! The contracts of effectd: requests, tool specs, receipts, events and failures, with their JSON forms, limits and schemas.
//!
//! The crate does no I/O, so that planners and learners can depend on it alone: [`proof`] verifies a bundle of receipts, and
//! [`reward`] computes their rewards. Start with [`request`], [`tool`] and [`receipt`].

#![deny(missing_docs)]

mod wire;

pub mod limits;

pub mod canonical;
pub mod clock;
pub mod digest;
pub mod ids;
pub mod json;
pub mod merkle;
pub mod text;
pub mod trace;

pub mod access;
pub mod address;
pub mod batch;
pub mod connector;
pub mod effects;
pub mod exchange;
pub mod failure;
pub mod outcome;
pub mod param_header;
pub mod plan;
pub mod plugin;
pub mod preview;
pub mod request;
pub mod risk;
pub mod tool;
pub mod toolcall;

pub mod approval;
pub mod automation;
pub mod event;
pub mod log;
pub mod millis;
pub mod notice;
pub mod operation;
pub mod org;
pub mod receipt;
pub mod reward;
pub mod signature;
pub mod sql;
pub mod token;

pub mod proof;

pub mod filter;

pub mod schemas;

pub use access::{
    AccessInvalid, CredentialHeader, DatabaseLogin, HttpAccess, OAuth, Preset, Route, RouteInvalid, Scheme,
    Trust,
};
pub use address::{AddressClass, AddressRange, Host, HostInvalid, RangeInvalid};
pub use approval::{Approval, ApprovalChange, ApprovalData, ApprovalVerdict, Approved, Authority};
pub use automation::{Automation, AutomationStatus};
pub use batch::{
    BATCH_TOOL, Batch, BatchItem, BatchMode, BatchRequest, BatchResult, ItemMark, ItemResult, Marker,
};
pub use clock::{Clock, ManualClock, Monotonic, SystemClock, Timestamp};
pub use connector::{
    Ask, Connector, ConnectorInvalid, Harvest, Harvested, Pinned, RefusedTool, ToolOverlay, Transport,
    Upstream,
};
pub use digest::Digest;
pub use effects::{
    Beneath, Effects, FileState, FolderListing, LinkedFile, Mark, Observed, PathChange, PathSnapshot,
    PathState, Restore, Scan, Touch, Unchanged, Undeclared, UndeclaredKind,
};
pub use event::{
    AmendedData, ArtifactChange, ArtifactData, ConnectionChange, ConnectionData, DeadLetterData,
    DecisionData, Event, ExecutedData, SessionChange, SessionData, ToolQuarantinedData, Topic,
};
pub use exchange::{
    EgressRecord, Exchange, ExchangeAnswer, ExchangeFailure, ExchangeFault, ExchangeInvalid, ExchangeReply,
    FrameReader, Method,
};
pub use failure::{Code, Failure, Gate, Phase, quoted};
pub use filter::{Filter, FilterInvalid};
pub use ids::{
    ActionId, ApprovalId, AutomationId, Capability, ConnectionId, EventId, GrantId, IdInvalid,
    IdempotencyKey, OrgId, Principal, ReceiptId, SessionId, SpaceId, SubjectId, TokenId, ToolId, TraceId,
    WebhookId,
};
pub use log::{
    AmendmentEntry, BundleHead, EntryKind, InclusionProof, IntentEntry, KeyEntry, LogEntry, LogHead, LogLine,
};
pub use millis::Millis;
pub use notice::{NOTICE_ARTIFACT, NOTIFY_TOOL, Notice, Urgency};
pub use operation::{Operation, PolicyList};
pub use org::{Connection, SecretName, Session, SlackChannel, SlackUser, Webhook, WebhookTopic, is_slack_id};
pub use outcome::{
    DeniedReason, InvocationBrief, InvocationStatus, Outcome, PlanStatus, Projection, RunStatus, StepStatus,
};
pub use param_header::{ParamHeader, headers_of, param_headers};
pub use plan::{
    ACTION_API, Check, Feedback, Plan, PlanRecord, PlanResult, PlanScope, PlanStep, PlanVerification,
    Transition,
};
pub use preview::{
    AskedRequest, Predicted, PreviewRecord, PreviewResult, PreviewVerdict, PreviewedItem, PreviewedPath,
};
pub use receipt::{
    Attempt, Choice, Cost, DecisionRecord, Denial, DenialSource, GateResult, GateResults, Isolation,
    KeptResult, Receipt, Redaction, RedactionKind, Status, Timing,
};
pub use request::{
    ActionRequest, Candidate, Contract, Feature, Origin, PolicyCtx, Qos, Rationale, Scope, Verification,
};
pub use reward::{Judgement, Reward, RewardComponents, RewardInputs, RewardWeights};
pub use risk::{Band, Mode, ModeSource, RiskLevel, RiskTier};
pub use signature::{Signature, SignatureInvalid};
pub use token::TokenKind;
pub use tool::{
    BaseProfile, Compensation, KeyField, PackageTerms, Repeat, ResourceTemplate, SafetyClass, SandboxProfile,
    SideEffect, SpecInvalid, ToolSpec,
};
pub use toolcall::{
    ARTIFACT_GET_TOOL, Artifact, COMMAND_TOOL, CallMode, EffectMark, ProbeVerdict, ToolCall, ToolOutput,
    ToolReply, UNDO_TOOL, Undoes,
};
pub use trace::{TraceContext, TraceInvalid, TraceParent, TraceState};
