//! Approvals in Slack: what a message shows, and what a person answers there.
//!
//! Parameters and diffs stay here, unless the policy lets those of the space leave. Whoever is not shown what would change approves
//! in the console. An answer is decided like any other, as the account that the person is.

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::text::counted;
use effectd_contracts::{
    ApprovalId, ApprovalVerdict, OrgId, RiskTier, SlackChannel, Timestamp, TokenKind, Webhook,
};
use effectd_policy::redact::prune::TRUNCATED_MARKER;
use effectd_policy::{Decider, Policy};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::Sha256;

use super::decide::{self, Approve, DecideError};
use super::hold::{Hold, keyed_digest};
use super::{repository, view};
use crate::action::preview::{Diff, Preview, RequestShown};
use crate::limits::{
    CONNECTIONS_PAGE, SLACK_AGE_MAX, SLACK_BLOCKS_MAX, SLACK_BYTES_MAX, SLACK_TEXT_CHARS_MAX,
};
use crate::services::Services;
use crate::services::slack::{Line, METADATA, account, body, link, plain, text};
use crate::services::webhooks;
use crate::stored::{delete, entries, put, read_json, swap_all};

pub use crate::services::slack::users;

/// Signatures of answers that came, with the time after which they are too old anyway.
const SEEN: &str = "slack-seen";

const APPROVE: &str = "approve";
const DENY: &str = "deny";
/// Most fields of one section, and characters of one.
const FIELDS_MAX: usize = 10;
const FIELD_CHARS_MAX: usize = 300;

/// The message about an approval that waits; `None` if it does not.
pub fn asked(
    services: &Services,
    id: &ApprovalId,
    channel: &SlackChannel,
) -> Result<Option<Value>, StoreError> {
    let hold = repository::hold(&*services.store, id)?.map(|hold| hold.value);
    let Some(hold) = hold.filter(|hold| hold.is_open(services.clock.now())) else { return Ok(None) };
    let (policy, request) = (services.policy(), &hold.decision.request);
    let Some(lead) = hold.lead() else { return Ok(None) };
    let short = format!("{} in {} waits for approval", request.tool_id, request.space_id);
    let mut blocks = vec![
        json!({ "type": "header", "text": text(&plain(request.tool_id.as_str(), 140)) }),
        json!({ "type": "section", "fields": facts(&hold) }),
    ];
    let why = match shown(services, &policy, &hold) {
        Shown::InPart(params, why) => {
            let fields: Vec<_> = params.iter().take(FIELDS_MAX).map(|param| text(param)).collect();
            if !fields.is_empty() {
                blocks.push(json!({ "type": "section", "fields": fields }));
            }
            why
        }
        Shown::Whole(pieces) => {
            blocks.extend(pieces.iter().map(|piece| json!({ "type": "section", "text": text(piece) })));
            None
        }
    };
    let value = format!("{id} {}", keyed_digest(&hold.digest));
    let button = |action: &str, word: &str, style: &str| {
        let words = text(word);
        json!({ "type": "button", "action_id": action, "text": words, "style": style, "value": value })
    };
    let mut buttons = Vec::new();
    if why.is_none() {
        buttons.push(button(APPROVE, "Approve", "primary"));
    }
    buttons.extend([button(DENY, "Deny", "danger"), link(channel, id, "Open in the console")]);
    blocks.push(json!({ "type": "actions", "elements": buttons }));
    if let Some(why) = why {
        let note = text(&format!("Approve in the console: {why}"));
        blocks.push(json!({ "type": "context", "elements": [note] }));
    }
    let mut message = body(channel, &short, json!(blocks));
    for member in ["mrkdwn", "unfurl_links", "unfurl_media"] {
        message[member] = false.into();
    }
    let payload = json!({ "approval_id": id, "action_id": lead.action_id });
    message["metadata"] = json!({ "event_type": METADATA, "event_payload": payload });
    Ok(Some(message))
}

