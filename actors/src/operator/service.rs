//! The operators' service: previews and performs every [`Operation`], and records its changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use effectd_bus::{Cause, Store, StoreError, TopicName};
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::text::{counted, is_unprintable};
use effectd_contracts::{
    Capability, Connection, Connector, Operation, OrgId, Principal, ReceiptId, Session, SpaceId, Timestamp,
    ToolId, Topic, Transport,
};
use effectd_policy::Policy;
use serde_json::{Map, Value, json};

use super::store_admin::{removes_anything, retention_details};
use super::{
    automations, connections, connectors, overlays, plugins, replay, sessions, slack, tokens, webhooks,
};
use crate::approvals::grants;
use crate::approvals::rejudge::{self, Rejudged, Under};
use crate::claims::pending::open_decisions;
use crate::control::breakers::{Breakers, View};
use crate::control::switches::{Off, Restored, Switches};
use crate::effects::quarantine;
use crate::limits::OPEN_TOLD_MAX;
use crate::operator::dead_letters::{self, IfUnknown, Now};
use crate::operator::operations::{Terms, recorded};
use crate::operator::retention;
use crate::registry::Registry;
use crate::services::Services;
use crate::services::connections::SecretValue;
use crate::services::connectors::{Counted, Drift, ToolState};
use crate::services::tokens::Token;

/// Dead letters that one operation may name: it reads each of them.
pub const OPERATION_LETTERS_MAX: usize = 500;

/// What an operation changed, or would change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Performed {
    pub changed: bool,
    /// For people, one line each.
    pub summary: Vec<String>,
    pub receipt_id: Option<ReceiptId>,
    /// The outcome for each dead letter that the operation names.
    pub letters: Vec<(u64, Now)>,
    /// The token that was created. Nothing else ever has its value.
    pub token: Option<SecretValue>,
}

/// The outcome, and the details for the receipt if anything changed.
type Work = (Performed, Option<Map<String, Value>>);

/// Performs an operation; returns when it and its receipt are durable. An operation that changes nothing leaves no receipt. The
/// caller spawns this, so that it completes even if the client disconnects.
pub async fn perform(
    services: Arc<Services>,
    operation: Operation,
    terms: Terms,
    by: Principal,
) -> Result<Performed, StoreError> {
    let would = blocking(&services, {
        let (operation, terms) = (operation.clone(), terms.clone());
        move |services| preview(services, &operation, &terms)
    })
    .await?;
    let summary = would.summary.into_iter().next().unwrap_or_default();
    // Operations on dead letters report each letter, even if nothing changes.
    let of_letters = matches!(
        operation,
        Operation::RequeueLetters { .. } | Operation::DropLetters { .. } | Operation::SettleLetter { .. }
    );
    if !would.changed && !of_letters {
        return Ok(unchanged(summary).0);
    }
    let reason = terms.reason.clone();
    let work = carry_out(services.clone(), operation.clone(), by.clone(), (summary, terms));
    let (performed, receipt_id) = recorded(&services, &operation, (&by, reason), work).await?;
    Ok(Performed { receipt_id, ..performed })
}

fn unchanged(summary: impl Into<String>) -> Work {
    let performed = Performed { summary: vec![summary.into()], ..Performed::default() };
    (performed, None)
}

