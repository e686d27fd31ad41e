//! Salvage: the readable records of a damaged journal, as lines for plain tools.
//!
//! Two ways are combined. One searches the files for whole blocks, by mark and checksum; it misses blocks that sled stores
//! in several chunks. The other opens a copy of the journal and reads every block that is undamaged; a copy, since sled may
//! open a damaged file as an empty one and write to it. The damaged store is not changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::codec::Span;
use crate::config::{EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use crate::files::{io_error, list, private, private_dir, sync_dir};
use crate::journal::record::{Payload, Record};
use crate::journal::state_dir::{journal_of, lock};
use crate::journal::{self, Journal, block, segments, sled_journal};
use crate::limits::{BLOCK_BYTES_TARGET, OPERATION_BYTES_MAX, SALVAGE_GAPS_MAX};
use crate::reads::timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Salvaged {
    /// Whether the journal could still be opened.
    pub opened: bool,
    /// Why it could not be opened, or what else went wrong.
    pub trouble: Option<String>,
    pub blocks: u64,
    /// Ranges of unreadable blocks (first and last block), up to the last block that is known.
    pub missing: Vec<(u64, u64)>,
    /// The number of unreadable blocks, including those beyond [`SALVAGE_GAPS_MAX`] ranges.
    pub missing_blocks: u64,
    pub receipts: u64,
    /// Events; sealed ones without their bodies.
    pub events: u64,
    /// Dead letters, without their payloads.
    pub letters: u64,
}

/// The largest block: its last operation is as large as it may be.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES_TARGET + 2 * OPERATION_BYTES_MAX;
/// Bytes of a file that are searched for blocks at once.
const WINDOW_BYTES: usize = 4 * BLOCK_BYTES_MAX;

/// Writes the readable records into a new directory: `receipts.jsonl`, `letters.jsonl` and `<topic>.jsonl` for each topic.
pub fn salvage(config: &EmbeddedConfig, into: &Path) -> Result<Salvaged, StoreError> {
    if into.exists() {
        return Err(StoreError::Invalid(format!(
            "{} already exists; choose a new directory",
            into.display()
        )));
    }
    let _lock = lock(&config.state)?;
    private_dir(into)?;
    let mut out = Output {
        dir: into.to_owned(),
        files: BTreeMap::new(),
        found: Salvaged::default(),
        seen: None,
        letters: BTreeSet::new(),
    };
    let mut found = FoundBlocks::new();
    let kind = kind_of(&config.state);
    for path in files(&config.state, kind)? {
        each_block(&path, &mut |at, header, len| {
            found.entry(header.seq).or_insert_with(|| (path.clone(), at, len));
        })?;
    }
    let copy = Copy::of(config, kind, into)?;
    match journal::open(&copy.config) {
        Ok(journal) => {
            out.found.opened = true;
            // Blocks that retention dropped are not missing.
            out.seen = Some(journal.first() - 1);
            out.write_blocks(Some(journal.as_ref()), &found)?;
        }
        Err(error) => {
            out.found.trouble = Some(error.to_string());
            out.write_blocks(None, &found)?;
        }
    }
    drop(copy);
    out.finish()
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

struct Output {
    dir: PathBuf,
    files: BTreeMap<String, BufWriter<File>>,
    found: Salvaged,
    seen: Option<u64>,
    letters: BTreeSet<u64>,
}

impl Output {
    /// Writes the records of all blocks that can be read in one of the two ways.
    fn write_blocks(&mut self, journal: Option<&dyn Journal>, found: &FoundBlocks) -> Result<(), StoreError> {
        let bounds = match journal.map(Journal::bounds) {
            Some(Ok(bounds)) => bounds,
            Some(Err(error)) => {
                self.found.trouble = Some(error.to_string());
                None
            }
            None => None,
        };
        let opened = bounds.map_or(0..0, |(first, last)| first..last + 1);
        let mut all: BTreeSet<u64> = found.keys().copied().collect();
        all.extend(opened.clone());
        let last = all.last().copied();
        for seq in all {
            let read = journal.filter(|_| opened.contains(&seq));
            let read = read.and_then(|journal| journal.block(seq).ok());
            let read = read.filter(|bytes| block::check(bytes).is_ok_and(|header| header.seq == seq));
            let bytes = match (read, found.get(&seq)) {
                (Some(bytes), _) => bytes,
                (None, Some((path, at, len))) => {
                    let mut bytes = vec![0; *len];
                    File::open(path)
                        .and_then(|file| file.read_exact_at(&mut bytes, *at))
                        .map_err(|error| io_error(path, error))?;
                    bytes
                }
                (None, None) => continue,
            };
            self.block(&bytes)?;
        }
        if let Some((seen, last)) = self.seen.zip(last).filter(|(seen, last)| seen < last) {
            self.gap(seen + 1, last);
        }
        Ok(())
    }

    fn gap(&mut self, first: u64, last: u64) {
        self.found.missing_blocks += last - first + 1;
        if self.found.missing.len() < SALVAGE_GAPS_MAX {
            self.found.missing.push((first, last));
        }
    }

    fn block(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let Ok(header) = block::check(bytes) else {
            return Ok(());
        };
        // Blocks are counted from 1.
        let before = self.seen.unwrap_or(0);
        if header.seq > before + 1 {
            self.gap(before + 1, header.seq - 1);
        }
        self.seen = Some(header.seq);
        self.found.blocks += 1;
        for record in block::records(bytes) {
            let Ok((_, record)) = record else {
                let what = format!("the records of block {} cannot be read", header.seq);
                self.found.trouble.get_or_insert(what);
                break;
            };
            self.record(&record, bytes, header.at_ms)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, block: &[u8], at_ms: i64) -> Result<(), StoreError> {
        let stored_at = timestamp(at_ms).to_string();
        match record {
            Record::Published { topic, offset, event } | Record::EventMoved { topic, offset, event, .. } => {
                self.found.events += 1;
                let value = json!({
                    "offset": offset,
                    "event_id": event.event_id.as_str(),
                    "time": timestamp(event.time_ms).to_string(),
                    "stored_at": stored_at,
                    "trace_id": event.trace_id.as_str(),
                    "action_id": event.action_id.as_ref().map(|id| id.as_str()),
                    "sealed": event.body.epoch.is_some(),
                    "body": clear(&event.body, block),
                });
                self.line(topic.as_str(), &value)
            }
            Record::Completed(receipt) => {
                self.found.receipts += 1;
                let value = json!({
                    "ordinal": receipt.ordinal,
                    "stored_at": stored_at,
                    "receipt": text(receipt.body.span(), block),
                });
                self.line("receipts", &value)
            }
            Record::DeadLettered(letter) | Record::DeadLetterMoved { letter, .. } => {
                // A moved dead letter has two records.
                if !self.letters.insert(letter.letter) {
                    return Ok(());
                }
                self.found.letters += 1;
                let value = json!({
                    "letter": letter.letter,
                    "stored_at": stored_at,
                    "topic": letter.topic.as_str(),
                    "receipt_id": letter.receipt_id.as_ref().map(|id| id.as_str()),
                    "action_id": letter.action_id.as_ref().map(|id| id.as_str()),
                    "code": letter.code,
                    "attempts": letter.attempts,
                });
                self.line("letters", &value)
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
            | Record::ClaimMoved { .. }
            | Record::Invalidated { .. } => Ok(()),
        }
    }

    fn line(&mut self, name: &str, value: &Value) -> Result<(), StoreError> {
        // A topic may be called `receipts`, so the files of topics have a prefix.
        let name = match name {
            "receipts" | "letters" => format!("{name}.jsonl"),
            topic => format!("topic-{topic}.jsonl"),
        };
        let path = self.dir.join(&name);
        if !self.files.contains_key(&name) {
            let file = private().write(true).create_new(true).open(&path);
            let file = file.map_err(|error| io_error(&path, error))?;
            self.files.insert(name.clone(), BufWriter::new(file));
        }
        let written = self.files.get_mut(&name).map_or(Ok(()), |file| writeln!(file, "{value}"));
        written.map_err(|error| io_error(&path, error))
    }

    fn finish(self) -> Result<Salvaged, StoreError> {
        for (name, file) in self.files {
            let end = || -> std::io::Result<()> {
                let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                file.sync_all()
            };
            end().map_err(|error| io_error(&self.dir.join(name), error))?;
        }
        sync_dir(&self.dir)?;
        Ok(self.found)
    }
}

/// Calls `each` for every whole block in a file, with its offset, header and length.
fn each_block(path: &Path, each: &mut dyn FnMut(u64, block::Header, usize)) -> Result<(), StoreError> {
    let file = File::open(path).map_err(|error| io_error(path, error))?;
    let mut file = BufReader::new(file);
    let (mut window, mut base) = (Vec::new(), 0_u64);
    let mut seen = BTreeSet::new();
    loop {
        let wanted = (WINDOW_BYTES - window.len()) as u64;
        let read = file.by_ref().take(wanted).read_to_end(&mut window);
        let is_end = read.map_err(|error| io_error(path, error))? == 0;
        // Blocks that may reach beyond the window are found in the next.
        let until = if is_end { window.len() } else { window.len().saturating_sub(BLOCK_BYTES_MAX) };
        let mut at = 0;
        while let Some(found) = find(&window[at..], until - at.min(until)) {
            at += found;
            if let Some((header, len)) = block::whole_at(&window[at..])
                && seen.insert(header.seq)
            {
                each(base + at as u64, header, len);
            }
            at += 1;
        }
        if is_end {
            return Ok(());
        }
        window.drain(..until);
        base += until as u64;
    }
}

/// The first location before `until` at which a block may begin.
fn find(bytes: &[u8], until: usize) -> Option<usize> {
    let end = (until + block::MAGIC.len() - 1).min(bytes.len());
    bytes[..end].windows(block::MAGIC.len()).position(|window| window == block::MAGIC)
}

/// A body in clear; null for a sealed one.
fn clear(payload: &Payload, block: &[u8]) -> Value {
    match payload.epoch {
        Some(_) => Value::Null,
        None => text(payload.blob.span(), block),
    }
}

/// Bytes as JSON or, if they are none, as a string.
fn text(span: Span, block: &[u8]) -> Value {
    let bytes = span.of(block).unwrap_or_default();
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned()))
}
