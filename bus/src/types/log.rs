//! The Merkle log: intents, receipts and notes in the order in which they became durable.

use effectd_contracts::{Digest, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStatus {
    pub size: u64,
    pub root: Digest,
    /// Intents without a receipt.
    pub open: u64,
    /// The first entry with a kept body: earlier bodies have expired, and may be dropped. Never decreases.
    pub kept_from: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLogEntry {
    /// From 0.
    pub index: u64,
    pub hash: Digest,
    /// When it was stored; `None` if retention has dropped it.
    pub stored_at: Option<Timestamp>,
    /// Its canonical JSON; `None` if retention has dropped it.
    pub body: Option<Vec<u8>>,
}
