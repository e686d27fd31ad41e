//! What operators do while the daemon runs: what it would change, and the doing, on record.

use std::collections::BTreeMap;
use std::sync::Arc;

use effectd_actors::control::breakers::View;
use effectd_actors::letters::{self as dead, IfUnknown, Now};
use effectd_actors::limits::OPEN_TOLD_MAX;
use effectd_actors::open::open_decisions;
use effectd_actors::switches::{Restored, Switches};
use effectd_actors::{Parts, StoreError, operations, quarantine, retention};
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{KeyEntry, Operation, Principal, ToolId, Topic};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::letters::LetterNow;
use crate::limits::UPKEEP_PAGE_MAX;
use crate::replay;
use crate::upkeep::{self, EraseBody, ErasedView, RetainedView};

/// What came of an operation, or what would.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// Whether anything changed, or would.
    pub changed: bool,
    /// What, for people: a line each.
    pub says: Vec<String>,
    /// The receipt that names the operator; none if nothing changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// What became of dead letters, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub letters: Vec<LetterNow>,
}

/// What a piece of work came to: what is told, and what the receipt tells, if anything changed.
type Came = (OperationView, Option<Map<String, Value>>);

/// Does it, and answers when that and its receipt are on disk. To be carried to its end also if nobody waits any more.
pub(crate) async fn perform(
    parts: Arc<Parts>,
    operation: Operation,
    by: Principal,
) -> Result<OperationView, StoreError> {
    // What would not change anything leaves no receipt, and what cannot be done is refused before it is begun.
    let before = blocking(&parts, {
        let operation = operation.clone();
        move |parts| look(parts, &operation)
    })
    .await?;
    let says = before.says.first().cloned().unwrap_or_default();
    // Of letters, each is told what became of it.
    let of_letters = matches!(
        operation,
        Operation::RequeueLetters { .. } | Operation::DropLetters { .. } | Operation::SettleLetter { .. }
    );
    if !before.changed && !of_letters {
        return Ok(unchanged(&says).0);
    }
    let work = carry_out(parts.clone(), operation.clone(), by.clone(), says);
    let (view, receipt_id) = operations::recorded(&parts, &operation, &by, work).await?;
    Ok(OperationView {
        receipt_id: receipt_id.map(|id| id.to_string()),
        ..view
    })
}

