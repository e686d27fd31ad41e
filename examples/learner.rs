//! A learner in Rust: how often each tool succeeds, and an off-policy estimate of another planner's reward.
//!
//! ```sh
//! effectd receipts export --dataset data
//! cargo run --example learner -- data/receipts.jsonl data/amendments.jsonl files.write_text=1
//! ```
//!
//! It computes the same figures as `learner.py`, with `effectd-contracts` alone. That crate also verifies bundles: see its `proof`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use effectd_contracts::{AmendmentEntry, Receipt, ReceiptId, Status};
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
    later: HashMap<ReceiptId, AmendmentEntry>,
    target: HashMap<String, f64>,
    seen: HashSet<ReceiptId>,
    tools: BTreeMap<String, Tool>,
    weighted: Vec<f64>,
}

impl Learner {
    /// A learner that estimates the reward of a planner with these probabilities by tool.
    pub fn new(target: HashMap<String, f64>) -> Self {
        Self { target, ..Self::default() }
    }

    /// Adds an amendment; the last one for a receipt counts.
    pub fn amend(&mut self, amendment: AmendmentEntry) {
        self.later.insert(amendment.receipt_id.clone(), amendment);
    }

    /// Adds a receipt, unless it was added before.
    pub fn take(&mut self, receipt: &Receipt) {
        if !self.seen.insert(receipt.receipt_id.clone()) {
            return;
        }
        let later = self.later.get(&receipt.receipt_id);
        let success = later.and_then(|later| later.success).unwrap_or(receipt.status == Status::Ok);
        let reward = later.map_or(receipt.reward.scalar, |later| later.reward.scalar);
        let tool = self.tools.entry(receipt.tool_id.to_string()).or_default();
        tool.count += 1;
        tool.successes += u64::from(success);
        tool.reward += reward;
        let propensity = receipt.choice.as_ref().and_then(|choice| choice.propensity);
        if let Some(propensity) = propensity.filter(|_| !self.target.is_empty()) {
            let likely = self.target.get(receipt.tool_id.as_str()).copied().unwrap_or(0.0);
            self.weighted.push(likely / propensity * reward);
        }
    }

    /// The statistics as text.
    pub fn told(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.tools.iter().map(|(name, tool)| tool.told(name)).collect();
        if !self.weighted.is_empty() {
            let count = self.weighted.len() as f64;
            let mean = self.weighted.iter().sum::<f64>() / count;
            let spread: f64 = self.weighted.iter().map(|value| (value - mean) * (value - mean)).sum();
            let error = if count > 1.0 { Z * (spread / (count - 1.0) / count).sqrt() } else { f64::INFINITY };
            lines.push(format!(
                "off_policy n={} estimate={mean:.6} low={:.6} high={:.6}",
                self.weighted.len(),
                mean - error,
                mean + error
            ));
        }
        lines
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
        return Err("usage: learner RECEIPTS.jsonl AMENDMENTS.jsonl [TOOL=PROBABILITY]...".into());
    };
    let mut target = HashMap::new();
    for pair in arguments {
        let (tool, probability) = pair.rsplit_once('=').ok_or("write TOOL=PROBABILITY")?;
        target.insert(tool.to_owned(), probability.parse()?);
    }
    let mut learner = Learner::new(target);
    each(Path::new(&amendments), |amendment| learner.amend(amendment))?;
    each(Path::new(&receipts), |receipt: Receipt| learner.take(&receipt))?;
    learner.told().iter().for_each(|line| println!("{line}"));
    Ok(())
}
