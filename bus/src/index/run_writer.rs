//! The writer of a run.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::bloom::{self, BloomFilter, Probe};
use super::chunk::{self, Chunk, DELETE, PUT, UNION};
use super::memtable::Cell;
use super::run::{BEGINNING, Head, Run, footer};
use crate::codec::{fixed, put_bytes};
use crate::error::StoreError;
use crate::failpoint;
use crate::files::{io_error, private};

/// Bytes after which a chunk ends: a lookup reads one chunk.
const CHUNK_BYTES: usize = 8 << 10;
/// Bytes of the write buffer.
const WRITE_BYTES: usize = 256 << 10;
/// Most bytes written and not synced, so that the last sync of a large run does not delay the journal's syncs.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;

pub(super) fn run_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("run-{id:016x}"))
}

/// A run that is being written under a temporary name. It has no effect until the manifest names it.
pub(crate) struct RunWriter {
    path: PathBuf,
    partial: PathBuf,
    file: Option<File>,
    id: u64,
    head: Head,
    /// The chunk that is being filled.
    starts: Vec<u8>,
    entries: Vec<u8>,
    /// Hashes of the chunk's keys. They are added to the filter together: their blocks are scattered in memory, and the
    /// processor prefetches many at once if nothing else happens in between.
    hashes: Vec<u64>,
    /// The write buffer, and the bytes that are in the file.
    out: Vec<u8>,
    written: u64,
    unsynced: u64,
}

