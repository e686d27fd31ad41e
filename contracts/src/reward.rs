//! The reward of an action: the learning signal, computed from the figures in its receipt by formula 1, and by formula 2 if
//! the settings ask for it. docs/rewards.md has both formulas, with examples.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::log::AmendmentEntry;
use crate::millis::Millis;
use crate::outcome::Outcome;
use crate::receipt::{Receipt, Status};

/// The reward of an action: the learning signal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reward {
    /// From -1 to 1.
    #[schemars(range(min = -1.0, max = 1.0))]
    pub scalar: f64,
    /// The components of the sum, each from 0 to 1.
    pub components: RewardComponents,
    /// The version of the formula.
    pub formula: u32,
    /// The inputs that the receipt does not hold otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<RewardInputs>,
    /// The reward by formula 2, from -1 to 1; present if the setting `reward.formula` is 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1.0, max = 1.0))]
    pub v2: Option<f64>,
}

/// The inputs that the receipt does not hold otherwise, so that anybody can compute the reward again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardInputs {
    /// The quality that the tool reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// The time that was allowed.
    pub allowed_ms: Millis,
    /// The processor time at which the cost is 1.
    pub cost_budget_ms: f64,
    /// The weight of each component.
    pub weights: RewardWeights,
}

/// The weights of the components.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardWeights {
    /// Of success; added.
    pub success: f64,
    /// Of quality; added.
    pub quality: f64,
    /// Of cost; subtracted.
    pub cost: f64,
    /// Of latency; subtracted.
    pub latency: f64,
}

/// The components of a reward.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardComponents {
    /// Time used, as a share of the time allowed.
    pub latency: f64,
    /// 1 if the action was executed, otherwise 0.
    pub success: f64,
    /// The quality by the tool's own measure.
    pub quality: f64,
    /// Processor time, as a share of the budget.
    pub cost: f64,
}

/// Quality of an action whose tool reports none. Part of both formulas.
const QUALITY_DEFAULT: f64 = 0.5;

/// The version of the formula, stored with each reward so that learners can tell rewards of different formulas apart.
pub const FORMULA: u32 = 1;

/// The parameters of the formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// The weight of each component.
    pub parts: RewardWeights,
    /// The processor time at which the cost is 1.
    pub cost_budget_ms: f64,
    /// 2 to add the reward by formula 2; otherwise 1.
    pub formula: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            parts: RewardWeights { success: 0.6, quality: 0.3, cost: 0.05, latency: 0.05 },
            cost_budget_ms: 1_000.0,
            formula: FORMULA,
        }
    }
}

/// What a reward is computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inputs {
    /// The outcome of the action.
    pub outcome: Outcome,
    /// The quality from 0 to 1 that the tool reported.
    pub quality: Option<f64>,
    /// Processor time.
    pub cpu: Millis,
    /// Time in the sandbox.
    pub took: Millis,
    /// Time that was allowed.
    pub allowed: Millis,
}

/// `success + quality - cost - latency`, each weighted, clamped to [-1, 1].
pub fn reward(inputs: &Inputs, weights: &Weights) -> Reward {
    let success = if inputs.outcome.is_success() { 1.0 } else { 0.0 };
    let quality =
        if inputs.outcome.is_success() { unit(inputs.quality.unwrap_or(QUALITY_DEFAULT)) } else { 0.0 };
    let cost = unit(inputs.cpu.as_f64() / weights.cost_budget_ms);
    let latency = latency(inputs);
    let parts = &weights.parts;
    let sum = parts.success * success + parts.quality * quality - parts.cost * cost - parts.latency * latency;
    Reward {
        scalar: round(sum.clamp(-1.0, 1.0)),
        components: RewardComponents {
            latency: round(latency),
            success,
            quality: round(quality),
            cost: round(cost),
        },
        formula: FORMULA,
        inputs: Some(RewardInputs {
            quality: inputs.quality.filter(|quality| quality.is_finite()),
            allowed_ms: inputs.allowed,
            cost_budget_ms: weights.cost_budget_ms,
            weights: weights.parts,
        }),
        v2: (weights.formula == 2).then(|| formula_2(inputs, weights.cost_budget_ms)),
    }
}

