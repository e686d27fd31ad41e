//! Verification of all blobs of a state directory that no process uses, without changing anything.
//!
//! Opening a blob needs its space, but the folder's name is only a hash of the space. So the journal is read twice: before
//! the blobs, for the spaces; after them, for the receipts that name damaged blobs. A damaged blob that no receipt names is
//! no loss: a power failure during its write leaves one. Nor is a damaged result, which is written without a sync.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use effectd_contracts::SpaceId;

use super::{BlobError, BlobKind, BlobReader, Blobs, DRAFT, check_name, folder_of, is_destroyed};

/// Most damaged blobs, and most notes, that are listed.
const LISTED_MAX: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlobsChecked {
    /// Undamaged blobs.
    pub blobs: u64,
    pub bytes: u64,
    pub problems: Vec<String>,
    /// Folders and files that could not be read as blobs, and damage that loses no data.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub struct BlobsCheck<'a> {
    blobs: &'a Blobs,
    /// The space of each folder, by the folder's name; `None` until the journal names the space.
    spaces: HashMap<String, Option<SpaceId>>,
    /// Damaged blobs, by name.
    damaged: BTreeMap<String, Damaged>,
    more: u64,
    found: BlobsChecked,
}

#[derive(Debug, Default)]
struct Damaged {
    what: Vec<String>,
    /// Whether the blob is missed: a receipt names it, or it is a definition.
    is_missed: bool,
}

impl<'a> BlobsCheck<'a> {
    pub fn begin(blobs: &'a Blobs) -> Result<Self, BlobError> {
        let names = blobs.folders(&BlobKind::ALL)?.into_iter().filter_map(|(_, folder)| {
            let name = folder.file_name()?.to_str()?;
            Some((name.to_owned(), None))
        });
        Ok(Self {
            blobs,
            spaces: names.collect(),
            damaged: BTreeMap::new(),
            more: 0,
            found: BlobsChecked::default(),
        })
    }

    /// Takes a space that the journal names.
    pub fn space(&mut self, space: &SpaceId) {
        if let Some(known @ None) = self.spaces.get_mut(&folder_of(space)) {
            *known = Some(space.clone());
        }
    }

    /// Reads and authenticates all blobs; returns whether one is damaged.
    pub fn read(&mut self) -> Result<bool, BlobError> {
        for (folder, space) in self.spaces.clone() {
            for kind in BlobKind::ALL {
                let path = self.blobs.root.join(kind.folder()).join(&folder);
                match &space {
                    Some(space) if path.is_dir() => self.folder(kind, space, &path)?,
                    None if path.is_dir() => self.note(format!(
                        "the blobs in {} were not read: no record names their space",
                        path.display()
                    )),
                    Some(_) | None => {}
                }
            }
        }
        Ok(!self.damaged.is_empty())
    }

    fn folder(&mut self, kind: BlobKind, space: &SpaceId, folder: &Path) -> Result<(), BlobError> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if check_name(&name).is_err() {
                if !name.starts_with(DRAFT) {
                    self.note(format!("{} is no blob", path.display()));
                }
            } else if !is_destroyed(&path)? {
                match self.blobs.open(kind, space, &name).and_then(drain) {
                    Ok(bytes) => {
                        self.found.blobs += 1;
                        self.found.bytes += bytes;
                    }
                    Err(error) if !kind.is_durable() => {
                        self.note(format!("{}: {error}; this result is gone", path.display()));
                    }
                    Err(error) => self.damaged(kind, name, format!("{}: {error}", path.display())),
                }
            }
        }
        Ok(())
    }

    fn damaged(&mut self, kind: BlobKind, name: String, what: String) {
        if self.damaged.len() >= LISTED_MAX {
            self.more += 1;
            return;
        }
        let damaged = self.damaged.entry(name).or_default();
        damaged.what.push(what);
        // An automation names it, and no receipt does.
        damaged.is_missed |= kind == BlobKind::Definitions;
    }

    fn note(&mut self, what: String) {
        if self.found.notes.len() < LISTED_MAX {
            self.found.notes.push(what);
        }
    }

    /// Takes a receipt, which may name a damaged blob.
    pub fn receipt(&mut self, body: &[u8]) {
        for digits in body.split(|byte| !byte.is_ascii_hexdigit()) {
            if digits.len() == 64
                && let Ok(name) = std::str::from_utf8(digits)
                && let Some(damaged) = self.damaged.get_mut(name)
            {
                damaged.is_missed = true;
            }
        }
    }

    pub fn finish(self) -> BlobsChecked {
        let mut found = self.found;
        for Damaged { what, is_missed } in self.damaged.into_values() {
            if is_missed {
                found.problems.extend(what);
            } else {
                let unmissed = what.iter().map(|what| format!("{what}; no receipt names it"));
                found.notes.extend(unmissed);
            }
        }
        if self.more > 0 {
            found.problems.push(format!("{} more blobs are damaged", self.more));
        }
        found
    }
}

/// Reads a blob to its end; returns the length of its content.
fn drain(mut reader: BlobReader) -> Result<u64, BlobError> {
    while reader.piece()?.is_some() {}
    Ok(reader.bytes())
}

#[cfg(test)]
mod tests;
