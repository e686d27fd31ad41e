//! The manifest: which runs the index is made of, and what it vouches for.
//!
//! One small file that is replaced as a whole, so that runs, checkpoint and snapshot always belong together.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::chunk::malformed;
use super::read_failed;
use super::run::RunName;
use crate::codec::{self, Malformed};
use crate::error::StoreError;
use crate::failpoint;
use crate::fold::snapshot;
use crate::table::Vouch;
use crate::vault::keyring::{failed, sync_dir};

pub(super) const NAME: &str = "manifest";
const PARTIAL: &str = "manifest.partial";
const MARK: &str = "effectd index 3";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) next_run: u64,
    /// The newest first.
    pub(super) runs: Vec<RunName>,
    /// How far they have come; `None` while there is nothing.
    pub(super) vouch: Option<Arc<Vouch>>,
}

impl Manifest {
    pub(super) fn empty() -> Self {
        Manifest {
            next_run: 1,
            runs: Vec::new(),
            vouch: None,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let vouch = self.vouch.as_ref();
        let vouch = vouch.map(|vouch| (vouch.checkpoint, &vouch.snapshot));
        codec::encode_marked(MARK, &(self.next_run, &self.runs, vouch))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (next_run, runs, vouch) = codec::decode_marked(MARK, bytes)?;
        let vouch = match vouch {
            Some((checkpoint, snapshot)) => {
                let snapshot: Vec<u8> = snapshot;
                snapshot::check(&snapshot)?;
                Some(Arc::new(Vouch { checkpoint, snapshot }))
            }
            None => None,
        };
        Ok(Manifest {
            next_run,
            runs,
            vouch,
        })
    }

    /// Reads the manifest of a directory; `None` if it has none.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(NAME);
        match std::fs::read(&path) {
            Ok(bytes) => Self::decode(&bytes).map(Some).map_err(malformed),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(read_failed(&path, &error)),
        }
    }

    /// Makes this the manifest of a directory, durably and as a whole. The runs that it names are durable already, but
    /// for their names.
    pub(super) fn replace(&self, dir: &Path) -> Result<(), StoreError> {
        let (path, partial) = (dir.join(NAME), dir.join(PARTIAL));
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&partial)?;
            file.write_all(&self.encode())?;
            file.sync_data()
        };
        write().map_err(|error| failed(&partial, &error))?;
        // A manifest must not be on disk before the names of its runs are.
        sync_dir(dir)?;
        failpoint::hit("index.before_rename");
        std::fs::rename(&partial, &path).map_err(|error| failed(&path, &error))?;
        sync_dir(dir)?;
        failpoint::hit("index.after_rename");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fold::Fold;
    use crate::keys::Checkpoint;
    use effectd_contracts::digest::hex;

    #[test]
    fn the_bytes_of_a_manifest_stay_what_they_are() {
        let manifest = Manifest {
            next_run: 9,
            runs: vec![(8, 1), (300, 0x0203_0405)],
            vouch: Some(Arc::new(Vouch {
                checkpoint: Checkpoint { seq: 7, checksum: 9 },
                snapshot: Fold::default().snapshot(7),
            })),
        };
        let bytes = manifest.encode();
        assert_eq!(hex(&bytes), GOLDEN);
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            assert!(Manifest::decode(&other).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut off at {at}");
        }
    }

    const GOLDEN: &str = concat!(
        "0f6566666563746420696e646578203309020801ac0285888c1001070927126566666563746420736e61707368",
        "6f74203307000000000000000000000000000000ec77374e68579192",
    );

    #[test]
    fn a_manifest_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(None));
        Manifest::empty().replace(dir.path()).unwrap();
        let newer = Manifest {
            next_run: 2,
            ..Manifest::empty()
        };
        std::fs::write(dir.path().join(PARTIAL), b"cut off by a crash").unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(Some(Manifest::empty())));
        newer.replace(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(Some(newer)));
    }
}
