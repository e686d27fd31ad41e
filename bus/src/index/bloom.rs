//! Bloom filters of runs: most lookups are for keys that no run has, and must not read the disk.
//!
//! A split block Bloom filter: each key has one bit in each of the eight words of one block of 32 bytes, so a lookup
//! touches one cache line. At sixteen bits a key, about one lookup in a thousand is a false positive.

const BLOCK_BYTES: usize = 32;
const BITS_PER_KEY: u64 = 16;
/// Largest filter. A run of more than 16 million keys has fewer bits a key, and more false positives.
const FILTER_BYTES_MAX: u64 = 32 << 20;
/// Odd random numbers, one for each word of a block. Stored format.
const SALTS: [u32; 8] =
    [0x9e37_79b1, 0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0xd3a2_646d, 0xfd70_46c5, 0xb55a_4f09];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BloomFilter {
    bits: Vec<u8>,
}

/// A key's hash. Stored format.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ key.len() as u64;
    for part in key.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 32;
    }
    state = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    state ^ (state >> 29)
}

impl BloomFilter {
    /// An empty filter for about this many keys.
    pub(crate) fn new(keys: u64) -> Self {
        let bytes = (keys.saturating_mul(BITS_PER_KEY) / 8).min(FILTER_BYTES_MAX) as usize;
        BloomFilter { bits: vec![0; bytes.div_ceil(BLOCK_BYTES).max(1) * BLOCK_BYTES] }
    }

    /// A filter from its bytes; `None` if they are of no valid length.
    pub(crate) fn from_bytes(bits: Vec<u8>) -> Option<Self> {
        (!bits.is_empty() && bits.len().is_multiple_of(BLOCK_BYTES)).then_some(BloomFilter { bits })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bits
    }

    fn block(&self, probe: &Probe) -> usize {
        let blocks = (self.bits.len() / BLOCK_BYTES) as u64;
        ((probe.high * blocks) >> 32) as usize * BLOCK_BYTES
    }

    pub(crate) fn insert(&mut self, probe: &Probe) {
        let block = self.block(probe);
        let (words, _) = self.bits[block..block + BLOCK_BYTES].as_chunks_mut();
        for (word, mask) in words.iter_mut().zip(probe.masks) {
            *word = (u32::from_le_bytes(*word) | mask).to_le_bytes();
        }
    }

    /// Whether the filter may have the key; `false` is certain.
    pub(crate) fn may_have(&self, probe: &Probe) -> bool {
        let block = self.block(probe);
        let (words, _) = self.bits[block..block + BLOCK_BYTES].as_chunks();
        // All words are read: a branch on each would be mispredicted about once a lookup, and the processor could not
        // prefetch the next filter's block meanwhile.
        let asked = words.iter().zip(probe.masks);
        asked.fold(0, |missing, (word, mask)| missing | (!u32::from_le_bytes(*word) & mask)) == 0
    }
}

/// A key as filters see it; the same for the filter of every run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    high: u64,
    /// The one bit of each word of the block.
    masks: [u32; 8],
}

impl Probe {
    pub(crate) fn of(hash: u64) -> Self {
        let low = hash as u32;
        Probe { high: hash >> 32, masks: SALTS.map(|salt| 1 << (low.wrapping_mul(salt) >> 27)) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_knows_every_key_and_few_others() {
        let mut filter = BloomFilter::new(10_000);
        let key = |n: u32| [b"A".as_slice(), &n.to_be_bytes(), b"0123456789ab"].concat();
        (0..10_000).for_each(|n| filter.insert(&Probe::of(hash(&key(n)))));
        assert!((0..10_000).all(|n| filter.may_have(&Probe::of(hash(&key(n))))));
        let wrong = (10_000..110_000).filter(|n| filter.may_have(&Probe::of(hash(&key(*n))))).count();
        assert!(wrong < 400, "{wrong} of 100000");
        assert_eq!(BloomFilter::from_bytes(filter.bytes().to_vec()).as_ref(), Some(&filter));
        assert_eq!(BloomFilter::from_bytes(vec![0; 31]), None);
    }

    #[test]
    fn its_bits_stay_where_they_are() {
        assert_eq!(hash(b""), GOLDEN_EMPTY);
        assert_eq!(hash(b"effectd index key"), GOLDEN_HASH);
        let mut filter = BloomFilter::new(1);
        filter.insert(&Probe::of(hash(b"effectd index key")));
        assert_eq!(filter.bytes(), GOLDEN_BITS);
    }

    const GOLDEN_EMPTY: u64 = 0x90f8_749b_0fb1_3233;
    const GOLDEN_HASH: u64 = 0xff8f_11f5_04b5_d6ff;
    const GOLDEN_BITS: [u8; 32] =
        [0, 0, 0, 1, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 32, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 32, 0, 0, 32, 0, 0, 0];
}
