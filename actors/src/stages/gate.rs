//! The gate stage: may this action happen? The policy decides; the gate enforces its decision and the operator's switches.

use std::sync::Arc;

use effectd_bus::{OpenIntent, StoreError};
use effectd_contracts::batch::is_batch;
use effectd_contracts::{ActionRequest, Code, Failure, Origin, Outcome, Phase};
use effectd_policy::Verdict;
use serde_json::{Map, Value};
use tracing::Instrument;

use super::plan;
use crate::action::plan::PlanTerms;
use crate::action::proofs::{DryRun, Ruling};
use crate::action::{Action, Asked, Gated, Validated};
use crate::claims::intent::Intent;
use crate::claims::pending::intent_of;
use crate::failpoint::hit;
use crate::limits::OVERLOAD_RETRY;
use crate::messages::{Record, Refusal};
use crate::operator::review::{ReviewTally, not_kept};
use crate::preview::assessment::{Assessed, Question, assess, permitted_before, switched};
use crate::preview::shadow::Shadowed;
use crate::preview::{self, Trial, batch};
use crate::services::{Services, sessions};
use crate::stage::{Address, Stage, pass, put_off};
use crate::stored::json_bytes;

#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) services: Arc<Services>,
    pub(crate) review: Arc<ReviewTally>,
    pub(crate) approval: Address<Action<Asked>>,
    pub(crate) idempotency: Address<Action<Gated>>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Gate {
    const NAME: &'static str = "gate";
    type Message = Action<Validated>;

    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// A preview, if a rule needs one or it is a batch, takes a sandbox and seconds.
    fn may_take_long(&self, action: &Action<Validated>) -> bool {
        is_batch(&action.request.tool_id) || self.services.policy().needs_preview()
    }

    async fn work(&self, mut action: Action<Validated>, _: &Address<Action<Validated>>) {
        hit("gate.begin", &action.ticket.action_id).await;
        let (ruling, item, judged) = match self.judge(&mut action).await {
            Ok(judgement) => judgement,
            Err(failure) => return put_off(*action.ticket, &failure, OVERLOAD_RETRY),
        };
        hit("gate.end", &action.ticket.action_id).await;
        let shadowed = Shadowed::new(&self.services, &action, &ruling);
        match judged {
            Ok((params, bound, ask)) => {
                let action = action.advance(|validated| Gated::new(validated, ruling, params, bound));
                if ask {
                    pass(&self.approval, action.advance(Asked::new));
                } else {
                    pass(&self.idempotency, action);
                }
            }
            Err(failure) => {
                let tool = Some(action.state.tool().clone());
                let (dead_letter, failure) = match action.ticket.origin {
                    // Its batch ends with it.
                    Origin::Batch { .. } => (false, failure),
                    Origin::Arbiter | Origin::Plan | Origin::Session { .. } | Origin::Run { .. } => {
                        self.kept_for_review(&action.request, failure).await
                    }
                };
                let refusal = Refusal {
                    tool,
                    ruling: Some(ruling),
                    dead_letter,
                    item,
                    ..Refusal::new(action, failure)
                };
                pass(&self.recorder, refusal.into());
            }
        }
        // Last, so that the action does not wait for it.
        if let Some(shadowed) = shadowed {
            shadowed.judge(&self.services);
        }
    }
}

/// The parameters, what the call is bound to, and whether an approval is needed; or why the action is refused.
type Judged = Result<(Arc<Map<String, Value>>, Bound, bool), Failure>;

/// Whether it is a dry run, and what a plan demands.
type Bound = (Option<DryRun>, Option<Arc<PlanTerms>>);

impl Gate {
    /// Whether a quarantined request is kept for review, as a sealed dead letter; and the failure, which says so if it is not.
    async fn kept_for_review(&self, request: &ActionRequest, failure: Failure) -> (bool, Failure) {
        if failure.code.outcome() != Outcome::Quarantined {
            return (false, failure);
        }
        let bytes = json_bytes(request).len() as u64;
        let Services { store, clock, settings, .. } = &*self.services;
        let takes = self.review.takes(store, &**clock, settings.quarantined_max, &request.subject_id, bytes);
        if takes.await { (true, failure) } else { (false, not_kept(failure)) }
    }

