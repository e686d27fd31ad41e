//! The one interface to what effectd remembers.

use std::time::Duration;

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{ActionId, Digest, EventId, IdempotencyKey, ReceiptId, Timestamp};

use crate::error::StoreError;
use crate::journal::JournalReader;
use crate::names::{FamilyName, GroupName, ResourceName, TopicName};
use crate::stats::Stats;
use crate::types::claims::{Admission, Admitted, Asker, Claim, ClaimAnswer, Fence, Lookup, OpenIntent};
use crate::types::events::{EventPage, NewEvent, Published};
use crate::types::families::{Change, Changed, Entry, EntryPage};
use crate::types::groups::{GroupInfo, GroupOptions, LeaseId, Leased, SeekTo, Settled, Settlement};
use crate::types::letters::{LetterGroup, LetterPage, Requeued, StoredLetter};
use crate::types::log::{LogStanding, StoredEntry};
use crate::types::receipts::{Committed, Completion, Link, ReceiptPage, ReceiptQuery, StoredReceipt};
use crate::types::retention::{Retained, Retention, Turn};
use crate::vault::EpochReport;
use crate::wait::Wait;
use crate::watch::Watch;

/// What effectd remembers, and what it promises about it. Every engine passes the suite in the module
/// `conformance` (feature of the same name).
///
/// # Guarantees
///
/// 1. **Durable when answered.** When a [`Wait`] is answered with `Ok`, what it speaks of survives `kill -9` and power
///    loss. Nobody sees anything, by any read, before it is durable.
/// 2. **All or nothing.** One call is one step. After a crash at any point, all of it is there or nothing.
/// 3. **One order.** All operations of a store happen one after another, and every reader sees them in that order. An
///    operation that begins after another was answered sees it.
/// 4. **Nothing is silently lost.** The only part of the journal that a crash may shorten is what was not answered. A
///    store that is shorter or other than what was answered does not open ([`StoreError::Damaged`]).
/// 5. **At least once, counted.** An event is delivered to a group until it is settled; the count of its deliveries
///    survives a crash. A group's committed position never goes back, except by `seek`.
/// 6. **One receipt per action.** `commit` is idempotent by receipt id, and refuses a second receipt, other content
///    under a used id, and an old fence. No event of a completion exists without its receipt. Only `requeue` of its dead
///    letter opens an action again; the failing receipt stays, under its own id.
/// 7. **One winner per key of an asker.** Of all claims of one asker on one key, one is granted at a time, and none after an
///    `ok` receipt with the same parameters, until a later effect of anybody on the same resource, or one that disturbs all
///    beneath something that the resource lies in, retires the key. Claims of other askers do not count.
/// 8. **Nothing sensitive in clear.** Sealed bodies, intents, details and payloads reach the disk only encrypted.
/// 9. **One log.** Every intent, receipt and note is an entry of the log, from the same block on and in the same order for
///    ever. Its root follows from the entries alone, and proofs about them hold after anything is let go.
/// 10. **Bounded.** Every argument, queue and answer has a bound in [`crate::limits`], and a typed error beyond it.
///
/// After [`StoreError::Unavailable`] it is not known whether the operation happened. Every operation can simply be
/// asked again: publishing by event id, committing by receipt id, claiming by action id.
///
/// # Time
///
/// Leases and delays are measured with the monotonic clock. Leases end with the process: when a store is opened, every
/// event that was leased is due at once, with its count of deliveries kept. Delays go on over a restart, by the wall
/// clock, but never longer than they were asked for.
///
/// # Callers
///
/// Operations that write return at once with a [`Wait`], to be awaited or blocked on. Reads are answered directly, from
/// memory and the page cache; they never wait for a sync.
pub trait Store: Send + Sync {
    // ---- topics ----

    /// Appends events to a topic, in the order given, without others between them. An id that the topic holds already
    /// is not appended again; the answer has its first offset.
    fn publish(&self, topic: &TopicName, events: Vec<NewEvent>) -> Wait<Vec<Published>>;

    /// Reads events from an offset on, touching no group. Stops at `max`, at [`crate::limits::PAGE_ITEMS_MAX`] or when
    /// the page is large. A topic that nobody has published to is empty. [`StoreError::Dropped`] if the event at the offset
    /// is no longer kept, and says where the topic begins now.
    fn read(&self, topic: &TopicName, from: u64, max: usize) -> Result<EventPage, StoreError>;

    /// The offset under which an event of this id was published; `None` if it was not.
    fn published(&self, topic: &TopicName, event: &EventId) -> Result<Option<u64>, StoreError>;

    /// The first offset stored at this time or later, by the millisecond; the topic's end if there is none yet.
    fn offset_at(&self, topic: &TopicName, time: Timestamp) -> Result<u64, StoreError>;

    /// The names and ends of all topics, for operators.
    fn topics(&self) -> Result<Vec<(TopicName, u64)>, StoreError>;