fn changed(says: String, told: Value) -> Came {
    let told = match told {
        Value::Object(told) => told,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    let view = OperationView {
        changed: true,
        says: vec![says],
        ..OperationView::default()
    };
    (view, Some(told))
}

fn unchanged(says: &str) -> Came {
    let view = OperationView {
        says: vec![says.to_owned()],
        ..OperationView::default()
    };
    (view, None)
}

async fn carry_out(
    parts: Arc<Parts>,
    operation: Operation,
    by: Principal,
    says: String,
) -> Result<Came, StoreError> {
    let switches = Switches::new(&*parts.store);
    match operation {
        Operation::DisableTool { tool_id } => {
            switches
                .set_tool_disabled(&own_id(&parts, &tool_id)?, true)
                .await?;
            Ok(changed(says, json!({ "disabled": true })))
        }
        Operation::EnableTool { tool_id } => {
            switches
                .set_tool_disabled(&own_id(&parts, &tool_id)?, false)
                .await?;
            Ok(changed(says, json!({ "disabled": false })))
        }
        Operation::SetCaps { tool_id, caps } => {
            switches
                .set_caps(&own_id(&parts, &tool_id)?, Some(&caps))?
                .await?;
            Ok(changed(says, json!({ "caps": caps })))
        }
        Operation::ResetCaps { tool_id } => {
            switches.set_caps(&own_id(&parts, &tool_id)?, None)?.await?;
            Ok(changed(says, json!({})))
        }
        Operation::Pause {} => {
            switches.pause().await?;
            Ok(changed(says, json!({ "paused": true })))
        }
        Operation::Resume {} => {
            let (resumed, restored) = switches.resume()?;
            resumed.await?;
            let mut told = json!({ "paused": false });
            if let Some(restored) = restored {
                told["restored"] = serde_json::to_value(&restored).unwrap_or_default();
            }
            Ok(changed(says, told))
        }
        Operation::TripBreaker { key } => {
            parts.control.breakers.trip(&key).await?;
            Ok(changed(says, json!({ "state": "open" })))
        }
        Operation::ResetBreaker { key } => {
            parts.control.breakers.reset(&key).await?;
            Ok(changed(says, json!({ "state": "closed" })))
        }
        Operation::QuarantineArtifact { artifact_id, reason } => {
            let (store, clock) = (&*parts.store, &*parts.clock);
            quarantine::quarantine(store, clock, &artifact_id, by.as_str(), reason).await?;
            Ok(changed(says, json!({ "quarantined": true })))
        }
        Operation::ReleaseArtifact { artifact_id } => {
            let (store, clock) = (&*parts.store, &*parts.clock);
            quarantine::release(store, clock, &artifact_id, by.as_str()).await?;
            Ok(changed(says, json!({ "quarantined": false })))
        }
        Operation::RequeueLetters { letters } => {
            blocking(&parts, move |parts| {
                let now = parts.clock.now();
                Ok(counted(dead::requeue(
                    &*parts.store,
                    &letters,
                    now,
                    IfUnknown::Leave,
                )?))
            })
            .await
        }
        Operation::DropLetters { letters } => {
            blocking(&parts, move |parts| {
                Ok(counted(dead::purge(&*parts.store, &letters)?))
            })
            .await
        }
        Operation::SettleLetter { letter, done } => {
            blocking(&parts, move |parts| settle(parts, letter, done)).await
        }
        Operation::SeekGroup { topic, group, to } => {
            blocking(&parts, move |parts| {
                let place = replay::place(&to, parts.clock.now())?;
                let moved = replay::move_to(&*parts.store, &topic, &group, place)?;
                Ok(changed(says, json!({ "offset": moved.offset })))
            })
            .await
        }
        // These have a way of their own, which answers more.
        Operation::RotateKey {} => Err(elsewhere("/v1/log/keys")),
        Operation::ReloadPolicy {} => Err(elsewhere("/v1/policy/reload")),
        Operation::GrantConsent { .. } | Operation::RevokeConsent { .. } | Operation::SetMode { .. } => {
            Err(elsewhere("/v1/policy/changes"))
        }
        Operation::Erase { .. } => Err(elsewhere("/v1/store/erase")),
        Operation::Retain {} => {
            let told = retention::let_go(&parts).await?;
            let told = RetainedView::from(told);
            if !told.is_something() {
                return Ok(unchanged("nothing is kept too long"));
            }
            Ok(changed(says, serde_json::to_value(&told).unwrap_or_default()))
        }
    }
}

/// What the receipt of a change of the policy tells; nothing if it is the same policy with the same roots.
pub(crate) fn policy_told(before: &str, after: &crate::views::PolicyView) -> Option<Map<String, Value>> {
    let mut told = json!({ "policy_before": before, "policy_after": after.digest });
    if !after.roots.is_empty() {
        told["roots"] = json!(after.roots);
    }
    let changed = before != after.digest || !after.roots.is_empty();
    told.as_object().filter(|_| changed).cloned()
}

/// What the receipt of a change of the key tells.
pub(crate) fn key_told(entry: &KeyEntry) -> Map<String, Value> {
    let told = json!({ "key_id": entry.key_id, "previous": entry.previous });
    told.as_object().cloned().unwrap_or_default()
}

/// What has a way of its own.
fn elsewhere(way: &str) -> StoreError {
    StoreError::Invalid(format!("this is done at {way}"))
}

/// What waits for the disk, on a thread that nobody else needs.
async fn blocking<T: Send + 'static>(
    parts: &Arc<Parts>,
    work: impl FnOnce(&Parts) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let parts = parts.clone();
    let done = tokio::task::spawn_blocking(move || work(&parts)).await;
    done.unwrap_or_else(|error| {
        Err(StoreError::Unavailable {
            reason: error.to_string(),
        })
    })
}

