//! Receipts that were written or asked for lately, as they were read: planners ask for the same thing again, and to find and to
//! read a receipt anew takes longer than all else on the way of such a request.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use effectd_contracts::{Digest, Receipt, ReceiptId};
use parking_lot::{Mutex, MutexGuard};

use crate::limits::RECENT_RECEIPTS_MAX;

/// A receipt, and the digest of the request that it is of.
pub(crate) type Known = (Arc<Receipt>, Digest);

/// The receipts of late. Receipts never change, so what is known stays true.
#[derive(Default)]
pub(crate) struct Recent(Mutex<State>);

#[derive(Default)]
struct State {
    known: HashMap<ReceiptId, Known>,
    order: VecDeque<ReceiptId>,
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(crate) fn get(&self, id: &ReceiptId) -> Option<Known> {
        self.lock().known.get(id).cloned()
    }

    /// Remembers a receipt that is on disk; the oldest one makes room.
    pub(crate) fn put(&self, receipt: &Arc<Receipt>, digest: Digest) {
        let mut state = self.lock();
        let id = &receipt.receipt_id;
        if state
            .known
            .insert(id.clone(), (receipt.clone(), digest))
            .is_some()
        {
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
        let recent = Recent::default();
        let text = include_str!("../../contracts/tests/golden/receipt.json");
        let receipt: Receipt = serde_json::from_str(text).unwrap();
        let digest = Digest::of(b"request");
        let mut ids = Vec::new();
        for _ in 0..=RECENT_RECEIPTS_MAX {
            let receipt = Arc::new(Receipt {
                receipt_id: ReceiptId::fresh(),
                ..receipt.clone()
            });
            recent.put(&receipt, digest);
            recent.put(&receipt, digest);
            ids.push(receipt.receipt_id.clone());
        }
        assert_eq!(recent.get(&ids[0]), None);
        assert!(
            ids[1..]
                .iter()
                .all(|id| recent.get(id).is_some_and(|known| known.0.receipt_id == *id))
        );
        assert_eq!(recent.lock().known.len(), RECENT_RECEIPTS_MAX);
    }
}
