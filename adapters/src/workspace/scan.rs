//! What stands in a folder, by names, sizes and times alone: enough to see that something has changed, and quick.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};

use super::{FOLDER, FileProblem, Workspace, beneath};
use crate::limits::WALK_DEPTH_MAX;
use crate::spacepath::SpacePath;

/// Something in a folder, without its content. The kernel sets the time of the last change itself, and nobody in the sandbox
/// can set it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Its permissions and kind.
    pub mode: u32,
    /// Its size.
    pub bytes: u64,
    /// When anything about it was last changed, in nanoseconds since 1970.
    pub changed_ns: i128,
    /// Which one it is, whatever it is called.
    pub identity: (u64, u64),
}

/// All that is in some folders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// By their paths, as requests write them. A name that is not UTF-8 is told by its number.
    pub marks: BTreeMap<String, Mark>,
    /// Whether that is all; otherwise there was more than was to be looked at, or some could not be read.
    pub complete: bool,
}

impl Workspace<'_> {
    /// Looks at these folders and all that is beneath them, up to so many. Unlike a walk it also tells what is unfinished.
    pub fn scan(&self, folders: &[SpacePath], entries_max: usize) -> Result<Scan, FileProblem> {
        let mut scan = Scan {
            marks: BTreeMap::new(),
            complete: true,
        };
        for folder in folders {
            self.scan_one(folder, entries_max, &mut scan)?;
        }
        Ok(scan)
    }

    fn scan_one(&self, from: &SpacePath, entries_max: usize, scan: &mut Scan) -> Result<(), FileProblem> {
        // Each is opened when it is its turn: there may be more of them than a process may have open.
        let mut waiting = vec![(from.relative().into_bytes(), from.to_string(), 0)];
        while let Some((place, path, depth)) = waiting.pop() {
            let how = beneath(FOLDER, Mode::empty());
            let Ok(folder) = openat2(self.base(from), place.as_slice(), how) else {
                // Not there, or not to be read: then nothing in it is known.
                scan.complete &= depth == 0;
                continue;
            };
            let mut dir = Dir::from_fd(folder).map_err(FileProblem::at("read the folder"))?;
            if depth == 0 {
                let stat = fstat(dir.as_fd()).map_err(FileProblem::at("look at the folder"))?;
                scan.marks.insert(path.clone(), Mark::of(&stat));
            }
            let mut names = Vec::new();
            for entry in dir.iter() {
                let name = entry
                    .map_err(FileProblem::at("read the folder"))?
                    .file_name()
                    .to_owned();
                if name.as_c_str() != c"." && name.as_c_str() != c".." {
                    names.push(name);
                }
                if scan.marks.len() + names.len() > entries_max {
                    scan.complete = false;
                    break;
                }
            }
            for name in names {
                let Ok(stat) = fstatat(dir.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
                    // Gone meanwhile.
                    continue;
                };
                let path = match name.to_str() {
                    Ok(name) => format!("{path}/{name}"),
                    Err(_) => format!("{path}/#{}", stat.st_ino),
                };
                let mark = Mark::of(&stat);
                if mark.is_folder && depth + 1 < WALK_DEPTH_MAX {
                    let beneath = [&place, &b"/"[..], name.to_bytes()].concat();
                    waiting.push((beneath, path.clone(), depth + 1));
                } else if mark.is_folder {
                    scan.complete = false;
                }
                scan.marks.insert(path, mark);
            }
            // What was come by until then is told.
            if scan.marks.len() > entries_max {
                scan.complete = false;
                break;
            }
        }
        Ok(())
    }
}

impl Mark {
    fn of(stat: &FileStat) -> Self {
        let is_folder = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        Self {
            is_folder,
            mode: stat.st_mode,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            changed_ns: i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec),
            identity: (stat.st_dev, stat.st_ino),
        }
    }
}
