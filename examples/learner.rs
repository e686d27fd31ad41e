//! A learner in Rust: how often each tool succeeds, and an off-policy estimate of another planner's reward.
//!
//! ```sh
//! effectd receipts export --dataset data
//! cargo run --example learner -- data/receipts.jsonl data/amendments.jsonl files.write_text=1
//! ```
//!
//! The estimate weighs each receipt by its candidate (`choice.chosen`, or the tool if the planner named none) and normalises by the
//! sum of the weights (SNIPS). `effective_n` is the number of receipts that would say as much without weights.
//!
//! It computes the same figures as `learner.py`, with `effectd-contracts` alone. That crate also verifies bundles: see its `proof`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use effectd_contracts::{AmendmentEntry, Judgement, Receipt, ReceiptId};
use serde::de::DeserializeOwned;

/// The quantile of a 95 % confidence interval.
const Z: f64 = 1.959_963_984_540_054;

/// The statistics of one tool.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tool {
    count: u64,
    successes: u64,
    reward: f64,
}

/// The statistics of all tools. A receipt counts once, however often it is replayed.
#[derive(Debug, Default)]
pub struct Learner {
    later: HashMap<ReceiptId, Vec<AmendmentEntry>>,
    target: HashMap<String, f64>,
    seen: HashSet<ReceiptId>,
    tools: BTreeMap<String, Tool>,
    /// Weight and reward of each receipt with a propensity.
    weighted: Vec<(f64, f64)>,
}

impl Learner {
    /// A learner that estimates the reward of a planner with these probabilities by candidate.
    pub fn new(target: HashMap<String, f64>) -> Self {
        Self { target, ..Self::default() }
    }

    /// Adds an amendment. Amendments of a receipt add up field by field.
    pub fn amend(&mut self, amendment: AmendmentEntry) {
        self.later.entry(amendment.receipt_id.clone()).or_default().push(amendment);
    }

    /// Adds a receipt, unless it was added before.
    pub fn take(&mut self, receipt: &Receipt) {
        if !self.seen.insert(receipt.receipt_id.clone()) {
            return;
        }
        let later = self.later.get(&receipt.receipt_id).map_or(&[][..], Vec::as_slice);
        let success = Judgement::of(later).is_success(receipt);
        let reward = later.last().map_or(&receipt.reward, |last| &last.reward).scalar;
        let tool = self.tools.entry(receipt.tool_id.to_string()).or_default();
        tool.count += 1;
        tool.successes += u64::from(success);
        tool.reward += reward;
        let Some(choice) = receipt.choice.as_ref().filter(|_| !self.target.is_empty()) else {
            return;
        };
        if let Some(propensity) = choice.propensity {
            let candidate = choice.chosen.as_deref().unwrap_or(receipt.tool_id.as_str());
            let likely = self.target.get(candidate).copied().unwrap_or(0.0);
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

/// Reads JSON lines one by one.
pub fn each<T: DeserializeOwned>(
    path: &Path,
    mut take: impl FnMut(T),
) -> Result<(), Box<dyn std::error::Error>> {
    for line in BufReader::new(File::open(path)?).lines() {
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
        return Err("usage: learner RECEIPTS.jsonl AMENDMENTS.jsonl [CANDIDATE=PROBABILITY]...".into());
    };
    let mut target = HashMap::new();
    for pair in arguments {
        let (candidate, probability) = pair.rsplit_once('=').ok_or("write CANDIDATE=PROBABILITY")?;
        target.insert(candidate.to_owned(), probability.parse()?);
    }
    let mut learner = Learner::new(target);
    each(Path::new(&amendments), |amendment| learner.amend(amendment))?;
    each(Path::new(&receipts), |receipt: Receipt| learner.take(&receipt))?;
    learner.told().iter().for_each(|line| println!("{line}"));
    Ok(())
}
