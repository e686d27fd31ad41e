//! Blocks in plain files, one after another.
//!
//! A file is named after the first block in it. Blocks say themselves how long they are and whether they are whole, so a
//! file is nothing but its blocks, until it is full: then a table of where each block begins is put behind them, and the
//! next file is begun. So memory holds the places of the blocks of one file only, and a block of any other is two reads.
//!
//! | behind the blocks of a full file | |
//! |---|---|
//! | 4 bytes for each block, and 4 more | where it begins, and where the last one ends |
//! | 0..4 | `efjs` |
//! | 4 | format |
//! | 5..8 | zero |
//! | 8..16 | number of the first block |
//! | 16..20 | count of blocks |
//! | 20..24 | CRC-32 of the table and of bytes 0..20 |
//!
//! Behind the blocks of the last file lie zeros: it is paved ahead for small blocks, since a sync of bytes that lay in the file
//! before costs a quarter of one that makes the file longer, for which the file system has to write its own journal first.
//!
//! A crash leaves at most one unfinished block, behind the whole ones of the last file. It was answered to nobody and is cut off
//! before the next one is written. A block that does not check with another one behind it is damage.

mod table;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Durability, EmbeddedConfig, grounds};
use crate::block::{self, BlockError, HEADER_BYTES, Header};
use crate::codec::Span;
use crate::engine::recover::damaged;
use crate::error::StoreError;
use crate::failpoint;
use crate::journal::{ADVICE, Journal, missing};
use crate::limits::{SEGMENT_BYTES_LIMIT, SEGMENT_FILES_OPEN_MAX};
use crate::vault::keyring::{failed, private_dir, sync_dir};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use table::{Full, read_trailer};

const ENDING: &str = "blocks";

/// How far a file is paved at a time: some dozens of small blocks.
pub(super) const PAVED_BYTES: usize = 262_144;
/// Largest block behind which there is paving.
const PAVED_BLOCK_BYTES_MAX: usize = 32_768;

pub(super) fn directory(state: &Path) -> PathBuf {
    state.join("journal").join("segments")
}

pub(crate) struct SegmentJournal {
    directory: PathBuf,
    durability: Durability,
    full_at: usize,
    files: RwLock<Files>,
    /// Full files that were read of late.
    open: Mutex<VecDeque<(u64, Arc<File>)>>,
    /// The block that was read last: its records are often read one after another.
    last_read: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

struct Files {
    /// The first block that counts.
    first: u64,
    full: VecDeque<Full>,
    growing: Option<Growing>,
}

/// The file that is written to.
struct Growing {
    first: u64,
    file: Arc<File>,
    begins: Vec<u32>,
    end: u32,
    /// So far there are zeros behind the last block. It may be less than the end.
    paved: u32,
    /// An unfinished block lies behind the last whole one, and is cut off before the next is written: not sooner, so that
    /// a store which does not open keeps every byte.
    torn: bool,
}

impl Growing {
    fn next(&self) -> u64 {
        self.first + self.begins.len() as u64
    }

    fn place(&self, seq: u64) -> Option<(u32, u32)> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let begin = *self.begins.get(index)?;
        let end = self.begins.get(index + 1).copied().unwrap_or(self.end);
        Some((begin, end))
    }
}

impl Files {
    /// The number that the next block has; `None` if any will do, since there is no file.
    fn next(&self) -> Option<u64> {
        let growing = self.growing.as_ref().map(Growing::next);
        growing.or_else(|| self.full.back().map(Full::next))
    }

    fn full_with(&self, seq: u64) -> Option<Full> {
        let after = self.full.partition_point(|full| full.first <= seq);
        let full = *self.full.get(after.checked_sub(1)?)?;
        (seq < full.next()).then_some(full)
    }
}

