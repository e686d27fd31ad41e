//! A memtable: the changes that some blocks make to the index, by key.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Put(Vec<u8>),
    Delete,
    /// These members, sorted and unique, are added to those of older layers.
    Union(Vec<u8>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memtable {
    cells: BTreeMap<Vec<u8>, Cell>,
}

impl Memtable {
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.set(key, Cell::Put(value));
    }

    /// Adds a number to its bucket.
    pub fn post(&mut self, (key, member): (Vec<u8>, u8)) {
        self.set(key, Cell::Union(vec![member]));
    }

    /// Merges a change into those of the key.
    pub fn set(&mut self, key: Vec<u8>, cell: Cell) {
        match self.cells.entry(key) {
            Entry::Vacant(vacant) => drop(vacant.insert(cell)),
            Entry::Occupied(mut occupied) => match (occupied.get_mut(), cell) {
                (Cell::Union(old), Cell::Union(new)) => unite(old, &new),
                (old, new) => *old = new,
            },
        }
    }

    pub fn extend(&mut self, newer: Memtable) {
        newer.cells.into_iter().for_each(|(key, cell)| self.set(key, cell));
    }

    pub fn take(&mut self, key: &[u8]) -> Option<Cell> {
        self.cells.remove(key)
    }

    /// Whether some key in `from..end` has a value.
    pub fn has_between(&self, from: &[u8], end: &[u8]) -> bool {
        let bounds = (Bound::Included(from), Bound::Excluded(end));
        let mut found = self.cells.range::<[u8], _>(bounds);
        found.any(|(_, cell)| *cell != Cell::Delete)
    }

    pub(super) fn deleted(&self) -> Vec<Vec<u8>> {
        let gone = self.cells.iter().filter(|(_, cell)| **cell == Cell::Delete);
        gone.map(|(key, _)| key.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub fn cells(&self) -> &BTreeMap<Vec<u8>, Cell> {
        &self.cells
    }

    pub(super) fn next(&self, from: &[u8], end: &[u8]) -> Option<&[u8]> {
        if from >= end {
            return None;
        }
        let bounds = (Bound::Included(from), Bound::Excluded(end));
        self.cells.range::<[u8], _>(bounds).next().map(|(key, _)| key.as_slice())
    }

    pub(super) fn previous(&self, start: &[u8], to: &[u8]) -> Option<&[u8]> {
        if start > to {
            return None;
        }
        let bounds = (Bound::Included(start), Bound::Included(to));
        self.cells.range::<[u8], _>(bounds).next_back().map(|(key, _)| key.as_slice())
    }
}

/// Adds bytes to a sorted set of bytes.
pub fn unite(set: &mut Vec<u8>, more: &[u8]) {
    for byte in more {
        if let Err(at) = set.binary_search(byte) {
            set.insert(at, *byte);
        }
    }
}
