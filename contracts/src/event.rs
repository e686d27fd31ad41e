//! Events on the bus, as CloudEvents 1.0 in JSON, so that any consumer of the field can read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::approval::{ApprovalData, Approved};
use crate::clock::Timestamp;
use crate::failure::Code;
use crate::ids::{ActionId, EventId, Principal, ReceiptId, SpaceId, SubjectId, ToolId, TraceId};
use crate::millis::Millis;
use crate::outcome::Outcome;
use crate::receipt::{Receipt, Status};
use crate::request::{ActionRequest, Contract, Origin};
use crate::trace::{TraceContext, TraceParent, TraceState};

/// The topics that effectd itself writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Decisions of planners.
    ActionDecision,
    /// What became of them.
    ActionExecuted,
    /// What people are asked, and what they decide.
    Approvals,
    /// What operators take aside and hand out again.
    Artifacts,
    /// What was given up.
    DeadLetters,
    /// Tools that were switched off since they did more than they declare.
    Tools,
}

impl Topic {
    /// The topic's name on the bus.
    pub const fn as_str(self) -> &'static str {
        match self {
            Topic::ActionDecision => "ACTION_DECISION",
            Topic::ActionExecuted => "ACTION_EXECUTED",
            Topic::Approvals => "APPROVALS",
            Topic::Artifacts => "ARTIFACTS",
            Topic::DeadLetters => "DEAD_LETTERS",
            Topic::Tools => "TOOLS",
        }
    }

    /// The CloudEvents type of its events.
    pub const fn event_type(self) -> &'static str {
        match self {
            Topic::ActionDecision => "effectd.action.decision.v1",
            Topic::ActionExecuted => "effectd.action.executed.v1",
            Topic::Approvals => "effectd.approval.v1",
            Topic::Artifacts => "effectd.artifact.v1",
            Topic::DeadLetters => "effectd.dead_letter.v1",
            Topic::Tools => "effectd.tool.quarantined.v1",
        }
    }
}

/// A CloudEvent around `T`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event<T> {
    /// Always `1.0`.
    pub specversion: SpecVersion,
    /// Unique; the same id again is the same event.
    pub id: EventId,
    /// Which instance of effectd.
    pub source: String,
    /// What happened, with the version of `data`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Which action it is about; `grant:<id>` for news of a pre-approval alone, `artifact:<id>` for news of an artifact.
    pub subject: ActionId,
    /// When it was written.
    pub time: Timestamp,
    /// Always `application/json`.
    pub datacontenttype: JsonType,
    /// The action's trace; an extension attribute, hence without an underscore.
    pub traceid: TraceId,
    /// The action's span in the planner's trace, if the planner sent one: CloudEvents' extension for distributed tracing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// What came beside it; of the same extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
    /// The space; an extension attribute. `*` for an artifact, which may be kept in several.
    pub spaceid: SpaceId,
    /// What happened, in full.
    pub data: T,
}

/// The version of CloudEvents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SpecVersion {
    /// The only one.
    #[default]
    #[serde(rename = "1.0")]
    V1,
}

/// The form of `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum JsonType {
    /// The only one.
    #[default]
    #[serde(rename = "application/json")]
    Json,
}

/// The default `source` of events.
pub const SOURCE: &str = "effectd";

/// A decision on its way in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionData {
    /// What is asked for.
    pub request: ActionRequest,
    /// Who the door saw.
    pub principal: Principal,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// What a plan promises beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// How far the planner's `policy_ctx.time` was from the runtime's clock on acceptance: positive if it was ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<i64>,
    /// Somebody sits at a terminal and waits: a person who is asked is expected soon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interactive: bool,
    /// A person said yes, and the decision comes in again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<Approved>,
}

impl DecisionData {
    /// A decision of this principal, and nothing beside it.
    pub fn new(request: ActionRequest, principal: Principal, origin: Origin) -> Self {
        Self {
            request,
            principal,
            origin,
            contract: None,
            clock_skew_ms: None,
            interactive: false,
            approved: None,
        }
    }
}

