//! Events on the bus, as CloudEvents 1.0 in JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::approval::{ApprovalData, Approved};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::failure::Code;
use crate::ids::{
    ActionId, ConnectionId, EventId, OrgId, Principal, ReceiptId, SessionId, SpaceId, SubjectId, ToolId,
    TraceId,
};
use crate::log::AmendmentEntry;
use crate::millis::Millis;
use crate::outcome::Outcome;
use crate::receipt::{Cost, Receipt, Status};
use crate::request::{ActionRequest, Contract, Feature, Origin};
use crate::reward::Judgement;
use crate::trace::{TraceContext, TraceParent, TraceState};

/// The topics that effectd writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Decisions of planners, for the pipeline.
    ActionDecision,
    /// Actions that have their receipt.
    ActionExecuted,
    /// Changes of approvals and grants.
    Approvals,
    /// Artifacts that are quarantined or released.
    Artifacts,
    /// Actions that were given up.
    DeadLetters,
    /// Tools that were disabled because they did more than they declare.
    Tools,
    /// What became known about actions after their receipts.
    Amendments,
    /// Sessions that were created, ended or deleted.
    Sessions,
    /// Changes of connections and secrets.
    Connectors,
}

impl Topic {
    /// All of them.
    pub const ALL: [Topic; 9] = [
        Self::ActionDecision,
        Self::ActionExecuted,
        Self::Approvals,
        Self::Artifacts,
        Self::DeadLetters,
        Self::Tools,
        Self::Amendments,
        Self::Sessions,
        Self::Connectors,
    ];

    /// The name on the bus.
    pub const fn as_str(self) -> &'static str {
        match self {
            Topic::ActionDecision => "ACTION_DECISION",
            Topic::ActionExecuted => "ACTION_EXECUTED",
            Topic::Approvals => "APPROVALS",
            Topic::Artifacts => "ARTIFACTS",
            Topic::DeadLetters => "DEAD_LETTERS",
            Topic::Tools => "TOOLS",
            Topic::Amendments => "AMENDMENTS",
            Topic::Sessions => "SESSIONS",
            Topic::Connectors => "CONNECTORS",
        }
    }

    /// The CloudEvents type.
    pub const fn event_type(self) -> &'static str {
        match self {
            Topic::ActionDecision => "effectd.action.decision.v1",
            Topic::ActionExecuted => "effectd.action.executed.v1",
            Topic::Approvals => "effectd.approval.v1",
            Topic::Artifacts => "effectd.artifact.v1",
            Topic::DeadLetters => "effectd.dead_letter.v1",
            Topic::Tools => "effectd.tool.quarantined.v1",
            Topic::Amendments => "effectd.receipt.amended.v1",
            Topic::Sessions => "effectd.session.v1",
            Topic::Connectors => "effectd.connection.v1",
        }
    }
}

/// A CloudEvent around `T`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event<T> {
    /// Always `1.0`.
    pub specversion: SpecVersion,
    /// Unique. Publishing the same id again has no effect.
    pub id: EventId,
    /// The device: `urn:uuid:…`. The gateway writes it, since a store belongs to one device; stored events hold [`SOURCE`].
    pub source: String,
    /// The type of the event, with the version of `data`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The action; `grant:<id>` for a grant without an action, `artifact:<id>` for an artifact, `session:<id>` for a session,
    /// `connection:<id>` and `secret:<name>` for a connection and a secret.
    pub subject: ActionId,
    /// When the event was written.
    pub time: Timestamp,
    /// Always `application/json`.
    pub datacontenttype: JsonType,
    /// The action's trace: an extension attribute, hence without an underscore.
    pub traceid: TraceId,
    /// The action's span in the planner's trace, if the planner sent one: the CloudEvents extension for distributed tracing.
    pub traceparent: Option<TraceParent>,
    /// The vendors' part of the same extension.
    pub tracestate: Option<TraceState>,
    /// The space: an extension attribute. `*` for an artifact, which may belong to several.
    pub spaceid: SpaceId,
    /// The offset in the topic: an extension attribute, which the gateway adds.
    pub offset: Option<u64>,
    /// The payload.
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

/// The media type of `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum JsonType {
    /// The only one.
    #[default]
    #[serde(rename = "application/json")]
    Json,
}

