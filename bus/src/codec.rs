//! The encoding of stored values: postcard, with golden tests of every byte.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes that do not decode: damage or a bug, since everything that is read has a checksum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Undamaged bytes under another mark.
pub(crate) const OTHER_FORMAT: Malformed = Malformed("another format");

/// Half a SHA-256 of a lookup key: short, of fixed length, and it reveals nothing of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hash16(pub [u8; 16]);

impl Hash16 {
    /// The hash of some parts with their lengths, so that `("ab", "c")` and `("a", "bc")` differ.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        let mut half = [0; 16];
        half.copy_from_slice(&hasher.finalize()[..16]);
        Hash16(half)
    }
}

/// A range of bytes in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Span {
    pub at: u32,
    pub len: u32,
}

impl Span {
    /// The bytes of the span; `None` if the block is shorter.
    pub(crate) fn of(self, block: &[u8]) -> Option<&[u8]> {
        let start = self.at as usize;
        block.get(start..start + self.len as usize)
    }
}

/// A range of bytes in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    pub seq: u64,
    pub span: Span,
}

#[expect(clippy::expect_used, reason = "only a length that is not known beforehand fails")]
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("every stored type has a known length")
}

/// Decodes a value that takes up all of the bytes.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    let (value, rest) = decode_first(bytes)?;
    if !rest.is_empty() {
        return Err(Malformed("bytes after the end"));
    }
    Ok(value)
}

pub(crate) fn decode_first<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), Malformed> {
    postcard::take_from_bytes(bytes).map_err(|_| Malformed("bytes that do not decode"))
}

/// The content of a file: a mark that names the format, the value, and a CRC-32 of both.
pub(crate) fn encode_marked(mark: &str, value: &impl Serialize) -> Vec<u8> {
    let mut out = encode(&(mark, value));
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out
}

pub(crate) fn decode_marked<'a, T: Deserialize<'a>>(mark: &str, bytes: &'a [u8]) -> Result<T, Malformed> {
    let (bytes, own) = bytes.split_last_chunk().ok_or(Malformed("bytes end too early"))?;
    if crc32fast::hash(bytes) != u32::from_be_bytes(*own) {
        return Err(Malformed("a wrong checksum"));
    }
    let (found, rest): (&str, _) = decode_first(bytes)?;
    if found != mark {
        return Err(OTHER_FORMAT);
    }
    decode(rest)
}

/// Serialises a digest as 32 bytes; its own form is text.
pub(crate) mod digest {
    use effectd_contracts::Digest;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        digest.as_bytes().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        <[u8; 32]>::deserialize(from).map(Digest::from_bytes)
    }
}

/// Appends length and bytes, as [`encode`] does.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&encode(&bytes.len()));
    out.extend_from_slice(bytes);
}

/// `N` bytes at an offset, which the caller has checked.
pub(crate) fn fixed<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::journal::record::Record;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes: Vec<u8>) {
            let len = u32::try_from(bytes.len()).unwrap();
            let _ = Record::decode(&bytes, Span { at: 0, len });
            let _ = Record::decode(&bytes, Span { at: u32::MAX - 8, len });
            let _ = decode::<crate::state::State>(&bytes);
        }
    }

    #[test]
    fn a_marked_value_decodes_only_under_its_own_mark() {
        let bytes = encode_marked("mark", &(7_u64, "text"));
        assert_eq!(decode_marked("mark", &bytes), Ok((7_u64, "text")));
        let other: Result<(u64, &str), _> = decode_marked("other", &bytes);
        assert_eq!(other, Err(Malformed("another format")));
    }
}
