//! The result of a batch, from its receipt and those of its items.

use effectd_bus::{Store, StoreError};
use effectd_contracts::batch::{BatchResult, ItemMark, ItemResult, Marker, item_id, undo_id};
use effectd_contracts::limits::BATCH_ITEMS_MAX;
use effectd_contracts::{ActionId, Origin, Outcome, Receipt};
use serde_json::Value;

/// What has become of a batch that has ended.
pub fn result_of(store: &dyn Store, receipt: &Receipt) -> Result<BatchResult, StoreError> {
    let marks = receipt.outputs.get("items").cloned().unwrap_or_default();
    let marks: Vec<ItemMark> = serde_json::from_value(marks).unwrap_or_default();
    let mut items = Vec::new();
    for index in 0..BATCH_ITEMS_MAX {
        let Some(id) = item_id(&receipt.action_id, index) else { break };
        // An action of that id that the batch did not ask for is none of its items, unless it was the answer to one.
        let is_of = |found: &Receipt| match &found.origin {
            Origin::Batch { batch_id, .. } => *batch_id == receipt.action_id.as_str(),
            Origin::Arbiter | Origin::Plan | Origin::Session { .. } | Origin::Run { .. } => false,
        };
        let found = |id: Option<ActionId>| {
            let found = found(store, id.as_ref());
            found.map(|found| found.filter(|found| found.principal == receipt.principal))
        };
        let mark = marks.get(index).cloned();
        let own = found(Some(id.clone()))?.filter(|own| mark.is_some() || is_of(own));
        let undo = found(undo_id(&receipt.action_id, index))?.filter(is_of);
        let ItemMark { marker, reason, paths, paths_left_out } = match (mark, &own) {
            (Some(mark), _) => mark,
            (None, None) => continue,
            // A batch that was refused, or that nobody could finish, has no marks.
            (None, Some(own)) => {
                let reason = own.error.as_ref().map(|failure| failure.message.clone());
                let marker = marker_of(own, undo.as_ref());
                ItemMark { marker, reason, paths: Vec::new(), paths_left_out: 0 }
            }
        };
        items.push(ItemResult {
            action_id: id,
            tool_id: own.as_ref().map(|own| own.tool_id.clone()),
            marker,
            reason,
            paths,
            paths_left_out,
            receipt_id: own.map(|own| own.receipt_id),
            undo_receipt_id: undo.map(|undo| undo.receipt_id),
        });
    }
    Ok(BatchResult {
        batch_id: receipt.action_id.clone(),
        outcome: receipt.outcome,
        partial: receipt.outputs.get("partial") == Some(&Value::Bool(true)),
        items,
        receipt_id: receipt.receipt_id.clone(),
        error: receipt.error.clone(),
    })
}

fn marker_of(own: &Receipt, undo: Option<&Receipt>) -> Marker {
    let is_undone = undo.is_some_and(|undo| undo.outcome == Outcome::Executed);
    match (own.outcome, is_undone) {
        (_, true) => Marker::RolledBack,
        (Outcome::Executed | Outcome::CachedHit, false) => Marker::Committed,
        (Outcome::Indeterminate, false) => Marker::RollbackFailed,
        (outcome, false) if outcome.is_refusal() => Marker::NotStarted,
        // It failed, and its receipt says what it left.
        (_, false) => Marker::RolledBack,
    }
}

fn found(store: &dyn Store, action: Option<&ActionId>) -> Result<Option<Receipt>, StoreError> {
    let Some(action) = action else { return Ok(None) };
    store.receipt_of(action)?.map(|stored| stored.parse()).transpose()
}
