//! Salvage: a new store of what is readable in a damaged one.
//!
//! Two ways of reading are combined. One searches the files for whole blocks, by mark and checksum; it misses blocks that sled
//! stores in several chunks. The other opens a copy of the journal and reads every block that is undamaged; a copy, since sled may
//! open a damaged file as an empty one and write to it. The damaged store is not changed.
//!
//! The new journal has the same blocks under the same numbers. In place of each lost block stands one that says what is known about
//! it, so that everything after it keeps its number: offsets, receipts, entries of the Merkle log (whose hashes have files of their
//! own), leases, fences and dead letters. A lost event is a placeholder of the type [`LOST_EVENT`]. Later records that only make sense
//! after a lost one are replaced by what is still true of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::{Digest, EventId, IdempotencyKey, Monotonic, Principal, Status, TraceId, merkle};
use serde::Deserialize;
use serde_json::json;

use super::journal_copy::JournalWriter;
use crate::codec::{Hash16, Location, Malformed};
use crate::config::{EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use crate::files::{io_error, list, private_dir, sync_tree};
use crate::index::{applied_in, schema};
use crate::journal::block::{self, Builder};
use crate::journal::record::{Blob, Ending, EventRecord, LostRecord, Payload, ReceiptRecord, Record};
use crate::journal::state_dir::{journal_of, lock};
use crate::journal::{self, Journal, checkpoint_files, segments, sled_journal};
use crate::limits::{BLOCK_BYTES_TARGET, LOST_IN_BLOCK_MAX, OPERATION_BYTES_MAX, SALVAGE_GAPS_MAX};
use crate::merkle_log::{MerkleLog, leaf_of};
use crate::names::TopicName;
use crate::reads::timestamp;
use crate::state::checkpoint::Checkpoint;
use crate::state::{BlockChanges, Derived, State, When};
use crate::types::claims::Asker;

/// The CloudEvents type of an event whose contents are lost.
pub const LOST_EVENT: &str = "effectd.lost.v1";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Salvaged {
    /// Whether the journal could still be opened.
    pub opened: bool,
    /// Why it could not be opened, and what else went wrong.
    pub trouble: Vec<String>,
    /// Readable blocks.
    pub blocks: u64,
    /// Ranges of unreadable blocks (first and last block), up to the last block that is known.
    pub missing: Vec<(u64, u64)>,
    /// The number of unreadable blocks, including those beyond [`SALVAGE_GAPS_MAX`] ranges.
    pub missing_blocks: u64,
    pub receipts: u64,
    pub receipts_lost: u64,
    /// Ranges of entries of the Merkle log (first and last) whose contents are lost.
    pub log_lost: Vec<(u64, u64)>,
    /// Events, without the lost ones.
    pub events: u64,
    /// Ranges of lost events (first and last offset), by topic.
    pub events_lost: BTreeMap<String, Vec<(u64, u64)>>,
    pub letters: u64,
    /// Readable records that say nothing without a lost one, and were left out.
    pub left_out: u64,
}

impl Salvaged {
    pub fn is_whole(&self) -> bool {
        self.opened && self.trouble.is_empty() && self.missing_blocks == 0
    }
}

/// The largest block: its last operation is as large as it may be.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES_TARGET + 2 * OPERATION_BYTES_MAX;
/// Bytes of a file that are searched for blocks at once.
const WINDOW_BYTES: usize = 4 * BLOCK_BYTES_MAX;

/// Writes the journal of a new store, in files, and the hashes of its Merkle log, into a state directory that has no store. Its index
/// must be rebuilt.
pub fn salvage(config: &EmbeddedConfig, into: &Path) -> Result<Salvaged, StoreError> {
    if into.join("journal").exists() {
        return Err(StoreError::Invalid(format!(
            "{} has a store already; choose a new directory",
            into.display()
        )));
    }
    let _lock = lock(&config.state)?;
    private_dir(into)?;
    let old_log = config.state.join("log");
    if old_log.is_dir() {
        copy_dir(&old_log, &into.join("log"))?;
        // Hashes of blocks that retention dropped follow from nothing else.
        sync_tree(&into.join("log"))?;
    }
    let readable = Readable::open(config, into)?;
    let checkpoint = readable.checkpoint()?;
    let known = Known::of(config);
    let numbers = readable.numbers(known.as_ref())?;
    let mut writer = JournalWriter::in_files(into)?;
    let bytes = checkpoint.as_ref().map(Checkpoint::encode).unwrap_or_default();
    writer.write(&readable.first.to_be_bytes())?;
    writer.write(&(bytes.len() as u64).to_be_bytes())?;
    writer.write(&bytes)?;
    let mut rebuilt = Rebuilt::new(checkpoint, MerkleLog::open(&into.join("log"))?, writer)?;
    rebuilt.found.opened = readable.journal.is_some();
    rebuilt.found.trouble.clone_from(&readable.trouble);
    let last = known.map_or(0, |known| known.seq).max(readable.last());
    let mut next = readable.first;
    for seq in readable.seqs.iter().copied() {
        if next < seq {
            rebuilt.gap(next..seq, numbers.get(&seq))?;
        }
        let bytes = readable.block(seq).ok_or_else(|| journal::missing(seq))?;
        rebuilt.block(seq, &bytes)?;
        next = seq + 1;
    }
    if next <= last {
        rebuilt.gap(next..last + 1, numbers.get(&(last + 1)))?;
    }
    rebuilt.finish()
}

/// Whole blocks in the files: path, offset and length.
type FoundBlocks = BTreeMap<u64, (PathBuf, u64, usize)>;

/// The kind of the journal: by its format file or, if that is unreadable, by its directory.
fn kind_of(state: &Path) -> JournalKind {
    let there = JournalKind::ALL.into_iter().find(|kind| journal::directory(*kind, state).exists());
    journal_of(state).ok().or(there).unwrap_or_default()
}

fn files(state: &Path, kind: JournalKind) -> Result<Vec<PathBuf>, StoreError> {
    let directory = journal::directory(kind, state);
    match kind {
        JournalKind::Files => segments::files(&directory),
        JournalKind::Sled => sled_journal::files(&directory),
    }
}

/// A copy of a journal, removed when it is dropped.
struct Copy {
    config: EmbeddedConfig,
}

impl Copy {
    fn of(config: &EmbeddedConfig, journal: JournalKind, into: &Path) -> Result<Self, StoreError> {
        let copy = Copy { config: EmbeddedConfig { state: into.join("copy"), journal, ..config.clone() } };
        copy_dir(&config.state.join("journal"), &copy.config.state.join("journal"))?;
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.config.state);
    }
}

