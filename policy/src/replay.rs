//! Replay: recorded decisions under another policy. Which verdicts would change, and which cannot be known?

use effectd_contracts::batch::is_batch;
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

    /// From a receipt; `None` if the policy was not asked, or if its facts alone did not decide: a batch is decided by all its items, each
    /// of which has a record of its own, and what undoes an item is permitted with it.
    pub fn of(receipt: &Receipt) -> Option<Self> {
        if is_batch(&receipt.tool_id) || receipt.origin.is_undo() {
            return None;
        }
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

/// Decides a record under the policy.
pub fn replay(record: &Recorded, policy: &Policy) -> Replayed {
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