fn counted(told: Vec<(u64, Now)>) -> Came {
    let count = |wanted: fn(&Now) -> bool| told.iter().filter(|(_, now)| wanted(now)).count();
    let (requeued, dropped) = (
        count(|now| matches!(now, Now::Requeued)),
        count(|now| matches!(now, Now::Purged)),
    );
    let (gone, left) = (
        count(|now| matches!(now, Now::Gone)),
        count(|now| matches!(now, Now::Left(_))),
    );
    let is_changed = requeued + dropped > 0;
    let view = OperationView {
        changed: is_changed,
        says: vec![format!(
            "{requeued} requeued, {dropped} dropped, {gone} gone before, {left} left"
        )],
        receipt_id: None,
        letters: told.into_iter().map(LetterNow::of).collect(),
    };
    let told = json!({ "requeued": requeued, "dropped": dropped, "gone": gone, "left": left });
    let told = told.as_object().cloned().unwrap_or_default();
    (view, is_changed.then_some(told))
}

/// A person has looked: it happened, and the letter goes; or it did not, and its decision is put on the bus again.
fn settle(parts: &Parts, number: u64, done: bool) -> Result<Came, StoreError> {
    let store = &*parts.store;
    let Some(letter) = store.letter(number)? else {
        return Ok(unchanged("there is no such dead letter any more"));
    };
    if !dead::is_unknown(&letter) {
        return Err(StoreError::Invalid(format!(
            "letter {number} failed with {}: it did not happen, and there is nothing to settle; requeue or drop it",
            letter.code
        )));
    }
    let told = if done {
        dead::purge(store, &[number])?
    } else {
        dead::requeue(store, &[number], parts.clock.now(), IfUnknown::Repeat)?
    };
    let (mut view, told) = counted(told);
    let told = told.map(|mut told| {
        told.insert("happened".to_owned(), json!(done));
        told.insert("action_id".to_owned(), json!(letter.action_id));
        told
    });
    let word = if done { "it happened" } else { "it did not happen" };
    if view.changed {
        view.says = vec![format!("letter {number}: {word}")];
    }
    Ok((view, told))
}

/// One turn of letting go of what is kept no longer, on record if anything went.
pub(crate) async fn retain(parts: Arc<Parts>, by: Principal) -> Result<RetainedView, StoreError> {
    let work = async {
        let told = retention::let_go(&parts).await?;
        let view = RetainedView::from(told);
        let told = serde_json::to_value(&view).unwrap_or_default();
        let told = told.as_object().filter(|_| view.is_something()).cloned();
        Ok((view, told))
    };
    let (view, _) = operations::recorded(&parts, &Operation::Retain {}, &by, work).await?;
    Ok(view)
}

/// One attempt at erasing subjects. The first one is on record, and so is the last.
pub(crate) async fn erase(
    parts: Arc<Parts>,
    body: EraseBody,
    by: Principal,
) -> Result<ErasedView, StoreError> {
    let (operation, first) = (
        Operation::Erase {
            subjects: body.subjects.clone(),
        },
        body.begun.is_none(),
    );
    if body.preview {
        return blocking(&parts, move |parts| erased(parts, &body)).await;
    }
    let work = async {
        let view = blocking(&parts, move |parts| erased(parts, &body)).await?;
        let told = serde_json::to_value(&view).unwrap_or_default();
        let told = told
            .as_object()
            .filter(|_| view.held.is_empty() && (first || view.done));
        let told = told.cloned();
        Ok((view, told))
    };
    let (view, _) = operations::recorded(&parts, &operation, &by, work).await?;
    Ok(view)
}

fn erased(parts: &Parts, body: &EraseBody) -> Result<ErasedView, StoreError> {
    upkeep::erase(&*parts.store, &parts.blobs, parts.clock.now(), body)
}

/// The tool's own id, whatever alias it was named by.
fn own_id(parts: &Parts, tool: &ToolId) -> Result<ToolId, StoreError> {
    let found = parts.registry.find(tool);
    let found = found.map_err(|error| StoreError::Invalid(error.to_string()))?;
    Ok(found.spec().tool_id.clone())
}