/// The `source` of stored events.
pub const SOURCE: &str = "effectd";

/// A planner's decision, with what is known about who made it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionData {
    /// The request.
    pub request: ActionRequest,
    /// The principal: who submitted it, as the operating system says.
    pub principal: Principal,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// What the plan requires beside the request.
    pub contract: Option<Contract>,
    /// How far the planner's `policy_ctx.time` was from the runtime's clock on acceptance: positive if it was ahead.
    pub clock_skew_ms: Option<i64>,
    /// Whether somebody waits at a terminal, so that an approval is expected soon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interactive: bool,
    /// The approval with which the decision is published again.
    pub approved: Option<Approved>,
}

impl DecisionData {
    /// [`ActionRequest::digest_under`] its contract.
    pub fn digest(&self) -> Digest {
        self.request.digest_under(self.contract.as_ref())
    }

    /// A decision without contract, approval or clock skew.
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

/// How an action ended, in brief; its receipt has the rest. It never holds a parameter.
#[serde_with::skip_serializing_none]
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
    /// The outcome.
    pub outcome: Outcome,
    /// The failure code, if it failed.
    pub code: Option<Code>,
    /// From acceptance to receipt.
    pub total_ms: Millis,
    /// The reward, by formula 1.
    pub reward: f64,
    /// The cost.
    pub cost: Cost,
    /// The reward by formula 2, if the settings ask for it.
    pub reward_v2: Option<f64>,
    /// The probability of the planner's choice, if it was stated.
    pub propensity: Option<f64>,
    /// The id of the candidate that the planner chose, if it was stated.
    pub chosen: Option<String>,
    /// What the planner knew when it chose, if it was stated.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub context: BTreeMap<String, Feature>,
}

impl<T> Event<T> {
    fn new(
        topic: Topic,
        id: EventId,
        subject: ActionId,
        space: SpaceId,
        trace: (TraceId, Option<TraceContext>),
        time: Timestamp,
        data: T,
    ) -> Self {
        let (traceparent, tracestate) =
            trace.1.map_or((None, None), |context| (Some(context.traceparent), context.tracestate));
        Self {
            specversion: SpecVersion::V1,
            id,
            source: SOURCE.to_owned(),
            event_type: topic.event_type().to_owned(),
            subject,
            time,
            datacontenttype: JsonType::Json,
            traceid: trace.0,
            traceparent,
            tracestate,
            spaceid: space,
            offset: None,
            data,
        }
    }

    /// A change that belongs to no action. `about` names what has changed: see [`Event::subject`].
    pub fn of_change(topic: Topic, data: T, about: ActionId, space: SpaceId, time: Timestamp) -> Self {
        Self::new(topic, EventId::fresh(), about, space, (TraceId::fresh(), None), time, data)
    }

    /// An event about what a receipt says. Its id is derived from the receipt's.
    fn of_receipt(topic: Topic, kind: &str, receipt: &Receipt, time: Timestamp, data: T) -> Self {
        Self::new(
            topic,
            derived_id(kind, receipt.receipt_id.as_str()),
            receipt.action_id.clone(),
            receipt.space_id.clone(),
            (receipt.trace_id.clone(), receipt.trace_context.clone()),
            time,
            data,
        )
    }
}

impl Event<DecisionData> {
    /// The id of the event that publishes an action's decision.
    pub fn id_for(action: &ActionId) -> EventId {
        derived_id("decision", action.as_str())
    }

    /// The id of the event that publishes the decision again after its n-th requeue.
    pub fn id_for_requeue(action: &ActionId, n: u32) -> EventId {
        derived_id(&format!("decision-again-{n}"), action.as_str())
    }

    /// The id of the event that publishes the decision again after its n-th approval.
    pub fn id_for_approval(action: &ActionId, n: u32) -> EventId {
        derived_id(&format!("decision-approved-{n}"), action.as_str())
    }

    /// The event that publishes a decision. Its id is derived from the action's, so a decision that is sent twice is one event.
    pub fn decision(data: DecisionData, trace_id: TraceId, time: Timestamp) -> Self {
        let request = &data.request;
        let (action, space) = (request.action_id.clone(), request.space_id.clone());
        let context = request.trace_context(&trace_id);
        Self::new(
            Topic::ActionDecision,
            Self::id_for(&action),
            action,
            space,
            (trace_id, context),
            time,
            data,
        )
    }
}

