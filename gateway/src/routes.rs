//! The routes. Those under `/v1` stay, and keep their meaning.

mod actions;
mod approvals;
mod artifacts;
mod breakers;
mod connections;
mod dead_letters;
mod grants;
mod groups;
mod health;
mod kinds;
mod log;
mod notifications;
pub mod openapi;
mod operations;
mod policy;
mod preview;
mod quarantine;
mod receipts;
mod session;
mod sessions;
mod store;
mod stream;
mod tokens;
mod tools;
mod tree;
mod whoami;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tracing::Instrument;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, AppState};
use crate::headers::AnswerTrace;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

fn described() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::header())
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
        .routes(routes!(policy::files))
        .routes(routes!(policy::check))
        .routes(routes!(policy::reload))
        .routes(routes!(policy::change))
        .routes(routes!(policy::shadow, policy::start_shadow, policy::stop_shadow))
        .routes(routes!(policy::explain))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::show))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::preview_edited))
        .routes(routes!(approvals::deny))
        .routes(routes!(approvals::preview_always))
        .routes(routes!(approvals::preview_grant))
        .routes(routes!(grants::list, grants::create))
        .routes(routes!(grants::request))
        .routes(routes!(grants::preview_request))
        .routes(routes!(grants::activate))
        .routes(routes!(grants::revoke))
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::show, sessions::delete))
        .routes(routes!(sessions::end))
        .routes(routes!(sessions::orgs))
        .routes(routes!(session::available))
        .routes(routes!(session::guide))
        .routes(routes!(session::invoke))
        .routes(routes!(session::invocations))
        .routes(routes!(session::invocation))
        .routes(routes!(session::approve))
        .routes(routes!(session::deny))
        .routes(routes!(session::grants, session::request_grant))
        .routes(routes!(session::inbox))
        .routes(routes!(stream::events))
        .routes(routes!(connections::list, connections::create))
        .routes(routes!(connections::delete))
        .routes(routes!(connections::enable))
        .routes(routes!(connections::disable))
        .routes(routes!(connections::secrets))
        .routes(routes!(connections::set, connections::unset))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(tokens::rotate))
        .routes(routes!(breakers::list))
        .routes(routes!(breakers::show))
        .routes(routes!(breakers::trip))
        .routes(routes!(breakers::reset))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::causes))
        .routes(routes!(dead_letters::show))
        .routes(routes!(dead_letters::review))
        .routes(routes!(dead_letters::requeue))
        .routes(routes!(dead_letters::purge))
        .routes(routes!(operations::perform))
        .routes(routes!(store::stats))
        .routes(routes!(store::events))
        .routes(routes!(store::journal))
        .routes(routes!(store::retain))
        .routes(routes!(store::erase))
        .routes(routes!(groups::list))
        .routes(routes!(groups::show, groups::seek))
        .routes(routes!(tree::show))
        .routes(routes!(whoami::show))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(health::openapi))
}

fn descriptions() -> OpenApi {
    described().split_for_parts().1
}

pub(crate) fn all(app: Arc<App>) -> Router {
    let (routes, _) = described().split_for_parts();
    routes
        .layer(middleware::from_fn(kinds::check))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// The routes of a connection that may only ask for health.
pub(crate) fn health_only(app: Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(async || too_many_connections())
        .method_not_allowed_fallback(async || too_many_connections())
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// The routes at the address for monitoring.
pub(crate) fn scraped(app: Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .fallback(async || Problem::of(Kind::NoSuchPath, NOT_SCRAPED))
        .method_not_allowed_fallback(async || Problem::of(Kind::MethodNotAllowed, NOT_SCRAPED))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

const NOT_SCRAPED: &str =
    "only GET of /metrics, /healthz and /readyz works here; everything else is at the daemon's unix socket";

pub(crate) fn too_many_connections() -> Problem {
    Problem::of(Kind::Busy, "there are too many connections; try again shortly")
}

async fn no_such_path() -> Problem {
    Problem::of(Kind::NoSuchPath, "there is no such path; /openapi.json lists all paths")
}

async fn no_such_method() -> Problem {
    Problem::of(Kind::MethodNotAllowed, "this path does not support this method; see /openapi.json")
}

/// Adds the trace context to an answer, for its client and for the log.
fn traced(trace: AnswerTrace, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    trace.write_to(response.headers_mut());
    response.extensions_mut().insert(trace);
    response
}

/// Counts, times and logs every request.
async fn observe(State(app): AppState, request: Request<Body>, next: Next) -> Response {
    let clock = app.services().clock.clone();
    let begun = clock.monotonic();
    let method = request.method().clone();
    // Known paths only: a label for each path that clients invent would grow without bound.
    let route =
        request.extensions().get::<MatchedPath>().map_or("none".to_owned(), |path| path.as_str().to_owned());
    let principal = request.extensions().get::<Peer>().map(|peer| peer.principal.clone());
    let principal = principal.as_ref().map_or("", |principal| principal.as_str());
    let span = tracing::info_span!("http", %method, route, principal);
    let response = next.run(request).instrument(span.clone()).await;
    let took = clock.monotonic().since(begun);
    let status = response.status();
    app.metrics.requests.with_label_values(&[route.as_str(), status.as_str()]).inc();
    app.metrics.duration.with_label_values(&[route.as_str()]).observe(took.as_secs_f64());
    let trace = response.extensions().get::<AnswerTrace>();
    let trace_id = trace.map(|trace| trace.trace.as_str());
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(parent: &span, trace_id, status = status.as_u16(), duration_ms, "request");
    response
}
