//! What waits for people: look at it, say yes, say no.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::held::decide::{self, Standing};
use effectd_actors::held::{Approve, Decided, How, edit, entries, look};
use effectd_actors::{Answer, Decider};
use effectd_contracts::{ApprovalId, Mode, json as strict, limits::REQUEST_BYTES_MAX};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::json;
use crate::desk::{Desk, unavailable};
use crate::extract::{App, Path, Query};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, GrantView, HowWord,
    PreviewView, StandingView, undecided,
};
use crate::views::{ActionView, PolicyChange};

/// What may stand behind a list's `?`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    pub(crate) after: Option<String>,
    pub(crate) wait_ms: Option<u64>,
}

/// What waits for people
///
/// Approvers and operators see everything, others what they asked for. The oldest first; to go on, pass `next` as `after`.
#[utoipa::path(
    get,
    path = "/v1/approvals",
    tag = "approvals",
    params(("after" = Option<String>, Query, description = "Go on after this one")),
    responses(
        (status = 200, description = "Some of them", body = ApprovalList),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): App,
    peer: Peer,
    Query(query): Query<PageQuery>,
) -> Result<Response, Problem> {
    let _turn = desk.turn().await?;
    let parts = desk.parts();
    let by = decider(&peer);
    let page = entries::holds(&*parts.store, query.after.as_deref());
    let (mut holds, next) = page.map_err(|error| unavailable(&error))?;
    let now = parts.clock.now();
    holds.retain(|hold| hold.value.is_open(now) && look::may_see(parts, &by, &hold.value.decision.principal));
    let mut approvals = ApprovalView::all(parts, &holds);
    if !look::may_read(parts, &by) {
        approvals.iter_mut().for_each(ApprovalView::leave_texts_out);
    }
    Ok(json(StatusCode::OK, &ApprovalList { approvals, next }))
}

/// One question to a person, with all that it is decided by
#[utoipa::path(
    get,
    path = "/v1/approvals/{id}",
    tag = "approvals",
    params(("id" = String, Path, description = "Its handle")),
    responses(
        (status = 200, description = "How it stands", body = ApprovalView),
        (status = 404, description = "No such question for you", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, peer: Peer, Path(id): Path<String>) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    Ok(json(StatusCode::OK, &find(&desk, &peer, &id)?))
}

/// A question, if this peer may see it.
fn find(desk: &Desk, peer: &Peer, id: &ApprovalId) -> Result<ApprovalView, Problem> {
    let parts = desk.parts();
    let by = decider(peer);
    let hold = entries::hold(&*parts.store, id).map_err(|error| unavailable(&error))?;
    if let Some(hold) = hold.filter(|hold| look::may_see(parts, &by, &hold.value.decision.principal)) {
        let mut view = ApprovalView::of(parts, &hold.value);
        if !look::may_read(parts, &by) {
            view.leave_texts_out();
        }
        return Ok(view);
    }
    let past = entries::past(&*parts.store, id).map_err(|error| unavailable(&error))?;
    let past = past.filter(|past| look::may_see(parts, &by, &past.principal));
    past.map(|past| ApprovalView::past(id.as_str(), &past))
        .ok_or_else(unknown)
}

/// Say yes
///
/// Whoever is first decides; the others are told who was. The answer comes with the receipt, or after `wait_ms` without.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/approve",
    tag = "approvals",
    params(
        ("id" = String, Path, description = "Its handle"),
        ("wait_ms" = Option<u64>, Query, description = "How long to wait for the end of the action"),
    ),
    request_body(content = ApproveBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is approved, and has ended", body = DecisionView),
        (status = 202, description = "It is approved, and on its way", body = DecisionView),
        (status = 400, description = "This cannot be decided so", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "Not by you", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such question", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It was decided before, or is not what you saw", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "Nobody decided in time", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn approve(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
    body: Body,
) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    let body: ApproveBody = read(&desk, body).await?;
    let by = decider(&peer);
    let parts = desk.parts();
    let always = match body.how {
        HowWord::Always => Some(mode(standing(&desk, &peer, &id)?)),
        HowWord::Once | HowWord::Grant => None,
    };
    let mut wish = wish(body);
    let decided = match always {
        None => decide::approve(parts, &id, &by, wish).await,
        Some(change) => {
            let host = desk.host.clone();
            wish.with = Some(blocking(move || host.prepare_policy(change)).await?);
            let decided = decide::approve(parts, &id, &by, wish).await;
            if decided.is_ok() {
                let host = desk.host.clone();
                blocking(move || host.reload_policy()).await.map_err(|mut problem| {
                    problem.detail = format!(
                        "approved, and the mode is on disk; it is in force when the files are in order: {}",
                        problem.detail
                    );
                    problem
                })?;
            }
            decided
        }
    };
    let decided = decided.map_err(|error| undecided(&error, Kind::ApprovalUnknown))?;
    answer(&desk, &decided, query.wait_ms).await
}

/// How somebody says yes, as the pipeline takes it.
fn wish(body: ApproveBody) -> Approve {
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
        params: body.params,
        edited_digest: body.edited_digest,
        reason: body.reason,
        with: None,
    }
}

/// The mode that nobody needs to be asked with.
fn mode(standing: Standing) -> PolicyChange {
    PolicyChange::SetOrgMode {
        org: standing.org,
        tool: standing.tool,
        mode: Some(Mode::Allow),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::of(Kind::Internal, error.to_string()))?
}