async fn carry_out(
    services: Arc<Services>,
    operation: Operation,
    by: Principal,
    (summary, Terms { reason, until, .. }): (String, Terms),
) -> Result<Work, StoreError> {
    let switches = Switches::new(&*services.store);
    let (principal, mut token) = (by.clone(), None);
    let (store, clock, by) = (&*services.store, &*services.clock, by.as_str());
    let mut details = match operation {
        Operation::DisableTool { tool_id } => {
            let tool = own_id(&services.registry(), &tool_id)?;
            switches.disable_tool(&tool, Off(until))?.await?;
            json!({ "disabled": true })
        }
        Operation::EnableTool { tool_id } => {
            let tool = own_id(&services.registry(), &tool_id)?;
            switches.enable_tool(&tool).await?;
            json!({ "disabled": false })
        }
        Operation::SetCaps { tool_id, caps } => {
            switches.set_caps(&own_id(&services.registry(), &tool_id)?, Some(&caps))?.await?;
            json!({ "caps": caps })
        }
        Operation::ResetCaps { tool_id } => {
            switches.set_caps(&own_id(&services.registry(), &tool_id)?, None)?.await?;
            json!({})
        }
        Operation::Pause {} => {
            switches.pause(Off(until), reason.as_deref(), clock.now())?.await?;
            json!({ "paused": true })
        }
        Operation::Resume {} => {
            let (resumed, restored) = switches.resume()?;
            resumed.await?;
            match restored {
                Some(restored) => json!({ "paused": false, "restored": restored }),
                None => json!({ "paused": false }),
            }
        }
        Operation::TripBreaker { key } => {
            breaker_to_trip(&services, &key)?;
            let lasts = until.map(|until| until.duration_since(clock.now()).try_into().unwrap_or_default());
            services.control.breakers.trip(&key, lasts).await?;
            json!({ "state": "open" })
        }
        Operation::ResetBreaker { key } => {
            services.control.breakers.reset(&key).await?;
            json!({ "state": "closed" })
        }
        Operation::QuarantineArtifact { artifact_id, reason } => {
            quarantine::quarantine(store, clock, &artifact_id, by, reason).await?;
            json!({ "quarantined": true })
        }
        Operation::ReleaseArtifact { artifact_id } => {
            quarantine::release(store, clock, &artifact_id, by).await?;
            json!({ "quarantined": false })
        }
        Operation::RequeueLetters { letters } => {
            return blocking(&services, move |services| {
                let now = services.clock.now();
                dead_letters::requeue(&*services.store, &letters, now, IfUnknown::Leave).map(count_letters)
            })
            .await;
        }
        Operation::DropLetters { letters } => {
            return blocking(&services, move |services| {
                dead_letters::purge(&*services.store, &letters).map(count_letters)
            })
            .await;
        }
        Operation::SettleLetter { letter, done } => {
            return blocking(&services, move |services| {
                settle_letter(&*services.store, services.clock.now(), letter, done)
            })
            .await;
        }
        Operation::SeekGroup { topic, group, to } => {
            let offset = blocking(&services, move |services| {
                let to = replay::parse_position(&to, services.clock.now())?;
                replay::seek(&*services.store, &topic, &group, to)
            });
            json!({ "offset": offset.await? })
        }
        Operation::Retain {} => match retention_details(&retention::run(&services).await?) {
            Some(details) => Value::Object(details),
            None => return Ok(unchanged("nothing to remove")),
        },
        Operation::Rejudge {} => {
            let policy = services.policy();
            let judged = rejudge::run(&services, rejudging(&services, &policy)?).await?;
            let performed = Performed { changed: true, ..unchanged(rejudged(&judged)).0 };
            let details =
                json!({ "released": judged.released, "ended": judged.ended, "waiting": judged.waiting });
            return Ok((performed, Some(object(details))));
        }
        Operation::RotateDeviceKey {} => {
            let change = blocking(&services, |services| services.store.rotate_device_key()).await?;
            json!({ "device_key": change.after, "previous": change.before })
        }
        Operation::CreateSession { session_id, space_id, subject_id, title, unattended, connections } => {
            let (created_by, created_at) = (principal, clock.now());
            let checked = move |services: &Services| -> Result<Session, StoreError> {
                let about = (&subject_id, &space_id);
                let org = sessions::check_new(services, &session_id, about, &title, &connections)?;
                Ok(Session {
                    session_id,
                    org,
                    space_id,
                    subject_id,
                    created_by,
                    title,
                    unattended,
                    connections,
                    created_at,
                    ended_at: None,
                })
            };
            let session = blocking(&services, checked).await?;
            let (first, value) = tokens::of_session(&session)?;
            sessions::create(&services, &session, &first).await?;
            token = Some(value);
            // A name with `token` in it would hide the id.
            json!({ "org": session.org, "issued": first.token_id })
        }
        Operation::EndSession { session_id } => {
            sessions::end(&services, &session_id, &principal).await?;
            json!({ "ended": true })
        }
        Operation::DeleteSession { session_id } => {
            sessions::delete(&services, &session_id, &principal).await?;
            json!({ "deleted": true })
        }
        Operation::CreateConnection {
            connection_id,
            org,
            source,
            name,
            hosts,
            secrets,
            access,
            connector,
        } => {
            let (created_by, created_at) = (principal, clock.now());
            let new = Connection {
                connection_id,
                org,
                source,
                name,
                hosts,
                secrets,
                access: access.map(|access| *access),
                connector: connector.map(|connector| *connector),
                enabled: true,
                created_by,
                created_at,
            };
            connections::create(&services, &new).await?;
            json!({ "enabled": true })
        }
        Operation::ReplaceConnection { connection_id, name, hosts, secrets, access, connector } => {
            let leads_to = (&hosts[..], &secrets[..], access.as_deref(), connector.as_deref());
            connections::replace(&services, &connection_id, &name, leads_to, &principal).await?;
            json!({ "replaced": true })
        }
        Operation::EnableConnection { connection_id } => {
            connections::enable(&services, &connection_id, true, &principal).await?;
            json!({ "enabled": true })
        }
        Operation::DisableConnection { connection_id } => {
            connections::enable(&services, &connection_id, false, &principal).await?;
            json!({ "enabled": false })
        }
        Operation::DeleteConnection { connection_id } => {
            connections::delete(&services, &connection_id, &principal).await?;
            json!({ "deleted": true })
        }
        Operation::HarvestConnector { connection_id } => {
            let (counted, summary) = connectors::harvest(&services, &connection_id, &principal).await?;
            let Counted { tools, changed, drifted } = counted;
            if changed == 0 {
                return Ok(unchanged(summary));
            }
            let performed = Performed { changed: true, ..unchanged(summary).0 };
            let details = json!({ "tools": tools, "changed": changed, "drifted": drifted });
            return Ok((performed, Some(object(details))));
        }
        Operation::ReviewConnector { connection_id, digest } => {
            connectors::review(&services, &connection_id, &digest, &principal).await?;
            json!({ "reviewed": digest })
        }
        Operation::OverlayTool { tool_id, says } => {
            overlays::overlay(&services, &tool_id, says.as_deref(), &principal).await?;
            json!({ "overlaid": says.is_some() })
        }
        Operation::AddPlugin { name, digest } => {
            let (pinned, _) =
                blocking(&services, move |services| plugins::check(services, &name, &digest)).await?;
            let digest = pinned.digest();
            plugins::add(&services, pinned, principal).await?;
            json!({ "added": digest })
        }
        Operation::RemovePlugin { name } => {
            plugins::remove(&services, &name).await?;
            json!({ "removed": true })
        }
        Operation::CreateWebhook { webhook_id, org, source, path, topics, signed_by, slack } => {
            let by = (principal, clock.now());
            let what = (topics, slack.map(|channel| *channel));
            let new = webhooks::record((webhook_id, org, signed_by), (source, path), what, by);
            webhooks::create(&services, &new).await?;
            json!({ "enabled": true })
        }
        Operation::EnableWebhook { webhook_id } => {
            webhooks::enable(&services, &webhook_id, true).await?;
            json!({ "enabled": true })
        }
        Operation::DisableWebhook { webhook_id } => {
            webhooks::enable(&services, &webhook_id, false).await?;
            json!({ "enabled": false })
        }
        Operation::DeleteWebhook { webhook_id } => {
            webhooks::delete(&services, &webhook_id).await?;
            json!({ "deleted": true })
        }
        Operation::SetAutomation { automation_id, status } => {
            Value::Object(automations::set(&services, &automation_id, status).await?)
        }
        Operation::DeleteAutomation { automation_id } => {
            automations::delete(&services, &automation_id).await?;
            json!({ "deleted": true })
        }
        Operation::MapSlackUser { org, team, user, account } => {
            let mapped = account.is_some();
            slack::map(&services, (&org, &team, &user), account.as_deref(), principal).await?;
            json!({ "mapped": mapped })
        }
        Operation::DeleteSecret { org, name } => {
            connections::delete_secret(&services, &org, &name, &principal).await?;
            json!({ "deleted": true })
        }
        Operation::CreateToken { id, kind, org, session_id, name, not_before, expires_at } => {
            let new = tokens::record(id, kind, org, (principal, clock.now()));
            let new = Token { session_id, name, not_before, expires_at, ..new };
            token = Some(tokens::create(&services, new).await?);
            json!({ "created": true })
        }
        Operation::RevokeToken { id } => {
            tokens::revoke(&services, &id).await?;
            json!({ "revoked": true })
        }
        Operation::RotateToken { id, next } => {
            token = Some(tokens::rotate(&services, (id, next), principal).await?);
            json!({ "revoked": true, "created": true })
        }
        // These operations do not hold the value.
        Operation::SetSecret { .. } => return Err(has_own_route("/v1/secrets")),
        Operation::SaveAutomation { .. } => return Err(has_own_route("/api/v1/automations")),
        // `preview` has already refused these.
        Operation::RotateKey {}
        | Operation::ReloadPolicy {}
        | Operation::ClearOverlay {}
        | Operation::GrantConsent { .. }
        | Operation::RevokeConsent { .. }
        | Operation::SetMode { .. }
        | Operation::SetBand { .. }
        | Operation::SetEntry { .. }
        | Operation::StartShadow {}
        | Operation::StopShadow {}
        | Operation::Erase { .. } => return Err(has_own_route("its own route")),
    };
    if let Some(until) = until {
        details["until"] = json!(until);
    }
    let performed = Performed { changed: true, token, ..unchanged(summary).0 };
    Ok((performed, Some(object(details))))
}

