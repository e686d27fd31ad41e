//! Judges a decision by the candidate policy, after the policy in force has made it. A fault here never reaches the action.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use effectd_contracts::batch::is_batch;
use effectd_contracts::{ActionId, ActionRequest, Predicted};
use effectd_policy::{Decision, Facts, Policy, Verdict, evaluate};

use super::assessment::inspected;
use crate::action::proofs::Ruling;
use crate::action::{Action, Validated};
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::shadow::{Candidate, Flip};

/// A decision that the candidate has still to judge.
pub(crate) struct Shadowed {
    candidate: Candidate,
    action_id: ActionId,
    request: Arc<ActionRequest>,
    tool: Arc<RegisteredTool>,
    facts: Facts,
    verdict: Verdict,
}

impl Shadowed {
    /// `None` if there is no candidate, and for an approved action: it passed the gate before, and would count twice. A batch counts by its
    /// items, and what undoes one not at all.
    pub(crate) fn new(services: &Services, action: &Action<Validated>, ruling: &Ruling) -> Option<Self> {
        let is_decided_elsewhere = is_batch(&action.request.tool_id) || action.ticket.origin.is_undo();
        if action.ticket.approved.is_some() || is_decided_elsewhere {
            return None;
        }
        Some(Self {
            candidate: services.shadow.candidate()?,
            action_id: action.ticket.action_id.clone(),
            request: action.request.clone(),
            tool: action.state.tool().clone(),
            facts: ruling.facts.clone(),
            verdict: ruling.decision.verdict.clone(),
        })
    }

    pub(crate) fn judge(self, services: &Services) {
        let judged = catch_unwind(AssertUnwindSafe(|| self.judged(services)));
        let judged = judged.unwrap_or_else(|_| Err("the candidate panicked".to_owned()));
        let flip = judged.map(|now| {
            let is_same = now.verdict.as_str() == self.verdict.as_str();
            (!is_same).then(|| Flip {
                at: services.clock.now(),
                action_id: self.action_id.clone(),
                tool_id: self.facts.tool.id.to_string(),
                from: self.verdict.to_string(),
                to: now.verdict.to_string(),
                why: now.verdict.why(),
                rule: now.rule,
            })
        });
        services.shadow.count(&self.candidate, &self.action_id, flip);
    }

    fn judged(&self, services: &Services) -> Result<Decision, String> {
        let policy: &Policy = self.candidate.policy.as_ref().map_err(Clone::clone)?;
        let mut facts = self.facts.clone();
        // Other rules about content find other things.
        if facts.inspection.as_ref().is_none_or(|seen| seen.rules != policy.content_digest()) {
            let mut seen = inspected(services, &self.request, &self.tool, policy).facts;
            // Also the hosts that the tool and its connection name.
            seen.hosts.extend(facts.inspection.take().map(|seen| seen.hosts).unwrap_or_default());
            facts.inspection = Some(seen);
        }
        let decision = evaluate(&facts, policy);
        if policy.needs_preview() && facts.predicted.is_none() {
            let harmless = Facts { predicted: Some(Predicted::default()), ..facts };
            if evaluate(&harmless, policy).verdict.as_str() != decision.verdict.as_str() {
                return Err("it depends on a preview, which the policy in force does not ask for".to_owned());
            }
        }
        Ok(decision)
    }
}