/// Show what would come of a yes with other parameters
///
/// They are judged like any others, and the tool is tried out with them on a copy. Nothing is decided: say yes with these `params`
/// and with the answer's `digest` as `edited_digest`, and it is to what was shown or to nothing.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/preview",
    tag = "approvals",
    params(("id" = String, Path, description = "Its handle")),
    request_body(content = EditBody, content_type = "application/json"),
    responses(
        (status = 200, description = "What would change", body = PreviewView),
        (status = 400, description = "The tool does not take these parameters", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "Not by you, or the policy refuses it", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such question", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It was decided before", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "Nobody decided in time", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn preview_edited(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    let body: EditBody = read(&desk, body).await?;
    let _turn = desk.preview_turn()?;
    let edited = edit::preview_edited(desk.parts(), &id, &decider(&peer), body.params).await;
    let edited = edited.map_err(|error| undecided(&error, Kind::ApprovalUnknown))?;
    Ok(json(StatusCode::OK, &PreviewView::edited(edited)))
}

/// Say no
///
/// The action ends with a receipt that says so, and who waits for it is told.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/deny",
    tag = "approvals",
    params(("id" = String, Path, description = "Its handle")),
    request_body(content = DenyBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is denied, and has its receipt", body = DecisionView),
        (status = 403, description = "Not by you", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such question", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It was decided before", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "Nobody decided in time", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn deny(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    let body: DenyBody = read(&desk, body).await?;
    let decided = decide::deny(desk.parts(), &id, &decider(&peer), body.reason).await;
    let decided = decided.map_err(|error| undecided(&error, Kind::ApprovalUnknown))?;
    answer(&desk, &decided, Some(0)).await
}

/// What a yes to all calls of the tool would change
///
/// Nothing is changed. The answer says whose mode it would be, and how many past questions it would have spared.
#[utoipa::path(
    get,
    path = "/v1/approvals/{id}/always",
    tag = "approvals",
    params(("id" = String, Path, description = "Its handle")),
    responses(
        (status = 200, description = "What would change", body = StandingView),
        (status = 403, description = "It would not help, and this is why", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such question for you", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn preview_always(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = approval_id(id)?;
    let _turn = desk.turn().await?;
    Ok(json(
        StatusCode::OK,
        &StandingView::from(standing(&desk, &peer, &id)?),
    ))
}

fn standing(desk: &Desk, peer: &Peer, id: &ApprovalId) -> Result<Standing, Problem> {
    let parts = desk.parts();
    let by = decider(peer);
    let hold = entries::hold(&*parts.store, id).map_err(|error| unavailable(&error))?;
    let hold = hold.filter(|hold| look::may_see(parts, &by, &hold.value.decision.principal));
    let Some(hold) = hold else {
        // It may have been decided before.
        return Err(match find(desk, peer, id) {
            Ok(_) => Problem::of(Kind::AlreadyDecided, "it was decided before"),
            Err(problem) => problem,
        });
    };
    decide::standing_approval(parts, &hold.value).map_err(|error| undecided(&error, Kind::ApprovalUnknown))
}

impl From<Standing> for StandingView {
    fn from(standing: Standing) -> Self {
        Self {
            org: standing.org,
            tool: standing.tool,
            asked: standing.asked as u64,
            covered: standing.covered as u64,
        }
    }
}

async fn answer(desk: &Desk, decided: &Decided, wait_ms: Option<u64>) -> Result<Response, Problem> {
    let parts = desk.parts();
    let Some(lead) = decided.hold.lead().map(|lead| lead.action_id.clone()) else {
        return Err(unknown());
    };
    let (status, action) = match desk.ended(&lead, desk.wait_time(wait_ms)).await {
        Some(Answer::Done(done)) => {
            // What the tool answered is for whoever asked.
            let done = effectd_actors::Done { result: None, ..done };
            (StatusCode::OK, ActionView::done(lead, &done))
        }
        // It is not what was approved any more: a person is asked again.
        Some(Answer::Held(held)) => (StatusCode::ACCEPTED, ActionView::held(lead, &held)),
        Some(Answer::Refused(_)) | None => (StatusCode::ACCEPTED, ActionView::accepted(lead)),
    };
    let view = DecisionView {
        approval: ApprovalView::of(parts, &decided.hold),
        action,
        grant: decided
            .grant
            .as_ref()
            .map(|grant| GrantView::of(grant, parts.clock.now())),
    };
    Ok(json(status, &view))
}

/// A small body of JSON; none is the default.
pub(crate) async fn read<T: DeserializeOwned + Default>(desk: &Desk, body: Body) -> Result<T, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    if body.bytes.is_empty() {
        return Ok(T::default());
    }
    strict::parse(&body.bytes, REQUEST_BYTES_MAX)
        .map_err(|error| Problem::of(Kind::DecisionInvalid, error.to_string()))
}

pub(crate) fn decider(peer: &Peer) -> Decider {
    Decider {
        principal: peer.principal.clone(),
        operator: peer.operator,
    }
}

fn unknown() -> Problem {
    Problem::of(
        Kind::ApprovalUnknown,
        "no question of this id waits for you; `effectd approvals list` shows those that do",
    )
}

fn approval_id(id: String) -> Result<ApprovalId, Problem> {
    ApprovalId::new(id).map_err(|_| unknown())
}
