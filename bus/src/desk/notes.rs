//! Entries of the log that are neither intent nor receipt.

use effectd_contracts::Digest;

use super::Desk;
use crate::codec::Hash16;
use crate::error::StoreError;
use crate::record::{Blob, Record};

impl Desk<'_> {
    /// Adds a note; its place in the log. Like a receipt, it is written on a disk that is too full for new work: without a
    /// signed head, retention could give no room back.
    pub(crate) fn note(&mut self, about: Hash16, body: Vec<u8>, leaf: Digest) -> Result<u64, StoreError> {
        let index = self.fold.log.size();
        let body = Blob::Draft(body);
        self.emit_logged(Record::Noted { about, body }, Some(leaf))?;
        Ok(index)
    }
}
