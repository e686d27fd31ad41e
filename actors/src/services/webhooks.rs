//! Webhooks: events of an organisation, sent to a service over one of its connections.
//!
//! An enabled webhook has a consumer group on each of its topics, and one on [`RETRIES`]. Its sender leases one event at a time, so events
//! of a topic are sent in order; it passes over events of other organisations by moving the group. A failed delivery is returned to the bus,
//! which makes a dead letter of it in the end. A requeued letter is published on [`RETRIES`], so that no other reader of its topic gets
//! the event twice.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use effectd_bus::{
    Acknowledged, Body, DeadLetter, DeadLetterOrigin, Delivery, FamilyName, GroupName, GroupOptions, NewBody,
    NewEvent, SeekTo, Store, StoreError, StoredEvent, TopicName, Watch,
};
use effectd_contracts::{
    EventId, Exchange, ExchangeAnswer, ExchangeFault, ExchangeReply, Failure, Method, OrgId, ReceiptId,
    SpaceId, Timestamp, Topic, TraceId, Webhook, WebhookId,
};
use effectd_egress::Order;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::Sha256;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use zeroize::Zeroizing;

use super::Services;
use super::slack::{self, Asked};
use crate::control::switches::Switches;
use crate::limits::{
    CONNECTIONS_PAGE, OVERLOAD_RETRY, RETRY_AFTER_MAX, WEBHOOK_BACKOFF_FACTOR, WEBHOOK_BACKOFF_FIRST,
    WEBHOOK_DELIVERIES_MAX, WEBHOOK_LEASE, WEBHOOK_MS_MAX, WEBHOOK_PAGE, WEBHOOK_RETRY_MIN, WEBHOOKS_SENDING,
};
use crate::stored::{entries, json_bytes, read_json};

/// Webhooks by id, in clear.
pub(crate) const WEBHOOKS: &str = "webhooks";
/// The topic of events that are sent again, since an operator requeued their dead letters.
pub const RETRIES: &str = "WEBHOOK_RETRIES";
/// What the groups of webhooks begin with; the id follows.
const GROUP: &str = "webhook.";
/// The pause after a failure of the Store, and between two looks whether a restored state may go on.
const PAUSE: Duration = Duration::from_secs(1);

/// The senders of enabled webhooks; none in a process that is no daemon.
#[derive(Debug)]
pub struct Webhooks {
    senders: Mutex<Option<Senders>>,
    pub(crate) places: Arc<Semaphore>,
}

#[derive(Debug)]
struct Senders {
    running: HashMap<WebhookId, Running>,
    /// Approvals are above the services, so what Slack shows of them comes from there.
    asked: Asked,
}

/// A sender. Dropping this ends it, soon.
#[derive(Debug)]
struct Running {
    _stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self { senders: Mutex::default(), places: Arc::new(Semaphore::new(WEBHOOKS_SENDING)) }
    }
}

impl Webhooks {
    /// Ends all senders. What was being sent is sent again after the next start.
    pub fn stop(&self) {
        *self.senders.lock() = None;
    }

    /// Ends a sender, and returns when it does nothing any more.
    async fn end(&self, id: &WebhookId) {
        let running = self.senders.lock().as_mut().and_then(|senders| senders.running.remove(id));
        if let Some(Running { _stop: stop, task }) = running {
            drop(stop);
            let _ended = task.await;
        }
    }
}

/// All webhooks, each with the version of its entry.
pub fn all(store: &dyn Store) -> Result<Vec<(Webhook, u64)>, StoreError> {
    let mut found = Vec::new();
    for entry in entries(store, &FamilyName::new(WEBHOOKS)?, CONNECTIONS_PAGE) {
        let entry = entry?;
        found.extend(read_json(&entry).map(|webhook| (webhook, entry.version)));
    }
    Ok(found)
}

fn group_of(id: &WebhookId) -> Result<GroupName, StoreError> {
    GroupName::new(&format!("{GROUP}{id}"))
}

fn topics_of(webhook: &Webhook) -> Result<Vec<TopicName>, StoreError> {
    let asks = webhook.slack.is_some().then_some(Topic::Approvals.as_str());
    let topics = webhook.topics.iter().map(|topic| topic.as_str()).chain(asks).chain([RETRIES]);
    topics.map(TopicName::new).collect()
}

