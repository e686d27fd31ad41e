//! The policy: show, check, reload, change, and explain its decisions.

use axum::extract::State;
use effectd_actors::PrincipalRole;
use effectd_actors::approvals::rejudge::{self, Changed, Rejudged};
use effectd_actors::operator::operations::Terms;
use effectd_bus::Cursor;
use effectd_contracts::Operation;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::IntoParams;

use super::operations::{self, ChangeQuery, OperationQuery, Why, checked_reason};
use super::receipts::{self, ListQuery, OrderWord};
use super::sessions;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Payload, Query, Reply, Viewer, integer};
use crate::host::Host;
use crate::limits::{LIST_DEFAULT, LIST_MAX, REPLAY_MAX, REPLAY_TIME_MAX};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::policy::{
    Explanation, PolicyChange, PolicyFiles, PolicyView, ReplayView, ShadowFiles, ShadowView,
};

/// The policy in force
#[utoipa::path(get, path = "/v1/policy", tag = "policy",
    responses((status = 200, description = "The policy", body = PolicyView), Problems<403>))]
pub(crate) async fn show(State(app): AppState, _: Viewer) -> Reply<PolicyView> {
    app.blocking(|app| Ok(app.host.policy())).await.map(Json)
}

/// The files of the policy in force, and the changes beside them
#[utoipa::path(get, path = "/v1/policy/files", tag = "policy",
    responses((status = 200, description = "The files", body = PolicyFiles), Problems<403>))]
pub(crate) async fn files(State(app): AppState, _: Viewer) -> Reply<PolicyFiles> {
    app.blocking(|app| app.host.policy_files()).await.map(Json)
}

/// Check the policy's files, with the changes beside them and their examples
///
/// Nothing is put in force.
#[utoipa::path(post, path = "/v1/policy/check", tag = "policy",
    responses((status = 200, description = "The files are valid", body = PolicyView), Problems<403, 422>))]
pub(crate) async fn check(State(app): AppState, _: Viewer) -> Reply<PolicyView> {
    app.blocking(|app| app.host.check_policy()).await.map(Json)
}

/// Reload the policy's files and put them in force
///
/// If they are not valid, the policy in force stays. The present folders become the roots of the spaces; `/v1/policy/check` shows
/// beforehand which have changed. Leaves a receipt if it changes anything.
#[utoipa::path(post, path = "/v1/policy/reload", tag = "policy",
    params(Why),
    responses((status = 200, description = "The files are in force", body = PolicyView), Problems<400, 403, 422>))]
pub(crate) async fn reload(State(app): AppState, by: Operator, Query(why): Query<Why>) -> Reply<PolicyView> {
    let terms = Terms { reason: checked_reason(why.reason)?, ..Terms::default() };
    record(&app, &by, (Operation::ReloadPolicy {}, terms), |host| host.take_over_policy()).await
}

/// Make a change beside the policy's files, and put it in force
///
/// The answer comes when the change is durable and in force, with the receipt that names the operator. While the files are not
/// valid, every change is refused. Examples test the files alone, so that none of them can prevent a revocation. Pending approvals
/// are judged again: those that need no person because of the change start, and those that are denied now end. An operator who is
/// neither root nor the daemon's user also needs the role `admin`; a token changes modes, bands and consents of its own organisation
/// only, and lists, which count for all, while the policy has no other organisation.
#[utoipa::path(post, path = "/v1/policy/changes", tag = "policy",
    params(OperationQuery),
    request_body(content = PolicyChange, content_type = "application/json"),
    responses((status = 200, description = "The policy with the change; for a preview, the policy that it would become", body = PolicyView), Problems<400, 403, 404, 422>))]
pub(crate) async fn change(
    State(app): AppState,
    by: Operator,
    Query(query): Query<OperationQuery>,
    body: Payload,
) -> Reply<PolicyView> {
    by.check_administers(&app)?;
    let (change, _share): (PolicyChange, _) = app.json_body(body, Kind::ChangeInvalid).await?;
    check_reaches(&app, &by.0, &change)?;
    let preview = query.preview;
    let terms = query.terms(&app, &by.0)?;
    let until = terms.until;
    if preview {
        return app.blocking(move |app| app.host.try_policy(change, until)).await.map(Json);
    }
    let (before, operation) = (app.services().policy(), (change.operation(), terms));
    let Json(view) = record(&app, &by, operation, move |host| host.change_policy(change, until)).await?;
    let Rejudged { released, ended, .. } = rejudge::after(app.services(), Changed::Policy(before)).await;
    Ok(Json(PolicyView { released, ended, ..view }))
}

