//! Budgets in JSON.

use std::time::Duration;

use effectd_actors::control::budgets::{Rules, Standing};
use effectd_contracts::filter::span_text;
use effectd_contracts::text::counted;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The budgets in force: what one subject may use within a window.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetList {
    /// How long a window lasts; it begins with a subject's first action.
    pub window_ms: u64,
    /// Actions of one subject; left out if they are not limited.
    pub calls_max: Option<u64>,
    /// Their processor time; left out if it is not limited.
    pub cpu_ms_max: Option<u64>,
    /// Their cost in millionths, by the prices of tools; left out if it is not limited.
    pub cost_micros_max: Option<u64>,
    /// Subjects that have used some of their budget, who has the least left first.
    pub subjects: Vec<BudgetView>,
    /// How many there are; `subjects` has at most 500.
    pub total: usize,
}

/// What is left of the budget of one subject. Actions that run count with the most that they may use.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetView {
    pub subject_id: String,
    pub calls_left: Option<u64>,
    pub cpu_ms_left: Option<u64>,
    pub cost_micros_left: Option<u64>,
    /// When the window ends, and the budget is whole again.
    pub until: String,
}

impl From<Standing> for BudgetView {
    fn from(Standing { subject, left, until }: Standing) -> Self {
        Self {
            subject_id: subject.to_string(),
            calls_left: left.calls,
            cpu_ms_left: left.cpu_ms,
            cost_micros_left: left.cost_micros,
            until: until.to_string(),
        }
    }
}

/// `98 calls, 59.2 s of processor time, a cost of 0.25`
fn amounts(calls: Option<u64>, cpu_ms: Option<u64>, cost_micros: Option<u64>) -> String {
    let words = [
        calls.map(|calls| counted(calls, "call")),
        cpu_ms.map(|ms| format!("{} s of processor time", ms as f64 / 1e3)),
        cost_micros.map(|micros| format!("a cost of {}", micros as f64 / 1e6)),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

impl BudgetView {
    /// What is left, for people.
    pub fn left(&self) -> String {
        amounts(self.calls_left, self.cpu_ms_left, self.cost_micros_left)
    }

    /// Whether nothing is left of one amount.
    pub fn is_spent(&self) -> bool {
        [self.calls_left, self.cpu_ms_left, self.cost_micros_left].contains(&Some(0))
    }
}

impl BudgetList {
    pub(crate) fn of(rules: &Rules, subjects: Vec<BudgetView>, total: usize) -> Self {
        Self {
            window_ms: u64::try_from(rules.window.as_millis()).unwrap_or(u64::MAX),
            calls_max: rules.calls_max,
            cpu_ms_max: rules.cpu_ms_max,
            cost_micros_max: rules.cost_micros_max,
            subjects,
            total,
        }
    }

    /// `100 calls, 60 s of processor time in 1d`
    pub fn says(&self) -> String {
        let all = amounts(self.calls_max, self.cpu_ms_max, self.cost_micros_max);
        format!("{all} in {}", span_text(Duration::from_millis(self.window_ms)))
    }

    /// Whether nothing is limited.
    pub fn is_off(&self) -> bool {
        self.calls_max.or(self.cpu_ms_max).or(self.cost_micros_max).is_none()
    }
}
