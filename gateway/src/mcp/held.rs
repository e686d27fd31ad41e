//! Answers for actions that have not ended: most of them wait for a person. Each client gets what it understands: a task, the request to
//! ask again, or an ordinary result that names [`super::tools::WAIT`]. The action itself is on disk, so each of them works after a restart.
//!
//! No answer asks the client for anything: what a planner's own client says is no approval.

use effectd_actors::approvals::repository::hold_of;
use effectd_actors::{Held, Withdrawal};
use effectd_contracts::digest::{hex, unhex};
use effectd_contracts::{ActionId, Digest, Outcome, Timestamp};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rmcp::model::{
    CreateTaskResult, DetailedTask, ErrorData, GetTaskResult, InputRequiredResult, MetaObject, Task,
    TaskAckResult, TaskPayload, TaskStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::{result, text_result};
use super::tools::WAIT;
use super::{Asked, value};
use crate::app::{App, Found};
use crate::limits::{MCP_HANDLE_KEPT, MCP_POLL_MS, MCP_ROUNDS_MAX};
use crate::problem::Problem;

/// An action that has not ended, and the call that waits for it.
pub(super) struct Waiting {
    pub(super) action_id: ActionId,
    /// Of the call's name and arguments.
    pub(super) digest: Digest,
    /// How often the client was told to ask again.
    pub(super) round: u32,
    /// Whether only an ordinary result will do.
    pub(super) is_plain: bool,
}

/// What `requestState` holds. It is sealed for its principal, and names an action that this principal may ask for anyway.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Handle {
    pub(super) action_id: ActionId,
    digest: Digest,
    pub(super) round: u32,
    until: Timestamp,
}

/// The answer for an action that waits: for a person if it is held, or for its end.
pub(super) fn answer(asked: &Asked, waiting: &Waiting, held: Option<&Held>) -> Result<Value, ErrorData> {
    let about = about(&waiting.action_id, held);
    let meta = [("effectd/waiting".to_owned(), about.clone())];
    let meta = MetaObject(meta.into_iter().collect());
    if waiting.is_plain || waiting.round >= MCP_ROUNDS_MAX || !asked.era.is_modern() {
        let words = words(&waiting.action_id, held);
        // Some clients show a model this part alone.
        let mut shown = about;
        shown["message"] = words.clone().into();
        let mut result = text_result(words, false);
        (result.structured_content, result.meta) = (Some(shown), Some(meta));
        return Ok(value(result));
    }
    if asked.era.tasks {
        let task = task_of(&asked.app, &waiting.action_id, held.is_some());
        return Ok(value(CreateTaskResult::new(task).with_meta(meta)));
    }
    let until = asked.app.services().clock.now().checked_add(MCP_HANDLE_KEPT).unwrap_or(Timestamp::MAX);
    let Waiting { action_id, digest, round, .. } = waiting;
    let handle = Handle { action_id: action_id.clone(), digest: *digest, round: *round, until };
    let state = seal(&key(&asked.app), asked.peer.principal.as_str(), &handle);
    let state = state.ok_or_else(|| ErrorData::internal_error("no random bytes can be had", None))?;
    Ok(value(InputRequiredResult::from_request_state(state).with_meta(meta)))
}

fn about(action_id: &ActionId, held: Option<&Held>) -> Value {
    match held {
        Some(held) => json!({
            "status": "awaiting_approval", "action_id": action_id, "approval_id": held.approval_id,
            "expires_at": held.expires_at, "reasons": held.reasons,
        }),
        None => json!({ "status": "executing", "action_id": action_id }),
    }
}

fn words(action_id: &ActionId, held: Option<&Held>) -> String {
    let state = match held {
        Some(Held { approval_id, expires_at, reasons, .. }) => {
            let why = reasons.join("; ");
            format!(
                "Not done yet: a person must approve this ({why}). Approval {approval_id} is open until {expires_at}"
            )
        }
        None => "Not ended yet".to_owned(),
    };
    format!(
        "{state}. Call {WAIT} with action_id {action_id} to wait for the result; do not repeat this call."
    )
}

/// The key of handles: it follows from the device's own, so handles survive a restart.
fn key(app: &App) -> Digest {
    app.services().identity.keyed(&Digest::of(b"effectd mcp request state"))
}

fn cipher(key: &Digest) -> Option<LessSafeKey> {
    UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes()).ok().map(LessSafeKey::new)
}

/// Seals a handle; `None` if the system has no random bytes.
fn seal(key: &Digest, principal: &str, handle: &Handle) -> Option<String> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok()?;
    let mut sealed = serde_json::to_vec(handle).ok()?;
    let (at, bound) = (Nonce::assume_unique_for_key(nonce), Aad::from(principal.as_bytes()));
    cipher(key)?.seal_in_place_append_tag(at, bound, &mut sealed).ok()?;
    Some(hex(&nonce) + &hex(&sealed))
}

