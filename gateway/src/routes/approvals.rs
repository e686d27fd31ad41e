//! Approvals: list and show them, approve, edit, deny.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::Answer;
use effectd_actors::approvals::decide::{self, StandingApproval};
use effectd_actors::approvals::rejudge::{self, Changed};
use effectd_actors::approvals::{Approve, DecideError, Decided, Hold, How, edit, repository, view};
use effectd_actors::operator::operations::recorded;
use effectd_actors::services::tokens::Claims;
use effectd_bus::Swap;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ApprovalId, Mode, Operation, TokenKind};
use serde::Deserialize;
use serde_json::json;

use crate::app::{App, AppState};
use crate::body::BodyShare;
use crate::extract::{After, Json, Path, Payload, Query, Reply, integer, json_holding};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::actions::ActionView;
use crate::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, HowWord, PreviewView,
    StandingView,
};
use crate::views::grants::{GrantView, GrantWould};
use crate::views::policy::PolicyChange;

/// The query of an approval.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApproveQuery {
    /// Decide nothing, and refuse what the approval would refuse.
    preview: bool,
    /// How long to wait for the end of the action.
    #[serde(deserialize_with = "integer")]
    wait_ms: Option<u64>,
}

/// Pending approvals
///
/// Approvers and operators see all, others those of their own actions. Those who only look see neither the rationale nor parameters
/// that are not public. Oldest first; for the next page, pass `next` as `after`.
#[utoipa::path(get, path = "/v1/approvals", tag = "approvals",
    params(After),
    responses((status = 200, description = "A page of them", body = ApprovalList), Problems<503>))]
pub(crate) async fn list(
    State(app): AppState,
    peer: Peer,
    Query(After { after }): Query<After>,
) -> Reply<ApprovalList> {
    let list = move |app: &App| {
        let (services, by) = (app.services(), peer.decider());
        let (policy, now) = (services.policy(), services.clock.now());
        let sees = |hold: &Hold| {
            let org = policy.org_of(&hold.decision.request.space_id);
            hold.is_open(now) && view::may_see(&policy, &by, &hold.decision.principal, org)
        };
        // A token sees its organisation, and need not open the approvals of others.
        let of_org = |claims: &Claims| policy.spaces_of(claims.org.as_str()).cloned().collect::<Vec<_>>();
        let spaces = peer.claims().map(of_org);
        let (holds, next) = repository::seen(app.store(), spaces.as_deref(), after.as_deref(), sees)?;
        Ok(ApprovalList { approvals: holds.iter().map(|hold| view(app, &peer, hold)).collect(), next })
    };
    app.blocking(list).await.map(Json)
}

/// An approval. File contents in it are only for those who may decide, and the request's contents not for those who only look.
fn view(app: &App, peer: &Peer, hold: &Hold) -> ApprovalView {
    let (services, by) = (app.services(), peer.decider());
    let policy = services.policy();
    let mut view = ApprovalView::of(services, hold);
    let org = policy.org_of(&hold.decision.request.space_id);
    if !policy.may_view_approvals(&by, org) {
        view.leave_texts_out();
    }
    if !view::may_read(&policy, &by, &hold.decision.principal, org) {
        let registry = services.registry();
        let tool = registry.get(&hold.decision.request.tool_id);
        view.leave_contents_out(|name| tool.is_some_and(|tool| tool.spec().is_public_param(name)));
    }
    view
}

/// One approval, with everything that a person decides by
#[utoipa::path(get, path = "/v1/approvals/{id}", tag = "approvals",
    responses((status = 200, description = "The approval", body = ApprovalView), Problems<404>))]
