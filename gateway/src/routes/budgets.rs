//! Budgets, for operators.

use axum::extract::State;
use effectd_actors::control::budgets::Standing;

use crate::app::{App, AppState};
use crate::extract::{Json, Reply, Viewer};
use crate::limits::LIST_MAX;
use crate::problem::Problems;
use crate::views::budgets::{BudgetList, BudgetView};

/// The budgets in force, and what is left of them
///
/// Each subject has a budget of its own, which is whole until its first action in a window. With a token, you see the subjects that see a
/// space of your organisation.
#[utoipa::path(get, path = "/v1/budgets", tag = "budgets",
    responses((status = 200, description = "Who has the least left comes first", body = BudgetList), Problems<403, 503>))]
pub(crate) async fn list(State(app): AppState, Viewer { peer, .. }: Viewer) -> Reply<BudgetList> {
    let list = move |app: &App| {
        let (budgets, policy, by) =
            (&app.services().control.budgets, app.services().policy(), peer.decider());
        let mut subjects = budgets.list()?;
        subjects.retain(|Standing { subject, .. }| {
            let mut spaces = policy.spaces_shown_to(subject).into_iter();
            peer.claims().is_none() || spaces.any(|space| by.reaches(policy.org_of(&space)))
        });
        let total = subjects.len();
        subjects.truncate(LIST_MAX);
        let subjects = subjects.into_iter().map(BudgetView::from).collect();
        Ok(BudgetList::of(budgets.rules(), subjects, total))
    };
    app.blocking(list).await.map(Json)
}
