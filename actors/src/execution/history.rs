//! Receipts, page by page, and the cursor for following new ones.

use effectd_bus::{Cursor, Order, ReceiptPage, ReceiptQuery, Store, StoreError};
use effectd_contracts::{AmendmentEntry, Filter, Receipt, ToolId};
use effectd_policy::Facts;

use super::log;
use crate::limits::{AMENDMENTS_MAX, ASKS_LOOKED_AT_MAX};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// May be empty although there are further pages.
    pub receipts: Vec<Receipt>,
    /// The cursor of the next page; `None` on the last one.
    pub next: Option<u64>,
    /// The cursor for reading later receipts, oldest first.
    pub follow: Option<u64>,
    /// The amendments of these receipts, in the same order.
    pub amendments: Vec<AmendmentEntry>,
}

/// One page of the receipts that a query selects, without those for which `sees` returns `false`. With amendments, it ends early
/// if they are many. A cursor beyond the newest receipt is refused: a reader there would miss receipts.
pub fn page(
    store: &dyn Store,
    query: &ReceiptQuery,
    with_amendments: bool,
    sees: impl Fn(&Receipt) -> bool,
) -> Result<Page, StoreError> {
    let last = ReceiptQuery { order: Order::NewestFirst, limit: 1, ..ReceiptQuery::default() };
    // Read before the page: a receipt that is written in between is in this page or after `follow`.
    let newest = store.receipts(&last)?.receipts.first().map(|last| last.ordinal);
    if let (Some(Cursor(after)), Some(newest), Order::OldestFirst) = (query.cursor, newest, query.order)
        && after > newest
    {
        let why = format!("after: {after} is beyond the newest receipt, which is {newest}");
        return Err(StoreError::Invalid(why));
    }
    let ReceiptPage { receipts, cursor } = store.receipts(query)?;
    let furthest = receipts.iter().map(|stored| stored.ordinal).max();
    let next = cursor.map(|Cursor(at)| at);
    let mut page = Page { next, follow: newest.max(furthest), ..Page::default() };
    for stored in &receipts {
        let receipt = stored.parse()?;
        if !sees(&receipt) {
            continue;
        }
        if with_amendments {
            page.amendments.extend(log::amendments(store, &receipt.receipt_id)?);
        }
        page.receipts.push(receipt);
        if page.amendments.len() >= AMENDMENTS_MAX {
            page.next = Some(stored.ordinal);
            break;
        }
    }
    Ok(page)
}

/// The filter, in which each action id is replaced by that of the action whose receipt it is linked to.
pub fn resolved(store: &dyn Store, mut filter: Filter) -> Result<Filter, StoreError> {
    filter.resolve_actions(|id| store.receipt_of(id).map(|found| found.map(|stored| stored.action_id)))?;
    Ok(filter)
}

/// The facts of past calls of a tool that needed an approval, the latest first.
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

/// Receipts in one page.
const ASKS_PAGE: usize = 100;
