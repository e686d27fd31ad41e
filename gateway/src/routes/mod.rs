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
use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tracing::Instrument;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::desk::Desk;
use crate::headers::Handed;
use crate::openapi;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

fn described() -> OpenApiRouter<Arc<Desk>> {
    OpenApiRouter::with_openapi(openapi::door())
        .routes(routes!(actions::submit))
        .routes(routes!(actions::show, actions::cancel))
        .routes(routes!(actions::wait))
        .routes(routes!(preview::preview))
        .routes(routes!(receipts::list))
        .routes(routes!(receipts::show))
        .routes(routes!(policy::explain_receipt))
        .routes(routes!(log::proof))
        .routes(routes!(receipts::amendments, receipts::amend))
        .routes(routes!(log::show))
        .routes(routes!(log::sign))
        .routes(routes!(log::heads))
        .routes(routes!(log::keys, log::rotate))
        .routes(routes!(log::entries))
        .routes(routes!(log::frontier))
        .routes(routes!(artifacts::get))
        .routes(routes!(quarantine::list))
        .routes(routes!(quarantine::quarantine))
        .routes(routes!(quarantine::release))
        .routes(routes!(notifications::list))
        .routes(routes!(notifications::show))
        .routes(routes!(tools::list))
        .routes(routes!(tools::show))
        .routes(routes!(policy::show))
        .routes(routes!(policy::check))
        .routes(routes!(policy::reload))
        .routes(routes!(policy::change))
        .routes(routes!(policy::explain))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::show))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::preview_edited))
        .routes(routes!(approvals::deny))
        .routes(routes!(approvals::preview_always))
        .routes(routes!(grants::list, grants::create))
        .routes(routes!(grants::request))
        .routes(routes!(grants::preview_request))
        .routes(routes!(grants::activate))
        .routes(routes!(grants::revoke))
        .routes(routes!(breakers::list))
        .routes(routes!(breakers::show))
        .routes(routes!(breakers::trip))
        .routes(routes!(breakers::reset))
        .routes(routes!(dlq::list))
        .routes(routes!(dlq::causes))
        .routes(routes!(dlq::show))
        .routes(routes!(dlq::review))
        .routes(routes!(dlq::requeue))
        .routes(routes!(dlq::purge))
        .routes(routes!(operations::perform))
        .routes(routes!(store::stats))
        .routes(routes!(store::events))
        .routes(routes!(store::journal))
        .routes(routes!(store::retain))
        .routes(routes!(store::erase))
        .routes(routes!(groups::list))
        .routes(routes!(groups::show, groups::seek))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(health::openapi))
}

pub(crate) fn descriptions() -> OpenApi {
    described().split_for_parts().1
}

pub(crate) fn all(desk: Arc<Desk>) -> Router {
    let (routes, _) = described().split_for_parts();
    routes
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(desk.clone(), observe))
        .with_state(desk)
}

/// The routes of a connection for which there is no room: health is told, and nothing else.
pub(crate) fn health_only(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(async || no_room())
        .method_not_allowed_fallback(async || no_room())
        .layer(middleware::from_fn_with_state(desk.clone(), observe))
        .with_state(desk)
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
    let clock = desk.parts().clock.clone();
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
