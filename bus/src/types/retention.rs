//! How long things are kept, and what became of them.

use std::collections::BTreeMap;
use std::time::Duration;

use effectd_contracts::{Timestamp, Topic};

use crate::limits::{LETTER_DAYS, RECEIPT_DAYS};
use crate::names::TopicName;

/// How much of something is kept: what is older goes, and so does the oldest of what is too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// How long; `None` for ever.
    pub age: Option<Duration>,
    /// How many bytes; `None` for any number.
    pub bytes: Option<u64>,
}

impl Keep {
    /// So many days, and any number of bytes.
    pub const fn days(days: u32) -> Self {
        Keep {
            age: Some(Duration::from_secs(days as u64 * 86_400)),
            bytes: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicKeep {
    pub keep: Keep,
    /// Whether an event that some group has still to settle is kept longer. Where it is not, a group that was left behind
    /// is told so, and goes on where its consumer seeks to.
    pub unsettled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Receipts. An idempotency key holds, and an action id is known, as long as the receipt is kept.
    pub receipts: Keep,
    /// Dead letters; `None` for ever.
    pub letters: Option<Duration>,
    /// Topics that are not as the others.
    pub topics: BTreeMap<TopicName, TopicKeep>,
    pub others: TopicKeep,
}

impl Default for Retention {
    fn default() -> Self {
        let keep = Keep::days(RECEIPT_DAYS);
        let decisions = TopicKeep {
            keep,
            unsettled: true,
        };
        Retention {
            receipts: keep,
            letters: Keep::days(LETTER_DAYS).age,
            topics: BTreeMap::from([(Topic::ActionDecision.into(), decisions)]),
            others: TopicKeep {
                keep,
                unsettled: false,
            },
        }
    }
}

impl Retention {
    pub fn of(&self, topic: &TopicName) -> TopicKeep {
        self.topics.get(topic).copied().unwrap_or(self.others)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It only says what would be kept no longer.
    Preview,
    LetGo,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retained {
    /// Receipts that are kept no longer.
    pub receipts: u64,
    /// Events that are kept no longer, by topic.
    pub events: BTreeMap<TopicName, u64>,
    /// Dead letters that are kept no longer.
    pub letters: u64,
    /// Live records that were written forward, out of the blocks that were let go. How many that is shows when it is done: a preview
    /// does not tell.
    pub moved: u64,
    /// Blocks of the journal that were let go.
    pub blocks: u64,
    /// Their bytes. The disk has them back file by file.
    pub bytes: u64,
    /// The time from which on receipts are kept; what belongs to older ones may go, too.
    pub since: Option<Timestamp>,
    /// There is more to let go: ask again.
    pub more: bool,
}

impl Retained {
    /// What a turn did, with what shortening the journal did.
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

    /// Whether anything is kept no longer.
    pub(crate) fn has_expired(&self) -> bool {
        self.receipts + self.letters > 0 || !self.events.is_empty()
    }
}
