//! From what callers give to what the desk takes: bounds are checked, names hashed and bodies sealed.

use std::collections::BTreeSet;
use std::time::Duration;

use effectd_contracts::{IntentEntry, LogEntry, merkle};

use super::Shared;
use crate::codec::Hash16;
use crate::desk::{DraftChange, DraftClaim, DraftCompletion, DraftSwap, clear, entry_context, sealed};
use crate::error::StoreError;
use crate::keys;
use crate::limits::{
    BODY_BYTES_MAX, COMPLETION_ITEMS_MAX, DELAY_MAX, DETAIL_BYTES_MAX, FAMILY_KEY_BYTES_MAX, LEASE_TTL_MAX,
    LEASE_TTL_MIN, NAME_BYTES_MAX, OPERATION_BYTES_MAX, RESOURCES_MAX,
};
use crate::names::ResourceName;
use crate::record::{Blob, ClaimRecord, EventRecord, Payload, ReceiptRecord};
use crate::types::claims::Claim;
use crate::types::events::{NewBody, NewEvent};
use crate::types::families::{Change, EntryChange};
use crate::types::groups::Settlement;
use crate::types::receipts::Completion;
use crate::vault::Kind;

pub(super) fn bound(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    if size > max {
        Err(StoreError::TooLarge { what, size, max })
    } else {
        Ok(())
    }
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), StoreError> {
    if (LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "a lease lasts from {LEASE_TTL_MIN:?} to {:?}",
        LEASE_TTL_MAX
    )))
}

pub(super) fn check_settlement(how: &Settlement) -> Result<(), StoreError> {
    let delay = |delay: &Duration| {
        let fits = *delay <= DELAY_MAX;
        if fits {
            Ok(())
        } else {
            Err(StoreError::Invalid(format!("a delay is at most {:?}", DELAY_MAX)))
        }
    };
    match how {
        Settlement::Ack => Ok(()),
        Settlement::Nack { delay: after, detail } => {
            delay(after)?;
            bound("detail", detail.len(), DETAIL_BYTES_MAX)
        }
        Settlement::Defer { delay: after } => delay(after),
        Settlement::Term { code, detail } => {
            bound("code", code.len(), NAME_BYTES_MAX)?;
            bound("detail", detail.len(), DETAIL_BYTES_MAX)
        }
    }
}

pub(super) fn hash_resources(resources: &[ResourceName]) -> Result<Vec<Hash16>, StoreError> {
    bound("resources", resources.len(), RESOURCES_MAX)?;
    Ok(resources
        .iter()
        .map(|name| Hash16::of(&[name.as_str().as_bytes()]))
        .collect())
}

/// The resources and all that they lie beneath, each once.
fn above(resources: &[ResourceName]) -> BTreeSet<&str> {
    let names = resources.iter().flat_map(ResourceName::with_those_above);
    names.collect()
}

/// What carries these away when it is disturbed, while they are being worked on.
fn hash_above(resources: &[ResourceName]) -> Vec<Hash16> {
    let names = above(resources).into_iter();
    names.map(|name| Hash16::of(&[name.as_bytes()])).collect()
}

/// What these are lost with when they are done already: whatever changes them or carries them away, and whatever comes in the
/// place of what they lay in.
pub(super) fn hash_lost_with(resources: &[ResourceName]) -> Vec<Hash16> {
    let mut hashes = hash_above(resources);
    hashes.extend(resources.iter().map(hash_changed));
    hashes.extend(above(resources).into_iter().map(hash_appeared));
    hashes
}

/// Told apart from the resource itself, since what lies beneath it is not concerned.
fn hash_changed(name: &ResourceName) -> Hash16 {
    Hash16::of(&[b"changed", name.as_str().as_bytes()])
}

/// Told apart from the resource itself, since it concerns fewer.
fn hash_appeared(name: &str) -> Hash16 {
    Hash16::of(&[b"appeared", name.as_bytes()])
}

impl Shared {
    pub(super) fn seal(&self, kind: Kind, context: &str, bytes: &[u8]) -> Result<Payload, StoreError> {
        self.vault
            .seal(self.clock.now(), kind, context, bytes)
            .map(sealed)
    }

    pub(super) fn draft_body(&self, kind: Kind, context: &str, body: NewBody) -> Result<Payload, StoreError> {
        bound("body", body.bytes().len(), BODY_BYTES_MAX)?;
        match body {
            NewBody::Clear(bytes) => Ok(clear(bytes)),
            NewBody::Sealed(bytes) => self.seal(kind, context, &bytes),
        }
    }

    pub(super) fn draft_event(&self, event: NewEvent) -> Result<EventRecord, StoreError> {
        let NewEvent {
            event_id,
            time,
            trace_id,
            action_id,
            body,
        } = event;
        let context = action_id.as_ref().map_or(event_id.as_str(), |id| id.as_str());
        let body = self.draft_body(Kind::Event, context, body)?;
        Ok(EventRecord {
            event_id,
            time_ms: time.as_millisecond(),
            trace_id,
            action_id,
            body,
        })
    }

    pub(super) fn draft_events(&self, events: Vec<NewEvent>) -> Result<Vec<EventRecord>, StoreError> {
        events.into_iter().map(|event| self.draft_event(event)).collect()
    }

