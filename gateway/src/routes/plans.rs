//! Plans: carry one out, and show what it came to.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use effectd_actors::approvals::repository::hold_of;
use effectd_actors::services::sessions as records;
use effectd_actors::{Done, Held, Incoming};
use effectd_contracts::{ActionId, ActionRequest, Origin, Phase, Plan, PlanResult, SpaceId, SubjectId};
use serde::Deserialize;

use super::actions::{Reached, execute};
use super::{sessions, traced};
use crate::app::{App, AppState, Found};
use crate::body::BodyShare;
use crate::extract::{Path, Payload, Query, integer, json, json_holding};
use crate::headers::{self, AnswerTrace};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::actions::{ActionView, unknown};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanQuery {
    session: Option<String>,
    #[serde(default, deserialize_with = "integer")]
    timeout_ms: Option<u64>,
}

/// Carry out a plan, and wait for its result
///
/// A plan is one action with the checks that verify it, the files that it may change, and a rollback. It is executed, verified,
/// repaired once, and rolled back if it still is not as the plan says. `queued` means that a person must decide first; another result
/// follows under the same `actionId`. A plan that has neither ended nor waits for a person when the time is over goes on: the answer is
/// then that of an action. Repeating the request is harmless.
#[utoipa::path(post, path = "/v1/plans", tag = "plans",
    params(
        ("session" = Option<String>, Query, description = "The session that it belongs to, whose subject and space it gets if it names none"),
        ("timeout_ms" = Option<u64>, Query, description = "How long to wait at most"),
        ("Effectd-Interactive" = Option<String>, Header, description = "`true` if a person waits at a terminal: an approval is then expected within minutes"),
    ),
    request_body(content = ref("#/components/schemas/Plan"), content_type = "application/json"),
    responses(
        (status = 200, description = "It has ended: the result says how", body = ref("#/components/schemas/PlanResult"), content_type = "application/json"),
        (status = 202, description = "It is `queued`, or goes on", body = ref("#/components/schemas/PlanResult"), content_type = "application/json"),
        Problems<400, 403, 404, 409, 413, 429, 503>,
        Problems<500>,
    )
)]
pub(crate) async fn run(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<PlanQuery>,
    headers: HeaderMap,
    body: Payload,
) -> Result<Response, Problem> {
    let _waiting = app.wait_slot(&peer)?;
    let bytes = app.body(body).await?;
    let plan = Plan::parse(&bytes.bytes)?;
    let size = bytes.bytes.len() as u64;
    // From now on, the bounds of waiting requests count it.
    drop(bytes);
    let id = plan.action_id.clone().unwrap_or_else(ActionId::fresh);
    let origin = sessions::origin(&app, &peer, query.session.as_deref(), &id)?;
    let place = place_of(&app, &origin)?;
    let incoming = incoming(&app, &peer, &headers, &plan, (origin, place))?;
    let action = incoming.request.action_id.clone();
    let reached = execute(&app, &peer, incoming, size, app.wait_time(query.timeout_ms)).await?;
    answer(&app, &peer, action, reached).await
}

/// What a plan came to
///
/// The status is 200 also for a plan that was rejected or failed. A `queued` plan waits for a person.
#[utoipa::path(get, path = "/v1/plans/{id}", tag = "plans",
    responses(
        (status = 200, description = "It has ended: the result says how", body = ref("#/components/schemas/PlanResult"), content_type = "application/json"),
        (status = 202, description = "It is `queued`, or goes on", body = ref("#/components/schemas/PlanResult"), content_type = "application/json"),
        Problems<404, 409, 503>,
    )
)]
pub(crate) async fn show(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = ActionId::new(id).map_err(|error| Problem::of(Kind::ActionUnknown, error.to_string()))?;
    let (action, found) = app.find_meant(&id, &peer).await?;
    match found {
        Found::Done(done, share) => ended(&action, &done, share),
        Found::Held(held) => queued(&app, action, &held),
        Found::Accepted => Ok(json(StatusCode::ACCEPTED, &ActionView::accepted(action))),
        Found::Unknown => Err(unknown(&action)),
    }
}

