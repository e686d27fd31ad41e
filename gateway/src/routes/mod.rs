//! The paths of the door. `/v1` is a promise: what is there stays, and what it says keeps its meaning.

pub(crate) mod actions;
pub(crate) mod approvals;
pub(crate) mod artifacts;
pub(crate) mod breakers;
pub(crate) mod dlq;
pub(crate) mod grants;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod log;
pub(crate) mod notifications;
pub(crate) mod operations;
mod operators;
pub(crate) mod policy;
pub(crate) mod preview;
pub(crate) mod quarantine;
pub(crate) mod receipts;
pub(crate) mod store;
pub(crate) mod tools;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tracing::Instrument;

use crate::desk::Desk;
use crate::headers::Handed;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// All routes.
pub(crate) fn all(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/v1/actions", post(actions::submit))
        .route("/v1/actions/{id}", get(actions::show).delete(actions::cancel))
        .route("/v1/actions/{id}/wait", get(actions::wait))
        .route("/v1/preview", post(preview::preview))
        .route("/v1/receipts", get(receipts::list))
        .route("/v1/receipts/{id}", get(receipts::show))
        .route("/v1/receipts/{id}/explanation", get(policy::explain_receipt))
        .route("/v1/receipts/{id}/proof", get(log::proof))
        .route(
            "/v1/receipts/{id}/amendments",
            get(receipts::amendments).post(receipts::amend),
        )
        .route("/v1/log", get(log::show))
        .route("/v1/log/head", post(log::sign))
        .route("/v1/log/heads", get(log::heads))
        .route("/v1/log/keys", get(log::keys).post(log::rotate))
        .route("/v1/log/entries", get(log::entries))
        .route("/v1/log/frontier", get(log::frontier))
        .route("/v1/receipts/{id}/artifacts/{artifact}", get(artifacts::get))
        .route("/v1/artifacts/quarantined", get(quarantine::list))
        .route("/v1/artifacts/{id}/quarantine", post(quarantine::quarantine))
        .route("/v1/artifacts/{id}/release", post(quarantine::release))
        .route("/v1/notifications", get(notifications::list))
        .route("/v1/notifications/{id}", get(notifications::show))
        .route("/v1/tools", get(tools::list))
        .route("/v1/tools/{id}", get(tools::show))
        .route("/v1/policy", get(policy::show))
        .route("/v1/policy/check", post(policy::check))
        .route("/v1/policy/reload", post(policy::reload))
        .route("/v1/policy/changes", post(policy::change))
        .route("/v1/policy/explain", post(policy::explain))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}", get(approvals::show))
        .route("/v1/approvals/{id}/approve", post(approvals::approve))
        .route("/v1/approvals/{id}/preview", post(approvals::preview_edited))
        .route("/v1/approvals/{id}/deny", post(approvals::deny))
        .route("/v1/approvals/{id}/always", get(approvals::preview_always))
        .route("/v1/grants", get(grants::list).post(grants::create))
        .route("/v1/grants/requests", post(grants::request))
        .route("/v1/grants/requests/preview", post(grants::preview_request))
        .route("/v1/grants/{id}/activate", post(grants::activate))
        .route("/v1/grants/{id}/revoke", post(grants::revoke))
        .route("/v1/breakers", get(breakers::list))
        .route("/v1/breakers/{key}", get(breakers::show))
        .route("/v1/breakers/{key}/trip", post(breakers::trip))
        .route("/v1/breakers/{key}/reset", post(breakers::reset))
        .route("/v1/dlq", get(dlq::list))
        .route("/v1/dlq/causes", get(dlq::causes))
        .route("/v1/dlq/{letter}", get(dlq::show))
        .route("/v1/quarantine/{letter}", get(dlq::review))
        .route("/v1/dlq/{letter}/requeue", post(dlq::requeue))
        .route("/v1/dlq/{letter}/purge", post(dlq::purge))
        .route("/v1/operations", post(operations::perform))
        .route("/v1/store", get(store::stats))
        .route("/v1/store/topics/{topic}", get(store::events))
        .route("/v1/store/retain", post(store::retain))
        .route("/v1/store/erase", post(store::erase))
        .route("/v1/store/topics/{topic}/groups", get(groups::list))
        .route(
            "/v1/store/topics/{topic}/groups/{group}",
            get(groups::show).post(groups::seek),
        )
        .merge(health_paths())
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(health::openapi))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(desk.clone(), observe))
        .with_state(desk)
}

/// The routes of a connection for which there is no room: health is told, and nothing else.
pub(crate) fn health_only(desk: Arc<Desk>) -> Router {
    health_paths()
        .fallback(async || no_room())
        .method_not_allowed_fallback(async || no_room())
        .layer(middleware::from_fn_with_state(desk.clone(), observe))
        .with_state(desk)
}

fn health_paths() -> Router<Arc<Desk>> {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
}

/// There are as many connections as there may be.
pub(crate) fn no_room() -> Problem {
    Problem::of(Kind::Busy, "there are too many connections; try again shortly")
}

async fn no_such_path() -> Problem {
    Problem::of(
        Kind::NoSuchPath,
        "there is nothing here; /openapi.json lists what there is",
    )
}

async fn no_such_method() -> Problem {
    Problem::of(
        Kind::MethodNotAllowed,
        "this path is not for this method; see /openapi.json",
    )
}

/// A query that cannot be read.
pub(crate) fn query_invalid(error: &QueryRejection) -> Problem {
    Problem::of(Kind::QueryInvalid, error.body_text())
}

/// A value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => Problem::of(Kind::Internal, error.to_string()).into_response(),
    }
}

/// The answer, with the trace that it belongs to, for whoever goes on with it and for the log.
pub(crate) fn traced(trace: Handed, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    trace.tell(response.headers_mut());
    response.extensions_mut().insert(trace);
    response
}

/// Counts and times every request, and leaves one line of each in the log.
async fn observe(State(desk): State<Arc<Desk>>, request: Request<Body>, next: Next) -> Response {
    let clock = desk.pipeline().parts().clock.clone();
    let begun = clock.monotonic();
    let method = request.method().clone();
    // Only paths that we know: a label for each path that somebody invents would grow for ever.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none".to_owned(), |path| path.as_str().to_owned());
    let principal = request
        .extensions()
        .get::<Peer>()
        .map(|peer| peer.principal.clone());
    let principal = principal.as_ref().map_or("", |principal| principal.as_str());
    let span = tracing::info_span!("http", %method, route, principal);
    let response = next.run(request).instrument(span.clone()).await;
    let took = clock.monotonic().since(begun);
    let status = response.status();
    desk.metrics
        .requests
        .with_label_values(&[route.as_str(), status.as_str()])
        .inc();
    desk.metrics
        .duration
        .with_label_values(&[route.as_str()])
        .observe(took.as_secs_f64());
    let handed = response.extensions().get::<Handed>();
    let trace_id = handed.map(|handed| handed.trace.as_str());
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(parent: &span, trace_id, status = status.as_u16(), duration_ms, "request");
    response
}
