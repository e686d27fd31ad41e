//! Salvage: a new store of what is readable in a damaged one.
//!
//! Two ways of reading are combined. One searches the files for whole blocks, by mark and checksum; it misses blocks that sled
//! stores in several chunks. The other opens a copy of the journal and reads every block that is undamaged; a copy, since sled may
//! open a damaged file as an empty one and write to it. The damaged store is not changed. Every block is read twice: backwards, to
//! learn which numbers follow each gap, and forwards, to write it.
//!
//! The new journal has the same blocks under the same numbers. In place of each lost block stands one that says what is known about
//! it, so that everything after it keeps its number: offsets, receipts, entries of the Merkle log (whose hashes have files of their
//! own), leases, fences and dead letters. A lost event is a placeholder of the type [`LOST_EVENT`]. Later records that only make sense
//! after a lost one are replaced by what is still true of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::{Digest, EventId, IdempotencyKey, Monotonic, Principal, Status, TraceId, merkle};
use serde::Deserialize;
use serde_json::json;

use super::journal_copy::JournalWriter;
use crate::codec::{Hash16, Location, Malformed};
use crate::config::{EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use crate::files::{io_error, list, private_dir, remove_dir, sync_tree};
use crate::index::{applied_in, schema};
use crate::journal::block::{self, Builder};
use crate::journal::record::{Blob, Ending, EventRecord, LostRecord, Payload, ReceiptRecord, Record};
use crate::journal::state_dir::{journal_of, lock};
use crate::journal::{self, Journal, checkpoint_files};
use crate::limits::{BLOCK_BYTES_TARGET, LOST_IN_BLOCK_MAX, OPERATION_BYTES_MAX, SALVAGE_GAPS_MAX};
use crate::merkle_log::{MerkleLog, leaf_of};
use crate::names::TopicName;
use crate::progress::Progress;
use crate::reads::timestamp;
use crate::state::checkpoint::Checkpoint;
use crate::state::groups::Group;
use crate::state::replay::JournalTip;
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
const LOST_ID: &str = "lost:";

/// Writes the journal of a new store, in files, and the hashes of its Merkle log, into a state directory that has no store. Its index
/// must be rebuilt.
pub fn salvage(config: &EmbeddedConfig, into: &Path) -> Result<Salvaged, StoreError> {
    if into.join("journal").exists() {
        let what = format!("{} has a store already; choose a new directory", into.display());
        return Err(StoreError::Invalid(what));
    }
    let _lock = lock(&config.state)?;
    private_dir(into)?;
    if config.state.join("log").is_dir() {
        copy_dir(&config.state.join("log"), &into.join("log"))?;
        // Hashes of blocks that retention dropped follow from nothing else.
        sync_tree(&into.join("log"))?;
    }
    let copy = into.join("copy");
    let readable = Readable::open(config, &copy)?;
    let (known, numbers) = Numbers::known(config).unwrap_or_default();
    let (first, end) = (readable.first, readable.first.max(readable.last.max(known) + 1));
    let gaps = readable.gaps(end, numbers, &config.progress);
    let mut rebuilt = Rebuilt::new(into, &readable)?;
    let mut next = first;
    for (lost, numbers) in gaps.into_iter().rev().chain([(end..end, Numbers::default())]) {
        for seq in next..lost.start {
            config.progress.at("writing readable blocks", seq + 1 - first, end - first);
            rebuilt.block(seq, readable.block(seq).ok_or_else(|| journal::missing(seq))?)?;
        }
        next = lost.end;
        rebuilt.gap(lost, &numbers)?;
    }
    drop(readable);
    remove_dir(&copy)?;
    rebuilt.finish(first)
}

/// Copies a directory; returns the files that were copied.
fn copy_dir(from: &Path, to: &Path) -> Result<Vec<PathBuf>, StoreError> {
    private_dir(to)?;
    let mut files = Vec::new();
    for path in list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            files.extend(copy_dir(&path, &target)?);
        } else {
            std::fs::copy(&path, &target).map_err(|error| io_error(&path, error))?;
            files.push(path);
        }
    }
    Ok(files)
}

/// Whole blocks in the files: path, offset and length.
type FoundBlocks = BTreeMap<u64, (PathBuf, u64, usize)>;

