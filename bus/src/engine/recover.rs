//! Opening a store: from what is on disk to the state that is served.

use std::sync::RwLock;

use effectd_contracts::Clock;

use super::writer::vouch;
use super::{Live, Medium, Opened, Served};
use crate::block::{self, BlockError, FORMAT};
use crate::codec::{Malformed, Place};
use crate::error::StoreError;
use crate::fold::{Effects, Fold, When};
use crate::journal::{ADVICE, Journal};
use crate::keys::Checkpoint;
use crate::log::leaf_of;
use crate::table::{Base, Layer, Table, Vouch};
use crate::vault::Vault;

/// Where the writer goes on.
pub(crate) struct WriterState {
    pub(crate) fold: Fold,
    pub(crate) last_seq: u64,
    pub(crate) last_checksum: u32,
    pub(crate) last_at_ms: i64,
}

pub(crate) struct Recovered {
    pub(crate) served: Served,
    pub(crate) state: WriterState,
}

pub(crate) fn recover(
    medium: &dyn Medium,
    clock: &dyn Clock,
    vault: &Vault,
) -> Result<Recovered, StoreError> {
    let Opened {
        journal,
        base,
        log,
        gather_entries,
    } = medium.open()?;
    let when = When {
        at_ms: 0,
        now_ms: clock.now().as_millisecond(),
        now: clock.monotonic(),
        replay: true,
    };
    let vouched = base.as_deref().and_then(Base::vouched);
    let (checkpoint, fold) = match &vouched {
        Some(vouch) => (Some(vouch.checkpoint), restore(vouch, when)?),
        None => (None, Fold::default()),
    };
    agree(journal.as_ref(), checkpoint)?;
    log.begin(fold.log.size())?;
    let table = Table::new(base, log, gather_entries);
    let mut replay = Replay {
        state: WriterState {
            fold,
            last_seq: 0,
            last_checksum: 0,
            last_at_ms: i64::MIN,
        },
        table: &table,
        when,
    };
    // The block of the checkpoint itself is read too, for its checksum and time.
    let known = checkpoint.map_or(0, |checkpoint| checkpoint.seq);
    journal.scan(known, &mut |seq, bytes| replay.block(seq, bytes, seq > known))?;
    let state = replay.state;
    let fold = &state.fold;
    for epoch in &fold.closed_epochs {
        vault.destroy(*epoch)?;
    }
    let live = Live {
        open_keys: fold
            .claims()
            .values()
            .filter_map(|claim| Some((claim.key?, (claim.params_digest, claim.action_id.clone()))))
            .collect(),
        ends: fold
            .topics
            .iter()
            .map(|(name, topic)| (name.clone(), topic.end))
            .collect(),
        letters_ended: 0,
        log: fold.log.clone(),
        open_claims: fold.claims().len() as u64,
    };
    Ok(Recovered {
        served: Served {
            journal,
            table,
            live: RwLock::new(live),
            dead: None,
        },
        state,
    })
}

/// Brings the index of a medium up to the end of its journal, whatever was gathered.
pub(crate) fn rebuilt(medium: &dyn Medium, clock: &dyn Clock, vault: &Vault) -> Result<(), StoreError> {
    let Recovered { served, state } = recover(medium, clock, vault)?;
    if served.table.lag() > 0 {
        served.table.freeze(vouch(&state));
        served.table.move_layer()?;
    }
    Ok(())
}

fn restore(vouch: &Vouch, when: When) -> Result<Fold, StoreError> {
    match Fold::restore(&vouch.snapshot, when) {
        Ok((seq, fold)) if seq == vouch.checkpoint.seq => Ok(fold),
        Ok(_) => Err(index_damaged(&Malformed("a snapshot of another block"))),
        Err(error) => Err(index_damaged(&error)),
    }
}

struct Replay<'a> {
    state: WriterState,
    table: &'a Table,
    when: When,
}

