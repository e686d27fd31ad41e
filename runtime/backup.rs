//! Backups of a state directory in use, restoring them, and salvaging a damaged state.
//!
//! Journal files only grow at their end. So a copy of each file up to its length at one moment is what a power failure at that
//! moment would have left, and effectd can start from it. The process that has a sled journal open reads it block by block, and
//! the backup holds it as files. The index is not copied: a restore rebuilds it. Nor is the state's id: a restored state is another
//! state. Keys have a directory of their own; sealed data is unreadable without them. Blobs are copied after the journal, so that no blob that it names is missing.
//!
//! A backup is written under a draft name, checked, synced to disk, and then renamed. Its manifest has the length and the digest
//! of each file.

mod dated;
mod restore;
mod salvage;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use effectd_bus::embedded::{EmbeddedConfig, JournalKind, journal_of};
use effectd_bus::journal_copy::{self, JournalWriter};
use effectd_bus::offline::{self, Checked};
use effectd_bus::{Progress, StoreError};
use effectd_contracts::digest::hex;
use effectd_contracts::{Clock, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{AtPath, Error};

pub(crate) use dated::{Dated, make_dated};
pub(crate) use restore::{check_restore, restore};
pub(crate) use salvage::{check_salvage, salvage};

const MANIFEST: &str = "manifest.json";
/// The version of the backup format.
const FORMAT: u32 = 1;
/// The largest manifest: a hundred bytes for each of a million files.
const MANIFEST_BYTES_MAX: u64 = 134_217_728;
/// How often a backup is tried: retention, which runs once an hour, may drop old blocks during a try.
const TRIES: u32 = 5;
/// The lock file of a draft, removed after the rename. If a power failure leaves it behind, it has no effect.
const MARK: &str = ".draft";
const PIECE_BYTES: usize = 65_536;

/// The manifest of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    /// The version of the backup format.
    pub(crate) backup: u32,
    /// `state` or `keys`.
    of: String,
    /// When the backup began.
    pub(crate) made_at: Timestamp,
    /// The number of checked blocks of the journal.
    pub(crate) blocks: u64,
    /// The journal engine of the original state; the backup itself always holds files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    /// Every file of the backup, by its path.
    pub(crate) files: BTreeMap<String, Copied>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    sha256: String,
}

impl Manifest {
    /// A damaged manifest may say anything.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.values().fold(0, |bytes, file| bytes.saturating_add(file.bytes))
    }
}

#[derive(Debug)]
pub(crate) enum BackupError {
    /// Retention dropped old blocks, or the process that had the store open ended. The caller tries again.
    Moved,
    Failed(Error),
}

/// Copies the journal of a state that another process has open. Returns `false` if no such process answers.
pub(crate) type InUse<'a> = &'a dyn Fn(&mut JournalWriter) -> Result<bool, BackupError>;

impl From<Error> for BackupError {
    fn from(error: Error) -> Self {
        BackupError::Failed(error)
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::Request(why.into())
}

/// Checks whether a backup can be made, and changes nothing.
pub(crate) fn check_backup(state: &Path, into: &Path, keys: Option<&Path>) -> Result<JournalKind, Error> {
    let is_there = |name: &str| state.join("journal").join(name).is_dir();
    if !is_there("segments") && !is_there("sled") {
        return Err(refused(format!("{} has no store yet", state.display())));
    }
    let journal = journal_of(state)?;
    let inside = resolved(state)?;
    for target in [Some(into), keys].into_iter().flatten() {
        if target.exists() {
            return Err(refused(format!("{} already exists; choose a new directory", target.display())));
        }
        if resolved(target)?.starts_with(&inside) {
            return Err(refused(format!(
                "{} is inside the state directory; choose another directory",
                target.display()
            )));
        }
    }
    if let Some(keys) = keys {
        let (copy, keys) = (resolved(into)?, resolved(keys)?);
        if copy.starts_with(&keys) || keys.starts_with(&copy) {
            let why =
                "the keys must not be in the backup that they decrypt; choose another directory for them";
            return Err(refused(why));
        }
    }
    Ok(journal)
}

/// Backs up a state that may be in use, and its keys if `keys` names a directory for them.
pub(crate) fn make(
    state: &Path,
    into: &Path,
    keys: Option<&Path>,
    clock: &dyn Clock,
    in_use: InUse<'_>,
    progress: &Progress,
) -> Result<Manifest, Error> {
    let journal = check_backup(state, into, keys)?;
    for _ in 0..TRIES {
        match attempt((state, journal), into, keys, clock, in_use, progress) {
            Ok(made) => return Ok(made),
            Err(BackupError::Moved) => {}
            Err(BackupError::Failed(error)) => return Err(error),
        }
    }
    Err(refused("retention kept shortening the journal during the backup, or the daemon ended; try again"))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).at(path)
}

