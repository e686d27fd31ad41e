//! Compare-and-swap on family entries.

use effectd_contracts::Digest;

use super::Batch;
use crate::codec::Hash16;
use crate::error::{StoreError, bound};
use crate::index::schema::{self, EntryAt};
use crate::journal::record::{Ending, EventRecord, Payload, Record};
use crate::limits::FAMILY_ENTRIES_MAX;
use crate::names::{FamilyName, TopicName};
use crate::types::groups::LeaseId;
use crate::types::kv::{Changed, Expect};

/// A compare-and-swap with its payload; `None` deletes.
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
    /// What each note is about, its body and its leaf.
    pub(crate) notes: Vec<(Hash16, Vec<u8>, Digest)>,
}

impl Batch<'_> {
    pub(crate) fn change(&mut self, change: DraftChange) -> Result<Changed, StoreError> {
        let current = self.check_swaps(&change.swaps)?;
        let held = change.leases.iter().map(|lease| self.held(*lease)).collect::<Result<Vec<_>, _>>()?;
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
            self.end(lease, Ending::Done)?;
        }
        for (about, body, leaf) in change.notes {
            self.note(about, body, leaf)?;
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
            if swaps[..nth].iter().any(|other| other.family == swap.family && other.key == swap.key) {
                return Err(StoreError::Invalid("a change names the same entry twice".into()));
            }
            let current = self.entry_version(&swap.family, &swap.key)?;
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
        let size = usize::try_from(self.state.entries).unwrap_or(usize::MAX).saturating_add(created);
        if created > 0 {
            bound("number of entries", size, FAMILY_ENTRIES_MAX)?;
        }
        Ok(versions)
    }

    fn swap(&mut self, swap: DraftSwap, exists: bool) -> Result<Option<u64>, StoreError> {
        let DraftSwap { family, key, value, .. } = swap;
        match value {
            Some(value) => {
                let version = self.state.next_version;
                self.emit(Record::EntryPut { family, key, version, created: !exists, value })?;
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

    fn entry_version(&self, family: &FamilyName, key: &str) -> Result<Option<u64>, StoreError> {
        let found = self.view().get(&schema::entry(family, key))?;
        let entry = found.map(|bytes| EntryAt::decode(&bytes)).transpose()?;
        Ok(entry.map(|entry| entry.version))
    }
}
