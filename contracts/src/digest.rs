//! SHA-256 digests, written as `sha256:<64 hex digits>`.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::wire::text_type;

/// A SHA-256 digest. Its text names the algorithm, so that others can be added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A digest from its 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hex digits without the algorithm, as `sha256sum` prints them.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Bytes from hex in either case; `None` for anything else.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    digits.chunks_exact(2).map(|pair| u8::try_from(value(pair[0])? * 16 + value(pair[1])?).ok()).collect()
}

/// An invalid digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is written as sha256:<64 hex digits>")]
pub struct DigestInvalid;

fn parse(text: &str) -> Result<Digest, DigestInvalid> {
    let bytes = text.strip_prefix("sha256:").and_then(unhex);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.map(Digest).ok_or(DigestInvalid)
}

text_type!(Digest, parse, DigestInvalid, { "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" });

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_the_form_other_tools_print() {
        let digest = Digest::of(b"hello");
        assert_eq!(digest.hex(), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
        assert_eq!(Digest::try_from(digest.to_string()), Ok(digest));
        assert_eq!(Digest::try_from("sha256:2cf2".to_owned()), Err(DigestInvalid));
        assert_eq!(Digest::try_from("md5:00".to_owned()), Err(DigestInvalid));
    }
}