fn copy_dir(from: &Path, to: &Path) -> Result<(), StoreError> {
    private_dir(to)?;
    for path in list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_dir(&path, &target)?;
        } else {
            std::fs::copy(&path, &target).map_err(|error| io_error(&path, error))?;
        }
    }
    Ok(())
}

/// The blocks that can be read in one of the two ways.
struct Readable {
    /// The first block that retention has not dropped.
    first: u64,
    seqs: BTreeSet<u64>,
    journal: Option<Arc<dyn Journal>>,
    trouble: Vec<String>,
    found: FoundBlocks,
    /// The directory of the copy.
    directory: PathBuf,
    /// Dropped last, since it removes the files.
    _copy: Copy,
}

impl Readable {
    fn open(config: &EmbeddedConfig, into: &Path) -> Result<Self, StoreError> {
        let kind = kind_of(&config.state);
        let mut found = FoundBlocks::new();
        for path in files(&config.state, kind)? {
            each_block(&path, &mut |at, header, len| {
                found.entry(header.seq).or_insert_with(|| (path.clone(), at, len));
            })?;
        }
        let copy = Copy::of(config, kind, into)?;
        let directory = journal::directory(kind, &copy.config.state);
        let (journal, mut trouble) = match journal::open(&copy.config) {
            Ok(journal) => (Some(journal), Vec::new()),
            Err(error) => (None, vec![error.to_string()]),
        };
        let bounds = match journal.as_ref().map(|journal| journal.bounds()) {
            Some(Ok(bounds)) => bounds,
            Some(Err(error)) => {
                trouble.push(error.to_string());
                None
            }
            None => None,
        };
        let first = checkpoint_files::first_block(&directory)?;
        let mut readable =
            Readable { first, seqs: BTreeSet::new(), journal, trouble, found, directory, _copy: copy };
        let mut seqs: BTreeSet<u64> = readable.found.keys().copied().collect();
        seqs.extend(bounds.map_or(0..0, |(first, last)| first..last + 1));
        // Blocks that retention dropped are not part of the store.
        readable.seqs =
            seqs.into_iter().filter(|seq| *seq >= first && readable.block(*seq).is_some()).collect();
        Ok(readable)
    }

