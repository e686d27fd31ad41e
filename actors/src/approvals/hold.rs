//! A hold, as stored: one question to a person, and the actions that wait for the decision.

use effectd_contracts::{
    ActionId, Approval, ApprovalId, ApprovalVerdict, Authority, DecisionData, Digest, Origin, PathSnapshot,
    Principal, Redaction, SpaceId, SubjectId, Timestamp, ToolId, TraceId,
};
use effectd_policy::{Decision, Facts};
use serde::{Deserialize, Serialize};

use crate::action::preview::Preview;
use crate::services::answers::Held;

/// Stored sealed, since it contains the parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub approval_id: ApprovalId,
    pub state: HoldState,
    /// The keyed digest of the question: see [`super::question`].
    pub digest: Digest,
    /// How often a person was asked about these actions, from 1: a change after an approval makes another question.
    pub round: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The planner's decision, with the request of the first member.
    pub decision: DecisionData,
    /// Whether a person has changed the planner's request.
    #[serde(default)]
    pub edited: bool,
    /// The actions that wait. The first one is executed; the others get its receipt.
    pub members: Vec<Member>,
    /// The session whose limit of holds this one counts against.
    pub session: String,
    pub asked_at: Timestamp,
    /// Until when a person can decide.
    pub expires_at: Timestamp,
    pub prompt: Prompt,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    Pending,
    /// Decided by a person or by expiry; what follows from it may still have to be done.
    Decided(Approval),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub action_id: ActionId,
    /// The keyed digest of this member's request, as the planner made it.
    pub digest: Digest,
    pub trace_id: TraceId,
    /// Where this member's request came from: the others may come from elsewhere.
    #[serde(default, skip_serializing_if = "Origin::is_arbiter")]
    pub origin: Origin,
    pub accepted_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    pub decision: Decision,
    /// The facts, so that another policy can be evaluated on them.
    pub facts: Facts,
    pub tool_version: String,
    /// The snapshot of the tool's paths; empty if the tool declares none.
    pub stands: Vec<PathSnapshot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<Box<Preview>>,
    /// What redaction removes from the parameters before the tool sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redactions: Vec<Redaction>,
    /// Personal data that the tool gets and the approver does not see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<Redaction>,
}

impl Prompt {
    pub fn reasons(&self) -> Vec<String> {
        let reasons = self.decision.verdict.reasons().iter();
        reasons.map(|reason| reason.text.clone()).collect()
    }
}

/// What remains of a hold that has ended, for later lookups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    pub approval: Approval,
    pub action_ids: Vec<ActionId>,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    pub principal: Principal,
}

impl Hold {
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.state == HoldState::Pending && self.expires_at > now
    }

    pub fn decided(&self) -> Option<&Approval> {
        match &self.state {
            HoldState::Pending => None,
            HoldState::Decided(approval) => Some(approval),
        }
    }

    /// The digest of the question that the decision is about. An approver who says nothing about it decides about the one that stood then.
    pub(crate) fn agreed(&self) -> Option<String> {
        let digest = &self.decided()?.digest;
        Some(if digest == UNSEEN { keyed_digest(&self.digest) } else { digest.clone() })
    }

    pub fn is_approved(&self) -> bool {
        self.decided().is_some_and(|approval| match approval.verdict {
            ApprovalVerdict::Once | ApprovalVerdict::Grant | ApprovalVerdict::Always => true,
            ApprovalVerdict::Denied | ApprovalVerdict::Expired | ApprovalVerdict::Revoked => false,
        })
    }

    /// The first member, whose action is executed.
    pub fn lead(&self) -> Option<&Member> {
        self.members.first()
    }

    pub fn member(&self, action: &ActionId) -> Option<&Member> {
        self.members.iter().find(|member| member.action_id == *action)
    }

    /// What the caller of a held action gets.
    pub fn held(&self) -> Held {
        Held {
            approval_id: self.approval_id.clone(),
            expires_at: self.expires_at,
            reasons: self.prompt.reasons(),
            joined: self.members.len() > 1,
            redactions: self.prompt.redactions.clone(),
        }
    }
}

pub(crate) fn approval(
    verdict: ApprovalVerdict,
    by: impl Into<String>,
    (asked_at, at): (Timestamp, Timestamp),
    digest: &Digest,
    authority: Authority,
) -> Approval {
    Approval {
        approval_id: None,
        verdict,
        by: by.into(),
        at,
        asked_at,
        digest: keyed_digest(digest),
        authority,
        reason: None,
        grant_id: None,
        edited_request_digest: None,
    }
}

/// The session of a decision. A decision without a session counts against its subject.
pub fn session_of(decision: &DecisionData) -> String {
    let of_subject = || format!("agent:{}", decision.request.subject_id);
    decision.origin.session().map_or_else(of_subject, String::from)
}

/// The digest in the record of an approver who did not say what they saw.
pub(crate) const UNSEEN: &str = "unseen";

/// A keyed digest, as receipts write it.
pub fn keyed_digest(digest: &Digest) -> String {
    format!("hmac-sha256:{}", digest.hex())
}