/// The subject and the space of a session.
fn place_of(app: &App, origin: &Origin) -> Result<Option<(SubjectId, SpaceId)>, Problem> {
    let Origin::Session { session_id } = origin else { return Ok(None) };
    let session = records::session(app.store(), session_id.as_str())?;
    let session = session.ok_or_else(|| records::unknown(Phase::Accept))?;
    Ok(Some((session.subject_id, session.space_id)))
}

/// The action of a plan, for who asks, in the place that stands in for what the plan leaves out.
pub(crate) fn incoming(
    app: &App,
    peer: &Peer,
    headers: &HeaderMap,
    plan: &Plan,
    (origin, place): (Origin, Option<(SubjectId, SpaceId)>),
) -> Result<Incoming, Problem> {
    let (subject, space) = place.unzip();
    let (mut request, contract) = plan.compile(subject, space)?;
    request.action_id = peer.whole_id(&request.action_id)?;
    if let Some(tool) = app.services().registry().get(&request.tool_id) {
        let params = std::mem::take(&mut request.params);
        request.params = records::with_space(&request.space_id, tool.spec(), params);
    }
    // A repeat of the plan is the same action, whatever its trace.
    headers::apply(headers, &mut request)?;
    if request.idempotency_key.is_some() {
        let why = "a plan has no idempotency key: its actionId says whether it is the same";
        return Err(Problem::of(Kind::HeaderInvalid, why));
    }
    sessions::check_reach(app, peer, &request)?;
    Ok(Incoming {
        request: Arc::new(request),
        principal: peer.principal.clone(),
        origin: if origin.is_arbiter() { Origin::Plan } else { origin },
        contract: Some(contract),
        interactive: headers::interactive(headers),
    })
}

async fn answer(app: &App, peer: &Peer, action: ActionId, reached: Reached) -> Result<Response, Problem> {
    match reached {
        Reached::Done(done) => {
            let (done, share) = app.with_result(done, peer).await.map_err(|busy| busy.about(&action))?;
            ended(&action, &done, share)
        }
        Reached::Held(held) => queued(app, action, &held),
        Reached::Accepted => Ok(json(StatusCode::ACCEPTED, &ActionView::accepted(action))),
    }
}

fn ended(action: &ActionId, done: &Done, share: BodyShare) -> Result<Response, Problem> {
    let result = result(action, done)?;
    let trace = AnswerTrace::of_receipt(&done.receipt);
    Ok(traced(trace, json_holding(StatusCode::OK, &result, share)))
}

/// The result of a plan that has ended.
pub(crate) fn result(action: &ActionId, done: &Done) -> Result<PlanResult, Problem> {
    let kept = done.result.as_ref().ok().and_then(Option::as_deref);
    PlanResult::of_receipt(&done.receipt, kept).ok_or_else(|| {
        let why = "the action of this id is not that of a plan";
        Problem::of(Kind::StateConflict, why).about(action)
    })
}

fn queued(app: &App, action: ActionId, held: &Held) -> Result<Response, Problem> {
    let result = waiting(app, &action, held)?;
    Ok(json(StatusCode::ACCEPTED, &result))
}

/// The result of a plan that waits for a person.
pub(crate) fn waiting(app: &App, action: &ActionId, held: &Held) -> Result<PlanResult, Problem> {
    let hold = hold_of(app.store(), action)?;
    // It has been decided meanwhile.
    let hold = hold.ok_or_else(|| Problem::of(Kind::Busy, "the plan goes on; ask again").about(action))?;
    let tier = hold.value.prompt.decision.tier;
    let request = ActionRequest { action_id: action.clone(), ..hold.value.decision.request };
    Ok(PlanResult::queued(request, tier, held.approval_id.clone()))
}
