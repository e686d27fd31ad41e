//! The budget of an archive: how many members and bytes may be unpacked, counted as they come.

use std::cell::Cell;
use std::io::{self, Read};

use super::Problem;
use crate::limits::{EXTRACT_BYTES_MAX, EXTRACT_ENTRIES_MAX, EXTRACT_RATIO_MAX};

/// Below this size, the ratio is not checked.
const RATIO_FREE_BYTES: u64 = 1_048_576;

#[derive(Debug)]
pub(crate) struct Budget {
    entries: Cell<usize>,
    bytes: Cell<u64>,
    bytes_max: u64,
    broken: Cell<Option<&'static str>>,
}

impl Budget {
    pub(crate) fn new(archive_bytes: u64) -> Self {
        let by_ratio = archive_bytes.saturating_mul(EXTRACT_RATIO_MAX).max(RATIO_FREE_BYTES);
        Self {
            entries: Cell::new(0),
            bytes: Cell::new(0),
            bytes_max: by_ratio.min(EXTRACT_BYTES_MAX),
            broken: Cell::new(None),
        }
    }

    pub(super) fn entry(&self) -> Result<(), Problem> {
        self.entries.set(self.entries.get() + 1);
        Self::check_entries(self.entries.get())
    }

    pub(super) fn check_entries(count: usize) -> Result<(), Problem> {
        let max = EXTRACT_ENTRIES_MAX;
        if count > max {
            return Err(Problem::TooMuch(format!("it holds more than {max} files and folders")));
        }
        Ok(())
    }

    fn count(&self, bytes: usize) -> io::Result<()> {
        let now = self.bytes.get().saturating_add(bytes as u64);
        self.bytes.set(now);
        if now > self.bytes_max {
            self.broken.set(Some(if self.bytes_max == EXTRACT_BYTES_MAX {
                "it unpacks to more than is allowed"
            } else {
                "it unpacks to too much for its size, like a decompression bomb"
            }));
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        Ok(())
    }

    /// Replaces a read error by the exceeded budget, if that is its reason.
    pub(super) fn judge(&self, problem: Problem) -> Problem {
        match self.broken.get() {
            Some(why) => Problem::TooMuch(format!("{why} ({} bytes)", self.bytes_max)),
            None => problem,
        }
    }
}

pub(super) struct Counted<'b, R> {
    pub(super) from: R,
    pub(super) budget: &'b Budget,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        self.budget.count(count)?;
        Ok(count)
    }
}
