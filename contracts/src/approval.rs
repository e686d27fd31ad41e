//! A person's word about an action: what was decided, by whom, over exactly what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::ids::{ActionId, ApprovalId, GrantId, SubjectId, ToolId};

/// What was decided about an action that waited for a person. Stands in its receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The handle under which it waited; none if a grant stood in and nobody was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// What it came to.
    pub verdict: ApprovalVerdict,
    /// Who decided: a principal, `grant:<id>`, or `clock` if nobody did in time.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// When the person was asked.
    pub asked_at: Timestamp,
    /// Over what, under the device's key: parameters, tool version, deciding rules, what stands where it will work.
    #[schemars(regex(pattern = "^hmac-sha256:[0-9a-f]{64}$"))]
    pub digest: String,
    /// Whether planner and approver are different people to this runtime.
    pub authority: Authority,
    /// What the person said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pre-approval that stood in for a person, or that was made with this decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<GrantId>,
    /// The digest of the request as the person changed it, under the device's key; `request_digest` of the receipt is that
    /// of the request as the planner made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^hmac-sha256:[0-9a-f]{64}$"))]
    pub edited_request_digest: Option<String>,
}

/// What a person's decision came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    /// Yes, to this one.
    Once,
    /// Yes, and to some more like it.
    Grant,
    /// Yes, and nobody needs to be asked any more.
    Always,
    /// No.
    Denied,
    /// Nobody decided in time, or a grant is over.
    Expired,
    /// A grant was taken back.
    Revoked,
}

/// Whether whoever decides is someone else than whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// The policy names approvers, and the one who decided does not speak for the subject.
    Separate,
    /// The policy names no approvers: whoever runs effectd decides, and may be the planner.
    SingleUser,
}

/// What goes with a decision that comes in again because a person said yes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approved {
    /// What was decided.
    pub record: Approval,
    /// The keyed digest of the request as the planner made it, if the person changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Digest>,
}

/// Something that happened to an approval or a grant. No parameter ever stands here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalData {
    /// What happened.
    pub what: ApprovalNews,
    /// Which approval, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// Which grant, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<GrantId>,
    /// The actions that wait on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub action_ids: Vec<ActionId>,
    /// The tool, or the pattern of tools of a grant.
    pub tool: String,
    /// On whose behalf, if it is about an action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<SubjectId>,
    /// Who did it.
    pub by: String,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until when somebody can decide, or the grant holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// What can happen to an approval or a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalNews {
    /// A person is asked.
    Requested,
    /// Another request of the same kind waits for the same answer.
    Joined,
    /// A person is asked again, since what was approved is not what would happen now.
    Reopened,
    /// Somebody said yes.
    Approved,
    /// Somebody said no.
    Denied,
    /// Nobody decided in time.
    Expired,
    /// A pre-approval was asked for.
    GrantRequested,
    /// A pre-approval is in force.
    GrantCreated,
    /// A pre-approval stood in for a person.
    GrantUsed,
    /// A pre-approval was taken back.
    GrantRevoked,
    /// A pre-approval is used up, its time is over, or nobody put it in force in time.
    GrantEnded,
}

impl ApprovalNews {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Joined => "joined",
            Self::Reopened => "reopened",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::GrantRequested => "grant_requested",
            Self::GrantCreated => "grant_created",
            Self::GrantUsed => "grant_used",
            Self::GrantRevoked => "grant_revoked",
            Self::GrantEnded => "grant_ended",
        }
    }
}

impl ApprovalData {
    /// News about a tool, by somebody; the rest is filled in by whoever knows it.
    pub fn new(what: ApprovalNews, tool: &ToolId, by: impl Into<String>) -> Self {
        Self {
            what,
            approval_id: None,
            grant_id: None,
            action_ids: Vec::new(),
            tool: tool.to_string(),
            subject_id: None,
            by: by.into(),
            reason: None,
            expires_at: None,
        }
    }
}
