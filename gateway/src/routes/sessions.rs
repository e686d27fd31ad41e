//! Sessions and organisations: list and show them; create, end and delete sessions.

use axum::extract::State;
use effectd_actors::services::sessions;
use effectd_actors::{OrgRole, PrincipalRole};
use effectd_bus::StoreError;
use effectd_contracts::{
    ActionId, ActionRequest, Operation, Origin, Phase, Session, SessionId, SpaceId, SubjectId,
};

use super::operations::{self, ChangeOf, ChangeQuery};
use super::session::write_guide;
use crate::app::{App, AppState};
use crate::extract::{After, Json, Path, Payload, Query, Reply};
use crate::limits::LIST_DEFAULT;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::operations::OperationView;
use crate::views::sessions::{MemberView, OrgView, SessionBody, SessionList};

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
        let (policy, by) = (app.services().policy(), peer.decider());
        let sees = |session: &Session| sessions::is_visible(session, &policy, &by, PrincipalRole::Look);
        let (sessions, next) = sessions::list(app.store(), after.as_deref(), LIST_DEFAULT, sees)?;
        Ok(SessionList { sessions, next })
    };
    app.blocking(list).await.map(Json)
}

/// Create a session
///
/// A member of the space's organisation may, for a subject that it may act for. The answer's `id` is the session's. Actions name it
/// as `session` when they are submitted. Who may act for the subject also gets the session's first token, as `token`, this once. If the
/// policy permits it, `.proliferate/actions-guide.md` in the space tells the session's agent what it may ask for.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions",
    params(ChangeQuery),
    request_body(content = SessionBody, content_type = "application/json"),
    responses((status = 200, description = "It is created, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn create(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (body, _share): (SessionBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let SessionBody { space_id, subject_id, title, unattended, connections } = body;
    let policy = app.services().policy();
    let org = policy.org_of(&space_id).unwrap_or_default();
    let may_act = policy.speaks_for(&peer.principal, &subject_id);
    if !app.may_operate(&peer, PrincipalRole::Operate) && !may_act {
        return Err(Problem::of(Kind::OperatorsOnly, format!("you may not act for {subject_id}")));
    }
    app.check_org(&peer, org, OrgRole::Member)?;
    let session_id = SessionId::fresh();
    let id = session_id.to_string();
    let operation =
        Operation::CreateSession { session_id, space_id, subject_id, title, unattended, connections };
    let Json(view) = operations::create(&app, &peer, (operation, id), query).await?;
    if let Some(id) = &view.id {
        write_guide(&app, id).await;
    }
    let token = view.token.filter(|_| may_act || peer.operator);
    Ok(Json(OperationView { token, ..view }))
}

/// One session
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions",
    responses((status = 200, description = "The session", body = ref("#/components/schemas/Session"), content_type = "application/json"), Problems<404>))]
pub(crate) async fn show(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<Session> {
    find(&app, &peer, &id, PrincipalRole::Look).map(Json)
}

/// End a session
///
/// It takes no new action, and its tokens end. What has begun, or waits for an approval, continues. Repeating this is harmless.
#[utoipa::path(post, path = "/v1/sessions/{id}/end", tag = "sessions",
    params(ChangeQuery),
    responses((status = 200, description = "It has ended, or would end", body = OperationView), Problems<400, 404>))]
pub(crate) async fn end(change: ChangeOf) -> Reply<OperationView> {
    let Session { session_id, .. } = find(&change.app, &change.peer, &change.id, PrincipalRole::Operate)?;
    change.by(Operation::EndSession { session_id }).await
}

/// Delete a session
///
/// It is no longer listed, its pending approvals are denied, its grants and tokens revoked, and the dead letters, results, pre-images
/// and artifacts of its actions destroyed. The receipts stay. If the daemon dies meanwhile, its next start finishes this.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(ChangeQuery),
    responses((status = 200, description = "It is deleted, or would be", body = OperationView), Problems<400, 404>))]
pub(crate) async fn delete(change: ChangeOf) -> Reply<OperationView> {
    let Session { session_id, .. } = find(&change.app, &change.peer, &change.id, PrincipalRole::Operate)?;
    change.by(Operation::DeleteSession { session_id }).await
}

/// The session that a request names. One that is unknown and one of somebody else look the same.
fn find(app: &App, peer: &Peer, id: &str, part: PrincipalRole) -> Result<Session, Problem> {
    visible(app, peer, id, part)?.ok_or_else(|| Problem::of(Kind::NotFound, "you have no session of this id"))
}

fn visible(app: &App, peer: &Peer, id: &str, part: PrincipalRole) -> Result<Option<Session>, StoreError> {
    let (policy, by) = (app.services().policy(), peer.decider());
    let found = sessions::session(app.store(), id)?;
    Ok(found.filter(|session| sessions::is_visible(session, &policy, &by, part)))
}

/// [`check_place`] for a request.
pub(crate) fn check_reach(app: &App, peer: &Peer, request: &ActionRequest) -> Result<(), Problem> {
    let checked = check_place(app, peer, &request.subject_id, &request.space_id);
    checked.map_err(|problem| problem.about(&request.action_id))
}

/// Refuses the account of a token for a subject or space of others, before anything counts or records it. What a sandbox may is its
/// session's.
pub(crate) fn check_place(
    app: &App,
    peer: &Peer,
    subject: &SubjectId,
    space: &SpaceId,
) -> Result<(), Problem> {
    let Some(claims) = peer.claims().filter(|claims| claims.session.is_none()) else { return Ok(()) };
    let policy = app.services().policy();
    let is_own =
        policy.org_of(space) == Some(claims.org.as_str()) && policy.speaks_for(&peer.principal, subject);
    let unknown = || Problem::of(Kind::NotFound, "you have no such subject or space");
    is_own.then_some(()).ok_or_else(unknown)
}

/// Where an action comes from that names this session.
pub(crate) fn origin(
    app: &App,
    peer: &Peer,
    session: Option<&str>,
    action: &ActionId,
) -> Result<Origin, Problem> {
    // The token of a sandbox speaks in its own session, and in no other.
    let own = peer.claims().and_then(|claims| claims.session.as_ref());
    let found = match (own, session) {
        (None, None) => return Ok(Origin::Arbiter),
        (None, Some(id)) => visible(app, peer, id, PrincipalRole::Operate)?.map(|session| session.session_id),
        (Some(own), named) => Some(own.clone()).filter(|own| named.is_none_or(|named| named == own.as_str())),
    };
    let refused = || Problem::from(sessions::unknown(Phase::Accept)).about(action);
    Ok(Origin::Session { session_id: found.ok_or_else(refused)? })
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
        spaces: policy.spaces_of(org).map(ToString::to_string).collect(),
        members: policy
            .members(org)
            .map(|(name, role)| MemberView { principal: name.to_owned(), role: role.as_str().to_owned() })
            .collect(),
    };
    Ok(Json(visible.map(view).collect()))
}