/// Lets a webhook begin with the next event. Its record is enabled afterwards: after a crash in between, the next start removes the groups.
pub(crate) async fn open(store: &dyn Store, webhook: &Webhook) -> Result<(), StoreError> {
    let group = group_of(&webhook.webhook_id)?;
    let options = GroupOptions { deliveries_max: WEBHOOK_DELIVERIES_MAX, ..GroupOptions::default() };
    for topic in topics_of(webhook)? {
        store.configure(&topic, &group, options).await?;
        store.seek(&topic, &group, SeekTo::End).await?;
    }
    Ok(())
}

/// Ends the sender of a webhook that is no longer enabled, and removes its groups: nothing is kept for it.
pub(crate) async fn close(services: &Services, webhook: &Webhook) -> Result<(), StoreError> {
    services.webhooks.end(&webhook.webhook_id).await;
    let group = group_of(&webhook.webhook_id)?;
    for topic in topics_of(webhook)? {
        services.store.remove_group(&topic, &group).await?;
    }
    slack::forget(&*services.store, |id| id != webhook.webhook_id.as_str()).await
}

/// Begins to send the events of a webhook that is enabled.
pub(crate) fn begin(services: &Arc<Services>, webhook: &Webhook) {
    if let Some(senders) = &mut *services.webhooks.senders.lock() {
        let (stop, stopped) = oneshot::channel();
        let task = supervise(Arc::downgrade(services), (webhook.clone(), senders.asked), stopped);
        let task = tokio::spawn(task);
        senders.running.insert(webhook.webhook_id.clone(), Running { _stop: stop, task });
    }
}

/// Begins to send the events of all enabled webhooks, and removes groups that a crash has left.
pub async fn start(services: &Arc<Services>, asked: Asked) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let store = &*services.store;
    let all = all(store)?.into_iter().map(|(webhook, _)| webhook);
    let enabled: Vec<_> = all.filter(|webhook| webhook.enabled).collect();
    let mut used = Vec::new();
    for webhook in &enabled {
        let group = group_of(&webhook.webhook_id)?;
        used.extend(topics_of(webhook)?.into_iter().map(|topic| (topic, group.clone())));
    }
    let topics = effectd_contracts::WebhookTopic::ALL.map(effectd_contracts::WebhookTopic::as_str);
    for topic in topics.into_iter().chain([Topic::Approvals.as_str(), RETRIES]) {
        for info in store.groups(&TopicName::new(topic)?).await? {
            let at = (info.topic, info.group);
            if at.1.as_str().starts_with(GROUP) && !used.contains(&at) {
                store.remove_group(&at.0, &at.1).await?;
            }
        }
    }
    slack::forget(store, |id| enabled.iter().any(|known| known.webhook_id.as_str() == id)).await?;
    *services.webhooks.senders.lock() = Some(Senders { running: HashMap::new(), asked });
    enabled.iter().for_each(|webhook| begin(services, webhook));
    Ok(())
}

/// Starts a sender again when it panics, until it is stopped.
async fn supervise(
    services: Weak<Services>,
    (webhook, asked): (Webhook, Asked),
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let mut one = JoinSet::new();
        one.spawn(send(services.clone(), webhook.clone(), asked));
        let ended = tokio::select! {
            ended = one.join_next() => ended,
            _ = &mut stopped => return one.shutdown().await,
        };
        match ended {
            Some(Err(error)) if error.is_panic() => {
                tracing::error!(%error, webhook_id = %webhook.webhook_id, "the sender of a webhook panicked; it restarts");
                tokio::time::sleep(PAUSE).await;
            }
            Some(_) | None => return,
        }
    }
}

