//! Copies of a state directory that is in use, and states made from them.
//!
//! The journal is the truth, and nothing in its files ever changes: they only grow at their end. So a copy of the files as they are at
//! one moment, each up to its length then, is the journal as a power failure at that moment would have left it, which every
//! start can read. A journal in sled is read block by block by the process that has it open, and the copy has it in files. The
//! index is not copied; it is made anew from the journal. Keys go to a place of their own: whoever has one of the two copies has
//! nothing.
//!
//! What is kept for an undo comes after the journal, so that no blob is missing that it names.
//!
//! A copy is made under another name, checked, and gets its own name when all of it is on disk. Its manifest says how long
//! each file is and what its digest is.

mod restore;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use effectd_bus::StoreError;
use effectd_bus::embedded::forward::{self, JournalWriter};
use effectd_bus::embedded::rescue::{self, Checked};
use effectd_bus::embedded::{EmbeddedConfig, JournalKind, journal_of};
use effectd_contracts::digest::hex;
use effectd_contracts::{Clock, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

pub use restore::{Open, Restored, restore};

const MANIFEST: &str = "manifest.json";
/// What a manifest says it is, and of which version.
const FORMAT: u32 = 1;
/// The longest manifest that is read: a hundred bytes for each of a million files.
const MANIFEST_BYTES_MAX: u64 = 134_217_728;
/// How often a copy is begun anew because old blocks were let go meanwhile: that happens once an hour.
const TRIES: u32 = 5;
/// What marks a copy that is being made, by whoever holds its lock. It goes when the copy has its name; where a power failure came
/// between the two, it is left and means nothing.
const MARK: &str = ".draft";
/// What is copied in one piece.
const PIECE_BYTES: usize = 65_536;

/// What a copy is, and what it was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this format.
    pub backup: u32,
    /// `state` or `keys`.
    pub of: String,
    /// When it was begun.
    pub made_at: Timestamp,
    /// Blocks of the journal that were checked.
    pub blocks: u64,
    /// What carries the journal of the state; in the copy it is always in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<String>,
    /// Every file, by its path.
    pub files: BTreeMap<String, Copied>,
}

/// One file of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copied {
    /// Its length.
    pub bytes: u64,
    /// The digest of its content.
    pub sha256: String,
}

/// Why there is no copy.
#[derive(Debug)]
pub enum Trouble {
    /// Old blocks were let go meanwhile, or the process that has the store open ended: the copy is begun again.
    Moved,
    /// Anything else.
    Failed(Error),
}

/// Hands over the journal of a state that is in use; `false` if no process has it open that could.
pub type InUse<'a> = &'a dyn Fn(&mut JournalWriter) -> Result<bool, Trouble>;

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Failed(error)
    }
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::State {
        path: path.to_owned(),
        source,
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::Request(why.into())
}

/// Copies a state that may be in use; its keys to a place of their own, or not at all.
pub fn make(
    state: &Path,
    into: &Path,
    keys: Option<&Path>,
    clock: &dyn Clock,
    in_use: InUse<'_>,
) -> Result<Manifest, Error> {
    let is_there = |name: &str| state.join("journal").join(name).is_dir();
    if !is_there("segments") && !is_there("sled") {
        return Err(refused(format!("{} has no store yet", state.display())));
    }
    let journal = journal_of(state)?;
    let inside = resolved(state)?;
    for target in [Some(into), keys].into_iter().flatten() {
        if target.exists() {
            return Err(refused(format!(
                "{} is there already; name a new directory",
                target.display()
            )));
        }
        if resolved(target)?.starts_with(&inside) {
            return Err(refused(format!(
                "{} lies in the state itself; name another place",
                target.display()
            )));
        }
    }
    if let Some(keys) = keys {
        let (copy, keys) = (resolved(into)?, resolved(keys)?);
        if copy.starts_with(&keys) || keys.starts_with(&copy) {
            let why = "the keys must not lie with what they open; name a place for them that is apart";
            return Err(refused(why));
        }
    }
    for _ in 0..TRIES {
        match attempt((state, journal), into, keys, clock, in_use) {
            Ok(made) => return Ok(made),
            Err(Trouble::Moved) => {}
            Err(Trouble::Failed(error)) => return Err(error),
        }
    }
    Err(refused(
        "the journal was shortened again and again while it was copied, or the daemon ended; try again",
    ))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| failed(path, error))
}

/// Where a path leads that may not be there yet: links on the way are followed.
fn resolved(path: &Path) -> Result<PathBuf, Error> {
    let path = absolute(path)?;
    let there = path
        .ancestors()
        .find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = there else {
        return Ok(path);
    };
    let below = path.strip_prefix(above).unwrap_or(Path::new(""));
    // A path that ends with a slash is another one than without to those who compare what it begins with.
    Ok(if below.as_os_str().is_empty() {
        real
    } else {
        real.join(below)
    })
}