    fn last(&self) -> u64 {
        self.seqs.last().copied().unwrap_or(0)
    }

    /// What the journal begins with. Nothing after it makes sense without it.
    fn checkpoint(&self) -> Result<Option<Checkpoint>, StoreError> {
        let Some(bytes) = checkpoint_files::read(&self.directory, self.first)? else {
            return Ok(None);
        };
        Checkpoint::read(&bytes, self.first).map(Some)
    }

    /// A block whose records can all be read.
    fn block(&self, seq: u64) -> Option<Vec<u8>> {
        let is_whole = |bytes: &Vec<u8>| {
            block::check(bytes).is_ok_and(|header| header.seq == seq)
                && block::records(bytes).all(|record| record.is_ok())
        };
        let read = self.journal.as_ref().and_then(|journal| journal.block(seq).ok());
        read.filter(is_whole).or_else(|| {
            let (path, at, len) = self.found.get(&seq)?;
            let mut bytes = vec![0; *len];
            File::open(path).and_then(|file| file.read_exact_at(&mut bytes, *at)).ok()?;
            Some(bytes).filter(is_whole)
        })
    }

    /// For each gap, by the block after it: the first number of each sort that stands in a later block. Of a sort that stands in
    /// none, the numbers that the index knows.
    fn numbers(&self, known: Option<&Known>) -> Result<BTreeMap<u64, Numbers>, StoreError> {
        let (mut ahead, mut gaps) = (Numbers::default(), BTreeMap::new());
        let mut after = self.last().max(known.map_or(0, |known| known.seq)) + 1;
        for seq in self.seqs.iter().rev().copied().chain([self.first - 1]) {
            if seq + 1 < after {
                let known = known.filter(|known| known.seq + 1 >= after);
                gaps.insert(after, ahead.or(known.map(|known| &known.numbers)));
            }
            after = seq;
            if seq >= self.first {
                let bytes = self.block(seq).ok_or_else(|| journal::missing(seq))?;
                ahead.precede(&bytes);
            }
        }
        Ok(gaps)
    }
}

/// What the index says about the last block that it holds.
struct Known {
    seq: u64,
    numbers: Numbers,
}

impl Known {
    /// `None` if the index cannot be read.
    fn of(config: &EmbeddedConfig) -> Option<Self> {
        let applied = applied_in(&config.state.join("index")).ok()??;
        let (seq, state) = State::restore(&applied.snapshot, when(0)).ok()?;
        let topics = state.topics.iter().map(|(name, topic)| (name.clone(), topic.end));
        let numbers = Numbers {
            topics: topics.collect(),
            delivered: BTreeMap::new(),
            ordinal: Some(state.next_ordinal),
            fence: Some(state.next_fence),
            lease: Some(state.next_lease),
            letter: Some(state.next_letter),
            log: Some(LogNext::Size(state.log.size())),
        };
        Some(Known { seq, numbers })
    }
}

/// The next number of each sort; of topics, the next offset.
#[derive(Debug, Clone, Default)]
struct Numbers {
    topics: BTreeMap<TopicName, u64>,
    /// The end of each topic at least, by the deliveries of its events: they may be readable where the events are not.
    delivered: BTreeMap<TopicName, u64>,
    ordinal: Option<u64>,
    fence: Option<u64>,
    lease: Option<u64>,
    letter: Option<u64>,
    log: Option<LogNext>,
}

/// Where the Merkle log goes on.
#[derive(Debug, Clone, Copy)]
enum LogNext {
    /// With this leaf.
    Leaf(Digest),
    /// With the entry of this index.
    Size(u64),
}