    /// Tells when there is news on the topic: new events, or deliveries given back.
    fn watch(&self, topic: &TopicName) -> Result<Watch, StoreError>;

    // ---- groups ----

    /// Tells when there may be something to lease for the group: an event that nobody has, or one that was given back. What comes
    /// due by its time alone is told by [`Leased::next_due`], and what is [admitted](Store::admit) is its holder's.
    fn watch_group(&self, topic: &TopicName, group: &GroupName) -> Result<Watch, StoreError>;

    /// Lends up to `max` events to the caller for `ttl`: first those that are due again, then new ones, each oldest
    /// first. A group begins to exist, at the topic's start, when it is first named here or in [`Store::configure`] or
    /// [`Store::seek`].
    fn lease(&self, topic: &TopicName, group: &GroupName, max: usize, ttl: Duration) -> Wait<Leased>;

    /// Ends a delivery. `LeaseLost` if it is no longer the caller's to end.
    fn settle(&self, lease: LeaseId, how: Settlement) -> Wait<Settled>;

    /// Holds a delivery for `ttl` from now. Long work calls this well before its lease ends. Not written to disk, since
    /// leases end with the process.
    fn extend(&self, lease: LeaseId, ttl: Duration) -> Wait<()>;

    /// Says how a group treats its deliveries.
    fn configure(&self, topic: &TopicName, group: &GroupName, options: GroupOptions) -> Wait<()>;

    /// Moves a group. Its leases are lost, its counts forgotten. Answers the offset it stands at.
    fn seek(&self, topic: &TopicName, group: &GroupName, to: SeekTo) -> Wait<u64>;

    /// How the groups of a topic stand.
    fn groups(&self, topic: &TopicName) -> Wait<Vec<GroupInfo>>;

    // ---- claims and completions ----

    /// Asks for the right to carry out an action, and writes down what is about to happen.
    fn claim(&self, claim: Claim) -> Wait<ClaimAnswer>;

    /// What is known of an asker's key, without claiming it: asked before a human is. The resources are those that a claim would name.
    fn lookup(
        &self,
        asker: &Asker,
        key: &IdempotencyKey,
        params_digest: &Digest,
        resources: &[ResourceName],
    ) -> Result<Lookup, StoreError>;

    /// Publishes a decision, leases it to the caller and claims it, in one block.
    fn admit(&self, admission: Admission) -> Wait<Admitted>;

    /// Takes over an open claim that is held under `seen`, to settle it. Whoever held it can no longer commit.
    fn take_over(&self, action: &ActionId, seen: Fence) -> Wait<Fence>;

    /// Ends an action: receipt, events, result of the claim, acks, dead letter, in one block.
    fn commit(&self, completion: Completion) -> Wait<Committed>;

    /// Resolves an action to a receipt that exists already (a cached hit), and ends its deliveries. The caller need not wait
    /// for it.
    fn link(&self, link: Link) -> Wait<()>;

    /// Intents without an outcome, for settlement at start, oldest first; go on after the last one's fence.
    fn open_intents(&self, after: Option<Fence>, max: usize) -> Wait<Vec<OpenIntent>>;

    // ---- receipts ----

    /// The receipt of this id.
    fn receipt(&self, id: &ReceiptId) -> Result<Option<StoredReceipt>, StoreError>;

    /// The receipt that this action resolves to, its own or a linked one.
    fn receipt_of(&self, action: &ActionId) -> Result<Option<StoredReceipt>, StoreError>;

    /// Receipts by tool, subject, space, status, key and time.
    fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError>;

    // ---- the log ----

    /// Adds an entry to the log that is neither intent nor receipt, in canonical JSON, and answers its place. It is found
    /// again by what it is about.
    fn note(&self, about: &str, body: Vec<u8>) -> Wait<u64>;

    /// Notes about something, in order, from a place in the log on.
    fn notes(&self, about: &str, from: u64, max: usize) -> Result<Vec<StoredEntry>, StoreError>;

    /// The last note about something.
    fn last_note(&self, about: &str) -> Result<Option<StoredEntry>, StoreError>;

    /// How the log stands: every intent, receipt and note has its place in it, in the order in which they became durable.
    fn log(&self) -> Result<LogStanding, StoreError>;

    /// Entries of the log from a place on. Stops as [`Store::read`] does.
    fn log_entries(&self, from: u64, max: usize) -> Result<Vec<StoredEntry>, StoreError>;

    /// Where a receipt stands in the log.
    fn log_place(&self, receipt: &ReceiptId) -> Result<Option<u64>, StoreError>;

    /// The right edge of the log as it was at a size.
    fn log_frontier(&self, size: u64) -> Result<Frontier, StoreError>;

    /// The proof that an entry is in the log as it was at a size ([`effectd_contracts::merkle::inclusion_holds`]).
    fn log_inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, StoreError>;

