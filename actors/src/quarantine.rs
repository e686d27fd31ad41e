//! Artifacts that are not handed out: an operator has taken them aside.
//!
//! An artifact's id follows from its content, so what is quarantined is the content, wherever it is kept or comes up again. It
//! stays listed, and goes by quota and retention like any other. Kept in the Store, so that a restart changes nothing; each
//! change is an event on the topic `ARTIFACTS`.

use effectd_bus::{Change, EntryChange, Expect, FamilyName, NewBody, NewEvent, Store, StoreError, Swap};
use effectd_contracts::{ActionId, ArtifactData, ArtifactNews, Clock, Event, SpaceId, Topic};
use serde::{Deserialize, Serialize};

use crate::limits::QUARANTINE_REASON_BYTES_MAX;

/// An artifact that is not handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantined {
    pub artifact_id: String,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub since: effectd_contracts::Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinePage {
    /// The artifacts, in the order of their ids.
    pub artifacts: Vec<Quarantined>,
    /// The id to go on after; nothing when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("quarantine")
}

fn checked(id: &str) -> Result<(), StoreError> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if id.len() == 64 && id.bytes().all(hex) {
        return Ok(());
    }
    Err(StoreError::Invalid(
        "an artifact's id is 64 hex digits; `effectd artifacts list RECEIPT` shows those of a receipt"
            .to_owned(),
    ))
}

pub fn is_quarantined(store: &dyn Store, id: &str) -> Result<bool, StoreError> {
    Ok(store.entry(&family()?, id)?.is_some())
}

pub fn one(store: &dyn Store, id: &str) -> Result<Option<Quarantined>, StoreError> {
    checked(id)?;
    let entry = store.entry(&family()?, id)?;
    Ok(entry.and_then(|entry| serde_json::from_slice(entry.value.bytes()?).ok()))
}

pub fn list(store: &dyn Store, after: Option<&str>, max: usize) -> Result<QuarantinePage, StoreError> {
    let page = store.entries(&family()?, "", after, max)?;
    let read = |entry: &effectd_bus::Entry| serde_json::from_slice(entry.value.bytes()?).ok();
    Ok(QuarantinePage {
        artifacts: page.entries.iter().filter_map(read).collect(),
        next: page.after,
    })
}

/// Takes an artifact aside, durably, whether or not it is kept right now. Doing it again changes who and why.
pub async fn quarantine(
    store: &dyn Store,
    clock: &dyn Clock,
    id: &str,
    by: &str,
    reason: Option<String>,
) -> Result<Quarantined, StoreError> {
    checked(id)?;
    if reason
        .as_ref()
        .is_some_and(|reason| reason.len() > QUARANTINE_REASON_BYTES_MAX)
    {
        let why = format!("a reason has at most {QUARANTINE_REASON_BYTES_MAX} bytes");
        return Err(StoreError::Invalid(why));
    }
    let entry = Quarantined {
        artifact_id: id.to_owned(),
        by: by.to_owned(),
        reason: reason.clone(),
        since: clock.now(),
    };
    let bytes = serde_json::to_vec(&entry).unwrap_or_default();
    let data = ArtifactData {
        what: ArtifactNews::Quarantined,
        artifact_id: id.to_owned(),
        by: by.to_owned(),
        reason,
    };
    change(
        store,
        clock,
        EntryChange::Put(NewBody::Clear(bytes)),
        Expect::Any,
        data,
    )
    .await?;
    Ok(entry)
}

/// Hands an artifact out again. Says whether it was quarantined.
pub async fn release(store: &dyn Store, clock: &dyn Clock, id: &str, by: &str) -> Result<bool, StoreError> {
    checked(id)?;
    let Some(entry) = store.entry(&family()?, id)? else {
        return Ok(false);
    };
    let data = ArtifactData {
        what: ArtifactNews::Released,
        artifact_id: id.to_owned(),
        by: by.to_owned(),
        reason: None,
    };
    let expect = Expect::Version(entry.version);
    change(store, clock, EntryChange::Delete, expect, data).await?;
    Ok(true)
}

/// The change and its event, in one block.
async fn change(
    store: &dyn Store,
    clock: &dyn Clock,
    change: EntryChange,
    expect: Expect,
    data: ArtifactData,
) -> Result<(), StoreError> {
    let swap = Swap {
        family: family()?,
        key: data.artifact_id.clone(),
        expect,
        change,
    };
    let invalid = |error: effectd_contracts::IdInvalid| StoreError::Invalid(error.to_string());
    let about = ActionId::new(format!("artifact:{}", data.artifact_id)).map_err(invalid)?;
    // It may be kept in several spaces.
    let space = SpaceId::new("*").map_err(invalid)?;
    let event = Event::artifact(data, about, space, clock.now());
    let event = NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: None,
        body: NewBody::Clear(serde_json::to_vec(&event).unwrap_or_default()),
    };
    let changed = store.change(Change {
        swaps: vec![swap],
        events: vec![(Topic::Artifacts.into(), event)],
        ..Change::default()
    });
    changed.await.map(drop)
}
