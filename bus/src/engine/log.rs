//! Reading the log: entries by their place, and proofs about them.

use effectd_contracts::merkle::{self, Frontier};
use effectd_contracts::{Digest, ReceiptId};

use super::queries::{next_posting, previous_posting};
use super::reads::{decode_run, first_run, part_of, read_record, receipt_place};
use super::{Served, Shared, timestamp};
use crate::codec::{Malformed, Place};
use crate::desk::index_damaged;
use crate::error::StoreError;
use crate::keys::{self, Dimension, Run};
use crate::limits::{PAGE_BYTES_MAX, PAGE_ITEMS_MAX};
use crate::log::intent_bytes;
use crate::record::Record;
use crate::types::log::{LogStanding, StoredEntry};

impl Shared {
    pub(crate) fn log_standing(&self) -> Result<LogStanding, StoreError> {
        let served = self.served();
        served.alive()?;
        let (log, open, receipts) = {
            let live = served.live();
            (live.log.clone(), live.open_claims, live.receipts_begin)
        };
        Ok(LogStanding {
            size: log.size(),
            root: log.root(),
            open,
            kept_from: kept_from(&served, receipts)?.min(log.size()),
        })
    }

    pub(crate) fn log_page(&self, from: u64, max: usize) -> Result<Vec<StoredEntry>, StoreError> {
        let served = self.served();
        served.alive()?;
        let size = served.live().log.size();
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut near = None;
        for index in from..size {
            if entries.len() >= max.clamp(1, PAGE_ITEMS_MAX) || bytes >= PAGE_BYTES_MAX {
                break;
            }
            let entry = log_entry(&served, index, &mut near)?;
            bytes += entry.body.as_ref().map_or(0, Vec::len);
            entries.push(entry);
        }
        Ok(entries)
    }

    pub(crate) fn notes(&self, about: &str, from: u64, max: usize) -> Result<Vec<StoredEntry>, StoreError> {
        let served = self.served();
        served.alive()?;
        let value = keys::text_hash(about);
        let (mut notes, mut at) = (Vec::new(), from);
        while notes.len() < max.clamp(1, PAGE_ITEMS_MAX) {
            let Some(index) = next_posting(&served, Dimension::Note, value, at)? else {
                break;
            };
            notes.push(log_entry(&served, index, &mut None)?);
            at = index + 1;
        }
        Ok(notes)
    }

    pub(crate) fn last_note(&self, about: &str) -> Result<Option<StoredEntry>, StoreError> {
        let served = self.served();
        served.alive()?;
        let Some(last) = served.live().log.size().checked_sub(1) else {
            return Ok(None);
        };
        let found = previous_posting(&served, Dimension::Note, keys::text_hash(about), last)?;
        found
            .map(|index| log_entry(&served, index, &mut None))
            .transpose()
    }

    pub(crate) fn log_frontier(&self, size: u64) -> Result<Frontier, StoreError> {
        let served = self.served_log(size)?;
        merkle::frontier(served.table.log(), size)
    }

    pub(crate) fn log_inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, StoreError> {
        let served = self.served_log(size)?;
        if index >= size {
            return Err(StoreError::Invalid(format!(
                "a log of {size} entries has no entry {index}"
            )));
        }
        merkle::inclusion(served.table.log(), index, size)
    }

    pub(crate) fn log_consistency(&self, old: u64, new: u64) -> Result<Vec<Digest>, StoreError> {
        let served = self.served_log(new)?;
        if old > new {
            return Err(StoreError::Invalid(format!(
                "a log of {new} entries does not begin with one of {old}"
            )));
        }
        merkle::consistency(served.table.log(), old, new)
    }

    fn served_log(&self, size: u64) -> Result<std::sync::Arc<Served>, StoreError> {
        let served = self.served();
        served.alive()?;
        let there = served.live().log.size();
        if size > there {
            return Err(StoreError::Invalid(format!(
                "the log has {there} entries, not {size}"
            )));
        }
        Ok(served)
    }

