//! What effectd remembers: topics, groups, leases, claims, receipts and dead letters.
//!
//! One journal is the truth, and everything else is derived from it. Read the crate in this order: what may be asked
//! ([`store`], with the values it speaks in [`types`]), what is written down ([`record`], [`block`]), what follows from
//! it ([`fold`]), who decides and writes ([`engine`] and its desk), and where it lies ([`memory`], [`embedded`],
//! [`vault`]).

pub mod limits;

pub mod error;
pub mod names;
pub mod types;
pub mod wait;
pub mod watch;

pub mod store;
pub mod tail;

pub mod codec;
pub mod record;

pub mod block;
pub mod ground;
pub mod keys;

pub mod fingerprint;
pub mod fold;
pub mod log;

mod filter;
pub mod table;

pub mod blobs;
pub mod journal;
pub mod vault;

mod desk;
pub mod engine;

pub mod embedded;
pub mod memory;

pub mod failpoint;
pub mod stats;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use blobs::{BlobError, BlobReader, BlobWriter, Blobs, BlobsCheck, BlobsChecked, Pins, Shelf};
pub use embedded::EmbeddedConfig;
pub use engine::LocalStore;
pub use error::StoreError;
pub use journal::JournalReader;
pub use names::{FamilyName, GroupName, ResourceName, TopicName};
pub use stats::Stats;
pub use store::Store;
pub use tail::Tail;
pub use types::claims::{
    Admission, Admitted, Asker, Claim, ClaimAnswer, ConflictOf, Fence, Lookup, OpenIntent,
};
pub use types::events::{Body, EventPage, NewBody, NewEvent, Published, StoredEvent};
pub use types::families::{Change, Changed, Entry, EntryChange, EntryPage, Expect, Swap};
pub use types::groups::{
    Delivery, Exhausted, GroupInfo, GroupOptions, LeaseId, Leased, SeekTo, Settled, Settlement,
};
pub use types::letters::{
    Fingerprint, LetterGroup, LetterOrigin, LetterPage, NewLetter, OTHER_CAUSES, Requeued, StoredLetter, Try,
};
pub use types::log::{LogStanding, StoredEntry};
pub use types::receipts::{
    Committed, Completion, Cursor, Link, NewReceipt, Order, ReceiptPage, ReceiptQuery, StoredReceipt,
};
pub use types::retention::{Keep, Retained, Retention, TopicKeep, Turn};
pub use vault::EpochReport;
pub use wait::Wait;
pub use watch::Watch;
