//! Reading receipts: one, and queries. A query reads only receipts that meet all of its conditions by the index.

use std::collections::BTreeSet;

use effectd_contracts::{InvocationBrief, Timestamp};

use super::{Reader, part_of, span_in, timestamp, unexpected};
use crate::codec::{Hash16, Location, Malformed, Span};
use crate::error::StoreError;
use crate::index::View;
use crate::index::schema::{self, BlockSpans, Dimension, ReceiptAt, Resolution};
use crate::journal::record::Record;
use crate::limits::{PAGE_BYTES_MAX, PAGE_ITEMS_MAX, QUERY_SCAN_MAX};
use crate::types::receipts::{Cursor, Order, ReceiptPage, ReceiptQuery, StoredReceipt};

/// The receipt of an action or of a key, if it is kept.
pub(crate) fn resolution(view: View<'_>, key: &[u8], begin: u64) -> Result<Option<Resolution>, StoreError> {
    let found = view.get(key)?.map(|bytes| Resolution::decode(&bytes)).transpose()?;
    Ok(found.filter(|found| found.ordinal >= begin))
}

/// The ordinal of a receipt, if it is kept.
pub(crate) fn receipt_at(view: View<'_>, id: &str, begin: u64) -> Result<Option<ReceiptAt>, StoreError> {
    let found = view.get(&schema::receipt(id))?;
    let found = found.map(|bytes| ReceiptAt::decode(&bytes)).transpose()?;
    Ok(found.filter(|found| found.ordinal >= begin))
}

impl Reader {
    /// The spans of the receipts around this one, and its own span.
    pub(crate) fn receipt_location(&self, ordinal: u64) -> Result<(BlockSpans, Span), StoreError> {
        let found = self.last_spans(&schema::receipts(0), &schema::receipts(ordinal))?;
        let found = found.and_then(|group| Some((span_in(&group, ordinal)?, group.1)));
        let (span, spans) =
            found.ok_or_else(|| schema::malformed(Malformed("a receipt without its location")))?;
        Ok((spans, span))
    }

    pub(crate) fn receipt(&self, ordinal: u64) -> Result<StoredReceipt, StoreError> {
        let (spans, span) = self.receipt_location(ordinal)?;
        if span == Span::default() {
            return Err(StoreError::NotFound { what: "a receipt that was lost before `store salvage`" });
        }
        let location = Location { seq: spans.seq, span };
        let (bytes, record) = self.record(location)?;
        let Record::Completed(receipt) = record else {
            return Err(unexpected(location));
        };
        Ok(StoredReceipt {
            ordinal,
            stored_at: timestamp(spans.at_ms),
            body: part_of(&bytes, span, receipt.body.span())?.to_vec(),
            receipt_id: receipt.receipt_id,
            action_id: receipt.action_id,
            action_digest: receipt.action_digest,
            tool_id: receipt.tool_id,
            subject_id: receipt.subject_id,
            space_id: receipt.space_id,
            status: receipt.status,
            params_digest: receipt.params_digest,
            time: timestamp(receipt.time_ms),
        })
    }

