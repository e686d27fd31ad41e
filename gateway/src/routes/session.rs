//! The routes of one session, and the inbox of an organisation.
//!
//! A sandbox token invokes actions and asks for grants in its own session. People of the session's organisation look, and its admins
//! decide. The pipeline and the approvals do the work, as for `/v1/actions` and `/v1/approvals`.

mod guide;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use effectd_actors::approvals::grants::{self, NewGrant};
use effectd_actors::approvals::invocation::{self, Invocation, Wanted};
use effectd_actors::approvals::rejudge::{self, Changed};
use effectd_actors::approvals::{Approve, How, decide, repository, view};
use effectd_actors::effects::results;
use effectd_actors::services::sessions::{self, unknown as unknown_session};
use effectd_actors::{Answer, Done, GrantState, Incoming, OrgRole};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{
    ActionId, ApprovalId, Code, Failure, InvocationBrief, InvocationStatus, OrgId, Origin, Phase, Session,
    SessionId, TokenKind, ToolId, Topic, json,
};
use serde::Deserialize;

use super::actions::{self, Reached};
use super::stream::detail;
use super::{approvals, traced};
use crate::app::{App, AppState};
use crate::body::BodyBytes;
use crate::extract::{Json, Path, Payload, Query, Reply, integer, json as answer};
use crate::headers::{self, AnswerTrace};
use crate::limits::{CHANGE_BYTES_MAX, INVOCATIONS_DEFAULT, INVOCATIONS_MAX, INVOCATIONS_OFFSET_MAX};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::approvals::{DenyBody, HowWord};
use crate::views::session::{
    ApproveInvocation, AvailableList, GrantRequest, GrantScope, InboxView, InvocationList, InvocationView,
    InvokeBody, InvokedView, OneGrant, OneInvocation, SessionGrantList, SessionGrantView, WaitingView, Words,
};

pub(super) use guide::write as write_guide;

/// A problem that also says `error`, which agents read.
pub(crate) struct Refused(Problem);

