//! Dead letters: the decision in each, and how it is requeued or purged.

use effectd_bus::fingerprint::fingerprint;
use effectd_bus::{Acknowledgement, DeadLetter, Fingerprint, LeaseId, NewEvent, Requeued, Store, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, Code, DeadLetterData, DecisionData, Event, Origin, SpaceId, Timestamp, Topic,
    TraceId, json, limits as bounds,
};

use crate::action::decisions::{self, to_publish};
use crate::limits::REQUEUES_MAX;
use crate::metrics::Metrics;
use crate::services::webhooks;
use crate::stored::clear_event;

/// What happened to a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Now {
    Requeued,
    Purged,
    /// There is no such letter.
    Gone,
    Left(String),
}

/// The decision of a letter, if it can be read.
pub fn decision(letter: &DeadLetter) -> Option<DecisionData> {
    let bytes = letter.payload.bytes()?;
    let max = 2 * bounds::REQUEST_BYTES_MAX;
    let event = json::parse_stored::<Event<DecisionData>>(bytes, max).map(|event| event.data);
    event.or_else(|_| json::parse_stored(bytes, max)).ok()
}

/// What to do with a letter whose effect may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfUnknown {
    /// Leave it to a person.
    Leave,
    /// Requeue it: a person says that the effect did not happen.
    Repeat,
}

/// Whether the outcome of a letter's action is unknown.
pub fn is_unknown(letter: &DeadLetter) -> bool {
    letter.code == Code::OutcomeUnknown.as_str()
}

/// Requeues letters: publishes their decisions again, each with its action id and key. Blocks until every one is durable.
pub fn requeue(
    store: &dyn Store,
    numbers: &[u64],
    now: Timestamp,
    unknown: IfUnknown,
) -> Result<Vec<(u64, Now)>, StoreError> {
    let mut asked = Vec::with_capacity(numbers.len());
    for number in numbers {
        if let Some(now) = requeued_to_webhook(store, *number, now)? {
            asked.push((*number, Err(Ok(now))));
            continue;
        }
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
        Ok((number, known(now)?))
    });
    ended.collect()
}

fn requeued_to_webhook(store: &dyn Store, number: u64, now: Timestamp) -> Result<Option<Now>, StoreError> {
    let Some(letter) = store.letter(number)? else { return Ok(None) };
    let requeued = webhooks::requeue(store, &letter, now)?;
    Ok(requeued.map(|done| done.map_or_else(Now::Left, |()| Now::Requeued)))
}

/// What happened to one letter; an error if the Store cannot say whether the change was written.
fn known(now: Result<Now, StoreError>) -> Result<Now, StoreError> {
    match now {
        Err(error @ (StoreError::Unavailable { .. } | StoreError::Closed)) => Err(error),
        Err(error) => Ok(Now::Left(error.to_string())),
        now => now,
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
            "whether the effect happened is unknown; find out, then run `effectd dlq settle {number} --done` or `--not-done`"
        );
        return Ok(Err(Now::Left(why)));
    }
    if decision(&letter).is_some_and(|decision| matches!(decision.origin, Origin::Batch { .. })) {
        let why = "it is an item of a batch that has ended; send what is left as another batch, and drop this letter";
        return Ok(Err(Now::Left(why.to_owned())));
    }
    let why = "its decision can no longer be read, or was requeued too often";
    Ok(again(store, &letter, now)?.ok_or_else(|| Now::Left(why.to_owned())))
}

/// Purges letters. Blocks until every removal is durable.
pub fn purge(store: &dyn Store, numbers: &[u64]) -> Result<Vec<(u64, Now)>, StoreError> {
    let asked: Vec<_> = numbers.iter().map(|number| (*number, store.purge(vec![*number]))).collect();
    let ended = asked.into_iter().map(|(number, wait)| {
        let now = wait.wait().map(|gone| if gone == 1 { Now::Purged } else { Now::Gone });
        Ok((number, known(now)?))
    });
    ended.collect()
}

/// Ends a delivery without a receipt, as a dead letter, and then publishes that. If the process dies in between, the event is
/// missing.
pub(crate) async fn set_aside(
    store: &dyn Store,
    metrics: &Metrics,
    now: Timestamp,
    lease: LeaseId,
    about: Result<&ActionRequest, u64>,
    (code, detail): (Code, &str),
) -> Result<(), StoreError> {
    let tool = about.ok().map(|request| request.tool_id.to_string());
    let cause = Fingerprint(fingerprint(tool.as_deref(), code.as_str(), detail)).to_string();
    let end = Acknowledgement::Term { tool, code: code.to_string(), detail: detail.to_owned() };
    store.acknowledge(lease, end).await?;
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
        cause,
        attempts: 0,
    };
    metrics.given_up.with_label_values(&[code.as_str()]).inc();
    let trace = about.ok().and_then(ActionRequest::trace).unwrap_or_else(TraceId::fresh);
    let event = Event::unreceipted(data, space, trace, now);
    let events = vec![clear_event(&event, None)];
    store.publish(&Topic::DeadLetters.into(), events).await.map(drop)
}

/// The event that publishes a letter's decision again; `None` if the decision cannot be read, or was requeued too often.
fn again(store: &dyn Store, letter: &DeadLetter, now: Timestamp) -> Result<Option<NewEvent>, StoreError> {
    let Some(decision) = decision(letter) else {
        return Ok(None);
    };
    let (times, _) = decisions::requeued(store, &decision.request.action_id)?;
    Ok((times < REQUEUES_MAX).then(|| event_again(decision, times + 1, now)))
}

fn event_again(decision: DecisionData, n: u32, now: Timestamp) -> NewEvent {
    let trace = decision.request.trace().unwrap_or_else(TraceId::fresh);
    let id = Event::<DecisionData>::id_for_requeue(&decision.request.action_id, n);
    let mut event = Event::decision(decision, trace, now);
    event.id = id;
    to_publish(&event)
}
