//! A walk through folders, bounded in depth and number.

use std::ffi::CString;
use std::os::fd::AsFd;

use effectd_contracts::PathSnapshot;
use nix::dir::Dir;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use super::inspect::{FileKind, Stat};
use super::{FOLDER, FileProblem, Workspace};
use crate::limits::{EXTRACT_ENTRIES_MAX, EXTRACT_PATHS_BYTES_MAX, WALK_DEPTH_MAX, WALK_ENTRIES_MAX};
use crate::spacepath::{SpacePath, is_draft};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    pub path: SpacePath,
    pub stat: Stat,
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// Folder by folder, each in the order of its names.
    pub entries: Vec<WalkEntry>,
    /// Whether entries are missing, because a limit was reached or something could not be read.
    pub partial: bool,
    /// The number of names that are not UTF-8.
    pub unnamed: u64,
    /// The number of names that only drafts have.
    pub drafts: u64,
}

impl Workspace<'_> {
    /// Lists a folder, and with `deep` everything beneath it. Links are listed and not followed. If something beneath the
    /// first folder cannot be read, the walk is partial.
    pub fn walk(&self, from: &SpacePath, deep: bool) -> Result<Walk, FileProblem> {
        let mut walk = Walk::default();
        let mut waiting = vec![(from.clone(), 0)];
        while let Some((folder, depth)) = waiting.pop() {
            let names = match self.entries(&folder, &mut walk) {
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
            let folders = walk.entries[begun..].iter().rev().filter(|e| e.stat.kind == FileKind::Folder);
            let folders: Vec<_> = folders.map(|entry| (entry.path.clone(), depth + 1)).collect();
            if deep && depth + 1 < WALK_DEPTH_MAX {
                waiting.extend(folders);
            } else if deep && !folders.is_empty() {
                walk.partial = true;
            }
        }
        Ok(walk)
    }

    /// The state of every path beneath a folder, with digests; `None` if there are more than one receipt can list, or
    /// some cannot be read or have names that no tool takes.
    pub fn inspect_beneath(&self, folder: &SpacePath) -> Result<Option<Vec<PathSnapshot>>, FileProblem> {
        let walk = self.walk(folder, true)?;
        let names: usize = walk.entries.iter().map(|entry| entry.path.relative().len()).sum();
        // Twice the entries of an archive, because an archive need not list the folders of its files.
        let many = walk.entries.len() > 2 * EXTRACT_ENTRIES_MAX || names > EXTRACT_PATHS_BYTES_MAX;
        let is_odd = |entry: &WalkEntry| SpacePath::parse(&entry.path.to_string()).is_err();
        let odd = walk.unnamed + walk.drafts > 0 || walk.entries.iter().any(is_odd);
        if walk.partial || odd || many {
            return Ok(None);
        }
        let inspect = |entry: &WalkEntry| {
            let standing = self.standing(&entry.path, 0)?.0;
            Ok(PathSnapshot::new(entry.path.to_string(), standing))
        };
        walk.entries.iter().map(inspect).collect::<Result<_, _>>().map(Some)
    }

    /// The entries of a folder, in the order of their names.
    fn entries(&self, folder: &SpacePath, walk: &mut Walk) -> Result<Vec<(String, Stat)>, FileProblem> {
        let handle = self.open(folder, FOLDER).map_err(FileProblem::at("open the folder"))?;
        let mut dir = Dir::from_fd(handle).map_err(FileProblem::at("read the folder"))?;
        let (read, is_all) = names(&mut dir, WALK_ENTRIES_MAX)?;
        walk.partial |= !is_all;
        let mut names = Vec::with_capacity(read.len());
        for name in read {
            let Ok(text) = name.to_str() else {
                walk.unnamed += 1;
                continue;
            };
            if is_draft(text) {
                walk.drafts += 1;
                continue;
            }
            // An entry that is gone by now is not listed.
            if let Ok(stat) = fstatat(dir.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                names.push((text.to_owned(), Stat::of(&stat)));
            }
        }
        names.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(names)
    }
}

/// The names in a folder, and whether these are all: reading stops after `max`.
pub(super) fn names(dir: &mut Dir, max: usize) -> Result<(Vec<CString>, bool), FileProblem> {
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry.map_err(FileProblem::at("read the folder"))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if names.len() > max {
            return Ok((names, false));
        }
        names.push(name.to_owned());
    }
    Ok((names, true))
}