/// What the outcome is worth, minus the price of getting there.
fn formula_2(inputs: &Inputs, cost_budget_ms: f64) -> f64 {
    let worth = match inputs.outcome {
        Outcome::Executed => 0.4 + 0.6 * unit(inputs.quality.unwrap_or(QUALITY_DEFAULT)),
        // Nothing happened, or not because of what was chosen.
        Outcome::CachedHit
        | Outcome::DryRun
        | Outcome::Paused
        | Outcome::NotStarted
        | Outcome::AwaitingApproval
        | Outcome::Approved
        | Outcome::Executing
        | Outcome::Expired
        | Outcome::Throttled
        | Outcome::BreakerOpen
        | Outcome::Cancelled => 0.0,
        Outcome::DeniedPolicy => -0.1,
        Outcome::Quarantined | Outcome::Invalid | Outcome::NotFound => -0.2,
        Outcome::DeniedHuman | Outcome::Reverted => -0.3,
        Outcome::Failed | Outcome::TimedOut => -0.4,
        Outcome::Indeterminate => -0.6,
    };
    // A share that never reaches 1, so that ten times the budget still costs more than the budget.
    let cost = unit(inputs.cpu.as_f64() / (inputs.cpu.as_f64() + cost_budget_ms));
    round((worth - 0.3 * cost - 0.1 * latency(inputs)).clamp(-1.0, 1.0))
}

/// The time in the sandbox as a share of the time allowed.
fn latency(inputs: &Inputs) -> f64 {
    if inputs.allowed == Millis::ZERO { 0.0 } else { unit(inputs.took.as_f64() / inputs.allowed.as_f64()) }
}

/// Why a reward cannot be computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RewardUnknown {
    /// The receipt does not hold the inputs.
    #[error("the receipt does not hold the inputs of its reward")]
    NoInputs,
    /// Another version of effectd computed it.
    #[error("the reward was computed with formula {0}, which this version does not support")]
    Formula(u32),
}

/// The inputs and weights of a receipt's reward.
pub fn inputs_of(receipt: &Receipt) -> Result<(Inputs, Weights), RewardUnknown> {
    if receipt.reward.formula != FORMULA {
        return Err(RewardUnknown::Formula(receipt.reward.formula));
    }
    let recorded = receipt.reward.inputs.ok_or(RewardUnknown::NoInputs)?;
    let inputs = Inputs {
        outcome: receipt.outcome,
        quality: recorded.quality,
        cpu: receipt.cost.cpu_ms,
        took: receipt.timing.exec_ms,
        allowed: recorded.allowed_ms,
    };
    let weights = Weights {
        parts: recorded.weights,
        cost_budget_ms: recorded.cost_budget_ms,
        formula: if receipt.reward.v2.is_some() { 2 } else { FORMULA },
    };
    Ok((inputs, weights))
}

/// What became known about an action after its receipt was signed: of each field, the last word counts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Judgement {
    /// Whether the action counts as a success.
    pub success: Option<bool>,
    /// The quality, from 0 to 1.
    pub quality: Option<f64>,
}

impl Judgement {
    /// What amendments of one receipt, in their order, say together.
    pub fn of<'a>(amendments: impl IntoIterator<Item = &'a AmendmentEntry>) -> Self {
        let each = amendments.into_iter();
        each.fold(Self::default(), |all, one| all.and(Self { success: one.success, quality: one.quality }))
    }

    /// Whether the action of a receipt counts as a success: if nothing else became known, its status is `ok`.
    pub fn is_success(self, receipt: &Receipt) -> bool {
        self.success.unwrap_or(receipt.status == Status::Ok)
    }

    /// The quality of a receipt's action; 0 without success, as in the formulas.
    pub fn quality_of(self, receipt: &Receipt) -> f64 {
        let reported = receipt.reward.inputs.and_then(|inputs| inputs.quality);
        let quality = self.quality.or(reported).unwrap_or(QUALITY_DEFAULT);
        if self.is_success(receipt) { round(unit(quality)) } else { 0.0 }
    }

    /// This judgement with the fields of a later one.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self { success: later.success.or(self.success), quality: later.quality.or(self.quality) }
    }
}

/// The reward of a receipt under a later judgement.
pub fn amended(receipt: &Receipt, judgement: Judgement) -> Result<Reward, RewardUnknown> {
    let (mut inputs, weights) = inputs_of(receipt)?;
    match judgement.success {
        Some(true) => inputs.outcome = Outcome::Executed,
        Some(false) => inputs.outcome = Outcome::Failed,
        None => {}
    }
    inputs.quality = judgement.quality.or(inputs.quality);
    Ok(reward(&inputs, &weights))
}

