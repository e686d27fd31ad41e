//! The decision. One function, in which the order of the gates can be read.

use effectd_contracts::{Code, Gate, GateResult, GateResults, Mode, SafetyClass};

use crate::decision::{Decision, Denier, Verdict};
use crate::facts::Facts;
use crate::gates::{self, Answer};
use crate::mode;
use crate::policy::Policy;
use crate::risk::{self, Risk};

/// Decides about one action. The same facts under the same policy give the same decision, on any machine, at any time.
///
/// The gates are asked in the order of [`Gate::ALL`] — roles, attributes, consent, space, safety, redaction — and the first
/// that refuses ends it. Then come the lists of hosts and programs, and last the mode with its floors.
pub fn evaluate(facts: &Facts, policy: &Policy) -> Decision {
    let risk = risk::assess(facts, policy);
    let mut decision = undecided(facts, &risk, policy);
    for gate in Gate::ALL {
        let answer = gates::ask(gate, facts, &risk, policy);
        decision.gates.set(gate, answer.result);
        match answer.result {
            GateResult::Deny => return decision.denied(gate.into(), Code::PolicyDenied, answer),
            GateResult::Quarantine => return decision.quarantined(answer),
            GateResult::Ok | GateResult::Applied | GateResult::NotApplicable => {
                if gate == Gate::Abac {
                    // On a permit, the rules that permitted are what people ask for.
                    decision.rule = answer.rule.into_owned();
                }
            }
        }
    }
    if let Err((code, rule, reason)) = gates::reach(facts, policy) {
        let answer = Answer {
            result: GateResult::Deny,
            reasons: vec![reason],
            rule: rule.into(),
        };
        return decision.denied(Denier::Reach, code, answer);
    }
    decision.in_mode(facts, &risk, policy)
}

fn undecided(facts: &Facts, risk: &Risk, policy: &Policy) -> Decision {
    let timeouts = policy.timeouts();
    let timeout_ms_max = match (facts.tool.uses_network(), risk.class) {
        (true, _) => timeouts.egress_ms,
        (false, SafetyClass::Low) => timeouts.low_ms,
        (false, SafetyClass::Medium) => timeouts.medium_ms,
        (false, SafetyClass::High) => timeouts.high_ms,
    };
    Decision {
        verdict: Verdict::Permit,
        gates: GateResults::default(),
        mode: None,
        mode_source: None,
        clamped_by: None,
        tier: risk.tier,
        safety_class: risk.class,
        rule: String::new(),
        policy_digest: policy.digest(),
        cross_space: risk.cross_space,
        grant_allowed: false,
        timeout_ms_max,
    }
}

impl Decision {
    fn denied(mut self, by: Denier, code: Code, answer: Answer) -> Self {
        self.rule = answer.rule.into_owned();
        self.verdict = Verdict::Deny {
            by,
            code,
            reasons: answer.reasons,
        };
        self
    }

    fn quarantined(mut self, answer: Answer) -> Self {
        self.rule = answer.rule.into_owned();
        self.verdict = Verdict::Quarantine {
            reasons: answer.reasons,
        };
        self
    }

    fn in_mode(mut self, facts: &Facts, risk: &Risk, policy: &Policy) -> Self {
        let resolved = mode::resolve(facts, risk, policy);
        self.mode = Some(resolved.mode);
        self.mode_source = Some(resolved.source);
        self.clamped_by = resolved.clamped_by;
        self.grant_allowed = resolved.grant_allowed(facts, risk);
        let reasons = vec![mode::reason(&resolved, facts, risk)];
        match resolved.mode {
            Mode::Allow => return self,
            Mode::RequireApproval => self.verdict = Verdict::NeedsApproval { reasons },
            Mode::Deny => {
                self.verdict = Verdict::Deny {
                    by: Denier::Mode,
                    code: Code::PolicyDenied,
                    reasons,
                }
            }
        }
        self.rule = resolved.rule;
        self
    }
}
