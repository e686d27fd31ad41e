//! The digest of a folder's listing: an approval to move a folder is an approval for what is in it.
//!
//! The digest covers the listing and not the contents, because a folder may hold more than can be read twice. Every
//! change of a file, its permissions or its name updates the time of its last change. Nobody can set that time back, and
//! a move of the folder does not change it. So the same listing beneath another path means the same folder.

use effectd_contracts::{Digest, FolderListing, PathSnapshot, PathState};
use sha2::{Digest as _, Sha256};

use super::{FileProblem, Workspace};
use crate::limits::TREE_DIGEST_ENTRIES_MAX;
use crate::spacepath::SpacePath;

impl Workspace<'_> {
    pub fn tree_digest(&self, folder: &SpacePath) -> Result<FolderListing, FileProblem> {
        let walk = self.walk(folder, true)?;
        if walk.partial || walk.unnamed > 0 || walk.entries.len() > TREE_DIGEST_ENTRIES_MAX {
            return Ok(FolderListing::TooMuch);
        }
        let above = folder.to_string().len();
        let mut hasher = Sha256::new();
        for entry in &walk.entries {
            let (path, stat) = (entry.path.to_string(), entry.stat);
            let name = path.get(above..).unwrap_or(&path);
            // The encoding is unambiguous: names have no NUL, and the other fields have fixed lengths.
            hasher.update(name);
            hasher.update([0]);
            hasher.update([stat.kind as u8]);
            hasher.update(stat.bytes.to_le_bytes());
            hasher.update(stat.mode.to_le_bytes());
            hasher.update(stat.changed.0.to_le_bytes());
            hasher.update(stat.changed.1.to_le_bytes());
        }
        let digest = Digest::from_bytes(hasher.finalize().into());
        Ok(FolderListing::Listed(digest.to_string()))
    }

    /// The state of a path, with the digest of its listing if it is a folder.
    pub fn inspect_tree(&self, path: &SpacePath) -> Result<PathSnapshot, FileProblem> {
        let mut seen = PathSnapshot::new(path.to_string(), self.standing(path, 0)?.0);
        if seen.standing == PathState::Folder {
            seen.inside = Some(self.tree_digest(path)?);
        }
        Ok(seen)
    }

    /// Checks that a folder still has this listing, if one was recorded.
    pub(super) fn check_tree(
        &self,
        folder: &SpacePath,
        seen: Option<&FolderListing>,
    ) -> Result<(), FileProblem> {
        match seen {
            None | Some(FolderListing::TooMuch) => Ok(()),
            Some(listed @ FolderListing::Listed(_)) if &self.tree_digest(folder)? == listed => Ok(()),
            Some(FolderListing::Listed(_)) => Err(FileProblem::Changed),
        }
    }
}
