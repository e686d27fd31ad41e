//! Grants: list, create, request, activate and revoke them.

use std::time::Duration;

use axum::extract::State;
use effectd_actors::Grant;
use effectd_actors::approvals::grants::{self, NewGrant};
use effectd_actors::approvals::rejudge::{self, Changed};
use effectd_actors::approvals::{DecideError, view};
use effectd_contracts::GrantId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::app::{App, AppState};
use crate::extract::{Json, Path, Payload, Query, Reply};
use crate::limits::LIST_DEFAULT;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::grants::{GrantBody, GrantList, GrantView, GrantWord, GrantWould};

/// The query of a list of grants.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// The `next` of the page before.
    after: Option<String>,
    /// Only those in this state
    #[param(inline)]
    state: Option<GrantWord>,
}

/// Grants: requested, active, and recently ended
///
/// Approvers and operators see all, others those that they requested. Oldest first; for the next page, pass `next` as `after`.
#[utoipa::path(get, path = "/v1/grants", tag = "grants",
    params(ListQuery),
    responses((status = 200, description = "A page of them", body = GrantList), Problems<400, 503>))]
pub(crate) async fn list(
    State(app): AppState,
    peer: Peer,
    Query(ListQuery { after, state }): Query<ListQuery>,
) -> Reply<GrantList> {
    let list = move |app: &App| {
        let (policy, by, now) = (app.services().policy(), peer.decider(), app.services().clock.now());
        let sees = |grant: &Grant| {
            state.is_none_or(|state| state == GrantWord::of(grant, now))
                && view::may_see(&policy, &by, &grant.created_by, Some(&grant.org))
        };
        let (grants, next) = grants::list(app.store(), after.as_deref(), LIST_DEFAULT, sees)?;
        Ok(GrantList { grants: grants.iter().map(|grant| GrantView::of(grant, now)).collect(), next })
    };
    app.blocking(list).await.map(Json)
}

/// Create a grant
///
/// An approver may grant one tool for one session, an administrator anything wider. Pending approvals that it covers start, as many
/// as it has calls.
#[utoipa::path(post, path = "/v1/grants", tag = "grants",
    request_body(content = GrantBody, content_type = "application/json"),
    responses((status = 200, description = "It is active", body = GrantView), Problems<400, 403>))]
pub(crate) async fn create(State(app): AppState, peer: Peer, body: Payload) -> Reply<GrantView> {
    let new = new_grant(&app, body).await?;
    check_member(&app, &peer, &new.org)?;
    released(&app, grants::create(app.services(), new, &peer.decider()).await).await
}

/// Request a grant
///
/// It has no effect until somebody who may create it activates it; requested by such a person, it is active at once.
#[utoipa::path(post, path = "/v1/grants/requests", tag = "grants",
    request_body(content = GrantBody, content_type = "application/json"),
    responses((status = 200, description = "It is requested, or active", body = GrantView), Problems<400, 429>))]
pub(crate) async fn request(State(app): AppState, peer: Peer, body: Payload) -> Reply<GrantView> {
    let new = new_grant(&app, body).await?;
    check_member(&app, &peer, &new.org)?;
    released(&app, grants::request(app.services(), new, &peer.decider()).await).await
}

/// Whether a request for a grant would be active at once
///
/// Nothing is created.
#[utoipa::path(post, path = "/v1/grants/requests/preview", tag = "grants",
    request_body(content = GrantBody, content_type = "application/json"),
    responses((status = 200, description = "Whether it would be active", body = GrantWould), Problems<400>))]
pub(crate) async fn preview_request(State(app): AppState, peer: Peer, body: Payload) -> Reply<GrantWould> {
    let new = new_grant(&app, body).await?;
    check_member(&app, &peer, &new.org)?;
    let (services, by) = (app.services(), peer.decider());
    let in_force = grants::would_be_in_force(services, &new, &by)?;
    let _place = app.blocking_place().await?;
    let released = if in_force { grants::would_release(services, new, &by)? } else { 0 };
    Ok(Json(GrantWould { in_force, released }))
}

/// Activate a grant that somebody requested
///
/// Repeating this is harmless.
#[utoipa::path(post, path = "/v1/grants/{id}/activate", tag = "grants",
    responses((status = 200, description = "It is active", body = GrantView), Problems<403, 404, 410>))]
pub(crate) async fn activate(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<GrantView> {
    let id = grant_id(id)?;
    released(&app, grants::activate(app.services(), &id, &peer.decider()).await).await
}

/// Revoke a grant
///
/// From the answer on it has no effect. Repeating this is harmless.
#[utoipa::path(post, path = "/v1/grants/{id}/revoke", tag = "grants",
    responses((status = 200, description = "It is revoked", body = GrantView), Problems<404>))]
pub(crate) async fn revoke(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<GrantView> {
    let id = grant_id(id)?;
    view(&app, grants::revoke(app.services(), &id, &peer.decider()).await)
}

/// [`view`] of a grant, after an active one has released what waits for an approval and needs none now.
async fn released(app: &App, changed: Result<Grant, DecideError>) -> Reply<GrantView> {
    if let Ok(grant) = &changed {
        rejudge::after(app.services(), Changed::Grant(Box::new(grant.clone()))).await;
    }
    view(app, changed)
}

fn view(app: &App, changed: Result<Grant, DecideError>) -> Reply<GrantView> {
    let grant = changed.map_err(|error| match error {
        DecideError::Unknown => Problem::of(Kind::GrantUnknown, "there is no such grant"),
        DecideError::Expired(end) => {
            Problem::of(Kind::GrantEnded, format!("the grant ended at {end}; request another one"))
        }
        other @ (DecideError::Already(_)
        | DecideError::Forbidden(_)
        | DecideError::Changed
        | DecideError::Outdated
        | DecideError::Invalid(_)
        | DecideError::Store(_)) => other.into(),
    })?;
    Ok(Json(GrantView::of(&grant, app.services().clock.now())))
}

/// Refuses the account of a token that has no part in the organisation: it learns nothing of the sessions there.
fn check_member(app: &App, peer: &Peer, org: &str) -> Result<(), Problem> {
    let (policy, by) = (app.services().policy(), peer.decider());
    let fits = peer.claims().is_none()
        || policy.role_in(&by, org).is_some()
        || policy.may_view_approvals(&by, Some(org));
    let why = || Problem::of(Kind::DecisionInvalid, "you belong to no organisation of this name");
    fits.then_some(()).ok_or_else(why)
}

async fn new_grant(app: &App, body: Payload) -> Result<NewGrant, Problem> {
    let (body, _share): (GrantBody, _) = app.json_body(body, Kind::DecisionInvalid).await?;
    let now = app.services().clock.now();
    let end = |lasts| now.checked_add(Duration::from_secs(lasts)).unwrap_or(now);
    Ok(NewGrant {
        org: body.org,
        session: body.session,
        tool: body.tool,
        command: body.command,
        calls_max: body.calls_max,
        expires_at: body.lasts_s.map(end),
        reason: body.reason,
    })
}

fn grant_id(id: String) -> Result<GrantId, Problem> {
    GrantId::new(id).map_err(|_| Problem::of(Kind::GrantUnknown, "there is no such grant"))
}