/// What the receipt has in clear, too.
fn facts(hold: &Hold) -> Vec<Value> {
    let request = &hold.decision.request;
    let field = |name: &str, value: &str| text(&plain(&format!("{name}\n{value}"), FIELD_CHARS_MAX));
    let mut fields = vec![
        field("Space", request.space_id.as_str()),
        field("Risk", &format!("{:?}", hold.prompt.decision.tier)),
        field("For", request.subject_id.as_str()),
        field("Asked by", hold.decision.principal.as_str()),
        field("Until", &hold.expires_at.to_string()),
    ];
    if let Some(predicted) = hold.prompt.preview.as_ref().and_then(|preview| preview.predicted()) {
        let (files, deletes) = (counted(predicted.files, "path"), counted(predicted.deletes, "path"));
        let changes =
            format!("{files} to change, {deletes} to delete, {} new", counted(predicted.bytes, "byte"));
        fields.push(field("Changes", &changes));
    }
    fields
}

/// What a message shows of an approval's contents.
enum Shown {
    /// The public parameters, and why a person has to see the rest first.
    InPart(Vec<String>, Option<&'static str>),
    /// Everything that the console shows.
    Whole(Vec<String>),
}

fn shown(services: &Services, policy: &Policy, hold: &Hold) -> Shown {
    let (registry, request) = (services.registry(), &hold.decision.request);
    let tool = registry.get(&request.tool_id);
    let params = view::shown(&registry, policy, request);
    let lets_leave = policy.lets_contents_leave(&request.space_id);
    if lets_leave && let Some(pieces) = whole(hold, &params) {
        return Shown::Whole(pieces);
    }
    let public = params.iter().filter(|(name, _)| {
        *name != "space_id" && tool.is_some_and(|tool| tool.spec().is_public_param(name))
    });
    let mut is_cut = false;
    let public = public.map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let field = plain(&format!("{name}\n{value}"), usize::MAX);
        is_cut |= field.chars().count() > FIELD_CHARS_MAX;
        plain(&format!("{name}\n{value}"), FIELD_CHARS_MAX)
    });
    let public: Vec<_> = public.collect();
    is_cut |= public.len() > FIELDS_MAX;
    let why = match hold.prompt.preview.as_deref() {
        _ if is_severe(hold) => Some("its risk asks for more than is shown here"),
        _ if lets_leave || is_cut => Some("there is more to see than fits here"),
        Some(Preview::Shown(shown)) if !shown.changes.is_empty() => Some("it has the diff"),
        Some(Preview::Shown(shown)) if !shown.requests.is_empty() => {
            Some("it has the requests that would be sent")
        }
        Some(Preview::Request(_)) => Some("it has the request that would be sent"),
        Some(Preview::Unavailable(_)) if hold.prompt.decision.tier == RiskTier::R2 => {
            Some("nobody can tell what would change")
        }
        Some(Preview::Shown(_) | Preview::WouldFail(_) | Preview::Unavailable(_)) | None => None,
    };
    Shown::InPart(public, why)
}

fn is_severe(hold: &Hold) -> bool {
    matches!(hold.prompt.decision.tier, RiskTier::R3 | RiskTier::R4)
}

