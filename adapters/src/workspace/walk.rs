//! A walk through folders, bounded in depth and number.

use std::ffi::{CString, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use effectd_contracts::{Beneath, Code, Failure, LinkedFile, PathSnapshot, quoted};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use super::inspect::{FileKind, Stat};
use super::{FOLDER, FileProblem, Workspace};
use crate::limits::{EXTRACT_ENTRIES_MAX, EXTRACT_PATHS_BYTES_MAX, WALK_DEPTH_MAX, WALK_ENTRIES_MAX};
use crate::spacepath::{PathInvalid, SpacePath, is_draft};

const TOO_MANY: &str = "the folder has more files and folders than can be listed";

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
    /// Why the first path that is not listed is not, as in [`Beneath::missing`].
    pub missing: Option<(Code, String)>,
}

impl Walk {
    fn miss(&mut self, path: impl AsRef<Path>, code: Code, why: &str) {
        self.missing.get_or_insert_with(|| (code, format!("{why}: {}", quoted(path))));
    }

    fn leave_out(&mut self, folder: &SpacePath, code: Code, why: &str) {
        self.partial = true;
        self.miss(folder.to_string(), code, why);
    }
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
                Err(problem) => {
                    let is_gone = problem.errno() == Some(Errno::ENOENT);
                    let code = if is_gone { Code::ToolBusy } else { Failure::from(problem).code };
                    walk.leave_out(&folder, code, "the folder cannot be read");
                    continue;
                }
            };
            let begun = walk.entries.len();
            for (name, stat) in names {
                if walk.entries.len() >= WALK_ENTRIES_MAX {
                    walk.leave_out(&folder, Code::FileLimit, TOO_MANY);
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
                walk.leave_out(&folder, Code::FileLimit, "the folder is too deep");
            }
        }
        Ok(walk)
    }

    /// What lies beneath a folder. Without `digests` no file is read, and the digests are empty. Of a path that is a file, only
    /// whether it has other names.
    pub fn inspect_beneath(&self, from: &SpacePath, digests: bool) -> Result<Beneath, FileProblem> {
        let mut found = Beneath::default();
        let stat = self.stat(from)?;
        if stat.is_none_or(|stat| stat.kind != FileKind::Folder) {
            found.linked.extend(stat.and_then(|stat| linked(from.to_string(), &stat)));
            return Ok(found);
        }
        let mut walk = self.walk(from, true)?;
        let mut bytes = 0;
        for WalkEntry { path, stat } in std::mem::take(&mut walk.entries) {
            let name = path.to_string();
            if let Err(why) = SpacePath::parse(&name) {
                let code = if why == PathInvalid::TooLong { Code::FileLimit } else { Code::PathDenied };
                walk.miss(name, code, &why.to_string());
                continue;
            }
            bytes += path.relative().len();
            // Twice the entries of an archive, because an archive need not list the folders of its files.
            if found.seen.len() >= 2 * EXTRACT_ENTRIES_MAX || bytes > EXTRACT_PATHS_BYTES_MAX {
                walk.miss(from.to_string(), Code::FileLimit, TOO_MANY);
                break;
            }
            let standing =
                if digests { self.standing(&path, 0).map(|(standing, _)| standing) } else { stat.standing() };
            match standing {
                Ok(standing) => found.seen.push(PathSnapshot::new(name.clone(), standing)),
                Err(problem) => {
                    let Failure { code, message, .. } = problem.into();
                    walk.miss(&name, code, &message);
                }
            }
            found.linked.extend(linked(name, &stat));
        }
        found.missing = walk.missing;
        Ok(found)
    }

    /// The entries of a folder, in the order of their names.
    fn entries(&self, folder: &SpacePath, walk: &mut Walk) -> Result<Vec<(String, Stat)>, FileProblem> {
        let handle = self.open(folder, FOLDER).map_err(FileProblem::at("open the folder"))?;
        let mut dir = Dir::from_fd(handle).map_err(FileProblem::at("read the folder"))?;
        let (read, is_all) = names(&mut dir, WALK_ENTRIES_MAX)?;
        if !is_all {
            walk.leave_out(folder, Code::FileLimit, TOO_MANY);
        }
        let mut names = Vec::with_capacity(read.len());
        for name in read {
            let miss = |walk: &mut Walk, code, why| {
                let path = Path::new(&folder.to_string()).join(OsStr::from_bytes(name.to_bytes()));
                walk.miss(path, code, why);
            };
            let Ok(text) = name.to_str() else {
                walk.unnamed += 1;
                miss(walk, Code::PathDenied, "the name is not UTF-8");
                continue;
            };
            if is_draft(text) {
                // A tool that works there removes it soon.
                miss(walk, Code::ToolBusy, "the name is reserved for unfinished files");
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

fn linked(path: String, stat: &Stat) -> Option<LinkedFile> {
    let has_others = stat.kind == FileKind::File && stat.names > 1;
    has_others.then_some(LinkedFile { path, identity: stat.identity, names: stat.names })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::{Digest, PathState};

    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn digests_are_computed_only_if_they_are_wanted() {
        let place = TestSpace::new();
        place.put("out/file", b"text");
        let out = SpacePath::parse("workspace/out").unwrap();
        for (digests, expected) in [(true, Digest::of(b"text").to_string()), (false, String::new())] {
            let beneath = place.workspace().inspect_beneath(&out, digests).unwrap();
            let PathState::File(state) = &beneath.seen[0].standing else { panic!("{beneath:?}") };
            assert_eq!((&state.digest, state.bytes, beneath.missing), (&expected, 4, None));
        }
    }

    #[test]
    fn the_reason_comes_before_the_path_that_is_not_listed() {
        let place = TestSpace::new();
        let out = SpacePath::parse("workspace/out").unwrap();
        let long = format!("{}/", "d".repeat(200)).repeat(12);
        for (name, code, why) in [
            ("a\nb".to_owned(), Code::PathDenied, "the path contains a control character: "),
            (format!("{long}a\nb"), Code::PathDenied, "the path contains a control character: "),
            (".effectd-1.draft".to_owned(), Code::ToolBusy, "the name is reserved for unfinished files: "),
            ("giant".to_owned(), Code::FileLimit, "the file is larger than the 67108864 bytes"),
        ] {
            place.put(&format!("out/{name}"), b"");
            std::fs::File::create(place.path(&format!("out/{name}"))).unwrap().set_len(1 << 30).unwrap();
            for digests in [true, false] {
                let (is, said) = place.workspace().inspect_beneath(&out, digests).unwrap().missing.unwrap();
                let end = name.rsplit('/').next().unwrap().replace('\n', "\\n");
                assert!(is == code && said.starts_with(why) && said.len() < 1_000, "{said}");
                assert!(said.contains(": \"workspace/out/") && said.ends_with(&format!("{end}\"")), "{said}");
            }
            std::fs::remove_dir_all(place.path("out")).unwrap();
        }
    }
}