/// Searches a file for whole blocks.
fn search(path: &Path, found: &mut FoundBlocks) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let (mut window, mut base, mut at) = (Vec::new(), 0_u64, 0);
    loop {
        let wanted = (WINDOW_BYTES - window.len()) as u64;
        let is_end = file.by_ref().take(wanted).read_to_end(&mut window)? == 0;
        // Blocks that may reach beyond the window are found in the next.
        let until = if is_end { window.len() } else { window.len().saturating_sub(BLOCK_BYTES_MAX) };
        while at < until {
            let Some((header, len)) = block::whole_at(&window[at..]) else {
                at += 1;
                continue;
            };
            found.entry(header.seq).or_insert_with(|| (path.to_owned(), base + at as u64, len));
            // What looks like a block inside of one is somebody's data.
            at += len;
        }
        if is_end {
            return Ok(());
        }
        window.drain(..until);
        at -= until;
        base += until as u64;
    }
}

/// The time of a block, its records, and its bytes, in which their blobs stand.
type Block = (i64, Vec<Record>, Vec<u8>);

/// A block whose records can all be read.
fn whole(seq: u64, bytes: Vec<u8>) -> Option<Block> {
    let header = block::check_next(&bytes, seq, None).ok()?;
    let records: Result<_, Malformed> = block::records(&bytes).map(|record| Ok(record?.1)).collect();
    Some((header.at_ms, records.ok()?, bytes))
}

/// The blocks that can be read in one of the two ways.
struct Readable {
    /// The first block that retention has not dropped.
    first: u64,
    /// The last block that is found; 0 if there is none.
    last: u64,
    /// The checkpoint before the first block. Nothing after it makes sense without it.
    checkpoint: Option<Vec<u8>>,
    /// The opened copy, or why it cannot be opened.
    journal: Result<Arc<dyn Journal>, StoreError>,
    found: FoundBlocks,
}

impl Readable {
    fn open(config: &EmbeddedConfig, copy: &Path) -> Result<Self, StoreError> {
        let mut found = FoundBlocks::new();
        for path in copy_dir(&config.state.join("journal"), &copy.join("journal"))? {
            search(&path, &mut found).map_err(|error| io_error(&path, error))?;
        }
        // If the format file is unreadable, the directory says which kind it is.
        let there = JournalKind::ALL.into_iter().find(|kind| journal::directory(*kind, copy).exists());
        let kind = journal_of(copy).ok().or(there).unwrap_or_default();
        let copy = EmbeddedConfig { state: copy.to_owned(), journal: kind, ..config.clone() };
        let opened = journal::open(&copy).and_then(|journal| Ok((journal.bounds()?, journal)));
        let (bounds, journal) = match opened {
            Ok((bounds, journal)) => (bounds, Ok(journal)),
            Err(error) => (None, Err(error)),
        };
        let last = found.last_key_value().map(|(seq, _)| *seq).max(bounds.map(|(_, last)| last));
        let directory = journal::directory(kind, &copy.state);
        let first = checkpoint_files::first_block(&directory)?;
        let checkpoint = checkpoint_files::read(&directory, first)?;
        Ok(Readable { first, last: last.unwrap_or(0), checkpoint, journal, found })
    }

    fn block(&self, seq: u64) -> Option<Block> {
        let read = self.journal.as_ref().ok().and_then(|journal| journal.block(seq).ok());
        read.and_then(|bytes| whole(seq, bytes)).or_else(|| {
            let (path, at, len) = self.found.get(&seq)?;
            let mut bytes = vec![0; *len];
            File::open(path).and_then(|file| file.read_exact_at(&mut bytes, *at)).ok()?;
            whole(seq, bytes)
        })
    }

    /// The gaps before block `end`, the last one first, each with the numbers after it; `next` are those after `end`.
    fn gaps(&self, end: u64, mut next: Numbers, progress: &Progress) -> Vec<(Range<u64>, Numbers)> {
        let mut gaps: Vec<(Range<u64>, Numbers)> = Vec::new();
        for seq in (self.first..end).rev() {
            progress.at("searching for readable blocks", end - seq, end - self.first);
            if let Some(block) = self.block(seq) {
                next.precede(&block);
            } else if let Some((lost, _)) = gaps.last_mut().filter(|(lost, _)| lost.start == seq + 1) {
                lost.start = seq;
            } else {
                gaps.push((seq..seq + 1, next.clone()));
            }
        }
        gaps
    }
}

