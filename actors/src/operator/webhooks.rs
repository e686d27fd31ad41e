//! Creates, enables, disables and deletes webhooks. The sender and the groups of a webhook follow its record: see
//! [`crate::services::webhooks`].

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::access::HTTP_SOURCE;
use effectd_contracts::{
    Method, OrgId, Principal, SlackChannel, Timestamp, Webhook, WebhookId, WebhookTopic,
};

use super::connections::{check_org, has_room, has_secret, no_such};
use crate::approvals::repository::{Step, Versioned, read};
use crate::limits::WEBHOOKS_MAX;
use crate::services::Services;
use crate::services::slack;
use crate::services::tokens::ACCOUNT;
use crate::services::webhooks::{self, WEBHOOKS, all, check_way, signing_key};

pub(super) fn known(store: &dyn Store, id: &WebhookId) -> Result<Versioned<Webhook>, StoreError> {
    let entry = store.entry(&FamilyName::new(WEBHOOKS)?, id.as_str())?;
    read(&entry.ok_or_else(|| no_such(format!("there is no webhook {id}")))?)
}

/// The webhook that an operation creates.
pub(super) fn record(
    (webhook_id, org, signed_by): (WebhookId, OrgId, String),
    (source, path): (String, String),
    (mut topics, slack): (Vec<WebhookTopic>, Option<SlackChannel>),
    (created_by, created_at): (Principal, Timestamp),
) -> Webhook {
    topics.sort_unstable();
    topics.dedup();
    Webhook { webhook_id, org, source, path, topics, signed_by, slack, enabled: true, created_by, created_at }
}

/// Refuses a webhook that could not deliver anything.
pub(super) fn check(services: &Services, new: &Webhook) -> Result<(), StoreError> {
    let Webhook { webhook_id, org, source, path, topics, signed_by, slack, .. } = new;
    let invalid = |why: &str| Err(StoreError::Invalid(why.to_owned()));
    check_org(services, org)?;
    if topics.is_empty() != slack.is_some() {
        return invalid("a webhook needs a topic; a channel of Slack gets questions, and has none");
    }
    let paths = match slack {
        None => vec![path.clone()],
        Some(_) if source.starts_with(HTTP_SOURCE) => {
            return invalid(
                "a channel of Slack needs the connection of --preset slack: with http.* planners could rewrite its messages",
            );
        }
        Some(channel) => slack::check(channel, path).map_err(StoreError::Invalid)?,
    };
    for path in &paths {
        check_way(services, (org, source), Method::Post, path).map_err(StoreError::Invalid)?;
    }
    if !has_secret(&*services.store, org, signed_by)? {
        return Err(no_such(format!("{org} has no secret {signed_by:?}; `effectd secrets set` stores one")));
    }
    let secret = services.secret(org, signed_by).map_err(|failure| StoreError::Invalid(failure.message))?;
    if slack.is_some() && secret.set_by.as_str().starts_with(ACCOUNT) {
        return Err(StoreError::Invalid(format!(
            "the secret {signed_by:?} was set with a token: set it again on this machine, since whoever knows it can answer in Slack for all"
        )));
    }
    if signing_key(secret.value.as_str()).is_none() {
        return Err(StoreError::Invalid(format!(
            "the secret {signed_by:?} begins with whsec_, and base64 must follow"
        )));
    }
    let all = all(&*services.store)?;
    let others = all.iter().filter(|(other, _)| other.org == *org && other.webhook_id != *webhook_id).count();
    has_room("number of webhooks of the organisation", others + 1, WEBHOOKS_MAX)
}

pub(super) async fn create(services: &Arc<Services>, new: &Webhook) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    check(services, new)?;
    put(services, new, Expect::Absent).await
}

pub(super) async fn enable(
    services: &Arc<Services>,
    id: &WebhookId,
    enabled: bool,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: mut webhook, version } = known(&*services.store, id)?;
    webhook.enabled = enabled;
    if enabled {
        check(services, &webhook)?;
    }
    put(services, &webhook, Expect::Version(version)).await
}

async fn put(services: &Arc<Services>, webhook: &Webhook, expect: Expect) -> Result<(), StoreError> {
    if webhook.enabled {
        webhooks::open(&*services.store, webhook).await?;
    }
    let mut step = Step::default();
    step.put(WEBHOOKS, webhook.webhook_id.as_str(), expect, webhook)?;
    step.commit(&*services.store).await?;
    if webhook.enabled {
        webhooks::begin(services, webhook);
        return Ok(());
    }
    webhooks::close(services, webhook).await
}

pub(super) async fn delete(services: &Services, id: &WebhookId) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: webhook, version } = known(&*services.store, id)?;
    let mut step = Step::default();
    step.delete(WEBHOOKS, id.as_str(), Expect::Version(version))?;
    step.commit(&*services.store).await?;
    webhooks::close(services, &webhook).await
}