/// The absolute path with links resolved; the last components need not exist.
fn resolved(path: &Path) -> Result<PathBuf, Error> {
    let path = absolute(path)?;
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = there else {
        return Ok(path);
    };
    let below = path.strip_prefix(above).unwrap_or(Path::new(""));
    // Joining an empty path would add a slash at the end.
    Ok(if below.as_os_str().is_empty() { real } else { real.join(below) })
}

fn attempt(
    (state, journal): (&Path, JournalKind),
    into: &Path,
    keys: Option<&Path>,
    clock: &dyn Clock,
    in_use: InUse<'_>,
    progress: &Progress,
) -> Result<Manifest, BackupError> {
    let begun = clock.now();
    let mut copy = Draft::begin(state, into, progress)?;
    let mut key_copy = keys.map(|keys| Draft::begin(&state.join("keys"), keys, progress)).transpose()?;
    // Copied before the journal, so that no key of the journal is missing. Keys created meanwhile are copied after the journal.
    if let Some(keys) = &mut key_copy {
        keys.tree("")?;
    }
    // Only this directory has the hashes of old log entries; the hashes of new entries follow from the journal.
    copy.tree("log")?;
    match journal {
        JournalKind::Files => copy.journal_files()?,
        JournalKind::Sled => copy.journal_blocks(in_use)?,
    }
    copy.tree("blobs")?;
    copy.tree("policy")?;
    copy.file("config.toml")?;
    if let Some(keys) = &mut key_copy {
        keys.same_as_before()?;
        keys.tree("")?;
    }
    let checked = check(&copy.path, clock, progress)?;
    // The keys get their final name first, so that a backup with its final name always has its keys.
    if let (Some(copy), Some(keys)) = (key_copy, keys) {
        copy.finish(keys, "keys", begun, 0, None)?;
    }
    Ok(copy.finish(into, "state", begun, checked.blocks, Some(journal))?)
}

/// The names of the checkpoint files, which say where the journal begins.
fn grounds(state: &Path) -> Result<Vec<String>, Error> {
    names(&state.join("journal/segments"), ".ground")
}

fn names(directory: &Path, ending: &str) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).at(directory)? {
        let name = entry.at(directory)?.file_name();
        names.extend(name.into_string().ok().filter(|name| name.ends_with(ending)));
    }
    names.sort();
    Ok(names)
}

