//! The Store: the one interface to everything effectd remembers.

use std::time::Duration;

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{
    ActionId, Digest, EventId, IdempotencyKey, InvocationBrief, OrgId, ReceiptId, Timestamp,
};

use crate::error::StoreError;
use crate::journal::JournalReader;
use crate::names::{FamilyName, GroupName, ResourceName, TopicName};
use crate::stats::Stats;
use crate::types::claims::{Admission, Admitted, Asker, Claim, ClaimAnswer, Fence, Lookup, OpenIntent};
use crate::types::dead_letters::{DeadLetter, DeadLetterGroup, DeadLetterPage, Requeued};
use crate::types::events::{EventPage, NewEvent, Published};
use crate::types::groups::{Acknowledged, Acknowledgement, GroupInfo, GroupOptions, LeaseId, Leased, SeekTo};
use crate::types::kv::{Change, Changed, KvEntry, KvPage};
use crate::types::log::{LogStatus, StoredLogEntry};
use crate::types::receipts::{Committed, Completion, Link, ReceiptPage, ReceiptQuery, StoredReceipt};
use crate::types::retention::{Retained, Retention, RetentionMode};
use crate::vault::{DeviceKeyChange, EpochReport};
use crate::wait::Wait;
use crate::watch::Watch;

/// What effectd remembers, and its guarantees. Every engine passes the suite in `testing` (feature `conformance`).
///
/// # Guarantees
///
/// 1. **Durable when answered.** When a [`Wait`] resolves to `Ok`, the operation survives `kill -9` and power loss. No
///    read shows anything before it is durable.
/// 2. **Atomic.** After a crash, a call has happened completely or not at all.
/// 3. **One order.** All operations of a store have one order, which every reader sees. An operation that begins after
///    another was answered sees it.
/// 4. **No silent loss.** A crash may only lose operations that were not answered. A store that has lost or changed an
///    answered one does not open ([`StoreError::Damaged`]).
/// 5. **At least once, counted.** An event is delivered to a group until it is acknowledged; the count of its deliveries
///    survives a crash. A group's committed offset never decreases, except by `seek`.
/// 6. **One receipt per action.** `commit` is idempotent by receipt id; it refuses a second receipt, other content under a
///    used id, and an old fence. No event of a completion exists without its receipt. Only `requeue` of its dead letter
///    reopens an action; the failing receipt stays.
/// 7. **One winner per key of an asker.** Of all claims of one asker on one key, one is granted at a time, and none after
///    an `ok` receipt until it expires, or a later effect of any asker invalidates it: one that changes a resource of the
///    key, or invalidates everything below an ancestor. Claims of other askers do not count.
/// 8. **Nothing sensitive in clear.** Sealed bodies, intents, details and payloads reach the disk only encrypted.
/// 9. **One log.** Every intent, receipt and note is an entry of the Merkle log as soon as its block is durable. The order
///    never changes, the root follows from the entries alone, and proofs hold after retention.
/// 10. **Bounded.** Every argument, queue and answer has a bound in [`crate::limits`], and a typed error beyond it.
///
/// After [`StoreError::Unavailable`] the operation may or may not have happened. Every operation can be repeated:
/// publishing by event id, committing by receipt id, claiming by action id.
///
/// # Time
///
/// Leases and delays use the monotonic clock. Leases end with the process: when a store is opened, every leased event is
/// due at once, with its count of deliveries. Delays continue after a restart, by the wall clock, but are never longer
/// than requested.
///
/// # Callers
///
/// Operations that write return at once with a [`Wait`], to be awaited or blocked on. Reads are answered directly, from
/// memory and the page cache; they never wait for a sync.
pub trait Store: Send + Sync {
    // ---- topics ----

    /// Appends events to a topic, in order and without others between them. An event whose id is known is not appended
    /// again; its result is the first offset.
    fn publish(&self, topic: &TopicName, events: Vec<NewEvent>) -> Wait<Vec<Published>>;

