//! Notifications: the list of them, and the state of the delivery of each.
//!
//! The text of a notification is an artifact of its receipt: sealed, within its space's quota, and gone when retention, an
//! erasure or the quota removes it. The list has only the receipt and the state of the delivery, in clear and bounded.
//!
//! Receipts of the notifying tool are read from a position that is stored in the same block as the notifications found. So other
//! actions cost nothing, no notification is missed, and none is found twice. A delivery is an effect that may have happened when
//! a process dies: `sending` is written first, and a notification in that state is not sent again.

use effectd_bus::limits::PAGE_ITEMS_MAX;
use effectd_bus::{
    Blobs, Cursor, Expect, FamilyName, KvEntry, Order, ReceiptQuery, Store, StoreError, StoredReceipt, Swap,
};
use effectd_contracts::limits::NOTICE_BYTES_MAX;
use effectd_contracts::{
    Clock, NOTICE_ARTIFACT, NOTIFY_TOOL, Notice, Outcome, Receipt, ReceiptId, SpaceId, SubjectId, Timestamp,
    ToolId, json, wire_enum,
};
use serde::{Deserialize, Serialize};

use crate::effects::artifacts;
use crate::limits::NOTIFICATIONS_PAGE;
use crate::stored::{delete, entries, put, read_json, swap_all};

wire_enum! {
    pub enum Delivery {
        Waiting = "waiting",
        Sending = "sending",
        /// The desktop has accepted it.
        Delivered = "delivered",
        /// It will not be delivered.
        Undelivered = "undelivered",
        /// It may have been delivered, so it is not sent again.
        Unknown = "unknown",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    /// The receipt of the action that notified.
    pub receipt_id: ReceiptId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    pub sent_at: Timestamp,
    pub delivery: Delivery,
    pub since: Timestamp,
    /// Why it is not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A notification with its version, for compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub value: Notification,
    version: u64,
}

/// Where to continue reading receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    /// The ordinal of the last receipt that was read.
    receipt: u64,
}

const PLACE: &str = "place";
/// Entries that are removed in one step.
const REMOVE_MAX: usize = 256;

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("notifications")
}

fn positions() -> Result<FamilyName, StoreError> {
    FamilyName::new("notifications_place")
}

fn stored(entry: &KvEntry) -> Option<Stored> {
    Some(Stored { value: read_json(entry)?, version: entry.version })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    more: bool,
    /// The version of the stored position: it changes whenever receipts are read.
    version: u64,
}

/// Reads one page of receipts and adds their notifications. Without new receipts it writes nothing.
async fn read_page(store: &dyn Store, clock: &dyn Clock, kept_max: usize) -> Result<Found, StoreError> {
    let place = store.entry(&positions()?, PLACE)?;
    let version = place.as_ref().map_or(0, |entry| entry.version);
    let position: Option<Position> = place.as_ref().and_then(read_json);
    let tool = ToolId::new(NOTIFY_TOOL)?;
    let page = store.receipts(&ReceiptQuery {
        tool_id: Some(tool),
        order: Order::OldestFirst,
        cursor: position.map(|position| Cursor(position.receipt)),
        limit: NOTIFICATIONS_PAGE,
        ..ReceiptQuery::default()
    })?;
    let last = page.receipts.last().map(|receipt| receipt.ordinal);
    let Some(receipt) = last.max(page.cursor.map(|Cursor(at)| at)) else {
        return Ok(Found { more: false, version });
    };
    let expect = if place.is_some() { Expect::Version(version) } else { Expect::Absent };
    let mut swaps = vec![put(positions()?, PLACE, expect, &Position { receipt })];
    for receipt in &page.receipts {
        if let Some(found) = sent(receipt, clock.now())
            && store.entry(&family()?, found.receipt_id.as_str())?.is_none()
        {
            swaps.push(put(family()?, found.receipt_id.as_str(), Expect::Absent, &found));
        }
    }
    swaps.extend(surplus(store, swaps.len() - 1, kept_max)?);
    match swap_all(store, swaps).await {
        Ok(changed) => Ok(Found {
            more: page.cursor.is_some(),
            version: changed.versions.first().copied().flatten().unwrap_or(version),
        }),
        // Another task has just read them.
        Err(StoreError::VersionMismatch { .. }) => Ok(Found { more: true, version }),
        Err(error) => Err(error),
    }
}

/// Reads all new receipts, stores their notifications, and removes the oldest beyond `kept_max`. Returns the version of the
/// stored notifications, which changes whenever receipts were read.
pub async fn catch_up(store: &dyn Store, clock: &dyn Clock, kept_max: usize) -> Result<u64, StoreError> {
    loop {
        let taken = read_page(store, clock, kept_max).await?;
        if !taken.more {
            return Ok(taken.version);
        }
    }
}

