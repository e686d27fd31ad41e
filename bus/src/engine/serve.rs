//! The `Store` trait on a local store. Bounds are checked and bodies sealed in the caller's thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::merkle::{self, Frontier};
use effectd_contracts::{ActionId, Digest, EventId, IdempotencyKey, ReceiptId, Timestamp};

use super::drafts::{bound, check_settlement, check_ttl};
use super::queue::{Finish, Job, Operation};
use super::{LocalStore, Shared, reads, timestamp};
use crate::desk::{Admittance, Desk, Grant, Verdict};
use crate::error::StoreError;
use crate::fold::OpenClaim;
use crate::journal::JournalReader;
use crate::keys;
use crate::limits::{
    BODY_BYTES_MAX, COMPLETION_ITEMS_MAX, DELIVERIES_MAX, LEASE_EVENTS_MAX, OPERATION_BYTES_MAX,
    PAGE_ITEMS_MAX, PUBLISH_EVENTS_MAX,
};
use crate::names::{FamilyName, GroupName, ResourceName, TopicName};
use crate::stats::Stats;
use crate::store::Store;
use crate::types::claims::{Admission, Admitted, Asker, Claim, ClaimAnswer, Fence, Lookup, OpenIntent};
use crate::types::events::{EventPage, NewEvent, Published};
use crate::types::families::{Change, Changed, Entry, EntryPage};
use crate::types::groups::{Delivery, GroupInfo, GroupOptions, LeaseId, Leased, SeekTo, Settled, Settlement};
use crate::types::letters::{LetterGroup, LetterPage, Requeued, StoredLetter};
use crate::types::log::{LogStanding, StoredEntry};
use crate::types::receipts::{Committed, Completion, Link, ReceiptPage, ReceiptQuery, StoredReceipt};
use crate::types::retention::{Retained, Retention, Turn};
use crate::vault::{EpochReport, Kind, Vault};
use crate::wait::{Wait, promise};
use crate::watch::Watch;

/// Bytes that an operation takes in the queue beside its bodies.
const OPERATION_OVERHEAD_BYTES: usize = 512;

impl LocalStore {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Reads, and reads again what failed while blocks were let go: where the index said something was, it may be no more,
    /// and the index says meanwhile where it was moved to, or that it is gone.
    pub(super) fn steady<T>(&self, read: impl Fn(&Shared) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let shared = self.shared();
        loop {
            let first = shared.served().journal.first();
            let answer = read(shared);
            let is_damage = matches!(answer, Err(StoreError::Damaged { .. }));
            // Every turn of this loop needs another piece of the journal to go.
            if !is_damage || shared.served().journal.first() == first {
                return answer;
            }
        }
    }

    /// Queues an operation whose answer is complete when it is decided.
    pub(super) fn submit<T, D>(&self, bytes: usize, decide: D) -> Wait<T>
    where
        T: Send + 'static,
        D: FnOnce(&mut Desk<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.queue(bytes, move |desk| {
            let value = decide(desk)?;
            Ok(Box::new(move || Ok(value)) as Finish<T>)
        })
    }

    fn queue<T, D>(&self, bytes: usize, decide: D) -> Wait<T>
    where
        T: Send + 'static,
        D: FnOnce(&mut Desk<'_>) -> Result<Finish<T>, StoreError> + Send + 'static,
    {
        let (promise, wait) = promise();
        let work = Box::new(Operation { promise, decide });
        let bytes = bytes + OPERATION_OVERHEAD_BYTES;
        match self.shared().queue.push(Job {
            bytes,
            since: Instant::now(),
            work,
        }) {
            Ok(()) => wait,
            Err(error) => {
                if matches!(error, StoreError::Overloaded { .. }) {
                    self.shared().meters.overloaded.inc();
                }
                Wait::ready(Err(error))
            }
        }
    }
}

/// The answer itself, or the error that kept the operation out of the queue.
fn or_refuse<T>(wait: Result<Wait<T>, StoreError>) -> Wait<T> {
    wait.unwrap_or_else(|error| Wait::ready(Err(error)))
}

impl Store for LocalStore {
    fn publish(&self, topic: &TopicName, events: Vec<NewEvent>) -> Wait<Vec<Published>> {
        or_refuse(
            bound("events in one publish", events.len(), PUBLISH_EVENTS_MAX).and_then(|()| {
                let bytes = events.iter().map(|event| event.body.bytes().len()).sum();
                bound("bytes in one publish", bytes, OPERATION_BYTES_MAX)?;
                let drafts = self.shared().draft_events(events)?;
                let topic = topic.clone();
                Ok(self.submit(bytes, move |desk| desk.publish(&topic, drafts)))
            }),
        )
    }