/// What became of an action, in brief; the receipt has the rest. No parameter ever stands here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutedData {
    /// The receipt.
    pub receipt_id: ReceiptId,
    /// The action.
    pub action_id: ActionId,
    /// The tool.
    pub tool_id: ToolId,
    /// The subject.
    pub subject_id: SubjectId,
    /// The receipt's status.
    pub status: Status,
    /// The canonical outcome.
    pub outcome: Outcome,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// From acceptance to receipt.
    pub total_ms: Millis,
    /// The learning signal.
    pub reward: f64,
}

impl Event<DecisionData> {
    /// The id of the event that brings this action's decision in, whether or not there is one yet.
    pub fn id_for(action: &ActionId) -> EventId {
        derived_id("decision", action.as_str())
    }

    /// The id of the event that brings this action's decision in again, for the n-th time, because somebody requeued it.
    pub fn id_for_requeue(action: &ActionId, n: u32) -> EventId {
        derived_id(&format!("decision-again-{n}"), action.as_str())
    }

    /// The id of the event that brings this action's decision in again, because a person said yes for the n-th time.
    pub fn id_for_approval(action: &ActionId, n: u32) -> EventId {
        derived_id(&format!("decision-approved-{n}"), action.as_str())
    }

    /// The event that brings a decision in. Its id follows from the action's, so that a decision sent twice is one event.
    pub fn decision(data: DecisionData, trace_id: TraceId, time: Timestamp) -> Self {
        let action_id = data.request.action_id.clone();
        let (traceparent, tracestate) = handed_on(data.request.trace_context(&trace_id));
        Self {
            specversion: SpecVersion::V1,
            id: Self::id_for(&action_id),
            source: SOURCE.to_owned(),
            event_type: Topic::ActionDecision.event_type().to_owned(),
            subject: action_id,
            time,
            datacontenttype: JsonType::Json,
            traceid: trace_id,
            traceparent,
            tracestate,
            spaceid: data.request.space_id.clone(),
            data,
        }
    }
}

/// Something that happened to an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactData {
    /// What happened.
    pub what: ArtifactNews,
    /// Which artifact.
    pub artifact_id: String,
    /// Who did it.
    pub by: String,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What can happen to an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactNews {
    /// It is not handed out any more.
    Quarantined,
    /// It is handed out again.
    Released,
}

impl Event<ArtifactData> {
    /// News about an artifact. `about` and `space` stand for it.
    pub fn artifact(data: ArtifactData, about: ActionId, space: SpaceId, time: Timestamp) -> Self {
        Self {
            specversion: SpecVersion::V1,
            id: EventId::fresh(),
            source: SOURCE.to_owned(),
            event_type: Topic::Artifacts.event_type().to_owned(),
            subject: about,
            time,
            datacontenttype: JsonType::Json,
            traceid: TraceId::fresh(),
            traceparent: None,
            tracestate: None,
            spaceid: space,
            data,
        }
    }
}

/// An action was given up: it is a dead letter until somebody requeues, settles or drops it. No parameter ever stands here,
/// and no words of the failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterData {
    /// The failing receipt; none for a decision that could not be taken as one, since it cannot be read or its id means
    /// another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<ReceiptId>,
    /// The action; `decision:<offset>` for a decision that cannot be read.
    pub action_id: ActionId,
    /// The tool, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<ToolId>,
    /// The subject, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<SubjectId>,
    /// Why, as a stable word.
    pub code: String,
    /// What all letters of this cause have in common, as `effectd dlq causes` tells it.
    pub cause: String,
    /// How often it was tried.
    pub attempts: u32,
}

impl Event<DeadLetterData> {
    /// The event that tells that an action was given up. Its id follows from the receipt's.
    pub fn dead_letter(
        receipt: &Receipt,
        code: String,
        cause: String,
        attempts: u32,
        time: Timestamp,
    ) -> Self {
        let (traceparent, tracestate) = handed_on(receipt.trace_context.clone());
        Self {
            specversion: SpecVersion::V1,
            id: derived_id("dead-letter", receipt.receipt_id.as_str()),
            source: SOURCE.to_owned(),
            event_type: Topic::DeadLetters.event_type().to_owned(),
            subject: receipt.action_id.clone(),
            time,
            datacontenttype: JsonType::Json,
            traceid: receipt.trace_id.clone(),
            traceparent,
            tracestate,
            spaceid: receipt.space_id.clone(),
            data: DeadLetterData {
                receipt_id: Some(receipt.receipt_id.clone()),
                action_id: receipt.action_id.clone(),
                tool_id: Some(receipt.tool_id.clone()),
                subject_id: Some(receipt.subject_id.clone()),
                code,
                cause,
                attempts,
            },
        }
    }

