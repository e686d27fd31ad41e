//! Approvals: what a person decided about an action, and the exact state that the decision is for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::ids::{ActionId, ApprovalId, GrantId, SubjectId, ToolId};

/// The decision about an action that needed an approval. Part of its receipt.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The id of the approval; none if a grant covered the action and nobody was asked.
    pub approval_id: Option<ApprovalId>,
    /// The verdict.
    pub verdict: ApprovalVerdict,
    /// Who decided: a principal, `grant:<id>`, or `clock` if nobody did in time.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// When the person was asked.
    pub asked_at: Timestamp,
    /// The keyed digest of what was decided: parameters, tool version, deciding rules, and the state of the paths it touches; `unseen`
    /// if the approver did not say what they saw.
    #[schemars(regex(pattern = "^(unseen|hmac-sha256:[0-9a-f]{64})$"))]
    pub digest: String,
    /// Whether the approver is someone else than the planner.
    pub authority: Authority,
    /// The person's reason.
    pub reason: Option<String>,
    /// The grant that covered the action, or that this decision created.
    pub grant_id: Option<GrantId>,
    /// The keyed digest of the request as the approver edited it; `request_digest` of the receipt is the planner's.
    #[schemars(regex(pattern = "^hmac-sha256:[0-9a-f]{64}$"))]
    pub edited_request_digest: Option<String>,
}

/// The verdict of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    /// Approved once.
    Once,
    /// Approved, with a grant for further calls.
    Grant,
    /// Approved, and nobody is asked again.
    Always,
    /// Refused.
    Denied,
    /// Nobody decided in time, or a grant ended.
    Expired,
    /// A grant was revoked.
    Revoked,
}

/// Whether the approver is someone else than the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// The policy names approvers, and the person who decided may not act on behalf of the subject.
    Separate,
    /// The policy names no approvers: the user who runs effectd decides, who may be the planner.
    SingleUser,
}

/// The evidence with which an approved decision is published again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Approved {
    /// The approval.
    pub record: Approval,
    /// The keyed digest of the planner's request, if the approver edited it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Digest>,
}

/// The data of an approval event. It never holds a parameter.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalData {
    /// What happened.
    pub what: ApprovalChange,
    /// The approval, if the event is about one.
    pub approval_id: Option<ApprovalId>,
    /// The grant, if the event is about one.
    pub grant_id: Option<GrantId>,
    /// The actions that wait for the approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub action_ids: Vec<ActionId>,
    /// The tool, or the tool pattern of a grant.
    pub tool: String,
    /// The subject, if the event is about an action.
    pub subject_id: Option<SubjectId>,
    /// Who did it.
    pub by: String,
    /// The reason that was given.
    pub reason: Option<String>,
    /// When the approval or the grant expires.
    pub expires_at: Option<Timestamp>,
}

crate::wire_enum! {
    /// What can happen to an approval or a grant.
    pub enum ApprovalChange {
        /// An approval was requested.
        Requested = "requested",
        /// An equal request waits for the same approval.
        Joined = "joined",
        /// The approval was requested again, since what it was for has changed.
        Reopened = "reopened",
        /// A person approved.
        Approved = "approved",
        /// A person refused, or the policy denies it now.
        Denied = "denied",
        /// Nobody decided in time.
        Expired = "expired",
        /// A grant was requested.
        GrantRequested = "grant_requested",
        /// A grant took effect.
        GrantCreated = "grant_created",
        /// A grant covered an action.
        GrantUsed = "grant_used",
        /// A grant was revoked.
        GrantRevoked = "grant_revoked",
        /// A grant was used up, expired, or was never activated.
        GrantEnded = "grant_ended",
        /// The policy or a grant permits it now: it runs without a person.
        Released = "released",
        /// Nobody waits for it any more: the actions were withdrawn.
        Withdrawn = "withdrawn",
    }
}

impl ApprovalData {
    /// The data of an event; the caller fills in the rest.
    pub fn new(what: ApprovalChange, tool: &ToolId, by: impl Into<String>) -> Self {
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
