//! The store in JSON: its contents, events, consumer groups, retention and erasure.

use std::collections::BTreeMap;

use effectd_actors::operator::erasure::{Erased, Progress};
use effectd_actors::operator::store_admin::Erasure;
use effectd_actors::services::webhooks::placed;
use effectd_bus::{Body, GroupInfo, Retained, Store, StoreError, StoredEvent, TopicName};
use effectd_contracts::Topic;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::limits::OPERATOR_PAGE_MAX;

/// The contents of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// How many events each topic has had so far.
    pub events: BTreeMap<String, u64>,
    /// The first event of each topic that is kept.
    pub begins: BTreeMap<String, u64>,
    pub dead_letters: u64,
    /// Actions that have an intent and no outcome.
    pub open_intents: u64,
}

/// What retention removed, or would remove.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetainedView {
    pub receipts: u64,
    /// By topic.
    pub events: BTreeMap<String, u64>,
    pub dead_letters: u64,
    /// Live records that were moved out of the removed blocks; left out in a preview.
    pub moved: Option<u64>,
    /// Blocks of the journal.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Receipts that were stored at this time or later are kept; left out if all are.
    pub receipts_since: Option<String>,
    /// Dead letters that were stored at this time or later are kept; left out if all are.
    pub dead_letters_since: Option<String>,
    /// There is more to remove: repeat the request.
    pub more: bool,
}

impl From<Retained> for RetainedView {
    fn from(retained: Retained) -> Self {
        Self {
            receipts: retained.receipts,
            events: by_name(retained.events),
            dead_letters: retained.letters,
            moved: Some(retained.moved),
            blocks: retained.blocks,
            bytes: retained.bytes,
            receipts_since: retained.since.map(|since| since.to_string()),
            dead_letters_since: retained.letters_since.map(|since| since.to_string()),
            more: retained.more,
        }
    }
}

impl RetainedView {
    /// The view of a preview, which moves no records.
    pub(crate) fn would(retained: Retained) -> Self {
        Self { moved: None, ..Self::from(retained) }
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
            receipts_since: later.receipts_since,
            dead_letters_since: later.dead_letters_since,
            more: later.more,
        }
    }
}

/// The subjects to erase, and how far the last request came.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EraseBody {
    pub subjects: Vec<String>,
    /// Change nothing, and answer what would be erased.
    #[serde(default)]
    pub preview: bool,
    /// Erase also subjects that no receipt, dead letter, approval, session or open action names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// For the receipt.
    pub reason: Option<String>,
    /// `begun` of the last answer.
    pub begun: Option<u32>,
    /// `swept` of the last answer.
    pub swept: Option<u32>,
}

/// What an erasure destroyed, or would destroy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ErasedView {
    pub dead_letters: u64,
    /// Blobs that the subjects' receipts name.
    pub blobs: u64,
    /// Entries and dead letters of other subjects that were sealed under a new key.
    pub resealed: u64,
    /// Approvals of the subjects that somebody has to decide first.
    pub held: Vec<String>,
    /// Epochs with actions in flight: repeat the request with `begun` and `swept`.
    pub waiting: u64,
    /// For the next request.
    pub begun: Option<u32>,
    /// For the next request.
    pub swept: Option<u32>,
    /// The erasure is complete.
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

impl EraseBody {
    pub(crate) fn erasure(&self) -> Erasure {
        Erasure {
            subjects: self.subjects.clone(),
            progress: Progress { begun: self.begun, swept: self.swept },
            force: self.force,
            reason: self.reason.clone(),
        }
    }
}

impl From<Erased> for ErasedView {
    fn from(erased: Erased) -> Self {
        Self {
            dead_letters: erased.letters,
            blobs: erased.blobs,
            resealed: erased.resealed,
            held: erased.held,
            waiting: erased.waiting,
            begun: erased.progress.begun,
            swept: erased.progress.swept,
            done: erased.done,
        }
    }
}

/// A page of a topic's events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// CloudEvents in order, each with its `offset`; a sealed event has no `data` here.
    pub events: Vec<Value>,
    /// The `from` of the next page.
    pub next: u64,
    /// The first event that is kept.
    pub begin: u64,
    /// The topic's end.
    pub end: u64,
}

pub(crate) fn stats(store: &dyn Store) -> Result<StoreView, StoreError> {
    let topics = store.topics()?;
    let mut begins = BTreeMap::new();
    for (topic, end) in &topics {
        begins.insert(topic.to_string(), store.read(topic, *end, 1)?.begin);
    }
    Ok(StoreView {
        events: by_name(topics),
        begins,
        dead_letters: store.stats().letters,
        open_intents: store.stats().intents_open,
    })
}

pub(crate) fn events(
    store: &dyn Store,
    source: &str,
    topic: &str,
    from: u64,
) -> Result<EventList, StoreError> {
    let topic = TopicName::new(topic)?;
    let page = store.read(&topic, from, OPERATOR_PAGE_MAX)?;
    Ok(EventList {
        events: page.events.iter().map(|stored| event(&topic, source, stored)).collect(),
        next: page.next,
        begin: page.begin,
        end: page.end,
    })
}

fn by_name(topics: impl IntoIterator<Item = (TopicName, u64)>) -> BTreeMap<String, u64> {
    let named = topics.into_iter().map(|(topic, count)| (topic.to_string(), count));
    named.collect()
}

/// A CloudEvent, with its offset as an extension attribute. One that is sealed has `sealed` instead of `data`.
fn event(topic: &TopicName, source: &str, stored: &StoredEvent) -> Value {
    let clear: Option<Map<String, Value>> = match &stored.body {
        Body::Clear(bytes) => serde_json::from_slice(bytes).ok(),
        Body::Opened(_) | Body::Shredded => None,
    };
    let event = clear.unwrap_or_else(|| {
        let own = Topic::ALL.into_iter().find(|own| own.as_str() == topic.as_str());
        let mut event = Map::new();
        event.insert("specversion".to_owned(), json!("1.0"));
        event.insert("id".to_owned(), json!(stored.event_id));
        event.insert("type".to_owned(), json!(own.map_or(topic.as_str(), |own| own.event_type())));
        event.insert("time".to_owned(), json!(stored.time));
        event.insert("traceid".to_owned(), json!(stored.trace_id));
        event.insert("sealed".to_owned(), json!(!matches!(stored.body, Body::Clear(_))));
        event.extend(stored.action_id.as_ref().map(|action| ("subject".to_owned(), json!(action))));
        event
    });
    placed(event, source, stored.offset)
}

/// The position of a consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    pub group: String,
    /// The next event that it reads.
    pub offset: u64,
    /// How many events it has not read.
    pub behind: u64,
    /// The topic's end.
    pub end: u64,
}

impl From<GroupInfo> for GroupView {
    fn from(group: GroupInfo) -> Self {
        Self {
            group: group.group.to_string(),
            offset: group.committed,
            behind: group.end.saturating_sub(group.committed),
            end: group.end,
        }
    }
}

/// The position of one consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// The next event that it reads.
    pub offset: u64,
}
