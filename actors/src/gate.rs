//! The second stage: may this happen?
//!
//! The policy decides; this stage collects the facts, asks, and acts on the answer. Operators' switches are asked first.

use std::sync::Arc;

use effectd_bus::StoreError;
use effectd_contracts::{
    ActionRequest, Code, Failure, Outcome, Phase, Predicted, Principal, Redaction, SafetyClass, Seen,
    Timestamp, TraceId,
};
use effectd_policy::{Decision, Facts, Inspection, Policy, Verdict, evaluate, inspect};
use serde_json::{Map, Value};
use tracing::Instrument;

use crate::action::{Action, Validated};
use crate::failpoint::hit;
use crate::held::stage::Evidence;
use crate::limits::OVERLOAD_RETRY;
use crate::messages::{Record, Refusal};
use crate::parts::Parts;
use crate::preview::{self, Preview, Trial};
use crate::registry::Entry;
use crate::review;
use crate::stage::{Address, Stage, pass, put_off};
use crate::switches::Switches;

/// The policy permits it.
#[derive(Debug)]
pub struct Gated {
    entry: Arc<Entry>,
    ruling: Box<Ruling>,
    params: Arc<Map<String, Value>>,
    dry_run: Option<DryRun>,
}

/// Why nothing is to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    Asked,
    /// The operator has paused effects.
    Paused,
}

#[derive(Debug, Clone)]
pub struct Ruling {
    pub decision: Decision,
    pub facts: Facts,
    /// What redaction removed from the parameters.
    pub redacted: Vec<Redaction>,
}

/// The policy asks a person; nothing else stands against it.
#[derive(Debug)]
pub struct Asked(Gated);

impl std::ops::Deref for Asked {
    type Target = Gated;

    fn deref(&self) -> &Gated {
        &self.0
    }
}

impl Asked {
    /// Somebody said yes to exactly this.
    pub(crate) fn permitted(self, _: &Evidence) -> Gated {
        self.0
    }
}

impl Gated {
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// The parameters after redaction: what the tool gets, and what keys are formed from.
    pub fn params(&self) -> &Arc<Map<String, Value>> {
        &self.params
    }

    pub fn dry_run(&self) -> Option<DryRun> {
        self.dry_run
    }
}

#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) parts: Arc<Parts>,
    pub(crate) holder: Address<Action<Asked>>,
    pub(crate) idempotency: Address<Action<Gated>>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Gate {
    const NAME: &'static str = "gate";
    type Message = Action<Validated>;

    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// If some rule looks at what would change, a preview takes a sandbox and seconds.
    fn may_take_long(&self) -> bool {
        self.parts.policy().foresees()
    }

    async fn work(&self, mut action: Action<Validated>, _: &Address<Action<Validated>>) {
        hit("gate.begin", &action.ticket.action_id).await;
        let (ruling, judged) = match self.judge(&mut action).await {
            Ok(judgement) => judgement,
            Err(failure) => return put_off(&self.parts, *action.ticket, &failure, OVERLOAD_RETRY),
        };
        hit("gate.end", &action.ticket.action_id).await;
        match judged {
            Ok((params, dry_run, ask)) => {
                let action = action.advance(|state| Gated {
                    entry: state.entry().clone(),
                    ruling: Box::new(ruling),
                    params,
                    dry_run,
                });
                if ask {
                    pass(&self.holder, action.advance(Asked));
                } else {
                    pass(&self.idempotency, action);
                }
            }
            Err(failure) => {
                let tool = Some(action.state.entry().clone());
                let (dead_letter, failure) = self.held_for_review(&action.request, failure).await;
                let refusal = Refusal {
                    tool,
                    ruling: Some(ruling),
                    dead_letter,
                    ..Refusal::new(action, failure)
                };
                pass(&self.recorder, refusal.into());
            }
        }
    }
}

/// What came of judging: the parameters, how they are to be used, and whether a person must be asked; or why not.
type Judged = Result<(Arc<Map<String, Value>>, Option<DryRun>, bool), Failure>;

impl Gate {
    /// Whether what is refused is held for review, as a dead letter, sealed; and what it is told otherwise.
    async fn held_for_review(&self, request: &ActionRequest, failure: Failure) -> (bool, Failure) {
        if failure.code.outcome() != Outcome::Quarantined {
            return (false, failure);
        }
        // Plain data with text keys, for which serde_json has no failure.
        let bytes = serde_json::to_vec(request).map_or(0, |bytes| bytes.len()) as u64;
        if self
            .parts
            .review
            .takes(&self.parts, &request.subject_id, bytes)
            .await
        {
            (true, failure)
        } else {
            (false, review::not_kept(failure))
        }
    }

