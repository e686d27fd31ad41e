//! Going through folders, with bounds on how far and how much.

use std::ffi::CStr;
use std::os::fd::AsFd;

use effectd_contracts::Seen;
use nix::dir::Dir;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use super::look::{FileKind, Stat};
use super::{FOLDER, FileProblem, Workspace};
use crate::limits::{EXTRACT_ENTRIES_MAX, EXTRACT_PATHS_BYTES_MAX, WALK_DEPTH_MAX, WALK_ENTRIES_MAX};
use crate::spacepath::{SpacePath, is_draft};

/// One thing that was come by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    /// Where.
    pub path: SpacePath,
    /// What.
    pub stat: Stat,
}

/// What a walk came by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// Everything, folder by folder, each in the order of its names.
    pub entries: Vec<WalkEntry>,
    /// A bound was reached, or something could not be read: there is more.
    pub partial: bool,
    /// Names that are not UTF-8 and cannot be told.
    pub unnamed: u64,
}

impl Workspace<'_> {
    /// Goes through a folder, and with `deep` through all beneath it. Links are told and not followed. What cannot be read
    /// beneath the first folder makes the walk partial, not wrong.
    pub fn walk(&self, from: &SpacePath, deep: bool) -> Result<Walk, FileProblem> {
        let mut walk = Walk::default();
        let mut waiting = vec![(from.clone(), 0)];
        while let Some((folder, depth)) = waiting.pop() {
            let names = match self.names(&folder, &mut walk) {
                Ok(names) => names,
                Err(problem) if depth == 0 => return Err(problem),
                Err(_) => {
                    walk.partial = true;
                    continue;
                }
            };
            let begun = walk.entries.len();
            for (name, stat) in names {
                if walk.entries.len() >= WALK_ENTRIES_MAX {
                    walk.partial = true;
                    return Ok(walk);
                }
                let path = folder.child(&name);
                walk.entries.push(WalkEntry { path, stat });
            }
            let folders = walk.entries[begun..]
                .iter()
                .rev()
                .filter(|e| e.stat.kind == FileKind::Folder);
            let folders: Vec<_> = folders.map(|entry| (entry.path.clone(), depth + 1)).collect();
            if deep && depth + 1 < WALK_DEPTH_MAX {
                waiting.extend(folders);
            } else if deep && !folders.is_empty() {
                walk.partial = true;
            }
        }
        Ok(walk)
    }

    /// What stands at every path beneath a folder, with digests; `None` if that is more than one receipt can list, or not all
    /// of it can be told.
    pub fn look_beneath(&self, folder: &SpacePath) -> Result<Option<Vec<Seen>>, FileProblem> {
        let walk = self.walk(folder, true)?;
        let names: usize = walk.entries.iter().map(|entry| entry.path.relative().len()).sum();
        // Folders on the way to what an archive lists need not be listed themselves.
        let many = walk.entries.len() > 2 * EXTRACT_ENTRIES_MAX || names > EXTRACT_PATHS_BYTES_MAX;
        if walk.partial || walk.unnamed > 0 || many {
            return Ok(None);
        }
        let look = |entry: &WalkEntry| {
            let standing = self.standing(&entry.path, 0)?.0;
            let path = entry.path.to_string();
            Ok(Seen::new(path, standing))
        };
        walk.entries.iter().map(look).collect::<Result<_, _>>().map(Some)
    }

    /// The names in a folder, in their order. No more are read than a walk may come by.
    fn names(&self, folder: &SpacePath, walk: &mut Walk) -> Result<Vec<(String, Stat)>, FileProblem> {
        let handle = self
            .open(folder, FOLDER)
            .map_err(FileProblem::at("open the folder"))?;
        let mut dir = Dir::from_fd(handle).map_err(FileProblem::at("read the folder"))?;
        let mut read: Vec<std::ffi::CString> = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(FileProblem::at("read the folder"))?;
            let name: &CStr = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if read.len() > WALK_ENTRIES_MAX {
                walk.partial = true;
                break;
            }
            read.push(name.to_owned());
        }
        let mut names = Vec::with_capacity(read.len());
        for name in read {
            let Ok(text) = name.to_str() else {
                walk.unnamed += 1;
                continue;
            };
            if is_draft(text) {
                continue;
            }
            // It may be gone by now, and then it is not told.
            if let Ok(stat) = fstatat(dir.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                names.push((text.to_owned(), Stat::of(&stat)));
            }
        }
        names.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(names)
    }
}