    /// The proof that the log at one size begins with the log at another ([`effectd_contracts::merkle::consistency_holds`]).
    fn log_consistency(&self, old: u64, new: u64) -> Result<Vec<Digest>, StoreError>;

    // ---- families ----

    /// One entry.
    fn entry(&self, family: &FamilyName, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Entries whose key begins with `prefix`, in the order of their keys, after the key `after`.
    fn entries(
        &self,
        family: &FamilyName,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<EntryPage, StoreError>;

    /// Several compare-and-swaps, acks and events, in one block. If one condition does not hold, nothing happens.
    fn change(&self, change: Change) -> Wait<Changed>;

    // ---- dead letters ----

    /// One dead letter.
    fn letter(&self, letter: u64) -> Result<Option<StoredLetter>, StoreError>;

    /// Dead letters of one topic or of all, oldest first, from a number on.
    fn letters(&self, topic: Option<&TopicName>, from: u64, max: usize) -> Result<LetterPage, StoreError>;

    /// Dead letters of one topic or of all, by what they have in common, most first. Beyond
    /// [`crate::limits::LETTER_GROUPS_MAX`] causes, further ones are told last and together, as `other_causes`.
    fn letter_groups(&self, topic: Option<&TopicName>) -> Result<Vec<LetterGroup>, StoreError>;

    /// Publishes a dead letter again, as an event that the caller makes of its payload, for the same action and under a
    /// new id. In one block it is on its topic and a dead letter no more, and its action may have another receipt; the
    /// failing one stays. Asked again, it does nothing.
    fn requeue(&self, letter: u64, event: NewEvent) -> Wait<Requeued>;

    /// Forgets dead letters, and says how many there were. Their receipts stay.
    fn purge(&self, letters: Vec<u64>) -> Wait<u64>;

    // ---- housekeeping ----

    /// Destroys the keys of sealing epochs that ended before `before` and whose actions have all ended. Entries and dead
    /// letters that are still alive are sealed again under the current epoch first.
    fn close_epochs(&self, before: Timestamp) -> Wait<EpochReport>;

    /// Begins a new sealing epoch now, and answers its number: whatever was sealed before this is under an earlier one.
    fn begin_epoch(&self) -> Wait<u32>;

    /// [`Store::close_epochs`] for the epochs before one that was begun by hand; one that has not begun is refused. A key
    /// that could not be destroyed is told as closed by every call until it is.
    fn close_epochs_before(&self, epoch: u32) -> Wait<EpochReport>;

    /// One turn of letting go of what is kept no longer; its work is bounded, and [`Retained::more`] says whether to ask
    /// again. Blocks the calling thread, for moments only. Nobody sees what has expired from then on; readers and groups
    /// that ask for it are told where their topic begins now ([`StoreError::Dropped`]). The journal is as long as before:
    /// [`LogStanding::kept_from`] says which bodies of the log may go, and a head that says so is to be signed before
    /// [`Store::shorten`].
    fn retain(&self, retention: &Retention, turn: Turn) -> Result<Retained, StoreError>;

    /// Drops the oldest blocks of the journal in which nothing is kept; bounded, and blocks, as [`Store::retain`] does. Entries
    /// of the log from `log_before` on keep their bodies: it is what the last signed head says.
    fn shorten(&self, log_before: u64) -> Result<Retained, StoreError>;

    /// Reads the journal itself, for a copy of a store that is in use: what is durable now. What is let go before it is read is
    /// told by an error, and the copy is to be begun again.
    fn read_journal(&self) -> Result<JournalReader, StoreError>;

    /// Why new work is refused, as the writer judged it with the last operation that it took; `None` if it is taken. Whoever
    /// wants to know how it is now asks for [`Store::groups`] first.
    fn refusal(&self) -> Option<StoreError>;

    /// What the Store has done and has to do.
    fn stats(&self) -> Stats;

    /// Writes what waits, refuses what comes, and lets go of the files. Dropping the last handle does the same.
    fn close(&self) -> Result<(), StoreError>;

    // ---- in short ----

    /// [`Settlement::Ack`].
    fn ack(&self, lease: LeaseId) -> Wait<Settled> {
        self.settle(lease, Settlement::Ack)
    }

    /// [`Settlement::Nack`].
    fn nack(&self, lease: LeaseId, delay: Duration, detail: &str) -> Wait<Settled> {
        self.settle(
            lease,
            Settlement::Nack {
                delay,
                detail: detail.to_owned(),
            },
        )
    }

    /// [`Settlement::Defer`].
    fn defer(&self, lease: LeaseId, delay: Duration) -> Wait<Settled> {
        self.settle(lease, Settlement::Defer { delay })
    }

    /// [`Settlement::Term`].
    fn term(&self, lease: LeaseId, code: &str, detail: &str) -> Wait<Settled> {
        self.settle(
            lease,
            Settlement::Term {
                code: code.to_owned(),
                detail: detail.to_owned(),
            },
        )
    }
}
