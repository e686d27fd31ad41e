//! The manifest: the runs of the index, and the last block that they hold.
//!
//! One small file that is replaced atomically, so that runs, block and snapshot always belong together.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

use super::Applied;
use super::chunk::malformed;
use super::run::{RunName, read_failed};
use crate::codec::{self, Malformed, OTHER_FORMAT};
use crate::error::StoreError;
use crate::failpoint;
use crate::files::{io_error, private, sync_dir};

pub(super) const NAME: &str = "manifest";
const PARTIAL: &str = "manifest.partial";
const MARK: &str = "effectd index 5";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) next_run: u64,
    /// The newest first.
    pub(super) runs: Vec<RunName>,
    /// `None` while there is no run.
    pub(super) applied: Option<Arc<Applied>>,
}

impl Manifest {
    pub(super) fn empty() -> Self {
        Manifest { next_run: 1, runs: Vec::new(), applied: None }
    }

    fn encode(&self) -> Vec<u8> {
        let applied = self.applied.as_ref();
        let applied = applied.map(|applied| (applied.seq, applied.checksum, &applied.snapshot));
        codec::encode_marked(MARK, &(self.next_run, &self.runs, applied))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (next_run, runs, applied): (_, _, Option<(u64, u32, Vec<u8>)>) =
            codec::decode_marked(MARK, bytes)?;
        let applied = applied.map(|(seq, checksum, snapshot)| Arc::new(Applied { seq, checksum, snapshot }));
        Ok(Manifest { next_run, runs, applied })
    }

    /// The manifest of a directory, if it has one. That of another version counts as none: its index is rebuilt.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(NAME);
        match std::fs::read(&path) {
            Ok(bytes) => match Self::decode(&bytes) {
                Err(OTHER_FORMAT) => {
                    tracing::info!("the index is of another version; it is rebuilt from the journal");
                    Ok(None)
                }
                read => read.map(Some).map_err(malformed),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(read_failed(&path, error)),
        }
    }

    /// Replaces the manifest of a directory, atomically and durably. The caller has synced the content of the runs.
    pub(super) fn replace(&self, dir: &Path) -> Result<(), StoreError> {
        let (path, partial) = (dir.join(NAME), dir.join(PARTIAL));
        let write = || -> std::io::Result<()> {
            let mut file = private().write(true).create(true).truncate(true).open(&partial)?;
            file.write_all(&self.encode())?;
            file.sync_data()
        };
        write().map_err(|error| io_error(&partial, error))?;
        // The names of the runs must be durable before the manifest is.
        sync_dir(dir)?;
        failpoint::hit("index.before_rename");
        std::fs::rename(&partial, &path).map_err(|error| io_error(&path, error))?;
        sync_dir(dir)?;
        failpoint::hit("index.after_rename");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::digest::{hex, unhex};

    #[test]
    fn the_bytes_of_a_manifest_stay_what_they_are() {
        let manifest = Manifest {
            next_run: 9,
            runs: vec![(8, 1), (300, 0x0203_0405)],
            applied: Some(Arc::new(Applied { seq: 7, checksum: 9, snapshot: unhex(SNAPSHOT).unwrap() })),
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

    /// The snapshot of an empty state.
    const SNAPSHOT: &str = "126566666563746420736e617073686f74203307000000000000000000000000000000ec77374e";
    const GOLDEN: &str = concat!(
        "0f6566666563746420696e646578203509020801ac0285888c1001070927126566666563746420736e61707368",
        "6f74203307000000000000000000000000000000ec77374e6d8a6426",
    );

    #[test]
    fn a_manifest_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(None));
        Manifest::empty().replace(dir.path()).unwrap();
        let newer = Manifest { next_run: 2, ..Manifest::empty() };
        std::fs::write(dir.path().join(PARTIAL), b"cut off by a crash").unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(Some(Manifest::empty())));
        newer.replace(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(Some(newer)));
    }

    #[test]
    fn an_index_of_another_version_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut older = codec::encode_marked("effectd index 3", &(1_u64, "whatever it had"));
        std::fs::write(dir.path().join(NAME), &older).unwrap();
        assert_eq!(Manifest::read(dir.path()), Ok(None));
        older[3] ^= 1;
        std::fs::write(dir.path().join(NAME), &older).unwrap();
        assert!(Manifest::read(dir.path()).is_err());
    }
}
