//! Opening a store: from what is on disk to the state that is served.

use effectd_contracts::Clock;
use parking_lot::RwLock;

use super::letters::count_letters;
use super::writer::vouch;
use super::{Live, Medium, Opened, Served};
use crate::block::{self, BlockError, FORMAT};
use crate::codec::{self, Malformed, Place};
use crate::error::StoreError;
use crate::fold::{Effects, Fold, When};
use crate::ground::{Ground, divide};
use crate::journal::{ADVICE, Journal};
use crate::keys::{self, Checkpoint};
use crate::log::leaf_of;
use crate::table::{Base, Cell, Layer, Table, View, Vouch};
use crate::vault::Vault;

pub(crate) struct WriterState {
    pub(crate) fold: Fold,
    pub(crate) last_seq: u64,
    pub(crate) last_checksum: u32,
    pub(crate) last_at_ms: i64,
}

impl WriterState {
    /// A state whose last block is still to be read.
    fn new(fold: Fold) -> Self {
        WriterState {
            fold,
            last_seq: 0,
            last_checksum: 0,
            last_at_ms: i64::MIN,
        }
    }
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
    let recovered = recover_once(medium, clock, vault)?;
    if !recovered.served.table.is_spoiled() {
        return Ok(recovered);
    }
    tracing::error!("the index does not check; it is made anew from the journal");
    recovered.served.table.drop_base();
    drop(recovered);
    recover_once(medium, clock, vault)
}

