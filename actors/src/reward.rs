//! The learning signal: what an action was worth, from measured figures.

use effectd_contracts::{Millis, Outcome, Reward, RewardComponents};

use crate::limits::{COST_BUDGET_MS, QUALITY_DEFAULT};

/// Which formula made a reward; stored beside it, so that learners can tell rewards of different formulas apart.
pub const FORMULA: u32 = 1;

/// How much each part counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// For having been done.
    pub success: f64,
    /// For how well.
    pub quality: f64,
    /// Against what it cost.
    pub cost: f64,
    /// Against how long it took.
    pub latency: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            success: 0.6,
            quality: 0.3,
            cost: 0.05,
            latency: 0.05,
        }
    }
}

/// What a reward is made from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inputs {
    /// How the action ended.
    pub outcome: Outcome,
    /// How well, by the tool's own measure.
    pub quality: Option<f64>,
    /// Processor time used.
    pub cpu: Millis,
    /// Time used.
    pub took: Millis,
    /// Time allowed.
    pub allowed: Millis,
}

/// `success - cost - latency + quality`, each weighted, kept within [-1, 1].
pub fn reward(inputs: &Inputs, weights: &Weights) -> Reward {
    let success = if inputs.outcome.is_success() { 1.0 } else { 0.0 };
    let quality = if inputs.outcome.is_success() {
        unit(inputs.quality.unwrap_or(QUALITY_DEFAULT))
    } else {
        0.0
    };
    let cost = unit(inputs.cpu.as_f64() / COST_BUDGET_MS);
    let latency = if inputs.allowed == Millis::ZERO {
        0.0
    } else {
        unit(inputs.took.as_f64() / inputs.allowed.as_f64())
    };
    let sum = weights.success * success + weights.quality * quality
        - weights.cost * cost
        - weights.latency * latency;
    Reward {
        scalar: round(sum.clamp(-1.0, 1.0)),
        components: RewardComponents {
            latency: round(latency),
            success,
            quality: round(quality),
            cost: round(cost),
        },
        formula: FORMULA,
    }
}

/// Into [0, 1]; what is not a number counts as nothing.
fn unit(value: f64) -> f64 {
    if value.is_nan() {
        0.0
    } else {
        value.clamp(0.0, 1.0)
    }
}

/// To six places, so that the same figures print the same on every machine.
fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(outcome: Outcome, quality: Option<f64>, cpu_ms: u64, took_ms: u64) -> Inputs {
        let millis = |ms: u64| Millis::from_micros(ms * 1_000);
        Inputs {
            outcome,
            quality,
            cpu: millis(cpu_ms),
            took: millis(took_ms),
            allowed: millis(1_000),
        }
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
            assert_eq!(
                reward(&inputs, &Weights::default()).scalar,
                expected,
                "{inputs:?}"
            );
        }
    }

    #[test]
    fn no_weight_leaves_the_bounds() {
        let heavy = Weights {
            success: 9.0,
            quality: 9.0,
            cost: 9.0,
            latency: 9.0,
        };
        assert_eq!(
            reward(&inputs(Outcome::Executed, Some(1.0), 0, 0), &heavy).scalar,
            1.0
        );
        assert_eq!(
            reward(&inputs(Outcome::Failed, None, 9_000, 9_000), &heavy).scalar,
            -1.0
        );
    }
}
