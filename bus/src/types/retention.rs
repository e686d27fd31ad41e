//! Retention: how long data is kept, and what a run has removed.

use std::collections::BTreeMap;
use std::time::Duration;

use effectd_contracts::{Timestamp, Topic};

use crate::limits::{LETTER_DAYS, RECEIPT_DAYS};
use crate::names::TopicName;

/// How much is kept, by age and by size; the oldest data expires first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// `None`: for ever.
    pub age: Option<Duration>,
    /// `None`: without a bound.
    pub bytes: Option<u64>,
}

impl Keep {
    pub const fn days(days: u32) -> Self {
        Keep { age: Some(Duration::from_secs(days as u64 * 86_400)), bytes: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicKeep {
    pub keep: Keep,
    /// Whether unacknowledged events are kept longer. Otherwise a group that falls behind gets an error, until its consumer
    /// seeks.
    pub unacknowledged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// An idempotency key and an action id are known as long as their receipt is kept.
    pub receipts: Keep,
    /// The age of kept dead letters; `None`: for ever.
    pub letters: Option<Duration>,
    /// Topics with rules of their own.
    pub topics: BTreeMap<TopicName, TopicKeep>,
    pub others: TopicKeep,
}

impl Default for Retention {
    fn default() -> Self {
        let keep = Keep::days(RECEIPT_DAYS);
        let decisions = TopicKeep { keep, unacknowledged: true };
        Retention {
            receipts: keep,
            letters: Keep::days(LETTER_DAYS).age,
            topics: BTreeMap::from([(Topic::ActionDecision.into(), decisions)]),
            others: TopicKeep { keep, unacknowledged: false },
        }
    }
}

impl Retention {
    pub fn of(&self, topic: &TopicName) -> TopicKeep {
        self.topics.get(topic).copied().unwrap_or(self.others)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionMode {
    /// Only reports what would be removed.
    Preview,
    Apply,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retained {
    /// Expired receipts.
    pub receipts: u64,
    /// Expired events, by topic.
    pub events: BTreeMap<TopicName, u64>,
    /// Expired dead letters.
    pub letters: u64,
    /// Live records that were relocated; 0 in a preview.
    pub moved: u64,
    /// Dropped blocks of the journal.
    pub blocks: u64,
    /// Bytes of the dropped blocks. Disk space is freed file by file.
    pub bytes: u64,
    /// Receipts from this time on are kept; what belongs to older ones, such as blobs, may be removed too.
    pub since: Option<Timestamp>,
    /// Dead letters from this time on are kept; `None`: all.
    pub letters_since: Option<Timestamp>,
    /// There is more to remove: call again.
    pub more: bool,
}

impl Retained {
    /// Adds the report of a truncation.
    #[must_use]
    pub fn then(self, shortened: Retained) -> Self {
        Self {
            moved: shortened.moved,
            blocks: shortened.blocks,
            bytes: shortened.bytes,
            more: self.more || shortened.more,
            ..self
        }
    }

    /// Whether anything has expired.
    pub(crate) fn has_expired(&self) -> bool {
        self.receipts + self.letters > 0 || !self.events.is_empty()
    }
}
