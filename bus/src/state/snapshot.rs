//! Snapshots of the state, so that a store opens without reading its whole journal.
//!
//! A snapshot is the state that a new process finds after a block: leases have expired, claims have no holder. One
//! journal always gives the same snapshot, byte for byte, which is how verification compares state and journal.

use effectd_contracts::merkle::Frontier;

use super::{State, When};
use crate::codec::{self, Malformed};
use crate::index::schema::action_hash;

const MARK: &str = "effectd snapshot 3";

impl State {
    /// The state after block `seq`.
    pub fn snapshot(&self, seq: u64) -> Vec<u8> {
        codec::encode_marked(MARK, &(seq, self))
    }

    /// The state of a snapshot, and its block.
    pub fn restore(bytes: &[u8], when: When) -> Result<(u64, State), Malformed> {
        let (seq, mut state): (u64, State) = codec::decode_marked(MARK, bytes)?;
        for group in state.groups.values_mut() {
            group.resume(when);
        }
        for (fence, claim) in std::mem::take(&mut state.claims) {
            state.open_claim(action_hash(claim.action_id.as_str()), fence, claim);
        }
        Ok((seq, state))
    }
}

/// The Merkle log of a snapshot.
pub(crate) fn log(bytes: &[u8]) -> Result<Frontier, Malformed> {
    let (_, state): (u64, State) = codec::decode_marked(MARK, bytes)?;
    Ok(state.log)
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