impl<E: Into<Problem>> From<E> for Refused {
    fn from(error: E) -> Self {
        let mut problem: Problem = error.into();
        problem.error = Some(problem.detail.clone());
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// The session that the path names, and who asks. A session that is unknown and one of others look the same.
pub(crate) struct InSession {
    session: Session,
    peer: Peer,
}

impl FromRequestParts<Arc<App>> for InSession {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refused> {
        let peer = Peer::from_request_parts(parts, app).await?;
        let Path(names) = Path::<HashMap<String, String>>::from_request_parts(parts, app).await?;
        let id = names.get("session_id").map(String::as_str).unwrap_or_default();
        // The session of another agent is not even looked up.
        let own = peer.claims().and_then(|claims| claims.session.as_ref());
        let is_other = own.is_some_and(|own| own.as_str() != id);
        let found = if is_other { None } else { sessions::session(app.store(), id)? };
        let found = found.filter(|session| sees(app, &peer, session));
        let unknown = || Problem::of(Kind::NotFound, "you have no session of this id");
        Ok(Self { session: found.ok_or_else(unknown)?, peer })
    }
}

fn sees(app: &App, peer: &Peer, session: &Session) -> bool {
    match peer.claims() {
        Some(claims) if claims.kind == TokenKind::Sandbox => {
            claims.session.as_ref() == Some(&session.session_id) && claims.org == session.org
        }
        Some(_) | None => sees_org(app, peer, &session.org),
    }
}

/// Whether this person may see the invocations of an organisation: its members, and approvers and operators of all.
fn sees_org(app: &App, peer: &Peer, org: &OrgId) -> bool {
    let decides = || app.services().policy().may_view_approvals(&peer.decider(), Some(org.as_str()));
    app.sees_org(peer, org.as_str(), OrgRole::Member) || decides()
}

impl InSession {
    fn is_agent(&self) -> bool {
        self.peer.claims().is_some_and(|claims| claims.kind == TokenKind::Sandbox)
    }

    /// Fails unless the session's own agent asks.
    fn check_agent(&self) -> Result<(), Problem> {
        if self.is_agent() {
            return Ok(());
        }
        Err(Problem::of(Kind::AgentOnly, "this needs the session's own sandbox token"))
    }

    /// An invocation of this session, as far as the asker may read it.
    fn view(&self, app: &App, one: Invocation, words: Words) -> InvocationView {
        let view = InvocationView::of(one, words);
        let detail = detail(app, &self.peer, Some(self.session.org.as_str()));
        let reads = self.is_agent() || detail.is_some_and(|detail| detail.has_contents(true));
        if reads { view } else { view.without_contents() }
    }

    /// Fails unless a person asks who may decide in this organisation. By the kind of the token first: whatever its roles are, an agent
    /// and a service decide nothing.
    fn check_decides(&self, app: &App) -> Result<(), Problem> {
        let is_person = self.peer.claims().is_none_or(|claims| claims.kind == TokenKind::User);
        let (policy, org) = (app.services().policy(), self.session.org.as_str());
        if is_person && policy.may_view_approvals(&self.peer.decider(), Some(org)) {
            return Ok(());
        }
        let why = format!("only admins and owners of {org}, and approvers, decide about its invocations");
        Err(Problem::of(Kind::MayNotDecide, why))
    }

    /// An invocation of this session.
    async fn find(&self, app: &App, id: &str) -> Result<Invocation, Problem> {
        let unknown = || Problem::of(Kind::ActionUnknown, "the session has no invocation of this id");
        let id = ActionId::new(id).map_err(|_| unknown())?;
        let own = self.session.session_id.as_str();
        // Ends an approval that has expired, if the sweeper has not yet.
        view::waiting(app.services(), &self.peer.decider(), &id, |hold| hold.session == own).await?;
        let mut found = invocation::find_in(app.services(), own, &id).await?;
        if found.is_none() {
            // The store answers in order: after this reply, a repeat that was answered earlier is linked to its receipt.
            app.store().groups(&Topic::ActionDecision.into()).await?;
            found = invocation::find_in(app.services(), own, &id).await?;
        }
        found.ok_or_else(unknown)
    }

    /// The pending approval of an invocation.
    async fn approval(&self, app: &App, id: &str) -> Result<(ActionId, ApprovalId), Problem> {
        let found = self.find(app, id).await?;
        if let Some(hold) = repository::hold_of(app.store(), &found.id)? {
            return Ok((found.id, hold.value.approval_id));
        }
        if found.status == InvocationStatus::Expired {
            let why = "nobody decided about the invocation in time";
            return Err(Failure::new(Code::ApprovalExpired, Phase::Hold, why).into());
        }
        Err(Problem::of(Kind::AlreadyDecided, "the invocation needs no decision any more"))
    }

    /// An invocation with its result, if the asker may read it: safe to show, also to its agent.
    async fn ended(&self, app: &App, one: Invocation, done: Done, words: Words) -> InvocationView {
        let mut view = self.view(app, one, words);
        let (policy, by) = (app.services().policy(), self.peer.decider());
        let is_own = self.is_agent() || self.session.created_by == by.principal;
        let session = is_own.then_some(&self.session.session_id);
        if results::reads(&policy, &done.receipt, &by, session).is_none() {
            return view;
        }
        let result = match app.with_result(done, &self.peer).await {
            Ok((done, _share)) => done.result,
            // The answer names the invocation all the same, or an agent would invoke it a second time.
            Err(busy) => Err(Failure::new(Code::Overloaded, Phase::Record, busy.detail)),
        };
        match result {
            Ok(result) => view.result = result.map(|result| results::safe(&result)),
            Err(failure) => view.result_error = Some(failure),
        }
        view
    }

    /// The answer for an action that was asked for or approved.
    async fn reached(
        &self,
        app: &App,
        id: &ActionId,
        reached: Reached,
        grant: Option<SessionGrantView>,
    ) -> Result<Response, Refused> {
        let message = match reached {
            Reached::Done(done) => return self.done(app, id, done, grant).await,
            Reached::Held(_) => "Action requires approval",
            Reached::Accepted => "Action is executing",
        };
        let found = invocation::find(app.services(), id).await?;
        let unknown = || Problem::of(Kind::ActionUnknown, "the session has no invocation of this id");
        let invocation = self.view(app, found.ok_or_else(unknown)?, Words::Full);
        Ok(answer(StatusCode::ACCEPTED, &WaitingView { invocation, message: message.to_owned() }))
    }

    async fn done(
        &self,
        app: &App,
        id: &ActionId,
        done: Done,
        grant: Option<SessionGrantView>,
    ) -> Result<Response, Refused> {
        let receipt = done.receipt.clone();
        // A request without a tool, or with invalid parameters, makes no invocation.
        let view = match invocation::of_receipt(id, &receipt) {
            Some(one) => Some(self.ended(app, one, done, Words::Full).await),
            None => None,
        };
        match (&receipt.error, view) {
            (None, Some(invocation)) if invocation.error.is_none() => {
                let result = invocation.result.clone();
                Ok(answer(StatusCode::OK, &InvokedView { invocation, result, grant }))
            }
            (failure, view) => {
                let unsaid = |view: Option<&InvocationView>| {
                    let why = view.and_then(|view| view.error.clone());
                    let why = why.unwrap_or_else(|| "the receipt says nothing more".to_owned());
                    Failure::new(Code::ToolFailed, Phase::Dispatch, why)
                };
                let told = failure.clone().unwrap_or_else(|| unsaid(view.as_ref()));
                let mut problem = Problem::failed(&told).about(id);
                problem.status = match (receipt.outcome.project().http, failure) {
                    // The action is done, and its tool has failed.
                    (200, None) => 502,
                    // 200 is for the person who denied it; here is the agent whose action was denied.
                    (200, Some(_)) => 403,
                    (status, _) => status,
                };
                (problem.retryable, problem.retry_after_ms) = (false, None);
                problem.rule = receipt.decision.as_ref().and_then(|decision| decision.rule.clone());
                problem.invocation = view.and_then(|view| serde_json::to_value(view).ok());
                Err(problem.into())
            }
        }
    }
}

/// Actions that the session may ask for
///
/// Of all sources, as far as the session has the connections that they need; each with what the policy answers to this session now.
#[utoipa::path(get, path = "/{session_id}/actions/available", tag = "session",
    responses((status = 200, description = "All of them, by integration and action", body = AvailableList), Problems<404>))]
