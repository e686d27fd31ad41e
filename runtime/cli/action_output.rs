//! Renders the reply about one action, and maps it to an exit code.

use effectd_contracts::{Code, Failure, Receipt};
pub(super) use effectd_gateway::client::ActionReply;
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::{ActionView, State as ActionState};
use effectd_policy::prune_result;
use serde::Serialize;
use serde_json::Value;

use super::receipt_view::{self, Detail};
use super::{Form, Printer, eprint_line, line};
use crate::exit::Exit;
use crate::host::in_process::failure_of;
use crate::tui::shown;

pub(super) fn exit_of(reply: &ActionReply) -> Exit {
    match reply {
        ActionReply::View(view) => view.outcome.map_or(Exit::Done, Exit::of),
        ActionReply::Problem(problem) => problem_exit(problem),
    }
}

pub(super) fn problem_exit(problem: &Problem) -> Exit {
    let receipt = problem.receipt.as_ref();
    if let Some(receipt) = receipt.filter(|_| problem.code != Kind::AlreadyFinished.code()) {
        return Exit::of(receipt.outcome);
    }
    match problem.code.parse::<Code>() {
        Ok(Code::StoreUnavailable | Code::SandboxUnavailable) => Exit::Unavailable,
        Ok(Code::Internal) => Exit::Failed,
        Ok(code) => Exit::of(code.outcome()),
        Err(_) => match problem.status {
            408 | 429 | 503 => Exit::TryAgain,
            400 | 404 | 405 | 413 | 422 => Exit::Usage,
            403 => Exit::Denied,
            _ => Exit::Failed,
        },
    }
}

/// The receipt of a reply, and whether it existed before this request.
pub(super) fn receipt_of(reply: &ActionReply) -> (Option<&Receipt>, bool) {
    match reply {
        ActionReply::View(view) => (view.receipt.as_deref(), view.already_done),
        ActionReply::Problem(problem) => (problem.receipt.as_deref(), false),
    }
}

/// A receipt for programs: its members, and beside them the tool's result as an [`ActionView`] has it.
#[derive(Serialize)]
pub(super) struct WithResult<'a> {
    #[serde(flatten)]
    receipt: &'a Receipt,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_error: Option<Failure>,
}

impl<'a> WithResult<'a> {
    /// `reply` is about the receipt's action. A requeued action has several receipts, and the result of the last.
    pub(super) fn new(receipt: &'a Receipt, reply: &'a ActionReply) -> Self {
        let (result, result_error) = match reply {
            ActionReply::View(view) if is_of(view, receipt) => {
                (view.result.as_ref(), view.result_error.clone())
            }
            ActionReply::Problem(problem) if hides_result(problem, receipt) => {
                (None, Some(failure_of(problem)))
            }
            ActionReply::View(_) | ActionReply::Problem(_) => (None, None),
        };
        Self { receipt, result, result_error }
    }
}

/// Whether a problem keeps the result of a receipt from the caller. One who may read the receipt, but not the action, gets none.
pub(super) fn hides_result(problem: &Problem, receipt: &Receipt) -> bool {
    receipt.kept_result.is_some() && problem.code != Kind::ActionUnknown.code()
}

/// Whether an action's last receipt is this one.
pub(super) fn is_of(view: &ActionView, receipt: &Receipt) -> bool {
    view.receipt.as_ref().is_some_and(|last| last.receipt_id == receipt.receipt_id)
}

pub(super) const COLUMNS: [(&str, usize); 4] =
    [("STATE", 9), ("OUTCOME", 17), ("ACTION", 36), ("RECEIPT", 36)];

pub(super) fn print_row(printer: &mut Printer, reply: &ActionReply) {
    let receipt = receipt_of(reply).0.map(|receipt| receipt.receipt_id.as_str());
    let receipt = receipt.unwrap_or_default();
    match reply {
        ActionReply::View(view) => {
            let state = match view.state {
                ActionState::Accepted => "accepted",
                ActionState::Held => "held",
                ActionState::Done => "done",
                ActionState::Ended => "ended",
            };
            let outcome = view.outcome.map_or("", |outcome| outcome.as_str());
            printer.row(view, &[state, outcome, view.action_id.as_str(), receipt]);
        }
        ActionReply::Problem(problem) => {
            let action = problem.action_id.as_ref().map_or("", |action| action.as_str());
            printer.row(problem, &["refused", &problem.code, action, receipt]);
        }
    }
}

/// One line for a problem, with what the caller would have to change.
pub(super) fn problem_line(problem: &Problem) -> String {
    let change = problem.change.as_ref();
    let change = change.map(|change| format!("; {}", change.what)).unwrap_or_default();
    format!("{}: {}{change}", problem.code, problem.detail)
}

/// Prints why an action was refused, or that a person must decide.
pub(super) fn explain(reply: &ActionReply) {
    match reply {
        ActionReply::View(view) => {
            if !view.redactions.is_empty() {
                eprint_line(&format!("redacted: {}", receipt_view::redacted(&view.redactions)));
            }
            if let Some(held) = &view.approval {
                eprint_line(&format!(
                    "a person must decide before {} ({}): `effectd approvals show {}`",
                    held.expires_at,
                    held.reasons.join("; "),
                    held.approval_id
                ));
            }
        }
        ActionReply::Problem(problem) => eprint_line(&problem_line(problem)),
    }
}

/// Prints a receipt and, if the reply has it, the tool's result.
pub(super) fn print_receipt(reply: &ActionReply, receipt: &Receipt, before: bool, detail: Detail) {
    receipt_view::print(receipt, before, detail);
    if let ActionReply::View(view) = reply {
        print_result(view);
    }
}

/// Prints the tool's result as one line, pruned if it is long, or why it is gone.
pub(super) fn print_result(view: &ActionView) {
    let pruned = view.result.clone().map(prune_result);
    let is_pruned = pruned != view.result;
    let result = pruned.map(|result| result.to_string());
    let gone = view.result_error.as_ref().map(|failure| format!("{} ({})", failure.message, failure.code));
    if let Some(text) = result.or(gone) {
        line(&format!("  {:<9} {}", "result", shown(&text, usize::MAX)));
    }
    if is_pruned {
        line(&format!("  {:<9} effectd status {} -o json", "whole", view.action_id));
    }
}

/// Prints a reply: in a table, as the text of its receipt if it has one. `before`: the receipt existed before the request.
pub(super) fn print_reply(reply: &ActionReply, receipt: Option<&Receipt>, before: bool, form: Form) {
    match receipt {
        Some(receipt) if form == Form::Table => print_receipt(reply, receipt, before, Detail::Short),
        Some(_) | None => {
            explain(reply);
            let mut printer = Printer::new(form, false, &COLUMNS);
            print_row(&mut printer, reply);
            printer.finish();
        }
    }
}

/// Prints the reply about an action that the user named by its id.
pub(super) fn show_one(reply: &ActionReply, form: Form) -> Exit {
    let receipt = match reply {
        ActionReply::View(view) => view.receipt.as_deref(),
        // Why an action cannot be cancelled says more than its receipt.
        ActionReply::Problem(problem) if problem.code == Kind::AlreadyFinished.code() => None,
        ActionReply::Problem(problem) => problem.receipt.as_deref(),
    };
    print_reply(reply, receipt, false, form);
    exit_of(reply)
}
