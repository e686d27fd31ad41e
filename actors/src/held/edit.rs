//! Whoever decides may change the parameters first. What they then say yes to is another question: judged, tried out and shown anew,
//! and tied to what stands there now.

use std::sync::Arc;

use effectd_contracts::{ActionRequest, ApprovalId, Code, Failure, Phase, SafetyClass, TraceId};
use effectd_policy::Decider;
use serde_json::{Map, Value};

use super::ask::Ask;
use super::decide::{DecideError, open};
use super::hold::{Hold, written};
use crate::gate::{Question, assess};
use crate::parts::Parts;
use crate::preview::{self, Foresight, Preview, Trial};

/// A question with other parameters than the planner's.
#[derive(Debug, Clone)]
pub struct Edited {
    /// What would be asked for.
    pub request: ActionRequest,
    /// What the policy says to that, and what would change.
    pub foresight: Foresight,
    /// Over all of it; [`super::Approve::edited_digest`] says that this was seen.
    pub digest: String,
    pub(super) ask: Ask,
}

/// What would come of a yes with other parameters, for whoever may say it. Nothing is decided.
pub async fn preview_edited(
    parts: &Arc<Parts>,
    id: &ApprovalId,
    by: &Decider,
    params: Map<String, Value>,
) -> Result<Edited, DecideError> {
    let (at, _) = open(parts, id, by, None).await?;
    let request = ActionRequest {
        params,
        ..at.value.decision.request.clone()
    };
    edited(parts, &at.value, request).await
}

/// The changed question. It must make sense, and the policy must not refuse it.
pub(super) async fn edited(
    parts: &Parts,
    hold: &Hold,
    request: ActionRequest,
) -> Result<Edited, DecideError> {
    let entry = parts.registry.find(&request.tool_id).map_err(|error| {
        let failure = Failure::new(Code::UnknownTool, Phase::Validate, error.to_string());
        DecideError::Invalid(failure)
    })?;
    request.check().map_err(DecideError::Invalid)?;
    entry
        .check_params(&request.params)
        .map_err(DecideError::Invalid)?;
    let accepted = hold.lead().map_or(hold.asked_at, |lead| lead.accepted_at);
    let principal = &hold.decision.principal;
    let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
    let question = Question {
        request: &request,
        entry,
        principal,
        accepted_at: accepted,
        trace_id: &trace_id,
    };
    let assessed = assess(parts, &question).await.map_err(DecideError::Invalid)?;
    let decision = assessed.ruling.decision;
    if let Some(failure) = decision.failure() {
        return Err(DecideError::Invalid(failure));
    }
    let params = &assessed.inspection.params;
    let ask = Ask::of(parts, &request, principal, entry, params, &decision).await;
    let trial = Trial {
        subject: &request.subject_id,
        space: &request.space_id,
        entry,
        params,
        high_isolation: decision.safety_class == SafetyClass::High,
        trace_id: &trace_id,
        stands: Some(&ask.stands),
    };
    let preview = match ask.blind() {
        Some(why) => Preview::Unavailable(why),
        None => preview::of(parts, &trial).await.map_err(DecideError::Invalid)?,
    };
    Ok(Edited {
        foresight: Foresight { decision, preview },
        digest: written(&ask.digest),
        request,
        ask,
    })
}
