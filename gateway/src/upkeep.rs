//! What operators do about the store: the verbs, and what they answer.

use effectd_actors::erasure::{self, Progress};
use effectd_actors::{Blobs, Body, Retained, Store, StoreError, StoredEvent, TopicName, Turn};
use effectd_contracts::{SubjectId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::limits::UPKEEP_PAGE_MAX;

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
    /// Live records that were written forward; not there in a preview, which does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<u64>,
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
            moved: Some(told.moved),
            blocks: told.blocks,
            bytes: told.bytes,
            more: told.more,
        }
    }
}

impl RetainedView {
    /// What would go.
    pub(crate) fn would(told: Retained) -> Self {
        Self {
            moved: None,
            ..Self::from(told)
        }
    }

    /// Whether anything went, or would.
    pub fn is_something(&self) -> bool {
        self.receipts + self.dead_letters + self.blocks + self.events.values().sum::<u64>() > 0
    }

    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        for (topic, count) in later.events {
            *self.events.entry(topic).or_default() += count;
        }
        Self {
            receipts: self.receipts + later.receipts,
            events: self.events,
            dead_letters: self.dead_letters + later.dead_letters,
            moved: self.moved.map(|moved| moved + later.moved.unwrap_or(0)),
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
pub(crate) fn erase(
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

pub(crate) fn stats(store: &dyn Store) -> Result<StoreView, StoreError> {
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
        dead_letters: store.stats().letters,
        open_intents: store.stats().intents_open,
    })
}

pub(crate) fn events(store: &dyn Store, topic: &str, from: u64) -> Result<EventList, StoreError> {
    let topic = TopicName::new(topic)?;
    let page = store.read(&topic, from, UPKEEP_PAGE_MAX)?;
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