/// Clamps to [0, 1]; NaN counts as 0.
fn unit(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

/// Rounds to six places, so that the same figures print the same on every machine.
fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn inputs(outcome: Outcome, quality: Option<f64>, cpu_ms: u64, took_ms: u64) -> Inputs {
        let millis = |ms: u64| Millis::from_micros(ms * 1_000);
        Inputs { outcome, quality, cpu: millis(cpu_ms), took: millis(took_ms), allowed: millis(1_000) }
    }

    #[test]
    fn the_documented_figures_come_out() {
        let table = [
            (inputs(Outcome::Executed, Some(0.5), 0, 120), 0.744),
            (inputs(Outcome::Executed, Some(1.0), 0, 0), 0.9),
            (inputs(Outcome::Executed, Some(7.0), 1_000, 1_000), 0.8),
            (inputs(Outcome::Executed, None, 0, 0), 0.75),
            (inputs(Outcome::Failed, Some(1.0), 5_000, 5_000), -0.1),
            (inputs(Outcome::DryRun, Some(1.0), 0, 0), 0.0),
            (inputs(Outcome::Executed, Some(f64::NAN), 0, 0), 0.6),
        ];
        for (inputs, expected) in table {
            assert_eq!(reward(&inputs, &Weights::default()).scalar, expected, "{inputs:?}");
        }
    }

    /// Every row of the table in docs/rewards.md, by both formulas.
    #[test]
    fn the_cases_on_the_page_come_out() {
        let page = include_str!("../../docs/rewards.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .filter(|cells: &Vec<&str>| cells.len() == 8 && cells[0].parse::<u32>().is_ok())
            .collect();
        assert_eq!(rows.len(), 20);
        for cells in rows {
            let outcome: Outcome = serde_json::from_str(&cells[2].replace('`', "\"")).unwrap();
            let quality = cells[3].parse().ok();
            let [cpu, took] = [cells[4], cells[5]].map(|cell| cell.parse().unwrap());
            let case = inputs(outcome, quality, cpu, took);
            let both = reward(&case, &Weights { formula: 2, ..Weights::default() });
            let [first, second] = [cells[6], cells[7]].map(|cell| cell.parse().unwrap());
            assert_eq!((both.scalar, both.v2), (first, Some(second)), "{cells:?}");
        }
    }

    #[test]
    fn formula_2_tells_apart_what_formula_1_does_not() {
        let v2 = |outcome, cpu_ms| {
            let weights = Weights { formula: 2, ..Weights::default() };
            reward(&inputs(outcome, Some(0.5), cpu_ms, 0), &weights).v2.unwrap()
        };
        assert!(v2(Outcome::Executed, 1) - v2(Outcome::Executed, 10_000) > 0.2);
        assert!(v2(Outcome::Executed, 10_000) > v2(Outcome::Executed, 100_000));
        assert!(v2(Outcome::Executed, u64::MAX / 1_000) > v2(Outcome::DryRun, 0));
        assert!(v2(Outcome::DryRun, 0) > v2(Outcome::DeniedPolicy, 0));
        assert!(v2(Outcome::DeniedPolicy, 0) > v2(Outcome::Failed, 0));
        assert!(v2(Outcome::Failed, 0) > v2(Outcome::Indeterminate, 0));
    }

    #[test]
    fn no_weight_leaves_the_bounds() {
        let heavy = Weights {
            parts: RewardWeights { success: 9.0, quality: 9.0, cost: 9.0, latency: 9.0 },
            ..Weights::default()
        };
        assert_eq!(reward(&inputs(Outcome::Executed, Some(1.0), 0, 0), &heavy).scalar, 1.0);
        assert_eq!(reward(&inputs(Outcome::Failed, None, 9_000, 9_000), &heavy).scalar, -1.0);
    }

    #[test]
    fn a_reward_is_computed_again_from_its_receipt_alone() {
        let golden = include_str!("../tests/golden/receipt.json");
        let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
        assert_eq!(inputs_of(&receipt), Err(RewardUnknown::NoInputs));
        let odd = Weights { cost_budget_ms: 10.0, ..Weights::default() };
        let inputs = Inputs {
            outcome: receipt.outcome,
            quality: Some(0.25),
            cpu: receipt.cost.cpu_ms,
            took: receipt.timing.exec_ms,
            allowed: Millis::from_micros(7_000),
        };
        receipt.reward = reward(&inputs, &odd);
        assert_eq!(receipt.reward.v2, None);
        let (again, weights) = inputs_of(&receipt).unwrap();
        assert_eq!((again, weights), (inputs, odd));
        assert_eq!(reward(&again, &weights), receipt.reward);
        let failed = Judgement { success: Some(false), quality: None };
        let worse = amended(&receipt, failed).unwrap();
        assert!(worse.scalar < 0.0 && worse.components.success == 0.0, "{worse:?}");
        let good = Judgement { success: None, quality: Some(1.0) };
        let better = amended(&receipt, good).unwrap();
        assert!(better.scalar > receipt.reward.scalar, "{better:?}");
        // Fields add up, in any order; of one field the last word counts.
        assert_eq!(failed.and(good), good.and(failed));
        assert_eq!(failed.and(Judgement { success: Some(true), quality: None }).success, Some(true));
        receipt.reward = reward(&inputs, &Weights { formula: 2, ..odd });
        let (again, weights) = inputs_of(&receipt).unwrap();
        assert!(receipt.reward.v2.is_some() && reward(&again, &weights) == receipt.reward);
        receipt.reward.formula = 7;
        assert_eq!(inputs_of(&receipt), Err(RewardUnknown::Formula(7)));
    }
}
