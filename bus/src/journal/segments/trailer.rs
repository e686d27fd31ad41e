//! The trailer of a full segment: the offset of each of its blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{ActiveSegment, path};
use crate::codec::fixed;
use crate::error::StoreError;
use crate::files::io_error;
use crate::journal::block::{BlockError, FORMAT};
use crate::limits::SEGMENT_BYTES_LIMIT;

const MAGIC: &[u8; 4] = b"efjs";
pub(super) const TRAILER_BYTES: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FullSegment {
    pub(super) first: u64,
    pub(super) count: u32,
    /// Where the table of offsets begins.
    pub(super) table_at: u64,
}

impl FullSegment {
    pub(super) fn next(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// The table of offsets of a segment, and its trailer.
pub(super) fn encode(active: &ActiveSegment) -> (FullSegment, Vec<u8>) {
    let count = u32::try_from(active.begins.len()).unwrap_or(u32::MAX);
    let mut table = Vec::with_capacity((active.begins.len() + 1) * 4 + TRAILER_BYTES);
    for offset in active.begins.iter().chain([&active.end]) {
        table.extend_from_slice(&offset.to_be_bytes());
    }
    table.extend_from_slice(MAGIC);
    table.extend_from_slice(&[FORMAT, 0, 0, 0]);
    table.extend_from_slice(&active.first.to_be_bytes());
    table.extend_from_slice(&count.to_be_bytes());
    let checksum = crc32fast::hash(&table);
    table.extend_from_slice(&checksum.to_be_bytes());
    let full = FullSegment { first: active.first, count, table_at: u64::from(active.end) };
    (full, table)
}

/// Reads the trailer of a segment; `None` if it has none, or an incomplete one.
pub(super) fn read(directory: &Path, first: u64) -> Result<Option<FullSegment>, StoreError> {
    let path = path(directory, first);
    let at_path = |error: std::io::Error| io_error(&path, error);
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
    let count = u32::from_be_bytes(fixed(&trailer, 16));
    let table_bytes = (u64::from(count) + 1) * 4;
    let Some(table_at) = at.checked_sub(table_bytes).filter(|_| table_bytes <= SEGMENT_BYTES_LIMIT as u64)
    else {
        return Ok(None);
    };
    let mut table = vec![0; (len - table_at) as usize];
    file.read_exact_at(&mut table, table_at).map_err(at_path)?;
    let (body, stated) = table.split_at(table.len() - 4);
    let is_named = trailer[8..16] == first.to_be_bytes();
    if crc32fast::hash(body).to_be_bytes() != *stated || !is_named {
        return Ok(None);
    }
    if trailer[4] > FORMAT {
        return Err(BlockError::Newer(trailer[4]).at(first));
    }
    Ok(Some(FullSegment { first, count, table_at }))
}
