//! One question to a person, as it lies in the Store.

use effectd_contracts::{
    ActionId, Approval, ApprovalId, ApprovalVerdict, DecisionData, Digest, Origin, Principal, Seen, SpaceId,
    SubjectId, Timestamp, ToolId, TraceId,
};
use effectd_policy::{Decision, Facts};
use serde::{Deserialize, Serialize};

use crate::preview::Preview;

/// One question to a person. Stored sealed, since it holds the parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub approval_id: ApprovalId,
    pub state: HoldState,
    /// What was asked, under the device's key: see [`crate::held::ask`].
    pub digest: Digest,
    /// Which question this is about the same actions, from 1: a yes to something that has changed since is a new question.
    pub round: u32,
    /// Why it is asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// What is to happen; the request is that of the first member.
    pub decision: DecisionData,
    /// The request is not as the planner made it: a person has changed it.
    #[serde(default)]
    pub edited: bool,
    /// The actions that wait for the answer. The first one is carried out, the others get its receipt.
    pub members: Vec<Member>,
    /// Whose it is: so many may wait for each session.
    pub session: String,
    pub asked_at: Timestamp,
    /// Until when somebody can decide.
    pub expires_at: Timestamp,
    pub prompt: Prompt,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    Pending,
    /// Somebody has, or the clock; it is being carried out.
    Decided(Approval),
}

/// An action that waits for the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub action_id: ActionId,
    /// The keyed digest of its request, as its planner made it.
    pub digest: Digest,
    pub trace_id: TraceId,
    pub accepted_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    pub decision: Decision,
    /// By which facts, so that another policy can be tried on them.
    pub facts: Facts,
    pub tool_version: String,
    /// What stands where it will work; nothing if the tool does not say where that is.
    pub stands: Vec<Seen>,
    /// What would change; nothing in questions of before there were previews.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<Box<Preview>>,
}

impl Prompt {
    pub fn reasons(&self) -> Vec<String> {
        let reasons = self.decision.verdict.reasons().iter();
        reasons.map(|reason| reason.text.clone()).collect()
    }
}

/// A question that is settled, kept for a while so that whoever comes late is told what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    pub approval: Approval,
    /// The actions that waited for it.
    pub action_ids: Vec<ActionId>,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    /// Who asked.
    pub principal: Principal,
}

/// What an asker is told whose action waits for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Under which handle.
    pub approval_id: ApprovalId,
    /// Until when somebody can decide.
    pub expires_at: Timestamp,
    /// Why, for people.
    pub reasons: Vec<String>,
    /// Others wait for the same answer.
    pub joined: bool,
}

impl Hold {
    /// Whether somebody can still decide.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.state == HoldState::Pending && self.expires_at > now
    }

    pub fn decided(&self) -> Option<&Approval> {
        match &self.state {
            HoldState::Pending => None,
            HoldState::Decided(approval) => Some(approval),
        }
    }

    pub fn is_approved(&self) -> bool {
        self.decided().is_some_and(|approval| match approval.verdict {
            ApprovalVerdict::Once | ApprovalVerdict::Grant | ApprovalVerdict::Always => true,
            ApprovalVerdict::Denied | ApprovalVerdict::Expired | ApprovalVerdict::Revoked => false,
        })
    }

    /// The action that is carried out.
    pub fn lead(&self) -> Option<&Member> {
        self.members.first()
    }

    pub fn member(&self, action: &ActionId) -> Option<&Member> {
        self.members.iter().find(|member| member.action_id == *action)
    }

    /// What an asker is told.
    pub fn told(&self) -> Held {
        Held {
            approval_id: self.approval_id.clone(),
            expires_at: self.expires_at,
            reasons: self.prompt.reasons(),
            joined: self.members.len() > 1,
        }
    }
}

/// The session that a decision belongs to. Whoever has none has one of their own.
pub fn session_of(decision: &DecisionData) -> String {
    match &decision.origin {
        Origin::Session { session_id } => session_id.clone(),
        Origin::Run { run_id, .. } => format!("run:{run_id}"),
        Origin::Batch { batch_id, .. } => format!("batch:{batch_id}"),
        Origin::Arbiter | Origin::Plan => format!("agent:{}", decision.request.subject_id),
    }
}

/// A keyed digest, as receipts write it.
pub fn written(digest: &Digest) -> String {
    format!("hmac-sha256:{}", digest.hex())
}
