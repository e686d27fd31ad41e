//! What is in a folder, as one digest: whoever agrees that a folder goes elsewhere agrees to what is in it.
//!
//! The listing is compared, not the contents: a folder may hold more than anybody wants to read twice. Every change of a file, of
//! its permissions or of a name moves the moment of the last change, which nobody can set back; and a folder that is moved
//! takes what is in it along unchanged. So the same listing beneath another path is the same folder.

use effectd_contracts::{Digest, Inside, Seen, Standing};
use sha2::{Digest as _, Sha256};

use super::{FileProblem, Workspace};
use crate::limits::INSIDE_ENTRIES_MAX;
use crate::spacepath::SpacePath;

impl Workspace<'_> {
    /// What is in a folder.
    pub fn inside(&self, folder: &SpacePath) -> Result<Inside, FileProblem> {
        let walk = self.walk(folder, true)?;
        if walk.partial || walk.unnamed > 0 || walk.entries.len() > INSIDE_ENTRIES_MAX {
            return Ok(Inside::TooMuch);
        }
        let above = folder.to_string().len();
        let mut hasher = Sha256::new();
        for entry in &walk.entries {
            let (path, stat) = (entry.path.to_string(), entry.stat);
            let name = path.get(above..).unwrap_or(&path);
            // Names have no NUL in them, and the rest is as long for each.
            hasher.update(name);
            hasher.update([0]);
            hasher.update([stat.kind as u8]);
            hasher.update(stat.bytes.to_le_bytes());
            hasher.update(stat.mode.to_le_bytes());
            hasher.update(stat.changed.0.to_le_bytes());
            hasher.update(stat.changed.1.to_le_bytes());
        }
        let digest = Digest::from_bytes(hasher.finalize().into());
        Ok(Inside::Listed(digest.to_string()))
    }

    /// What stands at a path, with what is in it if it is a folder.
    pub fn see_whole(&self, path: &SpacePath) -> Result<Seen, FileProblem> {
        let mut seen = Seen::new(path.to_string(), self.standing(path, 0)?.0);
        if seen.standing == Standing::Folder {
            seen.inside = Some(self.inside(path)?);
        }
        Ok(seen)
    }

    /// Whether a folder still holds what was seen in it, as far as that was compared.
    pub(super) fn check_inside(&self, folder: &SpacePath, seen: Option<&Inside>) -> Result<(), FileProblem> {
        match seen {
            None | Some(Inside::TooMuch) => Ok(()),
            Some(listed @ Inside::Listed(_)) if &self.inside(folder)? == listed => Ok(()),
            Some(Inside::Listed(_)) => Err(FileProblem::Changed),
        }
    }
}
