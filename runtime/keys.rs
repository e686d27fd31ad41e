//! The keys that receipts are signed and their digests are made with. Made on first use, readable by nobody else.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use effectd_actors::Identity;
use zeroize::Zeroizing;

use crate::error::Error;

/// Signs receipts.
const SIGNING: &str = "receipt-signing.key";
/// Makes digests of sensitive values.
const DIGEST: &str = "receipt-digest.key";

/// Wraps the keys of blobs.
const BLOBS: &str = "blobs.key";

/// What blobs are kept under.
pub(crate) fn blobs(directory: &Path) -> Result<Zeroizing<[u8; 32]>, Error> {
    key(&directory.join(BLOBS))
}

/// The device's identity from its key directory.
pub(crate) fn identity(directory: &Path) -> Result<Identity, Error> {
    let signing = key(&directory.join(SIGNING))?;
    let digest = key(&directory.join(DIGEST))?;
    Ok(Identity::new(&signing, *digest))
}

fn key(path: &Path) -> Result<Zeroizing<[u8; 32]>, Error> {
    let unusable = |why: String| Error::Key {
        path: path.to_owned(),
        why,
    };
    match read(path) {
        Ok(key) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path).map_err(|error| unusable(error.to_string()))?;
            read(path).map_err(|error| unusable(error.to_string()))
        }
        Err(error) => Err(unusable(error.to_string())),
    }
}

fn read(path: &Path) -> io::Result<Zeroizing<[u8; 32]>> {
    let mut file = fs::File::open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        return Err(io::Error::other(
            "others can read it; run chmod 600 on it, and consider it known to them",
        ));
    }
    let mut key = Zeroizing::new([0; 32]);
    file.read_exact(&mut *key)?;
    if file.read(&mut [0])? != 0 {
        return Err(io::Error::other("it is longer than a key"));
    }
    Ok(key)
}

/// Writes a new key beside its place and moves it there, so that there is the whole key or none.
fn make(path: &Path) -> io::Result<()> {
    let mut key = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *key).map_err(io::Error::other)?;
    let draft = path.with_extension("draft");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(&*key)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent()
        .map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
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
            assert_eq!(
                fs::metadata(folder.path().join(name)).unwrap().mode() & 0o777,
                0o600
            );
        }
        fs::set_permissions(folder.path().join(SIGNING), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            identity(folder.path())
                .unwrap_err()
                .to_string()
                .contains("others can read it")
        );
        fs::set_permissions(folder.path().join(SIGNING), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(folder.path().join(SIGNING), [1; 31]).unwrap();
        assert!(identity(folder.path()).is_err());
    }
}