fn attempt(
    (state, journal): (&Path, JournalKind),
    into: &Path,
    keys: Option<&Path>,
    clock: &dyn Clock,
    in_use: InUse<'_>,
) -> Result<Manifest, Trouble> {
    let begun = clock.now();
    let mut copy = Draft::begin(state, into)?;
    let mut key_copy = keys
        .map(|keys| Draft::begin(&state.join("keys"), keys))
        .transpose()?;
    // Before the journal, so that no key is missing that it needs; those that are made meanwhile are taken along after it.
    if let Some(keys) = &mut key_copy {
        keys.tree("")?;
    }
    // Hashes of old entries stand here alone; those of new ones follow from the journal.
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
    let checked = check(&copy.path, clock)?;
    // The keys first: what has the name of a backup has its keys, whatever happens in between.
    if let (Some(copy), Some(keys)) = (key_copy, keys) {
        copy.finish(keys, "keys", begun, 0, None)?;
    }
    Ok(copy.finish(into, "state", begun, checked.blocks, Some(journal))?)
}

/// The files that say where the journal begins.
fn grounds(state: &Path) -> Result<Vec<String>, Error> {
    names(&state.join("journal/segments"), ".ground")
}

fn names(directory: &Path, ending: &str) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| failed(directory, error))? {
        let name = entry.map_err(|error| failed(directory, error))?.file_name();
        names.extend(name.into_string().ok().filter(|name| name.ends_with(ending)));
    }
    names.sort();
    Ok(names)
}

/// Reads every block of a copy. What that leaves behind is taken away again.
fn check(path: &Path, clock: &dyn Clock) -> Result<Checked, Error> {
    let checked = rescue::check(&EmbeddedConfig::new(path), clock)?;
    if let Some(problem) = checked.problems.first() {
        return Err(refused(format!("the copy is not whole: {problem}")));
    }
    for left in ["index", "journal/lock"] {
        let left = path.join(left);
        let removed = if left.is_dir() {
            fs::remove_dir_all(&left)
        } else {
            fs::remove_file(&left)
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&left, error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(checked)
}

/// A copy that is being made, under a name of its own.
struct Draft {
    from: PathBuf,
    path: PathBuf,
    files: BTreeMap<String, Copied>,
    /// Locked as long as somebody is at work on it; `None` if it is a part of another one.
    mark: Option<File>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.mark.is_some() {
            // Copies of keys, and of much else, must not be left behind. The next one takes away what is.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Draft {
    fn begin(from: &Path, into: &Path) -> Result<Self, Error> {
        // By its components: a slash at the end would make the draft a file in what it is to become.
        let mut name = into.components().as_path().as_os_str().to_owned();
        name.push(".partial");
        let path = PathBuf::from(name);
        take_away(&path)?;
        make_dir(&path)?;
        let mark = path.join(MARK);
        let file = new_file(&mark).map_err(|error| failed(&mark, error))?;
        file.try_lock().map_err(|_| busy(&path))?;
        Ok(Self {
            from: from.to_owned(),
            path,
            files: BTreeMap::new(),
            mark: Some(file),
        })
    }

    fn journal_files(&mut self) -> Result<(), Trouble> {
        let grounds = grounds(&self.from)?;
        self.file("journal/format")?;
        for ground in &grounds {
            self.needed(&format!("journal/segments/{ground}"))?;
        }
        for segment in names(&self.from.join("journal/segments"), ".blocks")? {
            self.needed(&format!("journal/segments/{segment}"))?;
        }
        if self::grounds(&self.from)? != grounds {
            return Err(Trouble::Moved);
        }
        Ok(())
    }

    /// Writes the journal's blocks into files, as the process that has it open reads them, or this one if there is none.
    fn journal_blocks(&mut self, in_use: InUse<'_>) -> Result<(), Trouble> {
        let mut writer = JournalWriter::in_files(&self.path).map_err(Error::from)?;
        // The lock decides, and is taken before anything is written: a daemon may answer for another state.
        match forward::copy(&EmbeddedConfig::new(&self.from), &mut writer) {
            Err(StoreError::Locked { .. }) => {
                if !in_use(&mut writer)? {
                    return Err(Trouble::Moved);
                }
            }
            copied => copied.map(drop).map_err(Error::from)?,
        }
        writer.finish().map_err(Error::from)?;
        let segments = names(&self.path.join("journal/segments"), "")?;
        let segments = segments
            .into_iter()
            .map(|name| format!("journal/segments/{name}"));
        for name in segments.chain(["journal/format".to_owned()]) {
            let path = self.path.join(&name);
            let made = File::open(&path).and_then(|file| digest(file, |_| Ok(())));
            self.files
                .insert(name, made.map_err(|error| failed(&path, error))?);
        }
        Ok(())
    }

    /// Makes sure that what was copied is still what is there. A file that is another now belongs to another moment, and one
    /// that went, or that was overwritten before it goes, was of no use any more.
    fn same_as_before(&self) -> Result<(), Trouble> {
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
                Ok(_) => return Err(Trouble::Moved),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(Trouble::Moved),
                Err(error) => return Err(failed(&path, error).into()),
            }
        }
        Ok(())
    }

    /// A file that must be there. If it is not, old blocks were let go in this moment.
    fn needed(&mut self, name: &str) -> Result<(), Trouble> {
        if self.file(name)? {
            Ok(())
        } else {
            Err(Trouble::Moved)
        }
    }

    /// Copies a file up to the length that it has now, once. Says whether it was there.
    fn file(&mut self, name: &str) -> Result<bool, Error> {
        if self.files.contains_key(name) {
            return Ok(true);
        }
        let (from, to) = (self.from.join(name), self.path.join(name));
        let Some(copied) = copy(&from, &to)? else {
            return Ok(false);
        };
        self.files.insert(name.to_owned(), copied);
        Ok(true)
    }

    /// Copies all that a manifest names; it must still be what it says.
    fn all_of(&mut self, manifest: &Manifest) -> Result<(), Error> {
        for (name, expected) in &manifest.files {
            self.file(name)?;
            if self.files.get(name) != Some(expected) {
                let file = self.from.join(name);
                return Err(refused(format!(
                    "{} was changed while it was read",
                    file.display()
                )));
            }
        }
        Ok(())
    }

    /// Copies the files of a directory and of those in it. What goes away meanwhile is not copied.
    fn tree(&mut self, name: &str) -> Result<(), Error> {
        let directory = self.from.join(name);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| failed(&directory, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(&directory, error))?;
            let kind = match entry.file_type() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                kind => kind.map_err(|error| failed(&directory, error))?,
            };
            let Ok(file) = entry.file_name().into_string() else {
                continue;
            };
            let below = if name.is_empty() {
                file
            } else {
                format!("{name}/{file}")
            };
            if kind.is_dir() {
                self.tree(&below)?;
            } else if kind.is_file() {
                self.file(&below)?;
            }
        }
        Ok(())
    }

    /// Writes the manifest, and gives the copy its name when all of it is on disk.
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
        // Plain data with text keys, for which serde_json has no failure.
        let text = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
        let mut file = new_file(&path).map_err(|error| failed(&path, error))?;
        file.write_all(&text)
            .and_then(|()| file.sync_all())
            .map_err(|error| failed(&path, error))?;
        self.put_in_place(into)?;
        Ok(manifest)
    }

    /// Gives the copy its name, when all of it is on disk.
    fn put_in_place(mut self, to: &Path) -> Result<(), Error> {
        put_in_place(&self.path, to)?;
        // It is no draft any more, and nothing of it is to be taken away.
        self.mark = None;
        let mark = to.join(MARK);
        fs::remove_file(&mark).map_err(|error| failed(&mark, error))
    }
}

