//! Merging runs, a few entries at a time, so that there are few runs to read and nobody waits for a merge.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::chunk::Chunk;
use super::memtable::{Cell, unite};
use super::run::Run;
use super::run_writer::RunWriter;
use crate::error::StoreError;

/// Runs that are merged into one.
const FAN: usize = 4;
/// Beyond this many runs, merges are finished at once even if threads wait for it: every lookup asks every run.
pub(super) const RUNS_MAX: usize = 40;

/// A merge of runs that are neighbours in age.
pub(super) struct Merge {
    id: u64,
    /// The newest first.
    pub(super) inputs: Vec<Arc<Run>>,
    cursors: Vec<Cursor>,
    output: RunWriter,
    /// No run is older than the inputs, so the output needs no deletions.
    oldest: bool,
}

struct Cursor {
    run: Arc<Run>,
    number: u32,
    /// `None` at the end.
    chunk: Option<Chunk>,
    nth: usize,
    key: Range<usize>,
}

impl Cursor {
    fn new(run: Arc<Run>) -> Result<Self, StoreError> {
        let chunk = run.read(0)?;
        Ok(Cursor { run, number: 0, key: chunk.key_range(0)?, chunk: Some(chunk), nth: 0 })
    }

    fn key(&self) -> Option<&[u8]> {
        self.chunk.as_ref().map(|chunk| chunk.at(&self.key))
    }

    fn advance(&mut self) -> Result<(), StoreError> {
        self.nth += 1;
        if self.chunk.as_ref().is_some_and(|chunk| self.nth >= chunk.count) {
            self.number += 1;
            self.nth = 0;
            self.chunk =
                if self.number < self.run.chunks() { Some(self.run.read(self.number)?) } else { None };
        }
        if let Some(chunk) = &self.chunk {
            self.key = chunk.key_range(self.nth)?;
        }
        Ok(())
    }
}

impl Merge {
    pub(super) fn new(dir: &Path, inputs: Vec<Arc<Run>>, id: u64, oldest: bool) -> Result<Self, StoreError> {
        let entries = inputs.iter().map(|run| run.head.entries).sum();
        let cursors = inputs.iter().map(|run| Cursor::new(run.clone())).collect::<Result<_, _>>()?;
        Ok(Merge { id, inputs, cursors, output: RunWriter::new(dir, id, entries)?, oldest })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Merges this many entries; returns whether all are merged.
    pub(super) fn step(&mut self, entries: usize) -> Result<bool, StoreError> {
        for _ in 0..entries {
            let Some((first, is_alone)) = self.least() else {
                return Ok(true);
            };
            if !is_alone {
                self.join(first)?;
                continue;
            }
            // Almost every key is in one run only, and is copied.
            let cursor = &mut self.cursors[first];
            if let Some(chunk) = &cursor.chunk {
                self.output.copy(chunk, cursor.nth, &cursor.key, !self.oldest)?;
            }
            cursor.advance()?;
        }
        Ok(false)
    }

    /// The newest run with the least key, and whether no other has the key.
    fn least(&self) -> Option<(usize, bool)> {
        let mut least: Option<(usize, &[u8], bool)> = None;
        for (at, cursor) in self.cursors.iter().enumerate() {
            let Some(key) = cursor.key() else { continue };
            match least.as_mut().map(|least| (key.cmp(least.1), least)) {
                None | Some((Less, _)) => least = Some((at, key, true)),
                Some((Equal, least)) => least.2 = false,
                Some((Greater, _)) => {}
            }
        }
        least.map(|(at, _, is_alone)| (at, is_alone))
    }

    /// Merges the entries of one key.
    fn join(&mut self, first: usize) -> Result<(), StoreError> {
        let key = self.cursors[first].key().map(<[u8]>::to_vec).unwrap_or_default();
        let mut said: Option<Cell> = None;
        for cursor in &mut self.cursors[first..] {
            if cursor.key() != Some(key.as_slice()) {
                continue;
            }
            if let Some(chunk) = &cursor.chunk
                && matches!(said, None | Some(Cell::Union(_)))
            {
                said = Some(over(said, chunk.cell(cursor.nth)?));
            }
            cursor.advance()?;
        }
        match said {
            None => Ok(()),
            Some(Cell::Delete) if self.oldest => Ok(()),
            Some(cell) => self.output.push(&key, &cell),
        }
    }

    /// The inputs and the merged run; `None` if nothing is left.
    pub(super) fn finish(self) -> Result<(Vec<Arc<Run>>, Option<Run>), StoreError> {
        Ok((self.inputs, self.output.finish()?))
    }
}

/// A newer change over an older one. Only members are united; anything else replaces the older change.
pub(super) fn over(newer: Option<Cell>, older: Cell) -> Cell {
    match (newer, older) {
        (None, older) => older,
        (Some(Cell::Union(mut members)), Cell::Union(more)) => {
            unite(&mut members, &more);
            Cell::Union(members)
        }
        (Some(Cell::Union(mut members)), Cell::Put(more)) => {
            unite(&mut members, &more);
            Cell::Put(members)
        }
        (Some(Cell::Union(members)), Cell::Delete) => Cell::Put(members),
        (Some(newer @ (Cell::Put(_) | Cell::Delete)), Cell::Put(_) | Cell::Delete | Cell::Union(_)) => newer,
    }
}

/// The newest neighbours that are worth merging: none is much larger than the others together, so an entry is rewritten
/// only a few times in its life.
pub(super) fn window(runs: &[Arc<Run>], is_busy: impl Fn(u64) -> bool) -> Option<std::ops::Range<usize>> {
    let free = |at: &usize| runs[*at..*at + FAN].iter().all(|run| !is_busy(run.id()));
    let sizes = |at: usize| runs[at..at + FAN].iter().map(|run| run.head.entries);
    let ends = runs.len().checked_sub(FAN - 1)?;
    let worth = |at: &usize| {
        let (sum, largest) = (sizes(*at).sum::<u64>(), sizes(*at).max().unwrap_or(0));
        largest <= (sum - largest) * 2
    };
    let found = (0..ends).filter(free).find(worth).or_else(|| {
        let smallest = || (0..ends).filter(free).min_by_key(|at| sizes(*at).sum::<u64>());
        (runs.len() > RUNS_MAX).then(smallest).flatten()
    });
    found.map(|at| at..at + FAN)
}
