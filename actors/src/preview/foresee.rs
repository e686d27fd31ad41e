//! Foresight: what a request would lead to: the policy's decision, and a preview if the action might run.

use effectd_bus::{Asker, Lookup, StoreError};
use effectd_contracts::{
    ActionRequest, Code, Failure, Origin, Phase, Principal, ReceiptId, Redaction, ToolId, TraceId,
};
use effectd_policy::{Decision, Verdict};
use serde_json::{Map, Value};

use super::assessment::{Assessed, Question, assess, switched};
use super::{Preview, Trial, of};
use crate::action::decisions::answer_of_ended;
use crate::action::proofs::{DryRun, Ruling};
use crate::claims::key::key_taken;
use crate::effects::repeats::{look_up, terms_of};
use crate::effects::snapshot;
use crate::services::{Services, sessions};

const READING_TOOL: &str = "files.read_text";

#[derive(Debug, Clone, PartialEq)]
pub struct Foresight {
    pub decision: Decision,
    /// What redaction removes from the parameters before the tool sees them.
    pub redactions: Vec<Redaction>,
    /// Unavailable if the request is refused. Contains file contents only if the principal may read them.
    pub preview: Preview,
}

/// Assesses and previews a request of this principal, from this origin. Executes and records nothing.
pub async fn foresee(
    services: &Services,
    request: &ActionRequest,
    by: (&Principal, &Origin),
) -> Result<Foresight, Failure> {
    request.check()?;
    // As in the pipeline: an action that has ended is answered, whatever its session is now.
    if answer_of_ended(services, request, (by.0, None)).map_err(unavailable)?.is_none() {
        sessions::admit(&*services.store, &services.policy(), by.1, request)?;
    }
    let tool = &services
        .registry()
        .find(&request.tool_id)
        .cloned()
        .map_err(|error| Failure::new(Code::UnknownTool, Phase::Validate, error.to_string()))?;
    tool.check_params(&request.params)?;
    let trace_id = request.trace().unwrap_or_else(TraceId::fresh);
    let question = Question::of_planner(services, request, tool, by, &trace_id);
    let Assessed { ruling, inspection, preview, .. } = assess(services, &question).await?;
    let Ruling { decision, redactions, .. } = ruling;
    let mut preview = match (&decision.verdict, preview) {
        (Verdict::Deny { .. } | Verdict::Quarantine { .. }, _) => {
            Preview::Unavailable("the policy denies the action, so its changes are not shown".to_owned())
        }
        (verdict @ (Verdict::Permit | Verdict::NeedsApproval { .. }), preview) => {
            match (without_run(services, &question, &inspection.params, verdict).await?, preview) {
                // A rule may have needed the preview as well.
                (Some(preview), _) | (None, Some(preview)) => preview,
                (None, None) => {
                    let trial = Trial::new(request, tool, &inspection.params, &decision, &trace_id);
                    of(services, &trial).await?
                }
            }
        }
    };
    if !may_read(services, &question).await {
        preview.leave_texts_out();
    }
    Ok(Foresight { decision, redactions, preview })
}

fn unavailable(error: StoreError) -> Failure {
    error.failure(Phase::Idempotency)
}

/// The preview of a request for which nothing would run: its action has ended, an operator's switch is set, or the receipt of an
/// earlier request is the answer.
async fn without_run(
    services: &Services,
    question: &Question<'_>,
    params: &Map<String, Value>,
    verdict: &Verdict,
) -> Result<Option<Preview>, Failure> {
    let request = question.request;
    let already_done = |receipt_id: &ReceiptId| {
        let why = format!("already done: receipt {receipt_id} is the answer, and nothing would run");
        Preview::Unavailable(why)
    };
    // An action that has ended is answered whatever the switches say.
    match answer_of_ended(services, request, (question.principal, question.contract)).map_err(unavailable)? {
        Some(Ok(receipt)) => return Ok(Some(already_done(&receipt.receipt_id))),
        Some(Err(failure)) => return Ok(Some(Preview::WouldFail(failure))),
        None => {}
    }
    let dry_run = match switched(services, request, question.tool) {
        Ok(dry_run) => dry_run,
        Err(failure) => return Ok(Some(Preview::WouldFail(failure))),
    };
    if dry_run == Some(DryRun::Paused) && matches!(verdict, Verdict::Permit) {
        let why = "effects are paused: nothing would run until an operator resumes them";
        return Ok(Some(Preview::Unavailable(why.to_owned())));
    }
    let asker = Asker {
        space: request.space_id.clone(),
        subject: request.subject_id.clone(),
        principal: question.principal.clone(),
    };
    let (files, tool) = (&services.files, question.tool);
    let touched = dry_run.is_none().then(|| snapshot::touched_with(files, &request.space_id, tool, params));
    let mut terms = terms_of(files, request, tool, params, touched);
    let found = look_up(services, &asker, &request.action_id, &mut terms).await.map_err(unavailable)?;
    Ok(match found {
        Lookup::Done { receipt_id } => Some(already_done(&receipt_id)),
        Lookup::Conflict => Some(Preview::WouldFail(key_taken())),
        Lookup::InFlight { .. } | Lookup::Unknown => None,
    })
}

/// Whether the principal may read the files of that space without an approval: permission to write does not imply it.
async fn may_read(services: &Services, question: &Question<'_>) -> bool {
    let known = |id: ToolId| Some((services.registry().get(&id)?.clone(), id));
    let Some((tool, tool_id)) = ToolId::new(READING_TOOL).ok().and_then(known) else {
        return false;
    };
    let mut params = tool.example().clone();
    params.insert("space_id".to_owned(), Value::from(question.request.space_id.as_str()));
    let request = ActionRequest { tool_id, params, dry_run: false, ..question.request.clone() };
    let reading = Question { request: &request, tool: &tool, ..*question };
    let assessed = assess(services, &reading).await;
    assessed.is_ok_and(|assessed| matches!(assessed.ruling.decision.verdict, Verdict::Permit))
}
