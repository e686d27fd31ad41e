//! Dead letters, for operators: list, review, requeue and drop them.

use std::sync::Arc;

use axum::extract::State;
use effectd_actors::Services;
use effectd_contracts::Operation;

use super::operations;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Query, Reply, Viewer};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::dead_letters::{
    self as views, CauseView, LetterList, LetterNow, LetterQuery, LetterView, ReviewView,
};

/// Dead letters, oldest first
///
/// Those who only look get neither `detail` nor `tries`.
#[utoipa::path(get, path = "/v1/dlq", tag = "dlq",
    params(LetterQuery),
    responses((status = 200, description = "A page of them", body = LetterList), Problems<400, 403>))]
pub(crate) async fn list(
    State(app): AppState,
    by: Viewer,
    Query(query): Query<LetterQuery>,
) -> Reply<LetterList> {
    let query = of(&by.peer, query);
    let list = move |services: &Services| views::list(services, &query);
    let Json(mut list) = app.store_query(list).await?;
    if !by.operates {
        for letter in &mut list.letters {
            letter.detail = None;
            letter.tries.clear();
        }
    }
    Ok(Json(list))
}

/// The causes that dead letters have in common, most frequent first
///
/// A cause is a tool, a code and the words of the error. Those who only look get no `sample`.
#[utoipa::path(get, path = "/v1/dlq/causes", tag = "dlq",
    params(LetterQuery),
    responses((status = 200, description = "All of them", body = Vec<CauseView>), Problems<400, 403>))]
pub(crate) async fn causes(
    State(app): AppState,
    by: Viewer,
    Query(query): Query<LetterQuery>,
) -> Reply<Vec<CauseView>> {
    let query = of(&by.peer, query);
    let causes = move |services: &Services| views::causes(services, &query);
    let Json(mut causes) = app.store_query(causes).await?;
    if !by.operates {
        causes.iter_mut().for_each(|cause| cause.sample = None);
    }
    Ok(Json(causes))
}

/// One dead letter, with the decision that failed
#[utoipa::path(get, path = "/v1/dlq/{letter}", tag = "dlq",
    responses((status = 200, description = "What was asked, without secrets and personal data; its approval, attempts, cause and receipt", body = LetterView), Problems<403, 404>))]
pub(crate) async fn show(
    State(app): AppState,
    Operator(by): Operator,
    Path(letter): Path<String>,
) -> Reply<LetterView> {
    let (letter, query) = (number(&letter)?, of(&by, LetterQuery::default()));
    app.store_query(move |services| views::one(services, &query, letter)).await
}

/// One quarantined action, for review
#[utoipa::path(get, path = "/v1/quarantine/{letter}", tag = "quarantine",
    responses(
        (status = 200, description = "Its content without secrets and personal data, and why it was quarantined", body = ReviewView),
        Problems<403, 404>,
    )
)]
pub(crate) async fn review(
    State(app): AppState,
    Operator(by): Operator,
    Path(letter): Path<String>,
) -> Reply<ReviewView> {
    let (letter, query) = (number(&letter)?, of(&by, LetterQuery::default()));
    app.store_query(move |services| views::review(services, &query, letter)).await
}

/// The query of this peer: a token has the dead letters of its own organisation only.
pub(super) fn of(by: &Peer, query: LetterQuery) -> LetterQuery {
    LetterQuery { org: by.claims().map(|claims| claims.org.to_string()), ..query }
}

/// Requeue a dead letter
///
/// Its decision is published again with its action id and idempotency key, and passes every gate again. Repeating this does nothing.
#[utoipa::path(post, path = "/v1/dlq/{letter}/requeue", tag = "dlq",
    responses((status = 200, description = "The outcome", body = LetterNow), Problems<403, 404>))]
pub(crate) async fn requeue(
    State(app): AppState,
    by: Operator,
    Path(letter): Path<String>,
) -> Reply<LetterNow> {
    let letters = vec![number(&letter)?];
    perform(&app, &by, Operation::RequeueLetters { letters }).await
}

/// Drop a dead letter; its receipt stays
#[utoipa::path(post, path = "/v1/dlq/{letter}/purge", tag = "dlq",
    responses((status = 200, description = "The outcome", body = LetterNow), Problems<403, 404>))]
pub(crate) async fn purge(
    State(app): AppState,
    by: Operator,
    Path(letter): Path<String>,
) -> Reply<LetterNow> {
    let letters = vec![number(&letter)?];
    perform(&app, &by, Operation::DropLetters { letters }).await
}

/// Performs an operation on one letter, and returns its outcome.
async fn perform(app: &Arc<App>, by: &Operator, operation: Operation) -> Reply<LetterNow> {
    operations::check_door(app, &by.0, &operation).await?;
    let performed = operations::perform_to_end(app, by, operation).await?;
    let unknown = || Problem::of(Kind::LetterUnknown, "there is no such dead letter");
    performed.letters.into_iter().next().map(Json).ok_or_else(unknown)
}

fn number(letter: &str) -> Result<u64, Problem> {
    letter.parse().map_err(|_| Problem::of(Kind::LetterUnknown, "a dead letter is named by its number"))
}