    fn read(&self, topic: &TopicName, from: u64, max: usize) -> Result<EventPage, StoreError> {
        self.steady(|shared| shared.read_page(topic, from, max))
    }

    fn published(&self, topic: &TopicName, event: &EventId) -> Result<Option<u64>, StoreError> {
        let served = self.shared().served();
        served.alive()?;
        reads::published_at(&served, topic, event)
    }

    fn offset_at(&self, topic: &TopicName, time: Timestamp) -> Result<u64, StoreError> {
        let served = self.shared().served();
        served.alive()?;
        let end = served.live().ends.get(topic).copied().unwrap_or(0);
        self.steady(|shared| shared.offset_at(&served, topic, end, time))
    }

    fn topics(&self) -> Result<Vec<(TopicName, u64)>, StoreError> {
        let served = self.shared().served();
        served.alive()?;
        let mut topics: Vec<_> = served
            .live()
            .ends
            .iter()
            .map(|(name, end)| (name.clone(), *end))
            .collect();
        topics.sort();
        Ok(topics)
    }

    fn watch(&self, topic: &TopicName) -> Result<Watch, StoreError> {
        let mut signals = self.shared().signals.lock();
        bound("topics watched", signals.len(), crate::limits::TOPICS_MAX * 4)?;
        Ok(Watch::new(signals.entry(topic.clone()).or_default().clone()))
    }

    fn watch_group(&self, topic: &TopicName, group: &GroupName) -> Result<Watch, StoreError> {
        let mut signals = self.shared().group_signals.lock();
        bound("groups watched", signals.len(), crate::limits::GROUPS_MAX)?;
        let signal = signals.entry((topic.clone(), group.clone())).or_default();
        Ok(Watch::new(signal.clone()))
    }

    fn lease(&self, topic: &TopicName, group: &GroupName, max: usize, ttl: Duration) -> Wait<Leased> {
        or_refuse(
            check_ttl(ttl)
                .and_then(|()| bound("events in one lease", max, LEASE_EVENTS_MAX))
                .map(|()| {
                    let (topic, group, shared) = (topic.clone(), group.clone(), self.shared().clone());
                    self.queue(0, move |desk| {
                        let (grants, next_due) = desk.lease(&topic, &group, max, ttl)?;
                        Ok(Box::new(move || shared.deliver(&topic, grants, next_due)) as Finish<Leased>)
                    })
                }),
        )
    }

    fn settle(&self, lease: LeaseId, how: Settlement) -> Wait<Settled> {
        or_refuse(check_settlement(&how).and_then(|()| {
            let detail = match &how {
                Settlement::Nack { detail, .. } => {
                    Some(self.shared().seal(Kind::Detail, "nack", detail.as_bytes())?)
                }
                Settlement::Ack | Settlement::Defer { .. } | Settlement::Term { .. } => None,
            };
            Ok(self.submit(0, move |desk| desk.settle(lease, &how, detail)))
        }))
    }

    fn extend(&self, lease: LeaseId, ttl: Duration) -> Wait<()> {
        or_refuse(check_ttl(ttl).map(|()| self.submit(0, move |desk| desk.extend(lease, ttl))))
    }

    fn configure(&self, topic: &TopicName, group: &GroupName, options: GroupOptions) -> Wait<()> {
        let max = options.deliveries_max as usize;
        let checked = if max == 0 {
            Err(StoreError::Invalid("a group delivers at least once".into()))
        } else {
            bound("deliveries of a group", max, DELIVERIES_MAX as usize)
        };
        let (topic, group) = (topic.clone(), group.clone());
        or_refuse(checked.map(|()| self.submit(0, move |desk| desk.configure(&topic, &group, options))))
    }

