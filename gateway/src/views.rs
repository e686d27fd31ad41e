//! What the door tells about actions.

pub mod approvals;
pub mod artifacts;
pub mod notifications;

use effectd_actors::history::Page;
use effectd_actors::{Done, Held, Withdrawal, reward};
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{
    ActionId, AmendmentEntry, EntryKind, EventId, KeyEntry, Mode, Operation, Outcome, Principal, Receipt,
    SpaceId, SubjectId, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::limits::NOTE_BYTES_MAX;
use crate::problem::{Kind, Problem};

pub use crate::routes::breakers::BreakerView;
pub use crate::routes::tools::{details as tool_details, summary as tool_summary};

/// How an action stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is on disk and will be carried out or refused, whatever dies.
    Accepted,
    /// It waits for a person; nothing happens before somebody has decided.
    Held,
    /// It has ended, and there is its receipt.
    Done,
}

/// One action, as its planner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionView {
    /// Which action.
    #[schema(value_type = String)]
    pub action_id: ActionId,
    /// How it stands.
    pub state: State,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::openapi::outcome)]
    pub outcome: Option<Outcome>,
    /// What it waits for, if it waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<HeldView>,
    /// Nothing was done now: this receipt, or one for the same key, was there before.
    #[serde(default)]
    pub already_done: bool,
    /// The proof of how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::openapi::receipt)]
    pub receipt: Option<Box<Receipt>>,
    /// What the tool answered, in full. Only who waited while it ran is told, once; it is kept nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
}

/// What an action waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldView {
    /// The handle by which somebody decides.
    pub approval_id: String,
    /// Until when somebody can.
    pub expires_at: String,
    /// Why a person is asked.
    pub reasons: Vec<String>,
    /// Equal requests wait for the same answer.
    pub joined: bool,
}

impl From<&Held> for HeldView {
    fn from(held: &Held) -> Self {
        Self {
            approval_id: held.approval_id.to_string(),
            expires_at: held.expires_at.to_string(),
            reasons: held.reasons.clone(),
            joined: held.joined,
        }
    }
}

impl ActionView {
    pub fn held(action_id: ActionId, held: &Held) -> Self {
        Self {
            state: State::Held,
            outcome: Some(Outcome::AwaitingApproval),
            approval: Some(held.into()),
            ..Self::accepted(action_id)
        }
    }

    pub fn accepted(action_id: ActionId) -> Self {
        Self {
            action_id,
            state: State::Accepted,
            outcome: None,
            approval: None,
            already_done: false,
            receipt: None,
            result: None,
        }
    }

    pub fn done(action_id: ActionId, done: &Done) -> Self {
        Self {
            action_id,
            state: State::Done,
            outcome: Some(done.receipt.outcome),
            approval: None,
            already_done: done.before,
            receipt: Some(Box::new((*done.receipt).clone())),
            result: done.result.as_deref().cloned(),
        }
    }
}

/// The answer to a request to do something: a refusal is a problem, with the receipt that records it.
pub fn ended(action_id: ActionId, done: &Done) -> Result<ActionView, Box<Problem>> {
    match &done.receipt.error {
        Some(failure) => Err(Box::new(
            Problem::recorded(&done.receipt, failure).about(&action_id),
        )),
        None => Ok(ActionView::done(action_id, done)),
    }
}

/// The answer to the wish to withdraw an action.
pub fn withdrawal(action: &ActionId, withdrawn: &Withdrawal) -> Result<ActionView, Problem> {
    match withdrawn {
        Withdrawal::Now(done) => Ok(ActionView::done(action.clone(), done)),
        // Asked again, after an answer that was lost.
        Withdrawal::Ended(done) if done.receipt.outcome == Outcome::Cancelled => {
            Ok(ActionView::done(action.clone(), done))
        }
        Withdrawal::Ended(done) => {
            let why = "the action has ended, and its receipt says how; it cannot be withdrawn";
            let mut problem = Problem::of(Kind::AlreadyFinished, why).about(action);
            problem.receipt = Some(Box::new((*done.receipt).clone()));
            Err(problem)
        }
        Withdrawal::Begun => {
            let why = "the action has been begun, and cannot be withdrawn; wait for its receipt";
            Err(Problem::of(Kind::CannotCancel, why).about(action))
        }
        Withdrawal::Unknown => Err(unknown(action)),
    }
}

/// No action of this id, as far as the asker may know.
pub fn unknown(action: &ActionId) -> Problem {
    let message = "no action of this id was accepted from you; submit it, which is harmless if it was";
    Problem::of(Kind::ActionUnknown, message).about(action)
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The version that runs.
    pub version: String,
    /// Decisions that are accepted and not yet ended, when the store was asked last.
    pub backlog: u64,
    /// An operator has paused effects: whatever comes is only tried out.
    #[serde(default)]
    pub paused: bool,
}

/// Some receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptList {
    /// The receipts; may be fewer than asked for, or none, although there are more.
    #[schema(schema_with = crate::openapi::receipts)]
    pub receipts: Vec<Receipt>,
    /// Where to go on; nothing when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// What to begin after to see what comes later; nothing if there is nothing at all yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<u64>,
}

