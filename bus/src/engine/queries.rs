//! Queries over receipts: one condition is read as a prefix of the index, the others are checked.

use effectd_contracts::{Status, Timestamp};

use super::reads::{decode_run, first_run};
use super::{Served, Shared, timestamp};
use crate::codec::Hash16;
use crate::desk::index_damaged;
use crate::error::StoreError;
use crate::keys::{self, Dimension};
use crate::limits::{PAGE_BYTES_MAX, PAGE_ITEMS_MAX, QUERY_SCAN_MAX};
use crate::types::receipts::{Cursor, Order, ReceiptPage, ReceiptQuery, StoredReceipt};

impl Shared {
    pub(crate) fn query(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        let served = self.served();
        served.alive()?;
        let driver = driver(query)?;
        let limit = query.limit.clamp(1, PAGE_ITEMS_MAX);
        let mut page = ReceiptPage::default();
        let mut bytes = 0;
        let mut looked = 0;
        let mut at = query.cursor.map(|Cursor(at)| at);
        loop {
            let Some(ordinal) = next_ordinal(&served, driver, query.order, at)? else {
                return Ok(page);
            };
            if page.receipts.len() >= limit || bytes >= PAGE_BYTES_MAX || looked >= QUERY_SCAN_MAX {
                page.cursor = at.map(Cursor);
                return Ok(page);
            }
            looked += 1;
            at = Some(ordinal);
            let Some(receipt) = self.read_kept(&served, ordinal)? else {
                continue;
            };
            match in_time(query, &receipt) {
                InTime::Yes if matches(query, &receipt) => {
                    bytes += receipt.body.len();
                    page.receipts.push(receipt);
                }
                InTime::Yes => {}
                InTime::TooSoon => {
                    at = Some(skip_to(&served, query, ordinal)?);
                }
                InTime::TooLate => return Ok(page),
            }
        }
    }
}

/// The most selective condition of a query, which is read as a prefix; the others are checked.
fn driver(query: &ReceiptQuery) -> Result<Option<(Dimension, Hash16)>, StoreError> {
    if let Some(key) = &query.key {
        let space = query.space_id.as_ref();
        let space =
            space.ok_or_else(|| StoreError::Invalid("a query by key must name the space too".into()))?;
        return Ok(Some((Dimension::Key, keys::key_hash(space, key))));
    }
    let text = |dimension, text: &str| (dimension, keys::text_hash(text));
    Ok(query
        .subject_id
        .as_ref()
        .map(|id| text(Dimension::Subject, id.as_str()))
        .or_else(|| {
            query
                .tool_id
                .as_ref()
                .map(|id| text(Dimension::Tool, id.as_str()))
        })
        .or_else(|| {
            query
                .space_id
                .as_ref()
                .map(|id| text(Dimension::Space, id.as_str()))
        })
        .or_else(|| {
            query
                .status
                .map(|status: Status| (Dimension::Status, keys::status_hash(status)))
        }))
}

/// The next ordinal after (or before) the cursor.
fn next_ordinal(
    served: &Served,
    driver: Option<(Dimension, Hash16)>,
    order: Order,
    at: Option<u64>,
) -> Result<Option<u64>, StoreError> {
    let total = receipts_total(served)?;
    let begin = served.live().receipts_begin;
    let bound = match order {
        Order::OldestFirst => at.map_or(Some(begin), |at| at.checked_add(1).map(|at| at.max(begin))),
        Order::NewestFirst => at.unwrap_or(total).min(total).checked_sub(1),
    };
    let Some(bound) = bound.filter(|bound| (begin..total).contains(bound)) else {
        return Ok(None);
    };
    let found = match (driver, order) {
        (None, _) => Ok(Some(bound)),
        (Some((dimension, value)), Order::OldestFirst) => next_posting(served, dimension, value, bound),
        (Some((dimension, value)), Order::NewestFirst) => previous_posting(served, dimension, value, bound),
    };
    // A bucket may still hold numbers of receipts that are kept no longer.
    Ok(found?.filter(|ordinal| *ordinal >= begin))
}