pub(crate) async fn available(State(app): AppState, here: InSession) -> Result<Json<AvailableList>, Refused> {
    let actions = app.blocking(move |app| guide::catalogue(app, &here.session)).await?;
    Ok(Json(AvailableList { actions }))
}

/// The guide of an integration
///
/// In Markdown: each action with its parameters, an example, and the command that runs it.
#[utoipa::path(get, path = "/{session_id}/actions/guide/{integration}", tag = "session",
    responses((status = 200, description = "The guide", body = String, content_type = "text/markdown"), Problems<404>))]
pub(crate) async fn guide(
    State(app): AppState,
    here: InSession,
    Path((_, integration)): Path<(String, String)>,
) -> Result<Response, Refused> {
    let text = app.blocking(move |app| guide::of(app, &here.session, &integration)).await?;
    let unknown = || Problem::of(Kind::NotFound, "the session has no integration of this name");
    let text = text.ok_or_else(unknown)?;
    Ok(([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], text).into_response())
}

/// Invoke an action
///
/// The answer comes when the action has ended or needs an approval. To repeat a request whose answer was lost, send the same
/// `Idempotency-Key`.
#[utoipa::path(post, path = "/{session_id}/actions/invoke", tag = "session",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and parameters are the same action"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context: the action becomes a child of this span"),
        ("tracestate" = Option<String>, Header, description = "W3C trace context: copied to receipt, event and answer"),
    ),
    request_body(content = InvokeBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It was done, now or before", body = InvokedView),
        (status = 202, description = "It needs an approval, or takes longer than a request may", body = WaitingView),
        Problems<400, 403, 404, 429, 502>,
    )
)]
pub(crate) async fn invoke(
    State(app): AppState,
    here: InSession,
    headers: HeaderMap,
    body: Payload,
) -> Result<Response, Refused> {
    here.check_agent()?;
    let _waiting = app.wait_slot(&here.peer)?;
    let BodyBytes { bytes, share } = app.body(body).await?;
    let invalid = |error: json::JsonInvalid| Problem::of(Kind::QueryInvalid, error.to_string());
    let InvokeBody { integration, action, params } =
        json::parse(&bytes, REQUEST_BYTES_MAX).map_err(invalid)?;
    let unknown = || Problem::of(Kind::ToolUnknown, "the integration has no action of this name");
    let tool = ToolId::new(format!("{integration}.{action}")).map_err(|_| unknown())?;
    if (tool.source(), tool.action()) != (integration.as_str(), action.as_str()) {
        return Err(unknown().into());
    }
    let params = match app.services().registry().get(&tool) {
        Some(known) => sessions::with_space(&here.session.space_id, known.spec(), params),
        None => params,
    };
    let mut request = here.session.request(tool, params);
    let trace = headers::apply(&headers, &mut request)?;
    let trace = AnswerTrace::of_request(&request, trace);
    // From now on, the bounds of waiting requests and of the backlog count it.
    let size = bytes.len() as u64;
    drop((bytes, share));
    let id = request.action_id.clone();
    let incoming = Incoming {
        request: Arc::new(request),
        principal: here.peer.principal.clone(),
        origin: Origin::Session { session_id: here.session.session_id.clone() },
        contract: None,
        interactive: !here.session.unattended,
    };
    let reached = actions::execute(&app, &here.peer, incoming, size, app.wait_time(None)).await;
    let response = match reached {
        Ok(reached) => here.reached(&app, &id, reached, None).await,
        Err(problem) => Err(problem.into()),
    };
    Ok(traced(trace, response))
}

