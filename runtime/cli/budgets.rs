//! `effectd budgets`: what is left of each subject's budget.

use effectd_gateway::views::budgets::{BudgetList, BudgetView};

use super::{CliError, Common, Depth, eprint_line, get, print_json, print_rows, second};
use crate::exit::Exit;

/// List what is left of the budgets in force: calls, processor time and cost of each subject
///
/// The settings control.budget_* set them, for a window of each subject. A subject that is not listed has its whole budget.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd budgets\n  effectd budgets -o json")]
pub(super) struct Budgets;

const COLUMNS: [(&str, usize); 3] = [("WHOLE AGAIN", 20), ("LEFT", 40), ("SUBJECT", 32)];

impl Budgets {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let list: BudgetList = get(common, Depth::Store, "/v1/budgets").await?;
        if print_json(common.output, &list) {
            return Ok(Exit::Done);
        }
        if list.is_off() {
            eprint_line(&"no budget is in force; control.budget_calls_max and its neighbours set one");
            return Ok(Exit::Done);
        }
        eprint_line(&format!("each subject has {}", list.says()));
        Ok(print_rows(common.output, &COLUMNS, &list.subjects, cells))
    }
}

fn cells(budget: &BudgetView) -> [String; 3] {
    [second(&budget.until), budget.left(), budget.subject_id.clone()]
}
