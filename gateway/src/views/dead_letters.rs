//! Dead letters in JSON: one by one, by cause, and quarantined actions for review.

use effectd_actors::operator::dead_letters::{self, Now};
use effectd_bus::{Body, DeadLetter, DeadLetterOrigin, Store, StoreError, TopicName};
use effectd_contracts::{Code, ReceiptId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::limits::OPERATOR_PAGE_MAX;

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TryView {
    pub at: String,
    /// Empty if it can no longer be read.
    pub error: String,
}

/// A dead letter, without the parameters of its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterView {
    pub letter: u64,
    pub time: String,
    pub topic: String,
    pub action_id: Option<String>,
    /// The receipt of the failure.
    pub receipt_id: Option<String>,
    pub tool_id: Option<String>,
    /// The stable code of the failure.
    pub code: String,
    /// The fingerprint that letters of the same cause share.
    pub cause: String,
    pub attempts: u32,
    /// The last attempts.
    pub tries: Vec<TryView>,
    /// The error, for people; null if it can no longer be read.
    pub detail: Option<String>,
}

impl From<&DeadLetter> for LetterView {
    fn from(letter: &DeadLetter) -> Self {
        let receipt_id = match &letter.origin {
            DeadLetterOrigin::Completion { receipt_id } => Some(receipt_id.to_string()),
            DeadLetterOrigin::Delivery { .. } => None,
        };
        let detail = match &letter.detail {
            Body::Clear(bytes) | Body::Opened(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Body::Shredded => None,
        };
        let tries =
            letter.tries.iter().map(|tried| TryView { at: tried.at.to_string(), error: tried.error.clone() });
        Self {
            letter: letter.letter,
            time: letter.time.to_string(),
            topic: letter.topic.to_string(),
            action_id: letter.action_id.as_ref().map(ToString::to_string),
            receipt_id,
            tool_id: dead_letters::decision(letter).map(|decision| decision.request.tool_id.to_string()),
            code: letter.code.clone(),
            cause: letter.fingerprint.to_string(),
            attempts: letter.attempts,
            tries: tries.collect(),
            detail,
        }
    }
}

impl LetterView {
    /// Whether a safety check stopped the action. Such a letter is reviewed, not retried.
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

/// A page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterList {
    /// Oldest first; possibly none although there are more.
    pub letters: Vec<LetterView>,
    /// The `from` of the next page; left out on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Dead letters of one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CauseView {
    /// The fingerprint that they share.
    pub cause: String,
    pub code: String,
    pub count: u64,
    /// The time of the oldest.
    pub first: String,
    /// The time of the newest.
    pub last: String,
    /// The number of the newest.
    pub newest: u64,
    /// The tool of the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The policy under which the newest failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_digest: Option<String>,
    /// The error of the newest, for people; left out if it can no longer be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
}

impl CauseView {
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

/// The outcome for one dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterNow {
    pub letter: u64,
    /// `requeued`, `purged`, `gone`, or `left: ` and the reason.
    pub now: String,
}

impl LetterNow {
    pub(crate) fn of((letter, now): (u64, Now)) -> Self {
        let now = match now {
            Now::Requeued => "requeued".to_owned(),
            Now::Purged => "purged".to_owned(),
            Now::Gone => "gone".to_owned(),
            Now::Left(why) => format!("left: {why}"),
        };
        Self { letter, now }
    }

    pub fn is_left(&self) -> bool {
        self.now.starts_with("left")
    }
}

/// Selects dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LetterQuery {
    /// Of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Of this cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Of this tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// From this number on.
    pub from: u64,
}

pub(crate) fn list(store: &dyn Store, query: &LetterQuery) -> Result<LetterList, StoreError> {
    let topic = query.topic.as_deref().map(TopicName::new).transpose()?;
    let page = store.letters(topic.as_ref(), query.from, OPERATOR_PAGE_MAX)?;
    let views = page.letters.iter().map(LetterView::from);
    let is_meant = |view: &LetterView| {
        let cause = query.cause.as_ref().is_none_or(|cause| *cause == view.cause);
        cause && (query.tool.is_none() || query.tool == view.tool_id)
    };
    Ok(LetterList { letters: views.filter(is_meant).collect(), next: page.next })
}

pub(crate) fn one(store: &dyn Store, number: u64) -> Result<Option<LetterView>, StoreError> {
    Ok(store.letter(number)?.as_ref().map(LetterView::from))
}

/// A quarantined action, for review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReviewView {
    pub letter: LetterView,
    pub tool_id: String,
    pub space_id: String,
    pub subject_id: String,
    /// The peer that asked for the action.
    pub principal: String,
    /// Without secrets and personal data.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// `None` if no letter of this number is quarantined, or it can no longer be read.
pub(crate) fn review(store: &dyn Store, number: u64) -> Result<Option<ReviewView>, StoreError> {
    let Some(letter) = store.letter(number)? else {
        return Ok(None);
    };
    let view = LetterView::from(&letter);
    let decision = dead_letters::decision(&letter).filter(|_| view.is_quarantined());
    Ok(decision.map(|decision| ReviewView {
        letter: view,
        tool_id: decision.request.tool_id.to_string(),
        space_id: decision.request.space_id.to_string(),
        subject_id: decision.request.subject_id.to_string(),
        principal: decision.principal.to_string(),
        params: dead_letters::shown(&decision),
    }))
}

/// The causes that dead letters have in common, most frequent first.
pub(crate) fn causes(store: &dyn Store) -> Result<Vec<CauseView>, StoreError> {
    let groups = store.letter_groups(None)?.into_iter().map(|group| {
        // The newest letter may be gone by now.
        let newest = store.letter(group.newest)?.as_ref().map(LetterView::from);
        let receipt_id = newest.as_ref().and_then(|letter| letter.receipt_id.as_deref());
        Ok(CauseView {
            cause: group.fingerprint.to_string(),
            code: group.code,
            count: group.count,
            first: group.first.to_string(),
            last: group.last.to_string(),
            newest: group.newest,
            policy_digest: policy_of(store, receipt_id)?,
            tool_id: newest.as_ref().and_then(|letter| letter.tool_id.clone()),
            sample: newest.and_then(|letter| letter.detail),
        })
    });
    groups.collect()
}

/// The digest of the policy that decided about a receipt.
fn policy_of(store: &dyn Store, receipt: Option<&str>) -> Result<Option<String>, StoreError> {
    let Some(id) = receipt.and_then(|id| ReceiptId::new(id).ok()) else {
        return Ok(None);
    };
    let receipt = store.receipt(&id)?.and_then(|stored| stored.parse().ok());
    let decision = receipt.and_then(|receipt| receipt.decision);
    Ok(decision.map(|decision| decision.policy_digest.to_string()))
}
