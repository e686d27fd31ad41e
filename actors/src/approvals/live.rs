//! Live events: what clients hear about invocations as it happens. They follow from the topics `APPROVALS` and `ACTION_EXECUTED`, so
//! that a client which was away can read on where it stopped.

use effectd_bus::{Store, StoreError, StoredEvent};
use effectd_contracts::{
    ActionId, ApprovalChange, ApprovalData, Event, ExecutedData, InvocationStatus, OrgId, Receipt, ReceiptId,
    SpaceId, Topic,
};
use serde_json::Value;

use super::invocation::{self, Invocation};
use super::repository;
use crate::effects::results;
use crate::registry::OWN;
use crate::services::Services;

const APPROVAL_REQUEST: &str = "action_approval_request";
const COMPLETED: &str = "action_completed";
const APPROVAL_RESULT: &str = "action_approval_result";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveEvent {
    /// The name on the wire.
    pub name: &'static str,
    /// The organisation that the action's space belongs to.
    pub org: Option<OrgId>,
    about: About,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum About {
    Actions(Vec<ActionId>),
    Receipt(ReceiptId),
}

impl LiveEvent {
    /// What an event of the two topics means to clients; `None` if they do not hear of it.
    pub fn of(services: &Services, stored: &StoredEvent) -> Option<Self> {
        let bytes = stored.body.bytes()?;
        let (name, space, about) = if stored.topic.as_str() == Topic::Approvals.as_str() {
            of_approval(serde_json::from_slice(bytes).ok()?)?
        } else {
            of_receipt(serde_json::from_slice(bytes).ok()?)?
        };
        Some(Self { name, org: services.org_of(&space), about })
    }

    /// The invocations that it is about, as they are now and safe to show. One that belongs to another organisation is left out: its
    /// space has moved since.
    pub async fn invocations(&self, services: &Services) -> Result<Vec<Invocation>, StoreError> {
        let mut found = Vec::new();
        match &self.about {
            About::Actions(ids) => {
                for id in ids {
                    found.extend(invocation::find(services, id).await?);
                }
            }
            About::Receipt(id) => {
                let Some(stored) = services.store.receipt(id)? else {
                    return Ok(found);
                };
                let receipt = stored.parse()?;
                let ids = answered_by(&*services.store, &receipt)?;
                found.extend(ids.iter().filter_map(|id| invocation::of_receipt(id, &receipt)));
            }
        }
        found.retain(|invocation| invocation.organization_id == self.org);
        for Invocation { params, .. } in &mut found {
            let safe = results::safe(&Value::Object(std::mem::take(params)));
            *params = safe.as_object().cloned().unwrap_or_default();
        }
        Ok(found)
    }
}

fn of_approval(event: Event<ApprovalData>) -> Option<(&'static str, SpaceId, About)> {
    let (name, actions) = match event.data.what {
        ApprovalChange::Requested | ApprovalChange::Joined => (APPROVAL_REQUEST, vec![event.subject]),
        ApprovalChange::Reopened => (APPROVAL_REQUEST, event.data.action_ids),
        ApprovalChange::Denied => (APPROVAL_RESULT, event.data.action_ids),
        ApprovalChange::Approved
        | ApprovalChange::Expired
        | ApprovalChange::Released
        | ApprovalChange::Withdrawn
        | ApprovalChange::GrantRequested
        | ApprovalChange::GrantCreated
        | ApprovalChange::GrantUsed
        | ApprovalChange::GrantRevoked
        | ApprovalChange::GrantEnded => return None,
    };
    Some((name, event.spaceid, About::Actions(actions)))
}

fn of_receipt(event: Event<ExecutedData>) -> Option<(&'static str, SpaceId, About)> {
    // An operation is no action.
    if event.data.tool_id.as_str().starts_with(OWN) {
        return None;
    }
    match event.data.outcome.project().invocation? {
        InvocationStatus::Completed | InvocationStatus::Failed => {
            Some((COMPLETED, event.spaceid, About::Receipt(event.data.receipt_id)))
        }
        InvocationStatus::Pending
        | InvocationStatus::Approved
        | InvocationStatus::Executing
        | InvocationStatus::Denied
        | InvocationStatus::Expired => None,
    }
}

/// The actions that a receipt answers: its own, and those that waited for the same approval.
fn answered_by(store: &dyn Store, receipt: &Receipt) -> Result<Vec<ActionId>, StoreError> {
    let mut ids = vec![receipt.action_id.clone()];
    let approval = receipt.approval.as_ref().and_then(|approval| approval.approval_id.as_ref());
    let Some(approval) = approval else {
        return Ok(ids);
    };
    let members = match repository::hold(store, approval)? {
        Some(hold) => hold.value.members.into_iter().map(|member| member.action_id).collect(),
        None => repository::past(store, approval)?.map_or_else(Vec::new, |past| past.action_ids),
    };
    for id in members {
        // One that was withdrawn has a receipt of its own.
        let other = store.receipt_of(&id)?.is_some_and(|own| own.receipt_id != receipt.receipt_id);
        if id != receipt.action_id && !other {
            ids.push(id);
        }
    }
    Ok(ids)
}
