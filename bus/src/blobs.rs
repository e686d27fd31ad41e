//! Bytes beside the journal: what effects replaced, and what tools said at length.
//!
//! Each blob has a name, a keyed digest that whoever stores it has made, so that equal content of one space is kept once. It
//! is sealed under a key of its own, which lies in its head under the blobs' key: to destroy a blob, its head is overwritten.
//! Every space has a quota, and what was stored longest ago goes first. Each blob is a file. How it is sealed stands in
//! `sealed.rs`; those that come and go in pieces are in `stream.rs`. Which are there is known to the shelf (`known.rs`).
//!
//! What lies on a shelf under a name is never more than the quota, but for what is pinned: that goes neither away nor into the
//! count as long as somebody needs it, and is no more than the quota, either. What comes in pieces has no name until all of it is there, and takes nobody's room
//! before; all of it together is never more than the quota, either. So a shelf takes at most three times its quota on disk, and
//! more than once only while something is being written or put back. What counts is how long blobs are.

mod check;
mod known;
mod pins;
mod sealed;
mod stream;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::KeyInit;
use effectd_contracts::{Digest, SpaceId, Timestamp};
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::limits::{BLOB_BYTES_MAX, BLOB_WHOLE_BYTES_MAX, BLOBS_PER_SHELF_MAX};
pub use check::{BlobsCheck, BlobsChecked};
use known::Known;
pub use pins::Pins;
use sealed::{HEAD_BYTES, MARK, SEALED_CHUNK_BYTES, seal_whole, sealed_bytes};
pub use stream::{BlobReader, BlobWriter};

const DRAFT: &str = "draft-";
/// Most bytes of a file that is made under its own name at once. The sync of the file then takes its entry in the folder along
/// where the file system keeps a journal, and the folder's own costs next to nothing; a draft that gets its name later takes the
/// journal twice. Whether such a file is whole shows when it is opened.
const IN_PLACE_BYTES_MAX: u64 = (HEAD_BYTES + SEALED_CHUNK_BYTES) as u64;

/// What blobs are for. Each has its own quota, so that long outputs do not take the room of what can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shelf {
    /// What effects replaced.
    Preimages,
    /// What tools said at length.
    Artifacts,
}

impl Shelf {
    const fn folder(self) -> &'static str {
        match self {
            Shelf::Preimages => "preimages",
            Shelf::Artifacts => "artifacts",
        }
    }
}

/// Why a blob is not stored or not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    #[error("the blobs cannot be used: {0}")]
    Disk(String),
    #[error("there is no room left for what has to be kept")]
    Full,
    /// Larger than one blob, or than the whole quota.
    #[error("{size} bytes are more than can be kept; at most {max} are")]
    TooLarge { size: u64, max: u64 },
    /// It is not there, or not any more.
    #[error("it is not kept any more")]
    Gone,
    /// It is there, and not what was stored.
    #[error("what is kept is damaged")]
    Damaged,
    #[error("{0:?} is no blob's name")]
    Name(String),
}

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        if full.contains(&error.kind()) {
            BlobError::Full
        } else {
            BlobError::Disk(error.to_string())
        }
    }
}

/// All blobs of one state directory.
pub struct Blobs {
    root: PathBuf,
    cipher: XChaCha20Poly1305,
    quota_bytes: u64,
    shelves: Mutex<HashMap<PathBuf, Arc<Mutex<Known>>>>,
}