    /// The error is why it cannot be said now.
    async fn judge(&self, action: &mut Action<Validated>) -> Result<(Ruling, Judged), Failure> {
        let span = tracing::debug_span!(parent: &action.ticket.span, "judge");
        let (request, entry, ticket) = (&action.request, action.state.entry(), &action.ticket);
        let question = Question {
            request,
            entry,
            principal: &ticket.principal,
            accepted_at: ticket.accepted_at,
            trace_id: &ticket.trace_id,
        };
        let Assessed {
            ruling,
            inspection,
            preview,
            before,
        } = assess(&self.parts, &question).instrument(span).await?;
        let (request, entry) = (&action.request, action.state.entry());
        action.ticket.preview = preview.map(Box::new);
        // What a rule looked at is what must be there when it happens.
        action.ticket.expect = before;
        let ask = match &ruling.decision.verdict {
            Verdict::Permit => false,
            Verdict::NeedsApproval { .. } => true,
            Verdict::Deny { .. } | Verdict::Quarantine { .. } => {
                // Every refusal of the policy has its failure.
                let unsaid = || Failure::new(Code::PolicyDenied, Phase::Gate, "the policy refuses it");
                let failure = ruling.decision.failure().unwrap_or_else(unsaid);
                return Ok((ruling, Err(failure)));
            }
        };
        let judged = self.switches(request, entry).and_then(|dry_run| {
            // What redaction put in place of personal data has to fit the tool's schema, too. Where nothing was
            // removed, these are the parameters that the validator saw.
            if !ruling.redacted.is_empty() {
                entry.check_params(&inspection.params)?;
            }
            Ok((Arc::new(inspection.params), dry_run, ask))
        });
        Ok((ruling, judged))
    }

    /// What the operator has switched.
    fn switches(&self, request: &ActionRequest, entry: &Entry) -> Result<Option<DryRun>, Failure> {
        let unreadable =
            |error: StoreError| Failure::new(Code::StoreUnavailable, Phase::Gate, error.to_string());
        let switches = Switches::new(&*self.parts.store);
        // By its own id, whatever alias the request has for it.
        let tool_id = &entry.spec().tool_id;
        if switches.tool_disabled(tool_id).map_err(unreadable)? {
            let message = format!("the tool {tool_id} is switched off");
            return Err(Failure::new(Code::ToolDisabled, Phase::Gate, message));
        }
        if request.dry_run {
            return Ok(Some(DryRun::Asked));
        }
        Ok(switches.paused().map_err(unreadable)?.then_some(DryRun::Paused))
    }
}

pub(crate) struct Question<'a> {
    pub(crate) request: &'a ActionRequest,
    pub(crate) entry: &'a Entry,
    pub(crate) principal: &'a Principal,
    pub(crate) accepted_at: Timestamp,
    pub(crate) trace_id: &'a TraceId,
}

/// What the policy says to a request, and what was found out for it.
pub(crate) struct Assessed {
    pub(crate) ruling: Ruling,
    /// What looking at its parameters brought to light.
    pub(crate) inspection: Inspection,
    /// What would change, if some rule looks at that.
    pub(crate) preview: Option<Preview>,
    /// What stood there when that was found out.
    before: Vec<Seen>,
}

/// Judges a request. If some rule looks at what would change, that is found out first; but nothing is tried out for a request
/// that is refused whatever it would change. The error is that there was no turn to find it out.
pub(crate) async fn assess(parts: &Parts, question: &Question<'_>) -> Result<Assessed, Failure> {
    let Question { request, entry, .. } = question;
    let policy = parts.policy();
    let mut inspection = inspect(&request.params, entry.spec(), &policy);
    let mut facts = Facts::of(
        request,
        entry.spec(),
        question.principal,
        question.accepted_at,
        &inspection,
    );
    // The request's own time was compared with the clock when it was accepted; rules about time look at the clock
    // of now, since an action may have waited.
    facts.now = parts.clock.now();
    facts.utc_offset_min = parts.clock.utc_offset_min();
    Switches::new(&*parts.store).apply(&mut facts);
    let mut decision = evaluate(&facts, &policy);
    let (mut preview, mut before) = (None, Vec::new());
    if policy.foresees() && might_be(&decision, &facts, &policy) {
        let trial = Trial {
            subject: &request.subject_id,
            space: &request.space_id,
            entry,
            params: &inspection.params,
            high_isolation: decision.safety_class == SafetyClass::High,
            trace_id: question.trace_id,
            stands: None,
        };
        let (seen, stood) = preview::tried(parts, &trial).await?;
        before = stood;
        facts.predicted = seen.predicted();
        decision = evaluate(&facts, &policy);
        preview = Some(seen);
    }
    Ok(Assessed {
        ruling: Ruling {
            decision,
            facts,
            redacted: std::mem::take(&mut inspection.redacted),
        },
        inspection,
        preview,
        before,
    })
}

/// Whether it might be permitted, or at least asked about, if only little would change.
fn might_be(decision: &Decision, facts: &Facts, policy: &Policy) -> bool {
    let refused = |decision: &Decision| match decision.verdict {
        Verdict::Deny { .. } | Verdict::Quarantine { .. } => true,
        Verdict::Permit | Verdict::NeedsApproval { .. } => false,
    };
    let harmless = Facts {
        predicted: Some(Predicted::default()),
        ..facts.clone()
    };
    !refused(decision) || !refused(&evaluate(&harmless, policy))
}

impl DryRun {
    /// How an action ends that was only tried out.
    pub const fn outcome(self) -> Outcome {
        match self {
            DryRun::Asked => Outcome::DryRun,
            DryRun::Paused => Outcome::Paused,
        }
    }
}
