//! Editing a hold: the approver may first change the parameters. That makes another question, with its own assessment, preview
//! and snapshot.

use effectd_contracts::{ActionRequest, ApprovalId, Code, Failure, Phase, Redaction, TraceId};
use effectd_policy::Decider;
use serde_json::{Map, Value};

use super::decide::{DecideError, open};
use super::hold::{Hold, keyed_digest};
use super::question::Question;
use crate::action::proofs::Ruling;
use crate::preview::Foresight;
use crate::preview::assessment::{self, Assessed, assess};
use crate::services::Services;

/// A question with other parameters than the planner's.
#[derive(Debug, Clone)]
pub struct Edited {
    pub request: ActionRequest,
    pub foresight: Foresight,
    /// The digest of the edited question, for [`super::Approve::edited_digest`].
    pub digest: String,
    pub(super) question: Question,
    pub(super) hidden: Vec<Redaction>,
}

/// Previews an approval with other parameters, for a person who may give it. Decides nothing.
pub async fn preview_edited(
    services: &Services,
    id: &ApprovalId,
    by: &Decider,
    params: Map<String, Value>,
) -> Result<Edited, DecideError> {
    let (at, _) = open(services, id, by, None).await?;
    let request = ActionRequest { params, ..at.value.decision.request.clone() };
    edited(services, &at.value, request).await
}

/// The edited question. The request must be valid, and the policy must not refuse it.
pub(super) async fn edited(
    services: &Services,
    hold: &Hold,
    request: ActionRequest,
) -> Result<Edited, DecideError> {
    let tool = &services.registry().find(&request.tool_id).cloned().map_err(|error| {
        let failure = Failure::new(Code::UnknownTool, Phase::Validate, error.to_string());
        DecideError::Invalid(failure)
    })?;
    request.check().map_err(DecideError::Invalid)?;
    tool.check_params(&request.params).map_err(DecideError::Invalid)?;
    let accepted = hold.lead().map_or(hold.asked_at, |lead| lead.accepted_at);
    let principal = &hold.decision.principal;
    let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
    let to_assess = assessment::Question {
        request: &request,
        tool,
        principal,
        origin: &hold.decision.origin,
        contract: hold.decision.contract.as_ref(),
        accepted_at: accepted,
        trace_id: &trace_id,
    };
    let Assessed { ruling, inspection, .. } =
        assess(services, &to_assess).await.map_err(DecideError::Invalid)?;
    if let Some(failure) = ruling.decision.failure() {
        return Err(DecideError::Invalid(failure));
    }
    let (params, policy) = (&inspection.params, services.policy());
    let by = (principal, to_assess.contract);
    let question = Question::of(&services.files, &policy, &request, by, tool, params, &ruling).await;
    let Ruling { decision, redactions, hidden, .. } = ruling;
    let preview = question.preview(services, &request, tool, params, (&decision, &trace_id));
    let preview = preview.await.map_err(DecideError::Invalid)?;
    Ok(Edited {
        foresight: Foresight { decision, redactions, preview },
        hidden,
        digest: keyed_digest(&question.digest),
        request,
        question,
    })
}