impl SegmentJournal {
    pub(crate) fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        failpoint::hit("journal.opening");
        let directory = directory(&config.state);
        private_dir(&directory)?;
        let first = grounds::in_force(&directory)?.unwrap_or(1);
        let mut names = names(&directory)?;
        let mut files = Files {
            first,
            full: VecDeque::with_capacity(names.len()),
            growing: None,
        };
        let last = names.pop();
        for name in names {
            let full = read_trailer(&directory, name)?.ok_or_else(|| unfinished(name))?;
            follow(&files, name)?;
            files.full.push_back(full);
        }
        if let Some(name) = last {
            follow(&files, name)?;
            match read_trailer(&directory, name)? {
                Some(full) => files.full.push_back(full),
                None => files.growing = Some(Growing::read(&directory, name)?),
            }
        }
        sync_dir(&directory)?;
        grounds::tidy(&directory, first)?;
        let journal = SegmentJournal {
            directory,
            durability: config.durability,
            full_at: config.segment_bytes.min(SEGMENT_BYTES_LIMIT),
            files: RwLock::new(files),
            open: Mutex::default(),
            last_read: Mutex::default(),
        };
        journal.drop_files()?;
        Ok(journal)
    }

    fn files(&self) -> RwLockReadGuard<'_, Files> {
        self.files.read()
    }

    fn files_mut(&self) -> RwLockWriteGuard<'_, Files> {
        self.files.write()
    }

    fn sync(&self, file: &File) -> Result<(), StoreError> {
        match self.durability {
            Durability::Synced => file
                .sync_data()
                .map_err(|error| failed("the journal's sync".as_ref(), &error)),
            Durability::Unsynced => Ok(()),
        }
    }

    /// The file, the place in it that a block of this length goes to, and how far it is paved. Only the writer comes here.
    fn room(&self, seq: u64, len: usize) -> Result<(Arc<File>, u32, u32), StoreError> {
        let next = self.files().next();
        if next.is_some_and(|next| next != seq) {
            return Err(StoreError::Damaged {
                what: format!("block {seq} does not follow the last one of the journal"),
                advice: ADVICE,
            });
        }
        let full =
            self.files().growing.as_ref().is_some_and(|growing| {
                !growing.begins.is_empty() && growing.end as usize + len > self.full_at
            });
        if full {
            self.finish_file()?;
        }
        if self.files().growing.is_none() {
            let growing = Growing::begin(&self.directory, seq)?;
            self.files_mut().growing = Some(growing);
            failpoint::hit("journal.after_begin");
        }
        let mut files = self.files_mut();
        let growing = files.growing.as_mut().ok_or_else(|| missing(seq))?;
        if growing.torn {
            growing
                .file
                .set_len(u64::from(growing.end))
                .map_err(|error| failed(&self.directory, &error))?;
            growing.torn = false;
        }
        Ok((growing.file.clone(), growing.end, growing.paved))
    }

    /// Puts zeros behind a small block that makes the file longer, for those that follow it; how far. They are synced with the
    /// block. Many large blocks would only wait for them. A disk without room for zeros may have some for the block.
    fn pave(&self, file: &File, len: usize, end: u32) -> u32 {
        let limit = self.full_at.max(end as usize);
        let to = (end as usize + PAVED_BYTES).min(limit);
        if len > PAVED_BLOCK_BYTES_MAX {
            return end;
        }
        let zeros = vec![0; to - end as usize];
        match (file.write_all_at(&zeros, u64::from(end)), u32::try_from(to)) {
            (Ok(()), Ok(to)) => to,
            (_, _) => end,
        }
    }

    /// Puts the table behind the blocks of the file that is full. It is durable before the next file has a name, so that
    /// only the last file can be without one.
    fn finish_file(&self) -> Result<(), StoreError> {
        let (file, full, table) = {
            let files = self.files();
            let Some(growing) = &files.growing else {
                return Ok(());
            };
            let (full, table) = table::table(growing);
            (growing.file.clone(), full, table)
        };
        // The trailer is found by the file's end, so nothing may lie behind it.
        let end = full.table_at + table.len() as u64;
        file.write_all_at(&table, full.table_at)
            .and_then(|()| file.set_len(end))
            .map_err(|error| failed(&self.directory, &error))?;
        failpoint::hit("journal.after_table");
        self.sync(&file)?;
        let mut files = self.files_mut();
        files.full.push_back(full);
        files.growing = None;
        Ok(())
    }

    fn reader(&self, full: Full) -> Result<Arc<File>, StoreError> {
        let mut open = self.open.lock();
        if let Some((_, file)) = open.iter().find(|(first, _)| *first == full.first) {
            return Ok(file.clone());
        }
        let path = path(&self.directory, full.first);
        let file = Arc::new(File::open(&path).map_err(|error| read_failed(&path, full.first, &error))?);
        open.push_back((full.first, file.clone()));
        if open.len() > SEGMENT_FILES_OPEN_MAX {
            open.pop_front();
        }
        Ok(file)
    }

    fn find(&self, seq: u64) -> Result<(Arc<File>, u32, u32), StoreError> {
        let full = {
            let files = self.files();
            if seq < files.first {
                return Err(missing(seq));
            }
            if let Some(growing) = &files.growing
                && let Some((begin, end)) = growing.place(seq)
            {
                return Ok((growing.file.clone(), begin, end));
            }
            files.full_with(seq).ok_or_else(|| missing(seq))?
        };
        let file = self.reader(full)?;
        let mut places = [0; 8];
        let at = full.table_at + (seq - full.first) * 4;
        file.read_exact_at(&mut places, at)
            .map_err(|error| read_failed(&self.directory, seq, &error))?;
        let [b0, b1, b2, b3, e0, e1, e2, e3] = places;
        Ok((
            file,
            u32::from_be_bytes([b0, b1, b2, b3]),
            u32::from_be_bytes([e0, e1, e2, e3]),
        ))
    }

    fn checked(&self, seq: u64) -> Result<Arc<Vec<u8>>, StoreError> {
        let mut last_read = self.last_read.lock();
        if let Some((known, bytes)) = &*last_read
            && *known == seq
            && seq >= self.files().first
        {
            return Ok(bytes.clone());
        }
        let bytes = Arc::new(self.block(seq)?);
        *last_read = Some((seq, bytes.clone()));
        Ok(bytes)
    }

    /// Removes the files that have no block left that counts.
    fn drop_files(&self) -> Result<(), StoreError> {
        let mut gone = Vec::new();
        {
            let mut files = self.files_mut();
            while let Some(full) = files.full.front()
                && full.next() <= files.first
                // The last file stays: it says which number is next.
                && (files.full.len() > 1 || files.growing.is_some())
            {
                gone.push(full.first);
                files.full.pop_front();
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let mut open = self.open.lock();
        open.retain(|(first, _)| !gone.contains(first));
        drop(open);
        for first in gone {
            let path = path(&self.directory, first);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&path, &error)),
                Ok(()) | Err(_) => {}
            }
        }
        sync_dir(&self.directory)
    }
}