/// The next number of each sort at least: the first that stands in a later block or, if none does, what the index knows.
#[derive(Debug, Clone, Default)]
struct Numbers {
    /// Of receipts, fences, leases, dead letters and entries of the Merkle log.
    next: LostRecord,
    /// The next leaf of the Merkle log, which says more than its index.
    leaf: Option<Digest>,
    /// The next offset of each topic.
    topics: BTreeMap<TopicName, u64>,
}

impl Numbers {
    /// The last block that the index holds, and the numbers after it; `None` if the index cannot be read.
    fn known(config: &EmbeddedConfig) -> Option<(u64, Self)> {
        let applied = applied_in(&config.state.join("index")).ok()??;
        let (seq, state) = State::restore(&applied.snapshot, when(0)).ok()?;
        let next = LostRecord {
            next_ordinal: state.next_ordinal,
            next_fence: state.next_fence,
            next_lease: state.next_lease,
            next_letter: state.next_letter,
            log_from: state.log.size(),
            ..LostRecord::default()
        };
        let topics = state.topics.into_iter().map(|(name, topic)| (name, topic.end)).collect();
        Some((seq, Numbers { next, leaf: None, topics }))
    }

    /// Takes the numbers of the block before.
    fn precede(&mut self, (_, records, bytes): &Block) {
        let next = &mut self.next;
        for record in records.iter().rev() {
            if let Record::Published { topic, offset, .. } = record {
                self.topics.insert(topic.clone(), *offset);
            } else if let Record::Leased(leased) = record {
                next.next_lease = leased.grants.first().map_or(next.next_lease, |(_, lease)| *lease);
                for (offset, _) in &leased.grants {
                    delivered(&mut self.topics, &leased.topic, *offset);
                }
            } else if let Record::Acknowledged(ended) = record {
                delivered(&mut self.topics, &ended.topic, ended.offset);
            } else if let Record::DeadLettered(letter) = record {
                next.next_letter = letter.letter;
            } else if let Record::Claimed(claim) = record {
                next.next_fence = claim.fence;
            } else if let Record::TakenOver { fence, .. } = record {
                next.next_fence = *fence;
            } else if let Record::Completed(receipt) = record {
                next.next_ordinal = receipt.ordinal;
            } else if let Record::Lost(lost) = record
                && !lost.leaves.is_empty()
            {
                (self.leaf, next.log_from) = (None, lost.log_from);
            }
        }
        self.leaf = records.iter().find_map(|record| leaf_of(record, bytes)).or(self.leaf);
    }
}

/// An event was delivered, so it was published: that may be readable where the event is not.
fn delivered(topics: &mut BTreeMap<TopicName, u64>, topic: &TopicName, offset: u64) {
    let end = topics.entry(topic.clone()).or_default();
    *end = (*end).max(offset.saturating_add(1));
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
    tip: JournalTip,
    log: MerkleLog,
    writer: JournalWriter,
    /// Ordinals of lost receipts.
    lost: Vec<Range<u64>>,
    letters: BTreeSet<u64>,
    found: Salvaged,
}

impl Rebuilt {
    fn new(into: &Path, readable: &Readable) -> Result<Self, StoreError> {
        let Readable { first, checkpoint, journal, .. } = readable;
        let mut writer = JournalWriter::in_files(into)?;
        writer.write(&journal::head(*first, checkpoint.as_deref().unwrap_or_default()))?;
        let checkpoint = checkpoint.as_deref().map(|bytes| Checkpoint::read(bytes, *first));
        let (tip, _) = JournalTip::after(checkpoint.transpose()?, when(0))?;
        let trouble = journal.as_ref().err().map(ToString::to_string).into_iter().collect();
        let found = Salvaged { opened: journal.is_ok(), trouble, ..Salvaged::default() };
        let log = MerkleLog::open(&into.join("log"))?;
        Ok(Self { tip, log, writer, lost: Vec::new(), letters: BTreeSet::new(), found })
    }

