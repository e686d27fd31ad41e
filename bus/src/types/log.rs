//! The log: intents, receipts and notes in the order in which they became durable.

use effectd_contracts::{Digest, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStanding {
    pub size: u64,
    pub root: Digest,
    /// How many intents have no receipt yet.
    pub open: u64,
    /// The first entry whose body is kept: bodies before it have expired, and may be dropped. Never goes back.
    pub kept_from: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its place, counted from 0.
    pub index: u64,
    pub hash: Digest,
    /// When it was stored; unknown for what retention has let go.
    pub stored_at: Option<Timestamp>,
    /// Its canonical JSON; `None` if retention has let it go.
    pub body: Option<Vec<u8>>,
}
