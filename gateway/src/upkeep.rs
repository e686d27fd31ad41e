//! What operators do about dead letters and the store: the verbs, and what they answer.
//!
//! The door speaks them over the socket; the command line uses the same ones on a store that no daemon has open, so that
//! both give the same answers.

use effectd_actors::erasure::{self, Progress};
use effectd_actors::letters::{self, Now};
use effectd_actors::{
    Blobs, Body, LetterOrigin, Retained, Store, StoreError, StoredEvent, StoredLetter, TopicName, Turn,
};
use effectd_contracts::{SubjectId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    fn of(letter: u64, now: Now) -> Self {
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

/// What is in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// How many events each topic has had.
    pub events: std::collections::BTreeMap<String, u64>,
    /// The first event of each topic that is kept.
    pub begins: std::collections::BTreeMap<String, u64>,
    /// Dead letters.
    pub dead_letters: u64,
    /// Actions that were begun and have not ended.
    pub open_intents: u64,
}

/// What retention did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetainedView {
    /// Receipts that are kept no longer.
    pub receipts: u64,
    /// Events that are kept no longer, by topic.
    pub events: std::collections::BTreeMap<String, u64>,
    /// Dead letters that are kept no longer.
    pub dead_letters: u64,
    /// Live records that were written forward.
    pub moved: u64,
    /// Blocks of the journal that were let go.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// There is more to let go: ask again.
    pub more: bool,
}

impl From<Retained> for RetainedView {
    fn from(told: Retained) -> Self {
        Self {
            receipts: told.receipts,
            events: told
                .events
                .iter()
                .map(|(topic, count)| (topic.to_string(), *count))
                .collect(),
            dead_letters: told.letters,
            moved: told.moved,
            blocks: told.blocks,
            bytes: told.bytes,
            more: told.more,
        }
    }
}

impl RetainedView {
    /// Both turns together.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        for (topic, count) in later.events {
            *self.events.entry(topic).or_default() += count;
        }
        Self {
            receipts: self.receipts + later.receipts,
            events: self.events,
            dead_letters: self.dead_letters + later.dead_letters,
            moved: self.moved + later.moved,
            blocks: self.blocks + later.blocks,
            bytes: self.bytes + later.bytes,
            more: later.more,
        }
    }
}

/// Whom to erase, and how far that has come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EraseBody {
    /// The subjects.
    pub subjects: Vec<String>,
    /// Only say what would go.
    #[serde(default)]
    pub preview: bool,
    /// `begun` of the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<u32>,
    /// `swept` of the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swept: Option<u32>,
}

/// What an erasure did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ErasedView {
    /// Dead letters of the subjects.
    pub dead_letters: u64,
    /// Blobs that their receipts name.
    pub blobs: u64,
    /// Entries and letters of others that were sealed again.
    pub resealed: u64,
    /// Questions of theirs that wait for a person, who has to decide first.
    pub held: Vec<String>,
    /// Epochs in which something is still under way: ask again, with `begun` and `swept`.
    pub waiting: u64,
    /// For who asks again.
    pub begun: Option<u32>,
    /// For who asks again.
    pub swept: Option<u32>,
    /// All is done.
    pub done: bool,
}

impl ErasedView {
    /// Both answers together.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            dead_letters: self.dead_letters + later.dead_letters,
            blobs: self.blobs + later.blobs,
            resealed: self.resealed + later.resealed,
            ..later
        }
    }
}

/// Erases subjects as far as that can be done now.
pub fn erase(
    store: &dyn Store,
    blobs: &Blobs,
    now: Timestamp,
    body: &EraseBody,
) -> Result<ErasedView, StoreError> {
    let subjects = body.subjects.iter().map(|subject| {
        SubjectId::new(subject.as_str()).map_err(|error| StoreError::Invalid(format!("{subject}: {error}")))
    });
    let subjects = subjects.collect::<Result<_, _>>()?;
    let turn = if body.preview { Turn::Preview } else { Turn::LetGo };
    let from = Progress {
        begun: body.begun,
        swept: body.swept,
    };
    let told = erasure::erase(store, blobs, now, &subjects, (turn, from))?;
    Ok(ErasedView {
        dead_letters: told.letters,
        blobs: told.blobs,
        resealed: told.resealed,
        held: told.held,
        waiting: told.waiting,
        begun: told.progress.begun,
        swept: told.progress.swept,
        done: told.done,
    })
}