impl Event<ExecutedData> {
    /// The event that announces a receipt. Its id is derived from the receipt's.
    pub fn executed(receipt: &Receipt, time: Timestamp) -> Self {
        let choice = receipt.choice.as_ref();
        let data = ExecutedData {
            receipt_id: receipt.receipt_id.clone(),
            action_id: receipt.action_id.clone(),
            tool_id: receipt.tool_id.clone(),
            subject_id: receipt.subject_id.clone(),
            status: receipt.status,
            outcome: receipt.outcome,
            code: receipt.error.as_ref().map(|failure| failure.code),
            total_ms: receipt.timing.total_ms,
            reward: receipt.reward.scalar,
            cost: receipt.cost,
            reward_v2: receipt.reward.v2,
            propensity: choice.and_then(|choice| choice.propensity),
            chosen: choice.and_then(|choice| choice.chosen.clone()),
            context: choice.map(|choice| choice.context.clone()).unwrap_or_default(),
        };
        Self::of_receipt(Topic::ActionExecuted, "executed", receipt, time, data)
    }
}

/// What became known about an action after its receipt, together with all earlier amendments of the receipt.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AmendedData {
    /// The amendment, which is an entry of the log.
    pub amendment_id: EventId,
    /// The receipt.
    pub receipt_id: ReceiptId,
    /// The action.
    pub action_id: ActionId,
    /// The tool.
    pub tool_id: ToolId,
    /// Who judged: `operator`, or the name of a checker.
    pub judge: String,
    /// Whether the action counts as a success, if anybody has said so.
    pub success: Option<bool>,
    /// The quality, if anybody has stated it.
    pub quality: Option<f64>,
    /// The reward that was in force before, by formula 1.
    pub reward_before: f64,
    /// The reward in force now, by formula 1.
    pub reward: f64,
    /// The reward in force now, by formula 2.
    pub reward_v2: Option<f64>,
}

impl Event<AmendedData> {
    /// The event that announces an amendment; `all` is what the amendments of the receipt say with this one. Its id is derived
    /// from the amendment's.
    pub fn amended(receipt: &Receipt, entry: &AmendmentEntry, all: Judgement, reward_before: f64) -> Self {
        let data = AmendedData {
            amendment_id: entry.amendment_id.clone(),
            receipt_id: receipt.receipt_id.clone(),
            action_id: receipt.action_id.clone(),
            tool_id: receipt.tool_id.clone(),
            judge: entry.source.clone(),
            success: all.success,
            quality: all.quality,
            reward_before,
            reward: entry.reward.scalar,
            reward_v2: entry.reward.v2,
        };
        let event = Self::of_receipt(Topic::Amendments, "amended", receipt, entry.at, data);
        Self { id: derived_id("amended", entry.amendment_id.as_str()), ..event }
    }
}

impl Event<ApprovalData> {
    /// A change of an approval or a grant. `about` and `space` are the action's; a grant without an action has placeholders.
    pub fn approval(
        data: ApprovalData,
        about: ActionId,
        space: SpaceId,
        trace_id: TraceId,
        time: Timestamp,
    ) -> Self {
        let trace = (trace_id, None);
        Self::new(Topic::Approvals, EventId::fresh(), about, space, trace, time, data)
    }
}

/// A change of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactData {
    /// What happened.
    pub what: ArtifactChange,
    /// The artifact.
    pub artifact_id: String,
    /// Who did it.
    pub by: String,
    /// The reason that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What can happen to an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactChange {
    /// Nobody can read it.
    Quarantined,
    /// It can be read again.
    Released,
}

/// An action that was given up. It stays a dead letter until somebody requeues, settles or drops it. The data never holds a
/// parameter or the failure's message.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterData {
    /// The failing receipt; none for a decision that cannot be read, or whose action id has another content.
    pub receipt_id: Option<ReceiptId>,
    /// The action; `decision:<offset>` for a decision that cannot be read.
    pub action_id: ActionId,
    /// The tool, if it is known.
    pub tool_id: Option<ToolId>,
    /// The subject, if it is known.
    pub subject_id: Option<SubjectId>,
    /// Why, as a stable word.
    pub code: String,
    /// The cause that all letters of its kind share, as `effectd dlq causes` shows it.
    pub cause: String,
    /// How often it was tried.
    pub attempts: u32,
}