/// What an operation would change, without changing anything. Blocks.
pub(crate) fn look(parts: &Parts, operation: &Operation) -> Result<OperationView, StoreError> {
    let switches = Switches::new(&*parts.store);
    let (is_changed, says) = match operation {
        Operation::DisableTool { tool_id } => {
            let id = own_id(parts, tool_id)?;
            let off = switches.tool_disabled(&id)?;
            (
                !off,
                format!("{id}: {} -> off: every call is refused", on_off(off)),
            )
        }
        Operation::EnableTool { tool_id } => {
            let id = own_id(parts, tool_id)?;
            let off = switches.tool_disabled(&id)?;
            (off, format!("{id}: {} -> on", on_off(off)))
        }
        Operation::SetCaps { tool_id, caps } => {
            let id = own_id(parts, tool_id)?;
            let now = caps_now(parts, &id)?;
            let is_changed = switches.caps(&id)?.as_ref() != Some(caps);
            (
                is_changed,
                format!("{id}: callers need {} -> {}", words(&now), words(caps)),
            )
        }
        Operation::ResetCaps { tool_id } => {
            let id = own_id(parts, tool_id)?;
            let now = caps_now(parts, &id)?;
            let entry = parts.registry.find(&id);
            let own = entry.map_or_else(|_| Vec::new(), |entry| entry.spec().caps_required.clone());
            let is_changed = switches.caps(&id)?.is_some();
            (
                is_changed,
                format!("{id}: callers need {} -> {}", words(&now), words(&own)),
            )
        }
        Operation::Pause {} => {
            let paused = switches.paused()?;
            let what = "effects: going on -> paused: whatever comes is only tried out";
            (
                !paused,
                if paused { "effects are paused" } else { what }.to_owned(),
            )
        }
        Operation::Resume {} => {
            let waits = switches.restored()?.filter(|restored| restored.waits);
            let paused = switches.paused()? || waits.is_some();
            let mut says = if paused {
                "effects: paused -> going on"
            } else {
                "effects are going on"
            }
            .to_owned();
            if let Some(restored) = &waits {
                says.push_str(&held_back(parts, restored)?);
            }
            (paused, says)
        }
        Operation::TripBreaker { key } => {
            let view = breaker(parts, key)?;
            let (state, cause) = (view.state.as_str(), view.cause.map(|cause| cause.as_str()));
            let by_hand = state == "open" && cause == Some("operator");
            (
                !by_hand,
                format!("breaker {key}: {state} -> open until it is reset"),
            )
        }
        Operation::ResetBreaker { key } => {
            let view = breaker(parts, key)?;
            let counted = view.calls > 0 || view.state.as_str() != "closed";
            (
                counted,
                format!("breaker {key}: {} -> closed", view.state.as_str()),
            )
        }
        Operation::RequeueLetters { letters } | Operation::DropLetters { letters } => {
            return look_at_letters(parts, letters);
        }
        Operation::SettleLetter { letter, .. } => return look_at_letters(parts, &[*letter]),
        Operation::SeekGroup { topic, group, to } => {
            let place = replay::place(to, parts.clock.now())?;
            let from = replay::standing(&*parts.store, topic, group)?.offset;
            let offset = replay::offset_of(&*parts.store, topic, place)?;
            let says = format!("group {group} on {topic}: reads from {from} -> {offset} on");
            let known = replay::groups(&*parts.store, topic)?;
            let is_new = known.iter().all(|known| known.group != *group);
            (is_new || from != offset, says)
        }
        Operation::QuarantineArtifact { artifact_id, reason } => {
            let aside = quarantine::one(&*parts.store, artifact_id)?;
            let state = if aside.is_some() { "aside" } else { "handed out" };
            // Again for the same reason, or for none, is nothing new.
            let is_new = aside.is_none_or(|aside| reason.is_some() && aside.reason != *reason);
            (
                is_new,
                format!("artifact {artifact_id}: {state} -> aside: handed out to nobody"),
            )
        }
        Operation::ReleaseArtifact { artifact_id } => {
            let aside = quarantine::one(&*parts.store, artifact_id)?.is_some();
            (aside, format!("artifact {artifact_id}: handed out again"))
        }
        Operation::Retain {} => {
            let would = RetainedView::would(retention::preview(parts)?);
            (would.is_something(), "what is kept no longer goes".to_owned())
        }
        Operation::RotateKey {} => return Err(elsewhere("/v1/log/keys")),
        Operation::ReloadPolicy {} => return Err(elsewhere("/v1/policy/reload")),
        Operation::GrantConsent { .. } | Operation::RevokeConsent { .. } | Operation::SetMode { .. } => {
            return Err(elsewhere("/v1/policy/changes"));
        }
        Operation::Erase { .. } => return Err(elsewhere("/v1/store/erase")),
    };
    Ok(OperationView {
        changed: is_changed,
        says: vec![says],
        ..OperationView::default()
    })
}

