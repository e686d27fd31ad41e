//! What effectd remembers: topics, groups, leases, claims, receipts and dead letters.
//!
//! The journal is the truth; everything else follows from it. Read the crate in this order: the interface ([`store`] and
//! its values in [`types`]), the journal ([`journal`]), what follows from it ([`state`], [`index`]), how it is read
//! (`reads`) and changed (`commands`), and the engine that runs it ([`engine`]).

pub mod limits;

pub mod config;
pub mod error;
pub mod names;
pub mod progress;
pub mod types;
pub mod wait;
pub mod watch;

pub mod store;
pub mod tail;

pub mod codec;
pub mod failpoint;
mod files;
pub mod fingerprint;
pub mod stats;

pub mod blobs;
pub mod vault;

pub mod journal;
pub mod merkle_log;

pub mod index;
pub mod state;

mod commands;
mod reads;

pub mod engine;
pub mod memory;

#[cfg(feature = "conformance")]
pub mod testing;

pub use blobs::{BlobError, BlobKind, BlobReader, BlobWriter, Blobs, BlobsCheck, BlobsChecked, Pins};
pub use config::EmbeddedConfig;
pub use engine::{LocalStore, embedded, journal_copy, offline, salvage};
pub use error::{Cause, StoreError};
pub use journal::JournalReader;
pub use names::{FamilyName, GroupName, ResourceName, TopicName};
pub use progress::Progress;
pub use stats::Stats;
pub use store::Store;
pub use tail::Tail;
pub use types::claims::{
    Admission, Admitted, Asker, Claim, ClaimAnswer, ConflictOf, Fence, Lookup, OpenIntent,
};
pub use types::dead_letters::{
    DELIVERIES_EXHAUSTED, DeadLetter, DeadLetterGroup, DeadLetterOrigin, DeadLetterPage, FailedAttempt,
    Fingerprint, NewDeadLetter, OTHER_CAUSES, Requeued,
};
pub use types::events::{Body, EventPage, NewBody, NewEvent, Published, StoredEvent};
pub use types::groups::{
    Acknowledged, Acknowledgement, Delivery, Exhausted, GroupInfo, GroupOptions, LeaseId, Leased, SeekTo,
};
pub use types::kv::{Change, Changed, Expect, KvChange, KvEntry, KvPage, Swap};
pub use types::log::{LogStatus, StoredLogEntry};
pub use types::receipts::{
    Committed, Completion, Cursor, Link, NewReceipt, Order, ReceiptPage, ReceiptQuery, StoredReceipt,
};
pub use types::retention::{Keep, Retained, Retention, RetentionMode, TopicKeep};
pub use vault::{DeviceKeyChange, EpochReport};
pub use wait::Wait;
pub use watch::Watch;
