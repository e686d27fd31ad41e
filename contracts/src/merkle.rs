//! The Merkle tree over a log (RFC 6962, section 2.1): one hash, the root, commits to all entries in their order.
//!
//! With the root alone, anybody can verify that an entry is in the log ([`inclusion_holds`]) and that a later log only appends
//! to an earlier one ([`consistency_holds`]). Both proofs are logarithmic in the size of the log.

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::limits::LOG_ENTRIES_MAX;

/// The hash of an entry. Entries and pairs have different prefixes, so that neither can pass for the other.
pub fn leaf(bytes: &[u8]) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update([0]);
    hasher.update(bytes);
    Digest::from_bytes(hasher.finalize().into())
}

/// The hash of two adjacent subtrees.
pub fn pair(left: &Digest, right: &Digest) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update([1]);
    hasher.update(left.as_bytes());
    hasher.update(right.as_bytes());
    Digest::from_bytes(hasher.finalize().into())
}

/// The root of a log without entries.
pub fn empty_root() -> Digest {
    Digest::of(&[])
}

/// The right edge of the tree: enough to append entries and to compute the root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frontier {
    size: u64,
    /// The roots of the complete subtrees, largest first: one for each set bit of the size.
    peaks: Vec<Digest>,
}

impl Frontier {
    /// A frontier from its parts; `None` if the number of peaks does not match the size, or the size exceeds [`LOG_ENTRIES_MAX`].
    pub fn restore(size: u64, peaks: Vec<Digest>) -> Option<Self> {
        let is_valid = size <= LOG_ENTRIES_MAX && peaks.len() == size.count_ones() as usize;
        is_valid.then_some(Self { size, peaks })
    }

    /// The number of entries.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The roots of the complete subtrees, largest first.
    pub fn peaks(&self) -> &[Digest] {
        &self.peaks
    }

    /// Appends an entry by its hash.
    pub fn push(&mut self, leaf: Digest) {
        let mut hash = leaf;
        let mut full = self.size;
        while full & 1 == 1 {
            if let Some(left) = self.peaks.pop() {
                hash = pair(&left, &hash);
            }
            full >>= 1;
        }
        self.peaks.push(hash);
        self.size += 1;
    }

    /// The root.
    pub fn root(&self) -> Digest {
        let mut peaks = self.peaks.iter().rev();
        let Some(last) = peaks.next() else {
            return empty_root();
        };
        peaks.fold(*last, |right, left| pair(left, &right))
    }
}

/// A store of the hashes of complete subtrees.
pub trait Subtrees {
    /// Why a hash cannot be read.
    type Error;
    /// The hash of the `index`-th subtree of `2^height` entries.
    fn subtree(&self, height: u32, index: u64) -> Result<Digest, Self::Error>;
}

/// The proof that entry `index` is in the log of `size` entries. The caller ensures `index < size`.
pub fn inclusion<S: Subtrees>(subtrees: &S, index: u64, size: u64) -> Result<Vec<Digest>, S::Error> {
    let mut proof = Vec::new();
    let (mut first, mut end) = (0, size);
    while end - first > 1 {
        let middle = first + left_size(end - first);
        if index < middle {
            proof.push(root_of(subtrees, middle, end)?);
            end = middle;
        } else {
            proof.push(root_of(subtrees, first, middle)?);
            first = middle;
        }
    }
    proof.reverse();
    Ok(proof)
}

/// The proof that the log of `new` entries begins with the log of `old` entries. The caller ensures `old <= new`.
pub fn consistency<S: Subtrees>(subtrees: &S, old: u64, new: u64) -> Result<Vec<Digest>, S::Error> {
    let mut proof = Vec::new();
    if old == 0 || old == new {
        return Ok(proof);
    }
    let (mut first, mut end) = (0, new);
    while end != old {
        let middle = first + left_size(end - first);
        if old <= middle {
            proof.push(root_of(subtrees, middle, end)?);
            end = middle;
        } else {
            proof.push(root_of(subtrees, first, middle)?);
            first = middle;
        }
    }
    if first > 0 {
        proof.push(root_of(subtrees, first, end)?);
    }
    proof.reverse();
    Ok(proof)
}

/// The frontier of the log of `size` entries.
pub fn frontier<S: Subtrees>(subtrees: &S, size: u64) -> Result<Frontier, S::Error> {
    let (mut peaks, mut first) = (Vec::new(), 0);
    for height in (0..u64::BITS).rev().filter(|height| size >> height & 1 == 1) {
        peaks.push(subtrees.subtree(height, first >> height)?);
        first += 1 << height;
    }
    Ok(Frontier { size, peaks })
}

/// The largest power of two below `entries`, which is at least two.
fn left_size(entries: u64) -> u64 {
    1 << (entries - 1).ilog2()
}

fn root_of<S: Subtrees>(subtrees: &S, first: u64, end: u64) -> Result<Digest, S::Error> {
    let entries = end - first;
    if entries.is_power_of_two() {
        let height = entries.ilog2();
        return subtrees.subtree(height, first >> height);
    }
    let middle = first + left_size(entries);
    let left = root_of(subtrees, first, middle)?;
    Ok(pair(&left, &root_of(subtrees, middle, end)?))
}