    /// Writes blocks in place of lost ones.
    fn gap(&mut self, blocks: Range<u64>, numbers: &Numbers) -> Result<(), StoreError> {
        let leaves = self.lost_leaves(numbers)?;
        let (state, at_ms) = (&self.tip.state, self.tip.at_ms.max(0));
        let receipts = state.next_ordinal..numbers.next.next_ordinal.max(state.next_ordinal);
        let topics = numbers.topics.iter().map(|(topic, end)| (topic, state.end(topic)..*end));
        let events: Vec<_> = topics.filter(|(_, lost)| !lost.is_empty()).collect();
        let event_count =
            events.iter().fold(0, |sum: u64, (_, lost)| sum.saturating_add(lost.end - lost.start));
        let most = event_count.max(receipts.end - receipts.start).max(leaves.len() as u64);
        if most > (blocks.end - blocks.start).saturating_mul(LOST_IN_BLOCK_MAX as u64) {
            let what = format!("block {} has numbers that cannot follow the blocks before it", blocks.end);
            return Err(StoreError::damaged(what));
        }
        let found = &mut self.found;
        found.missing_blocks += blocks.end - blocks.start;
        add_range(&mut found.missing, &blocks);
        found.receipts_lost += receipts.end - receipts.start;
        let log_from = state.log.size();
        add_range(&mut found.log_lost, &(log_from..log_from + leaves.len() as u64));
        for (topic, lost) in &events {
            add_range(found.events_lost.entry(topic.to_string()).or_default(), lost);
        }
        self.lost.push(receipts.clone());
        let mut events = events.into_iter().flat_map(|(topic, lost)| lost.map(move |offset| (topic, offset)));
        let mut leaves = leaves.chunks(LOST_IN_BLOCK_MAX);
        for seq in blocks {
            let state = &self.tip.state;
            let mut records = vec![Record::Lost(LostRecord {
                next_ordinal: receipts.end.min(state.next_ordinal + LOST_IN_BLOCK_MAX as u64),
                log_from: state.log.size(),
                leaves: leaves.next().unwrap_or_default().iter().map(|leaf| *leaf.as_bytes()).collect(),
                ..numbers.next.clone()
            })];
            for (topic, offset) in events.by_ref().take(LOST_IN_BLOCK_MAX) {
                records.push(lost_event(topic.clone(), offset, at_ms)?);
            }
            self.write(seq, at_ms, records)?;
        }
        Ok(())
    }

