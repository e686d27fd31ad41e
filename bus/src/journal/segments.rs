//! The journal in plain files: segments of blocks.
//!
//! A segment is named after its first block. Blocks state their own length and checksum, so a segment is just its
//! blocks; when it is full, a table of their offsets is appended and the next segment begins. So memory holds the
//! offsets of one segment only, and reading a block of any other takes two reads.
//!
//! | after the blocks of a full segment | |
//! |---|---|
//! | 4 bytes for each block, and 4 more | its offset; the end of the last one |
//! | 0..4 | `efjs` |
//! | 4 | format |
//! | 5..8 | zero |
//! | 8..16 | number of the first block |
//! | 16..20 | count of blocks |
//! | 20..24 | CRC-32 of the table and of bytes 0..20 |
//!
//! The last segment ends in zeros: it is preallocated for small blocks, since a sync of allocated bytes costs a quarter
//! of a sync that grows the file and makes the file system write its own journal first.
//!
//! A crash leaves at most one incomplete block, after the complete ones of the last segment. No caller got an acknowledgement that this
//! block is durable; the next append cuts it off before it writes. If a complete block follows an incomplete one, no crash
//! but damage is the cause, and the store does not open.

mod trailer;

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::block::{self, BlockError, HEADER_BYTES, Header};
use super::{Journal, checkpoint_files, missing};
use crate::codec::{Span, fixed};
use crate::config::{Durability, EmbeddedConfig};
use crate::error::StoreError;
use crate::failpoint;
use crate::files::{io_error, numbered, private, private_dir, remove_file, sync_dir};
use crate::limits::{SEGMENT_BYTES_LIMIT, SEGMENT_FILES_OPEN_MAX};
use trailer::FullSegment;

const EXTENSION: &str = "blocks";
/// How far a segment is preallocated at a time: some dozens of small blocks.
const PREALLOCATED_BYTES: usize = 262_144;
/// Largest block that preallocates.
const PREALLOCATING_BLOCK_BYTES_MAX: usize = 32_768;

pub(crate) fn directory(state: &Path) -> PathBuf {
    state.join("journal").join("segments")
}

pub(crate) struct SegmentJournal {
    directory: PathBuf,
    durability: Durability,
    full_at: usize,
    segments: RwLock<Segments>,
    /// Full segments that were read recently.
    open: Mutex<VecDeque<(u64, Arc<File>)>>,
    /// The block that was read last: its records are often read one after another.
    last_read: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

struct Segments {
    /// The first block that retention has not dropped.
    first: u64,
    full: VecDeque<FullSegment>,
    active: Option<ActiveSegment>,
}

/// The segment that is written to.
struct ActiveSegment {
    first: u64,
    file: Arc<File>,
    begins: Vec<u32>,
    end: u32,
    /// The file has zeros up to here; may be less than `end`.
    preallocated: u32,
    /// An incomplete block follows the last complete one. Opening does not cut it off, so that a store that fails to open
    /// keeps every byte; the next append does.
    torn: bool,
}

impl ActiveSegment {
    fn next(&self) -> u64 {
        self.first + self.begins.len() as u64
    }

    fn range(&self, seq: u64) -> Option<(u32, u32)> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let begin = *self.begins.get(index)?;
        let end = self.begins.get(index + 1).copied().unwrap_or(self.end);
        Some((begin, end))
    }
}

impl Segments {
    /// The number of the next block; `None` without a segment: the next block may have any number.
    fn next(&self) -> Option<u64> {
        let active = self.active.as_ref().map(ActiveSegment::next);
        active.or_else(|| self.full.back().map(FullSegment::next))
    }

    fn full_with(&self, seq: u64) -> Option<FullSegment> {
        let after = self.full.partition_point(|full| full.first <= seq);
        let full = *self.full.get(after.checked_sub(1)?)?;
        (seq < full.next()).then_some(full)
    }

    /// Whether a segment begins where the one before it ends.
    fn check_next(&self, first: u64) -> Result<(), StoreError> {
        match self.full.back() {
            Some(before) if before.next() != first => Err(missing(before.next())),
            // Segments are removed in order, after the checkpoint of the first remaining block is active.
            None if first > self.first => Err(missing(self.first)),
            Some(_) | None => Ok(()),
        }
    }
}

