//! Automations: their records in the Store, and their definitions as sealed blobs.
//!
//! A record is small and in clear; it names no more than ids, a digest and times. [`crate::operator::automations`] changes both.

use effectd_bus::{BlobError, BlobKind, Blobs, FamilyName, Store, StoreError};
use effectd_contracts::{Automation, AutomationId, Digest};

use super::Services;
use crate::stored::{entries_from, page, read_json};

/// Automations by id, in clear.
pub(crate) const AUTOMATIONS: &str = "automations";

pub fn automation(store: &dyn Store, id: &str) -> Result<Option<Automation>, StoreError> {
    let Ok(id) = AutomationId::new(id) else {
        return Ok(None);
    };
    let entry = store.entry(&FamilyName::new(AUTOMATIONS)?, id.as_str())?;
    Ok(entry.as_ref().and_then(read_json))
}

/// One page of those that `sees` selects, the oldest first.
pub fn list(
    store: &dyn Store,
    after: Option<&str>,
    max: usize,
    sees: impl Fn(&Automation) -> bool,
) -> Result<(Vec<Automation>, Option<String>), StoreError> {
    let family = FamilyName::new(AUTOMATIONS)?;
    page(entries_from(store, &family, ("", after), max), max, |entry| Ok(read_json(entry).filter(&sees)))
}

/// The definition of an automation, byte for byte as it was saved.
pub fn definition(services: &Services, of: &Automation) -> Result<Vec<u8>, BlobError> {
    let name = blob_name(&of.automation_id, of.version);
    let content = services.files.blobs.get(BlobKind::Definitions, &of.space_id, &name)?;
    // A save that was cut short may have left another one under this number.
    if services.identity.keyed(&Digest::of(&content)) != of.digest {
        return Err(BlobError::Damaged);
    }
    Ok(content)
}

/// The name of the blob that has this version. It tells nothing about the content.
pub(crate) fn blob_name(id: &AutomationId, version: u64) -> String {
    Digest::of(format!("automation\n{id}\n{version}").as_bytes()).hex()
}

/// Removes this version and those before it that are still there, the newest first.
pub(crate) fn remove_until(blobs: &Blobs, of: &Automation, newest: u64) -> Result<(), BlobError> {
    for version in (1..=newest).rev() {
        let name = blob_name(&of.automation_id, version);
        if !blobs.has(BlobKind::Definitions, &of.space_id, &name) {
            break;
        }
        blobs.remove(BlobKind::Definitions, &of.space_id, &name)?;
    }
    Ok(())
}
