//! How values become bytes: the few primitives that every stored format is made of.
//!
//! Written by hand rather than derived, so that a stored byte changes only when someone changes it here and sees the
//! golden tests fail.

use sha2::{Digest as _, Sha256};

/// Bytes that do not decode. Only damage or a bug gives them, since everything read has a checksum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Half a SHA-256 of something that is only ever looked up whole: short, of one length, and it tells nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Where it begins.
    pub at: u32,
    /// How long it is.
    pub len: u32,
}

/// A part of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which block.
    pub seq: u64,
    /// Which part of it.
    pub span: Span,
}

impl Place {
    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.seq);
        put_u64(out, u64::from(self.span.at));
        put_u64(out, u64::from(self.span.len));
    }

    /// Reads it.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Place {
            seq: reader.u64()?,
            span: Span {
                at: reader.u32()?,
                len: reader.u32()?,
            },
        })
    }
}

/// Appends a number in seven-bit groups, least first.
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number, small magnitudes short.
pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_u64(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends bytes after their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends text after its length.
pub fn put_str(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Reads what the `put_` functions wrote, and never beyond its end.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u32,
}

impl<'a> Reader<'a> {
    /// Reads these bytes, which begin `base` bytes into their block.
    pub fn new(bytes: &'a [u8], base: u32) -> Self {
        Reader { bytes, at: 0, base }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Where the next byte lies in the block.
    pub fn position(&self) -> Result<u32, Malformed> {
        u32::try_from(self.at)
            .ok()
            .and_then(|at| self.base.checked_add(at))
            .ok_or(Malformed("a position beyond 4 GiB"))
    }

    /// The next `len` bytes as they are.
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        if len > self.left() {
            return Err(Malformed("bytes end too early"));
        }
        let part = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(part)
    }

    /// So many bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.raw(1)?[0])
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            if shift == 63 && byte > 1 {
                return Err(Malformed("a number beyond 64 bits"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift != 0 {
                    return Err(Malformed("a number with needless zeros"));
                }
                return Ok(value);
            }
        }
        Err(Malformed("a number beyond 64 bits"))
    }

    /// A number of at most 32 bits.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| Malformed("a number beyond 32 bits"))
    }

    /// A length or count that memory is about to be taken for: never more than there are bytes left.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u64()?).map_err(|_| Malformed("a count beyond memory"))?;
        if count > self.left() {
            return Err(Malformed("a count beyond the bytes that are there"));
        }
        Ok(count)
    }

    /// A signed number.
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        let value = self.u64()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Bytes after their length.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.count()?;
        self.raw(len)
    }

    /// Where bytes after their length lie, passing over them.
    pub fn span(&mut self) -> Result<Span, Malformed> {
        let len = self.count()?;
        let at = self.position()?;
        self.raw(len)?;
        Ok(Span {
            at,
            len: u32::try_from(len).map_err(|_| Malformed("a part beyond 4 GiB"))?,
        })
    }

    /// Text after its length.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("text that is not UTF-8"))
    }

    /// A yes or no.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            2..=u8::MAX => Err(Malformed("a flag that is neither 0 nor 1")),
        }
    }

    /// Makes sure that nothing follows.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.left() == 0 {
            Ok(())
        } else {
            Err(Malformed("bytes after the end"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(unsigned: u64, signed: i64) {
            let mut out = Vec::new();
            put_u64(&mut out, unsigned);
            put_i64(&mut out, signed);
            let mut reader = Reader::new(&out, 0);
            prop_assert_eq!(reader.u64().unwrap(), unsigned);
            prop_assert_eq!(reader.i64().unwrap(), signed);
            reader.end().unwrap();
        }

        #[test]
        fn no_bytes_make_a_reader_panic_or_take_memory(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes, u32::MAX - 8);
            while reader.left() > 0 {
                let before = reader.left();
                let _ = reader.span();
                let _ = reader.text();
                let _ = reader.i64();
                if reader.left() == before {
                    break;
                }
            }
        }
    }

    #[test]
    fn every_number_has_one_form() {
        assert_eq!(
            Reader::new(&[0x80, 0x00], 0).u64(),
            Err(Malformed("a number with needless zeros"))
        );
        assert_eq!(
            Reader::new(&[0xff; 10], 0).u64(),
            Err(Malformed("a number beyond 64 bits"))
        );
    }
}
