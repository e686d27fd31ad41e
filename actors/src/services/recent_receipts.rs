//! A cache of parsed receipts: planners repeat requests, and reading the receipt is the slowest part of the answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use effectd_contracts::{Digest, Receipt, ReceiptId};
use parking_lot::Mutex;

use crate::limits::RECENT_RECEIPTS_MAX;

/// A receipt, and the digest of its request.
pub(crate) type Known = (Arc<Receipt>, Digest);

/// Receipts never change, so the cache needs no invalidation.
#[derive(Default)]
pub(crate) struct RecentReceipts(Mutex<State>);

#[derive(Default)]
struct State {
    known: HashMap<ReceiptId, Known>,
    order: VecDeque<ReceiptId>,
}

impl RecentReceipts {
    pub(crate) fn get(&self, id: &ReceiptId) -> Option<Known> {
        self.0.lock().known.get(id).cloned()
    }

    /// Adds a receipt that is on disk; the oldest one in the cache makes room.
    pub(crate) fn put(&self, receipt: &Arc<Receipt>, digest: Digest) {
        let mut state = self.0.lock();
        let id = &receipt.receipt_id;
        if state.known.insert(id.clone(), (receipt.clone(), digest)).is_some() {
            return;
        }
        state.order.push_back(id.clone());
        if state.order.len() > RECENT_RECEIPTS_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_bounded_number_is_remembered_and_the_oldest_goes_first() {
        let recent = RecentReceipts::default();
        let text = include_str!("../../../contracts/tests/golden/receipt.json");
        let receipt: Receipt = serde_json::from_str(text).unwrap();
        let digest = Digest::of(b"request");
        let mut ids = Vec::new();
        for _ in 0..=RECENT_RECEIPTS_MAX {
            let receipt = Arc::new(Receipt { receipt_id: ReceiptId::fresh(), ..receipt.clone() });
            recent.put(&receipt, digest);
            recent.put(&receipt, digest);
            ids.push(receipt.receipt_id.clone());
        }
        assert_eq!(recent.get(&ids[0]), None);
        assert!(ids[1..].iter().all(|id| recent.get(id).is_some_and(|known| known.0.receipt_id == *id)));
        assert_eq!(recent.0.lock().known.len(), RECENT_RECEIPTS_MAX);
    }
}