impl std::fmt::Debug for Blobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blobs")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl Blobs {
    /// The blobs of a directory, which is made when the first is stored. The quota is for each shelf of each space.
    pub fn new(root: PathBuf, key: &Zeroizing<[u8; 32]>, quota_bytes: u64) -> Self {
        #[expect(clippy::expect_used, reason = "the key is 32 bytes by its type")]
        let cipher = XChaCha20Poly1305::new_from_slice(&**key).expect("32 bytes");
        Self {
            root,
            cipher,
            quota_bytes,
            shelves: Mutex::default(),
        }
    }

    /// Stores bytes under a name of 64 hex digits; durable when it returns. What is there already is not written again.
    pub fn put(&self, shelf_of: Shelf, space: &SpaceId, name: &str, content: &[u8]) -> Result<(), BlobError> {
        check_name(name)?;
        let (size, max) = (content.len() as u64, self.bytes_max());
        if size > max {
            return Err(BlobError::TooLarge { size, max });
        }
        let folder = self.folder(shelf_of, space);
        let shelf = self.shelf(&folder)?;
        let bytes = sealed_bytes(size);
        {
            let mut known = shelf.lock();
            self.prove(&mut known, shelf_of, space, name)?;
            if known.renew(name) {
                return Ok(());
            }
            self.make_room(&mut known, bytes)?;
            known.coming += bytes;
        }
        // Without the lock: those who store at once wait for the disk at once.
        let written = seal_whole(&self.cipher, &context(shelf_of, space, name), content)
            .and_then(|sealed| write(&folder, name, &sealed));
        let mut known = shelf.lock();
        known.coming -= bytes;
        if written.is_ok() {
            known.add(name, bytes);
        }
        written
    }

    /// Before what an earlier process left is relied upon, it is read once: the power may have failed while it was written.
    /// What is not whole goes; nothing can have named it.
    fn prove(&self, known: &mut Known, shelf: Shelf, space: &SpaceId, name: &str) -> Result<(), BlobError> {
        if !known.unproven.remove(name) {
            return Ok(());
        }
        if self.open(shelf, space, name).and_then(whole) == Err(BlobError::Damaged) {
            known.destroy(name)?;
        }
        Ok(())
    }

    /// Destroys what was stored longest ago until there is room.
    fn make_room(&self, known: &mut Known, bytes: u64) -> Result<(), BlobError> {
        // A content of the whole quota has its place, with all that sealing adds.
        while known.counted() + bytes > sealed_bytes(self.quota_bytes)
            || known.by_name.len() >= BLOBS_PER_SHELF_MAX
        {
            known.destroy_oldest()?;
        }
        Ok(())
    }

    /// Destroys what was stored longest ago as long as there is more than the quota, which is so when a lot was pinned.
    fn keep_to_quota(&self, known: &mut Known) -> Result<(), BlobError> {
        while known.counted() > sealed_bytes(self.quota_bytes) {
            known.destroy_oldest()?;
        }
        Ok(())
    }

    pub fn has(&self, shelf: Shelf, space: &SpaceId, name: &str) -> bool {
        let folder = self.folder(shelf, space);
        let known = self.shelf_there(&folder).ok().flatten();
        known.is_some_and(|known| known.lock().by_name.contains_key(name)) && folder.join(name).is_file()
    }

    /// Whether a blob is there; if it is, it counts as stored now, and so does not make room for others soon.
    pub fn renew(&self, shelf: Shelf, space: &SpaceId, name: &str) -> Result<bool, BlobError> {
        check_name(name)?;
        let known = self.shelf(&self.folder(shelf, space))?;
        let mut known = known.lock();
        self.prove(&mut known, shelf, space, name)?;
        Ok(known.renew(name))
    }

    /// The bytes that were stored under a name, if they are few enough to be held in memory at once.
    pub fn get(&self, shelf: Shelf, space: &SpaceId, name: &str) -> Result<Vec<u8>, BlobError> {
        whole(self.reader(shelf, space, name)?)
    }

    pub fn bytes_max(&self) -> u64 {
        self.quota_bytes.min(BLOB_BYTES_MAX)
    }

    /// Destroys a blob: afterwards nobody can read it, whatever keys they have.
    pub fn remove(&self, shelf: Shelf, space: &SpaceId, name: &str) -> Result<(), BlobError> {
        check_name(name)?;
        let known = self.shelf(&self.folder(shelf, space))?;
        known.lock().destroy(name)
    }

    /// Destroys the blobs that were last stored before a moment; how many there were.
    pub fn expire(&self, before: Timestamp) -> Result<u64, BlobError> {
        let mut gone = 0;
        for folder in self.folders()? {
            gone += self.expire_shelf(&folder, before)?;
        }
        Ok(gone)
    }

    fn expire_shelf(&self, folder: &Path, before: Timestamp) -> Result<u64, BlobError> {
        let shelf = self.shelf(folder)?;
        let names = shelf.lock().names();
        let mut gone = 0;
        for name in names {
            // One by one, since each takes a sync. What is stored or named meanwhile waits for that one; it is touched before its
            // receipt is written.
            let mut known = shelf.lock();
            let stored_at = fs::metadata(folder.join(&name)).ok().map(|meta| meta.mtime());
            if stored_at.is_some_and(|second| second < before.as_second()) {
                known.destroy(&name)?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Removes what a killed process has left half written. Whoever calls it must be the only one to use the blobs.
    pub fn sweep(&self) -> Result<(), BlobError> {
        for folder in self.folders()? {
            self.shelf(&folder)?;
        }
        Ok(())
    }

    fn folders(&self) -> Result<Vec<PathBuf>, BlobError> {
        let mut folders = Vec::new();
        for shelf in [Shelf::Preimages, Shelf::Artifacts] {
            let spaces = match fs::read_dir(self.root.join(shelf.folder())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                spaces => spaces?,
            };
            for space in spaces {
                folders.push(space?.path());
            }
        }
        Ok(folders)
    }

    pub fn bytes(&self, shelf: Shelf, space: &SpaceId) -> Result<u64, BlobError> {
        let known = self.shelf(&self.folder(shelf, space))?;
        let bytes = known.lock().bytes;
        Ok(bytes)
    }

    fn folder(&self, shelf: Shelf, space: &SpaceId) -> PathBuf {
        self.root.join(shelf.folder()).join(folder_of(space))
    }

    /// What lies on a shelf, if there is one; unlike [`Blobs::shelf`], this makes none.
    fn shelf_there(&self, folder: &Path) -> Result<Option<Arc<Mutex<Known>>>, BlobError> {
        let known = self.shelves.lock().get(folder).cloned();
        if known.is_some() || !folder.is_dir() {
            return Ok(known);
        }
        self.shelf(folder).map(Some)
    }

    /// What lies on a shelf, read from the disk when it is first needed.
    fn shelf(&self, folder: &Path) -> Result<Arc<Mutex<Known>>, BlobError> {
        let mut shelves = self.shelves.lock();
        if let Some(known) = shelves.get(folder) {
            return Ok(known.clone());
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Durable with the first blob's own folder sync, but for the folders above.
        for above in folder.ancestors().skip(1).take(3) {
            File::open(above)?.sync_all()?;
        }
        let mut left = left_in_files(folder)?;
        left.sort();
        let mut known = Known::new(folder.to_owned());
        for (_, name, bytes) in left {
            known.add(&name, bytes);
            if bytes <= IN_PLACE_BYTES_MAX {
                known.unproven.insert(name);
            }
        }
        let known = Arc::new(Mutex::new(known));
        shelves.insert(folder.to_owned(), known.clone());
        Ok(known)
    }
}

fn folder_of(space: &SpaceId) -> String {
    let mut name = Digest::of(space.as_str().as_bytes()).hex();
    name.truncate(32);
    name
}

/// What lies in a folder: when it was stored, in nanoseconds since 1970, its name, and how long it is. Drafts, and what is not
/// wholly destroyed, go.
fn left_in_files(folder: &Path) -> Result<Vec<(i128, String, u64)>, BlobError> {
    let mut left = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(DRAFT) || is_destroyed(&entry.path())? {
            fs::remove_file(entry.path())?;
        } else {
            let meta = entry.metadata()?;
            let stored_at = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
            left.push((stored_at, name, meta.len()));
        }
    }
    Ok(left)
}

/// All that a reader has, if it is not too much to be held in memory at once.
fn whole(mut reader: BlobReader) -> Result<Vec<u8>, BlobError> {
    let (size, max) = (reader.bytes(), BLOB_WHOLE_BYTES_MAX);
    if size > max {
        return Err(BlobError::TooLarge { size, max });
    }
    let mut content = Vec::new();
    while let Some(piece) = reader.piece()? {
        content.extend_from_slice(&piece);
    }
    Ok(content)
}

fn check_name(name: &str) -> Result<(), BlobError> {
    let plain = name.len() == 64
        && name
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain
        .then_some(())
        .ok_or_else(|| BlobError::Name(name.to_owned()))
}

/// What a blob is bound to: moved to another name, space or shelf, it does not open.
fn context(shelf: Shelf, space: &SpaceId, name: &str) -> Vec<u8> {
    format!("{}\n{space}\n{name}", shelf.folder()).into_bytes()
}

/// A new name for what is not whole yet.
fn draft_path(folder: &Path, what: &str) -> PathBuf {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{DRAFT}{what}-{number}"))
}

fn write(folder: &Path, name: &str, sealed: &[u8]) -> Result<(), BlobError> {
    let path = folder.join(name);
    if sealed.len() as u64 <= IN_PLACE_BYTES_MAX {
        match create(&path, OpenOptions::new().create_new(true), sealed) {
            Ok(()) => return Ok(File::open(folder)?.sync_all()?),
            // Somebody else writes the same at this moment, or something is there that is no blob.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The name stays with an empty file: by now it may be that of somebody else, who has written the same. The next
            // start removes it.
            Err(error) => return Err(error.into()),
        }
    }
    // Two may write the same at once; whichever name comes last is as good.
    let draft = draft_path(folder, name);
    let written = create(&draft, OpenOptions::new().create(true).truncate(true), sealed)
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // Best effort: the next start removes drafts as well.
        let _ = fs::remove_file(&draft);
    }
    Ok(written?)
}

/// A file with these bytes, on disk when it returns.
fn create(path: &Path, options: &mut OpenOptions, bytes: &[u8]) -> io::Result<()> {
    let mut file = options.write(true).mode(0o600).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        // Best effort: what is not whole is noticed by the next process as well.
        let _ = file.set_len(0);
    }
    written
}

/// It is used again: it goes to the end of the line, also after a restart.
fn touch(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    Ok(futimens(&file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)?)
}

/// Overwrites the key in the file's head before the name goes: the bytes of a deleted file may live on.
fn destroy(path: &Path) -> Result<(), BlobError> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    match OpenOptions::new().write(true).open(path) {
        Ok(mut file) => {
            file.write_all(&[0; HEAD_BYTES])?;
            file.sync_data()?;
        }
        Err(error) if gone(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(path) {
        Err(error) if !gone(&error) => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether a file's head was overwritten, and whoever did it ended before the name was gone.
fn is_destroyed(path: &Path) -> io::Result<bool> {
    let mut begins = Vec::new();
    File::open(path)?
        .take(MARK.len() as u64)
        .read_to_end(&mut begins)?;
    Ok(begins.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests;