impl Numbers {
    /// Takes the numbers of a block before those that are known.
    fn precede(&mut self, bytes: &[u8]) {
        let records: Vec<Record> = block::records(bytes).flatten().map(|(_, record)| record).collect();
        for record in records.iter().rev() {
            if let Some(leaf) = leaf_of(record, bytes) {
                self.log = Some(LogNext::Leaf(leaf));
            }
            match record {
                Record::Published { topic, offset, .. } => {
                    self.topics.insert(topic.clone(), *offset);
                }
                Record::Leased(leased) => {
                    self.lease = leased.grants.first().map(|(_, lease)| *lease).or(self.lease);
                    for (offset, _) in &leased.grants {
                        self.deliver(&leased.topic, *offset);
                    }
                }
                Record::Acknowledged(ended) => self.deliver(&ended.topic, ended.offset),
                Record::DeadLettered(letter) => self.letter = Some(letter.letter),
                Record::Claimed(claim) => self.fence = Some(claim.fence),
                Record::TakenOver { fence, .. } => self.fence = Some(*fence),
                Record::Completed(receipt) => self.ordinal = Some(receipt.ordinal),
                Record::Lost(lost) => {
                    if !lost.leaves.is_empty() {
                        self.log = Some(LogNext::Size(lost.log_from));
                    }
                }
                Record::Linked { .. }
                | Record::EntryPut { .. }
                | Record::EntryDeleted { .. }
                | Record::Sought { .. }
                | Record::Configured { .. }
                | Record::EpochClosed { .. }
                | Record::DeadLetterEnded { .. }
                | Record::Noted { .. }
                | Record::Expired(_)
                | Record::EventMoved { .. }
                | Record::ClaimMoved { .. }
                | Record::DeadLetterMoved { .. }
                | Record::Invalidated { .. } => {}
            }
        }
    }

    fn deliver(&mut self, topic: &TopicName, offset: u64) {
        let end = self.delivered.entry(topic.clone()).or_default();
        *end = (*end).max(offset.saturating_add(1));
    }

    /// These numbers, and of each sort that has none, the other ones.
    fn or(&self, other: Option<&Numbers>) -> Numbers {
        let mut all = self.clone();
        for (topic, end) in other.into_iter().flat_map(|other| &other.topics).chain(&self.delivered) {
            if !self.topics.contains_key(topic) {
                let known = all.topics.entry(topic.clone()).or_default();
                *known = (*known).max(*end);
            }
        }
        if let Some(other) = other {
            all.ordinal = all.ordinal.or(other.ordinal);
            all.fence = all.fence.or(other.fence);
            all.lease = all.lease.or(other.lease);
            all.letter = all.letter.or(other.letter);
            all.log = all.log.or(other.log);
        }
        all
    }
}

fn when(at_ms: i64) -> When {
    When { at_ms, now_ms: at_ms, now: Monotonic::default(), replay: true }
}

/// The part of a receipt that its idempotency key was claimed with.
#[derive(Deserialize)]
struct Asked {
    idempotency_key: IdempotencyKey,
    principal: Principal,
}

/// The new journal, and the state that follows from it.
struct Rebuilt {
    state: State,
    log: MerkleLog,
    writer: JournalWriter,
    /// Checksum and time of the last block.
    previous: u32,
    at_ms: i64,
    /// Ordinals of lost receipts.
    lost: Vec<Range<u64>>,
    letters: BTreeSet<u64>,
    found: Salvaged,
}

impl Rebuilt {
    fn new(
        checkpoint: Option<Checkpoint>,
        log: MerkleLog,
        writer: JournalWriter,
    ) -> Result<Self, StoreError> {
        let (mut state, mut previous, mut at_ms) = (State::default(), 0, 0);
        if let Some(checkpoint) = checkpoint {
            let restored = State::restore(&checkpoint.snapshot, when(checkpoint.at_ms));
            (_, state) = restored.map_err(|Malformed(what)| Checkpoint::damaged(what))?;
            (previous, at_ms) = (checkpoint.checksum, checkpoint.at_ms);
        }
        let (lost, letters, found) = (Vec::new(), BTreeSet::new(), Salvaged::default());
        Ok(Self { state, log, writer, previous, at_ms, lost, letters, found })
    }