impl From<Page> for ReceiptList {
    fn from(page: Page) -> Self {
        let Page {
            receipts,
            next,
            follow,
        } = page;
        Self {
            receipts,
            next,
            follow,
        }
    }
}

/// What is known later about a receipt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Amending {
    /// Who found out: `operator` if left out, or the name of whatever checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether it counts as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// How well, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Amending {
    /// The entry that says so; why there can be none, if so.
    pub fn entry(&self, receipt: &Receipt, by: Principal, at: Timestamp) -> Result<AmendmentEntry, String> {
        if self.success.is_none() && self.quality.is_none() {
            return Err("say what is known now: whether it counts as done, or how well it was".to_owned());
        }
        if self
            .quality
            .is_some_and(|quality| !(0.0..=1.0).contains(&quality))
        {
            return Err("quality is from 0 to 1".to_owned());
        }
        let source = self.source.clone().unwrap_or_else(|| "operator".to_owned());
        if source.is_empty() || source.len() > ID_BYTES_MAX || source.chars().any(is_unprintable) {
            return Err(format!("source is printable text of 1 to {ID_BYTES_MAX} bytes"));
        }
        let note = self.note.clone();
        if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(format!("the note is longer than {NOTE_BYTES_MAX} bytes"));
        }
        let reward =
            reward::amended(receipt, self.success, self.quality).map_err(|error| error.to_string())?;
        Ok(AmendmentEntry {
            entry: EntryKind::Amendment,
            amendment_id: EventId::fresh(),
            receipt_id: receipt.receipt_id.clone(),
            at,
            by,
            source,
            success: self.success,
            quality: self.quality,
            note,
            reward,
            signature: None,
        })
    }
}

/// A policy that can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// Names it: files and changes together.
    pub digest: String,
    /// Whether this is the one in force.
    pub in_force: bool,
    /// What is in it, in one line.
    pub summary: String,
    /// What is permitted but hardly meant.
    pub warnings: Vec<String>,
    /// The receipt of the change that put it in force, which names the operator; none if there was nothing to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// Spaces whose root is another folder than the one that effectd knows: what a reload changes, or has changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<RootChange>,
    /// Spaces whose root cannot be used, each with the reason and what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<String>,
}

/// A space whose root is another folder than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootChange {
    /// Which space.
    pub space_id: String,
    /// The folder that it had: path, inode, device and file system.
    pub before: String,
    /// The folder that stands there now; none if one is made when the space is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A change beside the policy's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "change", deny_unknown_fields)]
pub enum PolicyChange {
    /// Gives a consent.
    GrantConsent {
        /// Whose.
        #[schema(value_type = String)]
        subject: SubjectId,
        /// Where.
        #[schema(value_type = String)]
        space: SpaceId,
        /// What for: `tool:<id>`.
        purpose: String,
    },
    /// Takes a consent back.
    RevokeConsent {
        /// Whose.
        #[schema(value_type = String)]
        subject: SubjectId,
        /// Where.
        #[schema(value_type = String)]
        space: SpaceId,
        /// What for: `tool:<id>`.
        purpose: String,
    },
    /// Sets an organisation's mode of a tool; without a mode, what the files say holds again.
    SetOrgMode {
        /// Which organisation.
        org: String,
        /// Which tool.
        tool: String,
        /// `allow`, `require_approval` or `deny`.
        #[schema(value_type = Option<String>)]
        mode: Option<Mode>,
    },
    /// Sets an automation's mode of a tool; without a mode, what the files say holds again.
    SetAutomationMode {
        /// Which automation.
        automation: String,
        /// Which tool.
        tool: String,
        /// `allow`, `require_approval` or `deny`.
        #[schema(value_type = Option<String>)]
        mode: Option<Mode>,
    },
}

impl PolicyChange {
    /// What its receipt says was done.
    pub fn operation(&self) -> Operation {
        match self {
            PolicyChange::GrantConsent {
                subject,
                space,
                purpose,
            } => Operation::GrantConsent {
                subject: subject.clone(),
                space: space.clone(),
                purpose: purpose.clone(),
            },
            PolicyChange::RevokeConsent {
                subject,
                space,
                purpose,
            } => Operation::RevokeConsent {
                subject: subject.clone(),
                space: space.clone(),
                purpose: purpose.clone(),
            },
            PolicyChange::SetOrgMode { org, tool, mode } => Operation::SetMode {
                org: Some(org.clone()),
                automation: None,
                tool: tool.clone(),
                mode: *mode,
            },
            PolicyChange::SetAutomationMode {
                automation,
                tool,
                mode,
            } => Operation::SetMode {
                org: None,
                automation: Some(automation.clone()),
                tool: tool.clone(),
                mode: *mode,
            },
        }
    }
}

/// A key that signs from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RotatedView {
    /// Its entry in the log.
    #[serde(flatten)]
    pub entry: KeyEntry,
    /// The receipt that names the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
}

/// Why a request is, or was, judged as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// `permit`, `deny` …: the verdict under the policy in force.
    pub verdict: String,
    /// Every gate, what it saw and what would have to change, for people.
    pub text: String,
    /// The policy that judges.
    pub policy_digest: String,
    /// The receipt was made under another policy; this is how the one in force judges the same facts.
    pub policy_changed: bool,
}