    /// The leaves of lost log entries.
    fn lost_leaves(&mut self, numbers: &Numbers) -> Result<Vec<Digest>, StoreError> {
        let (size, end) = (self.tip.state.log.size(), numbers.next.log_from);
        let found = match numbers.leaf {
            Some(next) => self.log.leaves_until(size, |_, leaf| *leaf == next)?,
            None if end <= size => return Ok(Vec::new()),
            None => self.log.leaves_until(size, |index, _| index == end)?,
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
    fn block(&mut self, seq: u64, (at_ms, records, bytes): Block) -> Result<(), StoreError> {
        self.found.blocks += 1;
        let records = records.into_iter().map(|record| record.detached(&bytes)).collect();
        self.write(seq, at_ms.max(self.tip.at_ms), records)
    }

    fn write(&mut self, seq: u64, at_ms: i64, records: Vec<Record>) -> Result<(), StoreError> {
        let mut builder = Builder::new(seq, self.tip.checksum, at_ms);
        let mut changes = BlockChanges::default();
        for record in records {
            let fitting = self.fitting(record);
            self.found.left_out += u64::from(fitting.is_empty());
            for mut record in fitting {
                self.count(&record);
                let location = Location { seq, span: builder.push(&mut record) };
                let derived = Derived::of(&record, builder.bytes());
                let applied = self.tip.state.apply(location, &record, derived, when(at_ms), &mut changes);
                applied.map_err(|Malformed(what)| {
                    StoreError::damaged(format!(
                        "block {seq} does not fit the readable ones before it: {what}"
                    ))
                })?;
            }
        }
        self.tip.state.end_block(seq, at_ms, &mut changes);
        let (bytes, checksum) = builder.finish();
        (self.tip.seq, self.tip.checksum, self.tip.at_ms) = (seq, checksum, at_ms);
        self.writer.write(&bytes)
    }

    fn count(&mut self, record: &Record) {
        if let Record::Published { event, .. } = record {
            self.found.events += u64::from(!event.event_id.as_str().starts_with(LOST_ID));
        } else if let Record::Completed(_) = record {
            self.found.receipts += 1;
        } else if let Record::DeadLettered(letter) | Record::DeadLetterMoved { letter, .. } = record {
            // A moved dead letter has two records.
            self.found.letters += u64::from(self.letters.insert(letter.letter));
        }
    }

    /// The record or, if it contradicts the state without a lost one, what is still true of it, which may be nothing.
    fn fitting(&self, record: Record) -> Vec<Record> {
        if self.found.missing_blocks == 0 {
            return vec![record];
        }
        let state = &self.tip.state;
        let fits = if let Record::Leased(leased) = &record {
            let (topic, group) = (leased.topic.clone(), leased.group.clone());
            let known = state.groups.get(&(topic.clone(), group.clone()));
            let committed = known.map_or_else(|| state.begin(&topic), Group::committed);
            let first = leased.grants.iter().map(|(offset, _)| *offset).min();
            if let Some(offset) = first.filter(|first| *first < committed) {
                // Only a group that was moved back leases what it had acknowledged.
                return vec![Record::Sought { topic, group, offset }, record];
            }
            true
        } else if let Record::Acknowledged(ended) = &record {
            let (topic, group, offset) = (ended.topic.clone(), ended.group.clone(), ended.offset);
            let known = state.groups.get(&(topic.clone(), group.clone()));
            let is_pending = known.is_some_and(|group| group.pending().contains_key(&offset));
            if !is_pending && ended.how == Ending::Done {
                let acknowledged = vec![(topic, group, offset)];
                return vec![Record::Lost(LostRecord { acknowledged, ..LostRecord::default() })];
            }
            is_pending
        } else if let Record::TakenOver { action, fence } = &record
            && state.claim_of(*action).is_none()
        {
            let next_fence = fence.saturating_add(1);
            return vec![Record::Lost(LostRecord { next_fence, ..LostRecord::default() })];
        } else if let Record::Completed(receipt) = &record
            && let Some(key) = self.key_without_claim(receipt)
        {
            let keys = LostRecord { keys: vec![key], ..LostRecord::default() };
            return vec![record, Record::Lost(keys)];
        } else if let Record::Lost(lost) = &record
            && lost.log_from > state.log.size()
        {
            return vec![Record::Lost(LostRecord { log_from: state.log.size(), ..lost.clone() })];
        } else if let Record::ClaimMoved { fence, .. } = &record {
            state.claims().contains_key(fence)
        } else if let Record::Linked { ordinal, .. } = &record {
            *ordinal < state.next_ordinal && !self.lost.iter().any(|lost| lost.contains(ordinal))
        } else if let Record::EventMoved { topic, offset, .. } = &record {
            *offset < state.end(topic)
        } else if let Record::Expired(expired) = &record {
            let mut topics = expired.topics.iter();
            expired.receipts_begin <= state.next_ordinal
                && topics
                    .all(|(name, begin, _)| state.topics.get(name).is_some_and(|topic| *begin <= topic.end))
        } else {
            true
        };
        if fits { vec![record] } else { Vec::new() }
    }

    /// The idempotency key of a receipt whose claim is lost: the same request must not have its effect again.
    fn key_without_claim(&self, receipt: &ReceiptRecord) -> Option<(Hash16, u64, [u8; 32])> {
        let action = schema::action_hash(receipt.action_id.as_str());
        if receipt.status != Status::Ok || receipt.key.is_none() || self.tip.state.claim_of(action).is_some()
        {
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

    /// Finishes a journal that begins with block `first`.
    fn finish(mut self, first: u64) -> Result<Salvaged, StoreError> {
        let size = self.tip.state.log.size();
        if self.log.holds(size)? {
            self.log.begin(size)?;
            if merkle::frontier(&self.log, size)? != self.tip.state.log {
                let what =
                    "the hashes of the log do not match its entries; run `receipts verify` on the new state";
                self.found.trouble.push(what.to_owned());
            }
        }
        if first > 1 && self.found.missing_blocks > 0 {
            let what = "a lost block may have held dead letters, settings, open actions and events that retention had copied into \
                        it: which of them are lost is not known";
            self.found.trouble.push(what.to_owned());
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