    /// Where a receipt stands in the log: beside others of its block, whose entries stand together.
    pub(crate) fn log_place(&self, id: &ReceiptId) -> Result<Option<u64>, StoreError> {
        let served = self.served();
        served.alive()?;
        let Some(bytes) = served.table.view(None).get(&keys::receipt(id.as_str()))? else {
            return Ok(None);
        };
        let at = keys::ReceiptAt::decode(&bytes).map_err(|error| index_damaged(&error))?;
        let is_gone = || at.ordinal < served.live().receipts_begin;
        let (run, span) = match receipt_place(&served, at.ordinal) {
            Ok(_) | Err(_) if is_gone() => return Ok(None),
            place => place?,
        };
        let (mut low, mut high) = (0, served.live().log.size());
        while low < high {
            let middle = low + (high - low) / 2;
            let Some((first, entries)) = log_run(&served, middle)? else {
                low = middle + 1;
                continue;
            };
            if entries.seq == run.seq {
                let nth = entries.spans.iter().position(|entry| *entry == span);
                return Ok(nth.map(|nth| first + nth as u64));
            }
            if entries.seq < run.seq {
                low = first + entries.spans.len() as u64;
            } else {
                high = first;
            }
        }
        Ok(None)
    }
}

/// The first entry of the log that is kept while receipts from this one on are: the first behind the block of the last receipt
/// that has expired. So whatever stands before a receipt that is kept, a key or a head, stays as long as that receipt.
pub(super) fn kept_from(served: &Served, receipts_begin: u64) -> Result<u64, StoreError> {
    let size = served.live().log.size();
    let view = served.table.view(None);
    let run = |found| decode_run(found).map_err(|error| index_damaged(&error));
    let there = run(view.next(&keys::log_run(0), &keys::log_run(u64::MAX))?)?;
    let begin = there.map_or(size, |(first, _)| first);
    let Some(expired) = receipts_begin.checked_sub(1) else {
        return Ok(begin);
    };
    let expired = run(view.previous(&keys::receipt_run(0), &keys::receipt_run(expired))?)?;
    match expired {
        Some((_, expired)) => first_run(served, keys::log_run, begin..size, |run| run.seq > expired.seq),
        // Its block was dropped, and all entries of the log in it.
        None => Ok(begin),
    }
}

/// The entries that stand in the log together with this one; `None` if they were let go.
fn log_run(served: &Served, index: u64) -> Result<Option<(u64, Run)>, StoreError> {
    let found = served
        .table
        .view(None)
        .previous(&keys::log_run(0), &keys::log_run(index))?;
    let run = decode_run(found).map_err(|error| index_damaged(&error))?;
    Ok(run.filter(|(first, run)| index - first < run.spans.len() as u64))
}

fn log_entry(served: &Served, index: u64, near: &mut Option<(u64, Run)>) -> Result<StoredEntry, StoreError> {
    let known = |near: &Option<(u64, Run)>| {
        near.as_ref().is_some_and(|(first, run)| {
            index
                .checked_sub(*first)
                .is_some_and(|nth| nth < run.spans.len() as u64)
        })
    };
    if !known(near) {
        *near = log_run(served, index)?;
    }
    let hash = served.table.log().hash(index)?;
    let gone = StoredEntry {
        index,
        hash,
        stored_at: None,
        body: None,
    };
    let Some((first, run)) = near else { return Ok(gone) };
    let seq = run.seq;
    let is_gone = || seq < served.journal.first();
    if is_gone() {
        return Ok(gone);
    }
    let nth = usize::try_from(index - *first).ok();
    let span = nth.and_then(|nth| run.spans.get(nth).copied());
    let span = span.ok_or_else(|| index_damaged(&Malformed("an entry without its place")))?;
    let (bytes, record) = match read_record(served, Place { seq, span }) {
        Err(_) if is_gone() => return Ok(gone),
        read => read?,
    };
    let body = match &record {
        Record::Claimed(claim) => intent_bytes(claim),
        Record::Completed(receipt) => part_of(&bytes, span, receipt.body.span())?.to_vec(),
        Record::Noted { body, .. } => part_of(&bytes, span, body.span())?.to_vec(),
        Record::Published { .. }
        | Record::Leased(_)
        | Record::Settled(_)
        | Record::Lettered(_)
        | Record::TakenOver { .. }
        | Record::Linked { .. }
        | Record::EntryPut { .. }
        | Record::EntryDeleted { .. }
        | Record::Sought { .. }
        | Record::Configured { .. }
        | Record::EpochClosed { .. }
        | Record::LetterEnded { .. }
        | Record::Expired(_)
        | Record::EventMoved { .. }
        | Record::ClaimMoved { .. }
        | Record::Disturbed { .. }
        | Record::LetterMoved { .. } => {
            return Err(index_damaged(&Malformed("an entry of the log that is none")));
        }
    };
    Ok(StoredEntry {
        stored_at: Some(timestamp(run.at_ms)),
        body: Some(body),
        ..gone
    })
}