pub(super) fn receipts_total(served: &Served) -> Result<u64, StoreError> {
    let last = served
        .table
        .view(None)
        .previous(&keys::receipt_run(0), &keys::receipt_run(u64::MAX))?;
    let last = decode_run(last).map_err(|error| index_damaged(&error))?;
    Ok(last.map_or(0, |(first, run)| first + run.spans.len() as u64))
}

fn bucket_of(key: &[u8]) -> u64 {
    key.last_chunk::<8>()
        .map_or(0, |bucket| u64::from_be_bytes(*bucket))
}

pub(super) fn next_posting(
    served: &Served,
    dimension: Dimension,
    value: Hash16,
    from: u64,
) -> Result<Option<u64>, StoreError> {
    let view = served.table.view(None);
    let (mut key, _) = keys::posting(dimension, value, from);
    let (end, _) = keys::posting(dimension, value, u64::MAX);
    while let Some((found, members)) = view.next(&key, &end)? {
        let base = bucket_of(&found) << 8;
        if let Some(member) = members
            .iter()
            .map(|member| base | u64::from(*member))
            .find(|number| *number >= from)
        {
            return Ok(Some(member));
        }
        key = found;
        key.push(0);
    }
    Ok(None)
}

pub(super) fn previous_posting(
    served: &Served,
    dimension: Dimension,
    value: Hash16,
    to: u64,
) -> Result<Option<u64>, StoreError> {
    let view = served.table.view(None);
    let (start, _) = keys::posting(dimension, value, 0);
    let (mut key, _) = keys::posting(dimension, value, to);
    while let Some((found, members)) = view.previous(&start, &key)? {
        let base = bucket_of(&found) << 8;
        let member = members
            .iter()
            .rev()
            .map(|member| base | u64::from(*member))
            .find(|number| *number <= to);
        if member.is_some() || base == 0 {
            return Ok(member);
        }
        (key, _) = keys::posting(dimension, value, base - 1);
    }
    Ok(None)
}

enum InTime {
    Yes,
    /// Before the time that was asked for, in the order of the query.
    TooSoon,
    /// After it: so are all that follow.
    TooLate,
}

fn in_time(query: &ReceiptQuery, receipt: &StoredReceipt) -> InTime {
    let stored_ms = receipt.stored_at.as_millisecond();
    let before = query
        .since
        .is_some_and(|since| stored_ms < since.as_millisecond());
    let behind = query.until.is_some_and(|until| stored_ms >= ceil_ms(until));
    match (before, behind, query.order) {
        (false, false, _) => InTime::Yes,
        (true, _, Order::OldestFirst) | (false, true, Order::NewestFirst) => InTime::TooSoon,
        (true, _, Order::NewestFirst) | (false, true, Order::OldestFirst) => InTime::TooLate,
    }
}

/// Stored times are whole milliseconds, so "before this moment" is "before its next whole millisecond".
fn ceil_ms(time: Timestamp) -> i64 {
    let floor = time.as_millisecond();
    if timestamp(floor) < time { floor + 1 } else { floor }
}

fn matches(query: &ReceiptQuery, receipt: &StoredReceipt) -> bool {
    query.tool_id.as_ref().is_none_or(|id| *id == receipt.tool_id)
        && query
            .subject_id
            .as_ref()
            .is_none_or(|id| *id == receipt.subject_id)
        && query.space_id.as_ref().is_none_or(|id| *id == receipt.space_id)
        && query.status.is_none_or(|status| status == receipt.status)
}

/// The cursor just before the first receipt that can be in time, found by bisection over the runs.
fn skip_to(served: &Served, query: &ReceiptQuery, ordinal: u64) -> Result<u64, StoreError> {
    let total = receipts_total(served)?;
    let wanted = match query.order {
        Order::OldestFirst => query.since.map(|since| since.as_millisecond()),
        Order::NewestFirst => query.until.map(ceil_ms),
    };
    let Some(wanted) = wanted else { return Ok(ordinal) };
    let begin = served.live().receipts_begin;
    let low = first_run(served, keys::receipt_run, begin..total, |run| run.at_ms >= wanted)?;
    // `low` is the first receipt at that time or later.
    Ok(match query.order {
        Order::OldestFirst => low.saturating_sub(1).max(ordinal),
        Order::NewestFirst => low.min(ordinal),
    })
}