/// The query of one invocation.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ViewQuery {
    view: Words,
}

/// The query of a list of invocations.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ListQuery {
    org: Option<OrgId>,
    status: Option<String>,
    view: Words,
    #[serde(deserialize_with = "integer")]
    limit: Option<usize>,
    #[serde(deserialize_with = "integer")]
    offset: Option<usize>,
}

impl ListQuery {
    /// The part of a list: how many are in it, after how many.
    fn part(&self) -> Result<(usize, usize), Problem> {
        let offset = self.offset.unwrap_or_default();
        if offset > INVOCATIONS_OFFSET_MAX {
            let why =
                format!("offset is at most {INVOCATIONS_OFFSET_MAX}; older ones are among the receipts");
            return Err(Problem::of(Kind::QueryInvalid, why));
        }
        Ok((self.limit.unwrap_or(INVOCATIONS_DEFAULT).clamp(1, INVOCATIONS_MAX), offset))
    }

    fn wanted(&self, orgs: Vec<OrgId>, session: Option<SessionId>) -> Result<Wanted, Problem> {
        let (limit, offset) = self.part()?;
        let status = self.status.as_deref().map(|word| {
            // The seven words, too, as far as they mean one of the five.
            let word = if word == "completed" { "executed" } else { word };
            let found = InvocationBrief::ALL.into_iter().find(|status| status.as_str() == word);
            found.ok_or_else(|| {
                let words = InvocationBrief::ALL.map(InvocationBrief::as_str).join(", ");
                Problem::of(Kind::QueryInvalid, format!("status is one of {words}"))
            })
        });
        Ok(Wanted { orgs, session, status: status.transpose()?, limit, offset })
    }
}

/// Invocations of the session
///
/// First those that have not ended, then the others, each the newest first.
#[utoipa::path(get, path = "/{session_id}/actions/invocations", tag = "session",
    params(
        ("status" = Option<String>, Query, description = "Only those with this status, in five words"),
        ("view" = Option<String>, Query, description = "`brief` for a status in five words"),
        ("limit" = Option<usize>, Query, description = "How many; 50 unless given, and at most 100"),
        ("offset" = Option<usize>, Query, description = "How many to leave out"),
    ),
    responses((status = 200, description = "A page of them", body = InvocationList), Problems<400, 404>))]
pub(crate) async fn invocations(
    State(app): AppState,
    here: InSession,
    query: Result<Query<ListQuery>, Problem>,
) -> Result<Json<InvocationList>, Refused> {
    let Query(query) = query?;
    let wanted = query.wanted(vec![here.session.org.clone()], Some(here.session.session_id.clone()))?;
    let list = move |app: &App| Ok(invocation::list(app.services(), &wanted)?.0);
    let found = app.blocking(list).await?;
    let invocations = found.into_iter().map(|one| here.view(&app, one, query.view)).collect();
    Ok(Json(InvocationList { invocations }))
}

/// One invocation
///
/// Ask again until its status is `completed`, `denied`, `expired` or `failed`.
#[utoipa::path(get, path = "/{session_id}/actions/invocations/{id}", tag = "session",
    params(("view" = Option<String>, Query, description = "`brief` for a status in five words")),
    responses((status = 200, description = "The invocation", body = OneInvocation), Problems<400, 404>))]
pub(crate) async fn invocation(
    State(app): AppState,
    here: InSession,
    Path((_, id)): Path<(String, String)>,
    query: Result<Query<ViewQuery>, Problem>,
) -> Result<Json<OneInvocation>, Refused> {
    let Query(ViewQuery { view }) = query?;
    let found = here.find(&app, &id).await?;
    let invocation = match app.receipt_of(&found.id)? {
        Some(done) => here.ended(&app, found, done, view).await,
        None => here.view(&app, found, view),
    };
    Ok(Json(OneInvocation { invocation }))
}