impl SegmentJournal {
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        failpoint::hit("journal.opening");
        let directory = directory(&config.state);
        private_dir(&directory)?;
        let first = checkpoint_files::first_block(&directory)?;
        let mut names = names(&directory)?;
        let mut segments = Segments { first, full: VecDeque::with_capacity(names.len()), active: None };
        let last = names.pop();
        for name in names {
            let full = trailer::read(&directory, name)?.ok_or_else(|| {
                let what = format!("the journal segment that begins with block {name} is truncated");
                StoreError::damaged(what)
            })?;
            segments.check_next(name)?;
            segments.full.push_back(full);
        }
        if let Some(name) = last {
            segments.check_next(name)?;
            match trailer::read(&directory, name)? {
                Some(full) => segments.full.push_back(full),
                None => segments.active = Some(ActiveSegment::read(&directory, name)?),
            }
        }
        sync_dir(&directory)?;
        checkpoint_files::remove_unused(&directory, first)?;
        let journal = SegmentJournal {
            directory,
            durability: config.durability,
            full_at: config.segment_bytes.min(SEGMENT_BYTES_LIMIT),
            segments: RwLock::new(segments),
            open: Mutex::default(),
            last_read: Mutex::default(),
        };
        journal.remove_segments()?;
        Ok(journal)
    }

    fn sync(&self, file: &File) -> Result<(), StoreError> {
        match self.durability {
            Durability::Synced => {
                file.sync_data().map_err(|error| io_error("the journal's sync".as_ref(), error))
            }
            Durability::Unsynced => Ok(()),
        }
    }

    /// The file and the offset for a block of this length, and how far the file is preallocated. Only the writer calls it.
    fn room(&self, seq: u64, len: usize) -> Result<(Arc<File>, u32, u32), StoreError> {
        let next = self.segments.read().next();
        if next.is_some_and(|next| next != seq) {
            let what = format!("block {seq} does not follow the last one of the journal");
            return Err(StoreError::damaged(what));
        }
        let overflows =
            |active: &ActiveSegment| !active.begins.is_empty() && active.end as usize + len > self.full_at;
        if self.segments.read().active.as_ref().is_some_and(overflows) {
            self.finish_segment()?;
        }
        if self.segments.read().active.is_none() {
            let active = ActiveSegment::create(&self.directory, seq)?;
            self.segments.write().active = Some(active);
            failpoint::hit("journal.after_begin");
        }
        let mut segments = self.segments.write();
        let active = segments.active.as_mut().ok_or_else(|| missing(seq))?;
        if active.torn {
            active.file.set_len(u64::from(active.end)).map_err(|error| io_error(&self.directory, error))?;
            active.torn = false;
        }
        Ok((active.file.clone(), active.end, active.preallocated))
    }

    /// Writes zeros after a small block that grows the file, and returns where they end. The block's sync covers them; a large
    /// block would only wait for them. A failure is ignored: a disk without room for the zeros may have room for the block.
    fn preallocate(&self, file: &File, len: usize, end: u32) -> u32 {
        let limit = self.full_at.max(end as usize);
        let to = (end as usize + PREALLOCATED_BYTES).min(limit);
        if len > PREALLOCATING_BLOCK_BYTES_MAX {
            return end;
        }
        let zeros = vec![0; to - end as usize];
        match (file.write_all_at(&zeros, u64::from(end)), u32::try_from(to)) {
            (Ok(()), Ok(to)) => to,
            (_, _) => end,
        }
    }

    /// Appends the trailer to the active segment. It is durable before the next segment has a name, so that only the
    /// last segment can lack one.
    fn finish_segment(&self) -> Result<(), StoreError> {
        let (file, full, table) = {
            let segments = self.segments.read();
            let Some(active) = &segments.active else {
                return Ok(());
            };
            let (full, table) = trailer::encode(active);
            (active.file.clone(), full, table)
        };
        // The trailer is found from the end of the file, so nothing may follow it.
        let end = full.table_at + table.len() as u64;
        file.write_all_at(&table, full.table_at)
            .and_then(|()| file.set_len(end))
            .map_err(|error| io_error(&self.directory, error))?;
        failpoint::hit("journal.after_table");
        self.sync(&file)?;
        let mut segments = self.segments.write();
        segments.full.push_back(full);
        segments.active = None;
        Ok(())
    }

    fn open_full(&self, full: FullSegment) -> Result<Arc<File>, StoreError> {
        let mut open = self.open.lock();
        if let Some((_, file)) = open.iter().find(|(first, _)| *first == full.first) {
            return Ok(file.clone());
        }
        let path = path(&self.directory, full.first);
        let file = Arc::new(File::open(&path).map_err(|error| read_failed(&path, full.first, error))?);
        open.push_back((full.first, file.clone()));
        if open.len() > SEGMENT_FILES_OPEN_MAX {
            open.pop_front();
        }
        Ok(file)
    }

    /// The file of a block, and where the block begins and ends.
    fn find(&self, seq: u64) -> Result<(Arc<File>, u32, u32), StoreError> {
        let full = {
            let segments = self.segments.read();
            if seq < segments.first {
                return Err(missing(seq));
            }
            if let Some(active) = &segments.active
                && let Some((begin, end)) = active.range(seq)
            {
                return Ok((active.file.clone(), begin, end));
            }
            segments.full_with(seq).ok_or_else(|| missing(seq))?
        };
        let file = self.open_full(full)?;
        let mut range = [0; 8];
        let at = full.table_at + (seq - full.first) * 4;
        file.read_exact_at(&mut range, at).map_err(|error| read_failed(&self.directory, seq, error))?;
        let (begin, end) = (fixed(&range, 0), fixed(&range, 4));
        Ok((file, u32::from_be_bytes(begin), u32::from_be_bytes(end)))
    }

    /// A block, which may be the one that was read last.
    fn cached(&self, seq: u64) -> Result<Arc<Vec<u8>>, StoreError> {
        let mut last_read = self.last_read.lock();
        if let Some((known, bytes)) = &*last_read
            && *known == seq
            && seq >= self.first()
        {
            return Ok(bytes.clone());
        }
        let bytes = Arc::new(self.block(seq)?);
        *last_read = Some((seq, bytes.clone()));
        Ok(bytes)
    }

    /// Removes the segments all of whose blocks were dropped.
    fn remove_segments(&self) -> Result<(), StoreError> {
        let mut removed = Vec::new();
        {
            let mut segments = self.segments.write();
            while let Some(full) = segments.full.front()
                && full.next() <= segments.first
                // The last segment stays: it has the number of the next block.
                && (segments.full.len() > 1 || segments.active.is_some())
            {
                removed.push(full.first);
                segments.full.pop_front();
            }
        }
        if removed.is_empty() {
            return Ok(());
        }
        self.open.lock().retain(|(first, _)| !removed.contains(first));
        for first in removed {
            remove_file(&path(&self.directory, first))?;
        }
        sync_dir(&self.directory)
    }
}

