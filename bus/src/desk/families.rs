//! Compare-and-swap on families.

use super::Desk;
use super::topics::index_damaged;
use crate::error::StoreError;
use crate::keys::{self, EntryAt};
use crate::limits::FAMILY_ENTRIES_MAX;
use crate::names::{FamilyName, TopicName};
use crate::record::{EventRecord, Payload, Record};
use crate::types::families::{Changed, Expect};
use crate::types::groups::LeaseId;

/// A swap with its value sealed, if it is to be sealed. `None` deletes.
pub(crate) struct DraftSwap {
    pub(crate) family: FamilyName,
    pub(crate) key: String,
    pub(crate) expect: Expect,
    pub(crate) value: Option<Payload>,
}

pub(crate) struct DraftChange {
    pub(crate) swaps: Vec<DraftSwap>,
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) events: Vec<(TopicName, EventRecord)>,
}

impl Desk<'_> {
    pub(crate) fn change(&mut self, change: DraftChange) -> Result<Changed, StoreError> {
        let current = self.check_swaps(&change.swaps)?;
        let held = change
            .leases
            .iter()
            .map(|lease| self.held(*lease))
            .collect::<Result<Vec<_>, _>>()?;
        if !change.events.is_empty() {
            self.admit_new_work()?;
        }
        for (topic, event) in &change.events {
            self.check_topic(topic)?;
            self.check_epoch(&event.body)?;
        }
        let mut changed = Changed::default();
        for (swap, current) in change.swaps.into_iter().zip(current) {
            changed.versions.push(self.swap(swap, current.is_some())?);
        }
        for lease in &held {
            self.finish(lease)?;
        }
        for (topic, event) in change.events {
            changed.offsets.push(self.append(&topic, event)?.offset);
        }
        Ok(changed)
    }

    fn check_swaps(&self, swaps: &[DraftSwap]) -> Result<Vec<Option<u64>>, StoreError> {
        let mut versions = Vec::with_capacity(swaps.len());
        let mut created = 0;
        for (nth, swap) in swaps.iter().enumerate() {
            if swaps[..nth]
                .iter()
                .any(|other| other.family == swap.family && other.key == swap.key)
            {
                return Err(StoreError::Invalid("a change names the same entry twice".into()));
            }
            let current = self.entry_at(&swap.family, &swap.key)?.map(|entry| entry.version);
            let holds = match swap.expect {
                Expect::Absent => current.is_none(),
                Expect::Version(version) => current == Some(version),
                Expect::Any => true,
            };
            if !holds {
                return Err(StoreError::VersionMismatch { current });
            }
            if let Some(value) = &swap.value {
                self.check_epoch(value)?;
                created += usize::from(current.is_none());
            }
            versions.push(current);
        }
        let size = usize::try_from(self.fold.entries)
            .unwrap_or(usize::MAX)
            .saturating_add(created);
        if created > 0 && size > FAMILY_ENTRIES_MAX {
            return Err(StoreError::TooLarge {
                what: "number of entries",
                size,
                max: FAMILY_ENTRIES_MAX,
            });
        }
        Ok(versions)
    }

    fn swap(&mut self, swap: DraftSwap, exists: bool) -> Result<Option<u64>, StoreError> {
        let DraftSwap {
            family, key, value, ..
        } = swap;
        match value {
            Some(value) => {
                let version = self.fold.next_version;
                self.emit(Record::EntryPut {
                    family,
                    key,
                    version,
                    created: !exists,
                    value,
                })?;
                Ok(Some(version))
            }
            None => {
                if exists {
                    self.emit(Record::EntryDeleted { family, key })?;
                }
                Ok(None)
            }
        }
    }

    pub(crate) fn entry_at(&self, family: &FamilyName, key: &str) -> Result<Option<EntryAt>, StoreError> {
        let found = self.view().get(&keys::entry(family, key))?;
        found
            .map(|bytes| EntryAt::decode(&bytes))
            .transpose()
            .map_err(|error| index_damaged(&error))
    }
}