    /// Writes blocks in place of lost ones.
    fn gap(&mut self, blocks: Range<u64>, next: Option<&Numbers>) -> Result<(), StoreError> {
        let count = blocks.end - blocks.start;
        self.found.missing_blocks += count;
        add_range(&mut self.found.missing, &blocks);
        let numbers = next.cloned().unwrap_or_default();
        let receipts = self.state.next_ordinal..numbers.ordinal.unwrap_or(0).max(self.state.next_ordinal);
        let events: Vec<(TopicName, Range<u64>)> = numbers
            .topics
            .iter()
            .map(|(topic, end)| (topic.clone(), self.state.end(topic)..*end))
            .filter(|(_, lost)| !lost.is_empty())
            .collect();
        let event_count = events.iter().map(|(_, lost)| lost.end - lost.start).fold(0, u64::saturating_add);
        let leaves = self.lost_leaves(numbers.log)?;
        let receipt_count = receipts.end - receipts.start;
        let most = event_count.max(receipt_count).max(leaves.len() as u64);
        if most > count.saturating_mul(LOST_IN_BLOCK_MAX as u64) {
            let what = format!("block {} has numbers that cannot follow the blocks before it", blocks.end);
            return Err(StoreError::damaged(what));
        }
        self.found.receipts_lost += receipt_count;
        self.lost.push(receipts.clone());
        let mut log_from = self.state.log.size();
        add_range(&mut self.found.log_lost, &(log_from..log_from + leaves.len() as u64));
        for (topic, lost) in &events {
            add_range(self.found.events_lost.entry(topic.to_string()).or_default(), lost);
        }
        let mut events =
            events.into_iter().flat_map(|(topic, lost)| lost.map(move |offset| (topic.clone(), offset)));
        let mut leaves = leaves.chunks(LOST_IN_BLOCK_MAX);
        for seq in blocks {
            let leaves = leaves.next().unwrap_or_default();
            let mut records = vec![Record::Lost(LostRecord {
                next_ordinal: receipts.end.min(self.state.next_ordinal + LOST_IN_BLOCK_MAX as u64),
                next_fence: numbers.fence.unwrap_or(0),
                next_lease: numbers.lease.unwrap_or(0),
                next_letter: numbers.letter.unwrap_or(0),
                log_from,
                leaves: leaves.iter().map(|leaf| *leaf.as_bytes()).collect(),
                ..LostRecord::default()
            })];
            log_from += leaves.len() as u64;
            for (topic, offset) in events.by_ref().take(LOST_IN_BLOCK_MAX) {
                records.push(lost_event(topic, offset, self.at_ms)?);
            }
            self.write(seq, self.at_ms, records)?;
        }
        Ok(())
    }

    /// The leaves of lost log entries.
    fn lost_leaves(&mut self, next: Option<LogNext>) -> Result<Vec<Digest>, StoreError> {
        let size = self.state.log.size();
        let found = match next {
            None => return Ok(Vec::new()),
            Some(LogNext::Size(end)) if end <= size => return Ok(Vec::new()),
            Some(LogNext::Size(end)) => self.log.leaves_until(size, |index, _| index == end)?,
            Some(LogNext::Leaf(next)) => self.log.leaves_until(size, |_, leaf| *leaf == next)?,
        };
        Ok(found.unwrap_or_else(|| {
            let what = format!(
                "the hashes of lost entries of the log, from entry {size} on, are not on disk: later entries have other indexes than \
                 before, and `receipts verify` says so"
            );
            self.found.trouble.push(what);
            Vec::new()
        }))
    }

    /// Writes a readable block.
    fn block(&mut self, seq: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let header = block::check(bytes).map_err(|error| error.at(seq))?;
        self.found.blocks += 1;
        let mut records = Vec::new();
        for record in block::records(bytes) {
            let (_, record) = record.map_err(|error| block::BlockError::from(error).at(seq))?;
            records.push(record.detached(bytes));
        }
        self.write(seq, header.at_ms.max(self.at_ms), records)
    }

    fn write(&mut self, seq: u64, at_ms: i64, records: Vec<Record>) -> Result<(), StoreError> {
        let mut builder = Builder::new(seq, self.previous, at_ms);
        let mut changes = BlockChanges::default();
        for record in records {
            for mut record in self.fitting(record) {
                self.count(&record);
                let span = builder.push(&mut record);
                let derived = Derived::of(&record, builder.bytes());
                self.state
                    .apply(Location { seq, span }, &record, derived, when(at_ms), &mut changes)
                    .map_err(|Malformed(what)| {
                        StoreError::damaged(format!(
                            "block {seq} does not fit the readable ones before it: {what}"
                        ))
                    })?;
            }
        }
        self.state.end_block(seq, at_ms, &mut changes);
        let (bytes, checksum) = builder.finish();
        (self.previous, self.at_ms) = (checksum, at_ms);
        self.writer.write(&bytes)
    }

