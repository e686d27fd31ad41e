//! Quarantined artifacts: an operator has decided that nobody may read them.
//!
//! An artifact's id is a digest of its content, so the content is quarantined in every space. It stays listed, and quota and
//! retention remove it like any other artifact. Each change is an event on the topic `ARTIFACTS`.

use effectd_bus::{Change, Expect, FamilyName, Store, StoreError, Swap};
use effectd_contracts::{ActionId, ArtifactChange, ArtifactData, Clock, Event, SpaceId, Topic};
use serde::{Deserialize, Serialize};

use crate::limits::QUARANTINE_REASON_BYTES_MAX;
use crate::stored::{self, read_json};

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
    /// In the order of the artifacts' ids.
    pub artifacts: Vec<Quarantined>,
    /// The id after which the next page begins; none on the last page.
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
    Ok(entry.as_ref().and_then(read_json))
}

pub fn list(store: &dyn Store, after: Option<&str>, max: usize) -> Result<QuarantinePage, StoreError> {
    let page = store.entries(&family()?, "", after, max)?;
    Ok(QuarantinePage { artifacts: page.entries.iter().filter_map(read_json).collect(), next: page.after })
}

pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), StoreError> {
    if reason.is_some_and(|reason| reason.len() > QUARANTINE_REASON_BYTES_MAX) {
        let why = format!("a reason has at most {QUARANTINE_REASON_BYTES_MAX} bytes");
        return Err(StoreError::Invalid(why));
    }
    Ok(())
}

/// Quarantines an artifact, durably, whether or not it is stored now. A repeat replaces who did it and why.
pub async fn quarantine(
    store: &dyn Store,
    clock: &dyn Clock,
    id: &str,
    by: &str,
    reason: Option<String>,
) -> Result<Quarantined, StoreError> {
    checked(id)?;
    check_reason(reason.as_deref())?;
    let entry = Quarantined {
        artifact_id: id.to_owned(),
        by: by.to_owned(),
        reason: reason.clone(),
        since: clock.now(),
    };
    let data = ArtifactData {
        what: ArtifactChange::Quarantined,
        artifact_id: id.to_owned(),
        by: by.to_owned(),
        reason,
    };
    let put = stored::put(family()?, id, Expect::Any, &entry);
    change(store, clock, put, data).await?;
    Ok(entry)
}

/// Releases an artifact. Returns whether it was quarantined.
pub async fn release(store: &dyn Store, clock: &dyn Clock, id: &str, by: &str) -> Result<bool, StoreError> {
    checked(id)?;
    let Some(entry) = store.entry(&family()?, id)? else {
        return Ok(false);
    };
    let data = ArtifactData {
        what: ArtifactChange::Released,
        artifact_id: id.to_owned(),
        by: by.to_owned(),
        reason: None,
    };
    let delete = stored::delete(family()?, id, Expect::Version(entry.version));
    change(store, clock, delete, data).await?;
    Ok(true)
}

/// Writes the change and its event in one block.
async fn change(
    store: &dyn Store,
    clock: &dyn Clock,
    swap: Swap,
    data: ArtifactData,
) -> Result<(), StoreError> {
    let about = ActionId::new(format!("artifact:{}", data.artifact_id))?;
    // The artifact may be stored in several spaces.
    let event = Event::of_change(Topic::Artifacts, data, about, SpaceId::new("*")?, clock.now());
    let changed = store.change(Change {
        swaps: vec![swap],
        events: vec![(Topic::Artifacts.into(), stored::clear_event(&event, None))],
        ..Change::default()
    });
    changed.await.map(drop)
}