/// Takes away what an earlier one left that did not come to its end; nothing else of that name, and nothing that somebody is
/// at work on.
fn take_away(path: &Path) -> Result<(), Error> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    let mark = File::open(path.join(MARK));
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match mark {
        Ok(mark) => mark.try_lock().map_err(|_| busy(path))?,
        // It was ended between being made and being marked.
        Err(_) if is_empty() => {}
        Err(_) => {
            let why = "is there, and is not what a backup left; move it away, or name another directory";
            return Err(refused(format!("{} {why}", path.display())));
        }
    }
    fs::remove_dir_all(path).map_err(|error| failed(path, error))
}

fn busy(path: &Path) -> Error {
    refused(format!("{} is being made by somebody else", path.display()))
}

/// Gives a directory its name, when all of it is on disk.
fn put_in_place(from: &Path, to: &Path) -> Result<(), Error> {
    sync_tree(from).map_err(|error| failed(from, error))?;
    fs::rename(from, to).map_err(|error| failed(to, error))?;
    let to = absolute(to)?;
    let above = to.parent().unwrap_or(Path::new("/"));
    File::open(above)
        .and_then(|above| above.sync_all())
        .map_err(|error| failed(above, error))
}

fn sync_tree(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    File::open(directory)?.sync_all()
}

fn make_dir(path: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| failed(path, error))
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Copies a file up to the length that it has now, durably; `None` if it is not there.
///
/// From its end to its beginning: blocks of the journal are written over zeros, one behind the other, and so whatever is read of a file
/// in use lies before what was read earlier, and is newer. The copy is what was there at one moment, and at most one block that is not
/// whole.
fn copy(from: &Path, to: &Path) -> Result<Option<Copied>, Error> {
    let source = match File::open(from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        source => source.map_err(|error| failed(from, error))?,
    };
    if let Some(above) = to.parent() {
        make_dir(above)?;
    }
    let length = source.metadata().map_err(|error| failed(from, error))?.len();
    let target = new_file(to).map_err(|error| failed(to, error))?;
    // What is cut off meanwhile were zeros.
    target.set_len(length).map_err(|error| failed(to, error))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut end = length;
    while end > 0 {
        let begin = (end - 1) / PIECE_BYTES as u64 * PIECE_BYTES as u64;
        let piece = &mut buffer[..(end - begin) as usize];
        let read = read_at(&source, piece, begin).map_err(|error| failed(from, error))?;
        let written = target.write_all_at(&piece[..read], begin);
        written.map_err(|error| failed(to, error))?;
        end = begin;
    }
    let copied = digest(&target, |_| Ok(())).map_err(|error| failed(to, error))?;
    target.sync_all().map_err(|error| failed(to, error))?;
    Ok(Some(copied))
}

/// Reads as much as there is.
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
