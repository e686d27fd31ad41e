//! Events and the bodies they carry.

use effectd_contracts::{ActionId, EventId, Timestamp, TraceId};

use crate::names::TopicName;

/// Bytes to be stored, and whether they may lie on disk in clear.
#[derive(Clone, PartialEq, Eq)]
pub enum NewBody {
    /// Written as it is: receipts, `ACTION_EXECUTED`, whatever holds no parameters.
    Clear(Vec<u8>),
    /// Written only under authenticated encryption: parameters, and all that may quote them.
    Sealed(Vec<u8>),
}

impl NewBody {
    pub fn bytes(&self) -> &[u8] {
        match self {
            NewBody::Clear(bytes) | NewBody::Sealed(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for NewBody {
    /// Sealed bytes reach no log by way of a `{:?}`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NewBody::Clear(bytes) => write!(f, "Clear({} bytes)", bytes.len()),
            NewBody::Sealed(bytes) => write!(f, "Sealed({} bytes)", bytes.len()),
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub enum Body {
    Clear(Vec<u8>),
    /// Stored sealed; these are the original bytes.
    Opened(Vec<u8>),
    /// Stored sealed under an epoch whose key is destroyed. Nobody can read it any more.
    Shredded,
}

impl Body {
    /// The original bytes, unless they are shredded.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Body::Clear(bytes) | Body::Opened(bytes) => Some(bytes),
            Body::Shredded => None,
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::Clear(bytes) => write!(f, "Clear({} bytes)", bytes.len()),
            Body::Opened(bytes) => write!(f, "Opened({} bytes)", bytes.len()),
            Body::Shredded => f.write_str("Shredded"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Unique within its topic for ever; publishing it again returns the first offset.
    pub event_id: EventId,
    /// When it happened, by the publisher's wall clock.
    pub time: Timestamp,
    pub trace_id: TraceId,
    /// The action that it is about, if any. A sealed body is bound to it.
    pub action_id: Option<ActionId>,
    /// A CloudEvent in JSON; to the Store, bytes.
    pub body: NewBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its place in the topic, counted from 0 without gaps.
    pub offset: u64,
    /// The id had been published before; this is the first one's offset, and nothing was written.
    pub duplicate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    pub topic: TopicName,
    pub offset: u64,
    pub event_id: EventId,
    /// When it happened, by the publisher's wall clock, to the millisecond.
    pub time: Timestamp,
    /// When the Store wrote it; never goes back from one event to the next, and is what time-based seeks go by.
    pub stored_at: Timestamp,
    pub trace_id: TraceId,
    /// The action that it is about, if any.
    pub action_id: Option<ActionId>,
    pub body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    /// The events, without gaps.
    pub events: Vec<StoredEvent>,
    /// Where the next read begins.
    pub next: u64,
    /// The first event of the topic that is kept.
    pub begin: u64,
    /// The topic's end when this was read: the offset that the next published event will get.
    pub end: u64,
}