/// Some events of a topic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// The events, in order; what is sealed has no body here.
    pub events: Vec<Value>,
    /// Where to go on.
    pub next: u64,
    /// The first event that is kept.
    pub begin: u64,
    /// The topic's end.
    pub end: u64,
}

/// One page of dead letters.
pub fn letters(store: &dyn Store, query: &LetterQuery) -> Result<LetterList, StoreError> {
    let topic = query.topic.as_deref().map(TopicName::new).transpose()?;
    let page = store.letters(topic.as_ref(), query.from, UPKEEP_PAGE_MAX.get())?;
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

/// One dead letter.
pub fn letter(store: &dyn Store, number: u64) -> Result<Option<LetterView>, StoreError> {
    Ok(store.letter(number)?.as_ref().map(LetterView::from))
}

/// The causes that dead letters have in common, most first.
pub fn causes(store: &dyn Store) -> Result<Vec<CauseView>, StoreError> {
    let groups = store.letter_groups(None)?.into_iter().map(|group| CauseView {
        cause: group.fingerprint.to_string(),
        code: group.code,
        count: group.count,
        first: group.first.to_string(),
        last: group.last.to_string(),
        newest: group.newest,
    });
    Ok(groups.collect())
}

/// Puts a dead letter on the bus again.
pub fn requeue(store: &dyn Store, number: u64, now: Timestamp) -> Result<LetterNow, StoreError> {
    Ok(LetterNow::of(number, letters::requeue(store, number, now)?))
}

/// Forgets a dead letter.
pub fn purge(store: &dyn Store, number: u64) -> Result<LetterNow, StoreError> {
    Ok(LetterNow::of(number, letters::purge(store, number)?))
}

/// Counts what is in the store.
pub fn stats(store: &dyn Store) -> Result<StoreView, StoreError> {
    let topics = store.topics()?;
    let mut begins = std::collections::BTreeMap::new();
    for (topic, end) in &topics {
        begins.insert(topic.to_string(), store.read(topic, *end, 1)?.begin);
    }
    Ok(StoreView {
        events: topics
            .iter()
            .map(|(topic, end)| (topic.to_string(), *end))
            .collect(),
        begins,
        dead_letters: store.letter_groups(None)?.iter().map(|group| group.count).sum(),
        open_intents: store.stats().intents_open,
    })
}

/// Some events of a topic; without an offset, from the first that is kept.
pub fn events(store: &dyn Store, topic: &str, from: Option<u64>) -> Result<EventList, StoreError> {
    let topic = TopicName::new(topic)?;
    let from = match from {
        Some(from) => from,
        None => store.read(&topic, u64::MAX, 1)?.begin,
    };
    let page = store.read(&topic, from, UPKEEP_PAGE_MAX.get())?;
    Ok(EventList {
        events: page.events.iter().map(event).collect(),
        next: page.next,
        begin: page.begin,
        end: page.end,
    })
}

fn event(event: &StoredEvent) -> Value {
    let body = match &event.body {
        Body::Clear(bytes) => serde_json::from_slice(bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned())),
        Body::Opened(_) | Body::Shredded => Value::Null,
    };
    serde_json::json!({
        "offset": event.offset,
        "event_id": event.event_id.as_str(),
        "time": event.time.to_string(),
        "stored_at": event.stored_at.to_string(),
        "trace_id": event.trace_id.as_str(),
        "action_id": event.action_id.as_ref().map(|id| id.as_str()),
        "sealed": !matches!(event.body, Body::Clear(_)),
        "body": body,
    })
}
