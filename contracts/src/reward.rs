//! The reward of an action: the learning signal, computed from the figures in its receipt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::millis::Millis;
use crate::outcome::Outcome;
use crate::receipt::Receipt;

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

/// Quality of an action whose tool reports none. Part of formula 1.
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
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            parts: RewardWeights { success: 0.6, quality: 0.3, cost: 0.05, latency: 0.05 },
            cost_budget_ms: 1_000.0,
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
    let latency = if inputs.allowed == Millis::ZERO {
        0.0
    } else {
        unit(inputs.took.as_f64() / inputs.allowed.as_f64())
    };
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
    }
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
    let weights = Weights { parts: recorded.weights, cost_budget_ms: recorded.cost_budget_ms };
    Ok((inputs, weights))
}

/// The reward under another judgement of success or quality, which somebody made after the receipt was signed.
pub fn amended(
    receipt: &Receipt,
    success: Option<bool>,
    quality: Option<f64>,
) -> Result<Reward, RewardUnknown> {
    let (mut inputs, weights) = inputs_of(receipt)?;
    match success {
        Some(true) => inputs.outcome = Outcome::Executed,
        Some(false) => inputs.outcome = Outcome::Failed,
        None => {}
    }
    inputs.quality = quality.or(inputs.quality);
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
        let (again, weights) = inputs_of(&receipt).unwrap();
        assert_eq!((again, weights), (inputs, odd));
        assert_eq!(reward(&again, &weights), receipt.reward);
        let worse = amended(&receipt, Some(false), None).unwrap();
        assert!(worse.scalar < 0.0 && worse.components.success == 0.0, "{worse:?}");
        let better = amended(&receipt, None, Some(1.0)).unwrap();
        assert!(better.scalar > receipt.reward.scalar, "{better:?}");
        receipt.reward.formula = 7;
        assert_eq!(inputs_of(&receipt), Err(RewardUnknown::Formula(7)));
    }
}