    fn seek(&self, topic: &TopicName, group: &GroupName, to: SeekTo) -> Wait<u64> {
        let (topic, group) = (topic.clone(), group.clone());
        self.submit(0, move |desk| desk.seek(&topic, &group, to))
    }

    fn groups(&self, topic: &TopicName) -> Wait<Vec<GroupInfo>> {
        let topic = topic.clone();
        self.submit(0, move |desk| Ok(desk.group_infos(&topic)))
    }

    fn claim(&self, claim: Claim) -> Wait<ClaimAnswer> {
        let bytes = claim.intent.len();
        or_refuse(self.shared().draft_claim(claim).map(|draft| {
            let shared = self.shared().clone();
            self.queue(bytes, move |desk| {
                let verdict = desk.claim(draft)?;
                Ok(Box::new(move || shared.claim_answer(verdict)) as Finish<ClaimAnswer>)
            })
        }))
    }

    fn lookup(
        &self,
        asker: &Asker,
        key: &IdempotencyKey,
        params_digest: &Digest,
        resources: &[ResourceName],
    ) -> Result<Lookup, StoreError> {
        let served = self.shared().served();
        served.alive()?;
        let hash = keys::asked_hash(asker, key);
        // In flight first: what was in flight and is not any more is done by the time the index is asked.
        let open = served.live().open_keys.get(&hash).cloned();
        if let Some(known) = self.shared().resolved(&served, &keys::key(hash))?
            && !self.shared().is_disturbed(&served, resources, known.ordinal)?
        {
            if known.digest != *params_digest {
                return Ok(Lookup::Conflict);
            }
            if let Some(receipt) = self.shared().read_kept(&served, known.ordinal)? {
                let receipt_id = receipt.receipt_id;
                return Ok(Lookup::Done { receipt_id });
            }
        }
        Ok(match open {
            None => Lookup::Unknown,
            Some((digest, action_id)) if digest == *params_digest => Lookup::InFlight { action_id },
            Some(_) => Lookup::Conflict,
        })
    }

    fn admit(&self, admission: Admission) -> Wait<Admitted> {
        let Admission {
            topic,
            group,
            ttl,
            event,
            claim,
        } = admission;
        let bytes = event.body.bytes().len() + claim.intent.len();
        or_refuse(check_ttl(ttl).and_then(|()| {
            let event = self.shared().draft_event(event)?;
            let claim = self.shared().draft_claim(claim)?;
            let shared = self.shared().clone();
            Ok(self.queue(bytes, move |desk| {
                let admittance = desk.admit(&topic, &group, ttl, event, claim)?;
                Ok(Box::new(move || match admittance {
                    Admittance::Settled(admitted) => Ok(admitted),
                    Admittance::NotGranted(verdict) => {
                        Ok(Admitted::NotGranted(shared.claim_answer(verdict)?))
                    }
                }) as Finish<Admitted>)
            }))
        }))
    }

    fn take_over(&self, action: &ActionId, seen: Fence) -> Wait<Fence> {
        let action = action.clone();
        self.submit(0, move |desk| desk.take_over(&action, seen))
    }

    fn commit(&self, completion: Completion) -> Wait<Committed> {
        or_refuse(
            self.shared()
                .draft_completion(completion)
                .map(|(bytes, draft)| self.submit(bytes, move |desk| desk.commit(draft))),
        )
    }

    fn link(&self, link: Link) -> Wait<()> {
        let Link {
            action_id,
            action_digest,
            receipt_id,
            leases,
        } = link;
        or_refuse(
            bound("leases of one link", leases.len(), COMPLETION_ITEMS_MAX).map(|()| {
                self.submit(0, move |desk| {
                    desk.link(&action_id, action_digest, receipt_id.as_str(), &leases)
                })
            }),
        )
    }

    fn open_intents(&self, after: Option<Fence>, max: usize) -> Wait<Vec<OpenIntent>> {
        let shared = self.shared().clone();
        self.queue(0, move |desk| {
            let from = after.map_or(0, |fence| fence.0.saturating_add(1));
            let open: Vec<_> = desk
                .fold
                .claims()
                .range(from..)
                .take(max.min(PAGE_ITEMS_MAX))
                .collect();
            let open: Vec<_> = open
                .into_iter()
                .map(|(fence, claim)| (*fence, claim.clone()))
                .collect();
            let read = move || {
                open.into_iter()
                    .map(|(fence, claim)| shared.open_intent(fence, claim))
                    .collect()
            };
            Ok(Box::new(read) as Finish<Vec<OpenIntent>>)
        })
    }

