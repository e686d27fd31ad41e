//! The [`Store`] trait for local stores. Bounds are checked and bodies sealed in the caller's thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::merkle::{self, Frontier};
use effectd_contracts::{
    ActionId, Digest, EventId, IdempotencyKey, InvocationBrief, OrgId, ReceiptId, Timestamp,
};

use super::queue::{Job, Operation};
use super::{LocalStore, Shared};
use crate::commands::drafts::check_ttl;
use crate::commands::{Admittance, Batch, ClaimVerdict, Grant};
use crate::error::{StoreError, bound};
use crate::index::schema;
use crate::journal::{self, JournalReader};
use crate::limits::{
    BODY_BYTES_MAX, COMPLETION_ITEMS_MAX, DELIVERIES_MAX, GROUPS_MAX, LEASE_EVENTS_MAX, PAGE_ITEMS_MAX,
    PUBLISH_EVENTS_MAX, TOPICS_MAX,
};
use crate::names::{FamilyName, GroupName, ResourceName, TopicName};
use crate::reads::receipts::resolution;
use crate::reads::{Reader, is_invalidated, published_at, timestamp};
use crate::state::OpenClaim;
use crate::stats::Stats;
use crate::store::Store;
use crate::types::claims::{Admission, Admitted, Asker, Claim, ClaimAnswer, Fence, Lookup, OpenIntent};
use crate::types::dead_letters::{DeadLetter, DeadLetterGroup, DeadLetterPage, Requeued};
use crate::types::events::{EventPage, NewEvent, Published};
use crate::types::groups::{
    Acknowledged, Acknowledgement, Delivery, GroupInfo, GroupOptions, LeaseId, Leased, SeekTo,
};
use crate::types::kv::{Change, Changed, KvEntry, KvPage};
use crate::types::log::{LogStatus, StoredLogEntry};
use crate::types::receipts::{Committed, Completion, Link, ReceiptPage, ReceiptQuery, StoredReceipt};
use crate::types::retention::{Retained, Retention, RetentionMode};
use crate::vault::{DeviceKeyChange, EpochReport, Kind, Vault};
use crate::wait::{Finish, Wait, promise};
use crate::watch::Watch;

/// Bytes that an operation takes in the queue besides its bodies.
const OPERATION_OVERHEAD_BYTES: usize = 512;

