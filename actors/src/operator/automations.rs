//! Saves, pauses, archives and deletes automations.
//!
//! A definition is on disk before the record that names its version, and the version before it goes afterwards. So a record always
//! has its definition, whenever the process dies; a definition without a record is overwritten by the next save.

use std::sync::Arc;

use effectd_bus::{BlobError, BlobKind, Cause, Expect, FamilyName, Store, StoreError};
use effectd_contracts::{
    Automation, AutomationId, AutomationStatus, Digest, Operation, OrgId, Principal, ReceiptId, SpaceId,
};
use serde_json::{Map, Value, json};

use super::operations::recorded;
use super::service::{blocking, object};
use crate::approvals::repository::{Step, Versioned, read};
use crate::failpoint::hit_idle;
use crate::limits::{AUTOMATIONS_MAX, AUTOMATIONS_PAGE, DEFINITION_BYTES_MAX};
use crate::services::Services;
use crate::services::automations::{AUTOMATIONS, blob_name, remove_until};
use crate::stored::entries;

/// A definition to save. Whether it is a good one, the caller knows.
#[derive(Debug, Clone)]
pub struct Saving {
    /// The automation; by a new id if it is new.
    pub automation_id: AutomationId,
    pub space_id: SpaceId,
    /// Whether a new automation runs at once. A later version leaves the status as it is.
    pub status: AutomationStatus,
    pub definition: Arc<[u8]>,
}

pub(super) fn known(store: &dyn Store, id: &AutomationId) -> Result<Versioned<Automation>, StoreError> {
    let entry = store.entry(&FamilyName::new(AUTOMATIONS)?, id.as_str())?;
    let unknown = || StoreError::NoSuchName(Cause::new(format!("there is no automation {id}")));
    read(&entry.ok_or_else(unknown)?)
}

/// The record that a save would write, and the version of the entry that it replaces. Blocks.
pub fn checked(
    services: &Services,
    new: &Saving,
    by: &Principal,
) -> Result<(Automation, Option<u64>), StoreError> {
    let (store, now) = (&*services.store, services.clock.now());
    let (size, max) = (new.definition.len(), DEFINITION_BYTES_MAX);
    if size > max {
        return Err(StoreError::TooLarge { what: "size of a definition in bytes", size, max });
    }
    let digest = services.identity.keyed(&Digest::of(&new.definition));
    let entry = store.entry(&FamilyName::new(AUTOMATIONS)?, new.automation_id.as_str())?;
    if let Some(entry) = entry {
        let Versioned { value: known, version } = read::<Automation>(&entry)?;
        if known.created_by != *by {
            return Err(StoreError::StateConflict(format!(
                "the automation acts as {}, so nobody else saves a version of it: export it, and import it as your own",
                known.created_by
            )));
        }
        if known.space_id != new.space_id {
            return Err(StoreError::StateConflict(format!("the automation acts in {}", known.space_id)));
        }
        let next = known.version + u64::from(known.digest != digest);
        return Ok((Automation { version: next, digest, updated_at: now, ..known }, Some(version)));
    }
    let no_org = || {
        let why = format!("the policy has no organisation of {}", new.space_id);
        StoreError::NoSuchName(Cause::new(why))
    };
    let policy = services.policy();
    let org = OrgId::new(policy.org_of(&new.space_id).ok_or_else(no_org)?)?;
    let size = 1 + entries(store, &FamilyName::new(AUTOMATIONS)?, AUTOMATIONS_PAGE).count();
    if size > AUTOMATIONS_MAX {
        let what = "number of automations (delete archived ones)";
        return Err(StoreError::TooLarge { what, size, max: AUTOMATIONS_MAX });
    }
    let automation = Automation {
        automation_id: new.automation_id.clone(),
        org,
        space_id: new.space_id.clone(),
        created_by: by.clone(),
        status: new.status,
        version: 1,
        digest,
        created_at: now,
        updated_at: now,
    };
    Ok((automation, None))
}

