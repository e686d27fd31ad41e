//! Replay: recorded decisions under another policy. Which verdicts would change, and which cannot be known?
//!
//! Records are replayed one by one, so that a year of receipts needs no more memory than one.

use effectd_contracts::text::counted;
use effectd_contracts::{DecisionRecord, Gate, GateResult, Receipt};

use crate::decision::Decision;
use crate::evaluate::evaluate;
use crate::facts::Facts;
use crate::policy::Policy;

/// A recorded decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The receipt's or the action's id.
    pub id: String,
    /// The recorded verdict.
    pub verdict: String,
    /// The recorded facts, or why they cannot be read.
    pub facts: Result<Facts, String>,
}

impl Recorded {
    pub fn new(id: impl Into<String>, record: &DecisionRecord) -> Self {
        let facts = Facts::from_record(record).map_err(|error| error.to_string());
        Self { id: id.into(), verdict: record.verdict.clone(), facts }
    }

    /// From a receipt; `None` if the policy was not asked.
    pub fn of(receipt: &Receipt) -> Option<Self> {
        receipt.decision.as_ref().map(|record| Self::new(receipt.receipt_id.as_str(), record))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Replayed {
    Same,
    Flip {
        /// The decision under the other policy.
        now: Box<Decision>,
    },
    /// The facts are not enough for a verdict.
    Unknowable {
        why: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplaySummary {
    pub total: u64,
    pub same: u64,
    pub flips: u64,
    pub unknowable: u64,
}

impl std::fmt::Display for ReplaySummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (total, same, flips) = (counted(self.total, "decision"), self.same, self.flips);
        let unknowable = self.unknowable;
        write!(f, "{total}: {same} stay, {flips} flip, {unknowable} unknowable")
    }
}

/// Decides each record under the policy, and calls `each` with the result.
pub fn replay(
    records: impl IntoIterator<Item = Recorded>,
    policy: &Policy,
    mut each: impl FnMut(&Recorded, &Replayed),
) -> ReplaySummary {
    let mut summary = ReplaySummary::default();
    for record in records {
        let replayed = replay_one(&record, policy);
        summary.total += 1;
        match &replayed {
            Replayed::Same => summary.same += 1,
            Replayed::Flip { .. } => summary.flips += 1,
            Replayed::Unknowable { .. } => summary.unknowable += 1,
        }
        each(&record, &replayed);
    }
    summary
}

fn replay_one(record: &Recorded, policy: &Policy) -> Replayed {
    let facts = match &record.facts {
        Ok(facts) => facts,
        Err(why) => {
            return Replayed::Unknowable { why: format!("its facts cannot be read: {why}") };
        }
    };
    let now = evaluate(facts, policy);
    // If a gate before safety refuses, the content makes no difference.
    let looked_at_content = now.gates.get(Gate::Space) == GateResult::Ok;
    if looked_at_content {
        match &facts.inspection {
            None => {
                return Replayed::Unknowable { why: "its parameters were not inspected".to_owned() };
            }
            Some(seen) if seen.rules != policy.content_digest() => {
                let why = "its parameters were checked by other rules (content, commands, protected paths) and were not stored";
                return Replayed::Unknowable { why: why.to_owned() };
            }
            Some(_) => {}
        }
    }
    if now.verdict.as_str() == record.verdict {
        Replayed::Same
    } else {
        Replayed::Flip { now: Box::new(now) }
    }
}

/// One line for people: `0198… permit -> deny by consent: … (policy.toml:12)`; `None` if nothing changed.
pub fn render(record: &Recorded, replayed: &Replayed) -> Option<String> {
    match replayed {
        Replayed::Same => None,
        Replayed::Unknowable { why } => {
            Some(format!("{} {} -> unknowable: {why}", record.id, record.verdict))
        }
        Replayed::Flip { now } => {
            let why = match now.verdict.why() {
                why if why.is_empty() => why,
                why => format!(": {why}"),
            };
            let (id, before) = (&record.id, &record.verdict);
            Some(format!("{id} {before} -> {}{why} ({})", now.verdict, now.rule))
        }
    }
}