async fn send(services: Weak<Services>, webhook: Webhook, asked: Asked) {
    let sender = services.upgrade().map(|services| Sender::new(&services, webhook, asked));
    let mut sender = match sender {
        Some(Ok(sender)) => sender,
        Some(Err(error)) => return tracing::error!(%error, "a webhook cannot be sent"),
        None => return,
    };
    loop {
        // Nothing holds the runtime while the sender waits.
        let Some(running) = services.upgrade() else { return };
        let next = sender.round(&running).await;
        drop(running);
        match next {
            Ok(Next::More) => {}
            Ok(Next::Later(pause)) => tokio::time::sleep(pause).await,
            Ok(Next::News) => {
                if sender.news().await.is_err() {
                    return;
                }
            }
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, webhook_id = %sender.webhook.webhook_id, "events of a webhook cannot be read");
                sender.feeds.iter_mut().for_each(|feed| feed.at = None);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

struct Sender {
    webhook: Webhook,
    asked: Asked,
    group: GroupName,
    feeds: Vec<Feed>,
}

/// One topic of a webhook.
struct Feed {
    topic: TopicName,
    news: Watch,
    /// The first event that is not acknowledged, if that is known.
    at: Option<u64>,
}

/// When a sender goes on.
enum Next {
    More,
    /// After this time, whatever happens meanwhile: a service that fails is not asked more often because there is more to tell.
    Later(Duration),
    News,
}

/// Why an event was not delivered.
pub(crate) struct Undelivered {
    pub(crate) why: String,
    /// When the service asks to be asked again.
    after: Option<Duration>,
}

impl Undelivered {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), after: None }
    }
}

impl From<Failure> for Undelivered {
    fn from(failure: Failure) -> Self {
        Self::new(failure.message)
    }
}

impl From<StoreError> for Undelivered {
    fn from(error: StoreError) -> Self {
        Self::new(error.to_string())
    }
}

/// An event that is sent again.
#[derive(Debug, Serialize, Deserialize)]
struct Again {
    webhook_id: WebhookId,
    /// Its offset in its own topic.
    offset: u64,
    event: Map<String, Value>,
}

impl Sender {
    fn new(services: &Services, webhook: Webhook, asked: Asked) -> Result<Self, StoreError> {
        let feed = |topic: TopicName| Ok(Feed { news: services.store.watch(&topic)?, topic, at: None });
        let feeds = topics_of(&webhook)?.into_iter().map(feed).collect::<Result<_, StoreError>>()?;
        Ok(Self { group: group_of(&webhook.webhook_id)?, feeds, webhook, asked })
    }

    async fn news(&mut self) -> Result<(), StoreError> {
        let watches = &mut self.feeds;
        poll_fn(|cx| {
            let ready = watches.iter_mut().map(|feed| pin!(feed.news.changed()).poll(cx));
            ready.fold(Poll::Pending, |first, next| if first.is_ready() { first } else { next })
        })
        .await
    }

