//! A learner in Rust: how often each tool succeeds, and an off-policy estimate of another planner's reward.
//!
//! ```sh
//! effectd receipts export --dataset data
//! cargo run --example learner -- data/receipts.jsonl data/amendments.jsonl files.write_text=1
//! (effectd bus replay --topic AMENDMENTS; effectd bus replay) | cargo run --example learner -- --events -
//! ```
//!
//! Every receipt and every event counts once, by its id, however often it is replayed.
//!
//! The estimate weighs each receipt by its candidate (`choice.chosen`, or the tool if the planner named none) and normalises by the
//! sum of the weights (SNIPS). `effective_n` is the number of receipts that would say as much without weights.
//!
//! It computes the same figures as `learner.py`, with `effectd-contracts` alone. That crate also verifies bundles: see its `proof`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use effectd_contracts::{
    AmendedData, AmendmentEntry, Event, ExecutedData, Receipt, ReceiptId, Status, Topic,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The quantile of a 95 % confidence interval.
const Z: f64 = 1.959_963_984_540_054;

/// The statistics of one tool.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tool {
    count: u64,
    successes: u64,
    reward: f64,
}

/// What amendments say about a receipt: of each field, the last word counts.
#[derive(Debug, Clone, Copy, Default)]
struct Later {
    success: Option<bool>,
    reward: Option<f64>,
}

/// What counts of a receipt or an event.
struct Item<'a> {
    /// By which it counts once.
    id: &'a str,
    receipt_id: &'a ReceiptId,
    tool: &'a str,
    status: Status,
    reward: f64,
    propensity: Option<f64>,
    chosen: Option<&'a str>,
}

/// The statistics of all tools. A receipt or an event counts once, however often it is replayed.
#[derive(Debug, Default)]
pub struct Learner {
    later: HashMap<ReceiptId, Later>,
    target: HashMap<String, f64>,
    seen: HashSet<String>,
    tools: BTreeMap<String, Tool>,
    /// Weight and reward of each receipt with a propensity.
    weighted: Vec<(f64, f64)>,
}

impl Learner {
    /// A learner that estimates the reward of a planner with these probabilities by candidate.
    pub fn new(target: HashMap<String, f64>) -> Self {
        Self { target, ..Self::default() }
    }

    /// Adds an amendment. Amendments of a receipt add up field by field, and come before their receipt.
    pub fn amend(&mut self, amendment: AmendmentEntry) {
        self.note_later(amendment.receipt_id, amendment.success, amendment.reward.scalar);
    }

    fn note_later(&mut self, receipt: ReceiptId, success: Option<bool>, reward: f64) {
        let later = self.later.entry(receipt).or_default();
        *later = Later { success: success.or(later.success), reward: Some(reward) };
    }

    /// Adds a receipt, unless it was added before.
    pub fn take(&mut self, receipt: &Receipt) {
        let choice = receipt.choice.as_ref();
        self.count(&Item {
            id: receipt.receipt_id.as_str(),
            receipt_id: &receipt.receipt_id,
            tool: receipt.tool_id.as_str(),
            status: receipt.status,
            reward: receipt.reward.scalar,
            propensity: choice.and_then(|choice| choice.propensity),
            chosen: choice.and_then(|choice| choice.chosen.as_deref()),
        });
    }

    /// Adds an event of the topics `ACTION_EXECUTED` and `AMENDMENTS`, unless it was added before. Other events say nothing about an
    /// action: those of operators, and those in place of lost ones.
    pub fn take_event(&mut self, event: Value) -> Result<(), serde_json::Error> {
        if event["type"] == Topic::Amendments.event_type() {
            let Event { data, .. } = serde_json::from_value::<Event<AmendedData>>(event)?;
            self.note_later(data.receipt_id, data.success, data.reward);
        } else if event["type"] == Topic::ActionExecuted.event_type() {
            let Event { id, data, .. } = serde_json::from_value::<Event<ExecutedData>>(event)?;
            if !data.tool_id.as_str().starts_with("effectd.") {
                self.count(&Item {
                    id: id.as_str(),
                    receipt_id: &data.receipt_id,
                    tool: data.tool_id.as_str(),
                    status: data.status,
                    reward: data.reward,
                    propensity: data.propensity,
                    chosen: data.chosen.as_deref(),
                });
            }
        }
        Ok(())
    }

