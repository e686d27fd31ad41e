//! The keys of a state directory: for signatures, keyed digests and blobs. First use creates them; only their owner can read
//! them.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use effectd_actors::execution::log;
use effectd_actors::{DeviceKey, Identity};
use effectd_bus::Store;
use effectd_contracts::{KeyEntry, Timestamp};
use zeroize::Zeroizing;

use crate::error::Error;

const SIGNING: &str = "receipt-signing.key";
/// The key of the keyed digests of sensitive values.
const DIGEST: &str = "receipt-digest.key";
/// The new key of a rotation in progress. It signs as soon as the log names it.
const NEXT: &str = "receipt-signing.next";
/// The key that wraps the keys of blobs.
const BLOBS: &str = "blobs.key";

/// The key that wraps the keys of blobs, if it exists; it is not created.
pub(crate) fn blobs_there(directory: &Path) -> Result<Option<Zeroizing<[u8; 32]>>, Error> {
    let path = directory.join(BLOBS);
    match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(unusable(&path)),
    }
}

/// Refuses a key directory that has no signing key. Reading the key reports other faults.
pub(crate) fn check_signing(directory: &Path) -> Result<(), Error> {
    let path = directory.join(SIGNING);
    match path.try_exists() {
        Ok(false) => Err(unusable(&path)(io::Error::new(io::ErrorKind::NotFound, "it is missing"))),
        Ok(true) | Err(_) => Ok(()),
    }
}

pub(crate) fn blobs(directory: &Path) -> Result<Zeroizing<[u8; 32]>, Error> {
    key(&directory.join(BLOBS))
}

/// The device's identity. Finishes an interrupted rotation if the log names the new key, and otherwise removes the new key.
pub(crate) fn current(directory: &Path, store: &dyn Store) -> Result<Identity, Error> {
    let next = directory.join(NEXT);
    if next.exists() {
        let waiting = DeviceKey::new(&*key(&next)?);
        if is_last(store, &waiting)? {
            put_in_place(directory)?;
        } else {
            fs::remove_file(&next).map_err(unusable(&next))?;
        }
    }
    identity(directory)
}

/// Whether this key is the last one in the log, which is the one that signs.
fn is_last(store: &dyn Store, key: &DeviceKey) -> Result<bool, Error> {
    let last = log::keys(store)?.pop();
    Ok(last.is_some_and(|last| last.key_id == key.key_id()))
}

#[derive(Debug)]
pub(crate) struct Rotation {
    pub(crate) key: DeviceKey,
    /// The new key's entry in the log.
    pub(crate) entry: KeyEntry,
    /// Whether the new key's file replaced the old one. If not, the next start does that, since the log names the new key.
    pub(crate) in_place: Result<(), Error>,
}

/// Replaces the signing key. First the log records the new key, signed by both keys; it also keeps the old public key. Then the
/// new secret replaces the old one. The caller must make sure that nothing is signed meanwhile.
pub(crate) fn rotate(directory: &Path, store: &dyn Store, now: Timestamp) -> Result<Rotation, Error> {
    let old = current(directory, store)?.key();
    log::enrol(store, &old, now)?;
    log::check_room(store)?;
    let new = DeviceKey::new(&*key(&directory.join(NEXT))?);
    let entry = match log::succeed(store, &old, &new, now) {
        Ok(entry) => entry,
        // The entry may be in the log in spite of the error; if it is, the new key already signs.
        Err(error) => match log::keys(store)?.pop() {
            Some(entry) if entry.key_id == new.key_id() => entry,
            Some(_) | None => return Err(error.into()),
        },
    };
    Ok(Rotation { key: new, entry, in_place: put_in_place(directory) })
}

fn put_in_place(directory: &Path) -> Result<(), Error> {
    let (next, path) = (directory.join(NEXT), directory.join(SIGNING));
    let moved = fs::rename(&next, &path).and_then(|()| fs::File::open(directory)?.sync_all());
    moved.map_err(unusable(&path))
}

fn unusable(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Key { path: path.clone(), source }
}

pub(crate) fn identity(directory: &Path) -> Result<Identity, Error> {
    let signing = key(&directory.join(SIGNING))?;
    let digest = key(&directory.join(DIGEST))?;
    Ok(Identity::new(&signing, *digest))
}

