//! Events and their bodies.

use effectd_contracts::{ActionId, EventId, Timestamp, TraceId};

use crate::names::TopicName;

/// Bytes to be stored, in clear or sealed.
#[derive(Clone, PartialEq, Eq)]
pub enum NewBody {
    /// Written in clear: receipts, `ACTION_EXECUTED`, anything without parameters.
    Clear(Vec<u8>),
    /// Written encrypted: parameters, and anything that may quote them.
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
    /// Without the bytes, so that no `{:?}` leaks them into a log.
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
    /// Stored sealed, and opened.
    Opened(Vec<u8>),
    /// Sealed under an epoch whose key is destroyed: nobody can read it.
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
    /// Unique in its topic forever; publishing it again returns the first offset.
    pub event_id: EventId,
    /// When it happened, by the publisher's wall clock.
    pub time: Timestamp,
    pub trace_id: TraceId,
    /// The action of the event, if any. A sealed body is bound to it.
    pub action_id: Option<ActionId>,
    /// A CloudEvent in JSON; to the Store, bytes.
    pub body: NewBody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its position in the topic, from 0 without gaps.
    pub offset: u64,
    /// The id was published before; nothing was written.
    pub duplicate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    pub topic: TopicName,
    pub offset: u64,
    pub event_id: EventId,
    /// When it happened, by the publisher's wall clock, to the millisecond.
    pub time: Timestamp,
    /// When the Store wrote it; never decreases from event to event. Time-based seeks use it.
    pub stored_at: Timestamp,
    pub trace_id: TraceId,
    /// The action of the event, if any.
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
    /// The topic's end: the offset of the next event to be published.
    pub end: u64,
}
