//! Values for tests, each from a short name or a number.

use effectd_contracts::{
    ActionId, Digest, EventId, IdempotencyKey, Principal, ReceiptId, SpaceId, Status, SubjectId, Timestamp,
    ToolId, TraceId,
};

use crate::names::{FamilyName, GroupName, ResourceName, TopicName};
use crate::types::claims::{Asker, Claim, Fence};
use crate::types::dead_letters::NewDeadLetter;
use crate::types::events::{NewBody, NewEvent};
use crate::types::kv::{Change, Expect, KvChange, Swap};
use crate::types::receipts::{Completion, NewReceipt};

pub fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

pub fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

pub fn family(name: &str) -> FamilyName {
    FamilyName::new(name).unwrap()
}

pub fn resource(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

pub fn action(name: &str) -> ActionId {
    ActionId::new(name).unwrap()
}

pub fn receipt_id(name: &str) -> ReceiptId {
    ReceiptId::new(name).unwrap()
}

pub fn space(name: &str) -> SpaceId {
    SpaceId::new(name).unwrap()
}

pub fn key(name: &str) -> IdempotencyKey {
    IdempotencyKey::new(name).unwrap()
}

/// The time of all these values.
pub fn moment() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// An event with a body in clear.
pub fn event(id: &str) -> NewEvent {
    NewEvent {
        event_id: EventId::new(id).unwrap(),
        time: moment(),
        trace_id: TraceId::new("trace").unwrap(),
        action_id: None,
        body: NewBody::Clear(format!("{{\"id\":\"{id}\"}}").into_bytes()),
    }
}

/// An event about an action, with a sealed body.
pub fn sealed_event(id: &str, about: &str, body: &[u8]) -> NewEvent {
    NewEvent { action_id: Some(action(about)), body: NewBody::Sealed(body.to_vec()), ..event(id) }
}

pub fn asker() -> Asker {
    Asker {
        space: space("shared:test"),
        subject: SubjectId::new("agent://planner").unwrap(),
        principal: Principal::new("user://alice").unwrap(),
    }
}

/// A claim of an action on a key; `params` distinguishes parameters and request.
pub fn claim(about: &str, on: &str, params: &str) -> Claim {
    Claim {
        action_id: action(about),
        action_digest: Digest::of(format!("{about} {params}").as_bytes()),
        asker: asker(),
        key: Some(key(on)),
        params_digest: Digest::of(params.as_bytes()),
        intent: format!("intent of {about}").into_bytes(),
        resources: Vec::new(),
        depends: Vec::new(),
        stale: None,
    }
}

/// The receipt `receipt-<action>` of a claim.
pub fn receipt(of: &Claim, status: Status) -> NewReceipt {
    let id = format!("receipt-{}", of.action_id);
    NewReceipt {
        receipt_id: receipt_id(&id),
        action_id: of.action_id.clone(),
        action_digest: of.action_digest,
        tool_id: ToolId::new("files.write_text").unwrap(),
        subject_id: of.asker.subject.clone(),
        space_id: of.asker.space.clone(),
        status,
        key: of.key.clone(),
        params_digest: of.params_digest,
        time: moment(),
        body: format!("{{\"receipt_id\":\"{id}\",\"status\":\"{}\"}}", status.as_str()).into_bytes(),
    }
}

/// A completion with only the receipt and its event.
pub fn completion(of: &Claim, status: Status, fence: Option<Fence>) -> Completion {
    let receipt = receipt(of, status);
    let executed = event(&format!("executed-{}", receipt.receipt_id));
    Completion {
        receipt,
        events: vec![(topic("ACTION_EXECUTED"), executed)],
        fence,
        leases: Vec::new(),
        letter: None,
        retire: of.resources.clone(),
        disturbed: Vec::new(),
        appeared: Vec::new(),
        depends: of.depends.clone(),
        links: Vec::new(),
    }
}

/// A dead letter whose payload is a name.
pub fn letter(name: &str) -> NewDeadLetter {
    NewDeadLetter {
        topic: topic("ACTION_DECISION"),
        code: "timed_out".into(),
        detail: format!("no answer to {name}"),
        attempts: 2,
        tries: Vec::new(),
        payload: name.as_bytes().to_vec(),
    }
}

/// A change that puts one entry in clear.
pub fn put(of: &str, name: &str, expect: Expect, value: &str) -> Change {
    let change = KvChange::Put(NewBody::Clear(value.as_bytes().to_vec()));
    Change {
        swaps: vec![Swap { family: family(of), key: name.to_owned(), expect, change }],
        ..Change::default()
    }
}
