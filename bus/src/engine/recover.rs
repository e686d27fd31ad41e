//! Opening a store: from what is on disk to the state that is served.

use std::sync::RwLock;

use effectd_contracts::Clock;

use super::{Live, Medium, Opened, Served};
use crate::block::{self, BlockError, FORMAT};
use crate::codec::{Malformed, Place};
use crate::error::StoreError;
use crate::fold::{Effects, Fold, When};
use crate::journal::{ADVICE, Journal};
use crate::keys::{CHECKPOINT, Checkpoint, snapshot};
use crate::limits::INDEX_LAG_ENTRIES_MAX;
use crate::table::{Base, Layer, Table};
use crate::vault::Vault;

/// Where the writer goes on.
pub(crate) struct WriterState {
    pub(crate) fold: Fold,
    pub(crate) last_seq: u64,
    pub(crate) last_checksum: u32,
    pub(crate) last_at_ms: i64,
    pub(crate) snapshot_seq: u64,
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
    let Opened { journal, base } = medium.open()?;
    let when = When {
        at_ms: 0,
        now_ms: clock.now().as_millisecond(),
        now: clock.monotonic(),
        replay: true,
    };
    let checkpoint = read_checkpoint(base.as_deref())?;
    let (snapshot_seq, fold) = match base.as_deref() {
        Some(base) => read_snapshot(base, checkpoint, when)?,
        None => (0, Fold::default()),
    };
    agree(journal.as_ref(), checkpoint)?;
    let table = Table::new(base);
    let mut replay = Replay {
        fold,
        table: &table,
        checkpoint,
        when,
        chain: None,
        last_at_ms: i64::MIN,
    };
    // The block of the snapshot itself is read too, for its checksum and time.
    journal.scan(snapshot_seq, &mut |seq, bytes| {
        replay.block(seq, bytes, seq > snapshot_seq)
    })?;
    let Replay {
        fold,
        chain,
        last_at_ms,
        ..
    } = replay;
    table.move_layer(false)?;
    let (last_seq, last_checksum) = chain.unwrap_or((0, 0));
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
    };
    Ok(Recovered {
        served: Served {
            journal,
            table,
            live: RwLock::new(live),
            dead: None,
        },
        state: WriterState {
            fold,
            last_seq,
            last_checksum,
            last_at_ms,
            snapshot_seq,
        },
    })
}

struct Replay<'a> {
    fold: Fold,
    table: &'a Table,
    checkpoint: Option<Checkpoint>,
    when: When,
    chain: Option<(u64, u32)>,
    last_at_ms: i64,
}

impl Replay<'_> {
    fn block(&mut self, seq: u64, bytes: &[u8], apply: bool) -> Result<(), StoreError> {
        let header = block::check(bytes).map_err(|error| damaged(seq, &error))?;
        let (before, previous) = self.chain.unwrap_or((seq - 1, header.previous));
        if header.seq != seq || seq != before + 1 || header.previous != previous {
            return Err(damaged(
                seq,
                &BlockError::Damaged("a block that does not follow the one before it"),
            ));
        }
        self.chain = Some((seq, header.checksum));
        self.last_at_ms = header.at_ms;
        if !apply {
            return Ok(());
        }
        let effects = self
            .records(seq, bytes, header.at_ms)
            .map_err(|error| damaged(seq, &error.into()))?;
        if self.checkpoint.is_none_or(|checkpoint| seq > checkpoint.seq) {
            let mut layer = effects.index;
            layer.put(
                CHECKPOINT.to_vec(),
                Checkpoint {
                    seq,
                    checksum: header.checksum,
                }
                .encode(),
            );
            self.table.show(layer, false);
            if self.table.entries() > INDEX_LAG_ENTRIES_MAX / 4 {
                self.table.move_layer(false)?;
            }
        }
        Ok(())
    }

    fn records(&mut self, seq: u64, bytes: &[u8], at_ms: i64) -> Result<Effects, Malformed> {
        let mut effects = Effects::default();
        let when = When { at_ms, ..self.when };
        for record in block::records(bytes) {
            let (span, record) = record?;
            self.fold
                .apply(Place { seq, span }, &record, when, &mut effects)?;
        }
        self.fold.end_block(seq, at_ms, &mut effects);
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

fn read_checkpoint(base: Option<&dyn Base>) -> Result<Option<Checkpoint>, StoreError> {
    let bytes = base.map(|base| base.get(CHECKPOINT)).transpose()?.flatten();
    bytes
        .map(|bytes| Checkpoint::decode(&bytes))
        .transpose()
        .map_err(|error| index_damaged(&error))
}

/// The last snapshot, if it is whole; otherwise the beginning. A snapshot that was being replaced when the machine
/// stopped only costs time.
fn read_snapshot(
    base: &dyn Base,
    checkpoint: Option<Checkpoint>,
    when: When,
) -> Result<(u64, Fold), StoreError> {
    let Some(checkpoint) = checkpoint else {
        return Ok((0, Fold::default()));
    };
    let mut bytes = Vec::new();
    let mut part = 0;
    while let Some(more) = base.get(&snapshot(part))? {
        bytes.extend_from_slice(&more);
        part += 1;
    }
    match Fold::restore(&bytes, when) {
        Ok((seq, fold)) if seq <= checkpoint.seq => Ok((seq, fold)),
        Ok(_) | Err(_) => Ok((0, Fold::default())),
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
