//! Dead letters as actions: what each was about, and how it is put on the bus again.

use effectd_bus::{NewBody, NewEvent, Requeued, Store, StoreError, StoredLetter};
use effectd_contracts::{DecisionData, Event, Timestamp, TraceId, json, limits as bounds};

use crate::decisions;
use crate::limits::REQUEUES_MAX;

/// What became of a letter that somebody wanted to be rid of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Now {
    /// Its decision is on the bus again.
    Requeued,
    /// It is forgotten.
    Purged,
    /// It is no dead letter any more, or never was.
    Gone,
    /// It stays, for this reason.
    Left(String),
}

/// The decision that a letter was about, if it can still be read and was one.
pub fn decision(letter: &StoredLetter) -> Option<DecisionData> {
    let bytes = letter.payload.bytes()?;
    let max = 2 * bounds::REQUEST_BYTES_MAX;
    let event = json::parse::<Event<DecisionData>>(bytes, max).map(|event| event.data);
    event.or_else(|_| json::parse(bytes, max)).ok()
}

/// Puts a letter's decision on the bus again, with its action id and key. Blocks until that is durable.
pub fn requeue(store: &dyn Store, number: u64, now: Timestamp) -> Result<Now, StoreError> {
    let Some(letter) = store.letter(number)? else {
        return Ok(Now::Gone);
    };
    let Some(event) = again(store, &letter, now)? else {
        let why = "its decision cannot be read any more, or was requeued too often";
        return Ok(Now::Left(why.to_owned()));
    };
    match store.requeue(number, event).wait() {
        Ok(Requeued::Published { .. }) => Ok(Now::Requeued),
        Ok(Requeued::Gone) => Ok(Now::Gone),
        Err(error @ (StoreError::AlreadyReceipted { .. } | StoreError::StaleFence { .. })) => {
            Ok(Now::Left(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Forgets a letter. Blocks until that is durable.
pub fn purge(store: &dyn Store, number: u64) -> Result<Now, StoreError> {
    let purged = store.purge(vec![number]).wait()?;
    Ok(if purged == 1 { Now::Purged } else { Now::Gone })
}

/// The event that puts a letter's decision on the bus again; `None` if it cannot be read any more, or was put there too
/// often.
fn again(store: &dyn Store, letter: &StoredLetter, now: Timestamp) -> Result<Option<NewEvent>, StoreError> {
    let Some(decision) = decision(letter) else {
        return Ok(None);
    };
    let (times, _) = decisions::requeued(store, &decision.request.action_id)?;
    Ok((times < REQUEUES_MAX.get())
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
