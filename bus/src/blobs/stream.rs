//! Streamed blobs: no more than a chunk or two is in memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::{Digest, SpaceId};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::sealed::{CHUNK_BYTES, Chunks, HEAD_BYTES, SEALED_CHUNK_BYTES, content_bytes, sealed_bytes};
use super::{BlobCatalog, BlobError, BlobKind, Blobs, check_name, context, draft_path};

/// A blob that is being written. It has no name until it is durable; dropped before that, it leaves nothing.
pub struct BlobWriter {
    blobs: Arc<Blobs>,
    kind: BlobKind,
    space: SpaceId,
    folder: PathBuf,
    known: Arc<Mutex<BlobCatalog>>,
    draft: PathBuf,
    file: File,
    chunks: Chunks,
    waiting: Vec<u8>,
    hasher: Sha256,
    bytes: u64,
    /// Its share of the catalog's `drafted`.
    drafted: u64,
    /// Its share of the catalog's `coming`.
    coming: u64,
}

impl std::fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("BlobWriter");
        shown.field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Blobs {
    /// Begins a streamed blob.
    pub fn writer(self: &Arc<Self>, kind: BlobKind, space: &SpaceId) -> Result<BlobWriter, BlobError> {
        let folder = self.folder(kind, space);
        let known = self.catalog(kind, &folder)?;
        let draft = draft_path(&folder, "streamed");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&draft)?;
        // The head is written when the name is known; until then nobody can read the chunks.
        file.write_all(&[0; HEAD_BYTES])?;
        Ok(BlobWriter {
            blobs: self.clone(),
            kind,
            space: space.clone(),
            folder,
            known,
            draft,
            file,
            chunks: Chunks::fresh()?,
            waiting: Vec::with_capacity(CHUNK_BYTES),
            hasher: Sha256::new(),
            bytes: 0,
            drafted: 0,
            coming: 0,
        })
    }

    /// Opens a blob for streaming. An open reader still reads a blob that is destroyed meanwhile.
    pub fn reader(&self, kind: BlobKind, space: &SpaceId, name: &str) -> Result<BlobReader, BlobError> {
        check_name(name)?;
        let known = self.existing_catalog(kind, &self.folder(kind, space))?.ok_or(BlobError::Gone)?;
        // The lock keeps others from destroying the blob before it is open.
        let known = known.lock();
        if !known.by_name.contains_key(name) {
            return Err(BlobError::Gone);
        }
        self.open(kind, space, name)
    }

    pub(super) fn open(&self, kind: BlobKind, space: &SpaceId, name: &str) -> Result<BlobReader, BlobError> {
        let mut file = match File::open(self.folder(kind, space).join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BlobError::Gone),
            file => file?,
        };
        let length = file.metadata()?.len();
        let bytes = content_bytes(length).ok_or(BlobError::Damaged)?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        Ok(BlobReader {
            chunks: Chunks::of(&self.cipher, &context(kind, space, name), &head)?,
            file,
            bytes,
            left: length - HEAD_BYTES as u64,
            ended: false,
        })
    }
}

impl BlobWriter {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn write(&mut self, mut piece: &[u8]) -> Result<(), BlobError> {
        let (size, max) = (self.bytes + piece.len() as u64, self.blobs.bytes_max());
        if size > max {
            return Err(BlobError::TooLarge { size, max });
        }
        self.draft(sealed_bytes(size))?;
        self.hasher.update(piece);
        self.bytes = size;
        while !piece.is_empty() {
            // A full chunk is held back until the next byte shows that it is not the last.
            if self.waiting.len() == CHUNK_BYTES {
                self.flush(false)?;
            }
            let (now, later) = piece.split_at(piece.len().min(CHUNK_BYTES - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            piece = later;
        }
        Ok(())
    }

    fn flush(&mut self, is_last: bool) -> Result<(), BlobError> {
        let sealed = self.chunks.seal(&self.waiting, is_last)?;
        self.waiting.clear();
        Ok(self.file.write_all(&sealed)?)
    }

    /// Counts the draft's bytes. They evict nothing, since the blob may never get a name, but all drafts share one quota.
    fn draft(&mut self, bytes: u64) -> Result<(), BlobError> {
        let more = bytes.saturating_sub(self.drafted);
        let mut known = self.known.lock();
        if known.drafted + more > sealed_bytes(self.blobs.quota_bytes) {
            return Err(BlobError::Full);
        }
        known.drafted += more;
        self.drafted += more;
        Ok(())
    }

    /// Makes room for the blob; `false` if it exists already.
    fn make_room(&mut self, name: &str) -> Result<bool, BlobError> {
        let bytes = sealed_bytes(self.bytes);
        let mut known = self.known.lock();
        self.blobs.prove(&mut known, self.kind, &self.space, name)?;
        if known.reuse(name) {
            return Ok(false);
        }
        self.blobs.make_room(&mut known, bytes)?;
        known.coming += bytes;
        self.coming = bytes;
        Ok(true)
    }

    /// Names the blob by the digest of its content, durably. Existing content is not stored again.
    pub fn finish(mut self, name: impl FnOnce(&Digest) -> String) -> Result<String, BlobError> {
        let digest = Digest::from_bytes(std::mem::take(&mut self.hasher).finalize().into());
        let name = name(&digest);
        check_name(&name)?;
        self.draft(sealed_bytes(self.bytes))?;
        self.flush(true)?;
        if !self.make_room(&name)? {
            return Ok(name);
        }
        let context = context(self.kind, &self.space, &name);
        let head = self.chunks.head(&self.blobs.cipher, &context)?;
        self.file.write_all_at(&head, 0)?;
        self.file.sync_all()?;
        // Under the lock: between its rename and its listing, somebody who destroys a blob of this name would destroy this one, which
        // cannot be written again.
        let mut known = self.known.lock();
        fs::rename(&self.draft, self.folder.join(&name))?;
        File::open(&self.folder)?.sync_all()?;
        known.add(&name, sealed_bytes(self.bytes));
        known.coming -= std::mem::take(&mut self.coming);
        Ok(name)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        // Best effort: the next start removes drafts too. After a finish the draft is gone.
        let _ = fs::remove_file(&self.draft);
        let mut known = self.known.lock();
        known.coming -= self.coming;
        known.drafted -= self.drafted;
    }
}

pub struct BlobReader {
    file: File,
    chunks: Chunks,
    bytes: u64,
    left: u64,
    ended: bool,
}

impl std::fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("BlobReader");
        shown.field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl BlobReader {
    /// Length of the whole content.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next piece; `None` at the end, and after a damaged piece.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, BlobError> {
        if self.ended {
            return Ok(None);
        }
        let mut sealed = vec![0; self.left.min(SEALED_CHUNK_BYTES as u64) as usize];
        match self.file.read_exact(&mut sealed) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(BlobError::Damaged),
            read => read?,
        }
        self.left -= sealed.len() as u64;
        let opened = self.chunks.open(&sealed, self.left == 0);
        self.ended = self.left == 0 || opened.is_err();
        opened.map(|piece| (self.bytes > 0).then_some(piece))
    }
}
