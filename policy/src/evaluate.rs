//! The decision: one function, which shows the order of the gates.

use effectd_contracts::{COMMAND_TOOL, Code, Gate, GateResult, GateResults, Mode, SafetyClass};

use crate::abac::RuleAnswers;
use crate::decision::{Decision, Denier, Verdict};
use crate::facts::Facts;
use crate::gates;
use crate::inspect::NOT_A_NAME;
use crate::limits::{TIMEOUT_MS_EGRESS, TIMEOUT_MS_HIGH, TIMEOUT_MS_LOW, TIMEOUT_MS_MEDIUM};
use crate::mode;
use crate::policy::Policy;
use crate::risk::{self, Risk};
use crate::tables::AllowList;

/// Decides about one action. The same facts under the same policy give the same decision, on any machine, at any time.
///
/// The gates come in the order of [`Gate::ALL`]: roles, attributes, consent, space, safety, redaction. The first one that
/// refuses ends the decision. Then come the lists of hosts and programs, and last the mode with its floors.
pub fn evaluate(facts: &Facts, policy: &Policy) -> Decision {
    let risk = risk::assess(facts, policy.tables());
    let mut decision = undecided(facts, &risk, policy);
    for gate in Gate::ALL {
        let answer = gates::ask(gate, facts, &risk, policy);
        decision.gates.set(gate, answer.result);
        match answer.result {
            GateResult::Deny => {
                let verdict =
                    Verdict::Deny { by: gate.into(), code: Code::PolicyDenied, reasons: answer.reasons };
                return decision.with_verdict(verdict, answer.rule);
            }
            GateResult::Quarantine => {
                let reasons = answer.reasons;
                return decision.with_verdict(Verdict::Quarantine { reasons }, answer.rule);
            }
            GateResult::Ok | GateResult::Applied | GateResult::NotApplicable => {
                if gate == Gate::Abac {
                    // A permit names the attribute rules that permitted the action.
                    decision.rule = answer.rule.into_owned();
                }
            }
        }
    }
    if let Err((code, rule, reason)) = gates::reach(facts, policy) {
        let verdict = Verdict::Deny { by: Denier::Reach, code, reasons: vec![reason] };
        return decision.with_verdict(verdict, rule);
    }
    decision.in_mode(facts, &risk, policy)
}

/// The mode of the calls of a tool, from the facts of one without parameters; `None` if the policy denies every call, whatever its
/// parameters and the time of day. What only looks at the content of a call and at its paths denies no other.
pub fn offered(mut facts: Facts, policy: &Policy, answers: &mut RuleAnswers) -> Option<Mode> {
    let is_command = facts.tool.id.as_str() == COMMAND_TOOL;
    if let Some(seen) = &mut facts.inspection {
        // A call names a host or a program. If none is listed, every call is denied.
        let listed = |list: &AllowList| list.first().unwrap_or(NOT_A_NAME).to_owned();
        if facts.tool.uses_network() && seen.hosts.is_empty() {
            seen.hosts.insert(listed(&policy.tables().hosts));
        }
        if is_command {
            seen.commands.insert(listed(&policy.tables().commands));
        }
    }
    let mut of = |facts: &Facts| {
        let risk = risk::assess(facts, policy.tables());
        let passes = gates::might_pass(facts, &risk, policy, answers);
        passes.then(|| mode::resolve(facts, &risk, policy).mode).filter(|mode| *mode != Mode::Deny)
    };
    let mut commands = policy.commands().filter(|_| is_command);
    of(&facts).or_else(|| {
        commands.find_map(|command| {
            facts.inspection.as_mut()?.named_command = Some(command.name.clone());
            of(&facts)
        })
    })
}

fn undecided(facts: &Facts, risk: &Risk, policy: &Policy) -> Decision {
    let timeouts = &policy.tables().timeouts;
    let (set, of_class) = match (facts.tool.uses_network(), risk.class) {
        (true, _) => (timeouts.egress_ms, TIMEOUT_MS_EGRESS),
        (false, SafetyClass::Low) => (timeouts.low_ms, TIMEOUT_MS_LOW),
        (false, SafetyClass::Medium) => (timeouts.medium_ms, TIMEOUT_MS_MEDIUM),
        (false, SafetyClass::High) => (timeouts.high_ms, TIMEOUT_MS_HIGH),
    };
    let command = risk::named_command(facts, policy.tables()).cloned();
    let space = policy.tables().spaces.get(&facts.space);
    let timeout_ms_max = match &command {
        Some(command) => command.timeout_ms,
        None => set.or(facts.tool.timeout_ms).unwrap_or(of_class),
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
        command,
        protected: space.map(|space| space.protected.clone()).unwrap_or_default(),
    }
}

impl Decision {
    fn with_verdict(mut self, verdict: Verdict, rule: impl Into<String>) -> Self {
        self.rule = rule.into();
        self.verdict = verdict;
        self
    }

    fn in_mode(mut self, facts: &Facts, risk: &Risk, policy: &Policy) -> Self {
        let resolved = mode::resolve(facts, risk, policy);
        self.mode = Some(resolved.mode);
        self.mode_source = Some(resolved.source);
        self.clamped_by = resolved.clamped_by;
        self.grant_allowed = resolved.grant_allowed(facts, risk);
        let reasons = vec![mode::reason(&resolved, facts, risk)];
        let verdict = match resolved.mode {
            Mode::Allow => return self,
            Mode::RequireApproval => Verdict::NeedsApproval { reasons },
            Mode::Deny => Verdict::Deny { by: Denier::Mode, code: Code::PolicyDenied, reasons },
        };
        self.with_verdict(verdict, resolved.rule)
    }
}