    /// Reads events from an offset on, without a group. Stops at `max`, at [`crate::limits::PAGE_ITEMS_MAX`] or when the
    /// page is large. An unknown topic is empty. [`StoreError::Dropped`] if the event at the offset is no longer kept.
    fn read(&self, topic: &TopicName, from: u64, max: usize) -> Result<EventPage, StoreError>;

    /// The offset of the event with this id, if it was published.
    fn published(&self, topic: &TopicName, event: &EventId) -> Result<Option<u64>, StoreError>;

    /// The first offset stored at this time or later, to the millisecond; the topic's end if there is none.
    fn offset_at(&self, topic: &TopicName, time: Timestamp) -> Result<u64, StoreError>;

    /// All topics with their ends.
    fn topics(&self) -> Result<Vec<(TopicName, u64)>, StoreError>;

    /// Watches a topic for new events and returned deliveries.
    fn watch(&self, topic: &TopicName) -> Result<Watch, StoreError>;

    // ---- groups ----

    /// Watches for events that the group may lease: new or returned ones. Events that become due by time are announced by
    /// [`Leased::next_due`]; [admitted](Store::admit) ones belong to their holder.
    fn watch_group(&self, topic: &TopicName, group: &GroupName) -> Result<Watch, StoreError>;

    /// Leases up to `max` events for `ttl`: first those that are due again, then new ones, each in order. A group is
    /// created, at the topic's start, by its first use here, in [`Store::configure`] or in [`Store::seek`].
    fn lease(&self, topic: &TopicName, group: &GroupName, max: usize, ttl: Duration) -> Wait<Leased>;

    /// Ends a delivery. `LeaseLost` if the caller does not hold it any more.
    fn acknowledge(&self, lease: LeaseId, how: Acknowledgement) -> Wait<Acknowledged>;

    /// Extends a lease to `ttl` from now. Long work calls this well before its lease ends. Not durable, since leases end
    /// with the process.
    fn extend(&self, lease: LeaseId, ttl: Duration) -> Wait<()>;

    /// Sets the options of a group.
    fn configure(&self, topic: &TopicName, group: &GroupName, options: GroupOptions) -> Wait<()>;

    /// Moves a group, ends its leases and forgets its delivery counts. Returns its new offset.
    fn seek(&self, topic: &TopicName, group: &GroupName, to: SeekTo) -> Wait<u64>;

    /// Removes a group with its leases and delivery counts, so that nothing is kept for it. One that does not exist is removed
    /// already; one that is used again is a new group.
    fn remove_group(&self, topic: &TopicName, group: &GroupName) -> Wait<()>;

    /// The groups of a topic.
    fn groups(&self, topic: &TopicName) -> Wait<Vec<GroupInfo>>;

    // ---- claims and completions ----

    /// Asks for the right to carry out an action, and records its intent.
    fn claim(&self, claim: Claim) -> Wait<ClaimAnswer>;

    /// What a claim on an asker's key would find, without claiming it: checked before a person is asked for approval. The
    /// resources are those of the claim.
    fn lookup(
        &self,
        asker: &Asker,
        key: &IdempotencyKey,
        params_digest: &Digest,
        resources: &[ResourceName],
    ) -> Result<Lookup, StoreError>;

    /// Publishes a decision, leases it to the caller and claims it, in one block.
    fn admit(&self, admission: Admission) -> Wait<Admitted>;

    /// Takes over the open claim that is held under the fence `seen`, to settle it. The former holder can no longer commit.
    fn take_over(&self, action: &ActionId, seen: Fence) -> Wait<Fence>;

    /// Ends an action: receipt, events, end of the claim, acks, dead letter, in one block.
    fn commit(&self, completion: Completion) -> Wait<Committed>;

    /// Resolves an action to an existing receipt (a cached result), and ends its deliveries. It waits up to
    /// [`LINK_DELAY`](crate::limits::LINK_DELAY) for the next block. The caller may drop the [`Wait`].
    fn link(&self, link: Link) -> Wait<()>;

