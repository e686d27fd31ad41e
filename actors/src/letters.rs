//! Dead letters as actions: what each was about, and how it is put on the bus again.

use effectd_bus::fingerprint::fingerprint;
use effectd_bus::{Fingerprint, LeaseId, NewBody, NewEvent, Requeued, Store, StoreError, StoredLetter};
use effectd_contracts::{
    ActionId, ActionRequest, Code, DeadLetterData, DecisionData, Event, Outcome, SpaceId, Timestamp, Topic,
    TraceId, json, limits as bounds,
};
use effectd_policy::redact::{prune_result, redact_secrets};
use serde_json::{Map, Value};

use crate::decisions;
use crate::limits::REQUEUES_MAX;
use crate::parts::Parts;
use crate::preview;

/// What became of a letter that somebody wanted to be rid of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Now {
    Requeued,
    Purged,
    /// It is no dead letter any more, or never was.
    Gone,
    Left(String),
}

/// The decision that a letter was about, if it can still be read and was one.
pub fn decision(letter: &StoredLetter) -> Option<DecisionData> {
    let bytes = letter.payload.bytes()?;
    let max = 2 * bounds::REQUEST_BYTES_MAX;
    let event = json::parse_stored::<Event<DecisionData>>(bytes, max).map(|event| event.data);
    event.or_else(|_| json::parse_stored(bytes, max)).ok()
}

/// What a decision's tool was to be told, for people who review it: without secrets and personal data, and short.
pub fn shown(decision: &DecisionData) -> Map<String, Value> {
    let mut params = Value::Object(decision.request.params.clone());
    redact_secrets(&mut params);
    without_secrets(&mut params);
    prune_result(params).as_object().cloned().unwrap_or_default()
}

