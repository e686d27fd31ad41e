//! The files that say what a shortened journal stands on.
//!
//! `<first block>.ground` is in force; the one of the latest block is the one that counts. `<first block>.staged` is made
//! ready and means nothing yet. To put it in force it gets its other name, which happens as a whole or not at all.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::journal::{ADVICE, unprepared};
use crate::vault::keyring::{failed, name, sync_dir, write_new};

const IN_FORCE: &str = "ground";
const STAGED: &str = "staged";

pub(super) fn path(directory: &Path, first: u64, ending: &str) -> PathBuf {
    directory.join(format!("{first:020}.{ending}"))
}

/// The first block that counts; `None` if none was ever let go.
pub(super) fn in_force(directory: &Path) -> Result<Option<u64>, StoreError> {
    Ok(all(directory, IN_FORCE)?.into_iter().max())
}

pub(super) fn read(directory: &Path, first: u64) -> Result<Vec<u8>, StoreError> {
    let path = path(directory, first, IN_FORCE);
    fs::read(&path).map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            let what = format!("{} is missing", name(&path));
            StoreError::Damaged { what, advice: ADVICE }
        } else {
            failed(&path, &error)
        }
    })
}

pub(super) fn stage(directory: &Path, first: u64, bytes: &[u8]) -> Result<(), StoreError> {
    write_new(&path(directory, first, STAGED), bytes)
}

/// What a journal that is written anew begins on.
pub(super) fn begin(directory: &Path, first: u64, bytes: &[u8]) -> Result<(), StoreError> {
    write_new(&path(directory, first, IN_FORCE), bytes)
}

/// From now on the journal begins with this block.
pub(super) fn put_in_force(directory: &Path, first: u64) -> Result<(), StoreError> {
    let (staged, ground) = (path(directory, first, STAGED), path(directory, first, IN_FORCE));
    match fs::rename(&staged, &ground) {
        Ok(()) => sync_dir(directory),
        Err(error) if error.kind() == ErrorKind::NotFound && ground.exists() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(unprepared(first)),
        Err(error) => Err(failed(&ground, &error)),
    }
}

/// Removes what was in force before, and what was made ready and never used.
pub(super) fn tidy(directory: &Path, first: u64) -> Result<(), StoreError> {
    let old = all(directory, IN_FORCE)?
        .into_iter()
        .filter(|block| *block < first)
        .map(|block| path(directory, block, IN_FORCE));
    let unused = all(directory, STAGED)?
        .into_iter()
        .filter(|block| *block <= first)
        .map(|block| path(directory, block, STAGED));
    for path in old.chain(unused) {
        fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

/// The blocks that files with this ending are named after.
pub(super) fn all(directory: &Path, ending: &str) -> Result<Vec<u64>, StoreError> {
    let at_path = |error: std::io::Error| failed(directory, &error);
    let mut blocks = Vec::new();
    for entry in fs::read_dir(directory).map_err(at_path)? {
        let name = entry.map_err(at_path)?.file_name();
        let block = name.to_str().and_then(|name| name.strip_suffix(ending));
        let block = block.and_then(|name| name.strip_suffix('.'));
        blocks.extend(block.and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(blocks)
}