/// Reads every block of a backup, and removes the files that this check creates.
fn check(path: &Path, clock: &dyn Clock, progress: &Progress) -> Result<Checked, Error> {
    let config = EmbeddedConfig { progress: progress.clone(), ..EmbeddedConfig::new(path) };
    let checked = offline::check(&config, clock)?;
    if let Some(problem) = checked.problems.first() {
        return Err(refused(format!("the backup is not complete: {problem}")));
    }
    for left in ["index", "journal/lock"] {
        let left = path.join(left);
        let removed = if left.is_dir() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at(&left),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(checked)
}

/// A backup in progress, under a draft name.
struct Draft {
    from: PathBuf,
    path: PathBuf,
    files: BTreeMap<String, Copied>,
    /// The lock file, held locked; `None` for a draft inside another draft.
    mark: Option<File>,
    progress: Progress,
    /// Bytes that were copied, of how many; 0 if that is not known.
    copied: (u64, u64),
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.mark.is_some() {
            // No copy of keys may stay behind. If this fails, the next backup to the same path removes the draft.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Draft {
    fn begin(from: &Path, into: &Path, progress: &Progress) -> Result<Self, Error> {
        // `components` drops a slash at the end, which would put the draft inside the target.
        let mut name = into.components().as_path().as_os_str().to_owned();
        name.push(".partial");
        let path = PathBuf::from(name);
        remove_stale_draft(&path)?;
        make_dir(&path)?;
        let mark = path.join(MARK);
        let file = new_file(&mark).at(&mark)?;
        file.try_lock().map_err(|_| busy(&path))?;
        let mut draft = Self::inside(from, path, progress);
        draft.mark = Some(file);
        Ok(draft)
    }

    /// A draft inside another draft.
    fn inside(from: &Path, path: PathBuf, progress: &Progress) -> Self {
        let (from, progress) = (from.to_owned(), progress.clone());
        Self { from, path, files: BTreeMap::new(), mark: None, progress, copied: (0, 0) }
    }

    fn journal_files(&mut self) -> Result<(), BackupError> {
        let grounds = grounds(&self.from)?;
        self.file("journal/format")?;
        for ground in &grounds {
            self.needed(&format!("journal/segments/{ground}"))?;
        }
        for segment in names(&self.from.join("journal/segments"), ".blocks")? {
            self.needed(&format!("journal/segments/{segment}"))?;
        }
        if self::grounds(&self.from)? != grounds {
            return Err(BackupError::Moved);
        }
        Ok(())
    }

    /// Writes the blocks of a sled journal into files. If another process has the journal open, that process reads the blocks.
    fn journal_blocks(&mut self, in_use: InUse<'_>) -> Result<(), BackupError> {
        let mut writer = JournalWriter::in_files(&self.path).map_err(Error::from)?;
        // Try the lock first: a daemon that answers may serve another state.
        match journal_copy::copy(&EmbeddedConfig::new(&self.from), &mut writer) {
            Err(StoreError::Locked { .. }) => {
                if !in_use(&mut writer)? {
                    return Err(BackupError::Moved);
                }
            }
            copied => copied.map(drop).map_err(Error::from)?,
        }
        writer.finish().map_err(Error::from)?;
        let segments = names(&self.path.join("journal/segments"), "")?;
        let segments = segments.into_iter().map(|name| format!("journal/segments/{name}"));
        for name in segments.chain(["journal/format".to_owned()]) {
            let path = self.path.join(&name);
            let made = File::open(&path).and_then(|file| digest(file, |_| Ok(())));
            self.files.insert(name, made.at(&path)?);
        }
        Ok(())
    }

    /// Checks that the copied files are still the same. If one was changed, removed or overwritten with zeros, the copies are of
    /// different moments, and the backup must be tried again.
    fn same_as_before(&self) -> Result<(), BackupError> {
        for (name, copied) in &self.files {
            let path = self.from.join(name);
            let mut blank = true;
            let now = File::open(&path).and_then(|file| {
                digest(file, |piece| {
                    blank &= piece.iter().all(|byte| *byte == 0);
                    Ok(())
                })
            });
            match now {
                Ok(now) if now == *copied && !(blank && now.bytes > 0) => {}
                Ok(_) => return Err(BackupError::Moved),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(BackupError::Moved),
                Err(error) => return Ok(Err(error).at(&path)?),
            }
        }
        Ok(())
    }

    /// Copies a file that was listed just before. If it is missing, retention has dropped it.
    fn needed(&mut self, name: &str) -> Result<(), BackupError> {
        if self.file(name)? { Ok(()) } else { Err(BackupError::Moved) }
    }

    /// Copies a file up to its present length, unless it is copied already. Returns whether it exists.
    fn file(&mut self, name: &str) -> Result<bool, Error> {
        if self.files.contains_key(name) {
            return Ok(true);
        }
        let (from, to) = (self.from.join(name), self.path.join(name));
        let Some(copied) = copy(&from, &to)? else {
            return Ok(false);
        };
        self.copied.0 += copied.bytes;
        self.progress.at("copying files", self.copied.0, self.copied.1);
        self.files.insert(name.to_owned(), copied);
        Ok(true)
    }

    /// Copies all files of a manifest, and compares each with its entry.
    fn all_of(&mut self, manifest: &Manifest) -> Result<(), Error> {
        self.copied.1 = manifest.bytes();
        for (name, expected) in &manifest.files {
            self.file(name)?;
            if self.files.get(name) != Some(expected) {
                let file = self.from.join(name);
                return Err(refused(format!("{} was changed while it was read", file.display())));
            }
        }
        Ok(())
    }

    /// Copies a directory recursively. Files that disappear meanwhile are left out.
    fn tree(&mut self, name: &str) -> Result<(), Error> {
        let directory = self.from.join(name);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.at(&directory)?,
        };
        for entry in entries {
            let entry = entry.at(&directory)?;
            let kind = match entry.file_type() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                kind => kind.at(&directory)?,
            };
            let Ok(file) = entry.file_name().into_string() else {
                continue;
            };
            let below = if name.is_empty() { file } else { format!("{name}/{file}") };
            if kind.is_dir() {
                self.tree(&below)?;
            } else if kind.is_file() {
                self.file(&below)?;
            }
        }
        Ok(())
    }

    /// Writes the manifest, syncs everything to disk, and renames the draft.
    fn finish(
        mut self,
        into: &Path,
        of: &str,
        made_at: Timestamp,
        blocks: u64,
        journal: Option<JournalKind>,
    ) -> Result<Manifest, Error> {
        let manifest = Manifest {
            backup: FORMAT,
            of: of.to_owned(),
            made_at,
            blocks,
            journal: journal.map(|journal| journal.as_str().to_owned()),
            files: std::mem::take(&mut self.files),
        };
        let path = self.path.join(MANIFEST);
        // Cannot fail: the manifest is plain data with text keys.
        let text = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
        let mut file = new_file(&path).at(&path)?;
        file.write_all(&text).and_then(|()| file.sync_all()).at(&path)?;
        self.put_in_place(into)?;
        Ok(manifest)
    }

    fn put_in_place(mut self, to: &Path) -> Result<(), Error> {
        put_in_place(&self.path, to)?;
        // After the rename, `drop` must not remove the directory.
        self.mark = None;
        let mark = to.join(MARK);
        fs::remove_file(&mark).at(&mark)
    }
}