    fn receipt(&self, id: &ReceiptId) -> Result<Option<StoredReceipt>, StoreError> {
        self.steady(|shared| {
            let served = shared.served();
            served.alive()?;
            let found = served.table.view(None).get(&keys::receipt(id.as_str()))?;
            let Some(bytes) = found else { return Ok(None) };
            let at = keys::ReceiptAt::decode(&bytes).map_err(|error| crate::desk::index_damaged(&error))?;
            shared.read_kept(&served, at.ordinal)
        })
    }

    fn receipt_of(&self, action: &ActionId) -> Result<Option<StoredReceipt>, StoreError> {
        self.steady(|shared| {
            let served = shared.served();
            served.alive()?;
            let key = keys::action(keys::action_hash(action.as_str()));
            let known = shared.resolved(&served, &key)?;
            let receipt = known.map(|known| shared.read_kept(&served, known.ordinal));
            Ok(receipt.transpose()?.flatten())
        })
    }

    fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.steady(|shared| shared.query(query))
    }

    fn note(&self, about: &str, body: Vec<u8>) -> Wait<u64> {
        or_refuse(bound("note", body.len(), BODY_BYTES_MAX).map(|()| {
            let (about, leaf) = (keys::text_hash(about), merkle::leaf(&body));
            self.submit(body.len(), move |desk| desk.note(about, body, leaf))
        }))
    }

    fn notes(&self, about: &str, from: u64, max: usize) -> Result<Vec<StoredEntry>, StoreError> {
        self.steady(|shared| shared.notes(about, from, max))
    }

    fn last_note(&self, about: &str) -> Result<Option<StoredEntry>, StoreError> {
        self.steady(|shared| shared.last_note(about))
    }

    fn log(&self) -> Result<LogStanding, StoreError> {
        self.shared().log_standing()
    }

    fn log_entries(&self, from: u64, max: usize) -> Result<Vec<StoredEntry>, StoreError> {
        self.steady(|shared| shared.log_page(from, max))
    }

    fn log_place(&self, receipt: &ReceiptId) -> Result<Option<u64>, StoreError> {
        self.steady(|shared| shared.log_place(receipt))
    }

    fn log_frontier(&self, size: u64) -> Result<Frontier, StoreError> {
        self.shared().log_frontier(size)
    }

    fn log_inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, StoreError> {
        self.shared().log_inclusion(index, size)
    }

    fn log_consistency(&self, old: u64, new: u64) -> Result<Vec<Digest>, StoreError> {
        self.shared().log_consistency(old, new)
    }

    fn entry(&self, family: &FamilyName, key: &str) -> Result<Option<Entry>, StoreError> {
        self.steady(|shared| shared.read_entry(family, key))
    }