fn key(path: &Path) -> Result<Zeroizing<[u8; 32]>, Error> {
    let key = match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path).and_then(|()| read(path)),
        key => key,
    };
    key.map_err(unusable(path))
}

fn read(path: &Path) -> io::Result<Zeroizing<[u8; 32]>> {
    let mut file = fs::File::open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        return Err(io::Error::other("others can read it; run chmod 600 on it, and consider it compromised"));
    }
    let mut key = Zeroizing::new([0; 32]);
    file.read_exact(&mut *key)?;
    if file.read(&mut [0])? != 0 {
        return Err(io::Error::other("it is longer than a key"));
    }
    Ok(key)
}

/// Writes a new key to a draft and renames it, so that an incomplete key is never read.
fn make(path: &Path) -> io::Result<()> {
    let mut key = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *key).map_err(io::Error::other)?;
    let draft = path.with_extension("draft");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&*key)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_made_once_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let first = identity(folder.path()).unwrap().key_id();
        assert_eq!(identity(folder.path()).unwrap().key_id(), first);
        for name in [SIGNING, DIGEST] {
            assert_eq!(fs::metadata(folder.path().join(name)).unwrap().mode() & 0o777, 0o600);
        }
        fs::set_permissions(folder.path().join(SIGNING), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(identity(folder.path()).unwrap_err().to_string().contains("others can read it"));
        fs::set_permissions(folder.path().join(SIGNING), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(folder.path().join(SIGNING), [1; 31]).unwrap();
        assert!(identity(folder.path()).is_err());
    }

    #[test]
    fn a_rotation_that_is_cut_off_is_finished_or_taken_back() {
        use effectd_contracts::{Clock, SystemClock};
        let folder = tempfile::tempdir().unwrap();
        let store = effectd_bus::memory::open(std::sync::Arc::new(SystemClock)).unwrap();
        let now = SystemClock.now();
        let first = current(folder.path(), &store).unwrap();
        log::enrol(&store, &first.key(), now).unwrap();
        log::enrol(&store, &first.key(), now).unwrap();
        let entry = rotate(folder.path(), &store, now).unwrap().entry;
        let second = current(folder.path(), &store).unwrap();
        assert_eq!((entry.key_id, entry.previous), (second.key_id(), Some(first.key_id())));
        assert_eq!(log::keys(&store).unwrap().len(), 2);
        // Interrupted before the log named the new key: the old key still signs.
        let next = folder.path().join(NEXT);
        make(&next).unwrap();
        assert_eq!(current(folder.path(), &store).unwrap().key_id(), second.key_id());
        assert!(!next.exists());
        // Interrupted after the log named the new key: the new key signs.
        make(&next).unwrap();
        let third = DeviceKey::new(&read(&next).unwrap());
        log::succeed(&store, &second.key(), &third, now).unwrap();
        assert_eq!(current(folder.path(), &store).unwrap().key_id(), third.key_id());
        assert!(!next.exists());
        assert_eq!(log::keys(&store).unwrap().len(), 3);
    }

    #[test]
    fn a_log_that_has_had_all_its_keys_takes_no_other_and_goes_on() {
        use effectd_contracts::limits::LOG_KEYS_MAX;
        use effectd_contracts::{Clock, SystemClock};
        let folder = tempfile::tempdir().unwrap();
        let store = effectd_bus::memory::open(std::sync::Arc::new(SystemClock)).unwrap();
        let now = SystemClock.now();
        let mut last = DeviceKey::new(&[0; 32]);
        log::enrol(&store, &last, now).unwrap();
        for n in 2..LOG_KEYS_MAX {
            let mut secret = [0; 32];
            secret[..8].copy_from_slice(&n.to_be_bytes());
            let next = DeviceKey::new(&secret);
            log::succeed(&store, &last, &next, now).unwrap();
            last = next;
        }
        // The last key that the log has room for.
        let current = current(folder.path(), &store).unwrap().key();
        log::succeed(&store, &last, &current, now).unwrap();
        let refused = rotate(folder.path(), &store, now).map(|_| ()).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|why| why.contains("which is the maximum")));
        assert!(!folder.path().join(NEXT).exists(), "nothing was begun");
        log::enrol(&store, &current, now).unwrap();
        assert_eq!(log::keys(&store).unwrap().len(), LOG_KEYS_MAX);
    }
}