/// What a restore has left open, for whoever is about to let it go on.
fn held_back(parts: &Parts, restored: &Restored) -> Result<String, StoreError> {
    let groups = parts.store.groups(&Topic::ActionDecision.into()).wait()?;
    let open = groups
        .iter()
        .map(|group| group.undelivered + group.waiting + group.leased);
    let (open, begun) = (open.max().unwrap_or(0), parts.store.stats().intents_open);
    let mut says = format!(
        "; {} begin now, and {begun} that were begun then become dead letters of unknown outcome; withdraw first what was done \
         elsewhere since (effectd cancel)",
        open.saturating_sub(begun)
    );
    let told = open_decisions(&*parts.store, restored.decisions, OPEN_TOLD_MAX)?;
    for one in &told {
        let begun = if one.begun { ", begun" } else { "" };
        says.push_str(&format!(
            "\n  {}: {} for {}{begun}",
            one.action_id, one.tool_id, one.subject_id
        ));
    }
    if told.len() == OPEN_TOLD_MAX {
        says.push_str("\n  and perhaps more");
    }
    Ok(says)
}

fn on_off(off: bool) -> &'static str {
    if off { "off" } else { "on" }
}

fn words(caps: &[effectd_contracts::Capability]) -> String {
    let words: Vec<&str> = caps.iter().map(|cap| cap.as_str()).collect();
    if words.is_empty() {
        "nothing".to_owned()
    } else {
        words.join(", ")
    }
}

fn caps_now(parts: &Parts, tool: &ToolId) -> Result<Vec<effectd_contracts::Capability>, StoreError> {
    if let Some(caps) = Switches::new(&*parts.store).caps(tool)? {
        return Ok(caps);
    }
    let entry = parts.registry.find(tool);
    Ok(entry.map_or_else(|_| Vec::new(), |entry| entry.spec().caps_required.clone()))
}

fn breaker(parts: &Parts, key: &str) -> Result<View, StoreError> {
    if key.is_empty() || key.len() > ID_BYTES_MAX || key.chars().any(is_unprintable) {
        return Err(StoreError::Invalid("no breaker can have this key".to_owned()));
    }
    let known = parts.control.breakers.show_one(key);
    Ok(known.unwrap_or_else(|| View::untouched(key)))
}

/// How many of the letters are there, by their causes.
fn look_at_letters(parts: &Parts, numbers: &[u64]) -> Result<OperationView, StoreError> {
    if numbers.len() > UPKEEP_PAGE_MAX {
        let why = format!("at most {} letters at a time", UPKEEP_PAGE_MAX);
        return Err(StoreError::Invalid(why));
    }
    let (mut causes, mut gone) = (BTreeMap::<(String, String), u64>::new(), 0_u64);
    for number in numbers {
        match parts.store.letter(*number)? {
            Some(letter) => {
                *causes
                    .entry((letter.fingerprint.to_string(), letter.code))
                    .or_default() += 1
            }
            None => gone += 1,
        }
    }
    let mut says: Vec<String> = causes
        .iter()
        .map(|((cause, code), count)| format!("{count} of cause {cause} ({code})"))
        .collect();
    if gone > 0 {
        says.push(format!("{gone} are no dead letters any more"));
    }
    Ok(OperationView {
        changed: !causes.is_empty(),
        says,
        ..OperationView::default()
    })
}