fn recover_once(medium: &dyn Medium, clock: &dyn Clock, vault: &Vault) -> Result<Recovered, StoreError> {
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
    agree(journal.as_ref(), vouched.as_deref().map(|vouch| vouch.checkpoint))?;
    let table = Table::new(base, log, gather_entries);
    // The block of the checkpoint itself is read too, for its checksum and time.
    let (known, state) = match &vouched {
        Some(vouch) => (vouch.checkpoint.seq, WriterState::new(restore(vouch, when)?)),
        None => {
            let (state, index) = on_ground(journal.as_ref(), when)?;
            if !index.is_empty() {
                table.show(index, 0);
            }
            (state.last_seq, state)
        }
    };
    table.log().begin(state.fold.log.size())?;
    let mut replay = Replay {
        state,
        table: &table,
        when,
    };
    journal.scan(known, &mut |seq, bytes| replay.block(seq, bytes, seq > known))?;
    let state = replay.state;
    finish_cut(journal.as_ref(), &table, &state, when)?;
    let fold = &state.fold;
    for epoch in &fold.closed_epochs {
        vault.destroy(*epoch)?;
    }
    let mut live = Live {
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
        log: fold.log.clone(),
        open_claims: fold.claims().len() as u64,
        // Of an index that cannot be read they are counted when it is made anew, which is at once.
        letters: count_letters(&table).unwrap_or(0),
        ..Live::default()
    };
    live.expire(fold);
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

/// What a journal stands on: the state before its first block, and the index that goes with it.
fn on_ground(journal: &dyn Journal, when: When) -> Result<(WriterState, Layer), StoreError> {
    let Some(ground) = Ground::of(journal)? else {
        return Ok((WriterState::new(Fold::default()), Layer::default()));
    };
    let (_, fold) = Fold::restore(&ground.snapshot, when).map_err(|Malformed(what)| StoreError::Damaged {
        what: format!("what the journal stands on: {what}"),
        advice: ADVICE,
    })?;
    let state = WriterState {
        fold,
        last_seq: ground.first - 1,
        last_checksum: ground.checksum,
        last_at_ms: ground.at_ms,
    };
    Ok((state, ground.index))
}

/// Blocks that are to be let go, as the index says, and still count: the process ended in between. What leads to them is
/// taken out of the index, and they go.
fn finish_cut(
    journal: &dyn Journal,
    table: &Table,
    state: &WriterState,
    when: When,
) -> Result<(), StoreError> {
    let first = index_first(table)?;
    if first <= journal.first() {
        return Ok(());
    }
    let (ground, dead) = refold(journal, first, when)?;
    let mut gone = Layer::default();
    for (key, cell) in dead {
        if still_says(table.view(None), &key, &cell)? {
            gone.set(key, Cell::Delete);
        }
    }
    table.show(gone, 0);
    table.freeze(vouch(state));
    table.move_layer()?;
    journal.stage(first, &ground.encode())?;
    journal.truncate_before(first)
}

/// The first block whose entries the index has.
pub(crate) fn index_first(table: &Table) -> Result<u64, StoreError> {
    let found = table.view(None).get(&keys::cut())?;
    let first = found.map(|bytes| codec::decode(&bytes)).transpose();
    Ok(first.map_err(|error| index_damaged(&error))?.unwrap_or(1))
}

/// Whether the index says about a key what old blocks said: newer ones may have said something else since.
pub(crate) fn still_says(view: View<'_>, key: &[u8], cell: &Cell) -> Result<bool, StoreError> {
    let found = view.get(key)?;
    Ok(match cell {
        Cell::Put(value) => found.as_ref() == Some(value),
        Cell::Union(_) => found.is_some(),
        Cell::Delete => false,
    })
}

/// What goes with old blocks.
pub(crate) type Dead = Vec<(Vec<u8>, Cell)>;

/// Folds the blocks before `first` again: the ground that the others stand on without them, and what goes with them.
pub(crate) fn refold(journal: &dyn Journal, first: u64, when: When) -> Result<(Ground, Dead), StoreError> {
    let (state, index) = fold_until(journal, first, when)?;
    let (index, dead) = divide(&state.fold, index, first);
    let ground = Ground {
        first,
        checksum: state.last_checksum,
        at_ms: state.last_at_ms,
        snapshot: state.fold.snapshot(first - 1),
        index,
    };
    Ok((ground, dead))
}

/// The fold and the index of a whole journal, for checks: what a store with this journal must serve.
pub(crate) fn fold_journal(journal: &dyn Journal, when: When) -> Result<(Fold, Layer, u64), StoreError> {
    let (state, index) = fold_until(journal, u64::MAX, when)?;
    Ok((state.fold, index, state.last_seq))
}

/// The fold and the index of a journal before a block.
fn fold_until(journal: &dyn Journal, end: u64, when: When) -> Result<(WriterState, Layer), StoreError> {
    let (mut state, mut index) = on_ground(journal, when)?;
    let last = journal.bounds()?.map_or(0, |(_, last)| last.min(end - 1));
    for seq in journal.first()..=last {
        let bytes = &journal.block(seq)?;
        let header = block::check(bytes).map_err(|error| damaged(seq, &error))?;
        let follows = state.last_seq == 0 || header.previous == state.last_checksum;
        if header.seq != seq || !follows {
            let what = BlockError::Damaged("a block that does not follow the one before it");
            return Err(damaged(seq, &what));
        }
        let mut effects = Effects::default();
        for record in block::records(bytes) {
            let (span, record) = record.map_err(|error| damaged(seq, &error.into()))?;
            let applied = state.fold.apply(
                Place { seq, span },
                &record,
                leaf_of(&record, bytes),
                When {
                    at_ms: header.at_ms,
                    ..when
                },
                &mut effects,
            );
            applied.map_err(|error| damaged(seq, &error.into()))?;
        }
        state.fold.end_block(seq, header.at_ms, &mut effects);
        index.extend(effects.index);
        state.last_seq = seq;
        state.last_checksum = header.checksum;
        state.last_at_ms = header.at_ms;
    }
    Ok((state, index))
}

pub(crate) fn damaged(seq: u64, error: &BlockError) -> StoreError {
    match error {
        BlockError::Newer(found) => StoreError::Format {
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
    if checkpoint.seq < journal.first() {
        return Err(index_damaged(&Malformed(
            "it is older than the first block of the journal",
        )));
    }
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