    /// Intents without an outcome, for settlement at start, oldest first, with fences greater than `after`.
    fn open_intents(&self, after: Option<Fence>, max: usize) -> Wait<Vec<OpenIntent>>;

    // ---- receipts ----

    /// The receipt with this id.
    fn receipt(&self, id: &ReceiptId) -> Result<Option<StoredReceipt>, StoreError>;

    /// The receipt of this action, its own or a linked one.
    fn receipt_of(&self, action: &ActionId) -> Result<Option<StoredReceipt>, StoreError>;

    /// Receipts by tool, subject, space, status, principal, session, organisation, key and time.
    fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError>;

    /// How many kept receipts of an organisation have this status as an invocation: exactly, however many there are.
    fn invocations(&self, org: &OrgId, status: InvocationBrief) -> Result<u64, StoreError>;

    // ---- the log ----

    /// Adds a note to the Merkle log, in canonical JSON, and returns its index. Notes are listed by what they are about.
    fn note(&self, about: &str, body: Vec<u8>) -> Wait<u64>;

    /// Notes about something, in order, from an index of the log on.
    fn notes(&self, about: &str, from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError>;

    /// The last note about something.
    fn last_note(&self, about: &str) -> Result<Option<StoredLogEntry>, StoreError>;

    /// The status of the log: all intents, receipts and notes, in the order in which they became durable.
    fn log(&self) -> Result<LogStatus, StoreError>;

    /// Entries of the log from an index on. Stops as [`Store::read`] does.
    fn log_entries(&self, from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError>;

    /// The index of a receipt in the log.
    fn log_place(&self, receipt: &ReceiptId) -> Result<Option<u64>, StoreError>;

    /// The right edge of the log when it had `size` entries.
    fn log_frontier(&self, size: u64) -> Result<Frontier, StoreError>;

    /// The proof that an entry is in the log of `size` entries ([`effectd_contracts::merkle::inclusion_holds`]).
    fn log_inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, StoreError>;

    /// The proof that the log of `new` entries begins with that of `old` ([`effectd_contracts::merkle::consistency_holds`]).
    fn log_consistency(&self, old: u64, new: u64) -> Result<Vec<Digest>, StoreError>;

    // ---- families of key-value entries ----

    /// One entry.
    fn entry(&self, family: &FamilyName, key: &str) -> Result<Option<KvEntry>, StoreError>;

    /// Entries whose key begins with `prefix`, in key order, after the key `after`.
    fn entries(
        &self,
        family: &FamilyName,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<KvPage, StoreError>;

    /// Several compare-and-swaps, acks, events and notes, in one block. If one condition fails, nothing happens.
    fn change(&self, change: Change) -> Wait<Changed>;

    // ---- dead letters ----

    /// One dead letter.
    fn letter(&self, letter: u64) -> Result<Option<DeadLetter>, StoreError>;

    /// The number that the next dead letter gets: one with this number or a higher one never was.
    fn letters_end(&self) -> Result<u64, StoreError>;

    /// Dead letters of one topic or of all, oldest first, from a number on.
    fn letters(&self, topic: Option<&TopicName>, from: u64, max: usize)
    -> Result<DeadLetterPage, StoreError>;

    /// Dead letters of one topic or of all, only those that `takes` accepts, grouped by cause, largest group first. Beyond
    /// [`crate::limits::LETTER_GROUPS_MAX`] causes, the others are one last group, `other_causes`. Without `takes`, no dead
    /// letter is opened.
    fn letter_groups(
        &self,
        topic: Option<&TopicName>,
        takes: Option<&dyn Fn(&DeadLetter) -> bool>,
    ) -> Result<Vec<DeadLetterGroup>, StoreError>;

    /// Publishes a dead letter again, as an event that the caller makes of its payload, for the same action and under a
    /// new id. In the same block, the dead letter is removed and its action may get another receipt; the failing receipt
    /// stays. A repeated call does nothing.
    fn requeue(&self, letter: u64, event: NewEvent) -> Wait<Requeued>;

    /// Deletes dead letters, and returns how many there were. Their receipts stay.
    fn purge(&self, letters: Vec<u64>) -> Wait<u64>;

    // ---- housekeeping ----

    /// Destroys the keys of sealing epochs that ended before `before` and whose actions have all ended. Live entries and
    /// dead letters are sealed again under the current epoch first.
    fn close_epochs(&self, before: Timestamp) -> Wait<EpochReport>;

    /// Begins a new sealing epoch now, and returns its number: everything sealed before is under an earlier one.
    fn begin_epoch(&self) -> Wait<u32>;

    /// [`Store::close_epochs`] for the epochs before one that has begun. A key that could not be destroyed is reported as
    /// closed by every call until it is. An epoch that has not begun is refused (`Invalid`).
    fn close_epochs_before(&self, epoch: u32) -> Wait<EpochReport>;

    /// Replaces the device key and wraps every epoch key with the new one; sealed payloads stay readable. Blocks, and is durable
    /// when it returns; an interrupted change is finished by the next open, or the next call. A store without key files has no
    /// device key (`Invalid`).
    fn rotate_device_key(&self) -> Result<DeviceKeyChange, StoreError>;

    /// Expires data; the work is bounded, and [`Retained::more`] says whether to call again. Blocks the calling thread
    /// briefly. Nobody sees expired data from then on; readers and groups that ask for it get [`StoreError::Dropped`]. The
    /// journal is not shortened yet: [`LogStatus::kept_from`] is the first log entry whose body is kept, and a head that
    /// states it must be signed before [`Store::shorten`].
    fn retain(&self, retention: &Retention, mode: RetentionMode) -> Result<Retained, StoreError>;

    /// Drops the oldest blocks of the journal in which nothing is kept; bounded and blocking, as [`Store::retain`] is. Log
    /// entries from `log_before` on keep their bodies; the last signed head must state that number.
    fn shorten(&self, log_before: u64) -> Result<Retained, StoreError>;

    /// Reads the durable journal, to copy a store that is in use. If retention drops a block before it is read, the reader
    /// fails and the copy must begin again.
    fn read_journal(&self) -> Result<JournalReader, StoreError>;

    /// Reads the whole durable journal of a store in use, and checks the checksums and the order of its blocks; returns their
    /// number. Blocks the calling thread for as long as that takes, and nobody else.
    fn check_journal(&self) -> Result<u64, StoreError>;

    /// Why new work is refused: the store is not open, or the medium said so when the writer last took operations; `None`
    /// if new work is accepted. [`Store::groups`] makes the writer check again.
    fn refusal(&self) -> Option<StoreError>;

    /// The first damage that a read of this process met, unless the store repairs it by itself. What was not read may be damaged,
    /// too.
    fn damage(&self) -> Option<StoreError>;

    /// Counters of the store.
    fn stats(&self) -> Stats;

    /// Writes the queued operations, refuses new ones, and closes the files. Dropping the last handle does the same.
    fn close(&self) -> Result<(), StoreError>;

    // ---- shorthands ----

    /// [`Acknowledgement::Ack`].
    fn ack(&self, lease: LeaseId) -> Wait<Acknowledged> {
        self.acknowledge(lease, Acknowledgement::Ack)
    }

    /// [`Acknowledgement::Nack`].
    fn nack(&self, lease: LeaseId, delay: Duration, detail: &str) -> Wait<Acknowledged> {
        let detail = detail.to_owned();
        self.acknowledge(lease, Acknowledgement::Nack { delay, detail })
    }

    /// [`Acknowledgement::Defer`].
    fn defer(&self, lease: LeaseId, delay: Duration) -> Wait<Acknowledged> {
        self.acknowledge(lease, Acknowledgement::Defer { delay })
    }

    /// [`Acknowledgement::Term`], for no known tool.
    fn term(&self, lease: LeaseId, code: &str, detail: &str) -> Wait<Acknowledged> {
        let (code, detail) = (code.to_owned(), detail.to_owned());
        self.acknowledge(lease, Acknowledgement::Term { tool: None, code, detail })
    }
}
