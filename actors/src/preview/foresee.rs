//! What would come of a request, for whoever thinks about making it: the policy's word, and a preview if it might happen.

use std::sync::Arc;

use effectd_contracts::{ActionRequest, Code, Failure, Phase, Principal, SafetyClass, ToolId, TraceId};
use effectd_policy::{Decision, Verdict};
use serde_json::Value;

use super::{Preview, Trial, of};
use crate::gate::{Assessed, Question, assess};
use crate::parts::Parts;

/// Reads what stands in files, and nothing else.
const READING_TOOL: &str = "files.read_text";

#[derive(Debug, Clone, PartialEq)]
pub struct Foresight {
    pub decision: Decision,
    /// What would change; nothing of what is not permitted. Texts are in it only for those who may read them.
    pub preview: Preview,
}

/// Judges a request as this principal's, and tries it out on a copy. Nothing is done, and nothing is recorded.
pub async fn foresee(
    parts: &Arc<Parts>,
    request: &ActionRequest,
    principal: &Principal,
) -> Result<Foresight, Failure> {
    request.check()?;
    let entry = parts
        .registry
        .find(&request.tool_id)
        .map_err(|error| Failure::new(Code::UnknownTool, Phase::Validate, error.to_string()))?;
    entry.check_params(&request.params)?;
    let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
    let question = Question {
        request,
        entry,
        principal,
        accepted_at: parts.clock.now(),
        trace_id: &trace_id,
    };
    let Assessed {
        ruling,
        inspection,
        preview,
        ..
    } = assess(parts, &question).await?;
    let decision = ruling.decision;
    let mut preview = match (&decision.verdict, preview) {
        (Verdict::Deny { .. } | Verdict::Quarantine { .. }, _) => {
            Preview::Unavailable("the policy refuses it, so what would change is not told".to_owned())
        }
        // A rule wanted to see it, too.
        (Verdict::Permit | Verdict::NeedsApproval { .. }, Some(preview)) => preview,
        (Verdict::Permit | Verdict::NeedsApproval { .. }, None) => {
            let trial = Trial {
                subject: &request.subject_id,
                space: &request.space_id,
                entry,
                params: &inspection.params,
                high_isolation: decision.safety_class == SafetyClass::High,
                trace_id: &trace_id,
                stands: None,
            };
            of(parts, &trial).await?
        }
    };
    if !may_read(parts, &question).await {
        preview.leave_texts_out();
    }
    Ok(Foresight { decision, preview })
}

/// Whether whoever asks may read the files of that space without being asked: only then is what stands in them told. Somebody
/// who may write, or may ask to, need not be somebody who may read.
async fn may_read(parts: &Arc<Parts>, question: &Question<'_>) -> bool {
    let Some((tool_id, entry)) = ToolId::new(READING_TOOL)
        .ok()
        .and_then(|id| parts.registry.find(&id).ok().map(|entry| (id, entry)))
    else {
        return false;
    };
    let mut params = entry.example().clone();
    params.insert(
        "space_id".to_owned(),
        Value::from(question.request.space_id.as_str()),
    );
    let request = ActionRequest {
        tool_id,
        params,
        dry_run: false,
        ..question.request.clone()
    };
    let reading = Question {
        request: &request,
        entry,
        ..*question
    };
    let assessed = assess(parts, &reading).await;
    assessed.is_ok_and(|assessed| matches!(assessed.ruling.decision.verdict, Verdict::Permit))
}