    fn entries(
        &self,
        family: &FamilyName,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<EntryPage, StoreError> {
        self.steady(|shared| shared.read_entries(family, prefix, after, max))
    }

    fn change(&self, change: Change) -> Wait<Changed> {
        or_refuse(
            self.shared()
                .draft_change(change)
                .map(|(bytes, draft)| self.submit(bytes, move |desk| desk.change(draft))),
        )
    }

    fn letter(&self, letter: u64) -> Result<Option<StoredLetter>, StoreError> {
        self.steady(|shared| shared.read_letter(letter))
    }

    fn letters(&self, topic: Option<&TopicName>, from: u64, max: usize) -> Result<LetterPage, StoreError> {
        self.steady(|shared| shared.read_letters(topic, from, max))
    }

    fn letter_groups(&self, topic: Option<&TopicName>) -> Result<Vec<LetterGroup>, StoreError> {
        self.steady(|shared| shared.letter_groups(topic))
    }

    fn requeue(&self, letter: u64, event: NewEvent) -> Wait<Requeued> {
        let bytes = event.body.bytes().len();
        or_refuse(
            self.shared()
                .draft_event(event)
                .map(|draft| self.submit(bytes, move |desk| desk.requeue(letter, draft))),
        )
    }

    fn purge(&self, letters: Vec<u64>) -> Wait<u64> {
        or_refuse(
            bound("letters in one purge", letters.len(), PAGE_ITEMS_MAX)
                .map(|()| self.submit(0, move |desk| desk.purge(&letters))),
        )
    }

    fn close_epochs(&self, before: Timestamp) -> Wait<EpochReport> {
        self.submit(0, move |desk| desk.close_epochs_of_now(Vault::epoch_of(before)))
    }

    fn begin_epoch(&self) -> Wait<u32> {
        self.submit(0, |desk| desk.shared.vault.begin_epoch(desk.now()))
    }

    fn close_epochs_before(&self, before: u32) -> Wait<EpochReport> {
        self.submit(0, move |desk| {
            let newest = desk.shared.vault.epochs().last().copied().unwrap_or(0);
            if before > newest {
                let what = format!("epoch {before} has not begun; the newest is {newest}");
                return Err(StoreError::Invalid(what));
            }
            desk.close_epochs_of_now(before)
        })
    }

    fn retain(&self, retention: &Retention, how: Turn) -> Result<Retained, StoreError> {
        match how {
            Turn::Preview => self.preview(retention),
            Turn::LetGo => self.let_go(retention),
        }
    }

    fn shorten(&self, log_before: u64) -> Result<Retained, StoreError> {
        self.drop_old(log_before)
    }

    fn read_journal(&self) -> Result<JournalReader, StoreError> {
        let shared = self.shared().clone();
        JournalReader::new(move || {
            let served = shared.served();
            served.alive()?;
            Ok(served.journal.clone())
        })
    }

    fn refusal(&self) -> Option<StoreError> {
        self.shared().refusal()
    }

    fn stats(&self) -> Stats {
        self.shared().meters.read()
    }

    fn close(&self) -> Result<(), StoreError> {
        self.inner.close()
    }
}

impl Shared {
    fn deliver(
        &self,
        topic: &TopicName,
        grants: Vec<Grant>,
        next_due: Option<Duration>,
    ) -> Result<Leased, StoreError> {
        let served = self.served();
        served.alive()?;
        let mut near = None;
        let deliver = |grant: Grant| {
            let Grant {
                lease_id,
                offset,
                delivery_count,
                exhausted,
            } = grant;
            let event = self.read_event_near(&served, topic, offset, &mut near)?;
            Ok(Delivery {
                lease_id,
                offset,
                event,
                delivery_count,
                exhausted,
            })
        };
        let deliveries = grants
            .into_iter()
            .map(deliver)
            .collect::<Result<_, StoreError>>()?;
        Ok(Leased { deliveries, next_due })
    }

    fn claim_answer(&self, verdict: Verdict) -> Result<ClaimAnswer, StoreError> {
        Ok(match verdict {
            Verdict::New { fence } => ClaimAnswer::New { fence },
            Verdict::InFlight { action_id } => ClaimAnswer::InFlight { action_id },
            Verdict::ResourceBusy { action_id } => ClaimAnswer::ResourceBusy { action_id },
            Verdict::Conflict { what } => ClaimAnswer::Conflict { what },
            Verdict::Done { ordinal } => {
                let served = self.served();
                served.alive()?;
                ClaimAnswer::Done {
                    receipt_id: self.read_receipt(&served, ordinal)?.receipt_id,
                }
            }
            Verdict::OwnIntent { fence, claim } => ClaimAnswer::OwnIntent(self.open_intent(fence, *claim)?),
        })
    }

    fn open_intent(&self, fence: u64, claim: OpenClaim) -> Result<OpenIntent, StoreError> {
        let served = self.served();
        served.alive()?;
        let intent = self.read_body(&served, claim.intent, Kind::Intent, claim.action_id.as_str())?;
        Ok(OpenIntent {
            action_id: claim.action_id,
            action_digest: claim.action_digest,
            fence: Fence(fence),
            space: claim.space,
            params_digest: claim.params_digest,
            since: timestamp(claim.since_ms),
            orphaned: claim.orphaned,
            intent,
        })
    }
}
