//! A reader or writer that computes the digest of what passes through it.

use std::io::{self, Read, Write};

use effectd_contracts::Digest;
use sha2::{Digest as _, Sha256};

pub(crate) struct Hashing<T> {
    inner: T,
    hasher: Sha256,
}

impl<T> Hashing<T> {
    pub(crate) fn new(inner: T) -> Self {
        let hasher = Sha256::new();
        Self { inner, hasher }
    }

    pub(crate) fn digest(self) -> Digest {
        Digest::from_bytes(self.hasher.finalize().into())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.hasher.update(&into[..count]);
        Ok(count)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