/// Fails if a token of another organisation changes what belongs to this one.
fn check_reaches(app: &App, peer: &Peer, change: &PolicyChange) -> Result<(), Problem> {
    let policy = app.services().policy();
    let org = match change {
        PolicyChange::SetOrgMode { org, .. } => Some(org.as_str()),
        PolicyChange::SetBand { space, .. }
        | PolicyChange::GrantConsent { space, .. }
        | PolicyChange::RevokeConsent { space, .. } => policy.org_of(space),
        // They are of the whole state.
        PolicyChange::SetEntry { .. } | PolicyChange::Clear {} => {
            let only = policy.orgs();
            let is_alone = peer.claims().is_none_or(|claims| only == [claims.org.as_str()]);
            let why = "this counts for all organisations of the policy; use the daemon's socket";
            return is_alone.then_some(()).ok_or_else(|| Problem::of(Kind::TokenForbidden, why));
        }
    };
    let unknown = || Problem::of(Kind::NotFound, "your organisation has no such space, or has another name");
    peer.decider().reaches(org).then_some(()).ok_or_else(unknown)
}

/// Changes the policy, and leaves a receipt if the policy or a root differs afterwards.
async fn record(
    app: &App,
    by: &Operator,
    (operation, Terms { reason, until, .. }): (Operation, Terms),
    change: impl FnOnce(&dyn Host) -> Result<PolicyView, Problem> + Send + 'static,
) -> Reply<PolicyView> {
    let done = operations::by_host(app, by, (operation, reason), move |host| {
        let before = host.policy().digest;
        let view = change(host)?;
        let mut details = details(&before, &view);
        if let (Some(details), Some(until)) = (&mut details, until) {
            details.insert("until".to_owned(), json!(until));
        }
        Ok((view, details))
    });
    let (view, receipt_id) = done.await?;
    Ok(Json(PolicyView { receipt_id, ..view }))
}

/// What the receipt of a change says; `None` for the same policy with the same roots.
fn details(before: &str, after: &PolicyView) -> Option<Map<String, Value>> {
    let mut details = json!({ "policy_before": before, "policy_after": after.digest });
    if !after.roots.is_empty() {
        details["roots"] = json!(after.roots);
    }
    let changed = before != after.digest || !after.roots.is_empty();
    details.as_object().filter(|_| changed).cloned()
}

/// The candidate policy, and what it has judged
#[utoipa::path(get, path = "/v1/policy/shadow", tag = "policy",
    responses((status = 200, description = "The candidate", body = ShadowView), Problems<403>))]
pub(crate) async fn shadow(State(app): AppState, _: Viewer) -> Reply<ShadowView> {
    Ok(Json(ShadowView::of(app.services().shadow.report())))
}

/// Let a candidate policy judge each live decision beside the policy in force
///
/// It decides nothing, and replaces an earlier candidate. Its files are checked like those of the policy. It stays until it is
/// ended, also after a restart.
#[utoipa::path(post, path = "/v1/policy/shadow", tag = "policy",
    params(ChangeQuery),
    request_body(content = ShadowFiles, content_type = "application/json"),
    responses((status = 200, description = "The candidate; for a preview, the one that would be started", body = ShadowView), Problems<400, 403, 422>))]
pub(crate) async fn start_shadow(
    State(app): AppState,
    by: Operator,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<ShadowView> {
    let body = app.optional_json_body(body, REQUEST_BYTES_MAX, Kind::ChangeInvalid);
    let (ShadowFiles { files }, _share) = body.await?;
    let reason = checked_reason(query.reason)?;
    if query.preview {
        let digest = app.blocking(move |app| app.host.check_shadow(files)).await?;
        return Ok(Json(ShadowView { on: true, digest: Some(digest), ..ShadowView::default() }));
    }
    let start = move |host: &dyn Host| {
        let started = host.start_shadow(files)?;
        let details = started.map(|digest| Map::from_iter([("candidate".to_owned(), json!(digest))]));
        Ok(((), details))
    };
    let ((), receipt_id) = operations::by_host(&app, &by, (Operation::StartShadow {}, reason), start).await?;
    Ok(Json(ShadowView { receipt_id, ..ShadowView::of(app.services().shadow.report()) }))
}

/// End the candidate policy
///
/// The answer has its last figures.
#[utoipa::path(delete, path = "/v1/policy/shadow", tag = "policy",
    params(ChangeQuery),
    responses((status = 200, description = "The candidate that has ended, or would end", body = ShadowView), Problems<400, 403>))]
