//! What lies behind the blocks of a full file: where each of them begins.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Growing, path};
use crate::block::{BlockError, FORMAT};
use crate::engine::recover::damaged;
use crate::error::StoreError;
use crate::limits::SEGMENT_BYTES_LIMIT;
use crate::vault::keyring::failed;

const MAGIC: &[u8; 4] = b"efjs";
pub(super) const TRAILER_BYTES: usize = 24;

/// A file that is written no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) table_at: u64,
}

impl Full {
    pub(super) fn next(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// The table of a file that is full, with its trailer.
pub(super) fn table(growing: &Growing) -> (Full, Vec<u8>) {
    let count = u32::try_from(growing.begins.len()).unwrap_or(u32::MAX);
    let mut table = Vec::with_capacity((growing.begins.len() + 1) * 4 + TRAILER_BYTES);
    for place in growing.begins.iter().chain([&growing.end]) {
        table.extend_from_slice(&place.to_be_bytes());
    }
    table.extend_from_slice(MAGIC);
    table.extend_from_slice(&[FORMAT, 0, 0, 0]);
    table.extend_from_slice(&growing.first.to_be_bytes());
    table.extend_from_slice(&count.to_be_bytes());
    let checksum = crc32fast::hash(&table);
    table.extend_from_slice(&checksum.to_be_bytes());
    let full = Full {
        first: growing.first,
        count,
        table_at: u64::from(growing.end),
    };
    (full, table)
}

/// What a full file says about itself; `None` if it is not full, or its end was not finished.
pub(super) fn read_trailer(directory: &Path, first: u64) -> Result<Option<Full>, StoreError> {
    let path = path(directory, first);
    let at_path = |error: std::io::Error| failed(&path, &error);
    let file = File::open(&path).map_err(at_path)?;
    let len = file.metadata().map_err(at_path)?.len();
    let Some(at) = len.checked_sub(TRAILER_BYTES as u64) else {
        return Ok(None);
    };
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, at).map_err(at_path)?;
    if &trailer[..4] != MAGIC {
        return Ok(None);
    }
    let [.., c0, c1, c2, c3, _, _, _, _] = trailer;
    let count = u32::from_be_bytes([c0, c1, c2, c3]);
    let table_bytes = (u64::from(count) + 1) * 4;
    let Some(table_at) = at
        .checked_sub(table_bytes)
        .filter(|_| table_bytes <= SEGMENT_BYTES_LIMIT as u64)
    else {
        return Ok(None);
    };
    let mut table = vec![0; (len - table_at) as usize];
    file.read_exact_at(&mut table, table_at).map_err(at_path)?;
    let (body, stated) = table.split_at(table.len() - 4);
    let named = body[body.len() - 12..body.len() - 4] == first.to_be_bytes();
    if crc32fast::hash(body).to_be_bytes() != *stated || !named {
        return Ok(None);
    }
    if trailer[4] > FORMAT {
        return Err(damaged(first, &BlockError::Newer(trailer[4])));
    }
    Ok(Some(Full {
        first,
        count,
        table_at,
    }))
}
