//! A bounded cache of the chunks of runs.
//!
//! Two generations: every chunk that is read moves to the young one. When the young one exceeds half of the bound, it
//! becomes the old one, and the chunks of the former old one are dropped. So a long scan does not evict chunks that are
//! read all the time, and no list has to be kept in order.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::chunk::Chunk;

/// A run and the number of its chunk.
pub(super) type Name = (u64, u32);

pub(super) struct Cache {
    bytes_max: usize,
    chunks: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<Name, Chunk>,
    young_bytes: usize,
    old: HashMap<Name, Chunk>,
}

impl Generations {
    fn insert(&mut self, name: Name, chunk: Chunk, bytes_max: usize) {
        let bytes = chunk.bytes();
        if self.young.insert(name, chunk).is_none() {
            self.young_bytes += bytes;
        }
        if self.young_bytes > bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }
}

impl Cache {
    pub(super) fn new(bytes_max: u64) -> Self {
        Cache { bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX), chunks: Mutex::default() }
    }

    pub(super) fn get(&self, name: Name) -> Option<Chunk> {
        let mut chunks = self.chunks.lock();
        if let Some(found) = chunks.young.get(&name) {
            return Some(found.clone());
        }
        let found = chunks.old.remove(&name)?;
        chunks.insert(name, found.clone(), self.bytes_max);
        Some(found)
    }

    pub(super) fn put(&self, name: Name, chunk: &Chunk) {
        let mut chunks = self.chunks.lock();
        chunks.insert(name, chunk.clone(), self.bytes_max);
    }

    pub(super) fn forget(&self, run: u64) {
        let mut chunks = self.chunks.lock();
        chunks.old.retain(|(of, _), _| *of != run);
        chunks.young.retain(|(of, _), _| *of != run);
        chunks.young_bytes = chunks.young.values().map(Chunk::bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_keeps_what_is_used_and_never_more_than_its_bound() {
        let chunk = Chunk::of(vec![0; 1_000], 1);
        let cache = Cache::new(20_000);
        for n in 0..1_000 {
            cache.put((1, n), &chunk);
            assert!(cache.get((1, 0)).is_some(), "{n}");
            let chunks = cache.chunks.lock();
            let held = chunks.young.len() + chunks.old.len();
            assert!(held <= 21, "{held}");
        }
        assert!(cache.get((1, 500)).is_none());
        cache.forget(1);
        assert!(cache.get((1, 0)).is_none());
    }
}