    fn count(&mut self, item: &Item<'_>) {
        if !self.seen.insert(item.id.to_owned()) {
            return;
        }
        let later = self.later.get(item.receipt_id).copied().unwrap_or_default();
        let success = later.success.unwrap_or(item.status == Status::Ok);
        let reward = later.reward.unwrap_or(item.reward);
        let tool = self.tools.entry(item.tool.to_owned()).or_default();
        tool.count += 1;
        tool.successes += u64::from(success);
        tool.reward += reward;
        if let Some(propensity) = item.propensity.filter(|_| !self.target.is_empty()) {
            let likely = self.target.get(item.chosen.unwrap_or(item.tool)).copied().unwrap_or(0.0);
            self.weighted.push((likely / propensity, reward));
        }
    }

    /// The statistics as text.
    pub fn told(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.tools.iter().map(|(name, tool)| tool.told(name)).collect();
        lines.extend((!self.weighted.is_empty()).then(|| self.estimate()));
        lines
    }

    /// The self-normalised estimate, its interval, and how many receipts it really rests on.
    fn estimate(&self) -> String {
        let sum =
            |of: &dyn Fn(f64, f64) -> f64| -> f64 { self.weighted.iter().map(|(w, r)| of(*w, *r)).sum() };
        let (count, total) = (self.weighted.len(), sum(&|weight, _| weight));
        if total == 0.0 {
            return format!("off_policy n={count} effective_n=0.0: no receipt has a candidate of the target");
        }
        let mean = sum(&|weight, reward| weight * reward) / total;
        let effective = total * total / sum(&|weight, _| weight * weight);
        let spread = sum(&|weight, reward| (weight * (reward - mean)) * (weight * (reward - mean)));
        let error = if effective > 1.5 { Z * spread.sqrt() / total } else { f64::INFINITY };
        format!(
            "off_policy n={count} effective_n={effective:.1} estimate={mean:.6} low={:.6} high={:.6}",
            mean - error,
            mean + error
        )
    }
}

impl Tool {
    fn told(&self, name: &str) -> String {
        let (count, successes) = (self.count as f64, self.successes as f64);
        let (low, high) = wilson(successes, count);
        format!(
            "{name} n={} successes={} prior={:.6} low={low:.6} high={high:.6} reward={:.6}",
            self.count,
            self.successes,
            successes / count,
            self.reward / count
        )
    }
}

/// The Wilson interval of a share of successes, which also holds for few of them.
fn wilson(successes: f64, count: f64) -> (f64, f64) {
    let share = successes / count;
    let spread = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
    let middle = share + Z * Z / (2.0 * count);
    let scale = 1.0 + Z * Z / count;
    ((middle - spread) / scale, (middle + spread) / scale)
}

/// Reads JSON lines one by one; of standard input if the path is `-`.
pub fn each<T: DeserializeOwned>(
    path: &Path,
    mut take: impl FnMut(T),
) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Box<dyn BufRead> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        Some(_) | None => Box::new(BufReader::new(File::open(path)?)),
    };
    for line in lines.lines() {
        let line = line?;
        if !line.trim().is_empty() {
            take(serde_json::from_str(&line)?);
        }
    }
    Ok(())
}

#[allow(clippy::print_stdout, dead_code, reason = "this is what it is for; a test uses the rest")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(receipts), Some(amendments)) = (arguments.next(), arguments.next()) else {
        return Err("usage: learner RECEIPTS.jsonl AMENDMENTS.jsonl [CANDIDATE=PROBABILITY]...\n       \
                    learner --events EVENTS.jsonl [CANDIDATE=PROBABILITY]..."
            .into());
    };
    let mut target = HashMap::new();
    for pair in arguments {
        let (candidate, probability) = pair.rsplit_once('=').ok_or("write CANDIDATE=PROBABILITY")?;
        target.insert(candidate.to_owned(), probability.parse()?);
    }
    let mut learner = Learner::new(target);
    if receipts == "--events" {
        let mut taken = Ok(());
        each(Path::new(&amendments), |event| {
            if taken.is_ok() {
                taken = learner.take_event(event);
            }
        })?;
        taken?;
    } else {
        each(Path::new(&amendments), |amendment| learner.amend(amendment))?;
        each(Path::new(&receipts), |receipt: Receipt| learner.take(&receipt))?;
    }
    learner.told().iter().for_each(|line| println!("{line}"));
    Ok(())
}
