//! Dead letters, for operators: what was given up, and what to do about it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::StoreError;
use effectd_contracts::Operation;

use super::{json, operations, operators};
use crate::desk::Desk;
use crate::extract::{App, Operator, Path, Query};
use crate::letters::{self, CauseView, LetterList, LetterNow, LetterQuery, LetterView, ReviewView};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// Dead letters, oldest first
#[utoipa::path(
    get,
    path = "/v1/dlq",
    tag = "dlq",
    params(LetterQuery),
    responses(
        (status = 200, description = "Some of them, and where to go on", body = LetterList),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): App,
    _: Operator,
    Query(query): Query<LetterQuery>,
) -> Result<Response, Problem> {
    operators::with_parts(&desk, move |parts| letters::list(&*parts.store, &query)).await
}

/// The causes that dead letters have in common, most frequent first
#[utoipa::path(
    get,
    path = "/v1/dlq/causes",
    tag = "dlq",
    responses(
        (status = 200, description = "All of them", body = Vec<CauseView>),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn causes(State(desk): App, _: Operator) -> Result<Response, Problem> {
    operators::with_parts(&desk, |parts| letters::causes(&*parts.store)).await
}

/// One dead letter
#[utoipa::path(
    get,
    path = "/v1/dlq/{letter}",
    tag = "dlq",
    params(("letter" = u64, Path, description = "Its number")),
    responses(
        (status = 200, description = "Why, how often it was tried, and its receipt", body = LetterView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such letter", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(desk): App,
    _: Operator,
    Path(letter): Path<String>,
) -> Result<Response, Problem> {
    let letter = number(&letter)?;
    let unknown = StoreError::NotFound {
        what: "the dead letter",
    };
    operators::with_parts(&desk, move |parts| {
        letters::one(&*parts.store, letter)?.ok_or(unknown)
    })
    .await
}

/// One quarantined action, for review
#[utoipa::path(
    get,
    path = "/v1/quarantine/{letter}",
    tag = "dlq",
    params(("letter" = u64, Path, description = "The number of its dead letter")),
    responses(
        (status = 200, description = "What it holds, without secrets and personal data, and why it was stopped", body = ReviewView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "Nothing of this number is quarantined", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn review(
    State(desk): App,
    _: Operator,
    Path(letter): Path<String>,
) -> Result<Response, Problem> {
    let letter = number(&letter)?;
    let unknown = StoreError::NotFound {
        what: "the dead letter",
    };
    operators::with_parts(&desk, move |parts| {
        letters::review(&*parts.store, letter)?.ok_or(unknown)
    })
    .await
}

/// Put a dead letter on the bus again
///
/// With its action id and key; it passes every gate again. Done again, it does nothing.
#[utoipa::path(
    post,
    path = "/v1/dlq/{letter}/requeue",
    tag = "dlq",
    params(("letter" = u64, Path, description = "Its number")),
    responses(
        (status = 200, description = "What became of it", body = LetterNow),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn requeue(
    State(desk): App,
    Operator(peer): Operator,
    Path(letter): Path<String>,
) -> Result<Response, Problem> {
    let letter = number(&letter)?;
    let letters = vec![letter];
    one_of(&desk, &peer, Operation::RequeueLetters { letters }).await
}

/// Forget a dead letter; its receipt stays
#[utoipa::path(
    post,
    path = "/v1/dlq/{letter}/purge",
    tag = "dlq",
    params(("letter" = u64, Path, description = "Its number")),
    responses(
        (status = 200, description = "What became of it", body = LetterNow),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn purge(
    State(desk): App,
    Operator(peer): Operator,
    Path(letter): Path<String>,
) -> Result<Response, Problem> {
    let letter = number(&letter)?;
    let letters = vec![letter];
    one_of(&desk, &peer, Operation::DropLetters { letters }).await
}

/// Does it about one letter, and says what became of that one.
async fn one_of(desk: &Desk, peer: &Peer, operation: Operation) -> Result<Response, Problem> {
    let told = operations::done(desk, peer, operation).await?;
    let now = told.letters.into_iter().next();
    let gone = || Problem::of(Kind::LetterUnknown, "there is no such dead letter");
    Ok(json(StatusCode::OK, &now.ok_or_else(gone)?))
}

fn number(letter: &str) -> Result<u64, Problem> {
    letter
        .parse()
        .map_err(|_| Problem::of(Kind::LetterUnknown, "letters have numbers"))
}