/// Whether the proof shows that this entry is at this index of the log with this root.
pub fn inclusion_holds(index: u64, size: u64, leaf: &Digest, proof: &[Digest], root: &Digest) -> bool {
    if index >= size {
        return false;
    }
    let (mut at, mut last, mut hash) = (index, size - 1, *leaf);
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            hash = pair(sibling, &hash);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            hash = pair(&hash, sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}

/// Whether the proof shows that the log with the new root begins with the log with the old one.
pub fn consistency_holds(old: (u64, &Digest), new: (u64, &Digest), proof: &[Digest]) -> bool {
    let ((old_size, old_root), (new_size, new_root)) = (old, new);
    if old_size > new_size {
        return false;
    }
    if old_size == new_size {
        return proof.is_empty() && old_root == new_root;
    }
    if old_size == 0 {
        return proof.is_empty() && *old_root == empty_root();
    }
    let (mut at, mut last) = (old_size - 1, new_size - 1);
    while at & 1 == 1 {
        at >>= 1;
        last >>= 1;
    }
    let mut proof = proof.iter();
    // If the old log is one complete subtree, the proof leaves out its hash: that is the old root.
    let seed = if old_size.is_power_of_two() { Some(old_root) } else { proof.next() };
    let Some(seed) = seed else { return false };
    let (mut from_old, mut from_new) = (*seed, *seed);
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            from_old = pair(sibling, &from_old);
            from_new = pair(sibling, &from_new);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            from_new = pair(&from_new, sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    last == 0 && from_old == *old_root && from_new == *new_root
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::digest::unhex;
    use std::convert::Infallible;

    /// All leaves in memory; computes subtrees by their definition.
    struct Leaves(Vec<Digest>);

    impl Subtrees for Leaves {
        type Error = Infallible;
        fn subtree(&self, height: u32, index: u64) -> Result<Digest, Infallible> {
            let size = 1_usize << height;
            let first = usize::try_from(index).unwrap() * size;
            Ok(by_definition(&self.0[first..first + size]))
        }
    }

    fn by_definition(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => empty_root(),
            [one] => *one,
            many => {
                let (left, right) = many.split_at(left_size(many.len() as u64) as usize);
                pair(&by_definition(left), &by_definition(right))
            }
        }
    }

    fn leaves(count: usize) -> Leaves {
        Leaves((0..count).map(|n| leaf(&n.to_be_bytes())).collect())
    }

    fn root_at(leaves: &Leaves, size: u64) -> Digest {
        by_definition(&leaves.0[..usize::try_from(size).unwrap()])
    }

    /// The entries and roots with which implementations of Certificate Transparency are tested.
    #[test]
    fn the_published_roots_come_out() {
        let entries = [
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        ];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let mut tree = Frontier::default();
        assert_eq!(tree.root().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        for (entry, root) in entries.iter().zip(roots) {
            tree.push(leaf(&unhex(entry).unwrap()));
            assert_eq!(tree.root().hex(), root, "of {} entries", tree.size());
        }
    }

    #[test]
    fn every_proof_of_small_trees_holds_for_its_leaf_alone() {
        let all = leaves(33);
        let wrong = leaf(b"another");
        for size in 1..=33_u64 {
            let root = root_at(&all, size);
            assert_eq!(frontier(&all, size).unwrap().root(), root);
            for index in 0..size {
                let proof = inclusion(&all, index, size).unwrap();
                let own = &all.0[usize::try_from(index).unwrap()];
                assert!(inclusion_holds(index, size, own, &proof, &root), "{index} of {size}");
                assert!(!inclusion_holds(index, size, &wrong, &proof, &root));
                assert!(!inclusion_holds(index, size, own, &proof, &wrong));
                assert!(!inclusion_holds(size, size, own, &proof, &root));
                let longer = [proof.clone(), vec![wrong]].concat();
                assert!(!inclusion_holds(index, size, own, &longer, &root));
            }
            for old in 0..=size {
                let proof = consistency(&all, old, size).unwrap();
                let before = root_at(&all, old);
                assert!(consistency_holds((old, &before), (size, &root), &proof), "{old} to {size}");
                // Every log begins with the empty one.
                assert!(old == 0 || !consistency_holds((old, &before), (size, &wrong), &proof));
                assert!(!consistency_holds((old, &wrong), (size, &root), &proof));
                for at in 0..proof.len() {
                    let mut other = proof.clone();
                    other[at] = wrong;
                    assert!(!consistency_holds((old, &before), (size, &root), &other));
                }
            }
        }
    }

    #[test]
    fn only_a_possible_frontier_is_restored() {
        let hash = leaf(b"peak");
        let restored = |size, peaks| Frontier::restore(size, vec![hash; peaks]);
        for (size, peaks) in [(0, 0), (5, 2), (LOG_ENTRIES_MAX - 1, 48), (LOG_ENTRIES_MAX, 1)] {
            let mut tree = restored(size, peaks).unwrap();
            tree.push(hash);
            assert_eq!(tree.size(), size + 1);
        }
        for (size, peaks) in [(0, 1), (5, 1), (LOG_ENTRIES_MAX + 1, 2), (u64::MAX, 64)] {
            assert_eq!(restored(size, peaks), None, "{size}");
        }
    }

    proptest::proptest! {
        #[test]
        fn garbage_proves_nothing_and_never_panics(
            index in proptest::num::u64::ANY, size in proptest::num::u64::ANY,
            hashes in proptest::collection::vec(proptest::array::uniform32(proptest::num::u8::ANY), 0..70),
        ) {
            let proof: Vec<Digest> = hashes.into_iter().map(Digest::from_bytes).collect();
            let root = leaf(b"root");
            proptest::prop_assert!(!inclusion_holds(index, size, &leaf(b"x"), &proof, &root));
            let (low, high) = (index.min(size), index.max(size));
            if low < high && low > 0 {
                proptest::prop_assert!(!consistency_holds((low, &root), (high, &leaf(b"y")), &proof));
            }
        }
    }
}