impl Journal for SegmentJournal {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let (file, at, preallocated) = self.room(seq, block.len())?;
        let end = u32::try_from(at as usize + block.len()).map_err(|_| StoreError::TooLarge {
            what: "block",
            size: block.len(),
            max: SEGMENT_BYTES_LIMIT,
        })?;
        file.write_all_at(block, u64::from(at)).map_err(|error| io_error(&self.directory, error))?;
        let preallocated =
            if end > preallocated { self.preallocate(&file, block.len(), end) } else { preallocated };
        failpoint::hit("journal.after_insert");
        failpoint::hit("journal.after_flush");
        self.sync(&file)?;
        let mut segments = self.segments.write();
        let active = segments.active.as_mut().ok_or_else(|| missing(seq))?;
        active.begins.push(at);
        active.end = end;
        active.preallocated = preallocated;
        Ok(())
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let segments = self.segments.read();
        let first = match (segments.full.front(), &segments.active) {
            (Some(full), _) => full.first,
            (None, Some(active)) => active.first,
            (None, None) => return Ok(None),
        };
        let first = first.max(segments.first);
        let next = segments.next().unwrap_or(first);
        Ok((first < next).then(|| (first, next - 1)))
    }

    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        let (file, begin, end) = self.find(seq)?;
        let len = end
            .checked_sub(begin)
            .filter(|len| *len as usize >= HEADER_BYTES && end as usize <= 2 * SEGMENT_BYTES_LIMIT)
            .ok_or_else(|| missing(seq))?;
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, u64::from(begin))
            .map_err(|error| read_failed(&self.directory, seq, error))?;
        let header = block::check(&bytes).map_err(|error| error.at(seq))?;
        if header.seq != seq {
            return Err(BlockError::Damaged("another block is in its place").at(seq));
        }
        Ok(bytes)
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        let block = self.cached(seq)?;
        span.of(&block).map(<[u8]>::to_vec).ok_or_else(|| missing(seq))
    }

    fn first(&self) -> u64 {
        self.segments.read().first
    }

    fn checkpoint(&self) -> Result<Option<Vec<u8>>, StoreError> {
        checkpoint_files::read(&self.directory, self.first())
    }

    fn stage(&self, seq: u64, checkpoint: &[u8]) -> Result<(), StoreError> {
        checkpoint_files::stage(&self.directory, seq, checkpoint)
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        if seq <= self.first() {
            return Ok(());
        }
        if self.segments.read().next().is_none_or(|next| seq > next) {
            return Err(missing(seq));
        }
        checkpoint_files::activate(&self.directory, seq)?;
        failpoint::hit("retain.in_force");
        self.segments.write().first = seq;
        self.remove_segments()?;
        checkpoint_files::remove_unused(&self.directory, seq)
    }
}

