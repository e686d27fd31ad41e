//! The working state as bytes, so that a store opens without reading its whole journal.
//!
//! A snapshot holds what the fold would be if the process had died right after the block that it names: leases are over,
//! claims have no holder. Two folds of one journal have the same snapshot, byte for byte, which is how the crash tests
//! compare what is served with what the journal says.

use effectd_contracts::merkle::Frontier;

use super::{Fold, When};
use crate::codec::{self, Malformed};
use crate::keys::action_hash;

const MARK: &str = "effectd snapshot 3";

impl Fold {
    /// The state's bytes, as of block `seq`, with a checksum.
    pub fn snapshot(&self, seq: u64) -> Vec<u8> {
        codec::encode_marked(MARK, &(seq, self))
    }

    /// Reads a state back, and the block it is of.
    pub fn restore(bytes: &[u8], when: When) -> Result<(u64, Fold), Malformed> {
        let (seq, mut fold): (u64, Fold) = codec::decode_marked(MARK, bytes)?;
        for group in fold.groups.values_mut() {
            group.resume(when);
        }
        for (fence, claim) in std::mem::take(&mut fold.claims) {
            fold.open_claim(action_hash(claim.action_id.as_str()), fence, claim);
        }
        Ok((seq, fold))
    }
}

pub(crate) fn log(bytes: &[u8]) -> Result<Frontier, Malformed> {
    let (_, fold): (u64, Fold) = codec::decode_marked(MARK, bytes)?;
    Ok(fold.log)
}

/// Whether these bytes are a snapshot that this version can read.
pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
    log(bytes).map(drop)
}

pub(super) mod frontier {
    use effectd_contracts::Digest;
    use effectd_contracts::merkle::Frontier;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(log: &Frontier, to: S) -> Result<S::Ok, S::Error> {
        let peaks: Vec<&[u8; 32]> = log.peaks().iter().map(Digest::as_bytes).collect();
        (log.size(), peaks).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Frontier, D::Error> {
        let (size, peaks) = <(u64, Vec<[u8; 32]>)>::deserialize(from)?;
        let peaks = peaks.into_iter().map(Digest::from_bytes).collect();
        Frontier::restore(size, peaks).ok_or_else(|| D::Error::custom("a log of another size"))
    }
}