/// The parameters and what would change, in pieces that Slack takes; `None` if that is too much for a message, or not all there.
fn whole(hold: &Hold, params: &Map<String, Value>) -> Option<Vec<String>> {
    let contract = view::contract(hold);
    let is_pruned = contract.as_ref().is_some_and(|contract| contract.get(TRUNCATED_MARKER).is_some());
    if is_pruned || params.contains_key(TRUNCATED_MARKER) {
        return None;
    }
    let mut lines = vec![serde_json::to_string_pretty(params).ok()?];
    if let Some(contract) = contract {
        lines.push(format!("contract {}", serde_json::to_string_pretty(&contract).ok()?));
    }
    let text = |diff: &Diff| (!diff.cut).then(|| diff.text.clone());
    let sent = |request: &RequestShown| {
        let line = format!("{} {}", request.method.as_str(), request.url);
        match &request.body {
            Some(body) => Some(vec![line, text(body)?]),
            None => (request.body_bytes == 0).then(|| vec![line]),
        }
    };
    match hold.prompt.preview.as_deref() {
        Some(Preview::Shown(shown)) if !shown.cut => {
            for change in &shown.changes {
                let moved = change.moved_to.as_ref().map(|to| format!(" -> {to}"));
                lines.push(format!("{}{}", change.path, moved.unwrap_or_default()));
                if change.left_out.is_some() {
                    return None;
                }
                lines.extend(change.diff.as_ref().map_or(Some(None), |diff| text(diff).map(Some))?);
            }
            for asked in &shown.requests {
                lines.extend(sent(&asked.request)?);
            }
        }
        Some(Preview::Request(request)) => lines.extend(sent(request)?),
        Some(Preview::WouldFail(failure)) => lines.push(format!("it would fail: {}", failure.message)),
        Some(Preview::Unavailable(_)) | None if is_severe(hold) => return None,
        // What reads, or changes no file, has no preview either.
        Some(Preview::Unavailable(why)) => lines.push(why.clone()),
        Some(Preview::Shown(_)) => return None,
        None => {}
    }
    let (mut pieces, mut room) = (vec![String::new()], SLACK_TEXT_CHARS_MAX);
    for c in lines.join("\n").chars() {
        let one = plain(c.encode_utf8(&mut [0; 4]), usize::MAX);
        let chars = one.chars().count();
        if chars > room {
            pieces.push(String::new());
            room = SLACK_TEXT_CHARS_MAX;
        }
        room -= chars;
        pieces.last_mut()?.push_str(&one);
    }
    (pieces.len() <= SLACK_BLOCKS_MAX).then_some(pieces)
}

/// Why an answer is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the request is not signed by Slack for this organisation, is too old, or came before")]
    NotSigned,
    #[error("this daemon asks nobody in that channel")]
    Elsewhere,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The channels whose app has signed this body, now and for the first time.
