//! Writing a run.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::chunk::{self, Chunk, DELETE, PUT, UNION};
use super::run::{BEGINNING, Firsts, Head, Run, footer};
use crate::codec::put_bytes;
use crate::error::StoreError;
use crate::failpoint;
use crate::filter::{self, Filter, Probe};
use crate::table::Cell;
use crate::vault::keyring::failed;

/// Bytes after which a chunk is closed: a question reads one chunk.
const CHUNK_BYTES: usize = 8 << 10;
/// Bytes that are gathered before they are given to the file.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes that the file may have over what is on disk, so that ending a large run does not keep the disk from the
/// journal for long.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;

pub(super) fn run_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("run-{id:016x}"))
}

/// A run that is being written, under another name. It means nothing until the manifest names it.
pub(crate) struct Builder {
    path: PathBuf,
    partial: PathBuf,
    file: Option<File>,
    id: u64,
    head: Head,
    /// The chunk that is being filled.
    starts: Vec<u8>,
    entries: Vec<u8>,
    /// Hashes of its keys, for the filter. They go there together: each has a place of its own somewhere in memory, and the
    /// processor fetches many at once if nothing else is done in between.
    hashes: Vec<u64>,
    /// Chunks that are not in the file yet, and how much is.
    out: Vec<u8>,
    written: u64,
    unsynced: u64,
}

impl Builder {
    /// A run of about so many entries.
    pub(super) fn new(dir: &Path, id: u64, entries: u64) -> Result<Self, StoreError> {
        let path = run_path(dir, id);
        let partial = path.with_extension("partial");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.mode(0o600).open(&partial);
        Ok(Builder {
            file: Some(file.map_err(|error| failed(&partial, &error))?),
            path,
            partial,
            id,
            head: Head {
                entries: 0,
                firsts: Firsts::default(),
                ends: Vec::new(),
                last: Vec::new(),
                filter: Filter::new(entries),
            },
            starts: Vec::new(),
            entries: Vec::with_capacity(CHUNK_BYTES * 2),
            hashes: Vec::new(),
            out: BEGINNING.to_vec(),
            written: 0,
            unsynced: 0,
        })
    }

    /// Adds an entry, whose key is greater than those before.
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

    /// Adds an entry of another run as it is, unless it is a deletion and those need not be kept.
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
        // A chunk is closed long before 64 KiB, so that only the last entry of one can end beyond it.
        self.starts
            .extend_from_slice(&(self.entries.len() as u16).to_be_bytes());
    }

    fn end(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.hashes.push(filter::hash(key));
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
        write().map_err(|error| failed(&self.partial, &error))?;
        self.written += len;
        self.out.clear();
        Ok(())
    }

    /// Writes what is left, makes the file durable and gives it its name; `None` if there is nothing in it. The
    /// directory is still to be synced.
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
        end().map_err(|error| failed(&self.path, &error))?;
        let own = u32::from_be_bytes([footer[28], footer[29], footer[30], footer[31]]);
        let head = Head {
            filter: std::mem::replace(&mut self.head.filter, Filter::new(0)),
            firsts: std::mem::take(&mut self.head.firsts),
            ends: std::mem::take(&mut self.head.ends),
            last: std::mem::take(&mut self.head.last),
            entries: self.head.entries,
        };
        Ok(Some(Run::new((self.id, own), head, file)))
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        if self.file.is_some() {
            // What is left here is removed when the index is next opened.
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
        let mut builder = Builder::new(dir.path(), 7, 3).unwrap();
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
        let mut builder = Builder::new(dir.path(), 1, 500).unwrap();
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
