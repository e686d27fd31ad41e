//! The checkpoint files of a truncated journal.
//!
//! `<first block>.ground` is an active checkpoint; the one with the highest number counts. `<first block>.staged` has no
//! effect until it is renamed to `.ground`, which is atomic.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::no_checkpoint;
use crate::error::StoreError;
use crate::files::{file_name, io_error, numbered, sync_dir, write_new};

const ACTIVE: &str = "ground";
const STAGED: &str = "staged";

pub(crate) fn path(directory: &Path, first: u64, extension: &str) -> PathBuf {
    directory.join(format!("{first:020}.{extension}"))
}

/// The first block of the journal.
pub(crate) fn first_block(directory: &Path) -> Result<u64, StoreError> {
    Ok(numbered(directory, ACTIVE)?.pop().unwrap_or(1))
}

/// The active checkpoint before a block; `None` before the first one.
pub(crate) fn read(directory: &Path, first: u64) -> Result<Option<Vec<u8>>, StoreError> {
    if first <= 1 {
        return Ok(None);
    }
    let path = path(directory, first, ACTIVE);
    fs::read(&path).map(Some).map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            StoreError::damaged(format!("{} is missing", file_name(&path)))
        } else {
            io_error(&path, error)
        }
    })
}

pub(super) fn stage(directory: &Path, first: u64, bytes: &[u8]) -> Result<(), StoreError> {
    write_new(&path(directory, first, STAGED), bytes)
}

/// Writes the checkpoint of a new journal.
pub(crate) fn begin(directory: &Path, first: u64, bytes: &[u8]) -> Result<(), StoreError> {
    write_new(&path(directory, first, ACTIVE), bytes)
}

/// Activates a staged checkpoint: the journal begins with this block from now on.
pub(super) fn activate(directory: &Path, first: u64) -> Result<(), StoreError> {
    let (staged, active) = (path(directory, first, STAGED), path(directory, first, ACTIVE));
    match fs::rename(&staged, &active) {
        Ok(()) => sync_dir(directory),
        Err(error) if error.kind() == ErrorKind::NotFound && active.exists() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(no_checkpoint(first)),
        Err(error) => Err(io_error(&active, error)),
    }
}

/// Removes earlier checkpoints, and staged ones that were never activated.
pub(super) fn remove_unused(directory: &Path, first: u64) -> Result<(), StoreError> {
    let old = numbered(directory, ACTIVE)?.into_iter().filter(|block| *block < first);
    let unused = numbered(directory, STAGED)?.into_iter().filter(|block| *block <= first);
    let old = old.map(|block| path(directory, block, ACTIVE));
    for path in old.chain(unused.map(|block| path(directory, block, STAGED))) {
        fs::remove_file(&path).map_err(|error| io_error(&path, error))?;
    }
    Ok(())
}