    fn count(&mut self, record: &Record) {
        match record {
            Record::Published { event, .. } => {
                self.found.events += u64::from(!is_placeholder(event));
            }
            Record::Completed(_) => self.found.receipts += 1,
            Record::DeadLettered(letter) | Record::DeadLetterMoved { letter, .. } => {
                // A moved dead letter has two records.
                self.found.letters += u64::from(self.letters.insert(letter.letter));
            }
            Record::Leased(_)
            | Record::Acknowledged(_)
            | Record::Claimed(_)
            | Record::TakenOver { .. }
            | Record::Linked { .. }
            | Record::EntryPut { .. }
            | Record::EntryDeleted { .. }
            | Record::Sought { .. }
            | Record::Configured { .. }
            | Record::EpochClosed { .. }
            | Record::DeadLetterEnded { .. }
            | Record::Noted { .. }
            | Record::Expired(_)
            | Record::EventMoved { .. }
            | Record::ClaimMoved { .. }
            | Record::Invalidated { .. }
            | Record::Lost(_) => {}
        }
    }

    /// The record or, if it contradicts the state without a lost one, what is still true of it.
    fn fitting(&mut self, record: Record) -> Vec<Record> {
        if self.found.missing_blocks == 0 {
            return vec![record];
        }
        let state = &self.state;
        let fits = match &record {
            Record::Leased(leased) => {
                let group = state.groups.get(&(leased.topic.clone(), leased.group.clone()));
                let committed = group.map_or_else(|| state.begin(&leased.topic), |group| group.committed());
                let first = leased.grants.iter().map(|(offset, _)| *offset).min();
                if let Some(offset) = first.filter(|first| *first < committed) {
                    // Only a group that was moved back leases what it had acknowledged.
                    let (topic, group) = (leased.topic.clone(), leased.group.clone());
                    return vec![Record::Sought { topic, group, offset }, record];
                }
                true
            }
            Record::Acknowledged(ended) => {
                let (topic, group, offset) = (ended.topic.clone(), ended.group.clone(), ended.offset);
                let known = state.groups.get(&(topic.clone(), group.clone()));
                let is_pending = known.is_some_and(|group| group.pending().contains_key(&offset));
                if !is_pending && ended.how == Ending::Done {
                    let acknowledged = vec![(topic, group, offset)];
                    return vec![Record::Lost(LostRecord { acknowledged, ..LostRecord::default() })];
                }
                is_pending
            }
            Record::TakenOver { action, fence } => {
                if state.claim_of(*action).is_none() {
                    let next_fence = fence.saturating_add(1);
                    return vec![Record::Lost(LostRecord { next_fence, ..LostRecord::default() })];
                }
                true
            }
            Record::Completed(receipt) => {
                if let Some(key) = self.key_without_claim(receipt) {
                    let keys = LostRecord { keys: vec![key], ..LostRecord::default() };
                    return vec![record, Record::Lost(keys)];
                }
                true
            }
            Record::ClaimMoved { fence, .. } => state.claims().contains_key(fence),
            Record::Linked { ordinal, .. } => {
                *ordinal < state.next_ordinal && !self.lost.iter().any(|lost| lost.contains(ordinal))
            }
            Record::EventMoved { topic, offset, .. } => *offset < state.end(topic),
            Record::Lost(lost) if lost.log_from > state.log.size() => {
                let log_from = state.log.size();
                return vec![Record::Lost(LostRecord { log_from, ..lost.clone() })];
            }
            Record::Expired(expired) => {
                let mut topics = expired.topics.iter();
                expired.receipts_begin <= state.next_ordinal
                    && topics.all(|(topic, begin, _)| {
                        state.topics.get(topic).is_some_and(|topic| *begin <= topic.end)
                    })
            }
            Record::Published { .. }
            | Record::DeadLettered(_)
            | Record::Claimed(_)
            | Record::EntryPut { .. }
            | Record::EntryDeleted { .. }
            | Record::Sought { .. }
            | Record::Configured { .. }
            | Record::EpochClosed { .. }
            | Record::DeadLetterEnded { .. }
            | Record::Noted { .. }
            | Record::DeadLetterMoved { .. }
            | Record::Invalidated { .. }
            | Record::Lost(_) => true,
        };
        self.found.left_out += u64::from(!fits);
        if fits { vec![record] } else { Vec::new() }
    }

