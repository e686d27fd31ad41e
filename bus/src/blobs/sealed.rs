//! The file format of a blob: sealed chunks, so that it can be streamed.
//!
//! The head has the blob's own key, encrypted with the key of all blobs and bound to the blob's kind, space and name. Each
//! chunk is encrypted with the blob's own key; the nonce is the chunk's number and a flag for the last chunk, so swapped,
//! repeated, missing or truncated chunks do not open.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::BlobError;

pub(super) const MARK: &[u8] = b"effectd blob 2\n";
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const WRAPPED_BYTES: usize = NONCE_BYTES + 32 + TAG_BYTES;
/// Bytes before the first chunk.
pub(super) const HEAD_BYTES: usize = MARK.len() + WRAPPED_BYTES;
/// Content of every chunk but the last, which may be shorter.
pub(super) const CHUNK_BYTES: usize = 65_536;
/// A full chunk on disk.
pub(super) const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES + TAG_BYTES;

/// Length of the file of a blob with this much content.
pub(super) const fn sealed_bytes(content: u64) -> u64 {
    let chunks = content.div_ceil(CHUNK_BYTES as u64);
    let chunks = if chunks == 0 { 1 } else { chunks };
    HEAD_BYTES as u64 + content + chunks * TAG_BYTES as u64
}

/// Length of the content of a file; `None` if no blob has that length.
pub(super) fn content_bytes(file: u64) -> Option<u64> {
    let body = file.checked_sub(HEAD_BYTES as u64)?;
    let tags = body.div_ceil(SEALED_CHUNK_BYTES as u64).max(1) * TAG_BYTES as u64;
    let content = body.checked_sub(tags)?;
    (sealed_bytes(content) == file).then_some(content)
}

/// The key of one blob, and the number of the next chunk. A key serves one blob only, so the number is a safe nonce.
pub(super) struct Chunks {
    key: Zeroizing<[u8; 32]>,
    cipher: XChaCha20Poly1305,
    number: u64,
}

impl Chunks {
    pub(super) fn fresh() -> Result<Self, BlobError> {
        Self::with(Zeroizing::new(random()?))
    }

    pub(super) fn of(all: &XChaCha20Poly1305, context: &[u8], head: &[u8]) -> Result<Self, BlobError> {
        let wrapped = head.strip_prefix(MARK).ok_or(BlobError::Damaged)?;
        let (nonce, msg) = wrapped.split_first_chunk::<NONCE_BYTES>().ok_or(BlobError::Damaged)?;
        let opened = all.decrypt(&XNonce::from(*nonce), Payload { msg, aad: context });
        let opened = Zeroizing::new(opened.map_err(|_| BlobError::Damaged)?);
        let key: &[u8; 32] = opened.first_chunk().ok_or(BlobError::Damaged)?;
        Self::with(Zeroizing::new(*key))
    }

    fn with(key: Zeroizing<[u8; 32]>) -> Result<Self, BlobError> {
        let cipher = XChaCha20Poly1305::new_from_slice(&*key).map_err(|_| BlobError::Damaged)?;
        Ok(Self { key, cipher, number: 0 })
    }

    /// The head of the blob.
    pub(super) fn head(&self, all: &XChaCha20Poly1305, context: &[u8]) -> Result<Vec<u8>, BlobError> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let payload = Payload { msg: &*self.key, aad: context };
        let wrapped = all.encrypt(&XNonce::from(nonce), payload);
        let mut head = MARK.to_vec();
        head.extend_from_slice(&nonce);
        head.extend(wrapped.map_err(|_| failed())?);
        Ok(head)
    }

    pub(super) fn seal(&mut self, chunk: &[u8], is_last: bool) -> Result<Vec<u8>, BlobError> {
        let sealed = self.cipher.encrypt(&self.nonce(is_last), chunk);
        self.number += 1;
        sealed.map_err(|_| failed())
    }

    pub(super) fn open(&mut self, sealed: &[u8], is_last: bool) -> Result<Vec<u8>, BlobError> {
        let opened = self.cipher.decrypt(&self.nonce(is_last), sealed);
        self.number += 1;
        opened.map_err(|_| BlobError::Damaged)
    }

    fn nonce(&self, is_last: bool) -> XNonce {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&self.number.to_be_bytes());
        nonce[8] = u8::from(is_last);
        XNonce::from(nonce)
    }
}

/// A whole blob in memory.
pub(super) fn seal_whole(
    all: &XChaCha20Poly1305,
    context: &[u8],
    content: &[u8],
) -> Result<Vec<u8>, BlobError> {
    let mut chunks = Chunks::fresh()?;
    let mut sealed = chunks.head(all, context)?;
    let mut rest = content;
    loop {
        let (chunk, after) = rest.split_at(rest.len().min(CHUNK_BYTES));
        sealed.extend(chunks.seal(chunk, after.is_empty())?);
        rest = after;
        if rest.is_empty() {
            return Ok(sealed);
        }
    }
}

fn failed() -> BlobError {
    BlobError::disk("sealing failed")
}

fn random<const N: usize>() -> Result<[u8; N], BlobError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| BlobError::disk(error.to_string()))?;
    Ok(bytes)
}