pub(crate) async fn stop_shadow(
    State(app): AppState,
    by: Operator,
    Query(query): Query<ChangeQuery>,
) -> Reply<ShadowView> {
    let reason = checked_reason(query.reason)?;
    if query.preview {
        return Ok(Json(ShadowView::of(app.services().shadow.report())));
    }
    let stop = |host: &dyn Host| {
        let ended = ShadowView::of(host.stop_shadow()?);
        let details =
            json!({ "candidate": ended.digest, "decisions": ended.decisions, "flips": ended.flips });
        let details = details.as_object().filter(|_| ended.on).cloned();
        Ok((ended, details))
    };
    let (ended, receipt_id) =
        operations::by_host(&app, &by, (Operation::StopShadow {}, reason), stop).await?;
    Ok(Json(ShadowView { on: false, receipt_id, ..ended }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReplayQuery {
    /// A filter of the receipts, as for `/v1/receipts`
    q: Option<String>,
    /// The oldest first, if it is left out
    #[param(inline)]
    order: Option<OrderWord>,
    /// Where the answer before ended
    #[serde(default, deserialize_with = "integer")]
    after: Option<u64>,
    /// At most this many decisions
    #[serde(default, deserialize_with = "integer")]
    limit: Option<u64>,
}

/// Decide past actions again, under the policy that these files would be
///
/// Nothing changes. The files are checked like those of the policy, with the changes beside them. The decisions are those of the receipts
/// that you may read. An answer ends early after enough changes, or enough time: pass `next` as `after` for what follows.
#[utoipa::path(post, path = "/v1/policy/replay", tag = "policy",
    params(ReplayQuery),
    request_body(content = ShadowFiles, content_type = "application/json"),
    responses((status = 200, description = "How many decisions stay, and those that do not", body = ReplayView), Problems<400, 403, 422>))]
pub(crate) async fn replay(
    State(app): AppState,
    Viewer { peer, .. }: Viewer,
    Query(query): Query<ReplayQuery>,
    body: Payload,
) -> Reply<ReplayView> {
    let body = app.optional_json_body(body, REQUEST_BYTES_MAX, Kind::ChangeInvalid);
    let (ShadowFiles { files }, _share) = body.await?;
    let ReplayQuery { q, order, after, limit } = query;
    let asked = ListQuery::new(q, order, after);
    let filter = asked.filter(app.services().clock.now())?;
    let most = limit.unwrap_or(REPLAY_MAX).clamp(1, REPLAY_MAX);
    let replay = move |app: &App| {
        let (clock, org) = (&app.services().clock, peer.claims().map(|claims| claims.org.as_str()));
        let (mut query, mut begun, mut read) = (asked.to_query(&filter), None, 0);
        let mut next = Some(query.cursor);
        let mut page = |found: &ReplayView| {
            let now = clock.monotonic();
            let is_enough = found.total >= most
                || read >= REPLAY_MAX
                || found.changes.len() + LIST_DEFAULT > LIST_MAX
                || now.since(*begun.get_or_insert(now)) > REPLAY_TIME_MAX;
            let Some(cursor) = next.filter(|_| !is_enough) else { return Ok(None) };
            let left = usize::try_from(most - found.total).unwrap_or(LIST_DEFAULT);
            (query.cursor, query.limit) = (cursor, left.min(LIST_DEFAULT));
            read += query.limit as u64;
            let page = receipts::visible(app, &peer, filter.clone(), query.clone(), false)?;
            next = page.next.map(|at| Some(Cursor(at)));
            Ok(Some(page.receipts))
        };
        let found = app.host.replay(files, org, &mut page)?;
        Ok(ReplayView { next: next.flatten().map(|Cursor(at)| at), ..found })
    };
    app.blocking(replay).await.map(Json)
}

/// Explain how the policy would decide about a request, gate by gate
///
/// Nothing runs and nothing is recorded. You are the principal of the request.
#[utoipa::path(post, path = "/v1/policy/explain", tag = "policy",
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses((status = 200, description = "Every gate, what it saw, and what has to change", body = Explanation), Problems<400, 404>))]
pub(crate) async fn explain(State(app): AppState, peer: Peer, body: Payload) -> Reply<Explanation> {
    let (request, _, _share) = app.action_request(body).await?;
    let (policy, by) = (app.services().policy(), peer.decider());
    if !policy.may_operate_in(&by, PrincipalRole::Look, policy.org_of(&request.space_id)) {
        sessions::check_reach(&app, &peer, &request)?;
    }
    let explain = move |app: &App| app.host.explain_request(&request, &peer.principal);
    app.blocking(explain).await.map(Json)
}

/// Explain how the policy would decide now, from the facts in a receipt
#[utoipa::path(get, path = "/v1/receipts/{id}/explanation", tag = "receipts", operation_id = "explain",
    responses((status = 200, description = "Every gate, what it saw, and what has to change", body = Explanation), Problems<404>))]
pub(crate) async fn explain_receipt(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Reply<Explanation> {
    let receipt = receipts::find(&app, &peer, id)?;
    app.blocking(move |app| app.host.explain_receipt(&receipt)).await.map(Json)
}
