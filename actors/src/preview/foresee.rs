//! What would come of a request, for whoever thinks about making it: the policy's word, and a preview if it might happen.

use std::sync::Arc;

use effectd_contracts::{ActionRequest, Code, Failure, Phase, Principal, SafetyClass, TraceId};
use effectd_policy::{Decision, Verdict};

use super::{Preview, Trial, of};
use crate::gate::{Assessed, Question, foreseeing};
use crate::parts::Parts;

/// What would come of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Foresight {
    /// What the policy says.
    pub decision: Decision,
    /// What would change. What is not permitted is not tried out either.
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
    } = foreseeing(parts, &question).await;
    let decision = ruling.decision;
    let preview = match (&decision.verdict, preview) {
        // A rule wanted to see it, too.
        (_, Some(preview)) => preview,
        (Verdict::Permit | Verdict::NeedsApproval { .. }, None) => {
            let trial = Trial {
                space: &request.space_id,
                entry,
                params: &inspection.params,
                high_isolation: decision.safety_class == SafetyClass::High,
                trace_id: &trace_id,
                stands: None,
            };
            of(parts, &trial).await
        }
        (Verdict::Deny { .. } | Verdict::Quarantine { .. }, None) => {
            Preview::Unavailable("the policy refuses it, so nothing was tried out".to_owned())
        }
    };
    Ok(Foresight { decision, preview })
}
