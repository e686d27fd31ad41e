//! What people see of what waits for them: everything that they decide by, and no secret.

use std::sync::Arc;

use effectd_bus::StoreError;
use effectd_contracts::{ActionId, Principal, Rationale};
use effectd_policy::redact::personal::redact_text;
use effectd_policy::redact::{prune_result, redact_secrets};
use effectd_policy::{Decider, inspect};
use serde_json::{Map, Value};

use super::entries;
use super::hold::{Held, Hold, HoldState};
use super::tidy;
use crate::parts::Parts;

/// The parameters as people see them: without personal data and secrets, and short. What runs is the original.
pub fn shown(parts: &Parts, hold: &Hold) -> Map<String, Value> {
    let request = &hold.decision.request;
    // A tool that is gone cannot say what may be shown.
    let Some(entry) = parts.registry.get(&request.tool_id) else {
        return Map::new();
    };
    let inspection = inspect(&request.params, entry.spec(), &parts.policy());
    let mut params = Value::Object(inspection.params);
    redact_secrets(&mut params);
    prune_result(params).as_object().cloned().unwrap_or_default()
}

/// Why the planner wants it, in its own words, without personal data.
pub fn rationale(hold: &Hold) -> Option<Rationale> {
    let mut rationale = hold.decision.request.rationale.clone()?;
    if let Some(redacted) = rationale.reason.as_deref().and_then(redact_text) {
        rationale.reason = Some(redacted.text);
    }
    Some(rationale)
}

/// Whether this one may see a question: those who decide see all, others their own.
pub fn may_see(parts: &Parts, by: &Decider, principal: &Principal) -> bool {
    by.principal == *principal || parts.policy().may_look(by)
}

/// Whether this one may see what stands in the files that a question is about: those who decide.
pub fn may_read(parts: &Parts, by: &Decider) -> bool {
    parts.policy().may_look(by)
}

/// The question that an action waits for, if nobody has decided, and who asked. What nobody decided in time ends here, if
/// nobody has swept.
pub async fn waiting(
    parts: &Arc<Parts>,
    action: &ActionId,
) -> Result<Option<(Option<Held>, Principal)>, StoreError> {
    let Some(hold) = entries::hold_of(&*parts.store, action)? else {
        return Ok(None);
    };
    if hold.value.state != HoldState::Pending {
        return Ok(Some((None, hold.value.decision.principal)));
    }
    if !hold.value.is_open(parts.clock.now()) {
        tidy::expire(parts, &hold).await?;
        return Ok(None);
    }
    Ok(Some((Some(hold.value.told()), hold.value.decision.principal)))
}
