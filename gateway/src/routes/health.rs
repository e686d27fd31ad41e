//! Health and metrics, for supervisors and dashboards.

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use effectd_actors::PrincipalRole;
use effectd_actors::control::switches::{Off, Switches};
use effectd_contracts::ACTION_API;
use prometheus::TextEncoder;

use super::openapi;
use crate::app::{App, AppState};
use crate::extract::{Json, Reply};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::health::Health;

fn health(app: &App) -> Health {
    // `/readyz` reports a store that cannot be read.
    let switches = Switches::new(app.store());
    let pause = switches.paused(app.services().clock.now()).ok().flatten();
    Health {
        status: "ok".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        action_api: ACTION_API.to_owned(),
        backlog: app.health.backlog(),
        paused: pause.is_some(),
        paused_until: pause.and_then(|Off(until)| until),
        paused_reason: pause.and_then(|_| switches.pause_reason().ok().flatten()),
        policy_files_faulty: app.host.policy_files_faulty(),
        jobs: app.host.jobs(),
        store_damage: app.store().damage().map(|damage| damage.to_string()),
        state_id: app.host.state_id().to_owned(),
    }
}

/// Whether the process is alive
///
/// Over TCP and without a token, the answer is only `ok`.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It is", content((Health = "application/json"), (String = "text/plain")))))]
pub(crate) async fn healthz(State(app): AppState) -> Json<Health> {
    Json(health(&app))
}

/// Whether the daemon takes work now
///
/// Not while the store does not answer, its disk is nearly full or read-only, or the daemon is stopping; the problem says which.
/// Accepted actions go on, and readiness returns by itself. With a fault in the policy's files the daemon takes work by an earlier
/// policy, and `policy_files_faulty` says so. With a damaged store it takes work, too, and `store_damage` says what a read has met.
/// While effects are paused, `paused_until` and `paused_reason` say how long and why. `jobs` says how the last backup and check went; a failed one does not stop the work.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "It can", body = Health), Problems<503>))]
pub(crate) async fn readyz(State(app): AppState) -> Reply<Health> {
    match app.readiness.unready() {
        None => Ok(Json(health(&app))),
        Some(refusal) => Err(Problem::of(Kind::NotReady, refusal)),
    }
}

/// All metrics, in Prometheus text format
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "The figures", body = String, content_type = "text/plain"), Problems<403>))]
pub(crate) async fn metrics(
    State(app): AppState,
    peer: Option<Extension<Peer>>,
) -> Result<Response, Problem> {
    // They are of all organisations. Users of this machine, and who reads `telemetry.listen`, have no token.
    if peer.is_some_and(|peer| peer.claims().is_some() && !app.may_operate(&peer, PrincipalRole::Look)) {
        return Err(Problem::of(Kind::OperatorsOnly, "an account needs the role `look` for this"));
    }
    app.metrics.policy_files.set(i64::from(!app.host.policy_files_faulty()));
    for job in app.host.jobs() {
        app.metrics.job_failed.with_label_values(&[job.job.as_str()]).set(i64::from(job.error.is_some()));
        if let Some(done) = job.done_at {
            app.metrics.job_done.with_label_values(&[job.job.as_str()]).set(done.as_second());
        }
    }
    let families = app.host.metrics().gather();
    let text = TextEncoder::new()
        .encode_to_string(&families)
        .map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub(crate) async fn openapi(State(app): AppState) -> Result<Response, Problem> {
    let document = app.blocking(|app| Ok(app.catalogue().openapi(openapi::document))).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response())
}