fn without_secrets(value: &mut Value) {
    match value {
        Value::String(text) => drop(preview::redact(text)),
        Value::Array(items) => items.iter_mut().for_each(without_secrets),
        Value::Object(members) => members.values_mut().for_each(without_secrets),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What to do about a letter whose effect may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfUnknown {
    /// It stays: only a person can say whether it may be repeated.
    Leave,
    /// A person has said that it did not happen.
    Repeat,
}

/// Whether it is not known if what a letter was about happened.
pub fn is_unknown(letter: &StoredLetter) -> bool {
    letter.code == Code::OutcomeUnknown.as_str()
}

/// Puts the decisions of letters on the bus again, each with its action id and key. Blocks until that is durable, once for all
/// of them.
pub fn requeue(
    store: &dyn Store,
    numbers: &[u64],
    now: Timestamp,
    unknown: IfUnknown,
) -> Result<Vec<(u64, Now)>, StoreError> {
    let mut asked = Vec::with_capacity(numbers.len());
    for number in numbers {
        let answer = match prepared(store, *number, now, unknown) {
            Ok(Ok(event)) => Ok(store.requeue(*number, event)),
            Ok(Err(now)) => Err(Ok(now)),
            Err(error) => Err(Err(error)),
        };
        asked.push((*number, answer));
    }
    let ended = asked.into_iter().map(|(number, answer)| {
        let now = match answer {
            Err(now) => now,
            Ok(wait) => wait.wait().map(|requeued| match requeued {
                Requeued::Published { .. } => Now::Requeued,
                Requeued::Gone => Now::Gone,
            }),
        };
        Ok((number, told(now)?))
    });
    ended.collect()
}

/// What became of one letter. Should the Store not know whether it was written, nobody does, and that is no answer.
fn told(now: Result<Now, StoreError>) -> Result<Now, StoreError> {
    match now {
        Err(error @ (StoreError::Unavailable { .. } | StoreError::Closed)) => Err(error),
        Err(error) => Ok(Now::Left(error.to_string())),
        now => now,
    }
}

/// Whether an action that ends so is a dead letter again, because it was one before and was requeued: whatever stopped it, it was
/// not done, and nobody but who requeued it knows. What a person has refused or withdrawn is wanted by nobody.
pub(crate) fn comes_back(parts: &Parts, action: &ActionId, outcome: Outcome) -> bool {
    match outcome {
        Outcome::Executed
        | Outcome::CachedHit
        | Outcome::DryRun
        | Outcome::DeniedHuman
        | Outcome::Cancelled => false,
        Outcome::Paused
        | Outcome::NotStarted
        | Outcome::AwaitingApproval
        | Outcome::Approved
        | Outcome::Executing
        | Outcome::DeniedPolicy
        | Outcome::Quarantined
        | Outcome::Expired
        | Outcome::Invalid
        | Outcome::NotFound
        | Outcome::Throttled
        | Outcome::Reverted
        | Outcome::Failed
        | Outcome::TimedOut
        | Outcome::BreakerOpen
        | Outcome::Indeterminate => {
            // Rather a letter too many than one that is lost.
            decisions::requeued(&*parts.store, action).map_or(true, |(times, _)| times > 0)
        }
    }
}

/// The event that requeues a letter, or why it is not requeued.
fn prepared(
    store: &dyn Store,
    number: u64,
    now: Timestamp,
    unknown: IfUnknown,
) -> Result<Result<NewEvent, Now>, StoreError> {
    let Some(letter) = store.letter(number)? else {
        return Ok(Err(Now::Gone));
    };
    if unknown == IfUnknown::Leave && is_unknown(&letter) {
        let why = format!(
            "whether it happened is not known; look, and say it: `effectd dlq settle {number} --done` or `--not-done`"
        );
        return Ok(Err(Now::Left(why)));
    }
    let why = "its decision cannot be read any more, or was requeued too often";
    Ok(again(store, &letter, now)?.ok_or_else(|| Now::Left(why.to_owned())))
}

/// Forgets letters. Blocks until that is durable, once for all of them.
pub fn purge(store: &dyn Store, numbers: &[u64]) -> Result<Vec<(u64, Now)>, StoreError> {
    let asked: Vec<_> = numbers
        .iter()
        .map(|number| (*number, store.purge(vec![*number])))
        .collect();
    let ended = asked.into_iter().map(|(number, wait)| {
        let now = wait
            .wait()
            .map(|gone| if gone == 1 { Now::Purged } else { Now::Gone });
        Ok((number, told(now)?))
    });
    ended.collect()
}

/// Ends a delivery that cannot be carried out and has no receipt, as a dead letter, and tells so. The event follows the letter: should
/// the process die between the two, the letter is there without it.
pub(crate) async fn set_aside(
    parts: &Parts,
    lease: LeaseId,
    about: Result<&ActionRequest, u64>,
    (code, detail): (Code, &str),
) -> Result<(), StoreError> {
    parts.store.term(lease, code.as_str(), detail).await?;
    let (action_id, space) = match about {
        Ok(request) => (request.action_id.clone(), request.space_id.clone()),
        Err(offset) => (ActionId::new(format!("decision:{offset}"))?, SpaceId::new("*")?),
    };
    let data = DeadLetterData {
        receipt_id: None,
        action_id,
        tool_id: about.ok().map(|request| request.tool_id.clone()),
        subject_id: about.ok().map(|request| request.subject_id.clone()),
        code: code.to_string(),
        cause: Fingerprint(fingerprint(code.as_str(), detail)).to_string(),
        attempts: 0,
    };
    parts.metrics.given_up.with_label_values(&[code.as_str()]).inc();
    let trace = about
        .ok()
        .and_then(ActionRequest::trace)
        .unwrap_or_else(TraceId::fresh);
    let event = Event::unreceipted(data, space, trace, parts.clock.now());
    let event = NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: None,
        // Plain data with text keys, for which serde_json has no failure.
        body: NewBody::Clear(serde_json::to_vec(&event).unwrap_or_default()),
    };
    parts
        .store
        .publish(&Topic::DeadLetters.into(), vec![event])
        .await
        .map(drop)
}

/// The event that puts a letter's decision on the bus again; `None` if it cannot be read any more, or was put there too
/// often.
fn again(store: &dyn Store, letter: &StoredLetter, now: Timestamp) -> Result<Option<NewEvent>, StoreError> {
    let Some(decision) = decision(letter) else {
        return Ok(None);
    };
    let (times, _) = decisions::requeued(store, &decision.request.action_id)?;
    Ok((times < REQUEUES_MAX)
        .then(|| event_again(decision, times + 1, now))
        .flatten())
}

fn event_again(decision: DecisionData, n: u32, now: Timestamp) -> Option<NewEvent> {
    let trace = decision.request.trace().unwrap_or_else(TraceId::fresh);
    let action_id = decision.request.action_id.clone();
    let mut event = Event::decision(decision, trace, now);
    event.id = Event::<DecisionData>::id_for_requeue(&action_id, n);
    Some(NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: Some(action_id),
        body: NewBody::Sealed(serde_json::to_vec(&event).ok()?),
    })
}
