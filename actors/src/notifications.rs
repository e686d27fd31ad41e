//! What people were told: which notifications there are, and what became of each.
//!
//! What a notification says lies in the spool, an artifact of its receipt: sealed, within its space's quota, gone when retention, an
//! erasure or the quota takes it. Here stands only whose receipt it is and how far its delivery got, in clear and with a bound.
//!
//! Receipts are followed by their tool, from a place that is kept in the same block as what was found there. So other actions cost
//! nothing, nothing is passed over, and nothing is taken up twice. Delivering is an effect that may have happened when a process dies:
//! that it is about to happen is written first, and what was being delivered then is not delivered again.

use effectd_bus::{
    Blobs, Change, Cursor, Entry, EntryChange, Expect, FamilyName, NewBody, Order, ReceiptQuery, Store,
    StoreError, StoredReceipt, Swap,
};
use effectd_contracts::limits::NOTICE_BYTES_MAX;
use effectd_contracts::{
    Clock, NOTICE_ARTIFACT, NOTIFY_TOOL, Notice, Outcome, Receipt, ReceiptId, SpaceId, SubjectId, Timestamp,
    ToolId, json,
};
use serde::{Deserialize, Serialize};

use crate::artifacts;
use crate::limits::NOTIFICATIONS_PAGE;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    Waiting,
    Sending,
    /// The desktop has taken it.
    Delivered,
    /// It was not delivered, and will not be.
    Undelivered,
    /// It may have been delivered or not, and is not delivered again.
    Unknown,
}

impl Delivery {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Delivery::Waiting => "waiting",
            Delivery::Sending => "sending",
            Delivery::Delivered => "delivered",
            Delivery::Undelivered => "undelivered",
            Delivery::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    /// The receipt of the action that sent it.
    pub receipt_id: ReceiptId,
    pub subject_id: SubjectId,
    pub space_id: SpaceId,
    /// When its receipt was written.
    pub sent_at: Timestamp,
    pub delivery: Delivery,
    pub since: Timestamp,
    /// Why it is not delivered, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One notification as it was read, to be changed only if nobody else did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub value: Notification,
    version: u64,
}

/// Where the receipts of notifications are read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// The last receipt that was looked at, by its number.
    receipt: u64,
}

const PLACE: &str = "place";
/// Entries that are forgotten in one step.
const FORGET_MAX: usize = 256;

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("notifications")
}

fn places() -> Result<FamilyName, StoreError> {
    FamilyName::new("notifications_place")
}

fn swap(family: FamilyName, key: &str, expect: Expect, value: &impl Serialize) -> Swap {
    // Plain data with text keys, for which serde_json has no failure.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    Swap {
        family,
        key: key.to_owned(),
        expect,
        change: EntryChange::Put(NewBody::Clear(bytes)),
    }
}