    pub(super) fn draft_claim(&self, claim: Claim) -> Result<DraftClaim, StoreError> {
        bound("intent", claim.intent.len(), BODY_BYTES_MAX)?;
        let entry = IntentEntry::new(
            claim.action_id.clone(),
            &claim.action_digest,
            claim.asker.space.clone(),
        );
        Ok(DraftClaim {
            leaf: merkle::leaf(&LogEntry::Intent(entry).bytes()),
            above: hash_lost_with(&claim.depends),
            record: ClaimRecord {
                key: claim.key.as_ref().map(|key| keys::asked_hash(&claim.asker, key)),
                resources: hash_resources(&claim.resources)?,
                intent: self.seal(Kind::Intent, claim.action_id.as_str(), &claim.intent)?,
                action_id: claim.action_id,
                action_digest: claim.action_digest,
                space: claim.asker.space,
                params_digest: claim.params_digest,
                fence: 0,
            },
        })
    }

    pub(super) fn draft_completion(
        &self,
        completion: Completion,
    ) -> Result<(usize, DraftCompletion), StoreError> {
        let Completion {
            receipt,
            events,
            fence,
            leases,
            letter,
            retire,
            disturbed,
            appeared,
            depends,
            links,
        } = completion;
        bound("receipt", receipt.body.len(), BODY_BYTES_MAX)?;
        let settled =
            leases.len() + links.iter().map(|link| 1 + link.leases.len()).sum::<usize>() + events.len();
        bound(
            "leases, links and events of one completion",
            settled,
            COMPLETION_ITEMS_MAX,
        )?;
        if let Some(letter) = &letter {
            bound("code", letter.code.len(), NAME_BYTES_MAX)?;
            bound("detail", letter.detail.len(), DETAIL_BYTES_MAX)?;
            bound("payload", letter.payload.len(), BODY_BYTES_MAX)?;
        }
        if links.iter().any(|link| link.receipt_id != receipt.receipt_id) {
            return Err(StoreError::Invalid(
                "a completion links only to its own receipt".into(),
            ));
        }
        let of_events: usize = events.iter().map(|(_, event)| event.body.bytes().len()).sum();
        let bytes = receipt.body.len() + of_events + letter.as_ref().map_or(0, |letter| letter.payload.len());
        bound("bytes in one completion", bytes, OPERATION_BYTES_MAX)?;
        let events = events
            .into_iter()
            .map(|(topic, event)| Ok((topic, self.draft_event(event)?)));
        let draft = DraftCompletion {
            leaf: merkle::leaf(&receipt.body),
            events: events.collect::<Result<_, StoreError>>()?,
            fence,
            leases,
            letter,
            above: hash_above(&depends),
            depends: hash_resources(&depends)?,
            disturbed: {
                let mut disturbed = hash_resources(&disturbed)?;
                bound("resources", retire.len(), RESOURCES_MAX)?;
                disturbed.extend(retire.iter().map(hash_changed));
                disturbed.extend(appeared.iter().map(|name| hash_appeared(name.as_str())));
                disturbed
            },
            links: links
                .into_iter()
                .map(|link| (link.action_id, link.action_digest, link.leases))
                .collect(),
            receipt: ReceiptRecord {
                ordinal: 0,
                receipt_id: receipt.receipt_id,
                action_id: receipt.action_id,
                action_digest: receipt.action_digest,
                tool_id: receipt.tool_id,
                subject_id: receipt.subject_id,
                status: receipt.status,
                key: receipt
                    .key
                    .as_ref()
                    .map(|key| keys::key_hash(&receipt.space_id, key)),
                space_id: receipt.space_id,
                params_digest: receipt.params_digest,
                time_ms: receipt.time.as_millisecond(),
                body_hash: Hash16::of(&[&receipt.body]),
                body: Blob::Draft(receipt.body),
            },
        };
        Ok((bytes, draft))
    }

    pub(super) fn draft_change(&self, change: Change) -> Result<(usize, DraftChange), StoreError> {
        let Change {
            swaps,
            leases,
            events,
        } = change;
        bound(
            "swaps, leases and events of one change",
            swaps.len() + leases.len() + events.len(),
            COMPLETION_ITEMS_MAX,
        )?;
        let mut bytes: usize = events.iter().map(|(_, event)| event.body.bytes().len()).sum();
        let mut drafts = Vec::with_capacity(swaps.len());
        for swap in swaps {
            bound("entry's key", swap.key.len(), FAMILY_KEY_BYTES_MAX)?;
            let value = match swap.change {
                EntryChange::Delete => None,
                EntryChange::Put(body) => {
                    bytes += body.bytes().len();
                    Some(self.draft_body(Kind::Entry, &entry_context(&swap.family, &swap.key), body)?)
                }
            };
            drafts.push(DraftSwap {
                family: swap.family,
                key: swap.key,
                expect: swap.expect,
                value,
            });
        }
        bound("bytes in one change", bytes, OPERATION_BYTES_MAX)?;
        let events = events
            .into_iter()
            .map(|(topic, event)| Ok((topic, self.draft_event(event)?)));
        let events = events.collect::<Result<_, StoreError>>()?;
        Ok((
            bytes,
            DraftChange {
                swaps: drafts,
                leases,
                events,
            },
        ))
    }
}