    /// Does one step on each topic.
    async fn round(&mut self, services: &Services) -> Result<Next, StoreError> {
        if Switches::new(&*services.store).restored()?.is_some_and(|restored| restored.waits) {
            return Ok(Next::Later(PAUSE));
        }
        let mut next = Next::News;
        for nth in 0..self.feeds.len() {
            match self.step(services, nth).await {
                Ok(Next::News) => {}
                Ok(Next::More) => next = Next::More,
                Ok(later @ Next::Later(_)) => return Ok(later),
                Err(StoreError::Dropped { topic, begins }) => {
                    tracing::warn!(webhook_id = %self.webhook.webhook_id, %topic, begins, "retention dropped events that a webhook has not sent");
                    self.feeds[nth].at = Some(services.store.seek(&topic, &self.group, SeekTo::Start).await?);
                    next = Next::More;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(next)
    }

    /// Passes over events that are not for this webhook, or sends one that is.
    async fn step(&mut self, services: &Services, nth: usize) -> Result<Next, StoreError> {
        let (store, group, org) = (&*services.store, self.group.clone(), self.webhook.org.clone());
        let topic = self.feeds[nth].topic.clone();
        let at = match self.feeds[nth].at {
            Some(at) => at,
            None => {
                let known = store.groups(&topic).await?.into_iter().find(|known| known.group == group);
                match known {
                    Some(known) => known.committed,
                    None => store.seek(&topic, &group, SeekTo::End).await?,
                }
            }
        };
        self.feeds[nth].at = Some(at);
        let page = store.read(&topic, at, WEBHOOK_PAGE)?;
        let mut others = 0;
        for event in &page.events {
            if self.is_for(services, event)? {
                break;
            }
            others += 1;
        }
        if others > 0 {
            self.feeds[nth].at = Some(store.seek(&topic, &group, SeekTo::Offset(at + others)).await?);
            return Ok(Next::More);
        }
        if page.events.is_empty() {
            return Ok(Next::News);
        }
        let Ok(_sending) = services.webhooks.places.acquire().await else {
            return Err(StoreError::Closed);
        };
        let Ok(_place) = services.egress.place(&org) else {
            return Ok(Next::Later(OVERLOAD_RETRY));
        };
        let leased = store.lease(&topic, &group, 1, WEBHOOK_LEASE).await?;
        let later = Next::Later(leased.next_due.unwrap_or(PAUSE).clamp(WEBHOOK_RETRY_MIN, RETRY_AFTER_MAX));
        let Some(delivery) = leased.deliveries.into_iter().next() else {
            return Ok(later);
        };
        if delivery.offset != at {
            // The event before it is still delayed, since a restart.
            self.feeds[nth].at = None;
            store.defer(delivery.lease_id, WEBHOOK_RETRY_MIN).await?;
            return Ok(later);
        }
        self.deliver(services, nth, delivery).await
    }

    async fn deliver(
        &mut self,
        services: &Services,
        nth: usize,
        delivery: Delivery,
    ) -> Result<Next, StoreError> {
        let (store, webhook, at) = (&*services.store, &self.webhook, &mut self.feeds[nth].at);
        let ended = Some(delivery.offset + 1);
        let counted = |outcome: &str| services.metrics.webhooks.with_label_values(&[outcome]).inc();
        let sent = match &webhook.slack {
            None => post(services, webhook, &delivery.event).await,
            Some(channel) => slack::tell(services, (webhook, channel), &delivery.event, self.asked).await,
        };
        let Err(Undelivered { why, after }) = sent else {
            store.ack(delivery.lease_id).await?;
            counted("delivered");
            *at = ended;
            return Ok(Next::More);
        };
        let Webhook { webhook_id, source, path, .. } = webhook;
        let delay = after
            .unwrap_or_else(|| pause_after(delivery.delivery_count))
            .clamp(WEBHOOK_RETRY_MIN, RETRY_AFTER_MAX);
        let detail = format!("webhook {webhook_id} to {source} at {path}: {why}");
        tracing::info!(%webhook_id, offset = delivery.offset, attempt = delivery.delivery_count, why, "an event was not delivered");
        match store.nack(delivery.lease_id, delay, &detail).await? {
            Acknowledged::DeadLettered { letter } => {
                tracing::warn!(%webhook_id, letter, "an event that cannot be delivered becomes a dead letter");
                counted("dead_letter");
                *at = ended;
                Ok(Next::More)
            }
            Acknowledged::WillRetry | Acknowledged::Done => {
                counted("failed");
                Ok(Next::Later(delay))
            }
        }
    }

    /// Whether an event belongs to the webhook's organisation: if the receipt that it is about does, as for who reads events by a token.
    fn is_for(&self, services: &Services, event: &StoredEvent) -> Result<bool, StoreError> {
        let Body::Clear(bytes) = &event.body else { return Ok(false) };
        if event.topic.as_str() == RETRIES {
            let again = serde_json::from_slice::<Again>(bytes);
            return Ok(again.is_ok_and(|again| again.webhook_id == self.webhook.webhook_id));
        }
        if self.webhook.slack.is_some() {
            return Ok(slack::is_for(services, &self.webhook.org, bytes));
        }
        let Ok(About { data: Named { receipt_id } }) = serde_json::from_slice(bytes) else {
            return Ok(false);
        };
        match services.receipt(&receipt_id) {
            Some((receipt, _)) => Ok(receipt.org.as_ref() == Some(&self.webhook.org)),
            // An error is no answer: the event waits.
            None => store_has_none(&*services.store, &receipt_id).map(|()| false),
        }
    }
}

fn store_has_none(store: &dyn Store, receipt: &ReceiptId) -> Result<(), StoreError> {
    match store.receipt(receipt) {
        Ok(_) | Err(StoreError::Damaged { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The part of an event that says what it is about.
#[derive(Deserialize)]
struct About {
    data: Named,
}

#[derive(Deserialize)]
struct Named {
    receipt_id: ReceiptId,
}

fn pause_after(deliveries: u32) -> Duration {
    let factor = WEBHOOK_BACKOFF_FACTOR.saturating_pow(deliveries.saturating_sub(1));
    WEBHOOK_BACKOFF_FIRST.saturating_mul(factor).min(RETRY_AFTER_MAX)
}

/// Whether a connection of the organisation has a route at this path without a placeholder, and its host may be reached.
pub(crate) fn check_way(
    services: &Services,
    (org, source): (&OrgId, &str),
    method: Method,
    path: &str,
) -> Result<(), String> {
    let enabled = services.connection(org, source).filter(|known| known.access.is_some());
    let enabled = enabled.ok_or_else(|| format!("{source} is no enabled connection of {org} by HTTP"))?;
    let routes = enabled.access.iter().flat_map(|access| &access.routes);
    if !routes.into_iter().any(|route| route.method == method && route.path == path && !path.contains('{')) {
        let method = method.as_str();
        return Err(format!("{source} has no route \"{method} {path}\", or it has a placeholder"));
    }
    match enabled.hosts.iter().find(|host| !services.policy().allows_host(host)) {
        Some(host) => Err(format!("the policy's allow.hosts does not list {host}")),
        None => Ok(()),
    }
}

/// An event as readers get it: with the device as its source, and its offset in its topic.
pub fn placed(mut event: Map<String, Value>, source: &str, offset: u64) -> Value {
    event.insert("source".to_owned(), source.into());
    event.insert("offset".to_owned(), offset.into());
    Value::Object(event)
}

/// An event that is delivered, and its offset in its own topic.
pub(super) fn event_in(stored: &StoredEvent) -> Result<(Map<String, Value>, u64), Undelivered> {
    let bytes = stored.body.bytes().unwrap_or_default();
    let read = if stored.topic.as_str() == RETRIES {
        serde_json::from_slice(bytes).map(|Again { event, offset, .. }| (event, offset))
    } else {
        serde_json::from_slice(bytes).map(|event| (event, stored.offset))
    };
    read.map_err(|_| Undelivered::new("the event cannot be read"))
}

/// Sends one event, signed.
async fn post(services: &Services, webhook: &Webhook, stored: &StoredEvent) -> Result<(), Undelivered> {
    let Webhook { org, source, path, signed_by, .. } = webhook;
    let (event, offset) = event_in(stored)?;
    let event = placed(event, &services.identity.device(), offset);
    let secret = services.secret(org, signed_by)?;
    let key = signing_key(secret.value.as_str())
        .ok_or_else(|| Undelivered::new(format!("the secret {signed_by:?} of {org} cannot sign")))?;
    let (id, body) = (event["id"].as_str().unwrap_or_default().to_owned(), json_bytes(&event));
    let timestamp = services.clock.now().as_second().to_string();
    let signature = signature(&key, &[&id, &timestamp], &body);
    let own_headers =
        [("webhook-id", id), ("webhook-timestamp", timestamp), ("webhook-signature", signature)];
    let own_headers = own_headers.map(|(name, value)| (name.to_owned(), value)).into();
    let exchange = Exchange { body, ..Exchange::new(source.as_str(), Method::Post, path.as_str()) };
    ask(services, org, exchange, own_headers).await.map(drop)
}

/// One request of a webhook, and its answer with 2xx.
pub(super) async fn ask(
    services: &Services,
    org: &OrgId,
    exchange: Exchange,
    own_headers: Vec<(String, String)>,
) -> Result<ExchangeAnswer, Undelivered> {
    let source = exchange.connection.clone();
    check_way(services, (org, &source), exchange.method, &exchange.path).map_err(Undelivered::new)?;
    let connection =
        services.connection(org, &source).ok_or_else(|| Undelivered::new("the connection is gone"))?;
    let way = services.way(org, &source, &connection, Duration::from_millis(WEBHOOK_MS_MAX)).await?;
    let room = services.egress.broker.room(exchange.body.len()).await;
    let has_body = exchange.method.is_write().then_some(("content-type", "application/json"));
    let headers = has_body.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let exchange = Exchange { headers, ..exchange };
    let order = Order { own_headers, ..way.order(exchange, WEBHOOK_MS_MAX) };
    let carried = services.egress.broker.carry(order, room).await;
    let outcome = carried.record.fault.map_or("answered", ExchangeFault::as_str);
    services.metrics.egress.with_label_values(&[outcome]).inc();
    services.metrics.egress_seconds.observe(carried.record.ms.as_f64() / 1_000.0);
    match carried.reply {
        ExchangeReply::Answered(answer) if (200..300).contains(&answer.status) => Ok(answer),
        ExchangeReply::Answered(answer) => {
            if answer.status == 401 {
                way.unauthorized().await;
            }
            let seconds = answer.header("retry-after").and_then(|value| value.parse().ok());
            let why = format!("the service answered {}", answer.status);
            Err(Undelivered { why, after: seconds.map(Duration::from_secs) })
        }
        ExchangeReply::Failed(failure) => Err(Undelivered::new(failure.message)),
    }
}

/// The key in a secret: `whsec_` and base64, or the text itself.
pub(crate) fn signing_key(secret: &str) -> Option<Zeroizing<Vec<u8>>> {
    let key = match secret.strip_prefix("whsec_") {
        Some(base64) => STANDARD.decode(base64).ok()?,
        None => secret.as_bytes().to_vec(),
    };
    (!key.is_empty()).then(|| Zeroizing::new(key))
}

/// The signature of Standard Webhooks: over id, timestamp and body, with dots between.
fn signature(key: &[u8], parts: &[&str; 2], body: &[u8]) -> String {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    for part in parts {
        mac.update(part.as_bytes());
        mac.update(b".");
    }
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// The webhook that could not deliver this letter.
fn webhook_of(letter: &DeadLetter) -> Option<(WebhookId, u64)> {
    let DeadLetterOrigin::Delivery { group, offset } = &letter.origin else { return None };
    Some((WebhookId::new(group.as_str().strip_prefix(GROUP)?).ok()?, *offset))
}

/// The event in a letter of a webhook.
fn event_of(letter: &DeadLetter) -> Option<Again> {
    let (webhook_id, offset) = webhook_of(letter)?;
    let bytes = letter.payload.bytes()?;
    if letter.topic.as_str() == RETRIES {
        return serde_json::from_slice(bytes).ok();
    }
    Some(Again { webhook_id, offset, event: serde_json::from_slice(bytes).ok()? })
}

/// The webhook of a letter, and the space of the event that it could not deliver; `None` if the letter is none of a webhook.
pub fn of_letter(letter: &DeadLetter) -> Option<(WebhookId, Option<SpaceId>)> {
    let (id, _) = webhook_of(letter)?;
    let space = event_of(letter).and_then(|again| again.event.get("spaceid")?.as_str()?.parse().ok());
    Some((id, space))
}

/// Lets a webhook send the event of its dead letter again; `None` if the letter is none of a webhook, otherwise why it is not sent. Blocks.
/// Repeating it after a crash in the middle publishes nothing twice.
pub(crate) fn requeue(
    store: &dyn Store,
    letter: &DeadLetter,
    now: Timestamp,
) -> Result<Option<Result<(), String>>, StoreError> {
    let Some((id, _)) = webhook_of(letter) else { return Ok(None) };
    let known = store.entry(&FamilyName::new(WEBHOOKS)?, id.as_str())?;
    let known: Option<Webhook> = known.as_ref().and_then(read_json);
    let why = match (known, event_of(letter)) {
        (None, _) => format!("the webhook {id} is deleted; drop the letter"),
        (Some(known), _) if !known.enabled => format!("the webhook {id} is disabled; enable it first"),
        (Some(_), None) => "its event can no longer be read".to_owned(),
        (Some(_), Some(again)) => {
            let event = NewEvent {
                event_id: EventId::new(format!("webhook-again-{}", letter.letter))?,
                time: now,
                trace_id: TraceId::fresh(),
                action_id: letter.action_id.clone(),
                body: NewBody::Clear(json_bytes(&again)),
            };
            store.publish(&TopicName::new(RETRIES)?, vec![event]).wait()?;
            store.purge(vec![letter.letter]).wait()?;
            return Ok(Some(Ok(())));
        }
    };
    Ok(Some(Err(why)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The example of the specification of Standard Webhooks.
    #[test]
    fn a_signature_is_that_of_standard_webhooks() {
        let key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            signature(&key, &["msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330"], br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(signing_key("plain text").unwrap().as_slice(), b"plain text");
        assert!(signing_key("whsec_no base64").is_none() && signing_key("whsec_").is_none());
    }

    #[test]
    fn pauses_grow_to_an_hour() {
        let seconds: Vec<_> =
            (1..=WEBHOOK_DELIVERIES_MAX).map(|count| pause_after(count).as_secs()).collect();
        assert_eq!(seconds, [1, 3, 9, 27, 81, 243, 729, 2_187, 3_600, 3_600]);
    }
}
