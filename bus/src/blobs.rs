//! Blobs beside the journal: pre-images of effects, artifacts and results of tools, and definitions of automations.
//!
//! The name of a pre-image or artifact is a keyed digest of its content, which the caller computes, so a space stores equal
//! content once. A result has a name of its own, and is written without a sync: a power failure may lose it. The head of a
//! blob's file has the blob's own key, wrapped by the key of all blobs: overwriting the head destroys the blob.
//! `sealed.rs` has the file format, `stream.rs` the streamed blobs, `catalog.rs` the list of blobs in a folder.
//!
//! Each space has a quota for each kind. The oldest blobs are evicted first; of results, the oldest of the principal that has
//! the most; definitions are never evicted. Named blobs, pinned blobs (which are neither evicted nor counted) and blobs that are being written may each take one
//! quota. So a folder takes at most three quotas, and more than one only while blobs are being written or pinned. Sizes are
//! the lengths of the files.

mod catalog;
mod pins;
mod sealed;
mod stream;
mod verify;

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

use crate::error::Cause;
use crate::limits::{BLOB_BYTES_MAX, BLOB_WHOLE_BYTES_MAX, BLOBS_PER_FOLDER_MAX};
use catalog::{BlobCatalog, Share};
pub use pins::Pins;
use sealed::{HEAD_BYTES, MARK, SEALED_CHUNK_BYTES, seal_whole, sealed_bytes};
pub use stream::{BlobReader, BlobWriter};
pub use verify::{BlobsCheck, BlobsChecked};

const DRAFT: &str = "draft-";
/// Hex digits in the name of a result that stand for its principal.
pub const OWNER_DIGITS: usize = 16;
/// Largest file that is created under its final name. A larger one is a draft that is renamed, which costs a second commit
/// of the file system's journal. After a crash, decrypting the file shows whether it is complete.
const IN_PLACE_BYTES_MAX: u64 = (HEAD_BYTES + SEALED_CHUNK_BYTES) as u64;

/// How far the time of a renewed blob may move without a sync: a power failure may take the move back. Retention keeps blobs a day
/// longer than their receipts, so an hour less does no harm.
const UNSYNCED_MOVE_S_MAX: i64 = 3_600;

/// What blobs are for. Each kind has its own quota, so that artifacts do not evict pre-images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobKind {
    /// Contents that effects replaced.
    Preimages,
    /// Long outputs of tools.
    Artifacts,
    /// Results of tools.
    Results,
    /// Definitions of automations. They belong to no receipt: only their owner removes them.
    Definitions,
}

impl BlobKind {
    pub const ALL: [Self; 4] = [Self::Preimages, Self::Artifacts, Self::Results, Self::Definitions];
    /// Those that belong to receipts, and end with them.
    pub const OF_RECEIPTS: [Self; 3] = [Self::Preimages, Self::Artifacts, Self::Results];

    const fn folder(self) -> &'static str {
        match self {
            BlobKind::Preimages => "preimages",
            BlobKind::Artifacts => "artifacts",
            BlobKind::Results => "results",
            BlobKind::Definitions => "definitions",
        }
    }

    /// Whether a blob is on disk before `put` returns.
    const fn is_durable(self) -> bool {
        match self {
            BlobKind::Preimages | BlobKind::Artifacts | BlobKind::Definitions => true,
            BlobKind::Results => false,
        }
    }

    /// Whether the oldest blobs make room for a new one.
    const fn is_evicted(self) -> bool {
        match self {
            BlobKind::Preimages | BlobKind::Artifacts | BlobKind::Results => true,
            BlobKind::Definitions => false,
        }
    }

    /// Whose share of the quota a blob takes: the beginning of a result's name stands for its principal, and the blobs of
    /// another kind, which several actions may name, have one owner.
    fn owner(self, name: &str) -> &str {
        match self {
            BlobKind::Preimages | BlobKind::Artifacts | BlobKind::Definitions => "",
            BlobKind::Results => name.get(..OWNER_DIGITS).unwrap_or(name),
        }
    }
}

/// Why a blob cannot be stored or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    #[error("the blobs cannot be used: {0}")]
    Disk(#[source] Cause),
    #[error("there is no space left for blobs")]
    Full,
    /// Larger than the bound of one blob, or than the quota.
    #[error("{size} bytes are too many; at most {max} can be stored")]
    TooLarge { size: u64, max: u64 },
    /// The blob does not exist, or was destroyed.
    #[error("the blob is no longer stored")]
    Gone,
    #[error("the blob is damaged")]
    Damaged,
    #[error("{0:?} is no blob's name")]
    Name(String),
}