/// Approve an invocation
///
/// The answer comes when the action has ended. The first decision counts.
#[utoipa::path(post, path = "/{session_id}/actions/invocations/{id}/approve", tag = "session",
    request_body(content = ApproveInvocation, content_type = "application/json"),
    responses(
        (status = 200, description = "It is approved, and was done", body = InvokedView),
        (status = 202, description = "It is approved; it runs, or has changed and needs another approval", body = WaitingView),
        Problems<400, 403, 404, 409, 410, 502>,
    )
)]
pub(crate) async fn approve(
    State(app): AppState,
    here: InSession,
    Path((_, id)): Path<(String, String)>,
    body: Payload,
) -> Result<Response, Refused> {
    here.check_decides(&app)?;
    let (id, approval) = here.approval(&app, &id).await?;
    let body = app.optional_json_body(body, CHANGE_BYTES_MAX, Kind::DecisionInvalid);
    let (ApproveInvocation { mode, grant, digest }, share) = body.await?;
    // A wait for the end of the action does not hold it.
    drop(share);
    let how = match (mode, grant) {
        (HowWord::Grant, terms) => terms.unwrap_or_default().into(),
        (HowWord::Once, None) => How::Once,
        (HowWord::Always, None) => How::Always,
        (HowWord::Once | HowWord::Always, Some(_)) => {
            return Err(Problem::of(Kind::DecisionInvalid, "`grant` needs the mode `grant`").into());
        }
    };
    let wish = Approve { how, digest, unseen: true, ..Approve::default() };
    let (decided, _) = approvals::decided(&app, &here.peer, &approval, wish).await?;
    let now = app.services().clock.now();
    let grant = decided.grant.as_ref().map(|grant| SessionGrantView::of(grant, now));
    // What is decided is not refused: while too many requests wait, this one does not.
    let waiting = app.wait_slot(&here.peer);
    let reached = match app.ended(&id, app.wait_time(waiting.is_err().then_some(0))).await {
        Some(Answer::Done(done)) => Reached::Done(done),
        Some(Answer::Held(held)) => Reached::Held(held),
        Some(Answer::Refused(_)) | None => Reached::Accepted,
    };
    here.reached(&app, &id, reached, grant).await
}

/// Deny an invocation
///
/// The first decision counts.
#[utoipa::path(post, path = "/{session_id}/actions/invocations/{id}/deny", tag = "session",
    request_body(content = DenyBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is denied, and has its receipt", body = OneInvocation),
        Problems<400, 403, 404, 409, 410>,
    )
)]
pub(crate) async fn deny(
    State(app): AppState,
    here: InSession,
    Path((_, id)): Path<(String, String)>,
    body: Payload,
) -> Result<Json<OneInvocation>, Refused> {
    here.check_decides(&app)?;
    let (id, approval) = here.approval(&app, &id).await?;
    let body = app.optional_json_body(body, CHANGE_BYTES_MAX, Kind::DecisionInvalid);
    let (DenyBody { reason }, _share) = body.await?;
    decide::deny(app.services(), &approval, &here.peer.decider(), reason).await?;
    let found = here.find(&app, id.as_str()).await?;
    Ok(Json(OneInvocation { invocation: here.view(&app, found, Words::Full) }))
}

/// Ask for a grant
///
/// Who created the session asks for it. It is active at once only if it is for one action in this session, and that person is an admin or
/// owner now; otherwise an admin activates it.
#[utoipa::path(post, path = "/{session_id}/actions/grants", tag = "session",
    request_body(content = GrantRequest, content_type = "application/json"),
    responses((status = 200, description = "It is requested, or active", body = OneGrant), Problems<400, 403, 404, 429>))]
pub(crate) async fn request_grant(
    State(app): AppState,
    here: InSession,
    body: Payload,
) -> Result<Json<OneGrant>, Refused> {
    here.check_agent()?;
    let session = &here.session;
    if session.ended_at.is_some() {
        return Err(unknown_session(Phase::Accept).into());
    }
    let (body, _share): (GrantRequest, _) = app.json_body(body, Kind::DecisionInvalid).await?;
    let tool = match (body.integration.as_str(), body.action.as_str()) {
        ("*", "*") => "*".to_owned(),
        (integration, action) => format!("{integration}.{action}"),
    };
    let new = NewGrant {
        org: session.org.to_string(),
        session: (body.scope == GrantScope::Session).then(|| session.session_id.to_string()),
        tool,
        command: None,
        calls_max: body.max_calls,
        expires_at: None,
        reason: None,
    };
    let services = app.services();
    let grant = grants::request_in(services, session, new).await?;
    if grant.state == GrantState::Active {
        // It may cover what already waits.
        rejudge::after(services, Changed::Grant(Box::new(grant.clone()))).await;
    }
    Ok(Json(OneGrant { grant: SessionGrantView::of(&grant, services.clock.now()) }))
}