pub async fn signed(
    services: &Services,
    org: &str,
    (timestamp, signature): (&str, &str),
    body: &[u8],
) -> Result<Vec<Webhook>, Refused> {
    let (store, now) = (&*services.store, services.clock.now());
    let sent = timestamp.parse().ok().and_then(|second| Timestamp::from_second(second).ok());
    let (Some(sent), Ok(org)) = (sent, OrgId::new(org)) else { return Err(Refused::NotSigned) };
    let age = now.duration_since(sent).unsigned_abs();
    let given = signature.strip_prefix("v0=").and_then(from_hex).filter(|_| age <= SLACK_AGE_MAX);
    let Some(given) = given.filter(|_| body.len() <= SLACK_BYTES_MAX) else { return Err(Refused::NotSigned) };
    let all = webhooks::all(store)?.into_iter().map(|(webhook, _)| webhook);
    let mut own: Vec<_> =
        all.filter(|known| known.org == org && known.enabled && known.slack.is_some()).collect();
    let is_signer = |webhook: &Webhook| {
        let Ok(secret) = services.secret(&org, &webhook.signed_by) else { return false };
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.value.as_str().as_bytes()) else {
            return false;
        };
        mac.update(format!("v0:{timestamp}:").as_bytes());
        mac.update(body);
        mac.verify_slice(&given).is_ok()
    };
    own.retain(is_signer);
    if own.is_empty() {
        return Err(Refused::NotSigned);
    }
    let family = FamilyName::new(SEEN)?;
    // Taken as often as it is valid. What is too old needs no entry any more.
    let until = sent.checked_add(SLACK_AGE_MAX).unwrap_or(sent);
    let mut swaps = vec![put(family.clone(), signature.to_ascii_lowercase(), Expect::Absent, &until)];
    for entry in entries(store, &family, CONNECTIONS_PAGE).take(CONNECTIONS_PAGE) {
        let entry = entry?;
        if read_json::<Timestamp>(&entry).is_none_or(|until| until < now) {
            swaps.push(delete(family.clone(), entry.key, Expect::Any));
        }
    }
    match swap_all(store, swaps).await {
        Ok(_) => Ok(own),
        Err(StoreError::VersionMismatch { .. }) => Err(Refused::NotSigned),
        Err(error) => Err(error.into()),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    (text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then(|| digits.map(byte).collect())?
}

/// What Slack says of a click.
#[derive(Debug, Deserialize)]
pub struct Interaction {
    #[serde(rename = "type")]
    kind: String,
    user: User,
    team: Option<Named>,
    channel: Option<Named>,
    message: Option<Posted>,
    #[serde(default)]
    actions: Vec<Click>,
}

#[derive(Debug, Deserialize)]
struct User {
    id: String,
    /// The workspace that the user belongs to: another one in a channel that two share.
    team_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Named {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Posted {
    ts: String,
    /// Who changed it, and when.
    edited: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Click {
    action_id: String,
    value: Option<String>,
}

/// What a person hears of a click, after Slack has its answer.
#[derive(Debug)]
pub struct Echo {
    webhook: Webhook,
    channel: SlackChannel,
    approval: ApprovalId,
    /// The message, if it asks about something that no longer waits.
    ended: Option<String>,
    user: String,
    note: String,
}

/// Decides what a person has clicked. An approval that was decided is shown by its event.
pub async fn decide(
    services: &Services,
    own: Vec<Webhook>,
    interaction: Interaction,
) -> Result<Option<Echo>, Refused> {
    let Interaction { kind, user, team, channel, message, actions } = interaction;
    let [Click { action_id, value: Some(value) }] = actions.as_slice() else { return Ok(None) };
    if kind != "block_actions" || ![APPROVE, DENY].contains(&action_id.as_str()) {
        return Ok(None);
    }
    let (team, channel) = (team.map(|team| team.id), channel.map(|channel| channel.id));
    let is_there =
        |slack: &SlackChannel| Some(&slack.team) == team.as_ref() && Some(&slack.channel) == channel.as_ref();
    let found = own.into_iter().find_map(|webhook| {
        let channel = webhook.slack.clone().filter(is_there)?;
        Some((webhook, channel))
    });
    let (Some((webhook, channel)), Some(team)) = (found, user.team_id.or(team)) else {
        return Err(Refused::Elsewhere);
    };
    let Some((id, digest)) = value.split_once(' ') else { return Ok(None) };
    let Ok(approval) = ApprovalId::new(id) else { return Ok(None) };
    let (org, who) = (webhook.org.clone(), user.id.clone());
    // effectd changes its message once, to one without these buttons.
    let is_changed = message.as_ref().is_some_and(|message| message.edited.is_some());
    let ts = message.map(|message| message.ts);
    let line = Line { services, webhook: &webhook, channel: &channel };
    let is_asked = !is_changed && ts.is_some() && line.message(&approval)? == ts;
    let note = match account(&*services.store, (&org, &team, &user.id))? {
        None => {
            format!(
                "You are no account of {org}. An operator says who you are: effectd slack map {org} {team}/{who} NAME"
            )
        }
        // Whoever may post as this app can make a message that looks like a question, with its button.
        Some(_) if !is_asked => {
            "This message is not the one that asks, or was changed since. Look for that, or open the console."
                .to_owned()
        }
        Some(principal) => {
            let reason = format!("in Slack, as {who} of {team}");
            let by = Decider {
                kind: Some(TokenKind::User),
                org: Some(org.clone()),
                ..Decider::local(principal, false)
            };
            match decided(services, &by, (&approval, digest), (action_id == APPROVE, reason)).await {
                Ok(()) => return Ok(None),
                Err(DecideError::Store(error)) => return Err(error.into()),
                Err(error) => error.to_string(),
            }
        }
    };
    let over = over(services, &org, &approval, digest)?;
    let ended = ts.filter(|_| over.is_some());
    Ok(Some(Echo { webhook, channel, approval, ended, user: who, note: over.unwrap_or(note) }))
}

async fn decided(
    services: &Services,
    by: &Decider,
    (id, digest): (&ApprovalId, &str),
    (approves, reason): (bool, String),
) -> Result<(), DecideError> {
    let policy = services.policy();
    let hold = view::hold(services, by, id)?.map(|hold| hold.value);
    if let Some(Hold { decision, .. }) = &hold {
        let org = policy.org_of(&decision.request.space_id);
        policy.may_decide(by, &decision.request.subject_id, org).map_err(DecideError::Forbidden)?;
    }
    if !approves {
        return decide::deny(services, id, by, Some(reason)).await.map(drop);
    }
    // The policy may have changed since the button was shown.
    if let Some(hold) = &hold
        && let Shown::InPart(_, Some(why)) = shown(services, &policy, hold)
    {
        return Err(decide::forbidden(
            "in_console",
            format!("approve in the console: {why}"),
            "open the link",
        ));
    }
    let approve = Approve { digest: Some(digest.to_owned()), reason: Some(reason), ..Approve::default() };
    decide::approve(services, id, by, approve).await.map(drop)
}

/// How an approval of this organisation ended, if the question with this digest no longer waits.
fn over(
    services: &Services,
    org: &OrgId,
    id: &ApprovalId,
    digest: &str,
) -> Result<Option<String>, StoreError> {
    let (store, policy) = (&*services.store, services.policy());
    let hold = repository::hold_in(store, policy.spaces_of(org.as_str()), id)?.map(|hold| hold.value);
    let past =
        repository::past(store, id)?.filter(|past| policy.org_of(&past.space_id) == Some(org.as_str()));
    let (about, approval) = match (hold, past) {
        (Some(hold), _) => {
            if hold.is_open(services.clock.now()) && keyed_digest(&hold.digest) == digest {
                return Ok(None);
            }
            let request = &hold.decision.request;
            (format!("{} in {}", request.tool_id, request.space_id), hold.decided().cloned())
        }
        (None, Some(past)) => (format!("{} in {}", past.tool_id, past.space_id), Some(past.approval)),
        (None, None) => ("This question".to_owned(), None),
    };
    let how = match approval {
        None => "does not wait any more, or has changed".to_owned(),
        Some(approval) => match approval.verdict {
            ApprovalVerdict::Once | ApprovalVerdict::Grant | ApprovalVerdict::Always => {
                format!("approved by {}", approval.by)
            }
            ApprovalVerdict::Denied | ApprovalVerdict::Revoked => format!("denied by {}", approval.by),
            ApprovalVerdict::Expired => "expired: nobody decided in time".to_owned(),
        },
    };
    Ok(Some(format!("{about}: {how}")))
}

/// Tells it: in the message if that asks about nothing any more, otherwise to the person alone.
pub async fn echo(services: Arc<Services>, echo: Echo) {
    let Echo { webhook, channel, approval, ended, user, note } = &echo;
    let Ok(_sending) = services.webhooks.places.acquire().await else { return };
    let Ok(_place) = services.egress.place(&webhook.org) else { return };
    let line = Line { services: &services, webhook, channel };
    let told = match ended {
        Some(ts) => line.replace(approval, ts, note).await,
        None => line.whisper(user, note).await,
    };
    if let Err(error) = told {
        tracing::info!(webhook_id = %webhook.webhook_id, why = error.why, "a person in Slack was not told");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::suspend::tests::hold;
    use super::*;

    #[test]
    fn what_is_not_all_there_is_not_shown_as_whole() {
        let mut hold = hold(&"a".parse().unwrap());
        let params = json!({ "path": "a.txt" }).as_object().unwrap().clone();
        // R4, whose change nobody can foresee.
        assert_eq!(whole(&hold, &params), None);
        hold.prompt.preview = Some(Box::new(Preview::Unavailable("no preview".to_owned())));
        assert_eq!(whole(&hold, &params), None);
        hold.prompt.decision.tier = RiskTier::R2;
        assert!(whole(&hold, &params).is_some());
        let pruned = json!({ "path": "a.txt", TRUNCATED_MARKER: true }).as_object().unwrap().clone();
        assert_eq!(whole(&hold, &pruned), None);
    }
}
