//! A scan of folders by names, sizes and times: fast, and enough to notice a change.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use effectd_contracts::{Mark, Scan};
use nix::dir::Dir;
use nix::fcntl::{AtFlags, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};

use super::walk::names;
use super::{FOLDER, FileProblem, Workspace, beneath};
use crate::limits::WALK_DEPTH_MAX;
use crate::spacepath::SpacePath;

impl Workspace<'_> {
    /// Scans these folders and everything beneath them, up to a number of entries. Unlike a walk, it includes drafts.
    pub fn scan(&self, folders: &[SpacePath], entries_max: usize) -> Result<Scan, FileProblem> {
        let mut scan = Scan { marks: BTreeMap::new(), complete: true };
        for folder in folders {
            self.scan_one(folder, entries_max, &mut scan)?;
        }
        Ok(scan)
    }

    fn scan_one(&self, from: &SpacePath, entries_max: usize, scan: &mut Scan) -> Result<(), FileProblem> {
        // Folders are opened one after the other: there may be more than a process may have open.
        let mut waiting = vec![(from.relative().into_bytes(), from.to_string(), 0)];
        while let Some((place, path, depth)) = waiting.pop() {
            let how = beneath(FOLDER, Mode::empty());
            let Ok(folder) = openat2(self.base(from), place.as_slice(), how) else {
                // If `from` itself cannot be opened, it counts as empty; any other folder makes the scan incomplete.
                scan.complete &= depth == 0;
                continue;
            };
            let mut dir = Dir::from_fd(folder).map_err(FileProblem::at("read the folder"))?;
            if depth == 0 {
                let stat = fstat(dir.as_fd()).map_err(FileProblem::at("inspect the folder"))?;
                scan.marks.insert(path.clone(), mark(&stat));
            }
            let room = entries_max.saturating_sub(scan.marks.len());
            let (names, is_all) = names(&mut dir, room)?;
            scan.complete &= is_all;
            for name in names {
                let Ok(stat) = fstatat(dir.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
                    // The entry was removed meanwhile.
                    continue;
                };
                let path = match name.to_str() {
                    Ok(name) => format!("{path}/{name}"),
                    Err(_) => format!("{path}/#{}", stat.st_ino),
                };
                let mark = mark(&stat);
                if mark.is_folder && depth + 1 < WALK_DEPTH_MAX {
                    let beneath = [&place, &b"/"[..], name.to_bytes()].concat();
                    waiting.push((beneath, path.clone(), depth + 1));
                } else if mark.is_folder {
                    scan.complete = false;
                }
                scan.marks.insert(path, mark);
            }
            if scan.marks.len() > entries_max {
                scan.complete = false;
                break;
            }
        }
        Ok(())
    }
}

fn mark(stat: &FileStat) -> Mark {
    let is_folder = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
    Mark {
        is_folder,
        mode: stat.st_mode,
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        changed_ns: i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
        identity: (stat.st_dev, stat.st_ino),
    }
}