impl LocalStore {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Reads, and repeats a read that found damage while retention dropped blocks: the index may have pointed to one of
    /// them, and has the new location by now.
    pub(super) fn read_with<T>(
        &self,
        read: impl Fn(&Reader) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let reader = self.shared().alive()?;
            let first = reader.journal.first();
            let answer = read(&reader);
            let is_damage = matches!(answer, Err(StoreError::Damaged { .. }));
            if !is_damage || self.shared().reader().journal.first() == first {
                self.shared().note_damage(first, answer.as_ref().err());
                return answer;
            }
        }
    }

    fn retaining(
        &self,
        retain: impl FnOnce() -> Result<Retained, StoreError>,
    ) -> Result<Retained, StoreError> {
        let first = self.shared().reader().journal.first();
        let retained = retain();
        self.shared().note_damage(first, retained.as_ref().err());
        retained
    }

    /// Queues an operation whose answer is complete when it is decided.
    pub(super) fn submit<T, D>(&self, bytes: usize, decide: D) -> Wait<T>
    where
        T: Send + 'static,
        D: FnOnce(&mut Batch<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.queue(bytes, false, at_once(decide))
    }

    /// Queues an operation whose answer is read when its block is durable.
    fn submit_then<T, U, D, R>(&self, bytes: usize, decide: D, read: R) -> Wait<T>
    where
        T: Send + 'static,
        U: Send + 'static,
        D: FnOnce(&mut Batch<'_>) -> Result<U, StoreError> + Send + 'static,
        R: FnOnce(&Shared, U) -> Result<T, StoreError> + Send + 'static,
    {
        let shared = self.shared().clone();
        self.queue(bytes, false, move |batch| {
            let first = batch.reader.journal.first();
            let decided = decide(batch)?;
            Ok(Box::new(move || {
                let answer = read(&shared, decided);
                shared.note_damage(first, answer.as_ref().err());
                answer
            }) as Finish<T>)
        })
    }

    #[expect(clippy::disallowed_methods, reason = "when the writer, a thread, stops waiting for more")]
    fn queue<T, D>(&self, bytes: usize, can_wait: bool, decide: D) -> Wait<T>
    where
        T: Send + 'static,
        D: FnOnce(&mut Batch<'_>) -> Result<Finish<T>, StoreError> + Send + 'static,
    {
        let (promise, wait) = promise();
        let job = Job {
            bytes: bytes + OPERATION_OVERHEAD_BYTES,
            since: Instant::now(),
            can_wait,
            work: Box::new(Operation { promise, decide }),
        };
        match self.shared().queue.push(job) {
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

/// An operation whose answer is complete when it is decided.
fn at_once<T, D>(decide: D) -> impl FnOnce(&mut Batch<'_>) -> Result<Finish<T>, StoreError> + Send
where
    T: Send + 'static,
    D: FnOnce(&mut Batch<'_>) -> Result<T, StoreError> + Send + 'static,
{
    move |batch| {
        let value = decide(batch)?;
        Ok(Box::new(move || Ok(value)) as Finish<T>)
    }
}

/// The pending answer, or the error that kept the operation out of the queue.
fn or_refuse<T>(wait: impl FnOnce() -> Result<Wait<T>, StoreError>) -> Wait<T> {
    wait().unwrap_or_else(|error| Wait::ready(Err(error)))
}

impl Store for LocalStore {
    fn publish(&self, topic: &TopicName, events: Vec<NewEvent>) -> Wait<Vec<Published>> {
        or_refuse(|| {
            bound("events in one publish", events.len(), PUBLISH_EVENTS_MAX)?;
            let (bytes, drafts) = self.shared().drafter().events(events)?;
            let topic = topic.clone();
            Ok(self.submit(bytes, move |batch| batch.publish(&topic, drafts)))
        })
    }

    fn read(&self, topic: &TopicName, from: u64, max: usize) -> Result<EventPage, StoreError> {
        self.read_with(|reader| reader.events(topic, from, max))
    }

    fn published(&self, topic: &TopicName, event: &EventId) -> Result<Option<u64>, StoreError> {
        self.read_with(|reader| {
            let (begin, _) = reader.live.read().range(topic);
            published_at(reader.index.view(None), topic, event, begin)
        })
    }

    fn offset_at(&self, topic: &TopicName, time: Timestamp) -> Result<u64, StoreError> {
        self.read_with(|reader| {
            let (_, end) = reader.live.read().range(topic);
            reader.offset_at(topic, end, time)
        })
    }

    fn topics(&self) -> Result<Vec<(TopicName, u64)>, StoreError> {
        let reader = self.shared().alive()?;
        let live = reader.live.read();
        let mut topics: Vec<_> = live.ends.iter().map(|(name, end)| (name.clone(), *end)).collect();
        topics.sort();
        Ok(topics)
    }

    fn watch(&self, topic: &TopicName) -> Result<Watch, StoreError> {
        let mut signals = self.shared().topic_signals.lock();
        bound("topics watched", signals.len(), TOPICS_MAX * 4)?;
        Ok(Watch::new(signals.entry(topic.clone()).or_default().clone()))
    }

    fn watch_group(&self, topic: &TopicName, group: &GroupName) -> Result<Watch, StoreError> {
        let mut signals = self.shared().group_signals.lock();
        bound("groups watched", signals.len(), GROUPS_MAX)?;
        let signal = signals.entry((topic.clone(), group.clone())).or_default();
        Ok(Watch::new(signal.clone()))
    }

    fn lease(&self, topic: &TopicName, group: &GroupName, max: usize, ttl: Duration) -> Wait<Leased> {
        or_refuse(|| {
            check_ttl(ttl)?;
            bound("events in one lease", max, LEASE_EVENTS_MAX)?;
            let (topic, group) = (topic.clone(), group.clone());
            let of = topic.clone();
            Ok(self.submit_then(
                0,
                move |batch| batch.lease(&topic, &group, max, ttl),
                move |shared, (grants, next_due)| deliver(&*shared.alive()?, &of, grants, next_due),
            ))
        })
    }

    fn acknowledge(&self, lease: LeaseId, how: Acknowledgement) -> Wait<Acknowledged> {
        or_refuse(|| {
            let detail = self.shared().drafter().acknowledgement(&how)?;
            Ok(self.submit(0, move |batch| batch.acknowledge(lease, &how, detail)))
        })
    }

    fn extend(&self, lease: LeaseId, ttl: Duration) -> Wait<()> {
        or_refuse(|| {
            check_ttl(ttl)?;
            Ok(self.submit(0, move |batch| batch.extend(lease, ttl)))
        })
    }

    fn configure(&self, topic: &TopicName, group: &GroupName, options: GroupOptions) -> Wait<()> {
        or_refuse(|| {
            if options.deliveries_max == 0 {
                return Err(StoreError::Invalid("a group delivers at least once".into()));
            }
            let max = options.deliveries_max as usize;
            bound("deliveries of a group", max, DELIVERIES_MAX as usize)?;
            let (topic, group) = (topic.clone(), group.clone());
            Ok(self.submit(0, move |batch| batch.configure(&topic, &group, options)))
        })
    }

    fn seek(&self, topic: &TopicName, group: &GroupName, to: SeekTo) -> Wait<u64> {
        let (topic, group) = (topic.clone(), group.clone());
        self.submit(0, move |batch| batch.seek(&topic, &group, to))
    }

    fn remove_group(&self, topic: &TopicName, group: &GroupName) -> Wait<()> {
        let (topic, group) = (topic.clone(), group.clone());
        self.submit(0, move |batch| batch.remove_group(&topic, &group))
    }

    fn groups(&self, topic: &TopicName) -> Wait<Vec<GroupInfo>> {
        let topic = topic.clone();
        self.submit(0, move |batch| Ok(batch.group_infos(&topic)))
    }

    fn claim(&self, claim: Claim) -> Wait<ClaimAnswer> {
        or_refuse(|| {
            let bytes = claim.intent.len();
            let draft = self.shared().drafter().claim(claim)?;
            Ok(self.submit_then(bytes, move |batch| batch.claim(draft), claim_answer))
        })
    }

    fn lookup(
        &self,
        asker: &Asker,
        key: &IdempotencyKey,
        params_digest: &Digest,
        resources: &[ResourceName],
    ) -> Result<Lookup, StoreError> {
        self.read_with(|reader| look_up(reader, asker, key, params_digest, resources))
    }

    fn admit(&self, admission: Admission) -> Wait<Admitted> {
        or_refuse(|| {
            let Admission { topic, group, ttl, event, claim } = admission;
            check_ttl(ttl)?;
            let bytes = event.body.bytes().len() + claim.intent.len();
            let event = self.shared().drafter().event(event)?;
            let claim = self.shared().drafter().claim(claim)?;
            Ok(self.submit_then(
                bytes,
                move |batch| batch.admit(&topic, &group, ttl, event, claim),
                |shared, admittance| match admittance {
                    Admittance::Decided(admitted) => Ok(admitted),
                    Admittance::NotGranted(verdict) => {
                        claim_answer(shared, verdict).map(Admitted::NotGranted)
                    }
                },
            ))
        })
    }

    fn take_over(&self, action: &ActionId, seen: Fence) -> Wait<Fence> {
        let action = action.clone();
        self.submit(0, move |batch| batch.take_over(&action, seen))
    }

    fn commit(&self, completion: Completion) -> Wait<Committed> {
        or_refuse(|| {
            let (bytes, draft) = self.shared().drafter().completion(completion)?;
            Ok(self.submit(bytes, move |batch| batch.commit(draft)))
        })
    }

    fn link(&self, link: Link) -> Wait<()> {
        or_refuse(|| {
            bound("leases of one link", link.leases.len(), COMPLETION_ITEMS_MAX)?;
            Ok(self.queue(0, true, at_once(move |batch| batch.link(&link))))
        })
    }

    fn open_intents(&self, after: Option<Fence>, max: usize) -> Wait<Vec<OpenIntent>> {
        let from = after.map_or(0, |fence| fence.0.saturating_add(1));
        self.submit_then(
            0,
            move |batch| {
                let open = batch.state.claims().range(from..).take(max.min(PAGE_ITEMS_MAX));
                Ok(open.map(|(fence, claim)| (*fence, claim.clone())).collect::<Vec<_>>())
            },
            |shared, open| {
                let reader = shared.alive()?;
                let open = open.into_iter();
                open.map(|(fence, claim)| open_intent(&reader, fence, claim)).collect()
            },
        )
    }

    fn receipt(&self, id: &ReceiptId) -> Result<Option<StoredReceipt>, StoreError> {
        self.read_with(|reader| reader.receipt_by_id(id.as_str()))
    }

    fn receipt_of(&self, action: &ActionId) -> Result<Option<StoredReceipt>, StoreError> {
        self.read_with(|reader| reader.receipt_of(action.as_str()))
    }

    fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.read_with(|reader| reader.receipts(query))
    }

    fn invocations(&self, org: &OrgId, status: InvocationBrief) -> Result<u64, StoreError> {
        self.read_with(|reader| reader.invocations(org.as_str(), status))
    }

    fn note(&self, about: &str, body: Vec<u8>) -> Wait<u64> {
        or_refuse(|| {
            bound("note", body.len(), BODY_BYTES_MAX)?;
            let (about, leaf) = (schema::text_hash(about), merkle::leaf(&body));
            Ok(self.submit(body.len(), move |batch| batch.note(about, body, leaf)))
        })
    }

    fn notes(&self, about: &str, from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError> {
        self.read_with(|reader| reader.notes(about, from, max))
    }

    fn last_note(&self, about: &str) -> Result<Option<StoredLogEntry>, StoreError> {
        self.read_with(|reader| reader.last_note(about))
    }

    fn log(&self) -> Result<LogStatus, StoreError> {
        self.read_with(|reader| reader.log_status())
    }

    fn log_entries(&self, from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError> {
        self.read_with(|reader| reader.log_entries(from, max))
    }

    fn log_place(&self, receipt: &ReceiptId) -> Result<Option<u64>, StoreError> {
        self.read_with(|reader| reader.log_place(receipt))
    }

    fn log_frontier(&self, size: u64) -> Result<Frontier, StoreError> {
        self.read_with(|reader| reader.log_frontier(size))
    }

    fn log_inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, StoreError> {
        self.read_with(|reader| reader.log_inclusion(index, size))
    }

    fn log_consistency(&self, old: u64, new: u64) -> Result<Vec<Digest>, StoreError> {
        self.read_with(|reader| reader.log_consistency(old, new))
    }

    fn entry(&self, family: &FamilyName, key: &str) -> Result<Option<KvEntry>, StoreError> {
        self.read_with(|reader| reader.entry(family, key))
    }

    fn entries(
        &self,
        family: &FamilyName,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<KvPage, StoreError> {
        self.read_with(|reader| reader.entries(family, prefix, after, max))
    }

    fn change(&self, change: Change) -> Wait<Changed> {
        or_refuse(|| {
            let (bytes, draft) = self.shared().drafter().change(change)?;
            Ok(self.submit(bytes, move |batch| batch.change(draft)))
        })
    }

    fn letter(&self, letter: u64) -> Result<Option<DeadLetter>, StoreError> {
        self.read_with(|reader| reader.letter(letter))
    }

    fn letters_end(&self) -> Result<u64, StoreError> {
        Ok(self.shared().alive()?.live.read().letters_end)
    }

    fn letters(
        &self,
        topic: Option<&TopicName>,
        from: u64,
        max: usize,
    ) -> Result<DeadLetterPage, StoreError> {
        self.read_with(|reader| reader.letters(topic, from, max))
    }

    fn letter_groups(
        &self,
        topic: Option<&TopicName>,
        takes: Option<&dyn Fn(&DeadLetter) -> bool>,
    ) -> Result<Vec<DeadLetterGroup>, StoreError> {
        self.read_with(|reader| reader.letter_groups(topic, takes))
    }

    fn requeue(&self, letter: u64, event: NewEvent) -> Wait<Requeued> {
        or_refuse(|| {
            let bytes = event.body.bytes().len();
            let draft = self.shared().drafter().event(event)?;
            Ok(self.submit(bytes, move |batch| batch.requeue(letter, draft)))
        })
    }

    fn purge(&self, letters: Vec<u64>) -> Wait<u64> {
        or_refuse(|| {
            bound("letters in one purge", letters.len(), PAGE_ITEMS_MAX)?;
            Ok(self.submit(0, move |batch| batch.purge(&letters)))
        })
    }

    fn close_epochs(&self, before: Timestamp) -> Wait<EpochReport> {
        self.submit(0, move |batch| batch.close_epochs_of_now(Vault::epoch_of(before)))
    }

    fn begin_epoch(&self) -> Wait<u32> {
        self.submit(0, |batch| batch.vault().begin_epoch(batch.now()))
    }

    fn close_epochs_before(&self, before: u32) -> Wait<EpochReport> {
        self.submit(0, move |batch| {
            let newest = batch.vault().epochs().last().copied().unwrap_or(0);
            if before > newest {
                let what = format!("epoch {before} has not begun; the newest is {newest}");
                return Err(StoreError::Invalid(what));
            }
            batch.close_epochs_of_now(before)
        })
    }

    fn rotate_device_key(&self) -> Result<DeviceKeyChange, StoreError> {
        self.shared().alive()?;
        self.shared().vault.rotate_device_key()
    }

    fn retain(&self, retention: &Retention, mode: RetentionMode) -> Result<Retained, StoreError> {
        self.retaining(|| match mode {
            RetentionMode::Preview => self.preview(retention),
            RetentionMode::Apply => self.expire(retention),
        })
    }

    fn shorten(&self, log_before: u64) -> Result<Retained, StoreError> {
        self.retaining(|| self.truncate(log_before))
    }

    fn read_journal(&self) -> Result<JournalReader, StoreError> {
        let shared = self.shared().clone();
        let journal = shared.alive()?.journal.clone();
        JournalReader::new(journal.as_ref(), move |seq| {
            // The store reopens its journal after a disk error.
            let journal = shared.alive()?.journal.clone();
            let (first, block) = (journal.first(), journal.block(seq));
            if seq >= first {
                shared.note_damage(first, block.as_ref().err());
            }
            block
        })
    }

    fn check_journal(&self) -> Result<u64, StoreError> {
        self.read_with(|reader| {
            let mut blocks = 0;
            journal::check(reader.journal.as_ref(), &mut |_, _| blocks += 1)?;
            Ok(blocks)
        })
    }

    fn refusal(&self) -> Option<StoreError> {
        self.shared().refusal()
    }

    fn damage(&self) -> Option<StoreError> {
        self.shared().damage.lock().clone()
    }

    fn stats(&self) -> Stats {
        self.shared().meters.read()
    }

    fn close(&self) -> Result<(), StoreError> {
        self.inner.close()
    }
}

fn look_up(
    reader: &Reader,
    asker: &Asker,
    key: &IdempotencyKey,
    params_digest: &Digest,
    resources: &[ResourceName],
) -> Result<Lookup, StoreError> {
    let hash = schema::asked_hash(asker, key);
    // Open keys are read before the index: if a claim ends in between, the index has its receipt by then.
    let (open, begin) = {
        let live = reader.live.read();
        (live.open_keys.get(&hash).cloned(), live.receipts_begin)
    };
    // An open claim is newer than every receipt of its key.
    if let Some((digest, action_id)) = open {
        return Ok(if digest == *params_digest { Lookup::InFlight { action_id } } else { Lookup::Conflict });
    }
    let view = reader.index.view(None);
    if let Some(known) = resolution(view, &schema::key(hash), begin)?
        && !is_invalidated(view, &schema::invalidating_hashes(resources), |since| {
            since.ordinal > known.ordinal
        })?
    {
        if known.digest != *params_digest {
            return Ok(Lookup::Conflict);
        }
        if let Some(receipt) = reader.kept_receipt(known.ordinal)? {
            let receipt_id = receipt.receipt_id;
            return Ok(Lookup::Done { receipt_id });
        }
    }
    Ok(Lookup::Unknown)
}

fn deliver(
    reader: &Reader,
    topic: &TopicName,
    grants: Vec<Grant>,
    next_due: Option<Duration>,
) -> Result<Leased, StoreError> {
    let mut cached = None;
    let deliver = |grant: Grant| {
        Ok(Delivery {
            lease_id: grant.lease_id,
            offset: grant.offset,
            event: reader.event(topic, grant.offset, &mut cached)?,
            delivery_count: grant.delivery_count,
            exhausted: grant.exhausted,
        })
    };
    let deliveries = grants.into_iter().map(deliver).collect::<Result<_, StoreError>>()?;
    Ok(Leased { deliveries, next_due })
}

fn claim_answer(shared: &Shared, verdict: ClaimVerdict) -> Result<ClaimAnswer, StoreError> {
    Ok(match verdict {
        ClaimVerdict::New { fence } => ClaimAnswer::New { fence },
        ClaimVerdict::InFlight { action_id } => ClaimAnswer::InFlight { action_id },
        ClaimVerdict::ResourceBusy { action_id } => ClaimAnswer::ResourceBusy { action_id },
        ClaimVerdict::Conflict { what } => ClaimAnswer::Conflict { what },
        ClaimVerdict::Done { ordinal } => {
            ClaimAnswer::Done { receipt_id: shared.alive()?.receipt(ordinal)?.receipt_id }
        }
        ClaimVerdict::OwnIntent { fence, claim } => {
            ClaimAnswer::OwnIntent(open_intent(&*shared.alive()?, fence, *claim)?)
        }
    })
}

fn open_intent(reader: &Reader, fence: u64, claim: OpenClaim) -> Result<OpenIntent, StoreError> {
    let intent = reader.body(claim.intent, Kind::Intent, claim.action_id.as_str())?;
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
