//! The routes. Those under `/v1` stay, and keep their meaning.

pub(crate) mod actions;
mod approvals;
pub(crate) mod artifacts;
mod automations;
mod batches;
mod breakers;
mod budgets;
mod connections;
mod connectors;
mod console;
mod dead_letters;
mod grants;
mod groups;
mod health;
mod kinds;
mod log;
mod notifications;
pub mod openapi;
mod operations;
pub(crate) mod plans;
mod plugins;
mod policy;
mod preview;
mod quarantine;
pub(crate) mod receipts;
mod session;
pub(crate) mod sessions;
mod slack;
mod store;
mod stream;
mod tokens;
mod tools;
mod tree;
mod webhooks;
mod whoami;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use effectd_contracts::TokenKind::{self, Sandbox, Service, User};
use tracing::Instrument;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use crate::app::{App, AppState, HOLDER};
use crate::headers::AnswerTrace;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::slots::Holder;

/// The handlers of these modules, each with the kinds of tokens that may use it.
macro_rules! by_kind {
    ($($kinds:tt { $($module:ident: $($handler:ident),+;)+ })+) => {
        vec![$($($((&$kinds as &[TokenKind], routes!($module::$handler)),)+)+)+]
    };
}

/// All routes, and the kinds of tokens that may use each, whatever the roles of their accounts.
fn table() -> Vec<(&'static [TokenKind], UtoipaMethodRouter<Arc<App>>)> {
    by_kind! {
        // What is public here, and a caller's own actions.
        [Sandbox, User, Service] {
            actions: cancel, show, submit, wait;
            artifacts: get;
            batches: run, show;
            health: healthz, openapi, readyz;
            log: frontier, heads, keys, proof, show;
            plans: run, show;
            policy: explain_receipt;
            receipts: amendments, list, show;
            stream: events;
            tools: list, show;
            whoami: show;
        }
        // A session, for its agent and for people.
        [Sandbox, User] {
            session: available, grants, guide, invocation, invocations;
        }
        [Sandbox] {
            session: invoke, request_grant;
        }
        // What accounts look at, and ask beforehand.
        [User, Service] {
            approvals: list, show;
            automations: check, definition, list, render, show;
            breakers: list, show;
            budgets: list;
            connections: list;
            connectors: list, show;
            dead_letters: causes, list;
            grants: list;
            groups: list, seek, show;
            health: metrics;
            policy: explain, replay, show;
            preview: preview;
            quarantine: list;
            session: inbox;
            sessions: list, orgs, show;
            store: events, stats;
            tree: show;
            webhooks: list;
        }
        // What people decide, manage and operate.
        [User] {
            approvals: approve, deny, preview_always, preview_edited, preview_grant;
            automations: activate, archive, delete, pause, replace, save;
            breakers: reset, trip;
            connections: create, delete, disable, enable, replace, secrets, set, test, unset;
            connectors: harvest, overlay, review, validate;
            dead_letters: purge, requeue, review, show;
            grants: activate, create, preview_request, request, revoke;
            log: sign;
            notifications: list, show;
            operations: perform;
            policy: change;
            quarantine: quarantine, release;
            receipts: amend;
            session: approve, deny;
            sessions: create, delete, end;
            webhooks: create, delete, disable, enable;
        }
        // What stays with the users of this machine, whatever the policy says.
        [] {
            console: link;
            log: entries, rotate;
            plugins: add, list, remove, show;
            policy: check, files, reload, shadow, start_shadow, stop_shadow;
            slack: users;
            store: erase, journal, retain;
            tokens: create, list, revoke, rotate;
        }
    }
}

fn described() -> OpenApiRouter<Arc<App>> {
    let none = OpenApiRouter::with_openapi(openapi::header());
    table().into_iter().fold(none, |all, (kinds, (schemas, paths, handlers))| {
        let checked = handlers.route_layer(middleware::from_fn_with_state(kinds, kinds::check));
        all.routes((schemas, paths, checked))
    })
}

fn descriptions() -> OpenApi {
    described().into_openapi()
}

/// All routes that are described, and `more` that speak a protocol of their own and are for every kind of token.
pub(crate) fn all(app: Arc<App>, more: Router<Arc<App>>) -> Router {
    Router::from(described())
        .merge(more)
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

/// A request that answers another one in this process.
#[derive(Clone)]
pub(crate) struct Inner;

/// Counts, times and logs every request.
async fn observe(State(app): AppState, request: Request<Body>, next: Next) -> Response {
    let clock = app.services().clock.clone();
    let begun = clock.monotonic();
    let method = request.method().clone();
    // Known paths only: a label for each path that clients invent would grow without bound.
    let route =
        request.extensions().get::<MatchedPath>().map_or("none".to_owned(), |path| path.as_str().to_owned());
    let is_inner = request.extensions().get::<Inner>().is_some();
    let peer = request.extensions().get::<Peer>().cloned();
    let principal = peer.as_ref().map_or("", |peer| peer.principal.as_str());
    let span = tracing::info_span!("http", %method, route, principal);
    // A stranger has what the guard says.
    let holder = peer.as_ref().map(Peer::holder).or_else(|| request.extensions().get::<Holder>().cloned());
    let mut response = HOLDER.scope(holder, next.run(request)).instrument(span.clone()).await;
    if let Some(peer) = &peer {
        response = app.holding(peer, response).await;
    }
    // What a page of the console asks is part of its request.
    if is_inner {
        return response;
    }
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