/// Everything that is in force now.
fn rejudging<'a>(services: &Services, policy: &'a Policy) -> Result<Under<'a>, StoreError> {
    let grants = grants::all(&*services.store)?.into_iter().map(|grant| grant.value).collect();
    Ok(Under { before: None, now: policy, grants, except: None })
}

fn rejudged(judged: &Rejudged) -> String {
    let Rejudged { released, ended, waiting } = judged;
    format!("pending approvals: {released} to start, {ended} to be denied, {waiting} for a person to decide")
}

/// Refuses an operation that has a route of its own, whose response contains more.
fn has_own_route(route: &str) -> StoreError {
    StoreError::Invalid(format!("use {route} for this"))
}

/// The members of a value that was just built as a JSON object.
pub(super) fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Runs blocking work on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    services: &Arc<Services>,
    work: impl FnOnce(&Services) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let services = services.clone();
    let done = tokio::task::spawn_blocking(move || work(&services)).await;
    done.unwrap_or_else(|error| Err(StoreError::unavailable_by("the work was cut short", error)))
}

fn count_letters(letters: Vec<(u64, Now)>) -> Work {
    let (mut requeued, mut dropped, mut gone, mut left) = (0, 0, 0, 0);
    for (_, now) in &letters {
        match now {
            Now::Requeued => requeued += 1,
            Now::Purged => dropped += 1,
            Now::Gone => gone += 1,
            Now::Left(_) => left += 1,
        }
    }
    let changed = requeued + dropped > 0;
    let counts = [(requeued, "requeued"), (dropped, "dropped"), (gone, "already gone"), (left, "left")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let summary = counts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ");
    let details = json!({ "requeued": requeued, "dropped": dropped, "gone": gone, "left": left });
    let performed = Performed { changed, summary: vec![summary], letters, ..Performed::default() };
    (performed, changed.then(|| object(details)))
}

/// Records whether the effect of unknown outcome happened: if it did, the letter is purged; if not, it is requeued.
fn settle_letter(store: &dyn Store, now: Timestamp, number: u64, happened: bool) -> Result<Work, StoreError> {
    let Some(letter) = store.letter(number)? else {
        return Ok(unchanged("this dead letter no longer exists"));
    };
    if !dead_letters::is_unknown(&letter) {
        return Err(StoreError::Invalid(format!(
            "dead letter {number} failed with {}: its effect did not happen, so there is nothing to settle; requeue or drop it",
            letter.code
        )));
    }
    let letters = if happened {
        dead_letters::purge(store, &[number])?
    } else {
        dead_letters::requeue(store, &[number], now, IfUnknown::Repeat)?
    };
    let (mut performed, mut details) = count_letters(letters);
    if let Some(details) = &mut details {
        let outcome = if happened { "it happened" } else { "it did not happen" };
        performed.summary = vec![format!("letter {number}: {outcome}")];
        details.insert("happened".to_owned(), json!(happened));
        details.insert("action_id".to_owned(), json!(letter.action_id));
    }
    Ok((performed, details))
}

/// Resolves an alias to the tool's id.
fn own_id(registry: &Registry, tool: &ToolId) -> Result<ToolId, StoreError> {
    let found = registry.find(tool).map_err(|error| StoreError::NoSuchName(Cause::new(error)))?;
    Ok(found.spec().tool_id.clone())
}

/// Refuses the breaker of a tool that does not exist. The other breakers are a subject's own: `<subject>/<key>`.
fn breaker_to_trip(services: &Services, key: &str) -> Result<View, StoreError> {
    let view = breaker(&services.control.breakers, key)?;
    if !key.contains('/') {
        let tool = ToolId::new(key).map_err(|error| StoreError::NoSuchName(Cause::new(error)))?;
        let registry = services.registry();
        let found = registry.find_by_id(&tool);
        found.map_err(|error| StoreError::NoSuchName(Cause::new(error)))?;
    }
    Ok(view)
}

/// What an operation would change. Blocks, and changes nothing.
pub fn preview(
    services: &Services,
    operation: &Operation,
    &Terms { until, ref org, .. }: &Terms,
) -> Result<Performed, StoreError> {
    let (switches, now) = (Switches::new(&*services.store), services.clock.now());
    let ends = matches!(
        operation,
        Operation::Pause {} | Operation::DisableTool { .. } | Operation::TripBreaker { .. }
    );
    if until.is_some() && !ends {
        let why = "only a pause, a disabled tool and a tripped breaker can have an end";
        return Err(StoreError::Invalid(why.to_owned()));
    }
    // What is off without an end stays off.
    let differs = |off: Option<Off>| off.is_none_or(|Off(end)| end.is_some() && end != until);
    let (changed, summary) = match operation {
        Operation::DisableTool { tool_id } => {
            let id = own_id(&services.registry(), tool_id)?;
            let off = switches.tool_off(&id, now)?;
            let before = off.map_or("on".to_owned(), |off| format!("off{off}"));
            (differs(off), format!("{id}: {before} -> off{}: every call is refused", Off(until)))
        }
        Operation::EnableTool { tool_id } => {
            let id = own_id(&services.registry(), tool_id)?;
            let off = switches.tool_off(&id, now)?;
            let before = off.map_or("on".to_owned(), |off| format!("off{off}"));
            (off.is_some(), format!("{id}: {before} -> on"))
        }
        Operation::SetCaps { tool_id, caps } => {
            let id = own_id(&services.registry(), tool_id)?;
            let set = switches.caps(&id)?;
            let changed = set.as_ref() != Some(caps);
            let before = names(&set.unwrap_or_else(|| declared_caps(&services.registry(), &id)));
            (changed, format!("{id}: callers need {before} -> {}", names(caps)))
        }
        Operation::ResetCaps { tool_id } => {
            let id = own_id(&services.registry(), tool_id)?;
            let set = switches.caps(&id)?;
            let declared = declared_caps(&services.registry(), &id);
            let before = names(set.as_ref().unwrap_or(&declared));
            let summary = format!("{id}: callers need {before} -> {}", names(&declared));
            (set.is_some(), summary)
        }
        Operation::Pause {} => {
            let off = switches.paused(now)?;
            let before = off.map_or("active".to_owned(), |off| format!("paused{off}"));
            let summary = if differs(off) {
                format!("effects: {before} -> paused{}: every action is only a dry run", Off(until))
            } else {
                format!("effects are {before}")
            };
            (differs(off), summary)
        }
        Operation::Resume {} => {
            let waits = switches.restored()?.filter(|restored| restored.waits);
            let paused = switches.paused(now)?.is_some() || waits.is_some();
            let summary = if paused { "effects: paused -> active" } else { "effects are active" };
            let open = waits.map(|restored| open_after_restore(services, &restored, org.as_ref()));
            (paused, summary.to_owned() + &open.transpose()?.unwrap_or_default())
        }
        Operation::TripBreaker { key } => {
            let view = breaker_to_trip(services, key)?;
            let (state, cause) = (view.state.as_str(), view.cause.map(|cause| cause.as_str()));
            let by_hand = state == "open" && cause == Some("operator") && view.retry_after_ms.is_none();
            let end = until.map_or("it is reset".to_owned(), |until| until.to_string());
            (!by_hand, format!("breaker {key}: {state} -> open until {end}"))
        }
        Operation::ResetBreaker { key } => {
            let view = breaker(&services.control.breakers, key)?;
            let state = view.state.as_str();
            let changed = view.calls > 0 || state != "closed";
            (changed, format!("breaker {key}: {state} -> closed"))
        }
        Operation::RequeueLetters { letters } | Operation::DropLetters { letters } => {
            return preview_letters(&*services.store, letters);
        }
        Operation::SettleLetter { letter, .. } => return preview_letters(&*services.store, &[*letter]),
        Operation::SeekGroup { topic, group, to } => {
            let store = &*services.store;
            let to = replay::parse_position(to, services.clock.now())?;
            let from = replay::position(store, topic, group)?;
            let offset = replay::offset_of(store, topic, to)?;
            let known = store.groups(&TopicName::new(topic)?).wait()?;
            let is_new = known.iter().all(|known| known.group.as_str() != group);
            let summary = format!("group {group} on {topic}: next offset {from} -> {offset}");
            (is_new || from != offset, summary)
        }
        Operation::QuarantineArtifact { artifact_id, reason } => {
            quarantine::check_reason(reason.as_deref())?;
            let known = quarantine::one(&*services.store, artifact_id)?;
            let before = if known.is_some() { "quarantined" } else { "readable" };
            // Repeating it with the same reason, or with none, changes nothing.
            let changed = known.is_none_or(|known| reason.is_some() && known.reason != *reason);
            let summary = format!("artifact {artifact_id}: {before} -> quarantined: nobody can read it");
            (changed, summary)
        }
        Operation::ReleaseArtifact { artifact_id } => {
            let quarantined = quarantine::one(&*services.store, artifact_id)?.is_some();
            (quarantined, format!("artifact {artifact_id}: readable again"))
        }
        Operation::Retain {} => {
            let changed =
                removes_anything(&retention::preview(&*services.store, &services.settings.retention)?);
            (changed, "retention removes expired data".to_owned())
        }
        Operation::Rejudge {} => {
            let policy = services.policy();
            let under = rejudging(services, &policy)?;
            let would = rejudge::count(&*services.store, services.clock.now(), under)?;
            (would.released + would.ended > 0, rejudged(&would))
        }
        Operation::RotateDeviceKey {} => {
            let summary = "device key -> a new one, which wraps every epoch key; the old one is destroyed";
            (true, summary.to_owned())
        }
        Operation::CreateSession { session_id, space_id, subject_id, title, connections, .. } => {
            let org = sessions::check_new(services, session_id, (subject_id, space_id), title, connections)?;
            (true, format!("a session of {org} for {subject_id} in {space_id}: {title:?}"))
        }
        Operation::EndSession { session_id } => {
            let session = sessions::known(&*services.store, session_id)?.value;
            let what = "it takes no new action, and its tokens end";
            let summary = format!("session {session_id} ({:?}): {what}", session.title);
            (session.ended_at.is_none(), summary)
        }
        Operation::DeleteSession { session_id } => {
            let session = sessions::known(&*services.store, session_id)?.value;
            let title = &session.title;
            let gone = "its approvals are denied, its grants and tokens revoked, its dead letters, results, pre-images and artifacts destroyed; receipts stay";
            (true, format!("session {session_id} ({title:?}) -> deleted: {gone}"))
        }
        Operation::CreateConnection {
            connection_id,
            org,
            source,
            name,
            hosts,
            secrets,
            access,
            connector,
        } => {
            let leads_to = (hosts.as_slice(), secrets.as_slice(), access.as_deref(), connector.as_deref());
            connections::check_new(services, connection_id, (org, source), name, leads_to)?;
            let to = leads_to_words(hosts, connector.as_deref());
            (true, format!("a connection of {org} to {source} ({name:?}): {to}"))
        }
        Operation::ReplaceConnection { connection_id, name, hosts, secrets, access, connector } => {
            let leads_to = (&hosts[..], &secrets[..], access.as_deref(), connector.as_deref());
            let (new, old) = connections::replaced(services, connection_id, name, leads_to)?;
            let old = old.value;
            let words = |of: &Connection| leads_to_words(&of.hosts, of.connector.as_ref());
            let what =
                format!("connection {connection_id} to {}: {} -> {}", old.source, words(&old), words(&new));
            (new != old, what)
        }
        Operation::HarvestConnector { connection_id } => {
            let (known, _) = connectors::known(services, connection_id)?;
            (true, format!("{} is asked for its tools", known.connection.name))
        }
        Operation::ReviewConnector { connection_id, digest } => {
            let known = connectors::check_review(services, connection_id, digest)?;
            let is_new = |state: &&ToolState| state.drift != Drift::None;
            let changed = known.states().iter().filter(is_new).count();
            let what = counted(u64::try_from(changed).unwrap_or(u64::MAX), "tool");
            let summary = format!("{}: {what} accepted as described now", known.connection.name);
            (changed > 0 || known.review.is_none(), summary)
        }
        Operation::OverlayTool { tool_id, says } => overlays::check(services, tool_id, says.as_deref())?,
        Operation::EnableConnection { connection_id } => {
            let known = connections::known(&*services.store, connection_id)?.value;
            connections::check(services, &known)?;
            (!known.enabled, format!("connection {connection_id} to {}: enabled", known.source))
        }
        Operation::DisableConnection { connection_id } => {
            let known = connections::known(&*services.store, connection_id)?.value;
            (known.enabled, format!("connection {connection_id} to {}: disabled", known.source))
        }
        Operation::DeleteConnection { connection_id } => {
            let known = connections::known(&*services.store, connection_id)?.value;
            (true, format!("connection {connection_id} to {} -> deleted", known.source))
        }
        Operation::AddPlugin { name, digest } => {
            let (pinned, changed) = plugins::check(services, name, digest)?;
            let tier = pinned.manifest.risk_tier.as_str();
            (changed, format!("the plugin {name} ({tier}) may run as it is now: {digest}"))
        }
        Operation::RemovePlugin { name } => {
            plugins::known(services, name)?;
            (true, format!("the plugin {name} -> removed; its package stays on disk"))
        }
        Operation::CreateWebhook { webhook_id, org, source, path, topics, signed_by, slack } => {
            let about = (webhook_id.clone(), org.clone(), signed_by.clone());
            let (to, by) = ((source.clone(), path.clone()), (Principal::new("effectd")?, now));
            let what = (topics.clone(), slack.as_deref().cloned());
            webhooks::check(services, &webhooks::record(about, to, what, by))?;
            let mut topics: Vec<_> = topics.iter().map(|topic| topic.as_str()).collect();
            let channel =
                slack.as_ref().map(|slack| format!("questions for {} in {}", slack.channel, slack.team));
            topics.extend(channel.as_deref());
            (true, format!("a webhook of {org}: {} to {source} at {path}", topics.join(", ")))
        }
        Operation::EnableWebhook { webhook_id } => {
            let known = webhooks::known(&*services.store, webhook_id)?.value;
            webhooks::check(services, &known)?;
            (
                !known.enabled,
                format!("webhook {webhook_id} to {}: enabled, from the next event on", known.source),
            )
        }
        Operation::DisableWebhook { webhook_id } => {
            let known = webhooks::known(&*services.store, webhook_id)?.value;
            (known.enabled, format!("webhook {webhook_id} to {}: disabled", known.source))
        }
        Operation::DeleteWebhook { webhook_id } => {
            let known = webhooks::known(&*services.store, webhook_id)?.value;
            (true, format!("webhook {webhook_id} to {} -> deleted", known.source))
        }
        Operation::SaveAutomation { .. } => return Err(has_own_route("/api/v1/automations")),
        Operation::SetAutomation { automation_id, status } => {
            let known = automations::known(&*services.store, automation_id)?.value;
            let (from, to) = (known.status, *status);
            (from != to, format!("automation {automation_id}, {} -> {}", from.as_str(), to.as_str()))
        }
        Operation::DeleteAutomation { automation_id } => {
            automations::check_delete(&*services.store, automation_id)?;
            (true, format!("automation {automation_id} -> deleted, with its definition; receipts stay"))
        }
        Operation::MapSlackUser { org, team, user, account } => {
            let (before, after) = slack::check(services, (org, team, user), account.as_deref())?;
            let word =
                |known: &Option<Principal>| known.as_ref().map_or("nobody".to_owned(), Principal::to_string);
            let (from, to) = (word(&before), word(&after));
            (before != after, format!("{user} of {team} in Slack, for {org}: {from} -> {to}"))
        }
        Operation::SetSecret { org, name } => {
            let before =
                if connections::check_set(services, org, name)? { "another value" } else { "nothing" };
            (true, format!("secret {name} of {org}: {before} -> a new value"))
        }
        Operation::DeleteSecret { org, name } => {
            connections::check_delete_secret(services, org, name)?;
            (true, format!("secret {name} of {org} -> deleted"))
        }
        Operation::CreateToken { id, kind, org, session_id, name, not_before, expires_at } => {
            let new = tokens::record(id.clone(), *kind, org.clone(), (Principal::new("effectd")?, now));
            let (session_id, name) = (session_id.clone(), name.clone());
            let (not_before, expires_at) = (*not_before, *expires_at);
            let new = Token { session_id, name, not_before, expires_at, ..new };
            tokens::check(services, &new, None)?;
            let end = expires_at.map_or("it is revoked".to_owned(), |end| end.to_string());
            (true, format!("a {} token for {} until {end}", kind.as_str(), new.principal()?))
        }
        Operation::RevokeToken { id } => {
            let known = tokens::known(&*services.store, id)?.value;
            let summary = format!("token {id} of {} -> revoked", known.principal()?);
            (known.revoked_at.is_none(), summary)
        }
        Operation::RotateToken { id, next } => {
            let (next, _) = tokens::successor(services, id, next, &Principal::new("effectd")?)?;
            (true, format!("token {id} of {} -> revoked, and replaced by a new one", next.principal()?))
        }
        Operation::RotateKey {} => return Err(has_own_route("/v1/log/keys")),
        Operation::ReloadPolicy {} => return Err(has_own_route("/v1/policy/reload")),
        Operation::StartShadow {} | Operation::StopShadow {} => {
            return Err(has_own_route("/v1/policy/shadow"));
        }
        Operation::GrantConsent { .. }
        | Operation::RevokeConsent { .. }
        | Operation::SetMode { .. }
        | Operation::SetBand { .. }
        | Operation::SetEntry { .. }
        | Operation::ClearOverlay {} => {
            return Err(has_own_route("/v1/policy/changes"));
        }
        Operation::Erase { .. } => return Err(has_own_route("/v1/store/erase")),
    };
    Ok(Performed { changed, ..unchanged(summary).0 })
}

/// The decisions that a restore left open, for the operator who is about to resume them. An operator with a token sees only those of the
/// token's organisation.
fn open_after_restore(
    services: &Services,
    restored: &Restored,
    org: Option<&OrgId>,
) -> Result<String, StoreError> {
    let store = &*services.store;
    let groups = store.groups(&Topic::ActionDecision.into()).wait()?;
    let open = groups.iter().map(|group| group.undelivered + group.waiting + group.leased);
    let (open, begun) = (open.max().unwrap_or(0), store.stats().intents_open);
    let whose = if org.is_some() { " (of all organisations)" } else { "" };
    let mut text = format!(
        "; {} to start now, and {} of unknown outcome{whose}, since a begun action is not repeated; first withdraw those that were done elsewhere since (effectd cancel)",
        counted(open.saturating_sub(begun), "action"),
        counted(begun, "dead letter")
    );
    let is_told = |space: &SpaceId| org.is_none() || services.org_of(space).as_ref() == org;
    let decisions = open_decisions(store, (restored.decisions, OPEN_TOLD_MAX), is_told)?;
    for one in &decisions {
        let begun = if one.begun { ", begun" } else { "" };
        text.push_str(&format!("\n  {}: {} for {}{begun}", one.action_id, one.tool_id, one.subject_id));
    }
    if decisions.len() == OPEN_TOLD_MAX {
        text.push_str("\n  and perhaps more");
    }
    if let Some(org) = org.filter(|_| decisions.is_empty()) {
        text.push_str(&format!("\n  none of {org}"));
    }
    Ok(text)
}

fn names(caps: &[Capability]) -> String {
    let names: Vec<&str> = caps.iter().map(|cap| cap.as_str()).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// The capabilities that the tool's description requires.
fn declared_caps(registry: &Registry, tool: &ToolId) -> Vec<Capability> {
    let entry = registry.find(tool);
    entry.map_or_else(|_| Vec::new(), |entry| entry.spec().caps_required.clone())
}

fn breaker(breakers: &Breakers, key: &str) -> Result<View, StoreError> {
    if key.is_empty() || key.len() > ID_BYTES_MAX || key.chars().any(is_unprintable) {
        return Err(StoreError::Invalid("no breaker can have this key".to_owned()));
    }
    let known = breakers.show_one(key);
    Ok(known.unwrap_or_else(|| View::untouched(key)))
}

/// Counts the letters that are still there, by cause.
fn preview_letters(store: &dyn Store, numbers: &[u64]) -> Result<Performed, StoreError> {
    if numbers.len() > OPERATION_LETTERS_MAX {
        let why = format!("at most {OPERATION_LETTERS_MAX} letters at a time");
        return Err(StoreError::Invalid(why));
    }
    let end = store.letters_end()?;
    if numbers.iter().any(|number| *number >= end) {
        return Err(StoreError::NotFound { what: "the dead letter" });
    }
    let (mut causes, mut gone) = (BTreeMap::<(String, String), u64>::new(), 0_u64);
    for number in numbers {
        match store.letter(*number)? {
            Some(letter) => {
                let cause = (letter.fingerprint.to_string(), letter.code);
                *causes.entry(cause).or_default() += 1;
            }
            None => gone += 1,
        }
    }
    let mut summary: Vec<String> =
        causes.iter().map(|((cause, code), count)| format!("{count} of cause {cause} ({code})")).collect();
    if gone > 0 {
        summary.push(format!("{gone} already gone"));
    }
    Ok(Performed { changed: !causes.is_empty(), summary, ..Performed::default() })
}
/// Where a connection leads, for people.
fn leads_to_words(hosts: &[String], connector: Option<&Connector>) -> String {
    match connector.map(|connector| &connector.transport) {
        Some(Transport::Stdio { argv, .. }) => argv.join(" "),
        Some(Transport::Http { .. }) | None => hosts.join(", "),
    }
}
