//! Dead letters: what operators see of them, one by one and by their causes.

use effectd_actors::letters::{self, Now};
use effectd_actors::{Body, LetterOrigin, Store, StoreError, StoredLetter, TopicName};
use effectd_contracts::{Code, ReceiptId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::limits::UPKEEP_PAGE_MAX;

/// One attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TryView {
    /// When it ended.
    pub at: String,
    /// Why it failed; empty where that can no longer be read.
    pub error: String,
}

/// A dead letter, without the parameters of its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterView {
    /// Its number.
    pub letter: u64,
    /// When it was set aside.
    pub time: String,
    /// The topic that it was on.
    pub topic: String,
    /// The action that it is about.
    pub action_id: Option<String>,
    /// The failing receipt.
    pub receipt_id: Option<String>,
    /// The tool that was to be called.
    pub tool_id: Option<String>,
    /// A stable word for what went wrong.
    pub code: String,
    /// What all letters of this cause have in common.
    pub cause: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The last attempts one by one.
    pub tries: Vec<TryView>,
    /// Why, for people; nothing if that can no longer be read.
    pub detail: Option<String>,
}

impl From<&StoredLetter> for LetterView {
    fn from(letter: &StoredLetter) -> Self {
        let receipt_id = match &letter.origin {
            LetterOrigin::Completion { receipt_id } => Some(receipt_id.to_string()),
            LetterOrigin::Delivery { .. } => None,
        };
        let detail = match &letter.detail {
            Body::Clear(bytes) | Body::Opened(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Body::Shredded => None,
        };
        let tries = letter.tries.iter().map(|tried| TryView {
            at: tried.at.to_string(),
            error: tried.error.clone(),
        });
        Self {
            letter: letter.letter,
            time: letter.time.to_string(),
            topic: letter.topic.to_string(),
            action_id: letter.action_id.as_ref().map(ToString::to_string),
            receipt_id,
            tool_id: letters::decision(letter).map(|decision| decision.request.tool_id.to_string()),
            code: letter.code.clone(),
            cause: letter.fingerprint.to_string(),
            attempts: letter.attempts,
            tries: tries.collect(),
            detail,
        }
    }
}

impl LetterView {
    /// Whether it holds what a safety check stopped: that has verbs of its own, and is no failure to be tried again.
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

/// Some of the dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterList {
    /// The letters, oldest first; may be none although there are more.
    pub letters: Vec<LetterView>,
    /// Where to go on; not there when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Dead letters of one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CauseView {
    /// What they have in common.
    pub cause: String,
    /// The code of the newest.
    pub code: String,
    /// How many there are.
    pub count: u64,
    /// When the first that is still there was set aside.
    pub first: String,
    /// When the last was.
    pub last: String,
    /// The newest of them.
    pub newest: u64,
    /// The tool of the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The policy under which the newest failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_digest: Option<String>,
    /// Why the newest failed, for people; nothing if that can no longer be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
}

impl CauseView {
    /// Whether its letters hold what a safety check stopped.
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

/// What became of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterNow {
    /// Which letter.
    pub letter: u64,
    /// `requeued`, `purged`, `gone`, or `left: ` and why.
    pub now: String,
}

impl LetterNow {
    pub fn of((letter, now): (u64, Now)) -> Self {
        let now = match now {
            Now::Requeued => "requeued".to_owned(),
            Now::Purged => "purged".to_owned(),
            Now::Gone => "gone".to_owned(),
            Now::Left(why) => format!("left: {why}"),
        };
        Self { letter, now }
    }

    /// Whether it stays although it was to go.
    pub fn is_left(&self) -> bool {
        self.now.starts_with("left")
    }
}

/// Which dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LetterQuery {
    /// Only those of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Only those of this cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Only those of this tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The first letter that is looked at.
    pub from: u64,
}

pub(crate) fn list(store: &dyn Store, query: &LetterQuery) -> Result<LetterList, StoreError> {
    let topic = query.topic.as_deref().map(TopicName::new).transpose()?;
    let page = store.letters(topic.as_ref(), query.from, UPKEEP_PAGE_MAX)?;
    let views = page.letters.iter().map(LetterView::from);
    let is_meant = |view: &LetterView| {
        let cause = query.cause.as_ref().is_none_or(|cause| *cause == view.cause);
        cause && (query.tool.is_none() || query.tool == view.tool_id)
    };
    Ok(LetterList {
        letters: views.filter(is_meant).collect(),
        next: page.next,
    })
}

pub(crate) fn one(store: &dyn Store, number: u64) -> Result<Option<LetterView>, StoreError> {
    Ok(store.letter(number)?.as_ref().map(LetterView::from))
}

/// A quarantined action, for review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReviewView {
    /// Why it was stopped, when, and its receipt.
    pub letter: LetterView,
    /// The tool.
    pub tool_id: String,
    /// Where.
    pub space_id: String,
    /// On whose behalf.
    pub subject_id: String,
    /// Who asked, as the door saw them.
    pub principal: String,
    /// What the tool was to be told, without secrets and personal data.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// A quarantined action, for review; `None` if there is none of this number, or what it holds cannot be read any more.
pub(crate) fn review(store: &dyn Store, number: u64) -> Result<Option<ReviewView>, StoreError> {
    let Some(letter) = store.letter(number)? else {
        return Ok(None);
    };
    let view = LetterView::from(&letter);
    let decision = letters::decision(&letter).filter(|_| view.is_quarantined());
    Ok(decision.map(|decision| ReviewView {
        letter: view,
        tool_id: decision.request.tool_id.to_string(),
        space_id: decision.request.space_id.to_string(),
        subject_id: decision.request.subject_id.to_string(),
        principal: decision.principal.to_string(),
        params: letters::shown(&decision),
    }))
}

/// The causes that dead letters have in common, most first.
pub(crate) fn causes(store: &dyn Store) -> Result<Vec<CauseView>, StoreError> {
    let groups = store.letter_groups(None)?.into_iter().map(|group| {
        // It may be gone since it was counted.
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

/// The policy that a receipt was judged by, if it is kept and was.
fn policy_of(store: &dyn Store, receipt: Option<&str>) -> Result<Option<String>, StoreError> {
    let Some(id) = receipt.and_then(|id| ReceiptId::new(id).ok()) else {
        return Ok(None);
    };
    let receipt = store.receipt(&id)?.and_then(|stored| stored.parse().ok());
    let decision = receipt.and_then(|receipt| receipt.decision);
    Ok(decision.map(|decision| decision.policy_digest.to_string()))
}
