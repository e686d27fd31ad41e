//! Pre-approvals: who has which, ask for one, make one, take it back.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::held::grants::{self, NewGrant};
use effectd_actors::held::{DecideError, look};
use effectd_actors::{Grant, Parts};
use effectd_contracts::{GrantId, json as strict};

use super::approvals::{PageQuery, decider};
use super::json;
use crate::desk::{Desk, unavailable};
use crate::extract::{App, Path, Query};
use crate::limits::{CHANGE_BYTES_MAX, LIST_DEFAULT};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::views::approvals::{GrantBody, GrantList, GrantView, GrantWould, undecided};

/// Grants that are asked for, in force, or over since not long ago
///
/// Approvers and operators see everything, others what they asked for. The oldest first; to go on, pass `next` as `after`.
#[utoipa::path(
    get,
    path = "/v1/grants",
    tag = "grants",
    params(("after" = Option<String>, Query, description = "Go on after this one")),
    responses(
        (status = 200, description = "Some of them", body = GrantList),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): App,
    peer: Peer,
    Query(query): Query<PageQuery>,
) -> Result<Response, Problem> {
    let parts = desk.parts();
    let by = decider(&peer);
    let page = grants::list(&*parts.store, query.after.as_deref(), LIST_DEFAULT);
    let (mut grants, next) = page.map_err(|error| unavailable(&error))?;
    grants.retain(|grant| look::may_see(parts, &by, &grant.created_by));
    let now = parts.clock.now();
    let grants = grants.iter().map(|grant| GrantView::of(grant, now)).collect();
    Ok(json(StatusCode::OK, &GrantList { grants, next }))
}

/// Make a grant
///
/// One tool for one session is an approver's to grant, everything wider an administrator's.
#[utoipa::path(
    post,
    path = "/v1/grants",
    tag = "grants",
    request_body(content = GrantBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is in force", body = GrantView),
        (status = 400, description = "It is no grant", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "Not by you; ask for it instead", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create(State(desk): App, peer: Peer, body: Body) -> Result<Response, Problem> {
    let new = read(&desk, body).await?;
    let parts = desk.parts();
    let made = grants::create(parts, new, &decider(&peer)).await;
    told(parts, made)
}

/// Ask for a grant
///
/// It stands in for nobody until somebody who may has put it in force; from somebody who may, it is in force at once.
#[utoipa::path(
    post,
    path = "/v1/grants/requests",
    tag = "grants",
    request_body(content = GrantBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is asked for, or in force", body = GrantView),
        (status = 400, description = "It is no grant", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "Too many of yours wait already", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn request(State(desk): App, peer: Peer, body: Body) -> Result<Response, Problem> {
    let new = read(&desk, body).await?;
    let parts = desk.parts();
    let made = grants::request(parts, new, &decider(&peer)).await;
    told(parts, made)
}

/// Say whether asking for a grant would put it in force at once
///
/// Nothing is made: whoever may make a grant is told so before asking does.
#[utoipa::path(
    post,
    path = "/v1/grants/requests/preview",
    tag = "grants",
    request_body(content = GrantBody, content_type = "application/json"),
    responses(
        (status = 200, description = "Whether it would be in force", body = GrantWould),
        (status = 400, description = "It is no grant", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn preview_request(State(desk): App, peer: Peer, body: Body) -> Result<Response, Problem> {
    let new = read(&desk, body).await?;
    let in_force = grants::would_be_in_force(desk.parts(), &new, &decider(&peer));
    Ok(json(StatusCode::OK, &GrantWould { in_force }))
}

/// Put a grant in force that somebody asked for
#[utoipa::path(
    post,
    path = "/v1/grants/{id}/activate",
    tag = "grants",
    params(("id" = String, Path, description = "The grant's id")),
    responses(
        (status = 200, description = "It is in force", body = GrantView),
        (status = 403, description = "Not by you", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such grant", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn activate(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = grant_id(id)?;
    let parts = desk.parts();
    let made = grants::activate(parts, &id, &decider(&peer)).await;
    told(parts, made)
}

/// Take a grant back
///
/// From the answer on it stands in for nobody. Taking it back again is harmless.
#[utoipa::path(
    post,
    path = "/v1/grants/{id}/revoke",
    tag = "grants",
    params(("id" = String, Path, description = "The grant's id")),
    responses(
        (status = 200, description = "It is taken back", body = GrantView),
        (status = 404, description = "No such grant of yours", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn revoke(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = grant_id(id)?;
    let parts = desk.parts();
    let gone = grants::revoke(parts, &id, &decider(&peer)).await;
    told(parts, gone)
}

fn told(parts: &Parts, made: Result<Grant, DecideError>) -> Result<Response, Problem> {
    let grant = made.map_err(|error| undecided(&error, Kind::GrantUnknown))?;
    Ok(json(StatusCode::OK, &GrantView::of(&grant, parts.clock.now())))
}

async fn read(desk: &Desk, body: Body) -> Result<NewGrant, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let body: GrantBody = strict::parse(&body.bytes, CHANGE_BYTES_MAX)
        .map_err(|error| Problem::of(Kind::DecisionInvalid, error.to_string()))?;
    Ok(new(body, desk.parts()))
}

/// A grant to be made, as the pipeline takes it.
fn new(body: GrantBody, parts: &Parts) -> NewGrant {
    let now = parts.clock.now();
    let end = |lasts| now.checked_add(Duration::from_secs(lasts)).unwrap_or(now);
    NewGrant {
        org: body.org,
        session: body.session,
        tool: body.tool,
        calls_max: body.calls_max,
        expires_at: body.lasts_s.map(end),
        reason: body.reason,
    }
}

fn grant_id(id: String) -> Result<GrantId, Problem> {
    GrantId::new(id).map_err(|_| Problem::of(Kind::GrantUnknown, "there is no such grant"))
}
