//! What the routes of one session answer and read, as agents know it: `snake_case` in answers about invocations and grants, `maxCalls`
//! and `riskLevel` where agents send or expect them.

use effectd_actors::Grant;
use effectd_actors::approvals::How;
use effectd_actors::approvals::invocation::Invocation;
use effectd_contracts::{Failure, InvocationBrief, InvocationStatus, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::grants::GrantView;

/// An invocation: an action, as its session shows it. Its id is the action's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationView {
    pub id: String,
    pub session_id: String,
    /// What the session is about; in the inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_title: Option<String>,
    pub organization_id: Option<String>,
    /// The connection that it uses.
    pub integration_id: Option<String>,
    /// The source of the tool.
    pub integration: String,
    /// What the source calls the tool.
    pub action: String,
    /// `read`, `write` or `danger`.
    pub risk_level: Option<String>,
    /// `allow`, `require_approval` or `deny`.
    pub mode: Option<String>,
    /// `automation_override`, `org_default` or `inferred_default`.
    pub mode_source: Option<String>,
    /// Without secrets and personal data; empty for people who may not read them.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
    /// `pending`, `approved`, `executing`, `completed`, `denied`, `expired` or `failed`; in brief `pending`, `executed`, `denied`,
    /// `expired` or `failed`.
    pub status: String,
    /// Without secrets, and pruned. For the agent, who created the session, and who decides or operates; lists leave it out.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// Why the result is missing: `result_gone` if it is not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::schema::failure)]
    pub result_error: Option<Failure>,
    pub error: Option<String>,
    /// `policy`, `human` or `expired`.
    pub denied_reason: Option<String>,
    pub duration_ms: Option<f64>,
    /// Who approved or denied it.
    pub approved_by: Option<String>,
    pub approved_at: Option<String>,
    pub completed_at: Option<String>,
    /// Until when a person can decide.
    pub expires_at: Option<String>,
    pub created_at: String,
    pub receipt_id: Option<String>,
    /// The grant that covered it, or that its approval made.
    pub grant_id: Option<String>,
}

/// Which words a status has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Words {
    /// Seven.
    #[default]
    Full,
    /// Five.
    Brief,
}

/// A value that is one word in JSON.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

const fn brief(status: InvocationStatus) -> InvocationBrief {
    match status {
        InvocationStatus::Pending | InvocationStatus::Approved | InvocationStatus::Executing => {
            InvocationBrief::Pending
        }
        InvocationStatus::Completed => InvocationBrief::Executed,
        InvocationStatus::Denied => InvocationBrief::Denied,
        InvocationStatus::Expired => InvocationBrief::Expired,
        InvocationStatus::Failed => InvocationBrief::Failed,
    }
}

impl InvocationView {
    pub(crate) fn of(one: Invocation, words: Words) -> Self {
        Self {
            id: one.id.to_string(),
            session_id: one.session_id,
            session_title: None,
            organization_id: text(one.organization_id),
            integration_id: text(one.integration_id),
            integration: one.integration,
            action: one.action,
            risk_level: one.risk_level.map(|level| level.as_str().to_owned()),
            mode: one.mode.map(|mode| mode.as_str().to_owned()),
            mode_source: one.mode_source.map(|source| source.as_str().to_owned()),
            params: one.params,
            status: match words {
                Words::Full => word(&one.status),
                Words::Brief => brief(one.status).as_str().to_owned(),
            },
            result: None,
            result_error: None,
            error: one.error,
            denied_reason: one.denied_reason.map(|reason| word(&reason)),
            duration_ms: one.duration_ms.map(|time| time.micros() as f64 / 1_000.0),
            approved_by: one.approved_by,
            approved_at: text(one.approved_at),
            completed_at: text(one.completed_at),
            expires_at: text(one.expires_at),
            created_at: one.created_at.to_string(),
            receipt_id: text(one.receipt_id),
            grant_id: text(one.grant_id),
        }
    }

    /// For people who may know that it is there, and not what is in it.
    pub(crate) fn without_contents(self) -> Self {
        Self { params: Map::new(), error: None, ..self }
    }
}

