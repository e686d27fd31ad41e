//! Foresight: what a request would lead to: the policy's decision, and a preview if the action might run.

use effectd_contracts::{ActionRequest, Code, Failure, Phase, Principal, ToolId, TraceId};
use effectd_policy::{Decision, Verdict};
use serde_json::Value;

use super::assessment::{Assessed, Question, assess};
use super::{Preview, Trial, of};
use crate::services::Services;

const READING_TOOL: &str = "files.read_text";

#[derive(Debug, Clone, PartialEq)]
pub struct Foresight {
    pub decision: Decision,
    /// Unavailable if the request is refused. Contains file contents only if the principal may read them.
    pub preview: Preview,
}

/// Assesses and previews a request of this principal. Executes and records nothing.
pub async fn foresee(
    services: &Services,
    request: &ActionRequest,
    principal: &Principal,
) -> Result<Foresight, Failure> {
    request.check()?;
    let tool = services
        .registry
        .find(&request.tool_id)
        .map_err(|error| Failure::new(Code::UnknownTool, Phase::Validate, error.to_string()))?;
    tool.check_params(&request.params)?;
    let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
    let question =
        Question { request, tool, principal, accepted_at: services.clock.now(), trace_id: &trace_id };
    let Assessed { ruling, inspection, preview, .. } = assess(services, &question).await?;
    let decision = ruling.decision;
    let mut preview = match (&decision.verdict, preview) {
        (Verdict::Deny { .. } | Verdict::Quarantine { .. }, _) => {
            Preview::Unavailable("the policy denies the action, so its changes are not shown".to_owned())
        }
        // A rule needed the preview as well.
        (Verdict::Permit | Verdict::NeedsApproval { .. }, Some(preview)) => preview,
        (Verdict::Permit | Verdict::NeedsApproval { .. }, None) => {
            let trial = Trial::new(request, tool, &inspection.params, &decision, &trace_id);
            of(services, &trial).await?
        }
    };
    if !may_read(services, &question).await {
        preview.leave_texts_out();
    }
    Ok(Foresight { decision, preview })
}

/// Whether the principal may read the files of that space without an approval: permission to write does not imply it.
async fn may_read(services: &Services, question: &Question<'_>) -> bool {
    let Some((tool_id, tool)) =
        ToolId::new(READING_TOOL).ok().and_then(|id| services.registry.find(&id).ok().map(|tool| (id, tool)))
    else {
        return false;
    };
    let mut params = tool.example().clone();
    params.insert("space_id".to_owned(), Value::from(question.request.space_id.as_str()));
    let request = ActionRequest { tool_id, params, dry_run: false, ..question.request.clone() };
    let reading = Question { request: &request, tool, ..*question };
    let assessed = assess(services, &reading).await;
    assessed.is_ok_and(|assessed| matches!(assessed.ruling.decision.verdict, Verdict::Permit))
}
