//! The view of a hold for people: everything that they need to decide, and no secret.

use effectd_bus::StoreError;
use effectd_contracts::batch::is_batch;
use effectd_contracts::{ActionId, ActionRequest, ApprovalId, Principal, Rationale};
use effectd_policy::redact::personal::redact_text;
use effectd_policy::redact::prune::TRUNCATED_MARKER;
use effectd_policy::redact::{prune_result, prune_to, redact_secrets};
use effectd_policy::{Decider, Policy, PrincipalRole, inspect_to_show};
use serde_json::{Map, Value};

use super::hold::{Hold, HoldState};
use super::repository::Versioned;
use super::{Held, expiry, repository};
use crate::preview::redact;
use crate::registry::Registry;
use crate::services::Services;

/// The length of what an action is about; the parameters have the rest.
const ABOUT_BYTES_MAX: usize = 256;

/// Bytes of each item of a batch for people: they see a part of every one.
const ITEM_BYTES_MAX: usize = 4_096;

/// The parameters for people: shortened, without personal data and secrets.
pub fn shown(registry: &Registry, policy: &Policy, request: &ActionRequest) -> Map<String, Value> {
    // Without the tool's description, nobody knows which parameters may be shown.
    let Some(tool) = registry.get(&request.tool_id) else {
        return Map::new();
    };
    let inspection = inspect_to_show(&request.params, tool.spec(), policy);
    let mut params = Value::Object(inspection.params);
    redact_secrets(&mut params);
    redact_texts(&mut params);
    if is_batch(&request.tool_id) {
        params = prune_items(params);
    } else {
        params = prune_result(params);
    }
    params.as_object().cloned().unwrap_or_default()
}

/// Shortens each item by itself.
fn prune_items(mut params: Value) -> Value {
    let mut is_pruned = false;
    for item in params["items"].as_array_mut().into_iter().flatten() {
        *item = prune_to(item.take(), ITEM_BYTES_MAX);
        is_pruned |= item.get(TRUNCATED_MARKER).is_some();
    }
    if is_pruned {
        params[TRUNCATED_MARKER] = Value::Bool(true);
    }
    params
}

/// What an action is about, of its shown parameters: the path, or else the first public one, or else the first.
pub fn about(registry: &Registry, hold: &Hold, shown: &Map<String, Value>) -> Option<String> {
    let tool = registry.get(&hold.decision.request.tool_id)?;
    let told = shown.iter().filter(|(name, _)| *name != "space_id");
    let (_, value) = told.min_by_key(|(name, _)| (*name != "path", !tool.spec().is_public_param(name)))?;
    let mut text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.len() > ABOUT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ABOUT_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
    Some(text)
}

/// Removes secrets from every text: `postgres://app:hunter2@db.example.org`.
fn redact_texts(value: &mut Value) {
    match value {
        Value::String(text) => {
            redact(text);
        }
        Value::Array(items) => items.iter_mut().for_each(redact_texts),
        Value::Object(members) => members.values_mut().for_each(redact_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What the plan requires beside the request: shortened, without personal data and secrets.
pub fn contract(hold: &Hold) -> Option<Value> {
    let mut contract = serde_json::to_value(hold.decision.contract.as_ref()?).ok()?;
    redact_secrets(&mut contract);
    redact_texts(&mut contract);
    Some(prune_result(contract))
}

/// The planner's rationale without personal data.
pub fn rationale(hold: &Hold) -> Option<Rationale> {
    let mut rationale = hold.decision.request.rationale.clone()?;
    if let Some(redacted) = rationale.reason.as_deref().and_then(redact_text) {
        rationale.reason = Some(redacted.text);
    }
    Some(rationale)
}

/// Whether this person may see a hold: approvers and operators see all holds, admins of an organisation those of it, and others
/// only their own.
pub fn may_see(policy: &Policy, by: &Decider, principal: &Principal, org: Option<&str>) -> bool {
    by.principal == *principal
        || policy.may_view_approvals(by, org)
        || policy.may_operate_in(by, PrincipalRole::Look, org)
}

/// Whether this person may read the contents of a hold: those who only look see which actions wait, not what is in them.
pub fn may_read(policy: &Policy, by: &Decider, principal: &Principal, org: Option<&str>) -> bool {
    by.principal == *principal
        || policy.may_view_approvals(by, org)
        || policy.may_operate_in(by, PrincipalRole::Operate, org)
}

/// The hold of this id. By a token only one of its organisation: a hold of others is not opened, and costs what an unknown one costs.
pub fn hold(
    services: &Services,
    by: &Decider,
    id: &ApprovalId,
) -> Result<Option<Versioned<Hold>>, StoreError> {
    let store = &*services.store;
    match &by.org {
        Some(org) => repository::hold_in(store, services.policy().spaces_of(org.as_str()), id),
        None => repository::hold(store, id),
    }
}

/// The hold of an action, if it is the asker's own: `Some(None)` if it is decided. Ends an expired hold, if the sweeper has not yet.
pub async fn waiting(
    services: &Services,
    by: &Decider,
    action: &ActionId,
    is_own: impl Fn(&Hold) -> bool,
) -> Result<Option<Option<Held>>, StoreError> {
    let id = repository::hold_id(&*services.store, action)?;
    let found = id.map_or(Ok(None), |id| hold(services, by, &id))?;
    let Some(hold) = found.filter(|hold| hold.value.member(action).is_some() && is_own(&hold.value)) else {
        return Ok(None);
    };
    if hold.value.state != HoldState::Pending {
        return Ok(Some(None));
    }
    if !hold.value.is_open(services.clock.now()) {
        expiry::expire(services, &hold).await?;
        return Ok(None);
    }
    Ok(Some(Some(hold.value.held())))
}
