//! The id of a state directory, which tells clients whether a daemon serves the state that they mean.
//!
//! The first process that opens the state creates it. A backup leaves it out, so a restored state has an id of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use effectd_contracts::digest::hex;

use crate::error::Error;

const FILE: &str = "id";
/// The random bytes of an id, which is their hexadecimal text.
const BYTES: usize = 16;

/// The id of a state; `None` if no process has opened the state yet.
pub(crate) fn read(state: &Path) -> Result<Option<String>, Error> {
    let path = state.join(FILE);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(2 * BYTES as u64 + 2).read_to_string(&mut text));
    match read {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        read => read.map_err(|source| Error::State { path: path.clone(), source })?,
    };
    let id = text.trim_end();
    if id.len() == 2 * BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(Some(id.to_owned()));
    }
    let why = "it is not the id of a state; remove it, and the next start of effectd creates another";
    Err(Error::State { path, source: io::Error::new(io::ErrorKind::InvalidData, why) })
}

/// The id of a state, created if there is none. The caller holds the lock of the store, or has just made the directory.
pub(crate) fn ensure(state: &Path) -> Result<String, Error> {
    if let Some(id) = read(state)? {
        return Ok(id);
    }
    create(state).map_err(|source| Error::State { path: state.join(FILE), source })
}

/// Writes a draft and renames it, so that an incomplete id is never read.
fn create(state: &Path) -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let (id, draft) = (hex(&bytes), state.join("id.draft"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, state.join(FILE))?;
    File::open(state)?.sync_all()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_is_created_once_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        assert_eq!(read(state).unwrap(), None);
        assert_eq!(read(&state.join("missing")).unwrap(), None);
        // A power failure left a draft.
        fs::write(state.join("id.draft"), "half").unwrap();
        let id = ensure(state).unwrap();
        assert_eq!(ensure(state).unwrap(), id);
        assert_eq!(read(state).unwrap(), Some(id));
        for damaged in [String::new(), "x".repeat(32), "0".repeat(31), "0".repeat(40)] {
            fs::write(state.join(FILE), damaged).unwrap();
            let refused = ensure(state).unwrap_err().to_string();
            assert!(refused.contains("is not the id of a state; remove it"), "{refused}");
        }
    }
}