impl Event<DeadLetterData> {
    /// The event that announces the dead letter of an action. Its id is derived from the receipt's.
    pub fn dead_letter(
        receipt: &Receipt,
        code: String,
        cause: String,
        attempts: u32,
        time: Timestamp,
    ) -> Self {
        let data = DeadLetterData {
            receipt_id: Some(receipt.receipt_id.clone()),
            action_id: receipt.action_id.clone(),
            tool_id: Some(receipt.tool_id.clone()),
            subject_id: Some(receipt.subject_id.clone()),
            code,
            cause,
            attempts,
        };
        Self::of_receipt(Topic::DeadLetters, "dead-letter", receipt, time, data)
    }

    /// The event that announces the dead letter of a decision without a receipt.
    pub fn unreceipted(data: DeadLetterData, space: SpaceId, trace_id: TraceId, time: Timestamp) -> Self {
        let (about, trace) = (data.action_id.clone(), (trace_id, None));
        Self::new(Topic::DeadLetters, EventId::fresh(), about, space, trace, time, data)
    }
}

/// A tool that was disabled because it did more than it declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolQuarantinedData {
    /// The tool.
    pub tool_id: ToolId,
    /// The action in which it did.
    pub action_id: ActionId,
    /// What it did, for people.
    pub reason: String,
    /// Since when it is off.
    pub since: Timestamp,
}

impl Event<ToolQuarantinedData> {
    /// The event that announces that a tool was disabled, in the space in which it ran.
    pub fn tool(data: ToolQuarantinedData, space: SpaceId) -> Self {
        let (about, time, trace) = (data.action_id.clone(), data.since, (TraceId::fresh(), None));
        Self::new(Topic::Tools, EventId::fresh(), about, space, trace, time, data)
    }
}

crate::wire_enum! {
    /// What happened to a session.
    pub enum SessionChange {
        /// It was created.
        Created = "created",
        /// It has ended: it takes no new action.
        Ended = "ended",
        /// It was deleted: its approvals are denied, its grants revoked, and what its actions left is destroyed.
        Deleted = "deleted",
    }
}

/// A change of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionData {
    /// What happened.
    pub what: SessionChange,
    /// The session.
    pub session_id: SessionId,
    /// The organisation that it belongs to.
    pub org: OrgId,
    /// The subject that acts in it.
    pub subject_id: SubjectId,
    /// Who did it.
    pub by: Principal,
}

crate::wire_enum! {
    /// What happened to a connection or a secret.
    pub enum ConnectionChange {
        /// The connection was created.
        Created = "created",
        /// The connection leads elsewhere.
        Replaced = "replaced",
        /// The connection may be used again.
        Enabled = "enabled",
        /// The connection may not be used.
        Disabled = "disabled",
        /// The connection was deleted.
        Deleted = "deleted",
        /// The MCP server of the connection has other tools, or describes them otherwise.
        Harvested = "harvested",
        /// A person has accepted the tools as they are described.
        Reviewed = "reviewed",
        /// An operator has said something about a tool.
        Overlaid = "overlaid",
        /// The secret has a new value.
        SecretSet = "secret_set",
        /// The secret was deleted.
        SecretDeleted = "secret_deleted",
    }
}

/// A change of a connection or a secret. It never holds the secret's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionData {
    /// What happened.
    pub what: ConnectionChange,
    /// The organisation that it belongs to.
    pub org: OrgId,
    /// The connection; none for a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_id: Option<ConnectionId>,
    /// The connection's or the secret's name.
    pub name: String,
    /// Who did it.
    pub by: Principal,
}

/// An event id derived from another id: a digest, so that its length is bounded.
fn derived_id(kind: &str, of: &str) -> EventId {
    let digest = crate::digest::Digest::of(of.as_bytes()).hex();
    #[expect(clippy::expect_used, reason = "a word, a dash and hex digits are always a valid id")]
    EventId::new(format!("{kind}-{}", &digest[..40])).expect("valid by construction")
}
