//! The device's own entries in the log: its keys, and the heads that it signs.
//!
//! A head is itself an entry, so that it is kept, replayed and covered by every later one; whoever wants to hold the device
//! to its word takes a copy.

use std::collections::BTreeMap;

use effectd_bus::{Change, EntryChange, Expect, FamilyName, NewBody, Store, StoreError, StoredEntry, Swap};
use effectd_contracts::json::parse_of_log;
use effectd_contracts::{
    AmendmentEntry, Clock, InclusionProof, KeyEntry, LogEntry, LogHead, LogLine, ReceiptId, Timestamp,
};
use serde_json::Value;

use crate::identity::{DeviceKey, Identity};
use crate::limits::{AMENDMENTS_MAX, KEYS_MAX};
use crate::parts::Parts;

pub const KEYS: &str = "key";
pub const HEADS: &str = "head";

pub fn line(stored: &StoredEntry) -> Result<LogLine, StoreError> {
    Ok(LogLine {
        index: stored.index,
        hash: stored.hash,
        entry: stored
            .body
            .as_deref()
            .map(|body| read(stored.index, body))
            .transpose()?,
    })
}

fn read(index: u64, body: &[u8]) -> Result<Value, StoreError> {
    parse_of_log(body, body.len()).map_err(|error| StoreError::Damaged {
        what: format!("entry {index} of the log cannot be read: {error}"),
        advice: "Run `effectd store check`.",
    })
}

/// All keys that the log has had, in order. A copy of each is kept beside the log, for when retention has let go of the
/// entries themselves.
pub fn keys(store: &dyn Store) -> Result<Vec<KeyEntry>, StoreError> {
    let mut found = BTreeMap::new();
    for entry in store.entries(&family()?, "", None, KEYS_MAX)?.entries {
        if let (Ok(index), Some(bytes)) = (entry.key.parse::<u64>(), entry.value.bytes()) {
            found.insert(index, bytes.to_vec());
        }
    }
    for note in store.notes(KEYS, 0, KEYS_MAX)? {
        found.extend(note.body.map(|body| (note.index, body)));
    }
    let read = found
        .values()
        .filter_map(|bytes| serde_json::from_slice(bytes).ok());
    Ok(read.collect())
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("log-keys")
}

/// Keeps copies of the keys that are noted.
fn keep(store: &dyn Store) -> Result<(), StoreError> {
    let mut swaps = Vec::new();
    for note in store.notes(KEYS, 0, KEYS_MAX)? {
        let key = format!("{:020}", note.index);
        if let Some(body) = note.body
            && store.entry(&family()?, &key)?.is_none()
        {
            swaps.push(Swap {
                family: family()?,
                key,
                expect: Expect::Any,
                change: EntryChange::Put(NewBody::Clear(body)),
            });
        }
    }
    if swaps.is_empty() {
        return Ok(());
    }
    let change = Change {
        swaps,
        ..Change::default()
    };
    store.change(change).wait().map(drop)
}

/// Refuses one key more than a log may have: those who check it look at no more, and would not know the last one.
pub fn check_room(store: &dyn Store) -> Result<(), StoreError> {
    if keys(store)?.len() < KEYS_MAX {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "the log has had {KEYS_MAX} keys, as many as it may; keep this state directory, and begin another one"
    )))
}

/// Notes the key if the log does not name it as the last one. Asked again, it does nothing.
pub fn enrol(store: &dyn Store, identity: &DeviceKey, now: Timestamp) -> Result<(), StoreError> {
    let last = keys(store)?.pop();
    if last.as_ref().is_some_and(|last| last.key_id == identity.key_id()) {
        return keep(store);
    }
    check_room(store)?;
    if let Some(last) = &last {
        tracing::warn!(
            key_id = identity.key_id(),
            before = last.key_id,
            "the log goes on with a key that the one before it did not sign; whoever checks it will be told"
        );
    }
    let entry = identity.key_entry(None, last.map(|last| last.key_id), now);
    store.note(KEYS, LogEntry::Key(entry).bytes()).wait()?;
    keep(store)
}

/// Notes that `new` signs from now on, by the word of both.
pub fn succeed(
    store: &dyn Store,
    old: &DeviceKey,
    new: &DeviceKey,
    now: Timestamp,
) -> Result<KeyEntry, StoreError> {
    let entry = new.key_entry(Some(old), Some(old.key_id()), now);
    store.note(KEYS, LogEntry::Key(entry.clone()).bytes()).wait()?;
    keep(store)?;
    Ok(entry)
}

/// The last head, if there is one that can be read.
pub fn last_head(store: &dyn Store) -> Result<Option<(u64, LogHead)>, StoreError> {
    let found = store.last_note(HEADS)?;
    Ok(found.and_then(|note| {
        let head = serde_json::from_slice(note.body.as_deref()?).ok()?;
        Some((note.index, head))
    }))
}

/// Signs and notes a head, unless nothing was added and nothing has expired since the last one; that is the answer then.
pub async fn head(parts: &Parts) -> Result<LogHead, StoreError> {
    sign_head(&*parts.store, &parts.identity, &*parts.clock).await
}

/// The same, without a pipeline.
pub async fn sign_head(
    store: &dyn Store,
    identity: &Identity,
    clock: &dyn Clock,
) -> Result<LogHead, StoreError> {
    let _one = identity.one_head().await;
    let standing = store.log()?;
    if let Some((index, last)) = last_head(store)?
        && index + 1 == standing.size
        && last.size == index
        && last.kept_from == standing.kept_from
    {
        return Ok(last);
    }
    let signing = identity.signing().await;
    let head = signing.head(&standing, clock.now());
    store.note(HEADS, LogEntry::Head(head.clone()).bytes()).await?;
    Ok(head)
}

/// The proof that a receipt is in the log, under a head that covers it.
pub async fn proof(
    store: &dyn Store,
    identity: &Identity,
    clock: &dyn Clock,
    receipt: &ReceiptId,
) -> Result<Option<InclusionProof>, StoreError> {
    let Some(index) = store.log_place(receipt)? else {
        return Ok(None);
    };
    let head = match last_head(store)? {
        Some((_, head)) if head.size > index => head,
        Some(_) | None => sign_head(store, identity, clock).await?,
    };
    let stored = store.log_entries(index, 1)?;
    let Some(LogLine {
        entry: Some(entry), ..
    }) = stored.first().map(line).transpose()?
    else {
        return Ok(None);
    };
    Ok(Some(InclusionProof {
        proof: 1,
        index,
        entry,
        path: store.log_inclusion(index, head.size)?,
        keys: keys(store)?,
        head,
    }))
}

/// What was known later about a receipt, in order.
pub fn amendments(store: &dyn Store, receipt: &ReceiptId) -> Result<Vec<AmendmentEntry>, StoreError> {
    let notes = store.notes(receipt.as_str(), 0, AMENDMENTS_MAX)?;
    Ok(notes
        .iter()
        .filter_map(|note| serde_json::from_slice(note.body.as_deref()?).ok())
        .collect())
}

pub async fn amend(
    store: &dyn Store,
    identity: &Identity,
    mut amendment: AmendmentEntry,
) -> Result<AmendmentEntry, StoreError> {
    let signing = identity.signing().await;
    signing.sign_amendment(&mut amendment);
    let about = amendment.receipt_id.to_string();
    let bytes = LogEntry::Amendment(Box::new(amendment.clone())).bytes();
    store.note(&about, bytes).await?;
    Ok(amendment)
}