impl BlobError {
    pub fn disk(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        BlobError::Disk(Cause::new(cause))
    }
}

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        if full.contains(&error.kind()) { BlobError::Full } else { BlobError::disk(error) }
    }
}

/// All blobs of one state directory.
pub struct Blobs {
    root: PathBuf,
    cipher: XChaCha20Poly1305,
    quota_bytes: u64,
    catalogs: Mutex<HashMap<PathBuf, Arc<Mutex<BlobCatalog>>>>,
}

impl std::fmt::Debug for Blobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blobs").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Blobs {
    /// Blobs below `root`, which the first blob creates. The quota applies to each kind in each space.
    pub fn new(root: PathBuf, key: &Zeroizing<[u8; 32]>, quota_bytes: u64) -> Self {
        #[expect(clippy::expect_used, reason = "the key is 32 bytes by its type")]
        let cipher = XChaCha20Poly1305::new_from_slice(&**key).expect("32 bytes");
        Self { root, cipher, quota_bytes, catalogs: Mutex::default() }
    }

    /// Stores bytes under a name of 64 hex digits, durably unless they are a result. An existing blob is not written again, but
    /// becomes the newest.
    pub fn put(&self, kind: BlobKind, space: &SpaceId, name: &str, content: &[u8]) -> Result<(), BlobError> {
        check_name(name)?;
        let (size, max) = (content.len() as u64, self.bytes_max());
        if size > max {
            return Err(BlobError::TooLarge { size, max });
        }
        let folder = self.folder(kind, space);
        let catalog = self.catalog(kind, &folder)?;
        let bytes = sealed_bytes(size);
        loop {
            let writer = {
                let mut known = catalog.lock();
                self.prove(&mut known, kind, space, name)?;
                if known.reuse(name) {
                    return Ok(());
                }
                self.make_room(&mut known, bytes)?;
                known.coming += bytes;
                known.begin(name)
            };
            // Without the lock, so that the syncs of concurrent writers overlap.
            let written = seal_whole(&self.cipher, &context(kind, space, name), content)
                .and_then(|sealed| write(kind, &folder, name, &sealed));
            let mut known = catalog.lock();
            known.coming -= bytes;
            let is_there = known.writing.remove(&writer).is_some();
            written?;
            if is_there {
                known.add(name, bytes);
                return Ok(());
            }
            // A blob of this name was destroyed meanwhile: the file may be gone, or be half of what another thread writes.
        }
    }

    /// Before a blob of an earlier process is reused, reads it once: a power failure may have cut off its write. Destroys an
    /// incomplete blob; no receipt can name it, since a receipt is written after its blobs.
    fn prove(
        &self,
        known: &mut BlobCatalog,
        kind: BlobKind,
        space: &SpaceId,
        name: &str,
    ) -> Result<(), BlobError> {
        if !known.unproven.remove(name) {
            return Ok(());
        }
        if self.open(kind, space, name).and_then(whole) == Err(BlobError::Damaged) {
            known.destroy(name)?;
        }
        Ok(())
    }

    /// Destroys the oldest blobs until there is room.
    fn make_room(&self, known: &mut BlobCatalog, bytes: u64) -> Result<(), BlobError> {
        loop {
            // The overhead of sealing does not count, so content of exactly the quota fits.
            if known.counted() + bytes > sealed_bytes(self.quota_bytes) {
                known.destroy_oldest(|share| share.bytes)?;
            } else if known.by_name.len() >= BLOBS_PER_FOLDER_MAX {
                known.destroy_oldest(Share::blobs)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Destroys the oldest blobs beyond the quota, after blobs were unpinned.
    fn keep_to_quota(&self, known: &mut BlobCatalog) -> Result<(), BlobError> {
        while known.counted() > sealed_bytes(self.quota_bytes) {
            known.destroy_oldest(|share| share.bytes)?;
        }
        Ok(())
    }

    pub fn has(&self, kind: BlobKind, space: &SpaceId, name: &str) -> bool {
        let folder = self.folder(kind, space);
        let known = self.existing_catalog(kind, &folder).ok().flatten();
        known.is_some_and(|known| known.lock().by_name.contains_key(name)) && folder.join(name).is_file()
    }

    /// Whether a blob exists; if so, it becomes the newest.
    pub fn renew(&self, kind: BlobKind, space: &SpaceId, name: &str) -> Result<bool, BlobError> {
        check_name(name)?;
        let known = self.catalog(kind, &self.folder(kind, space))?;
        let mut known = known.lock();
        self.prove(&mut known, kind, space, name)?;
        Ok(known.reuse(name))
    }

    /// The content of a blob that fits into memory.
    pub fn get(&self, kind: BlobKind, space: &SpaceId, name: &str) -> Result<Vec<u8>, BlobError> {
        self.reader(kind, space, name).and_then(whole)
    }

    pub fn bytes_max(&self) -> u64 {
        self.quota_bytes.min(BLOB_BYTES_MAX)
    }

    /// Destroys a blob: afterwards no key opens it.
    pub fn remove(&self, kind: BlobKind, space: &SpaceId, name: &str) -> Result<(), BlobError> {
        check_name(name)?;
        let known = self.catalog(kind, &self.folder(kind, space))?;
        BlobCatalog::destroy_one(known.lock(), name)
    }

    /// A number that grows each time the blob is stored or renewed; `None` if it does not exist.
    pub fn age(&self, kind: BlobKind, space: &SpaceId, name: &str) -> Option<u64> {
        let known = self.existing_catalog(kind, &self.folder(kind, space)).ok().flatten()?;
        let age = known.lock().by_name.get(name)?.age;
        Some(age)
    }

    /// Destroys a blob, unless it was stored or renewed since it had this age.
    pub fn remove_unless_renewed(
        &self,
        kind: BlobKind,
        space: &SpaceId,
        name: &str,
        age: u64,
    ) -> Result<(), BlobError> {
        let known = self.catalog(kind, &self.folder(kind, space))?;
        let known = known.lock();
        if known.by_name.get(name).is_some_and(|listed| listed.age == age) {
            return BlobCatalog::destroy_one(known, name);
        }
        Ok(())
    }

    /// Destroys the blobs of these kinds that were last stored before a time; returns how many.
    pub fn expire(&self, kinds: &[BlobKind], before: Timestamp) -> Result<u64, BlobError> {
        let mut gone = 0;
        for (kind, folder) in self.folders(kinds)? {
            gone += self.expire_folder(kind, &folder, before)?;
        }
        Ok(gone)
    }

    fn expire_folder(&self, kind: BlobKind, folder: &Path, before: Timestamp) -> Result<u64, BlobError> {
        let catalog = self.catalog(kind, folder)?;
        let names: Vec<String> = catalog.lock().by_name.keys().cloned().collect();
        let mut gone = 0;
        for name in names {
            // Locks for one blob at a time, since destroying one takes a sync. An action renews the time of a blob before its
            // receipt names the blob, so such a blob is not destroyed here.
            let known = catalog.lock();
            let stored_at = fs::metadata(folder.join(&name)).ok().map(|meta| meta.mtime());
            if stored_at.is_some_and(|second| second < before.as_second()) {
                BlobCatalog::destroy_one(known, &name)?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Removes the drafts of a killed process. No other process may use the blobs meanwhile.
    pub fn sweep(&self) -> Result<(), BlobError> {
        for (kind, folder) in self.folders(&BlobKind::ALL)? {
            self.catalog(kind, &folder)?;
        }
        Ok(())
    }

    fn folders(&self, kinds: &[BlobKind]) -> Result<Vec<(BlobKind, PathBuf)>, BlobError> {
        let mut folders = Vec::new();
        for kind in kinds.iter().copied() {
            let spaces = match fs::read_dir(self.root.join(kind.folder())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                spaces => spaces?,
            };
            for space in spaces {
                folders.push((kind, space?.path()));
            }
        }
        Ok(folders)
    }

    pub fn bytes(&self, kind: BlobKind, space: &SpaceId) -> Result<u64, BlobError> {
        let known = self.catalog(kind, &self.folder(kind, space))?;
        let bytes = known.lock().bytes;
        Ok(bytes)
    }

    fn folder(&self, kind: BlobKind, space: &SpaceId) -> PathBuf {
        self.root.join(kind.folder()).join(folder_of(space))
    }

    /// The catalog of a folder, if the folder exists.
    fn existing_catalog(
        &self,
        kind: BlobKind,
        folder: &Path,
    ) -> Result<Option<Arc<Mutex<BlobCatalog>>>, BlobError> {
        let known = self.catalogs.lock().get(folder).cloned();
        if known.is_some() || !folder.is_dir() {
            return Ok(known);
        }
        self.catalog(kind, folder).map(Some)
    }

    /// The catalog of a folder. The first call creates the folder and reads which blobs it has.
    fn catalog(&self, kind: BlobKind, folder: &Path) -> Result<Arc<Mutex<BlobCatalog>>, BlobError> {
        let mut catalogs = self.catalogs.lock();
        if let Some(known) = catalogs.get(folder) {
            return Ok(known.clone());
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Writing a blob syncs the folder itself, but not the folders above it.
        if kind.is_durable() {
            for above in folder.ancestors().skip(1).take(3) {
                File::open(above)?.sync_all()?;
            }
        }
        let mut left = left_in_files(folder)?;
        left.sort();
        let mut known = BlobCatalog::new(kind, folder.to_owned());
        for (_, name, bytes) in left {
            known.add(&name, bytes);
            if bytes <= IN_PLACE_BYTES_MAX || !kind.is_durable() {
                known.unproven.insert(name);
            }
        }
        let known = Arc::new(Mutex::new(known));
        catalogs.insert(folder.to_owned(), known.clone());
        Ok(known)
    }
}

fn folder_of(space: &SpaceId) -> String {
    let mut name = Digest::of(space.as_str().as_bytes()).hex();
    name.truncate(32);
    name
}

/// The blobs of a folder: time of storing in nanoseconds since 1970, name, length. Removes drafts and destroyed blobs.
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

/// The whole content of a reader, if it fits into memory.
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
    let plain = name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain.then_some(()).ok_or_else(|| BlobError::Name(name.to_owned()))
}

/// The associated data of a blob's key: under another kind, space or name, the blob does not open.
fn context(kind: BlobKind, space: &SpaceId, name: &str) -> Vec<u8> {
    format!("{}\n{space}\n{name}", kind.folder()).into_bytes()
}

/// A new name for an incomplete file.
fn draft_path(folder: &Path, what: &str) -> PathBuf {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{DRAFT}{what}-{number}"))
}

fn write(kind: BlobKind, folder: &Path, name: &str, sealed: &[u8]) -> Result<(), BlobError> {
    let path = folder.join(name);
    if !kind.is_durable() {
        return Ok(create(&path, OpenOptions::new().create(true).truncate(true), sealed, false)?);
    }
    if sealed.len() as u64 <= IN_PLACE_BYTES_MAX {
        match create(&path, OpenOptions::new().create_new(true), sealed, true) {
            Ok(()) => return Ok(File::open(folder)?.sync_all()?),
            // Another thread writes the same blob, or a file with this name is not a complete blob: a renamed draft replaces it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The empty file stays, since another thread may have written the same blob by now. The next start removes it.
            Err(error) => return Err(error.into()),
        }
    }
    // Two threads may write the same blob; either result is good.
    let draft = draft_path(folder, name);
    let written = create(&draft, OpenOptions::new().create(true).truncate(true), sealed, true)
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // Best effort: the next start removes drafts as well.
        let _ = fs::remove_file(&draft);
    }
    Ok(written?)
}

/// Creates a file with these bytes.
fn create(path: &Path, options: &mut OpenOptions, bytes: &[u8], is_durable: bool) -> io::Result<()> {
    let mut file = options.write(true).mode(0o600).open(path)?;
    let mut written = file.write_all(bytes);
    if is_durable {
        written = written.and_then(|()| file.sync_all());
    }
    if written.is_err() {
        // Best effort: the next process notices an incomplete file.
        let _ = file.set_len(0);
    }
    written
}

/// Makes a blob the newest, also for the next process.
fn touch(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    Ok(futimens(&file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)?)
}

/// [`touch`] for a blob that a receipt is about to name: an old one is not old again after a power failure.
fn touch_durably(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let stored_at = file.metadata()?.mtime();
    touch(path)?;
    if file.metadata()?.mtime() - stored_at > UNSYNCED_MOVE_S_MAX {
        file.sync_all()?;
    }
    Ok(())
}

/// Overwrites the key in the head before removing the file: the bytes of a removed file may survive on disk.
fn destroy(path: &Path) -> Result<(), BlobError> {
    match OpenOptions::new().write(true).open(path) {
        Ok(mut file) => {
            file.write_all(&[0; HEAD_BYTES])?;
            file.sync_data()?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    unlink(path)
}

fn unlink(path: &Path) -> Result<(), BlobError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether the head was overwritten by a process that ended before it removed the file.
fn is_destroyed(path: &Path) -> io::Result<bool> {
    let mut begins = Vec::new();
    File::open(path)?.take(MARK.len() as u64).read_to_end(&mut begins)?;
    Ok(begins.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests;