impl Journal for SegmentJournal {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let (file, at, paved) = self.room(seq, block.len())?;
        let end = u32::try_from(at as usize + block.len()).map_err(|_| StoreError::TooLarge {
            what: "block",
            size: block.len(),
            max: SEGMENT_BYTES_LIMIT,
        })?;
        file.write_all_at(block, u64::from(at))
            .map_err(|error| failed(&self.directory, &error))?;
        let paved = if end > paved {
            self.pave(&file, block.len(), end)
        } else {
            paved
        };
        failpoint::hit("journal.after_insert");
        failpoint::hit("journal.after_flush");
        self.sync(&file)?;
        let mut files = self.files_mut();
        let growing = files.growing.as_mut().ok_or_else(|| missing(seq))?;
        growing.begins.push(at);
        growing.end = end;
        growing.paved = paved;
        Ok(())
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let files = self.files();
        let first = match (files.full.front(), &files.growing) {
            (Some(full), _) => full.first,
            (None, Some(growing)) => growing.first,
            (None, None) => return Ok(None),
        };
        let first = first.max(files.first);
        let next = files.next().unwrap_or(first);
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
            .map_err(|error| read_failed(&self.directory, seq, &error))?;
        let header = block::check(&bytes).map_err(|error| damaged(seq, &error))?;
        if header.seq != seq {
            return Err(damaged(
                seq,
                &BlockError::Damaged("another block lies in its place"),
            ));
        }
        Ok(bytes)
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        let block = self.checked(seq)?;
        let range = span.at as usize..span.at as usize + span.len as usize;
        block.get(range).map(<[u8]>::to_vec).ok_or_else(|| missing(seq))
    }

    fn first(&self) -> u64 {
        self.files().first
    }

    fn ground(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let first = self.first();
        (first > 1)
            .then(|| grounds::read(&self.directory, first))
            .transpose()
    }

    fn stage(&self, seq: u64, ground: &[u8]) -> Result<(), StoreError> {
        grounds::stage(&self.directory, seq, ground)
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        if seq <= self.first() {
            return Ok(());
        }
        if self.files().next().is_none_or(|next| seq > next) {
            return Err(missing(seq));
        }
        grounds::put_in_force(&self.directory, seq)?;
        failpoint::hit("retain.in_force");
        self.files_mut().first = seq;
        self.drop_files()?;
        grounds::tidy(&self.directory, seq)
    }
}

impl Growing {
    /// A new file, whose name is durable.
    fn begin(directory: &Path, first: u64) -> Result<Self, StoreError> {
        let path = path(directory, first);
        let file = options()
            .create_new(true)
            .open(&path)
            .map_err(|error| failed(&path, &error))?;
        sync_dir(directory)?;
        Ok(Growing {
            first,
            file: Arc::new(file),
            begins: Vec::new(),
            end: 0,
            paved: 0,
            torn: false,
        })
    }