pub(crate) async fn show(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<ApprovalView> {
    find(&app, &peer, &approval_id(id)?).map(Json)
}

/// A pending or past approval that this peer may see.
fn find(app: &App, peer: &Peer, id: &ApprovalId) -> Result<ApprovalView, Problem> {
    if let Some(hold) = pending(app, peer, id)? {
        return Ok(view(app, peer, &hold));
    }
    let past = repository::past(app.store(), id)?;
    let (policy, by) = (app.services().policy(), peer.decider());
    let past =
        past.filter(|past| view::may_see(&policy, &by, &past.principal, policy.org_of(&past.space_id)));
    past.map(|past| ApprovalView::past(id.as_str(), &past)).ok_or_else(unknown)
}

/// A hold that this peer may see.
fn pending(app: &App, peer: &Peer, id: &ApprovalId) -> Result<Option<Hold>, Problem> {
    let (policy, by) = (app.services().policy(), peer.decider());
    let hold = view::hold(app.services(), &by, id)?.map(|hold| hold.value);
    let sees = |hold: &Hold| {
        let org = policy.org_of(&hold.decision.request.space_id);
        view::may_see(&policy, &by, &hold.decision.principal, org)
    };
    Ok(hold.filter(sees))
}

/// Approve
///
/// The first decision counts; a later one gets a problem that names who decided. The response has the receipt if the action ends
/// within `wait_ms`. A preview decides nothing; `/always` and `/grant` say what else would start.
#[utoipa::path(post, path = "/v1/approvals/{id}/approve", tag = "approvals",
    params(ApproveQuery),
    request_body(content = ApproveBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is approved, and has ended", body = DecisionView),
        (status = 202, description = "It is approved, and in flight; after a preview, it still waits", body = DecisionView),
        Problems<400, 403, 404, 409, 410>,
    )
)]
pub(crate) async fn approve(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<ApproveQuery>,
    body: Payload,
) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    let body = app.optional_json_body(body, REQUEST_BYTES_MAX, Kind::DecisionInvalid);
    let (body, share): (ApproveBody, _) = body.await?;
    let approve = command(body);
    // Over the network, nobody approves what they were not shown.
    let is_user = peer.claims().is_some_and(|claims| claims.kind == TokenKind::User);
    if is_user && approve.digest.is_none() {
        let why = "send the `digest` of the approval as it was shown";
        return Err(Problem::of(Kind::DecisionInvalid, why));
    }
    if query.preview {
        if approve.how == How::Always {
            mode_change(&app, &peer, &id).await?;
        }
        let would = decide::preview_approve(app.services(), &id, &peer.decider(), approve).await?;
        return answer(&app, &peer, &would, query.wait_ms, 0).await;
    }
    let (decided, released) = decided(&app, &peer, &id, approve).await?;
    // The parameters are on disk; a wait for the end of the action does not hold them.
    drop(share);
    answer(&app, &peer, &decided, query.wait_ms, released).await
}

/// Approves, and releases what then needs no approval any more. Also returns how much that is.
pub(super) async fn decided(
    app: &App,
    peer: &Peer,
    id: &ApprovalId,
    approve: Approve,
) -> Result<(Decided, u64), Problem> {
    let (is_always, before) = (approve.how == How::Always, app.services().policy());
    let decided = if is_always {
        always(app, peer, id, approve).await?
    } else {
        decide::approve(app.services(), id, &peer.decider(), approve).await?
    };
    let changed = match &decided.grant {
        Some(grant) => Some(Changed::Grant(Box::new(grant.clone()))),
        None => is_always.then_some(Changed::Policy(before)),
    };
    let mut released = 0;
    if let Some(changed) = changed {
        released = rejudge::after(app.services(), changed).await.released;
    }
    Ok((decided, released))
}

