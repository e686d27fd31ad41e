//! Drafts: requests with their bounds checked, names hashed and bodies sealed, in the caller's thread.

use std::time::Duration;

use effectd_contracts::{Clock, IntentEntry, LogEntry, merkle};

use super::claims::DraftClaim;
use super::completions::DraftCompletion;
use super::kv::{DraftChange, DraftSwap};
use super::seal;
use crate::codec::Hash16;
use crate::error::{StoreError, bound};
use crate::index::schema;
use crate::journal::record::{Blob, ClaimRecord, EventRecord, Payload, ReceiptRecord};
use crate::limits::{
    BODY_BYTES_MAX, COMPLETION_ITEMS_MAX, DELAY_MAX, DETAIL_BYTES_MAX, FAMILY_KEY_BYTES_MAX, LEASE_TTL_MAX,
    LEASE_TTL_MIN, NAME_BYTES_MAX, OPERATION_BYTES_MAX, RESOURCES_MAX,
};
use crate::names::{ResourceName, TopicName};
use crate::reads::entry_context;
use crate::state::Derived;
use crate::types::claims::Claim;
use crate::types::events::{NewBody, NewEvent};
use crate::types::groups::Acknowledgement;
use crate::types::kv::{Change, KvChange};
use crate::types::receipts::Completion;
use crate::vault::{Kind, Vault};

pub(crate) fn check_ttl(ttl: Duration) -> Result<(), StoreError> {
    if (LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!("a lease lasts from {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?}")))
}

fn check_delay(delay: Duration) -> Result<(), StoreError> {
    if delay <= DELAY_MAX {
        return Ok(());
    }
    Err(StoreError::Invalid(format!("a delay is at most {DELAY_MAX:?}")))
}

fn check_cause(code: &str, detail: &str) -> Result<(), StoreError> {
    bound("code", code.len(), NAME_BYTES_MAX)?;
    bound("detail", detail.len(), DETAIL_BYTES_MAX)
}

fn hash_resources(resources: &[ResourceName]) -> Result<Vec<Hash16>, StoreError> {
    bound("resources", resources.len(), RESOURCES_MAX)?;
    Ok(resources.iter().map(schema::resource_hash).collect())
}

fn bytes_of<'a>(events: impl IntoIterator<Item = &'a NewEvent>) -> usize {
    events.into_iter().map(|event| event.body.bytes().len()).sum()
}

pub(crate) struct Drafter<'a> {
    pub(crate) vault: &'a Vault,
    pub(crate) clock: &'a dyn Clock,
}