impl RunWriter {
    /// Begins a run of about this many entries.
    pub(super) fn new(dir: &Path, id: u64, entries: u64) -> Result<Self, StoreError> {
        let path = run_path(dir, id);
        let partial = path.with_extension("partial");
        let mut options = private();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&partial);
        Ok(RunWriter {
            file: Some(file.map_err(|error| io_error(&partial, error))?),
            path,
            partial,
            id,
            head: Head { filter: BloomFilter::new(entries), ..Head::default() },
            starts: Vec::new(),
            entries: Vec::with_capacity(CHUNK_BYTES * 2),
            hashes: Vec::new(),
            out: BEGINNING.to_vec(),
            written: 0,
            unsynced: 0,
        })
    }

    /// Adds an entry. The caller adds keys in order.
    pub(super) fn push(&mut self, key: &[u8], cell: &Cell) -> Result<(), StoreError> {
        self.begin(key);
        put_bytes(&mut self.entries, key);
        match cell {
            Cell::Delete => self.entries.push(DELETE),
            Cell::Put(value) => {
                self.entries.push(PUT);
                put_bytes(&mut self.entries, value);
            }
            Cell::Union(members) => {
                self.entries.push(UNION);
                put_bytes(&mut self.entries, members);
            }
        }
        self.end(key)
    }

    /// Copies an entry of another run, unless it is a deletion and those are left out.
    pub(super) fn copy(
        &mut self,
        chunk: &Chunk,
        nth: usize,
        key: &Range<usize>,
        keep_deleted: bool,
    ) -> Result<(), StoreError> {
        let (raw, is_deleted) = chunk.raw(nth, key)?;
        if is_deleted && !keep_deleted {
            return Ok(());
        }
        self.begin(chunk.at(key));
        self.entries.extend_from_slice(raw);
        self.end(chunk.at(key))
    }

    fn begin(&mut self, key: &[u8]) {
        if self.entries.is_empty() {
            self.head.firsts.push(key);
        }
        // Two bytes suffice: a chunk takes no more entries when it reaches `CHUNK_BYTES`, so each begins before that.
        self.starts.extend_from_slice(&(self.entries.len() as u16).to_be_bytes());
    }

    fn end(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.hashes.push(bloom::hash(key));
        self.head.entries += 1;
        self.head.last.clear();
        self.head.last.extend_from_slice(key);
        if self.entries.len() >= CHUNK_BYTES {
            self.close_chunk()?;
        }
        Ok(())
    }

    fn close_chunk(&mut self) -> Result<(), StoreError> {
        let name = (self.id, self.head.firsts.len() as u32 - 1);
        chunk::encode(name, &self.starts, &self.entries, &mut self.out);
        self.head.ends.push(self.written + self.out.len() as u64);
        self.starts.clear();
        self.entries.clear();
        for hash in self.hashes.drain(..) {
            self.head.filter.insert(&Probe::of(hash));
        }
        if self.out.len() >= WRITE_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let len = self.out.len() as u64;
        let mut write = || -> std::io::Result<()> {
            file.write_all(&self.out)?;
            if self.unsynced + len >= UNSYNCED_BYTES_MAX {
                file.sync_data()?;
                self.unsynced = 0;
            } else {
                self.unsynced += len;
            }
            Ok(())
        };
        write().map_err(|error| io_error(&self.partial, error))?;
        self.written += len;
        self.out.clear();
        Ok(())
    }

    /// Writes the rest, syncs the file and renames it; `None` for an empty run. The caller syncs the directory.
    pub(super) fn finish(mut self) -> Result<Option<Run>, StoreError> {
        if self.head.entries == 0 {
            return Ok(None);
        }
        if !self.entries.is_empty() {
            self.close_chunk()?;
        }
        let begins_at = self.written + self.out.len() as u64;
        let head = self.head.encode();
        let footer = footer(self.id, begins_at, &head);
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(&footer);
        self.write()?;
        failpoint::hit("index.before_sync");
        let Some(file) = self.file.take() else {
            return Ok(None);
        };
        let end = || {
            file.sync_data()?;
            std::fs::rename(&self.partial, &self.path)
        };
        end().map_err(|error| io_error(&self.path, error))?;
        let own = u32::from_be_bytes(fixed(&footer, 28));
        let head = std::mem::take(&mut self.head);
        Ok(Some(Run::new((self.id, own), head, file)))
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        if self.file.is_some() {
            // Opening the index removes what is left.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::digest::hex;

    #[test]
    fn the_bytes_of_a_run_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = RunWriter::new(dir.path(), 7, 3).unwrap();
        builder.push(b"a", &Cell::Put(b"one".to_vec())).unwrap();
        builder.push(b"b", &Cell::Delete).unwrap();
        builder.push(b"c", &Cell::Union(vec![1, 2])).unwrap();
        let run = builder.finish().unwrap().unwrap();
        let bytes = std::fs::read(run_path(dir.path(), 7)).unwrap();
        assert_eq!(hex(&bytes), GOLDEN);
        let again = Run::open(&run_path(dir.path(), 7), run.name).unwrap();
        assert_eq!(again.head.encode(), run.head.encode());
    }

    const GOLDEN: &str = concat!(
        "656672756e000001",
        "4206f423000300000007000a016101036f6e65016200016302020102",
        "03011c01610163200680000088000004000202010060000490000100002001400021004008200100",
        "000000000000000700000000000000240000002886acc82d6566726512bf8c42",
    );

    #[test]
    fn a_run_of_which_any_byte_differs_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = RunWriter::new(dir.path(), 1, 500).unwrap();
        for n in 0..500_u32 {
            builder.push(&n.to_be_bytes(), &Cell::Put(vec![7; 40])).unwrap();
        }
        let run = builder.finish().unwrap().unwrap();
        assert!(run.chunks() > 1);
        let path = run_path(dir.path(), 1);
        let whole = std::fs::read(&path).unwrap();
        let is_found = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let opened = Run::open(&path, run.name);
            let read = opened.and_then(|run| (0..run.chunks()).try_for_each(|n| run.read(n).map(drop)));
            matches!(read, Err(StoreError::Damaged { .. }))
        };
        assert!(!is_found(&whole));
        for at in (0..whole.len()).step_by(11).chain(whole.len() - 40..whole.len()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(is_found(&bytes), "byte {at}");
        }
        for len in (0..whole.len()).step_by(97) {
            assert!(is_found(&whole[..len]), "cut off at {len}");
        }
        assert!(is_found(&[whole.as_slice(), b"x"].concat()));
    }
}
