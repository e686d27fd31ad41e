//! Reading the Merkle log: entries by their index, and proofs.

use effectd_contracts::merkle::{self, Frontier};
use effectd_contracts::{Digest, ReceiptId};

use super::{Reader, part_of, span_in, timestamp};
use crate::codec::{Location, Malformed, Span};
use crate::error::StoreError;
use crate::index::schema::{self, BlockSpans, Dimension};
use crate::journal::record::Logged;
use crate::limits::{PAGE_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::merkle_log::intent_bytes;
use crate::types::log::{LogStatus, StoredLogEntry};

impl Reader {
    pub(crate) fn log_status(&self) -> Result<LogStatus, StoreError> {
        let (log, open, receipts) = {
            let live = self.live.read();
            (live.log.clone(), live.open_claims, live.receipts_begin)
        };
        Ok(LogStatus {
            size: log.size(),
            root: log.root(),
            open,
            kept_from: self.log_kept_from(receipts)?.min(log.size()),
        })
    }

    pub(crate) fn log_size(&self) -> u64 {
        self.live.read().log.size()
    }

    pub(crate) fn log_entries(&self, from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError> {
        let mut entries = Vec::new();
        let (mut bytes, mut cached) = (0, None);
        for index in from..self.log_size() {
            if entries.len() >= max.clamp(1, PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                break;
            }
            let entry = self.log_entry(index, &mut cached)?;
            bytes += entry.body.as_ref().map_or(0, Vec::len);
            entries.push(entry);
        }
        Ok(entries)
    }

    pub(crate) fn notes(
        &self,
        about: &str,
        from: u64,
        max: usize,
    ) -> Result<Vec<StoredLogEntry>, StoreError> {
        let value = schema::text_hash(about);
        let (mut notes, mut at) = (Vec::new(), from);
        while notes.len() < max.clamp(1, PAGE_ITEMS_MAX) {
            let Some(index) = self.next_posting(Dimension::Note, value, at)? else {
                break;
            };
            notes.push(self.log_entry(index, &mut None)?);
            at = index + 1;
        }
        Ok(notes)
    }

    pub(crate) fn last_note(&self, about: &str) -> Result<Option<StoredLogEntry>, StoreError> {
        let Some(last) = self.log_size().checked_sub(1) else {
            return Ok(None);
        };
        let found = self.previous_posting(Dimension::Note, schema::text_hash(about), last)?;
        found.map(|index| self.log_entry(index, &mut None)).transpose()
    }

    pub(crate) fn log_frontier(&self, size: u64) -> Result<Frontier, StoreError> {
        self.check_log_size(size)?;
        merkle::frontier(self.index.log(), size)
    }

    pub(crate) fn log_inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, StoreError> {
        self.check_log_size(size)?;
        if index >= size {
            let what = format!("a log of size {size} has no entry {index}");
            return Err(StoreError::Invalid(what));
        }
        merkle::inclusion(self.index.log(), index, size)
    }

    pub(crate) fn log_consistency(&self, old: u64, new: u64) -> Result<Vec<Digest>, StoreError> {
        self.check_log_size(new)?;
        if old > new {
            let what = format!("a log of size {new} cannot extend one of {old}");
            return Err(StoreError::Invalid(what));
        }
        merkle::consistency(self.index.log(), old, new)
    }

    fn check_log_size(&self, size: u64) -> Result<(), StoreError> {
        let there = self.log_size();
        if size > there {
            return Err(StoreError::Invalid(format!("the log has the size {there}, not {size}")));
        }
        Ok(())
    }

    /// The index of a receipt in the log, by a binary search for its block.
    pub(crate) fn log_place(&self, id: &ReceiptId) -> Result<Option<u64>, StoreError> {
        let Some(bytes) = self.view().get(&schema::receipt(id.as_str()))? else {
            return Ok(None);
        };
        let at = schema::ReceiptAt::decode(&bytes)?;
        let has_expired = || at.ordinal < self.live.read().receipts_begin;
        let (receipts, span) = match self.receipt_location(at.ordinal) {
            Ok(_) | Err(_) if has_expired() => return Ok(None),
            location => location?,
        };
        let (mut low, mut high) = (0, self.log_size());
        while low < high {
            let middle = low + (high - low) / 2;
            let Some((first, entries)) = self.log_spans(middle)? else {
                low = middle + 1;
                continue;
            };
            if entries.seq == receipts.seq {
                let nth = entries.spans.iter().position(|entry| *entry == span);
                return Ok(nth.map(|nth| first + nth as u64));
            }
            if entries.seq < receipts.seq {
                low = first + entries.spans.len() as u64;
            } else {
                high = first;
            }
        }
        Ok(None)
    }

    /// The first log entry to keep when receipts from this one on are kept: the first after the block of the last expired
    /// receipt. So a key or a head between the last expired and the first kept receipt is kept too.
    pub(crate) fn log_kept_from(&self, receipts_begin: u64) -> Result<u64, StoreError> {
        let size = self.log_size();
        let first = self.first_spans(&schema::log_entries(0), &schema::log_entries(u64::MAX))?;
        let begin = first.map_or(size, |(first, _)| first);
        let Some(expired) = receipts_begin.checked_sub(1) else {
            return Ok(begin);
        };
        match self.last_spans(&schema::receipts(0), &schema::receipts(expired))? {
            Some((_, expired)) => {
                self.first_where(schema::log_entries, begin..size, |spans| spans.seq > expired.seq)
            }
            // The block of the last expired receipt was dropped, with all log entries in it.
            None => Ok(begin),
        }
    }

    /// The log entries of the block that has an index; `None` if the block was dropped.
    fn log_spans(&self, index: u64) -> Result<Option<(u64, BlockSpans)>, StoreError> {
        let found = self.last_spans(&schema::log_entries(0), &schema::log_entries(index))?;
        Ok(found.filter(|group| span_in(group, index).is_some()))
    }

    fn log_entry(
        &self,
        index: u64,
        cached: &mut Option<(u64, BlockSpans)>,
    ) -> Result<StoredLogEntry, StoreError> {
        if cached.as_ref().and_then(|group| span_in(group, index)).is_none() {
            *cached = self.log_spans(index)?;
        }
        let dropped =
            StoredLogEntry { index, hash: self.index.log().hash(index)?, stored_at: None, body: None };
        let found = cached.as_ref().and_then(|group| Some((&group.1, span_in(group, index)?)));
        // An empty span stands for an entry that was lost before a salvage.
        let Some((spans, span)) = found.filter(|(_, span)| *span != Span::default()) else {
            return Ok(dropped);
        };
        let seq = spans.seq;
        let is_dropped = || seq < self.journal.first();
        if is_dropped() {
            return Ok(dropped);
        }
        let (bytes, record) = match self.record(Location { seq, span }) {
            Err(_) if is_dropped() => return Ok(dropped),
            read => read?,
        };
        let body = match record.logged() {
            Some(Logged::Intent(claim)) => intent_bytes(claim),
            Some(Logged::Body(body)) => part_of(&bytes, span, body)?.to_vec(),
            None => return Err(schema::malformed(Malformed("a log entry of another kind"))),
        };
        Ok(StoredLogEntry { stored_at: Some(timestamp(spans.at_ms)), body: Some(body), ..dropped })
    }
}