impl Drafter<'_> {
    fn seal(&self, kind: Kind, context: &str, bytes: &[u8]) -> Result<Payload, StoreError> {
        seal(self.vault, self.clock.now(), kind, context, bytes)
    }

    fn body(&self, kind: Kind, context: &str, body: NewBody) -> Result<Payload, StoreError> {
        bound("body", body.bytes().len(), BODY_BYTES_MAX)?;
        match body {
            NewBody::Clear(bytes) => Ok(Payload::clear(bytes)),
            NewBody::Sealed(bytes) => self.seal(kind, context, &bytes),
        }
    }

    pub(crate) fn event(&self, event: NewEvent) -> Result<EventRecord, StoreError> {
        let context = event.action_id.as_ref();
        let context = context.map_or(event.event_id.as_str(), |id| id.as_str());
        Ok(EventRecord {
            body: self.body(Kind::Event, context, event.body)?,
            event_id: event.event_id,
            time_ms: event.time.as_millisecond(),
            trace_id: event.trace_id,
            action_id: event.action_id,
        })
    }

    /// Drafts the events of one topic; returns their size in bytes too.
    pub(crate) fn events(&self, events: Vec<NewEvent>) -> Result<(usize, Vec<EventRecord>), StoreError> {
        let bytes = bytes_of(&events);
        bound("bytes in one publish", bytes, OPERATION_BYTES_MAX)?;
        let events = events.into_iter().map(|event| self.event(event));
        Ok((bytes, events.collect::<Result<_, _>>()?))
    }

    fn topic_events(
        &self,
        events: Vec<(TopicName, NewEvent)>,
    ) -> Result<Vec<(TopicName, EventRecord)>, StoreError> {
        let events = events.into_iter();
        events.map(|(topic, event)| Ok((topic, self.event(event)?))).collect()
    }

    /// The sealed detail of a nack.
    pub(crate) fn acknowledgement(&self, how: &Acknowledgement) -> Result<Option<Payload>, StoreError> {
        match how {
            Acknowledgement::Ack => Ok(None),
            Acknowledgement::Nack { delay, detail } => {
                check_delay(*delay)?;
                bound("detail", detail.len(), DETAIL_BYTES_MAX)?;
                self.seal(Kind::Detail, "nack", detail.as_bytes()).map(Some)
            }
            Acknowledgement::Defer { delay } => check_delay(*delay).map(|()| None),
            Acknowledgement::Term { code, detail, .. } => check_cause(code, detail).map(|()| None),
        }
    }

    pub(crate) fn claim(&self, claim: Claim) -> Result<DraftClaim, StoreError> {
        bound("intent", claim.intent.len(), BODY_BYTES_MAX)?;
        let entry =
            IntentEntry::new(claim.action_id.clone(), &claim.action_digest, claim.asker.space.clone());
        Ok(DraftClaim {
            leaf: merkle::leaf(&LogEntry::Intent(entry).bytes()),
            invalidating: schema::invalidating_hashes(&claim.depends),
            stale: claim.stale,
            record: ClaimRecord {
                key: claim.key.as_ref().map(|key| schema::asked_hash(&claim.asker, key)),
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

    /// Drafts a completion; returns its size in bytes too.
    pub(crate) fn completion(&self, completion: Completion) -> Result<(usize, DraftCompletion), StoreError> {
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
        let links_len: usize = links.iter().map(|link| 1 + link.leases.len()).sum();
        bound(
            "leases, links and events of one completion",
            leases.len() + links_len + events.len(),
            COMPLETION_ITEMS_MAX,
        )?;
        let mut bytes = receipt.body.len() + bytes_of(events.iter().map(|(_, event)| event));
        if let Some(letter) = &letter {
            check_cause(&letter.code, &letter.detail)?;
            bound("payload", letter.payload.len(), BODY_BYTES_MAX)?;
            bytes += letter.payload.len();
        }
        if links.iter().any(|link| link.receipt_id != receipt.receipt_id) {
            let what = "a completion links only to its own receipt";
            return Err(StoreError::Invalid(what.into()));
        }
        bound("bytes in one completion", bytes, OPERATION_BYTES_MAX)?;
        let mut invalidated = hash_resources(&disturbed)?;
        bound("resources", retire.len(), RESOURCES_MAX)?;
        invalidated.extend(retire.iter().map(schema::changed_hash));
        invalidated.extend(appeared.iter().map(|name| schema::appeared_hash(name.as_str())));
        let draft = DraftCompletion {
            derived: Derived {
                leaf: Some(merkle::leaf(&receipt.body)),
                listed: schema::listed_by_body(&receipt.body),
            },
            events: self.topic_events(events)?,
            fence,
            leases,
            letter,
            ancestors: schema::ancestor_hashes(&depends),
            depends: hash_resources(&depends)?,
            invalidated,
            links,
            receipt: ReceiptRecord {
                ordinal: 0,
                receipt_id: receipt.receipt_id,
                action_id: receipt.action_id,
                action_digest: receipt.action_digest,
                tool_id: receipt.tool_id,
                subject_id: receipt.subject_id,
                status: receipt.status,
                key: receipt.key.map(|key| schema::key_hash(&receipt.space_id, &key)),
                space_id: receipt.space_id,
                params_digest: receipt.params_digest,
                time_ms: receipt.time.as_millisecond(),
                body_hash: Hash16::of(&[&receipt.body]),
                body: Blob::Draft(receipt.body),
            },
        };
        Ok((bytes, draft))
    }

    /// Drafts a change of family entries; returns its size in bytes too.
    pub(crate) fn change(&self, change: Change) -> Result<(usize, DraftChange), StoreError> {
        let Change { swaps, leases, events, notes } = change;
        bound(
            "swaps, leases, events and notes of one change",
            swaps.len() + leases.len() + events.len() + notes.len(),
            COMPLETION_ITEMS_MAX,
        )?;
        let mut bytes = bytes_of(events.iter().map(|(_, event)| event));
        let notes = notes.into_iter().map(|(about, body)| {
            bound("note", body.len(), BODY_BYTES_MAX)?;
            bytes += body.len();
            let leaf = merkle::leaf(&body);
            Ok((schema::text_hash(&about), body, leaf))
        });
        let notes = notes.collect::<Result<Vec<_>, StoreError>>()?;
        let mut drafts = Vec::with_capacity(swaps.len());
        for swap in swaps {
            bound("entry's key", swap.key.len(), FAMILY_KEY_BYTES_MAX)?;
            let value = match swap.change {
                KvChange::Delete => None,
                KvChange::Put(body) => {
                    bytes += body.bytes().len();
                    Some(self.body(Kind::Entry, &entry_context(&swap.family, &swap.key), body)?)
                }
            };
            drafts.push(DraftSwap { family: swap.family, key: swap.key, expect: swap.expect, value });
        }
        bound("bytes in one change", bytes, OPERATION_BYTES_MAX)?;
        let draft = DraftChange { swaps: drafts, leases, events: self.topic_events(events)?, notes };
        Ok((bytes, draft))
    }
}
