//! For supervisors and dashboards.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use effectd_actors::switches::Switches;
use prometheus::TextEncoder;

use super::json;
use crate::desk::Desk;
use crate::extract::App;
use crate::problem::{Kind, Problem};
use crate::views::Health;

fn health(desk: &Desk) -> Health {
    Health {
        status: "ok".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backlog: desk.pulse.backlog(),
        // A store that cannot tell is told by `/readyz`.
        paused: Switches::new(&*desk.parts().store).paused().unwrap_or(false),
    }
}

/// Whether the process is alive
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "It is", body = Health)))]
pub(crate) async fn healthz(State(desk): State<Arc<Desk>>) -> Response {
    json(StatusCode::OK, &health(&desk))
}

/// Whether work can be taken now
///
/// Not while the store does not answer, its disk is nearly full or read-only, or the daemon is stopping; the problem says which.
/// What was accepted goes on, and readiness returns by itself.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    responses(
        (status = 200, description = "It can", body = Health),
        (status = 503, description = "Not now", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn readyz(State(desk): App) -> Result<Response, Problem> {
    match desk.vitals.refusal() {
        None => Ok(json(StatusCode::OK, &health(&desk))),
        Some(refusal) => Err(Problem::of(Kind::NotReady, refusal)),
    }
}

/// Every figure, in Prometheus text
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    responses((status = 200, description = "The figures", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(desk): App) -> Result<Response, Problem> {
    let families = desk.host.metrics().gather();
    let text = TextEncoder::new()
        .encode_to_string(&families)
        .map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

/// This description
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json"))
)]
pub(crate) async fn openapi() -> Response {
    json(StatusCode::OK, &crate::openapi::document())
}