/// The notification of a receipt, if its action was executed.
fn sent(stored: &StoredReceipt, now: Timestamp) -> Option<Notification> {
    let receipt = stored.parse().ok()?;
    (receipt.outcome == Outcome::Executed).then_some(Notification {
        receipt_id: receipt.receipt_id,
        subject_id: receipt.subject_id,
        space_id: receipt.space_id,
        sent_at: stored.stored_at,
        delivery: Delivery::Waiting,
        since: now,
        why: None,
    })
}

/// Removals of the oldest notifications, so that with `coming` new ones at most `kept_max` remain.
fn surplus(store: &dyn Store, coming: usize, kept_max: usize) -> Result<Vec<Swap>, StoreError> {
    if coming == 0 {
        return Ok(Vec::new());
    }
    let family = family()?;
    let (mut there, mut oldest) = (0, Vec::new());
    for entry in entries(store, &family, PAGE_ITEMS_MAX) {
        let entry = entry?;
        there += 1;
        if there <= REMOVE_MAX {
            oldest.push(entry.key);
        }
    }
    let too_many = (there + coming).saturating_sub(kept_max);
    let gone = oldest.into_iter().take(too_many);
    Ok(gone.map(|key| delete(family.clone(), key, Expect::Any)).collect())
}

/// The notifications that wait, or were being sent.
pub fn open(store: &dyn Store) -> Result<Vec<Stored>, StoreError> {
    let is_open = |one: &Stored| matches!(one.value.delivery, Delivery::Waiting | Delivery::Sending);
    let mut found = Vec::new();
    for entry in entries(store, &family()?, PAGE_ITEMS_MAX) {
        found.extend(stored(&entry?).filter(is_open));
    }
    Ok(found)
}

/// Stores the state of a delivery, durably. `None` if the notification was removed or changed meanwhile.
pub async fn mark(
    store: &dyn Store,
    clock: &dyn Clock,
    seen: &Stored,
    delivery: Delivery,
    why: Option<String>,
) -> Result<Option<Stored>, StoreError> {
    let value = Notification { delivery, since: clock.now(), why, ..seen.value.clone() };
    let swap = put(family()?, value.receipt_id.as_str(), Expect::Version(seen.version), &value);
    match swap_all(store, vec![swap]).await {
        Ok(changed) => {
            let version = changed.versions.first().copied().flatten();
            Ok(version.map(|version| Stored { value, version }))
        }
        Err(StoreError::VersionMismatch { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A notification and its text, or why the text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithText {
    pub notification: Notification,
    pub notice: Result<Notice, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Oldest first.
    pub notifications: Vec<WithText>,
    /// The receipt after which the next page begins; none on the last page.
    pub next: Option<String>,
}

/// Notifications with their texts. Blocks: reads a file for each.
pub fn list(store: &dyn Store, blobs: &Blobs, after: Option<&str>, max: usize) -> Result<Page, StoreError> {
    let page = store.entries(&family()?, "", after, max.min(NOTIFICATIONS_PAGE))?;
    let found = page.entries.iter().filter_map(stored);
    Ok(Page {
        notifications: found.map(|one| with_text(store, blobs, one.value)).collect(),
        next: page.after,
    })
}

pub fn find(store: &dyn Store, blobs: &Blobs, receipt: &ReceiptId) -> Result<Option<WithText>, StoreError> {
    let entry = store.entry(&family()?, receipt.as_str())?;
    let found = entry.as_ref().and_then(stored);
    Ok(found.map(|one| with_text(store, blobs, one.value)))
}

fn with_text(store: &dyn Store, blobs: &Blobs, notification: Notification) -> WithText {
    let notice = notice(store, blobs, &notification.receipt_id);
    WithText { notification, notice }
}

/// The text of a receipt's notification. Blocks. The artifact comes from the sandbox and is not trusted.
pub fn notice(store: &dyn Store, blobs: &Blobs, receipt: &ReceiptId) -> Result<Notice, String> {
    let stored = store.receipt(receipt).map_err(|error| error.to_string())?;
    let stored = stored.ok_or("its receipt is no longer stored")?;
    let receipt: Receipt = stored.parse().map_err(|error| error.to_string())?;
    let spooled =
        artifacts::listed(&receipt).into_iter().find(|artifact| artifact.name == Some(NOTICE_ARTIFACT));
    let id = spooled.ok_or("its receipt names no text")?.artifact_id;
    let mut reader = artifacts::open(store, blobs, &receipt, id).map_err(|error| error.to_string())?;
    if reader.bytes() > NOTICE_BYTES_MAX as u64 {
        return Err("its text is too long".to_owned());
    }
    let mut bytes = Vec::new();
    while let Some(piece) = reader.piece().map_err(|error| error.to_string())? {
        bytes.extend(piece);
    }
    // The parser's error is dropped: it may quote the text.
    json::parse(&bytes, NOTICE_BYTES_MAX).map_err(|_| "its text cannot be read".to_owned())
}