    /// The idempotency key of a receipt whose claim is lost: the same request must not have its effect again.
    fn key_without_claim(&self, receipt: &ReceiptRecord) -> Option<(Hash16, u64, [u8; 32])> {
        let action = schema::action_hash(receipt.action_id.as_str());
        if receipt.status != Status::Ok || receipt.key.is_none() || self.state.claim_of(action).is_some() {
            return None;
        }
        let Blob::Draft(body) = &receipt.body else {
            return None;
        };
        let Asked { idempotency_key, principal } = serde_json::from_slice(body).ok()?;
        let (space, subject) = (receipt.space_id.clone(), receipt.subject_id.clone());
        let key = schema::asked_hash(&Asker { space, subject, principal }, &idempotency_key);
        Some((key, receipt.ordinal, *receipt.params_digest.as_bytes()))
    }

    fn finish(mut self) -> Result<Salvaged, StoreError> {
        let size = self.state.log.size();
        if self.log.holds(size)? {
            self.log.begin(size)?;
            if merkle::frontier(&self.log, size)? != self.state.log {
                let what =
                    "the hashes of the log do not match its entries; run `receipts verify` on the new state";
                self.found.trouble.push(what.to_owned());
            }
        }
        self.writer.finish()?;
        Ok(self.found)
    }
}

/// Adds a range, unless it is empty or there are too many.
fn add_range(ranges: &mut Vec<(u64, u64)>, range: &Range<u64>) {
    if !range.is_empty() && ranges.len() < SALVAGE_GAPS_MAX {
        ranges.push((range.start, range.end - 1));
    }
}

/// An event in place of one whose contents are lost.
fn lost_event(topic: TopicName, offset: u64, at_ms: i64) -> Result<Record, StoreError> {
    let id = format!("{LOST_ID}{topic}:{offset}");
    let body = json!({
        "specversion": "1.0", "id": id, "source": "effectd", "type": LOST_EVENT,
        "time": timestamp(at_ms).to_string(), "datacontenttype": "application/json", "data": { "lost": true },
    });
    let event = EventRecord {
        event_id: EventId::new(id)?,
        time_ms: at_ms,
        trace_id: TraceId::new("lost")?,
        action_id: None,
        body: Payload::clear(body.to_string().into_bytes()),
    };
    Ok(Record::Published { topic, offset, event })
}

const LOST_ID: &str = "lost:";

fn is_placeholder(event: &EventRecord) -> bool {
    event.event_id.as_str().starts_with(LOST_ID)
}

/// Calls `each` for every whole block in a file, with its offset, header and length.
fn each_block(path: &Path, each: &mut dyn FnMut(u64, block::Header, usize)) -> Result<(), StoreError> {
    let file = File::open(path).map_err(|error| io_error(path, error))?;
    let mut file = BufReader::new(file);
    let (mut window, mut base) = (Vec::new(), 0_u64);
    let (mut seen, mut at) = (BTreeSet::new(), 0);
    loop {
        let wanted = (WINDOW_BYTES - window.len()) as u64;
        let read = file.by_ref().take(wanted).read_to_end(&mut window);
        let is_end = read.map_err(|error| io_error(path, error))? == 0;
        // Blocks that may reach beyond the window are found in the next.
        let until = if is_end { window.len() } else { window.len().saturating_sub(BLOCK_BYTES_MAX) };
        while let Some(found) = find(&window[at..], until - at.min(until)) {
            at += found;
            match block::whole_at(&window[at..]) {
                Some((header, len)) => {
                    if seen.insert(header.seq) {
                        each(base + at as u64, header, len);
                    }
                    // What looks like a block inside of one is somebody's data.
                    at += len;
                }
                None => at += 1,
            }
        }
        if is_end {
            return Ok(());
        }
        window.drain(..until);
        at = at.saturating_sub(until);
        base += until as u64;
    }
}

/// The first location before `until` at which a block may begin.
fn find(bytes: &[u8], until: usize) -> Option<usize> {
    let end = (until + block::MAGIC.len() - 1).min(bytes.len());
    bytes[..end].windows(block::MAGIC.len()).position(|window| window == block::MAGIC)
}