    /// A receipt; `None` if it has expired, expires meanwhile, or was lost before a salvage.
    pub(crate) fn kept_receipt(&self, ordinal: u64) -> Result<Option<StoredReceipt>, StoreError> {
        let has_expired = || ordinal < self.live.read().receipts_begin;
        if has_expired() {
            return Ok(None);
        }
        match self.receipt(ordinal) {
            Err(_) if has_expired() => Ok(None),
            Err(StoreError::NotFound { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    pub(crate) fn receipt_by_id(&self, id: &str) -> Result<Option<StoredReceipt>, StoreError> {
        let at = receipt_at(self.view(), id, 0)?;
        at.map_or(Ok(None), |at| self.kept_receipt(at.ordinal))
    }

    pub(crate) fn receipt_of(&self, action: &str) -> Result<Option<StoredReceipt>, StoreError> {
        let begin = self.live.read().receipts_begin;
        let known = resolution(self.view(), &schema::action(schema::action_hash(action)), begin)?;
        known.map_or(Ok(None), |known| self.kept_receipt(known.ordinal))
    }

    pub(crate) fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        let conditions = self.conditions(query)?;
        let limit = query.limit.clamp(1, PAGE_ITEMS_MAX);
        let mut page = ReceiptPage::default();
        let (mut bytes, mut scanned) = (0, 0);
        let mut at = query.cursor.map(|Cursor(at)| at);
        loop {
            let Some(step) = self.step(&conditions, query.order, at)? else {
                return Ok(page);
            };
            let full = page.receipts.len() >= limit || bytes >= PAGE_BYTES_MAX;
            if scanned >= QUERY_SCAN_MAX || (full && matches!(step, Step::Found(_))) {
                page.cursor = at.map(Cursor);
                return Ok(page);
            }
            scanned += 1;
            let ordinal = match step {
                Step::Found(ordinal) => ordinal,
                Step::NoneUpTo(ordinal) => {
                    at = Some(ordinal);
                    continue;
                }
            };
            at = Some(ordinal);
            let Some(receipt) = self.kept_receipt(ordinal)? else {
                continue;
            };
            match in_time(query, &receipt) {
                InTime::Yes if matches(query, &receipt) => {
                    bytes += receipt.body.len();
                    page.receipts.push(receipt);
                }
                InTime::Yes => {}
                InTime::TooSoon => at = Some(self.skip_to(query, ordinal)?),
                InTime::TooLate => return Ok(page),
            }
        }
    }

    /// The next step of a query, from a cursor on; `None` at the end.
    fn step(
        &self,
        conditions: &[Condition],
        order: Order,
        at: Option<u64>,
    ) -> Result<Option<Step>, StoreError> {
        let total = self.receipts_total()?;
        let begin = self.live.read().receipts_begin;
        let bound = match order {
            Order::OldestFirst => at.map_or(Some(begin), |at| at.checked_add(1).map(|at| at.max(begin))),
            Order::NewestFirst => at.unwrap_or(total).min(total).checked_sub(1),
        };
        let Some(bound) = bound.filter(|bound| (begin..total).contains(bound)) else {
            return Ok(None);
        };
        let (bucket, base) = (bound >> 8, bound & !0xff);
        let mut common: Option<Vec<u8>> = None;
        for condition in conditions {
            let Some((found, members)) = self.bucket(condition, order, bucket)? else {
                return Ok(None);
            };
            if found != bucket {
                // No receipt before that bucket meets this condition.
                return Ok(Some(Step::NoneUpTo(match order {
                    Order::OldestFirst => (found << 8) - 1,
                    Order::NewestFirst => (found + 1) << 8,
                })));
            }
            match &mut common {
                None => common = Some(members),
                Some(common) => common.retain(|member| members.binary_search(member).is_ok()),
            }
        }
        let Some(common) = common else {
            return Ok(Some(Step::Found(bound)));
        };
        let mut numbers = common.iter().map(|member| base | u64::from(*member));
        let (found, edge) = match order {
            Order::OldestFirst => (numbers.find(|number| *number >= bound), base | 0xff),
            Order::NewestFirst => (numbers.rfind(|number| *number <= bound), base),
        };
        // A bucket may still have numbers of expired receipts.
        Ok(Some(found.filter(|number| *number >= begin).map_or(Step::NoneUpTo(edge), Step::Found)))
    }

    /// The nearest bucket, from this one on in the query's order, with a receipt that meets a condition, and its members.
    fn bucket(
        &self,
        condition: &Condition,
        order: Order,
        from: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let (dimension, value) = match condition {
            Condition::Listed(dimension, value) => (*dimension, *value),
            Condition::OneOf(ordinals) => {
                let mut buckets = ordinals.iter().map(|ordinal| ordinal >> 8);
                let nearest = match order {
                    Order::OldestFirst => buckets.find(|bucket| *bucket >= from),
                    Order::NewestFirst => buckets.rfind(|bucket| *bucket <= from),
                };
                return Ok(nearest.map(|nearest| {
                    let members = ordinals.iter().filter(|ordinal| **ordinal >> 8 == nearest);
                    (nearest, members.map(|ordinal| (ordinal & 0xff) as u8).collect())
                }));
            }
        };
        let key = |number| schema::posting(dimension, value, number).0;
        let found = match order {
            Order::OldestFirst => self.view().next(&key(from << 8), &key(u64::MAX))?,
            Order::NewestFirst => self.view().previous(&key(0), &key(from << 8))?,
        };
        Ok(found.map(|(key, members)| (bucket_of(&key), members)))
    }

    /// What the receipts of a query must meet.
    fn conditions(&self, query: &ReceiptQuery) -> Result<Vec<Condition>, StoreError> {
        if query.key.is_some() && query.space_id.is_none() {
            return Err(StoreError::Invalid("a query by key must name the space too".into()));
        }
        if query.invocation.is_some() && query.org.is_none() {
            return Err(StoreError::Invalid(
                "a query by status as an invocation must name the org too".into(),
            ));
        }
        let text = |dimension, text: Option<&str>| text.map(|text| (dimension, schema::text_hash(text)));
        let key = query.key.as_ref().zip(query.space_id.as_ref());
        let of_org = query.org.as_ref().zip(query.invocation);
        let listed = [
            of_org.map(|(org, status)| (Dimension::OrgStatus, schema::org_status_hash(org.as_str(), status))),
            key.map(|(key, space)| (Dimension::Key, schema::key_hash(space, key))),
            text(Dimension::Session, query.session.as_ref().map(|id| id.as_str())),
            text(Dimension::Principal, query.principal.as_ref().map(|id| id.as_str())),
            text(Dimension::Org, query.org.as_ref().map(|id| id.as_str())),
            text(Dimension::Subject, query.subject_id.as_ref().map(|id| id.as_str())),
            text(Dimension::Tool, query.tool_id.as_ref().map(|id| id.as_str())),
            text(Dimension::ToolGroup, query.tool_group.as_deref()),
            text(Dimension::Space, query.space_id.as_ref().map(|id| id.as_str())),
            query.status.map(|status| (Dimension::Status, schema::status_hash(status))),
        ];
        let listed = listed.into_iter().flatten();
        let mut all: Vec<_> = listed.map(|(dimension, value)| Condition::Listed(dimension, value)).collect();
        if !query.action_ids.is_empty() {
            let mut ordinals = BTreeSet::new();
            for action in &query.action_ids {
                let key = schema::action(schema::action_hash(action.as_str()));
                ordinals.extend(resolution(self.view(), &key, 0)?.map(|found| found.ordinal));
            }
            all.insert(0, Condition::OneOf(ordinals));
        }
        Ok(all)
    }

    /// The ordinal that the next receipt will have.
    pub(crate) fn receipts_total(&self) -> Result<u64, StoreError> {
        let last = self.last_spans(&schema::receipts(0), &schema::receipts(u64::MAX))?;
        Ok(last.map_or(0, |(first, spans)| first + spans.spans.len() as u64))
    }

    /// How many receipts of an organisation have this status as an invocation. Reads one entry of the index for every 256 receipts.
    pub(crate) fn invocations(&self, org: &str, status: InvocationBrief) -> Result<u64, StoreError> {
        let begin = self.live.read().receipts_begin;
        let value = schema::org_status_hash(org, status);
        let (from, _) = schema::posting(Dimension::OrgStatus, value, begin);
        let (end, _) = schema::posting(Dimension::OrgStatus, value, u64::MAX);
        let mut count = 0;
        for found in self.view().scan(from, &end) {
            let (key, members) = found?;
            let base = bucket_of(&key) << 8;
            // A bucket may still have numbers of expired receipts.
            count += members.iter().filter(|member| base | u64::from(**member) >= begin).count() as u64;
        }
        Ok(count)
    }

    /// The first number from `from` on that is listed under a value.
    pub(super) fn next_posting(
        &self,
        dimension: Dimension,
        value: Hash16,
        from: u64,
    ) -> Result<Option<u64>, StoreError> {
        let (key, _) = schema::posting(dimension, value, from);
        let (end, _) = schema::posting(dimension, value, u64::MAX);
        for found in self.view().scan(key, &end) {
            let (key, members) = found?;
            let base = bucket_of(&key) << 8;
            let mut numbers = members.iter().map(|member| base | u64::from(*member));
            if let Some(number) = numbers.find(|number| *number >= from) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The last number up to `to` that is listed under a value.
    pub(super) fn previous_posting(
        &self,
        dimension: Dimension,
        value: Hash16,
        to: u64,
    ) -> Result<Option<u64>, StoreError> {
        let (start, _) = schema::posting(dimension, value, 0);
        let (mut key, _) = schema::posting(dimension, value, to);
        while let Some((found, members)) = self.view().previous(&start, &key)? {
            let base = bucket_of(&found) << 8;
            let mut numbers = members.iter().rev().map(|member| base | u64::from(*member));
            let number = numbers.find(|number| *number <= to);
            if number.is_some() || base == 0 {
                return Ok(number);
            }
            (key, _) = schema::posting(dimension, value, base - 1);
        }
        Ok(None)
    }

    /// The cursor just before the first receipt that can be in the time range of the query.
    fn skip_to(&self, query: &ReceiptQuery, ordinal: u64) -> Result<u64, StoreError> {
        let wanted = match query.order {
            Order::OldestFirst => query.since.map(|since| since.as_millisecond()),
            Order::NewestFirst => query.until.map(ceil_ms),
        };
        let Some(wanted) = wanted else { return Ok(ordinal) };
        let begin = self.live.read().receipts_begin;
        let range = begin..self.receipts_total()?;
        // The first receipt at that time or later.
        let first = self.first_where(schema::receipts, range, |spans| spans.at_ms >= wanted)?;
        Ok(match query.order {
            Order::OldestFirst => first.saturating_sub(1).max(ordinal),
            Order::NewestFirst => first.min(ordinal),
        })
    }
}

enum Condition {
    /// The index lists the receipt under this value.
    Listed(Dimension, Hash16),
    OneOf(BTreeSet<u64>),
}

enum Step {
    /// The next receipt that meets every condition.
    Found(u64),
    /// There is none up to and including this ordinal, in the order of the query.
    NoneUpTo(u64),
}

fn bucket_of(key: &[u8]) -> u64 {
    key.last_chunk::<8>().map_or(0, |bucket| u64::from_be_bytes(*bucket))
}

enum InTime {
    Yes,
    /// Before the time range, in the order of the query.
    TooSoon,
    /// After the time range, as are all that follow.
    TooLate,
}

fn in_time(query: &ReceiptQuery, receipt: &StoredReceipt) -> InTime {
    let stored_ms = receipt.stored_at.as_millisecond();
    let before = query.since.is_some_and(|since| stored_ms < since.as_millisecond());
    let behind = query.until.is_some_and(|until| stored_ms >= ceil_ms(until));
    match (before, behind, query.order) {
        (false, false, _) => InTime::Yes,
        (true, _, Order::OldestFirst) | (false, true, Order::NewestFirst) => InTime::TooSoon,
        (true, _, Order::NewestFirst) | (false, true, Order::OldestFirst) => InTime::TooLate,
    }
}

/// Stored times are whole milliseconds, so "before a time" means "before its next whole millisecond".
fn ceil_ms(time: Timestamp) -> i64 {
    let floor = time.as_millisecond();
    if timestamp(floor) < time { floor + 1 } else { floor }
}

fn matches(query: &ReceiptQuery, receipt: &StoredReceipt) -> bool {
    query.tool_id.as_ref().is_none_or(|id| *id == receipt.tool_id)
        && query.subject_id.as_ref().is_none_or(|id| *id == receipt.subject_id)
        && query.space_id.as_ref().is_none_or(|id| *id == receipt.space_id)
        && query.status.is_none_or(|status| status == receipt.status)
        && query.tool_group.as_ref().is_none_or(|group| group == schema::tool_group(receipt.tool_id.as_str()))
}