/// Grants for the session
///
/// Its own and those of its organisation, requested and active; the oldest first.
#[utoipa::path(get, path = "/{session_id}/actions/grants", tag = "session",
    params(
        ("limit" = Option<usize>, Query, description = "How many; 50 unless given, and at most 100"),
        ("offset" = Option<usize>, Query, description = "How many to leave out"),
    ),
    responses((status = 200, description = "A page of them", body = SessionGrantList), Problems<400, 404>))]
pub(crate) async fn grants(
    State(app): AppState,
    here: InSession,
    query: Result<Query<ListQuery>, Problem>,
) -> Result<Json<SessionGrantList>, Refused> {
    let (limit, offset) = query?.0.part()?;
    let list = move |app: &App| {
        let (now, session) = (app.services().clock.now(), here.session);
        let mut found = grants::in_org(app.store(), session.org.as_str())?;
        found.retain(|grant| {
            let is_of = |id: &String| id == session.session_id.as_str();
            grant.session.as_ref().is_none_or(is_of) && !grant.is_over(now)
        });
        let part = found.iter().skip(offset).take(limit);
        let grants = part.map(|grant| SessionGrantView::of(grant, now)).collect();
        Ok(SessionGrantList { grants, total: found.len() as u64 })
    };
    Ok(Json(app.blocking(list).await?))
}

/// The inbox of an organisation, or of all that you see
///
/// Its invocations, of all sessions and of planners without one, for its people: first those that have not ended, then the others, each the
/// newest first; and the grants that were requested. What is in those of a deleted session, and of planners without one, is for those who
/// decide or operate.
#[utoipa::path(get, path = "/v1/inbox", tag = "inbox", operation_id = "list",
    params(
        ("org" = Option<String>, Query, description = "The organisation; without it, all that you see"),
        ("status" = Option<String>, Query, description = "Only invocations with this status, in five words"),
        ("view" = Option<String>, Query, description = "`brief` for a status in five words"),
        ("limit" = Option<usize>, Query, description = "How many; 50 unless given, and at most 100"),
        ("offset" = Option<usize>, Query, description = "How many to leave out"),
    ),
    responses((status = 200, description = "A page of it", body = InboxView), Problems<400, 403, 404>))]
pub(crate) async fn inbox(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<ListQuery>,
) -> Reply<InboxView> {
    let policy = app.services().policy();
    let mut orgs: Vec<_> = policy.orgs().into_iter().filter_map(|org| OrgId::new(org).ok()).collect();
    orgs.retain(|org| query.org.as_ref().is_none_or(|asked| asked == org) && sees_org(&app, &peer, org));
    // One that is unknown and one of others look the same.
    if orgs.is_empty() {
        return Err(Problem::of(Kind::NotFound, "you see no organisation of this name"));
    }
    let wanted = query.wanted(orgs, None)?;
    let list = move |app: &App| {
        let (services, now) = (app.services(), app.services().clock.now());
        let (found, total) = invocation::list(services, &wanted)?;
        let mut invocations = Vec::new();
        for one in found {
            let session = sessions::session(app.store(), &one.session_id)?;
            let detail = one.organization_id.as_ref().and_then(|org| detail(app, &peer, Some(org.as_str())));
            let reads = detail.is_some_and(|detail| detail.has_contents(session.is_some()));
            let view = InvocationView::of(one, query.view);
            let mut view = if reads { view } else { view.without_contents() };
            view.session_title = session.map(|session| session.title);
            invocations.push(view);
        }
        let mut grant_requests = Vec::new();
        for org in &wanted.orgs {
            let grants = grants::in_org(app.store(), org.as_str())?;
            let views = grants.iter().map(|grant| SessionGrantView::of(grant, now));
            grant_requests.extend(views.filter(|grant| grant.state == "requested"));
        }
        Ok(InboxView { invocations, total: total.unwrap_or_default(), grant_requests })
    };
    app.blocking(list).await.map(Json)
}
