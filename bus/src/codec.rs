//! How values become bytes: in postcard. Golden tests hold every byte.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes that do not decode. Only damage or a bug gives them, since everything read has a checksum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Half a SHA-256 of something that is only ever looked up whole: short, of one length, and it tells nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hash16(pub [u8; 16]);

impl Hash16 {
    /// The hash of some parts; their lengths are part of it, so that `("ab", "c")` is not `("a", "bc")`.
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

/// A part of a block, counted from the block's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Span {
    pub at: u32,
    pub len: u32,
}

/// A part of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub seq: u64,
    pub span: Span,
}

#[expect(
    clippy::expect_used,
    reason = "only a length that is not known beforehand fails"
)]
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("every stored type has a known length")
}

/// Reads what [`encode`] wrote, which must fill its bytes.
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

/// A file's worth of value: behind a mark that names the format, and before a CRC-32 of all.
pub(crate) fn encode_marked(mark: &str, value: &impl Serialize) -> Vec<u8> {
    let mut out = encode(&(mark, value));
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out
}

pub(crate) fn decode_marked<'a, T: Deserialize<'a>>(mark: &str, bytes: &'a [u8]) -> Result<T, Malformed> {
    let (bytes, own) = bytes.split_last_chunk().ok_or(Malformed("bytes end too early"))?;
    if crc32fast::hash(bytes) != u32::from_be_bytes(*own) {
        return Err(Malformed("a checksum that does not fit"));
    }
    let (found, rest): (&str, _) = decode_first(bytes)?;
    if found != mark {
        return Err(Malformed("another format"));
    }
    decode(rest)
}

/// A digest as its 32 bytes; its own serialised form is text.
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

/// Appends bytes after their length, as [`encode`] writes them.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&encode(&bytes.len()));
    out.extend_from_slice(bytes);
}

/// So many bytes at a place that is there.
pub(crate) fn fixed<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::Record;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes: Vec<u8>) {
            let len = u32::try_from(bytes.len()).unwrap();
            let _ = Record::decode(&bytes, Span { at: 0, len });
            let _ = Record::decode(&bytes, Span { at: u32::MAX - 8, len });
            let _ = decode::<crate::fold::Fold>(&bytes);
        }
    }

    #[test]
    fn a_marked_value_opens_under_its_own_mark_alone() {
        let bytes = encode_marked("mark", &(7_u64, "text"));
        assert_eq!(decode_marked("mark", &bytes), Ok((7_u64, "text")));
        let other: Result<(u64, &str), _> = decode_marked("other", &bytes);
        assert_eq!(other, Err(Malformed("another format")));
    }
}
