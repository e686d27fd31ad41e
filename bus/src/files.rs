//! Files of the state directory: private, and complete or absent after a crash.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Options for a file that only its owner may read.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Writes a file that is complete or absent after a crash.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let partial = path.with_extension("partial");
    let write = || -> std::io::Result<()> {
        let mut file = private().write(true).create(true).truncate(true).open(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(|error| io_error(path, error))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Creates a directory that only its owner may enter, and makes its name durable. Takes all others' rights to an existing one.
pub(crate) fn private_dir(path: &Path) -> Result<(), StoreError> {
    if !path.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| io_error(path, error))?;
        return path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_dir);
    }
    let narrow = || -> std::io::Result<()> {
        let mut permissions = fs::metadata(path)?.permissions();
        if permissions.mode() & 0o077 != 0 {
            permissions.set_mode(permissions.mode() & !0o077);
            fs::set_permissions(path, permissions)?;
        }
        Ok(())
    };
    narrow().map_err(|error| io_error(path, error))
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(|error| io_error(path, error))
}

/// Syncs every file and directory of a tree.
pub(crate) fn sync_tree(directory: &Path) -> Result<(), StoreError> {
    for path in list(directory)? {
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(|error| io_error(&path, error))?;
        }
    }
    sync_dir(directory)
}

/// Removes a directory with its files, if it exists.
pub(crate) fn remove_dir(directory: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(directory, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The paths in a directory.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| io_error(directory, error))
}

/// The numbers in the names of files `<number>.<extension>`, in order.
pub(crate) fn numbered(directory: &Path, extension: &str) -> Result<Vec<u64>, StoreError> {
    let mut numbers: Vec<u64> = list(directory)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Logs a failed file operation with its path, and turns it into an error without the path.
pub(crate) fn io_error(path: &Path, error: std::io::Error) -> StoreError {
    tracing::warn!(path = %path.display(), %error, "a file of the state directory cannot be used");
    if error.kind() == ErrorKind::StorageFull {
        return StoreError::Full;
    }
    if error.kind() == ErrorKind::ReadOnlyFilesystem {
        return StoreError::ReadOnly;
    }
    StoreError::unavailable_by(file_name(path), error)
}

/// The last part of a path: errors do not tell callers where the state directory is.
pub(crate) fn file_name(path: &Path) -> std::path::Display<'_> {
    path.file_name().map_or(Path::new("the state"), Path::new).display()
}