    /// The last file, as a crash or a stop left it: every block is checked.
    fn read(directory: &Path, first: u64) -> Result<Self, StoreError> {
        let path = path(directory, first);
        let at_path = |error: std::io::Error| failed(&path, &error);
        let file = options().open(&path).map_err(at_path)?;
        let len = file.metadata().map_err(at_path)?.len();
        let mut growing = Growing {
            first,
            file: Arc::new(file),
            begins: Vec::new(),
            end: 0,
            paved: 0,
            torn: false,
        };
        loop {
            let at = u64::from(growing.end);
            match whole_block(&growing.file, at, len).map_err(at_path)? {
                Ok((header, end)) if header.seq == growing.next() => {
                    growing.begins.push(growing.end);
                    growing.end = end;
                }
                Ok((header, _)) => {
                    return Err(damaged(
                        header.seq,
                        &BlockError::Damaged("a block out of its order"),
                    ));
                }
                Err(error @ BlockError::Newer(_)) => return Err(damaged(growing.next(), &error)),
                Err(BlockError::Damaged(_)) => break,
            }
        }
        let at = u64::from(growing.end);
        let rest = rest(&growing, len).map_err(at_path)?;
        if rest.iter().all(|byte| *byte == 0) {
            growing.paved = u32::try_from(len).unwrap_or(growing.end);
        } else {
            if let Some(seq) = later_block(&growing, &rest, len).map_err(at_path)? {
                let what = format!(
                    "block {} is not whole, and block {seq} follows it",
                    growing.next()
                );
                return Err(StoreError::Damaged { what, advice: ADVICE });
            }
            tracing::warn!(
                block = growing.next(),
                bytes = len - at,
                "the last block was not finished when the process ended"
            );
            growing.torn = true;
        }
        // What was written by a process that was killed before its sync is answered to nobody, but counts from now on.
        growing.file.sync_all().map_err(at_path)?;
        Ok(growing)
    }
}

/// The block at this place, if it is whole, and where it ends.
fn whole_block(file: &File, at: u64, len: u64) -> std::io::Result<Result<(Header, u32), BlockError>> {
    let torn = Ok(Err(BlockError::Damaged("a block that ends too early")));
    if at + HEADER_BYTES as u64 > len {
        return torn;
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, at)?;
    let records = u32::from_be_bytes([header[32], header[33], header[34], header[35]]);
    let end = at + HEADER_BYTES as u64 + u64::from(records);
    let (true, Ok(end)) = (end <= len, u32::try_from(end)) else {
        return torn;
    };
    let mut bytes = vec![0; HEADER_BYTES + records as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(block::check(&bytes).map(|header| (header, end)))
}

/// What lies behind the last whole block.
fn rest(growing: &Growing, len: u64) -> std::io::Result<Vec<u8>> {
    let from = u64::from(growing.end);
    let mut rest = vec![0; usize::try_from(len - from).unwrap_or(0)];
    growing.file.read_exact_at(&mut rest, from)?;
    Ok(rest)
}

/// A block that is whole behind one that is not, if there is one: then it is no crash that made the first unreadable.
fn later_block(growing: &Growing, rest: &[u8], len: u64) -> std::io::Result<Option<u64>> {
    let from = u64::from(growing.end);
    for at in 1..=rest.len().saturating_sub(HEADER_BYTES) {
        if rest[at..].starts_with(block::MAGIC)
            && let Ok(Ok((header, _))) = whole_block(&growing.file, from + at as u64, len)
            && header.seq > growing.next()
        {
            return Ok(Some(header.seq));
        }
    }
    Ok(None)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:020}.{ENDING}"))
}

/// All files with blocks, in order.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let names = names(directory)?;
    Ok(names.into_iter().map(|first| path(directory, first)).collect())
}

/// The first blocks of all files, in order.
fn names(directory: &Path) -> Result<Vec<u64>, StoreError> {
    let at_path = |error: std::io::Error| failed(directory, &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(at_path)? {
        let name = entry.map_err(at_path)?.file_name();
        let first = name.to_str().and_then(|name| name.strip_suffix(ENDING));
        let first = first.and_then(|name| name.strip_suffix('.'));
        names.extend(first.and_then(|name| name.parse::<u64>().ok()));
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether a file begins where the one before it ends.
fn follow(files: &Files, name: u64) -> Result<(), StoreError> {
    match files.full.back() {
        Some(before) if before.next() != name => Err(missing(before.next())),
        // Files are let go from the first one on, and only after it was noted which block is the first.
        None if name > files.first => Err(missing(files.first)),
        Some(_) | None => Ok(()),
    }
}

fn unfinished(first: u64) -> StoreError {
    StoreError::Damaged {
        what: format!("the file of the journal that begins with block {first} has lost its end"),
        advice: ADVICE,
    }
}

/// A file that is missing or ends too early is damage; anything else is the disk's.
fn read_failed(path: &Path, seq: u64, error: &std::io::Error) -> StoreError {
    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) {
        missing(seq)
    } else {
        failed(path, error)
    }
}

#[cfg(test)]
mod tests;