/// Approves and sets the mode in one step. The change of the mode leaves a receipt of its own, which names who approved. It runs in a
/// task of its own, so that it completes even if the client disconnects.
async fn always(app: &App, peer: &Peer, id: &ApprovalId, mut approve: Approve) -> Result<Decided, Problem> {
    let (operation, swap) = mode_change(app, peer, id).await?;
    let reason = approve.reason.clone();
    approve.with = Some(swap);
    let (services, host, by, id) = (app.services().clone(), app.host.clone(), peer.decider(), id.clone());
    let task = tokio::spawn(async move {
        let work = async {
            let before = host.policy().digest;
            let decided = match decide::approve(&services, &id, &by, approve).await {
                Ok(decided) => decided,
                // Perhaps it is decided: the receipt of the change says so.
                Err(DecideError::Store(error)) => return Err(error),
                Err(refused) => return Ok((Err(refused.into()), None)),
            };
            let reloaded = blocking(move || host.reload_policy()).await;
            let after = reloaded.as_ref().map_or("the files are not valid", |view| view.digest.as_str());
            let details = json!({ "approval_id": id, "policy_before": before, "policy_after": after });
            let decided = reloaded.map(|_| decided).map_err(|mut problem| {
                problem.detail = format!(
                    "approved, and the mode is stored; it takes effect when the policy files are valid: {}",
                    problem.detail
                );
                problem
            });
            Ok((decided, details.as_object().cloned()))
        };
        recorded(&services, &operation, (&by.principal, reason), work).await
    });
    let done = task.await.map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    done.map_err(DecideError::Store)?.0
}

/// The change of the mode that an approval of all calls makes.
async fn mode_change(app: &App, peer: &Peer, id: &ApprovalId) -> Result<(Operation, Swap), Problem> {
    let standing = standing(app, peer, id)?;
    let change = PolicyChange::SetOrgMode { org: standing.org, tool: standing.tool, mode: Some(Mode::Allow) };
    let (operation, host) = (change.operation(), app.host.clone());
    Ok((operation, blocking(move || host.prepare_policy(change)).await?))
}

fn command(body: ApproveBody) -> Approve {
    let how = match body.how {
        HowWord::Once => How::Once,
        HowWord::Grant => How::Grant {
            org: body.org,
            calls_max: body.calls_max,
            lasts: body.lasts_s.map(Duration::from_secs),
        },
        HowWord::Always => How::Always,
    };
    Approve {
        how,
        digest: body.digest,
        unseen: false,
        params: body.params,
        edited_digest: body.edited_digest,
        reason: body.reason,
        with: None,
    }
}

/// Like [`App::blocking`], but without a permit: a person's decision must not fail as `overloaded`.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::of(Kind::Internal, error.to_string()))?
}

/// Preview an approval with edited parameters
///
/// The policy decides about them like about any others, and the tool runs with them on a copy. To approve exactly what this shows,
/// send these `params` with the answer's `digest` as `edited_digest`.
#[utoipa::path(post, path = "/v1/approvals/{id}/preview", tag = "approvals",
    request_body(content = EditBody, content_type = "application/json"),
    responses((status = 200, description = "What would change", body = PreviewView), Problems<400, 403, 404, 409, 410, 503>))]
pub(crate) async fn preview_edited(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    body: Payload,
) -> Reply<PreviewView> {
    let id = approval_id(id)?;
    let body = app.optional_json_body(body, REQUEST_BYTES_MAX, Kind::DecisionInvalid);
    let (EditBody { params }, _share) = body.await?;
    let _permit = app.preview_permit()?;
    let edited = edit::preview_edited(app.services(), &id, &peer.decider(), params).await?;
    Ok(Json(PreviewView::edited(edited)))
}

/// Deny
///
/// The action ends with a receipt that says so, which all who wait for it get.
#[utoipa::path(post, path = "/v1/approvals/{id}/deny", tag = "approvals",
    request_body(content = DenyBody, content_type = "application/json"),
    responses((status = 200, description = "It is denied, and has its receipt", body = DecisionView), Problems<403, 404, 409, 410>))]
pub(crate) async fn deny(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    body: Payload,
) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    let body = app.optional_json_body(body, REQUEST_BYTES_MAX, Kind::DecisionInvalid);
    let (DenyBody { reason }, _share) = body.await?;
    let decided = decide::deny(app.services(), &id, &peer.decider(), reason).await?;
    answer(&app, &peer, &decided, Some(0), 0).await
}

/// Preview an approval of all calls of the tool
///
/// Nothing is changed. The answer says whose mode would change, and how many past approvals would not have been needed.
#[utoipa::path(get, path = "/v1/approvals/{id}/always", tag = "approvals",
    responses((status = 200, description = "What would change", body = StandingView), Problems<403, 404, 409>))]