fn kept(entry: &Entry) -> Option<Kept> {
    Some(Kept {
        value: serde_json::from_slice(entry.value.bytes()?).ok()?,
        version: entry.version,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TakenUp {
    more: bool,
    /// Changes whenever anything was taken up.
    version: u64,
}

/// Takes up what receipts say was sent, a bounded number at a time. Without news it writes nothing.
async fn take_up(store: &dyn Store, clock: &dyn Clock, kept_max: usize) -> Result<TakenUp, StoreError> {
    let place = store.entry(&places()?, PLACE)?;
    let version = place.as_ref().map_or(0, |entry| entry.version);
    let stood: Option<Place> = place
        .as_ref()
        .and_then(|entry| serde_json::from_slice(entry.value.bytes()?).ok());
    let tool = ToolId::new(NOTIFY_TOOL).map_err(|error| StoreError::Invalid(error.to_string()))?;
    let page = store.receipts(&ReceiptQuery {
        tool_id: Some(tool),
        order: Order::OldestFirst,
        cursor: stood.map(|place| Cursor(place.receipt)),
        limit: NOTIFICATIONS_PAGE,
        ..ReceiptQuery::default()
    })?;
    let last = page.receipts.last().map(|receipt| receipt.ordinal);
    let Some(receipt) = last.max(page.cursor.map(|Cursor(at)| at)) else {
        return Ok(TakenUp { more: false, version });
    };
    let expect = if place.is_some() {
        Expect::Version(version)
    } else {
        Expect::Absent
    };
    let mut swaps = vec![swap(places()?, PLACE, expect, &Place { receipt })];
    for stored in &page.receipts {
        if let Some(found) = sent(stored, clock.now())
            && store.entry(&family()?, found.receipt_id.as_str())?.is_none()
        {
            swaps.push(swap(family()?, found.receipt_id.as_str(), Expect::Absent, &found));
        }
    }
    swaps.extend(forgotten(store, swaps.len() - 1, kept_max)?);
    let changed = store.change(Change {
        swaps,
        ..Change::default()
    });
    match changed.await {
        Ok(changed) => Ok(TakenUp {
            more: page.cursor.is_some(),
            version: changed.versions.first().copied().flatten().unwrap_or(version),
        }),
        // Somebody else has just taken them up.
        Err(StoreError::VersionMismatch { .. }) => Ok(TakenUp { more: true, version }),
        Err(error) => Err(error),
    }
}

/// Takes up all that was sent until now, forgets the oldest beyond `kept_max`, and answers a number that changes whenever anything was taken up, by whomever.
pub async fn catch_up(store: &dyn Store, clock: &dyn Clock, kept_max: usize) -> Result<u64, StoreError> {
    loop {
        let taken = take_up(store, clock, kept_max).await?;
        if !taken.more {
            return Ok(taken.version);
        }
    }
}

/// The notification that a receipt tells of. What was refused, tried out, or cannot be told to have happened, told nobody anything.
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

/// The oldest ones, as many as there are too many with those that are coming.
fn forgotten(store: &dyn Store, coming: usize, kept_max: usize) -> Result<Vec<Swap>, StoreError> {
    if coming == 0 {
        return Ok(Vec::new());
    }
    let (family, mut there, mut after) = (family()?, 0, None::<String>);
    let mut oldest = Vec::new();
    loop {
        let page = store.entries(&family, "", after.as_deref(), effectd_bus::limits::PAGE_ITEMS_MAX)?;
        there += page.entries.len();
        let room = FORGET_MAX - oldest.len();
        oldest.extend(page.entries.into_iter().take(room).map(|entry| entry.key));
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    let surplus = (there + coming).saturating_sub(kept_max);
    let gone = oldest.into_iter().take(surplus).map(|key| Swap {
        family: family.clone(),
        key,
        expect: Expect::Any,
        change: EntryChange::Delete,
    });
    Ok(gone.collect())
}

/// Those that are not settled: they wait, or were being delivered.
pub fn open(store: &dyn Store) -> Result<Vec<Kept>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = store.entries(
            &family()?,
            "",
            after.as_deref(),
            effectd_bus::limits::PAGE_ITEMS_MAX,
        )?;
        let here = page.entries.iter().filter_map(kept);
        found
            .extend(here.filter(|kept| matches!(kept.value.delivery, Delivery::Waiting | Delivery::Sending)));
        after = page.after;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// Writes down how far a delivery got; durable when it returns. Nothing if the notification was forgotten or changed meanwhile.
pub async fn mark(
    store: &dyn Store,
    clock: &dyn Clock,
    seen: &Kept,
    delivery: Delivery,
    why: Option<String>,
) -> Result<Option<Kept>, StoreError> {
    let value = Notification {
        delivery,
        since: clock.now(),
        why,
        ..seen.value.clone()
    };
    let swap = swap(
        family()?,
        value.receipt_id.as_str(),
        Expect::Version(seen.version),
        &value,
    );
    let change = Change {
        swaps: vec![swap],
        ..Change::default()
    };
    match store.change(change).await {
        Ok(changed) => {
            let version = changed.versions.first().copied().flatten();
            Ok(version.map(|version| Kept { value, version }))
        }
        Err(StoreError::VersionMismatch { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A notification and what it says, or why that cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub notification: Notification,
    pub notice: Result<Notice, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldPage {
    /// Oldest first.
    pub notifications: Vec<Told>,
    /// The receipt to go on after; nothing when there are no more.
    pub next: Option<String>,
}

/// Notifications with what they say. Reads a file for each: not for a thread that belongs to others.
pub fn list(
    store: &dyn Store,
    blobs: &Blobs,
    after: Option<&str>,
    max: usize,
) -> Result<ToldPage, StoreError> {
    let page = store.entries(&family()?, "", after, max.min(NOTIFICATIONS_PAGE))?;
    let told = page.entries.iter().filter_map(kept);
    Ok(ToldPage {
        notifications: told.map(|kept| told_of(store, blobs, kept.value)).collect(),
        next: page.after,
    })
}

/// The notification of a receipt. Reads a file.
pub fn find(store: &dyn Store, blobs: &Blobs, receipt: &ReceiptId) -> Result<Option<Told>, StoreError> {
    let entry = store.entry(&family()?, receipt.as_str())?;
    Ok(entry
        .as_ref()
        .and_then(kept)
        .map(|kept| told_of(store, blobs, kept.value)))
}

fn told_of(store: &dyn Store, blobs: &Blobs, notification: Notification) -> Told {
    let notice = notice(store, blobs, &notification.receipt_id);
    Told { notification, notice }
}

/// What the notification of a receipt says. Reads a file. The document comes from the sandbox and is not trusted.
pub fn notice(store: &dyn Store, blobs: &Blobs, receipt: &ReceiptId) -> Result<Notice, String> {
    let stored = store.receipt(receipt).map_err(|error| error.to_string())?;
    let stored = stored.ok_or("its receipt is not kept any more")?;
    let receipt: Receipt = stored.parse().map_err(|error| error.to_string())?;
    let spooled = artifacts::listed(&receipt)
        .into_iter()
        .find(|artifact| artifact.name == Some(NOTICE_ARTIFACT));
    let id = spooled.ok_or("its receipt names no text")?.artifact_id;
    let mut reader = artifacts::open_kept(store, blobs, &receipt, id).map_err(|error| error.to_string())?;
    if reader.bytes() > NOTICE_BYTES_MAX as u64 {
        return Err("its text is longer than any may be".to_owned());
    }
    let mut bytes = Vec::new();
    while let Some(piece) = reader.piece().map_err(|error| error.to_string())? {
        bytes.extend(piece);
    }
    // What is wrong with it may quote it.
    json::parse(&bytes, NOTICE_BYTES_MAX).map_err(|_| "its text cannot be read".to_owned())
}
