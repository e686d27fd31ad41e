//! Receipts of the past, page by page, and where to go on when new ones come.

use effectd_bus::{Cursor, Order, ReceiptPage, ReceiptQuery, Store, StoreError};
use effectd_contracts::{Filter, Receipt, ToolId};
use effectd_policy::Facts;

use crate::limits::ASKS_LOOKED_AT_MAX;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// The receipts; may be none although there are more.
    pub receipts: Vec<Receipt>,
    /// Where to go on; `None` when there are no more.
    pub next: Option<u64>,
    /// What to begin after, oldest first, to see what comes later.
    pub follow: Option<u64>,
}

/// The receipts that a query asks for, without those that `sees` says no to.
pub fn page(
    store: &dyn Store,
    query: &ReceiptQuery,
    sees: impl Fn(&Receipt) -> bool,
) -> Result<Page, StoreError> {
    let last = ReceiptQuery {
        order: Order::NewestFirst,
        limit: 1,
        ..ReceiptQuery::default()
    };
    // Before the page is read: what comes between the two is in the page, or comes later.
    let newest = store.receipts(&last)?.receipts.first().map(|last| last.ordinal);
    let ReceiptPage { receipts, cursor } = store.receipts(query)?;
    let furthest = receipts.iter().map(|stored| stored.ordinal).max();
    let asked = match query.order {
        Order::OldestFirst => query.cursor.map(|Cursor(at)| at),
        Order::NewestFirst => None,
    };
    let receipts = receipts
        .iter()
        .map(|stored| stored.parse())
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Page {
        receipts: receipts.into_iter().filter(|receipt| sees(receipt)).collect(),
        next: cursor.map(|Cursor(at)| at),
        follow: newest.max(furthest).max(asked),
    })
}

/// The filter, with the action ids in it leading to the receipts that these actions resolve to.
pub fn resolved(store: &dyn Store, mut filter: Filter) -> Result<Filter, StoreError> {
    filter.resolve_actions(|id| {
        store
            .receipt_of(id)
            .map(|found| found.map(|stored| stored.action_id))
    })?;
    Ok(filter)
}

/// The facts of past calls of a tool that a person was asked about, the latest first, as far as is looked.
pub fn asks(store: &dyn Store, tool: &ToolId) -> Result<Vec<Facts>, StoreError> {
    let mut query = ReceiptQuery {
        tool_id: Some(tool.clone()),
        order: Order::NewestFirst,
        limit: ASKS_PAGE,
        ..ReceiptQuery::default()
    };
    let (mut looked, mut asks) = (0, Vec::new());
    loop {
        let page = store.receipts(&query)?;
        for stored in &page.receipts {
            looked += 1;
            let decision = stored.parse()?.decision;
            let asked = decision.filter(|decision| decision.verdict == "needs_approval");
            asks.extend(asked.and_then(|decision| Facts::from_record(&decision).ok()));
        }
        query.cursor = page.cursor;
        if query.cursor.is_none() || looked >= ASKS_LOOKED_AT_MAX {
            return Ok(asks);
        }
    }
}

/// Receipts that are read in one go.
const ASKS_PAGE: usize = 100;
