//! Opening a store: from the bytes on disk to the state and the reader.

use std::sync::Arc;

use effectd_contracts::Clock;
use parking_lot::RwLock;

use super::{Medium, Opened};
use crate::codec::Malformed;
use crate::error::StoreError;
use crate::index::memtable::{Cell, Memtable};
use crate::index::{Applied, Index, RunStore};
use crate::journal::{Journal, block};
use crate::reads::{Live, Reader};
use crate::state::checkpoint::{index_first, is_unchanged};
use crate::state::replay::{JournalTip, checkpoint_before};
use crate::state::{State, When};
use crate::vault::Vault;

/// Opens a medium. A damaged index is rebuilt from the journal.
pub(super) fn recover(
    medium: &dyn Medium,
    clock: &dyn Clock,
    vault: &Arc<Vault>,
) -> Result<(Reader, JournalTip), StoreError> {
    let (reader, tip) = recover_once(medium, clock, vault)?;
    if !reader.index.is_corrupt() {
        return Ok((reader, tip));
    }
    tracing::error!("the index is damaged; it is rebuilt from the journal");
    reader.index.close_runs();
    drop(reader);
    recover_once(medium, clock, vault)
}

fn recover_once(
    medium: &dyn Medium,
    clock: &dyn Clock,
    vault: &Arc<Vault>,
) -> Result<(Reader, JournalTip), StoreError> {
    let when = replay_time(clock);
    let opened = medium.open()?;
    let journal = opened.journal.clone();
    let (index, tip) = replay_into(opened, u64::MAX, when)?;
    finish_truncation(journal.as_ref(), &index, &tip, when)?;
    let state = &tip.state;
    for epoch in &state.closed_epochs {
        vault.destroy(*epoch)?;
    }
    let live = RwLock::new(Live::of(state));
    let reader = Reader { journal, index, vault: vault.clone(), live, dead: None };
    // If the index is damaged, the writer soon rebuilds it and counts again.
    let (letters, quarantined) = reader.count_letters().unwrap_or_default();
    {
        let mut live = reader.live.write();
        (live.letters, live.quarantined) = (letters, quarantined);
    }
    Ok((reader, tip))
}

fn replay_time(clock: &dyn Clock) -> When {
    When { at_ms: 0, now_ms: clock.now().as_millisecond(), now: clock.monotonic(), replay: true }
}

/// Replays the blocks up to `until` that the runs do not hold yet.
fn replay_into(opened: Opened, until: u64, when: When) -> Result<(Index, JournalTip), StoreError> {
    let Opened { journal, runs, log, memtable_entries, progress } = opened;
    let applied = runs.as_deref().and_then(RunStore::applied);
    let index = Index::new(runs, log, memtable_entries);
    let mut tip = match &applied {
        Some(applied) => {
            check_applied(journal.as_ref(), applied)?;
            JournalTip::new(restore(applied, when)?)
        }
        None => {
            let (tip, entries) = JournalTip::at_start(journal.as_ref(), when)?;
            if !entries.is_empty() {
                index.apply(entries, 0);
            }
            tip
        }
    };
    // The last applied block is read too, for its checksum and time.
    let known = applied.map_or(tip.seq, |applied| applied.seq);
    index.log().begin(tip.state.log.size())?;
    let last = journal.bounds()?.map_or(0, |(_, last)| last.min(until));
    journal.scan(known, &mut |seq, bytes| {
        if seq > until {
            return Ok(());
        }
        if seq <= known {
            return tip.skip(seq, bytes);
        }
        progress.at("replaying the journal", seq - known, last.saturating_sub(known));
        let changes = tip.apply(seq, bytes, when)?;
        if let Some((first, leaves)) = &changes.leaves {
            index.log().append(*first, leaves)?;
        }
        index.apply(changes.index, bytes.len());
        if index.should_flush() {
            flush(&index, &tip)?;
        }
        Ok(())
    })?;
    Ok((index, tip))
}

fn flush(index: &Index, tip: &JournalTip) -> Result<(), StoreError> {
    let (applied, log_size) = tip.applied();
    index.freeze(applied, log_size);
    index.flush_frozen()
}

/// Brings the runs up to block `until` of the journal.
pub(super) fn rebuild(opened: Opened, until: u64, clock: &dyn Clock) -> Result<(), StoreError> {
    let (index, tip) = replay_into(opened, until, replay_time(clock))?;
    if index.lag() > 0 {
        flush(&index, &tip)?;
    }
    Ok(())
}

fn restore(applied: &Applied, when: When) -> Result<State, StoreError> {
    match State::restore(&applied.snapshot, when) {
        Ok((seq, state)) if seq == applied.seq => Ok(state),
        Ok(_) => Err(StoreError::index_unreadable("a snapshot of another block")),
        Err(Malformed(what)) => Err(StoreError::index_unreadable(what)),
    }
}

/// Finishes a truncation that an earlier process began: the index has its mark, and the journal still has the blocks.
fn finish_truncation(
    journal: &dyn Journal,
    index: &Index,
    tip: &JournalTip,
    when: When,
) -> Result<(), StoreError> {
    let first = index_first(index.view(None))?;
    if first <= journal.first() {
        return Ok(());
    }
    let (checkpoint, removed) = checkpoint_before(journal, first, when)?;
    let mut deletions = Memtable::default();
    for entry in removed {
        if is_unchanged(index.view(None), &entry)? {
            deletions.set(entry.0, Cell::Delete);
        }
    }
    index.apply(deletions, 0);
    flush(index, tip)?;
    journal.stage(first, &checkpoint.encode())?;
    journal.truncate_before(first)
}

/// The index is never ahead of the durable journal: a journal that ends before the last applied block, or has another
/// block there, has lost something that was acknowledged.
fn check_applied(journal: &dyn Journal, applied: &Applied) -> Result<(), StoreError> {
    let seq = applied.seq;
    if seq < journal.first() {
        return Err(StoreError::index_unreadable("it is older than the first block of the journal"));
    }
    let last = journal.bounds()?.map_or(0, |(_, last)| last);
    if last < seq {
        return Err(journal_too_short(last, seq));
    }
    let header = block::check(&journal.block(seq)?).map_err(|error| error.at(seq))?;
    if header.checksum != applied.checksum {
        let what = format!("block {seq} of the journal is not the one that the index was built from");
        return Err(StoreError::damaged(what));
    }
    Ok(())
}

pub(super) fn journal_too_short(last: u64, applied: u64) -> StoreError {
    StoreError::damaged(format!("the journal ends with block {last}, but block {applied} had been written"))
}