/// An action that a session may ask for.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct AvailableView {
    /// The source of the tool.
    pub integration: String,
    /// What the source calls the tool; left out for a source that offers none now.
    pub action: Option<String>,
    /// Where the tool comes from: `core`, `provider`, `plugin`, `connector` or `db`.
    pub source: Option<String>,
    /// In the words of the source.
    pub description: Option<String>,
    /// `read`, `write` or `danger`.
    #[serde(rename = "riskLevel")]
    pub risk_level: Option<String>,
    /// What the policy answers to this session now: `allow`, `require_approval` or `deny`. It judges the tool's example; other parameters
    /// can get another answer.
    pub mode: Option<String>,
    /// The level that the mode comes from; left out if a rule refuses before the mode.
    pub mode_source: Option<String>,
    /// The JSON Schema of the parameters.
    #[schema(value_type = Option<Object>)]
    pub params: Option<Value>,
    /// Whether its description has changed since a person reviewed it.
    #[serde(default)]
    pub drifted: bool,
    /// Why it cannot be used now.
    pub error: Option<String>,
}

/// What a session may ask for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AvailableList {
    /// By integration and action.
    pub actions: Vec<AvailableView>,
}

/// An action to invoke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InvokeBody {
    /// The source of the tool: `files`.
    pub integration: String,
    /// What the source calls the tool: `write_text`.
    pub action: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// An invocation that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvokedView {
    pub invocation: InvocationView,
    /// Without secrets, and pruned.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// The grant that was made with the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<SessionGrantView>,
}

/// An invocation that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitingView {
    pub invocation: InvocationView,
    /// What it waits for.
    pub message: String,
}

/// One invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OneInvocation {
    pub invocation: InvocationView,
}

/// A page of a session's invocations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationList {
    /// First those that have not ended, then the others, each the newest first.
    pub invocations: Vec<InvocationView>,
}

/// A page of an organisation's invocations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InboxView {
    /// First those that have not ended, then the others, each the newest first.
    pub invocations: Vec<InvocationView>,
    /// How many there are in all.
    pub total: u64,
    /// The grants that wait for somebody who may activate them.
    pub grant_requests: Vec<SessionGrantView>,
}

/// An approval of an invocation.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveInvocation {
    /// `once` (the default), `always` or `grant`.
    pub mode: super::approvals::HowWord,
    /// For `grant`.
    pub grant: Option<GrantTerms>,
    /// The digest of the approval that was shown; if given, it must match. Without it, the receipt says `unseen`.
    pub digest: Option<String>,
}

/// What a grant covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrantTerms {
    pub scope: GrantScope,
    /// How many calls; left out or null for any number.
    #[serde(rename = "maxCalls")]
    pub max_calls: Option<u32>,
}

/// Whom a grant covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// This session.
    #[default]
    Session,
    /// All sessions of the organisation.
    Org,
}

impl From<GrantTerms> for How {
    fn from(terms: GrantTerms) -> Self {
        How::Grant { org: terms.scope == GrantScope::Org, calls_max: terms.max_calls, lasts: None }
    }
}

/// A grant that an agent asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// The source of the tools, or `*`.
    pub integration: String,
    /// What the source calls the tool, or `*`.
    pub action: String,
    #[serde(default)]
    pub scope: GrantScope,
    /// How many calls; left out or null for any number.
    #[serde(rename = "maxCalls", default, skip_serializing_if = "Option::is_none")]
    pub max_calls: Option<u32>,
}

/// A grant, as the routes of sessions show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionGrantView {
    pub id: String,
    /// `requested` until somebody who may activates it, then `active`.
    pub state: String,
    pub organization_id: String,
    pub created_by: String,
    /// The session that it covers; null for the whole organisation.
    pub session_id: Option<String>,
    pub integration: String,
    pub action: String,
    /// How many calls it covers; null for any number.
    pub max_calls: Option<u32>,
    pub used_calls: u32,
    pub expires_at: Option<String>,
    pub revoked_at: Option<String>,
    pub created_at: String,
}

impl SessionGrantView {
    pub(crate) fn of(grant: &Grant, now: Timestamp) -> Self {
        let GrantView { grant_id, state, org, session, integration, action, calls_max, calls_used, .. } =
            GrantView::of(grant, now);
        Self {
            id: grant_id,
            state,
            organization_id: org,
            created_by: grant.created_by.to_string(),
            session_id: session,
            integration,
            action,
            max_calls: calls_max,
            used_calls: calls_used,
            expires_at: text(grant.expires_at),
            revoked_at: text(grant.revoked_at),
            created_at: grant.created_at.to_string(),
        }
    }
}

/// A page of grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionGrantList {
    /// Requested and active ones, the oldest first.
    pub grants: Vec<SessionGrantView>,
    /// How many there are in all.
    pub total: u64,
}

/// A requested or active grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OneGrant {
    pub grant: SessionGrantView,
}
