//! Reading every blob of a state directory that nobody uses, without changing anything.
//!
//! A blob opens only with its space in hand, and on disk a space is a hash. So the journal is asked twice: for the spaces, before
//! the blobs are read, and for whoever names those that are damaged, after it. A damaged blob that no receipt names is no loss: a
//! power failure leaves such when it comes while one is written.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use effectd_contracts::SpaceId;

use super::{BlobError, BlobReader, Blobs, DRAFT, Shelf, check_name, folder_of, is_destroyed};

/// Damaged blobs, and notes, that are told one by one; beyond it they are counted. A person reads them.
const TOLD_MAX: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlobsChecked {
    /// Blobs that were read to their end, and are what was stored.
    pub blobs: u64,
    pub bytes: u64,
    pub problems: Vec<String>,
    /// What could not be read, or is damaged, and nobody misses.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub struct BlobsCheck<'a> {
    blobs: &'a Blobs,
    /// The spaces of the folders that there are, by the names of the folders.
    spaces: HashMap<String, Option<SpaceId>>,
    /// What is damaged, by the names of the blobs.
    damaged: BTreeMap<String, Damaged>,
    more: u64,
    found: BlobsChecked,
}

#[derive(Debug, Default)]
struct Damaged {
    what: Vec<String>,
    /// Whether a receipt names it.
    is_missed: bool,
}

impl<'a> BlobsCheck<'a> {
    pub fn begin(blobs: &'a Blobs) -> Result<Self, BlobError> {
        let names = blobs.folders()?.into_iter().filter_map(|folder| {
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

    /// A space that the journal names.
    pub fn space(&mut self, space: &SpaceId) {
        if let Some(known @ None) = self.spaces.get_mut(&folder_of(space)) {
            *known = Some(space.clone());
        }
    }

    /// Reads and authenticates all blobs, one piece at a time; whether anything is damaged.
    pub fn read(&mut self) -> Result<bool, BlobError> {
        for (folder, space) in self.spaces.clone() {
            for shelf in [Shelf::Preimages, Shelf::Artifacts] {
                let path = self.blobs.root.join(shelf.folder()).join(&folder);
                match &space {
                    Some(space) if path.is_dir() => self.shelf(shelf, space, &path)?,
                    None if path.is_dir() => self.note(format!(
                        "the blobs in {} were not read: no record names their space any more",
                        path.display()
                    )),
                    Some(_) | None => {}
                }
            }
        }
        Ok(!self.damaged.is_empty())
    }

    fn shelf(&mut self, shelf: Shelf, space: &SpaceId, folder: &Path) -> Result<(), BlobError> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if check_name(&name).is_err() {
                if !name.starts_with(DRAFT) {
                    self.note(format!("{} is no blob", path.display()));
                }
            } else if !is_destroyed(&path)? {
                match self.blobs.open(shelf, space, &name).and_then(drain) {
                    Ok(bytes) => {
                        self.found.blobs += 1;
                        self.found.bytes += bytes;
                    }
                    Err(error) => self.damaged(name, format!("{}: {error}", path.display())),
                }
            }
        }
        Ok(())
    }

    fn damaged(&mut self, name: String, what: String) {
        if self.damaged.len() >= TOLD_MAX {
            self.more += 1;
            return;
        }
        self.damaged.entry(name).or_default().what.push(what);
    }

    fn note(&mut self, what: String) {
        if self.found.notes.len() < TOLD_MAX {
            self.found.notes.push(what);
        }
    }

    /// A receipt, which may name what is damaged.
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
            found
                .problems
                .push(format!("{} more blobs are damaged", self.more));
        }
        found
    }
}

/// Reads a blob to its end; how long its content is.
fn drain(mut reader: BlobReader) -> Result<u64, BlobError> {
    while reader.piece()?.is_some() {}
    Ok(reader.bytes())
}

#[cfg(test)]
mod tests;