impl ActiveSegment {
    fn new(first: u64, file: File) -> Self {
        ActiveSegment {
            first,
            file: Arc::new(file),
            begins: Vec::new(),
            end: 0,
            preallocated: 0,
            torn: false,
        }
    }

    /// A new segment with a durable name.
    fn create(directory: &Path, first: u64) -> Result<Self, StoreError> {
        let path = path(directory, first);
        let mut options = private();
        let options = options.read(true).write(true).create_new(true);
        let file = options.open(&path).map_err(|error| io_error(&path, error))?;
        sync_dir(directory)?;
        Ok(Self::new(first, file))
    }

    /// The last segment of an earlier process: every block is checked.
    fn read(directory: &Path, first: u64) -> Result<Self, StoreError> {
        let path = path(directory, first);
        let at_path = |error: std::io::Error| io_error(&path, error);
        let file = File::options().read(true).write(true).open(&path).map_err(at_path)?;
        let len = file.metadata().map_err(at_path)?.len();
        let mut active = Self::new(first, file);
        loop {
            let at = u64::from(active.end);
            match whole_block(&active.file, at, len).map_err(at_path)? {
                Ok((header, end)) if header.seq == active.next() => {
                    active.begins.push(active.end);
                    active.end = end;
                }
                Ok((header, _)) => {
                    return Err(BlockError::Damaged("a block out of its order").at(header.seq));
                }
                Err(error @ BlockError::Newer(_)) => return Err(error.at(active.next())),
                Err(BlockError::Damaged(_)) => break,
            }
        }
        let at = u64::from(active.end);
        let mut rest = vec![0; usize::try_from(len - at).unwrap_or(0)];
        active.file.read_exact_at(&mut rest, at).map_err(at_path)?;
        if rest.iter().all(|byte| *byte == 0) {
            active.preallocated = u32::try_from(len).unwrap_or(active.end);
        } else {
            if let Some(seq) = active.later_block(&rest, len) {
                return Err(StoreError::damaged(format!(
                    "block {} is incomplete, and block {seq} follows it",
                    active.next()
                )));
            }
            tracing::warn!(
                block = active.next(),
                bytes = len - at,
                "the last block was not finished when the process ended"
            );
            active.torn = true;
        }
        // Complete blocks that a killed process had not synced are kept; this makes them durable.
        active.file.sync_all().map_err(at_path)?;
        Ok(active)
    }

    /// A complete block after an incomplete one, if there is one: then no crash caused the incomplete one.
    fn later_block(&self, rest: &[u8], len: u64) -> Option<u64> {
        let from = u64::from(self.end);
        (1..=rest.len().saturating_sub(HEADER_BYTES)).find_map(|at| {
            if !rest[at..].starts_with(block::MAGIC) {
                return None;
            }
            match whole_block(&self.file, from + at as u64, len) {
                Ok(Ok((header, _))) if header.seq > self.next() => Some(header.seq),
                Ok(_) | Err(_) => None,
            }
        })
    }
}

/// The block at this offset, if it is complete, and where it ends.
fn whole_block(file: &File, at: u64, len: u64) -> std::io::Result<Result<(Header, u32), BlockError>> {
    let torn = Ok(Err(BlockError::Damaged("a block that ends too early")));
    if at + HEADER_BYTES as u64 > len {
        return torn;
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, at)?;
    let records = u32::from_be_bytes(fixed(&header, 32));
    let end = at + HEADER_BYTES as u64 + u64::from(records);
    let (true, Ok(end)) = (end <= len, u32::try_from(end)) else {
        return torn;
    };
    let mut bytes = vec![0; HEADER_BYTES + records as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(block::check(&bytes).map(|header| (header, end)))
}

fn path(directory: &Path, first: u64) -> PathBuf {
    checkpoint_files::path(directory, first, EXTENSION)
}

/// The first blocks of all segments, in order.
fn names(directory: &Path) -> Result<Vec<u64>, StoreError> {
    numbered(directory, EXTENSION)
}

/// A file that is missing or too short is damage; other errors are the disk's.
fn read_failed(path: &Path, seq: u64, error: std::io::Error) -> StoreError {
    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) {
        missing(seq)
    } else {
        io_error(path, error)
    }
}

#[cfg(test)]
mod tests;