impl Replay<'_> {
    fn block(&mut self, seq: u64, bytes: &[u8], apply: bool) -> Result<(), StoreError> {
        let header = block::check(bytes).map_err(|error| damaged(seq, &error))?;
        let state = &mut self.state;
        let is_first = state.last_seq == 0;
        let follows = is_first || (seq == state.last_seq + 1 && header.previous == state.last_checksum);
        if header.seq != seq || !follows {
            return Err(damaged(
                seq,
                &BlockError::Damaged("a block that does not follow the one before it"),
            ));
        }
        state.last_seq = seq;
        state.last_checksum = header.checksum;
        state.last_at_ms = header.at_ms;
        if !apply {
            return Ok(());
        }
        let effects = self
            .records(seq, bytes, header.at_ms)
            .map_err(|error| damaged(seq, &error.into()))?;
        if let Some((first, leaves)) = &effects.leaves {
            self.table.log().show(*first, leaves)?;
        }
        self.table.show(effects.index, bytes.len());
        if self.table.is_ripe() {
            self.table.freeze(vouch(&self.state));
            self.table.move_layer()?;
        }
        Ok(())
    }

    fn records(&mut self, seq: u64, bytes: &[u8], at_ms: i64) -> Result<Effects, Malformed> {
        let mut effects = Effects::default();
        let when = When { at_ms, ..self.when };
        for record in block::records(bytes) {
            let (span, record) = record?;
            self.state.fold.apply(
                Place { seq, span },
                &record,
                leaf_of(&record, bytes),
                when,
                &mut effects,
            )?;
        }
        self.state.fold.end_block(seq, at_ms, &mut effects);
        Ok(effects)
    }
}

/// The fold and the index of a whole journal, for checks: what a store with this journal must serve.
pub(crate) fn fold_journal(journal: &dyn Journal, when: When) -> Result<(Fold, Layer, u64), StoreError> {
    let mut fold = Fold::default();
    let mut index = Layer::default();
    let mut last = 0;
    journal.scan(0, &mut |seq, bytes| {
        let header = block::check(bytes).map_err(|error| damaged(seq, &error))?;
        let mut effects = Effects::default();
        for record in block::records(bytes) {
            let (span, record) = record.map_err(|error| damaged(seq, &error.into()))?;
            fold.apply(
                Place { seq, span },
                &record,
                leaf_of(&record, bytes),
                When {
                    at_ms: header.at_ms,
                    ..when
                },
                &mut effects,
            )
            .map_err(|error| damaged(seq, &error.into()))?;
        }
        fold.end_block(seq, header.at_ms, &mut effects);
        index.extend(effects.index);
        last = seq;
        Ok(())
    })?;
    Ok((fold, index, last))
}

pub(crate) fn damaged(seq: u64, error: &BlockError) -> StoreError {
    match error {
        BlockError::Newer(found) => StoreError::Newer {
            found: u32::from(*found),
            known: u32::from(FORMAT),
        },
        BlockError::Damaged(what) => StoreError::Damaged {
            what: format!("block {seq} of the journal: {what}"),
            advice: ADVICE,
        },
    }
}

/// The index never runs ahead of the durable journal, so a journal that ends before the index's checkpoint, or has
/// another block there, has lost something that was answered.
fn agree(journal: &dyn Journal, checkpoint: Option<Checkpoint>) -> Result<(), StoreError> {
    let Some(checkpoint) = checkpoint else {
        return Ok(());
    };
    let last = journal.bounds()?.map_or(0, |(_, last)| last);
    if last < checkpoint.seq {
        let what = format!(
            "the journal ends with block {last}, but block {} had been written",
            checkpoint.seq
        );
        return Err(StoreError::Damaged { what, advice: ADVICE });
    }
    let bytes = journal.block(checkpoint.seq)?;
    let header = block::check(&bytes).map_err(|error| damaged(checkpoint.seq, &error))?;
    if header.checksum != checkpoint.checksum {
        let what = format!(
            "block {} of the journal is not the one that the index was made from",
            checkpoint.seq
        );
        return Err(StoreError::Damaged { what, advice: ADVICE });
    }
    Ok(())
}

fn index_damaged(error: &Malformed) -> StoreError {
    StoreError::Damaged {
        what: format!("the index: {error}"),
        advice: "Stop effectd and move the directory `index` away; it is made anew from the journal.",
    }
}
