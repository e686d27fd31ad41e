//! Writes thousands of dead letters into a closed store.

use std::sync::Arc;

use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{Completion, NewBody, NewDeadLetter, NewEvent, NewReceipt, Store};
use effectd_contracts::{
    ActionId, DecisionData, Digest, EventId, Origin, Principal, ReceiptId, Status, SystemClock, Timestamp,
    Topic, TraceId,
};
use serde_json::Value;

use crate::harness::Place;

/// How many writes are in flight at once.
const WINDOW: usize = 500;

/// A dead letter to write: the request that failed, and how.
pub struct Left {
    pub request: Value,
    pub code: String,
    pub detail: String,
}

/// Writes dead letters, in order, with numbers from the first free one.
pub fn leave(place: &Place, letters: impl Iterator<Item = Left>) {
    let store = embedded::open(EmbeddedConfig::new(place.state()), Arc::new(SystemClock)).unwrap();
    let mut waits = Vec::new();
    for left in letters {
        waits.push(store.commit(completion(left, None)));
        if waits.len() == WINDOW {
            waits.drain(..).for_each(|wait| drop(wait.wait().unwrap()));
        }
    }
    waits.into_iter().for_each(|wait| drop(wait.wait().unwrap()));
    store.close().unwrap();
}

/// Writes a dead letter of one action with the decision of another, which cannot be requeued.
pub fn leave_crossed(place: &Place, left: Left, other: &ActionId) {
    let store = embedded::open(EmbeddedConfig::new(place.state()), Arc::new(SystemClock)).unwrap();
    store.commit(completion(left, Some(other))).wait().unwrap();
    store.close().unwrap();
}

fn completion(left: Left, other: Option<&ActionId>) -> Completion {
    let mut request: effectd_contracts::ActionRequest = serde_json::from_value(left.request).unwrap();
    let me = effectd::internal::Config::embedded(".effectd").unwrap().principal;
    let receipt = NewReceipt {
        receipt_id: ReceiptId::fresh(),
        action_id: request.action_id.clone(),
        action_digest: Digest::of(b"request"),
        tool_id: request.tool_id.clone(),
        subject_id: request.subject_id.clone(),
        space_id: request.space_id.clone(),
        status: Status::Error,
        key: None,
        params_digest: Digest::of(b"params"),
        time: Timestamp::now(),
        body: b"{}".to_vec(),
    };
    if let Some(other) = other {
        request.action_id = other.clone();
    }
    let decision = DecisionData::new(request, Principal::new(me.as_str()).unwrap(), Origin::Arbiter);
    Completion {
        receipt,
        events: Vec::new(),
        fence: None,
        leases: Vec::new(),
        letter: Some(NewDeadLetter {
            topic: Topic::ActionDecision.into(),
            code: left.code,
            detail: left.detail,
            attempts: 1,
            tries: Vec::new(),
            payload: serde_json::to_vec(&decision).unwrap(),
        }),
        retire: Vec::new(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: Vec::new(),
        links: Vec::new(),
    }
}

pub fn action(n: usize) -> ActionId {
    ActionId::new(format!("left-{n}")).unwrap()
}

/// Publishes a malformed decision.
pub fn publish_nonsense(place: &Place) {
    let store = embedded::open(EmbeddedConfig::new(place.state()), Arc::new(SystemClock)).unwrap();
    let event = NewEvent {
        event_id: EventId::fresh(),
        time: Timestamp::now(),
        trace_id: TraceId::fresh(),
        action_id: None,
        body: NewBody::Sealed(b"{ this is no decision".to_vec()),
    };
    store.publish(&Topic::ActionDecision.into(), vec![event]).wait().unwrap();
    store.close().unwrap();
}