/// Removes the draft of an interrupted backup. Refuses a draft in progress, and anything that is not a draft.
fn remove_stale_draft(path: &Path) -> Result<(), Error> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    let mark = File::open(path.join(MARK));
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match mark {
        Ok(mark) => mark.try_lock().map_err(|_| busy(path))?,
        // The backup was interrupted before it created the lock file.
        Err(_) if is_empty() => {}
        Err(_) => {
            let why = "exists and is not an interrupted backup; move it away, or choose another directory";
            return Err(refused(format!("{} {why}", path.display())));
        }
    }
    fs::remove_dir_all(path).at(path)
}

fn busy(path: &Path) -> Error {
    refused(format!("another process is writing {}", path.display()))
}

/// Syncs a directory and renames it.
fn put_in_place(from: &Path, to: &Path) -> Result<(), Error> {
    sync_tree(from).at(from)?;
    fs::rename(from, to).at(to)?;
    let to = absolute(to)?;
    let above = to.parent().unwrap_or(Path::new("/"));
    File::open(above).and_then(|above| above.sync_all()).at(above)
}

/// Syncs every file and directory, after all are written: the first sync takes most of the others along.
fn sync_tree(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(directory)?.sync_all()
}

fn make_dir(path: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.at(path)
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Copies a file up to its present length; `None` if it does not exist.
///
/// It copies from the end to the beginning. The journal is written forwards over zeros, so each piece is read after everything
/// that follows it in the file: the copy has every block that was complete at the start, and at most one incomplete block.
fn copy(from: &Path, to: &Path) -> Result<Option<Copied>, Error> {
    let source = match File::open(from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        source => source.at(from)?,
    };
    if let Some(above) = to.parent() {
        make_dir(above)?;
    }
    let length = source.metadata().at(from)?.len();
    let target = new_file(to).at(to)?;
    // A source that gets shorter meanwhile loses only zeros.
    target.set_len(length).at(to)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut end = length;
    while end > 0 {
        let begin = (end - 1) / PIECE_BYTES as u64 * PIECE_BYTES as u64;
        let piece = &mut buffer[..(end - begin) as usize];
        let read = read_at(&source, piece, begin).at(from)?;
        let written = target.write_all_at(&piece[..read], begin);
        written.at(to)?;
        end = begin;
    }
    digest(&target, |_| Ok(())).at(to).map(Some)
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut there = 0;
    while there < into.len() {
        match file.read_at(&mut into[there..], at + there as u64) {
            Ok(0) => break,
            Ok(count) => there += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

fn digest(mut from: impl Read, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Copied> {
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        let piece = buffer.get(..read).unwrap_or_default();
        hasher.update(piece);
        each(piece)?;
        bytes += piece.len() as u64;
    }
    let sha256 = hex(&hasher.finalize());
    Ok(Copied { bytes, sha256 })
}
