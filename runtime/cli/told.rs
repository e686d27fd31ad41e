//! What the daemon told, for scripts and for people.

use effectd_contracts::{Code, Outcome};
use effectd_gateway::client::Told;
use effectd_gateway::problem::Problem;
use effectd_gateway::views::State as Standing;

use super::{complain, output, show};
use crate::exit::Exit;

pub(super) fn exit_of(told: &Told) -> Exit {
    match told {
        Told::View(view) => view.outcome.map_or(Exit::Done, Exit::of),
        Told::Problem(problem) => exit_of_problem(problem),
    }
}

pub(super) fn exit_of_problem(problem: &Problem) -> Exit {
    let receipt = problem.receipt.as_ref();
    if let Some(receipt) = receipt.filter(|_| problem.code != "already_finished") {
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

pub(super) const COLUMNS: [(&str, usize); 4] =
    [("STATE", 9), ("OUTCOME", 17), ("ACTION", 36), ("RECEIPT", 36)];

pub(super) fn cells(told: &Told) -> [String; 4] {
    let word = |outcome: &Outcome| {
        let value = serde_json::to_value(outcome).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    };
    match told {
        Told::View(view) => {
            let state = match (view.state, view.already_done) {
                (Standing::Accepted, _) => "accepted",
                (Standing::Held, _) => "held",
                (Standing::Done, _) => "done",
            };
            let receipt = view
                .receipt
                .as_ref()
                .map(|receipt| receipt.receipt_id.to_string());
            [
                state.to_owned(),
                view.outcome.as_ref().map(word).unwrap_or_default(),
                view.action_id.to_string(),
                receipt.unwrap_or_default(),
            ]
        }
        Told::Problem(problem) => [
            "refused".to_owned(),
            problem.code.clone(),
            problem
                .action_id
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            problem
                .receipt
                .as_ref()
                .map(|receipt| receipt.receipt_id.to_string())
                .unwrap_or_default(),
        ],
    }
}

pub(super) fn value(told: &Told) -> serde_json::Value {
    // Both are plain data with text keys, for which serde_json has no failure.
    match told {
        Told::View(view) => serde_json::to_value(view),
        Told::Problem(problem) => serde_json::to_value(problem),
    }
    .unwrap_or_default()
}

/// Says why not, and what would have to change.
pub(super) fn explain(told: &Told) {
    if let Told::View(view) = told
        && let Some(held) = &view.approval
    {
        let id = &held.approval_id;
        complain(&format!(
            "a person must decide until {} ({}): `effectd approvals show {id}`",
            held.expires_at,
            held.reasons.join("; ")
        ));
    }
    if let Told::Problem(problem) = told {
        let change = problem
            .change
            .as_ref()
            .map(|change| format!("; {}", change.what))
            .unwrap_or_default();
        complain(&format!("{}: {}{change}", problem.code, problem.detail));
    }
}

pub(super) fn show_one(told: &Told, form: output::Form) -> Exit {
    let receipt = match told {
        Told::View(view) => view.receipt.as_deref(),
        Told::Problem(_) => None,
    };
    match receipt {
        Some(receipt) if form == output::Form::Table => {
            output::line(show::receipt(receipt, false).trim_end());
        }
        Some(_) | None => {
            explain(told);
            let mut printer = output::Printer::new(form, false, &COLUMNS);
            let cells = cells(told);
            printer.row(&value(told), &cells.each_ref().map(String::as_str));
            printer.finish();
        }
    }
    exit_of(told)
}
