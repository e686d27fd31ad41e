//! The device's own entries in the log: its keys, the heads that it signs, and amendments of receipts.
//!
//! A head is itself an entry, so every later head covers it; with a copy of a head anybody can check the log against it.

use std::collections::BTreeMap;

use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, Store, StoreError, StoredLogEntry, Swap};
use effectd_contracts::json::parse_stored;
use effectd_contracts::limits::LOG_KEYS_MAX;
use effectd_contracts::{
    AmendmentEntry, Clock, Event, InclusionProof, Judgement, KeyEntry, LogEntry, LogHead, LogLine, Receipt,
    ReceiptId, Timestamp, Topic,
};
use serde_json::Value;

use crate::limits::AMENDMENTS_MAX;
use crate::services::signer::{DeviceKey, Identity};
use crate::stored::{clear_event, swap_all};

pub const KEYS: &str = "key";
pub const HEADS: &str = "head";

pub fn line(stored: &StoredLogEntry) -> Result<LogLine, StoreError> {
    Ok(LogLine {
        index: stored.index,
        hash: stored.hash,
        entry: stored.body.as_deref().map(|body| read(stored.index, body)).transpose()?,
    })
}

fn read(index: u64, body: &[u8]) -> Result<Value, StoreError> {
    parse_stored(body, body.len()).map_err(|error| StoreError::Damaged {
        what: format!("entry {index} of the log cannot be read: {error}"),
        advice: "run `effectd store check`",
    })
}

/// All keys in the log, in order. Each is also stored beside the log, since retention drops entries.
pub fn keys(store: &dyn Store) -> Result<Vec<KeyEntry>, StoreError> {
    let mut found = BTreeMap::new();
    for entry in store.entries(&family()?, "", None, LOG_KEYS_MAX)?.entries {
        if let (Ok(index), Some(bytes)) = (entry.key.parse::<u64>(), entry.value.bytes()) {
            found.insert(index, bytes.to_vec());
        }
    }
    for note in store.notes(KEYS, 0, LOG_KEYS_MAX)? {
        found.extend(note.body.map(|body| (note.index, body)));
    }
    let read = found.values().filter_map(|bytes| serde_json::from_slice(bytes).ok());
    Ok(read.collect())
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("log-keys")
}

/// Copies the keys that are in the log to entries beside it.
fn copy_keys(store: &dyn Store) -> Result<(), StoreError> {
    let mut swaps = Vec::new();
    for note in store.notes(KEYS, 0, LOG_KEYS_MAX)? {
        let key = format!("{:020}", note.index);
        if let Some(body) = note.body
            && store.entry(&family()?, &key)?.is_none()
        {
            swaps.push(Swap {
                family: family()?,
                key,
                expect: Expect::Any,
                change: KvChange::Put(NewBody::Clear(body)),
            });
        }
    }
    if swaps.is_empty() {
        return Ok(());
    }
    swap_all(store, swaps).wait().map(drop)
}

/// Fails if the log has as many keys as a verifier reads.
pub fn check_room(store: &dyn Store) -> Result<(), StoreError> {
    if keys(store)?.len() < LOG_KEYS_MAX {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "the log has had {LOG_KEYS_MAX} keys, which is the maximum; keep this state directory and start a new one"
    )))
}

/// Adds the key to the log, unless it is already the last key there.
pub fn enrol(store: &dyn Store, identity: &DeviceKey, now: Timestamp) -> Result<(), StoreError> {
    let last = keys(store)?.pop();
    if last.as_ref().is_some_and(|last| last.key_id == identity.key_id()) {
        return copy_keys(store);
    }
    check_room(store)?;
    if let Some(last) = &last {
        tracing::warn!(
            key_id = identity.key_id(),
            before = last.key_id,
            "the log continues with a key that its predecessor did not sign; verification reports this"
        );
    }
    let entry = identity.key_entry(None, last.map(|last| last.key_id), now);
    store.note(KEYS, LogEntry::Key(entry).bytes()).wait()?;
    copy_keys(store)
}

/// Adds the key `new`, signed by both keys: `new` signs from now on.
pub fn succeed(
    store: &dyn Store,
    old: &DeviceKey,
    new: &DeviceKey,
    now: Timestamp,
) -> Result<KeyEntry, StoreError> {
    let entry = new.key_entry(Some(old), Some(old.key_id()), now);
    store.note(KEYS, LogEntry::Key(entry.clone()).bytes()).wait()?;
    copy_keys(store)?;
    Ok(entry)
}

/// The last head, if it can be read.
pub fn last_head(store: &dyn Store) -> Result<Option<(u64, LogHead)>, StoreError> {
    let found = store.last_note(HEADS)?;
    Ok(found.and_then(|note| {
        let head = serde_json::from_slice(note.body.as_deref()?).ok()?;
        Some((note.index, head))
    }))
}

/// Signs a head and adds it to the log. Returns the last head if the log is unchanged and no body has been dropped since.
pub async fn head(store: &dyn Store, identity: &Identity, clock: &dyn Clock) -> Result<LogHead, StoreError> {
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

/// The inclusion proof of a receipt, under a head that covers it.
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
        Some(_) | None => head(store, identity, clock).await?,
    };
    let stored = store.log_entries(index, 1)?;
    let Some(LogLine { entry: Some(entry), .. }) = stored.first().map(line).transpose()? else {
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

/// The amendments of a receipt, in order.
pub fn amendments(store: &dyn Store, receipt: &ReceiptId) -> Result<Vec<AmendmentEntry>, StoreError> {
    let notes = store.notes(receipt.as_str(), 0, AMENDMENTS_MAX)?;
    Ok(notes.iter().filter_map(|note| serde_json::from_slice(note.body.as_deref()?).ok()).collect())
}

/// Signs an amendment, adds it to the log and publishes it, in one block. `build` gets the earlier amendments, to which it adds.
pub async fn amend<E: From<StoreError>>(
    store: &dyn Store,
    identity: &Identity,
    receipt: &Receipt,
    build: impl FnOnce(&[AmendmentEntry]) -> Result<AmendmentEntry, E>,
) -> Result<AmendmentEntry, E> {
    // One at a time: no other amendment comes between the earlier ones and this one.
    let _one = identity.one_head().await;
    let mut all = amendments(store, &receipt.receipt_id)?;
    let before = all.last().map_or(&receipt.reward, |last| &last.reward).scalar;
    let mut amendment = build(&all)?;
    let signing = identity.signing().await;
    signing.sign_amendment(&mut amendment);
    all.push(amendment.clone());
    let event = Event::amended(receipt, &amendment, Judgement::of(&all), before);
    let entry = LogEntry::Amendment(Box::new(amendment.clone())).bytes();
    let change = Change {
        notes: vec![(receipt.receipt_id.to_string(), entry)],
        events: vec![(Topic::Amendments.into(), clear_event(&event, Some(&receipt.action_id)))],
        ..Change::default()
    };
    store.change(change).await?;
    Ok(amendment)
}
