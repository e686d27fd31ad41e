//! Sessions and organisations: list and show them; create, end and delete sessions.

use axum::body::Body;
use axum::extract::State;
use effectd_actors::services::sessions::{self, Session};
use effectd_actors::{OrgRole, PrincipalRole};
use effectd_bus::StoreError;
use effectd_contracts::{Operation, SessionId};

use super::operations::{ChangeQuery, change};
use crate::app::{App, AppState};
use crate::extract::{After, Json, Path, Query, Reply};
use crate::limits::LIST_DEFAULT;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::operations::OperationView;
use crate::views::sessions::{MemberView, OrgView, SessionBody, SessionList, SessionView};

/// Sessions
///
/// Operators see all, admins of an organisation those of it, others those that they created. Oldest first.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions",
    params(After),
    responses((status = 200, description = "A page of them", body = SessionList), Problems<503>))]
pub(crate) async fn list(
    State(app): AppState,
    peer: Peer,
    Query(After { after }): Query<After>,
) -> Reply<SessionList> {
    let list = move |app: &App| {
        let (mut found, next) = sessions::list(app.store(), after.as_deref(), LIST_DEFAULT)?;
        let (policy, by) = (app.services().policy(), peer.decider());
        found.retain(|session| session.is_visible_to(&policy, &by, PrincipalRole::Look));
        Ok(SessionList { sessions: found.into_iter().map(SessionView::from).collect(), next })
    };
    app.blocking(list).await.map(Json)
}

/// Create a session
///
/// A member of the space's organisation may, for a subject that it may act for. The answer's `id` is the session's. Actions name it
/// as `session` when they are submitted.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions",
    params(ChangeQuery),
    request_body(content = SessionBody, content_type = "application/json"),
    responses((status = 200, description = "It is created, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn create(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<ChangeQuery>,
    body: Body,
) -> Reply<OperationView> {
    let (body, _share): (SessionBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let SessionBody { space_id, subject_id, title, unattended, connections } = body;
    let policy = app.services().policy();
    let org = policy.org_of(&space_id).unwrap_or_default();
    let may_act = || policy.speaks_for(&peer.principal, &subject_id);
    if !app.may_operate(&peer, PrincipalRole::Operate) && !may_act() {
        return Err(Problem::of(Kind::OperatorsOnly, format!("you may not act for {subject_id}")));
    }
    app.check_org(&peer, org, OrgRole::Member)?;
    let session_id = SessionId::fresh();
    let id = (!query.preview).then(|| session_id.to_string());
    let operation =
        Operation::CreateSession { session_id, space_id, subject_id, title, unattended, connections };
    let Json(view) = change(&app, &peer, operation, query).await?;
    Ok(Json(OperationView { id, ..view }))
}

/// One session
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The session's id")),
    responses((status = 200, description = "The session", body = SessionView), Problems<404>))]
pub(crate) async fn show(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<SessionView> {
    Ok(Json(find(&app, &peer, &id, PrincipalRole::Look)?.into()))
}

/// End a session
///
/// It takes no new action. What has begun, or waits for an approval, continues. Repeating this is harmless.
#[utoipa::path(post, path = "/v1/sessions/{id}/end", tag = "sessions",
    params(("id" = String, Path, description = "The session's id"), ChangeQuery),
    responses((status = 200, description = "It has ended, or would end", body = OperationView), Problems<400, 404>))]
pub(crate) async fn end(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<ChangeQuery>,
) -> Reply<OperationView> {
    let Session { session_id, .. } = find(&app, &peer, &id, PrincipalRole::Operate)?;
    change(&app, &peer, Operation::EndSession { session_id }, query).await
}

/// Delete a session
///
/// It is no longer listed, its pending approvals are denied, its grants revoked and the results of its actions destroyed. The
/// receipts stay. If the daemon dies meanwhile, its next start finishes this.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The session's id"), ChangeQuery),
    responses((status = 200, description = "It is deleted, or would be", body = OperationView), Problems<400, 404>))]
pub(crate) async fn delete(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<ChangeQuery>,
) -> Reply<OperationView> {
    let Session { session_id, .. } = find(&app, &peer, &id, PrincipalRole::Operate)?;
    change(&app, &peer, Operation::DeleteSession { session_id }, query).await
}

/// The session that a request names. One that is unknown and one of somebody else look the same.
fn find(app: &App, peer: &Peer, id: &str, part: PrincipalRole) -> Result<Session, Problem> {
    visible(app, peer, id, part)?.ok_or_else(|| Problem::of(Kind::NotFound, "you have no session of this id"))
}

pub(super) fn visible(
    app: &App,
    peer: &Peer,
    id: &str,
    part: PrincipalRole,
) -> Result<Option<Session>, StoreError> {
    let (policy, by) = (app.services().policy(), peer.decider());
    let found = sessions::session(app.store(), id)?;
    Ok(found.filter(|session| session.is_visible_to(&policy, &by, part)))
}

/// Organisations, with their spaces and members
///
/// They are in the policy's files. Operators see all, others those that they belong to.
#[utoipa::path(get, path = "/v1/orgs", tag = "orgs", operation_id = "list",
    responses((status = 200, description = "All of them, by name", body = Vec<OrgView>), Problems<503>))]
pub(crate) async fn orgs(State(app): AppState, peer: Peer) -> Reply<Vec<OrgView>> {
    let policy = app.services().policy();
    let visible = policy.orgs().into_iter().filter(|org| app.sees_org(&peer, org, OrgRole::Member));
    let view = |org: &str| OrgView {
        org: org.to_owned(),
        spaces: policy
            .spaces()
            .filter(|space| policy.org_of(space) == Some(org))
            .map(ToString::to_string)
            .collect(),
        members: policy
            .members(org)
            .map(|(name, role)| MemberView { principal: name.to_owned(), role: role.as_str().to_owned() })
            .collect(),
    };
    Ok(Json(visible.map(view).collect()))
}