/// What a save would do, for people; `None` if the same definition is saved already.
pub fn summary(would: &Automation, replaces: Option<&Automation>) -> Option<String> {
    let Automation { automation_id, org, space_id, status, version, .. } = would;
    match replaces {
        Some(known) if known.version == *version => None,
        Some(known) => Some(format!("automation {automation_id}, version {} -> {version}", known.version)),
        None => Some(format!("a new automation of {org} in {space_id}, {}", status.as_str())),
    }
}

/// Saves a definition. Returns the record, and the receipt if anything changed.
pub async fn save(
    services: &Arc<Services>,
    new: Saving,
    (by, reason): (&Principal, Option<String>),
) -> Result<(Automation, Option<ReceiptId>), StoreError> {
    // Two saves of one version would overwrite each other's definition.
    let _lock = services.connections.changes.lock().await;
    let (would, replaces) = blocking(services, {
        let (new, by) = (new.clone(), by.clone());
        move |services| checked(services, &new, &by)
    })
    .await?;
    if replaces.is_some() && known(&*services.store, &new.automation_id)?.value.version == would.version {
        return Ok((would, None));
    }
    let operation = Operation::SaveAutomation {
        automation_id: would.automation_id.clone(),
        space_id: would.space_id.clone(),
        version: would.version,
        definition: format!("hmac-sha256:{}", would.digest.hex()),
        status: would.status,
    };
    let work = async {
        let (automation, definition) = (would.clone(), new.definition.clone());
        blocking(services, move |services| put(services, &automation, &definition)).await?;
        hit_idle("automation.stored").await;
        let mut step = Step::default();
        let expect = replaces.map_or(Expect::Absent, Expect::Version);
        step.put(AUTOMATIONS, would.automation_id.as_str(), expect, &would)?;
        step.commit(&*services.store).await?;
        hit_idle("automation.saved").await;
        let automation = would.clone();
        blocking(services, move |services| remove(services, &automation, automation.version - 1)).await?;
        Ok((would, Some(Map::new())))
    };
    recorded(services, &operation, (by, reason), work).await
}

fn put(services: &Services, of: &Automation, definition: &[u8]) -> Result<(), StoreError> {
    let (blobs, kind) = (&services.files.blobs, BlobKind::Definitions);
    let name = blob_name(&of.automation_id, of.version);
    // Of a save that was cut short.
    let removed = blobs.remove(kind, &of.space_id, &name);
    let stored = removed.and_then(|()| blobs.put(kind, &of.space_id, &name, definition));
    stored.map_err(|error| {
        if error == BlobError::Full {
            let why = "the space has no room for another definition: delete archived automations";
            return StoreError::StateConflict(why.to_owned());
        }
        StoreError::unavailable_by("the definition could not be stored", error)
    })
}

fn remove(services: &Services, of: &Automation, newest: u64) -> Result<(), StoreError> {
    let removed = remove_until(&services.files.blobs, of, newest);
    removed.map_err(|error| StoreError::unavailable_by("an old definition could not be removed", error))
}

pub(super) async fn set(
    services: &Services,
    id: &AutomationId,
    status: AutomationStatus,
) -> Result<Map<String, Value>, StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: known, version } = known(&*services.store, id)?;
    let changed = Automation { status, updated_at: services.clock.now(), ..known };
    let mut step = Step::default();
    step.put(AUTOMATIONS, id.as_str(), Expect::Version(version), &changed)?;
    step.commit(&*services.store).await?;
    Ok(object(json!({ "version": changed.version })))
}

/// Refuses to delete an automation that is not archived.
pub(super) fn check_delete(
    store: &dyn Store,
    id: &AutomationId,
) -> Result<Versioned<Automation>, StoreError> {
    let found = known(store, id)?;
    if found.value.status != AutomationStatus::Archived {
        let why = format!("archive the automation first: `effectd automations archive {id}`");
        return Err(StoreError::StateConflict(why));
    }
    Ok(found)
}

pub(super) async fn delete(services: &Arc<Services>, id: &AutomationId) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: gone, version } = check_delete(&*services.store, id)?;
    // The definition first: what is cut short here is still listed, and can be deleted again.
    blocking(services, move |services| remove(services, &gone, gone.version)).await?;
    let mut step = Step::default();
    step.delete(AUTOMATIONS, id.as_str(), Expect::Version(version))?;
    step.commit(&*services.store).await.map(drop)
}