fn unseal(key: &Digest, principal: &str, state: &str) -> Option<Handle> {
    let bytes = unhex(state)?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
    let (at, bound) = (Nonce::assume_unique_for_key(*nonce), Aad::from(principal.as_bytes()));
    let mut sealed = sealed.to_vec();
    let opened = cipher(key)?.open_in_place(at, bound, &mut sealed).ok()?;
    serde_json::from_slice(opened).ok()
}

/// The handle of a client that asks again. It is for the same principal and the same call only.
pub(super) fn open(asked: &Asked, state: &str, digest: &Digest) -> Result<Handle, ErrorData> {
    let now = asked.app.services().clock.now();
    let handle = unseal(&key(&asked.app), asked.peer.principal.as_str(), state);
    let handle = handle.filter(|handle| handle.digest == *digest && handle.until >= now);
    handle.ok_or_else(|| {
        let why = "requestState is not from here, or has expired, or is for another call";
        ErrorData::invalid_params(why, None)
    })
}

/// The answer to `tasks/get`, `tasks/update` and `tasks/cancel`. A task is an action, by its id.
pub(super) async fn task(asked: &Asked, method: &str) -> Result<Value, ErrorData> {
    let unknown = || ErrorData::invalid_params("you have no task of this id", None);
    let action_id = ActionId::new(asked.text("taskId")?).map_err(|_| unknown())?;
    let Asked { app, peer, .. } = asked;
    let (done, is_held) = match app.find(&action_id, peer).await? {
        Found::Done(done, _share) if asked.is_own(&done.receipt) => (Some(done), false),
        Found::Unknown | Found::Done(..) => return Err(unknown()),
        Found::Held(_) => (None, true),
        Found::Accepted => (None, false),
    };
    match method {
        "tasks/get" => {}
        "tasks/cancel" => {
            let withdrawn = app.pipeline()?.cancel(&action_id, &peer.decider()).await;
            return match withdrawn.map_err(Problem::from)? {
                Withdrawal::Now(_) | Withdrawal::Ended(_) | Withdrawal::Begun => {
                    Ok(value(TaskAckResult::default()))
                }
                Withdrawal::Unknown => Err(unknown()),
            };
        }
        // Nothing was asked, so whatever the client answers counts for nothing.
        _ => return Ok(value(TaskAckResult::default())),
    }
    let (task, payload) = match done {
        None => (task_of(app, &action_id, is_held), TaskPayload::Working),
        Some(done) => {
            let timing = &done.receipt.timing;
            let (begun, ended) = (timing.started_at.to_string(), timing.ended_at.to_string());
            let task = Task::new(action_id.as_str(), TaskStatus::Completed, begun, ended);
            if done.receipt.outcome == Outcome::Cancelled {
                (task, TaskPayload::Cancelled)
            } else {
                let result = value(result(app, action_id, done)?).as_object().cloned().unwrap_or_default();
                (task, TaskPayload::Completed { result })
            }
        }
    };
    Ok(value(GetTaskResult::new(DetailedTask::new(task, payload))))
}

/// A task that has not ended.
fn task_of(app: &App, action_id: &ActionId, is_held: bool) -> Task {
    let now = app.services().clock.now();
    let hold = hold_of(app.store(), action_id).ok().flatten().map(|hold| hold.value);
    let begun = hold.as_ref().and_then(|hold| Some(hold.member(action_id)?.accepted_at)).unwrap_or(now);
    let asked_at = hold.map_or(begun, |hold| hold.asked_at);
    let words = if is_held { "A person must approve this." } else { "This is being carried out." };
    let task = Task::new(action_id.as_str(), TaskStatus::Working, begun.to_string(), asked_at.to_string());
    task.with_status_message(words).with_poll_interval_ms(MCP_POLL_MS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_handle_opens_for_its_principal_and_unchanged_only() {
        let (own, other) = (Digest::of(b"device"), Digest::of(b"another device"));
        let handle = Handle {
            action_id: "a".parse().unwrap(),
            digest: Digest::of(b"call"),
            round: 3,
            until: Timestamp::UNIX_EPOCH,
        };
        let state = seal(&own, "user://a", &handle).unwrap();
        assert_ne!(state, seal(&own, "user://a", &handle).unwrap());
        assert_eq!(unseal(&own, "user://a", &state), Some(handle));
        assert_eq!(unseal(&own, "user://b", &state), None);
        assert_eq!(unseal(&other, "user://a", &state), None);
        for at in 0..state.len() {
            let mut changed = state.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(unseal(&own, "user://a", &changed), None, "{at}");
        }
        for none in ["", "00", "x", &state[..40], &state[..state.len() - 2]] {
            assert_eq!(unseal(&own, "user://a", none), None, "{none}");
        }
    }
}