pub(crate) async fn preview_always(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Reply<StandingView> {
    let id = approval_id(id)?;
    let _place = app.blocking_place().await?;
    let mut standing = standing(&app, &peer, &id)?;
    if !app.services().policy().may_view_approvals(&peer.decider(), Some(&standing.org)) {
        // How much of others waits is not for the asker.
        standing.released = 0;
    }
    Ok(Json(standing.into()))
}

fn standing(app: &App, peer: &Peer, id: &ApprovalId) -> Result<StandingApproval, Problem> {
    Ok(decide::standing_approval(app.services(), &undecided(app, peer, id)?)?)
}

fn undecided(app: &App, peer: &Peer, id: &ApprovalId) -> Result<Hold, Problem> {
    let Some(hold) = pending(app, peer, id)? else {
        find(app, peer, id)?;
        return Err(Problem::of(Kind::AlreadyDecided, "it was already decided"));
    };
    Ok(hold)
}

/// The grant that comes with an approval.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GrantQuery {
    /// For the whole organisation, not only the session.
    org: bool,
    #[serde(deserialize_with = "integer")]
    calls_max: Option<u32>,
}

/// Preview an approval with a grant for more calls of the tool
///
/// Nothing is changed. The answer says how many other pending approvals the grant would make unnecessary.
#[utoipa::path(get, path = "/v1/approvals/{id}/grant", tag = "approvals",
    params(GrantQuery),
    responses((status = 200, description = "What would change", body = GrantWould), Problems<400, 403, 404, 409>))]
pub(crate) async fn preview_grant(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(GrantQuery { org, calls_max }): Query<GrantQuery>,
) -> Reply<GrantWould> {
    let id = approval_id(id)?;
    let _place = app.blocking_place().await?;
    let hold = undecided(&app, &peer, &id)?;
    let how = How::Grant { org, calls_max, lasts: None };
    let released = decide::grant_releases(app.services(), &hold, &peer.decider(), &how)?;
    Ok(Json(GrantWould { in_force: true, released }))
}

impl From<StandingApproval> for StandingView {
    fn from(standing: StandingApproval) -> Self {
        Self {
            org: standing.org,
            tool: standing.tool,
            asked: standing.asked as u64,
            covered: standing.covered as u64,
            released: standing.released,
        }
    }
}

async fn answer(
    app: &App,
    peer: &Peer,
    decided: &Decided,
    wait_ms: Option<u64>,
    released: u64,
) -> Result<Response, Problem> {
    let lead = decided.hold.lead().ok_or_else(unknown)?.action_id.clone();
    let mut held = BodyShare::default();
    // What is decided is not refused: while too many requests wait, this one does not.
    let waiting = app.wait_slot(peer);
    let wait = app.wait_time(if waiting.is_ok() { wait_ms } else { Some(0) });
    let (status, action) = match app.ended(&lead, wait).await {
        Some(Answer::Done(done)) => {
            let (done, share) = app.with_result(done, peer).await.map_err(|busy| busy.about(&lead))?;
            held = share;
            (StatusCode::OK, ActionView::done(lead, done))
        }
        // The action is no longer what was approved, so it needs another approval.
        Some(Answer::Held(held)) => (StatusCode::ACCEPTED, ActionView::held(lead, &held)),
        Some(Answer::Refused(_)) | None => (StatusCode::ACCEPTED, ActionView::accepted(lead)),
    };
    let now = app.services().clock.now();
    let view = DecisionView {
        approval: ApprovalView::of(app.services(), &decided.hold),
        action,
        grant: decided.grant.as_ref().map(|grant| GrantView::of(grant, now)),
        released,
    };
    Ok(json_holding(status, &view, held))
}

fn unknown() -> Problem {
    DecideError::Unknown.into()
}

fn approval_id(id: String) -> Result<ApprovalId, Problem> {
    ApprovalId::new(id).map_err(|_| unknown())
}