    /// The error says why the policy cannot decide now.
    async fn judge(
        &self,
        action: &mut Action<Validated>,
    ) -> Result<(Ruling, Option<usize>, Judged), Failure> {
        let unreadable =
            |error: StoreError| Failure::new(Code::StoreUnavailable, Phase::Gate, error.to_string());
        let is_batch = is_batch(&action.request.tool_id);
        // Looked up before the judgement: what a batch has done since is not what is judged.
        let open = match is_batch {
            true => intent_of(&*self.services.store, &action.ticket.action_id).await.map_err(unreadable)?,
            false => None,
        };
        let is_real = |open: OpenIntent| {
            open.intent.bytes().and_then(Intent::from_bytes).is_none_or(|intent| !intent.dry_run)
        };
        let begun = open.is_some_and(is_real);
        let span = tracing::debug_span!(parent: &action.ticket.span, "judge");
        let (request, tool, ticket) = (&action.request, action.state.tool(), &action.ticket);
        let question = Question {
            request,
            tool,
            principal: &ticket.principal,
            origin: &ticket.origin,
            contract: ticket.contract.as_ref(),
            accepted_at: ticket.accepted_at,
            trace_id: &ticket.trace_id,
        };
        if begun || action.ticket.origin.is_undo() {
            // It was permitted. A batch that has begun judges each item that is left; an undo is part of its batch, whatever is switched
            // off meanwhile.
            let (ruling, params) = permitted_before(&self.services, &question);
            return Ok((ruling, None, Ok((Arc::new(params), (None, None), false))));
        }
        let Assessed { ruling, inspection, preview, before, item } =
            match assess(&self.services, &question).instrument(span).await {
                Ok(assessed) => assessed,
                Err(failure) if failure.retryable => return Err(failure),
                Err(failure) => {
                    let (ruling, _) = permitted_before(&self.services, &question);
                    return Ok((ruling, None, Err(failure)));
                }
            };
        let (request, tool) = (&action.request, action.state.tool());
        action.ticket.preview = preview.map(Box::new);
        if !before.is_empty() {
            // The paths must still be as the policy rule saw them when the tool runs.
            action.ticket.expect = before;
        }
        let ask = match &ruling.decision.verdict {
            Verdict::Permit => false,
            Verdict::NeedsApproval { .. } => true,
            Verdict::Deny { .. } | Verdict::Quarantine { .. } => {
                // Every refusal by the policy has a failure; this one is a fallback.
                let unsaid = || Failure::new(Code::PolicyDenied, Phase::Gate, "the policy denies it");
                let failure = ruling.decision.failure().unwrap_or_else(unsaid);
                return Ok((ruling, item, Err(batch::at_item(failure, item))));
            }
        };
        // Its approvals are denied and its grants revoked.
        if sessions::is_deleted(&*self.services.store, &action.ticket.origin).map_err(unreadable)? {
            return Ok((ruling, None, Err(sessions::unknown(Phase::Gate))));
        }
        // If a person is to be asked, the approval stage does the same.
        if !ask && batch::is_all_or_nothing(&self.services, request) {
            let trial =
                Trial::new(request, tool, &inspection.params, &ruling.decision, &action.ticket.trace_id);
            let failure = match action.ticket.preview.as_deref() {
                Some(preview) => preview.failure().cloned(),
                None => preview::of(&self.services, &trial).await?.failure().cloned(),
            };
            if let Some(failure) = failure {
                return Ok((ruling, None, Err(failure)));
            }
        }
        let judged = switched(&self.services, request, tool).and_then(|dry_run| {
            // Redacted parameters must fit the tool's schema as well. Unredacted ones have passed the validator.
            if !ruling.redactions.is_empty() {
                tool.check_params(&inspection.params)?;
            }
            let plan = (&**request, action.ticket.contract.as_ref());
            let terms = plan::terms(&self.services, plan, (tool, &inspection.params), &ruling.decision)?;
            Ok((Arc::new(inspection.params), (dry_run, terms), ask))
        });
        Ok((ruling, None, judged))
    }
}
