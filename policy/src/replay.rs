//! History under another policy: which verdicts would flip, and which cannot be known.
//!
//! Records stream through one by one, so that a year of receipts needs no more memory than one of them.

use effectd_contracts::{DecisionRecord, Gate, GateResult, Receipt};

use crate::decision::{Decision, Verdict};
use crate::evaluate::evaluate;
use crate::facts::Facts;
use crate::policy::Policy;

#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Names it for people: the receipt's or the action's id.
    pub id: String,
    /// What was decided, in the word of the record.
    pub verdict: String,
    /// What it was decided by, or why that cannot be read.
    pub facts: Result<Facts, String>,
}

impl Recorded {
    pub fn new(id: impl Into<String>, record: &DecisionRecord) -> Self {
        let facts = Facts::from_record(record).map_err(|error| error.to_string());
        Self {
            id: id.into(),
            verdict: record.verdict.clone(),
            facts,
        }
    }

    /// From a receipt; `None` if the policy was never asked.
    pub fn of(receipt: &Receipt) -> Option<Self> {
        receipt
            .decision
            .as_ref()
            .map(|record| Self::new(receipt.receipt_id.as_str(), record))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Replayed {
    Same,
    Flip {
        /// The decision under the other policy.
        now: Box<Decision>,
    },
    /// The facts do not tell.
    Unknowable {
        /// Why not.
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
        let Self {
            total,
            same,
            flips,
            unknowable,
        } = self;
        write!(
            f,
            "{total} decisions: {same} stay, {flips} flip, {unknowable} unknowable"
        )
    }
}

/// Evaluates each record under the policy and hands it over with what became of it.
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
            return Replayed::Unknowable {
                why: format!("its facts cannot be read: {why}"),
            };
        }
    };
    let now = evaluate(facts, policy);
    // What a gate before safety refuses is refused whatever the content is.
    let looked_at_content = now.gates.get(Gate::Space) == GateResult::Ok;
    if looked_at_content {
        match &facts.inspection {
            None => {
                return Replayed::Unknowable {
                    why: "nobody looked at its parameters then".to_owned(),
                };
            }
            Some(seen) if seen.rules != policy.content_digest() => {
                let why = "its content was checked by other rules, and is not kept";
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

/// One line for people, such as `0198… permit -> deny by consent: … (policy.toml:12)`; `None` if nothing changed.
pub fn render(record: &Recorded, replayed: &Replayed) -> Option<String> {
    match replayed {
        Replayed::Same => None,
        Replayed::Unknowable { why } => {
            Some(format!("{} {} -> unknowable: {why}", record.id, record.verdict))
        }
        Replayed::Flip { now } => {
            let verdict: &Verdict = &now.verdict;
            let why: Vec<&str> = verdict
                .reasons()
                .iter()
                .map(|reason| reason.text.as_str())
                .collect();
            let why = if why.is_empty() {
                String::new()
            } else {
                format!(": {}", why.join("; "))
            };
            Some(format!(
                "{} {} -> {verdict}{why} ({})",
                record.id, record.verdict, now.rule
            ))
        }
    }
}
