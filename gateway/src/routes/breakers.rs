//! Circuit breakers, for operators: which tools are left alone for now, and a hand on the switch.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::control::Breakers;
use effectd_actors::control::breakers::View;
use effectd_contracts::Operation;
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::text::is_unprintable;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{json, operations};
use crate::desk::Desk;
use crate::extract::{App, Operator, Path};
use crate::problem::{Kind, Problem};

/// How one circuit breaker stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BreakerView {
    /// Its key: a tool's id, or what requests name in `qos.circuit_breaker_key`.
    pub key: String,
    /// `closed`, `open`, `half_open` or `releasing`.
    pub state: String,
    /// Why it is open: `failures`, `error_share`, `probe` or `operator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// When it lets a probe through; not there if it is not open, or a person must close it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Calls within the window.
    pub calls: u32,
    /// Those of them that failed.
    pub failures: u32,
}

impl From<View> for BreakerView {
    fn from(view: View) -> Self {
        Self {
            key: view.key,
            state: view.state.as_str().to_owned(),
            cause: view.cause.map(|cause| cause.as_str().to_owned()),
            retry_after_ms: view.retry_after_ms,
            calls: view.calls,
            failures: view.failures,
        }
    }
}

/// All circuit breakers that have been used or opened
#[utoipa::path(
    get,
    path = "/v1/breakers",
    tag = "breakers",
    responses(
        (status = 200, description = "All of them, by key", body = Vec<BreakerView>),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(State(desk): App, _: Operator) -> Result<Response, Problem> {
    let views = breakers(&desk).list().into_iter().map(BreakerView::from);
    Ok(json(StatusCode::OK, &views.collect::<Vec<_>>()))
}

/// One circuit breaker
#[utoipa::path(
    get,
    path = "/v1/breakers/{key}",
    tag = "breakers",
    params(("key" = String, Path, description = "Its key, percent-encoded")),
    responses(
        (status = 200, description = "How it stands", body = BreakerView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No breaker can have this key", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(desk): App,
    _: Operator,
    Path(key): Path<String>,
) -> Result<Response, Problem> {
    let key = checked(key)?;
    Ok(shown(&desk, &key))
}

/// What no call went through yet is closed.
fn shown(desk: &Desk, key: &str) -> Response {
    let view = breakers(desk)
        .show_one(key)
        .unwrap_or_else(|| View::untouched(key));
    json(StatusCode::OK, &BreakerView::from(view))
}

/// Open a circuit breaker, until it is reset
#[utoipa::path(
    post,
    path = "/v1/breakers/{key}/trip",
    tag = "breakers",
    params(("key" = String, Path, description = "Its key, percent-encoded")),
    responses(
        (status = 200, description = "It is open, and that is on disk", body = BreakerView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 502, description = "It is open, but that is not on disk", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn trip(
    State(desk): App,
    Operator(peer): Operator,
    Path(key): Path<String>,
) -> Result<Response, Problem> {
    let key = checked(key)?;
    operations::done(&desk, &peer, Operation::TripBreaker { key: key.clone() }).await?;
    Ok(shown(&desk, &key))
}

/// Close a circuit breaker and forget what it counted
#[utoipa::path(
    post,
    path = "/v1/breakers/{key}/reset",
    tag = "breakers",
    params(("key" = String, Path, description = "Its key, percent-encoded")),
    responses(
        (status = 200, description = "It is closed, and that is on disk", body = BreakerView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No breaker can have this key", body = Problem, content_type = "application/problem+json"),
        (status = 502, description = "It is closed, but that is not on disk", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn reset(
    State(desk): App,
    Operator(peer): Operator,
    Path(key): Path<String>,
) -> Result<Response, Problem> {
    let key = checked(key)?;
    operations::done(&desk, &peer, Operation::ResetBreaker { key: key.clone() }).await?;
    Ok(shown(&desk, &key))
}

fn breakers(desk: &Desk) -> &Breakers {
    &desk.parts().control.breakers
}

/// A key that a request could have.
fn checked(key: String) -> Result<String, Problem> {
    if key.is_empty() || key.len() > ID_BYTES_MAX || key.chars().any(is_unprintable) {
        return Err(Problem::of(Kind::BreakerUnknown, "no breaker can have this key"));
    }
    Ok(key)
}