    /// The event that tells that a decision was given up which has no receipt.
    pub fn unreceipted(data: DeadLetterData, space: SpaceId, trace_id: TraceId, time: Timestamp) -> Self {
        Self {
            specversion: SpecVersion::V1,
            id: EventId::fresh(),
            source: SOURCE.to_owned(),
            event_type: Topic::DeadLetters.event_type().to_owned(),
            subject: data.action_id.clone(),
            time,
            datacontenttype: JsonType::Json,
            traceid: trace_id,
            traceparent: None,
            tracestate: None,
            spaceid: space,
            data,
        }
    }
}

/// A tool that was switched off since it did more than it declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolNews {
    /// Which tool.
    pub tool_id: ToolId,
    /// The action in which it did.
    pub action_id: ActionId,
    /// What it did, for people.
    pub reason: String,
    /// Since when it is off.
    pub since: Timestamp,
}

impl Event<ToolNews> {
    /// News about a tool, in the space in which it was at work.
    pub fn tool(data: ToolNews, space: SpaceId) -> Self {
        Self {
            specversion: SpecVersion::V1,
            id: EventId::fresh(),
            source: SOURCE.to_owned(),
            event_type: Topic::Tools.event_type().to_owned(),
            subject: data.action_id.clone(),
            time: data.since,
            datacontenttype: JsonType::Json,
            traceid: TraceId::fresh(),
            traceparent: None,
            tracestate: None,
            spaceid: space,
            data,
        }
    }
}

impl Event<ApprovalData> {
    /// News about an approval or a grant. `about` and `space` are the action's, or stand for the grant's.
    pub fn approval(
        data: ApprovalData,
        about: ActionId,
        space: SpaceId,
        trace_id: TraceId,
        time: Timestamp,
    ) -> Self {
        Self {
            specversion: SpecVersion::V1,
            id: EventId::fresh(),
            source: SOURCE.to_owned(),
            event_type: Topic::Approvals.event_type().to_owned(),
            subject: about,
            time,
            datacontenttype: JsonType::Json,
            traceid: trace_id,
            traceparent: None,
            tracestate: None,
            spaceid: space,
            data,
        }
    }
}

impl Event<ExecutedData> {
    /// The event that tells what a receipt says. Its id follows from the receipt's.
    pub fn executed(receipt: &Receipt, time: Timestamp) -> Self {
        let (traceparent, tracestate) = handed_on(receipt.trace_context.clone());
        Self {
            specversion: SpecVersion::V1,
            id: derived_id("executed", receipt.receipt_id.as_str()),
            source: SOURCE.to_owned(),
            event_type: Topic::ActionExecuted.event_type().to_owned(),
            subject: receipt.action_id.clone(),
            time,
            datacontenttype: JsonType::Json,
            traceid: receipt.trace_id.clone(),
            traceparent,
            tracestate,
            spaceid: receipt.space_id.clone(),
            data: ExecutedData {
                receipt_id: receipt.receipt_id.clone(),
                action_id: receipt.action_id.clone(),
                tool_id: receipt.tool_id.clone(),
                subject_id: receipt.subject_id.clone(),
                status: receipt.status,
                outcome: receipt.outcome,
                code: receipt.error.as_ref().map(|failure| failure.code),
                total_ms: receipt.timing.total_ms,
                reward: receipt.reward.scalar,
            },
        }
    }
}

/// A place in a trace, as two attributes.
fn handed_on(context: Option<TraceContext>) -> (Option<TraceParent>, Option<TraceState>) {
    context.map_or((None, None), |context| {
        (Some(context.traceparent), context.tracestate)
    })
}

/// An event id that follows from another id: a digest, so that it keeps its length whatever the planner chose.
fn derived_id(kind: &str, of: &str) -> EventId {
    let digest = crate::digest::Digest::of(of.as_bytes()).hex();
    #[expect(
        clippy::expect_used,
        reason = "a word, a dash and hex digits are always a valid id"
    )]
    EventId::new(format!("{kind}-{}", &digest[..40])).expect("valid by construction")
}
