//! The inbox: what waits for a person, one question whole, and the ways to decide about it.

pub(super) mod grant;
mod question;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use effectd_actors::PrincipalRole;
use effectd_actors::limits::HELD_PAGE;
use effectd_contracts::{ActionId, ApprovalId, SpaceId, SubjectId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::Api;
use super::page::{Form, Page, Query, Shell, filters, page};
use crate::app::{App, AppState};
use crate::client::percent_encoded;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::signed_in;
use crate::views::actions::ActionView;
use crate::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, HowWord, PreviewView,
};
use crate::views::grants::GrantView;
use crate::views::receipt_text::words;
use crate::views::receipts::ReceiptList;
use grant::Grant;
use question::{Block, Edited, How, Question, Row};

/// How long a decision waits for the end of its action, to say how it ended.
const WAIT_MS: u64 = 2_000;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(first))
        .route("/console/approvals", get(async || Redirect::to("/")).post(decide_several))
        .route("/console/approvals/{id}", get(one).post(decide))
        .route("/console/grants/{id}", get(grant).post(decide_grant))
        .route("/console/try", post(attempt))
}

/// What this person may do.
pub(super) struct Access<'a> {
    app: &'a App,
    peer: &'a Peer,
}

impl Access<'_> {
    fn may_decide(&self, view: &ApprovalView) -> bool {
        let Ok(subject) = SubjectId::new(view.subject_id.clone()) else { return false };
        let (policy, by) = (self.app.services().policy(), self.peer.decider());
        let space = SpaceId::new(view.space_id.clone()).ok();
        policy.may_decide(&by, &subject, space.as_ref().and_then(|space| policy.org_of(space))).is_ok()
    }

    /// Whether this person may change whether anybody is asked.
    fn may_administer(&self, view: &ApprovalView) -> bool {
        let (policy, by) = (self.app.services().policy(), self.peer.decider());
        let space = SpaceId::new(view.space_id.clone()).ok();
        policy.may_administer(&by, space.as_ref().and_then(|space| policy.org_of(space))).is_ok()
    }

    fn may_revoke(&self, view: &GrantView) -> bool {
        let by = self.peer.decider();
        view.created_by == by.principal.as_str()
            || self.app.services().policy().may_view_approvals(&by, Some(&view.org))
    }
}

#[derive(Template)]
#[template(path = "inbox.html")]
struct InboxPage {
    shell: Shell,
    rows: Vec<Row>,
    /// Requests for grants, on the first page.
    grants: Vec<GrantView>,
    /// The `after` of this page of the queue, and of the next one.
    after: Option<String>,
    next: Option<String>,
    /// Whether the address names the question: on a narrow screen, it is then all that is shown.
    selected: bool,
    question: Option<Question>,
    grant: Option<Grant>,
    /// Of what is shown as the question: a live refresh leaves it alone while this stays.
    version: String,
    notice: Option<Notice>,
    problem: Option<Problem>,
    results: Vec<Done>,
    first_run: Option<FirstRun>,
}

impl InboxPage {
    fn may_pick(&self) -> bool {
        self.rows.iter().any(|row| row.may_decide && row.tier() != "R4")
    }

    fn waiting(&self) -> usize {
        self.rows.len() + self.grants.len()
    }

    fn is_open(&self, grant: &GrantView) -> bool {
        self.grant.as_ref().is_some_and(|open| open.view.grant_id == grant.grant_id)
    }
}

/// What the decision before came to.
struct Notice {
    tone: &'static str,
    text: String,
    action: String,
    /// Whether its end is still to be told.
    is_open: bool,
}

/// One of several decisions.
struct Done {
    what: String,
    said: String,
    problem: Option<Problem>,
}

/// An action that this person may make happen: for a subject that they act for, in a space that it sees.
struct FirstRun {
    org: String,
    example: Option<(String, String)>,
    action_id: ActionId,
}

impl FirstRun {
    fn of(app: &App, peer: &Peer) -> Self {
        let policy = app.services().policy();
        let mut pairs = policy.subjects_of(&peer.principal).into_iter().filter_map(|subject| {
            let space =
                policy.spaces_shown_to(&subject).into_iter().find(|space| policy.org_of(space).is_some())?;
            Some((subject, space))
        });
        let pair = pairs.next();
        let own = pair.as_ref().and_then(|(_, space)| policy.org_of(space));
        Self {
            org: own.or_else(|| policy.orgs().first().copied()).unwrap_or("home").to_owned(),
            example: pair.map(|(subject, space)| (subject.to_string(), space.to_string())),
            action_id: ActionId::fresh(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Asked {
    after: Option<String>,
    how: How,
    /// The approval that was decided before.
    did: Option<ApprovalId>,
    /// The action that was made from here.
    tried: Option<ActionId>,
}

/// What a request adds to the page.
#[derive(Default)]
struct Extra {
    selected: Option<ApprovalId>,
    grant: Option<String>,
    problem: Option<Problem>,
    results: Vec<Done>,
    edited: Option<Edited>,
    /// What was typed into the form for other parameters.
    typed: Option<Form>,
}

async fn first(State(app): AppState, api: Api, headers: HeaderMap, Query(asked): Query<Asked>) -> Page {
    show(&app, &api, &headers, asked, Extra::default()).await
}

async fn one(
    State(app): AppState,
    api: Api,
    headers: HeaderMap,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Page {
    let selected = Some(approval_id(id)?);
    show(&app, &api, &headers, asked, Extra { selected, ..Extra::default() }).await
}

fn approval_id(id: String) -> Result<ApprovalId, Problem> {
    ApprovalId::new(id).map_err(|_| Problem::of(Kind::ApprovalUnknown, "there is no such question"))
}

async fn grant(
    State(app): AppState,
    api: Api,
    headers: HeaderMap,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Page {
    show(&app, &api, &headers, asked, Extra { grant: Some(id), ..Extra::default() }).await
}

async fn decide_grant(
    State(app): AppState,
    api: Api,
    headers: HeaderMap,
    Path(id): Path<String>,
    form: Form,
) -> Page {
    match grant::decide(&api, &id, &form).await {
        Ok(()) => Ok(Redirect::to(&grant::url(&id)).into_response()),
        Err(problem) => {
            let extra = Extra { grant: Some(id), problem: Some(problem), ..Extra::default() };
            show(&app, &api, &headers, Asked::default(), extra).await
        }
    }
}

/// The query of a page of the queue.
fn query_of(after: Option<&str>) -> String {
    after.map_or_else(String::new, |after| format!("?after={}", percent_encoded(after)))
}

async fn show(app: &App, api: &Api, headers: &HeaderMap, asked: Asked, extra: Extra) -> Page {
    let Extra { selected, grant, mut problem, results, edited, typed } = extra;
    let access = Access { app, peer: &api.peer };
    let query = query_of(asked.after.as_deref());
    let list: ApprovalList = api.get(&format!("/v1/approvals{query}")).await?;
    let grant = match &grant {
        Some(id) => Some(Grant::load(api, &access, id).await?),
        None => None,
    };
    let open = match &selected {
        Some(id) => {
            Some(api.get::<ApprovalView>(&format!("/v1/approvals/{}", percent_encoded(id.as_str()))).await?)
        }
        None => list.approvals.first().filter(|_| grant.is_none()).cloned(),
    };
    let current = open.as_ref().map(|open| open.approval_id.clone()).unwrap_or_default();
    let rows: Vec<Row> =
        list.approvals.into_iter().map(|view| Row::of(view, &access, &current, &query)).collect();
    let mut others = rows.iter().map(|row| &row.view.approval_id);
    let following = others.clone().skip_while(|id| **id != current).nth(1);
    let following = following.or_else(|| others.find(|id| **id != current)).cloned().unwrap_or_default();
    let notice = match (&asked.did, &asked.tried) {
        (Some(did), _) => outcome_of(api, did).await,
        (None, Some(tried)) => {
            let ended = attempted(api, tried).await;
            Some(Notice { text: format!("Your action: {}", ended.text), ..ended })
        }
        (None, None) => None,
    };
    let mut question = match open {
        None => None,
        // What is asked for beside the question may be refused, as `always` is under a floor: then the question says so.
        Some(view) => {
            let beside = (following, query);
            let shown = (asked.how, edited);
            match Question::load(api, &access, view.clone(), shown, typed.as_ref(), beside.clone()).await {
                Ok(question) => Some(question),
                Err(refused) if asked.how != How::Look => {
                    problem.get_or_insert(refused);
                    let plain = (How::Look, None);
                    Some(Question::load(api, &access, view, plain, None, beside).await?)
                }
                Err(refused) => return Err(refused.into()),
            }
        }
    };
    if let Some(question) = &mut question
        && let Some(value) = signed_in::cookie(headers, app.settings().is_tls())
        && let Ok(id) = ApprovalId::new(question.view.approval_id.clone())
    {
        question.compare(|text| app.signed_in.shown(value, &id, text));
    }
    let grants: Vec<GrantView> = match asked.after {
        None => grant::waiting(api).await?.into_iter().rev().collect(),
        Some(_) => Vec::new(),
    };
    // Who sees only receipts of their own cannot tell whether nothing has happened.
    let sees_all = app.may_operate(&api.peer, PrincipalRole::Learner);
    let is_empty = rows.is_empty() && grants.is_empty() && question.is_none() && grant.is_none();
    let first_run = if sees_all && is_empty && notice.is_none() {
        let any: ReceiptList = api.get("/v1/receipts?limit=1").await?;
        any.receipts.is_empty().then(|| FirstRun::of(app, &api.peer))
    } else {
        None
    };
    let version = question.as_ref().map(Question::stamp).or_else(|| grant.as_ref().map(Grant::stamp));
    let status = problem.as_ref().and_then(|problem| StatusCode::from_u16(problem.status).ok());
    let mut inbox = InboxPage {
        shell: Shell::new("Inbox", "inbox", api),
        rows,
        grants,
        after: asked.after,
        next: list.next,
        selected: selected.is_some() || grant.is_some(),
        question,
        grant,
        version: version.unwrap_or_else(|| "none".to_owned()),
        notice,
        problem,
        results,
        first_run,
    };
    if inbox.waiting() > 0 {
        inbox.shell.title = format!("Inbox ({})", inbox.waiting());
    }
    Ok(page(status.unwrap_or(StatusCode::OK), &inbox))
}

/// How a decision went, from its record and its action.
async fn outcome_of(api: &Api, did: &ApprovalId) -> Option<Notice> {
    let view: ApprovalView =
        api.get(&format!("/v1/approvals/{}", percent_encoded(did.as_str()))).await.ok()?;
    let action = ActionId::new(view.action_ids.first()?.clone()).ok()?;
    let what = format!("{}: {}", view.tool_id, view.state);
    if view.state != "approved" {
        return Some(Notice { tone: "", text: what, action: action.to_string(), is_open: false });
    }
    let ended = attempted(api, &action).await;
    Some(Notice { text: format!("{what}, {}", ended.text), ..ended })
}

/// How an action went.
async fn attempted(api: &Api, action: &ActionId) -> Notice {
    let found: Result<ActionView, Problem> =
        api.get(&format!("/v1/actions/{}", percent_encoded(action.as_str()))).await;
    let (tone, text) = match &found {
        Ok(ActionView { approval: Some(held), .. }) => {
            ("warn", format!("it needs another approval: {}", held.reasons.join("; ")))
        }
        Ok(ActionView { outcome: None, .. }) => ("", "it is on its way".to_owned()),
        Ok(ActionView { outcome: Some(outcome), receipt, .. }) => {
            match receipt.as_ref().and_then(|receipt| receipt.error.as_ref()) {
                Some(error) => ("bad", format!("{}: {}", words(*outcome), error.message)),
                None => ("good", words(*outcome).to_owned()),
            }
        }
        Err(problem) => ("bad", problem.detail.clone()),
    };
    let is_open = found.is_ok_and(|view| view.outcome.is_none());
    Notice { tone, text, action: action.to_string(), is_open }
}

/// A decision about one question, for the digest that was shown. What is refused shows the question as it is now, and why.
async fn decide(
    State(app): AppState,
    api: Api,
    headers: HeaderMap,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    form: Form,
) -> Page {
    let id = approval_id(id)?;
    let (verb, path) =
        (form.get("verb").unwrap_or_default(), format!("/v1/approvals/{}", percent_encoded(id.as_str())));
    let mut extra = Extra { selected: Some(id.clone()), ..Extra::default() };
    let done = match verb {
        "preview" => match preview(&api, &path, &form).await {
            Ok(edited) => {
                extra.edited = Some(edited);
                return show(&app, &api, &headers, Asked { how: How::Look, ..asked }, extra).await;
            }
            Err(problem) => Err(problem),
        },
        "deny" => deny(&api, &path, form.get("digest").unwrap_or_default(), form.text("reason")).await,
        _ => match approval(verb, &form) {
            Ok(body) => api.post::<DecisionView>(&format!("{path}/approve?wait_ms={WAIT_MS}"), &body).await,
            Err(problem) => Err(problem),
        },
    };
    match done {
        Ok(done) => {
            let question = |id: &ApprovalId| format!("/console/approvals/{}", percent_encoded(id.as_str()));
            let query = query_of(asked.after.as_deref());
            // An older version was approved: the action asks again, and the page shows what is different.
            let again = done.action.approval.and_then(|held| ApprovalId::new(held.approval_id).ok());
            if let Some(again) = again {
                if let Some(value) = signed_in::cookie(&headers, app.settings().is_tls()) {
                    app.signed_in.asked_again(value, &id, &again);
                }
                return Ok(Redirect::to(&(question(&again) + &query)).into_response());
            }
            let next = form.text("next").and_then(|next| ApprovalId::new(next).ok());
            let to = next.map_or("/".to_owned(), |next| question(&next));
            let query = query.replace('?', "&");
            Ok(Redirect::to(&format!("{to}?did={}{query}", percent_encoded(id.as_str()))).into_response())
        }
        Err(problem) => {
            extra.problem = Some(problem);
            let how = if verb == "preview" { How::Edit } else { How::Look };
            extra.typed = Some(form);
            show(&app, &api, &headers, Asked { how, ..asked }, extra).await
        }
    }
}

/// Denies a question, if it still is the one that was shown.
async fn deny(api: &Api, path: &str, digest: &str, reason: Option<String>) -> Result<DecisionView, Problem> {
    let now: ApprovalView = api.get(path).await?;
    if now.digest != digest && now.decided.is_none() {
        let why = "the question has changed since it was shown; read it again";
        return Err(Problem::of(Kind::AskChanged, why));
    }
    api.post(&format!("{path}/deny"), &DenyBody { reason }).await
}

/// What a form approves, in the words of the route.
fn approval(verb: &str, form: &Form) -> Result<ApproveBody, Problem> {
    let digest = form.text("digest");
    let invalid = |why: &str| Problem::of(Kind::DecisionInvalid, why);
    // At the socket a yes may come without it; here somebody has looked.
    if digest.is_none() {
        return Err(invalid("the form has no `digest` of what was shown"));
    }
    let number = |name: &str| {
        let number = form.text(name).map(|text| text.parse::<u32>()).transpose();
        number.map_err(|_| invalid(&format!("`{name}` must be a whole number")))
    };
    let needed =
        |name: &str| number(name)?.ok_or_else(|| invalid(&format!("say a whole number in `{name}`")));
    let body = ApproveBody { digest, reason: form.text("reason"), ..ApproveBody::default() };
    match verb {
        "approve" => Ok(body),
        "always" => Ok(ApproveBody { how: HowWord::Always, ..body }),
        "grant" => Ok(ApproveBody {
            how: HowWord::Grant,
            org: form.get("org").is_some(),
            // Without a number it would count for any number of calls, and for ever.
            calls_max: Some(needed("calls")?),
            lasts_s: Some(u64::from(needed("minutes")?) * 60),
            ..body
        }),
        "edit" => {
            let params = serde_json::from_str(form.get("params").unwrap_or_default());
            let params: Map<String, Value> = params.map_err(|error| invalid(&error.to_string()))?;
            let edited_digest = form.text("edited_digest");
            if edited_digest.is_none() {
                return Err(invalid("the form has no `edited_digest` of the preview"));
            }
            Ok(ApproveBody { params: Some(params), edited_digest, ..body })
        }
        _ => Err(invalid("the form has no `verb` that the console knows")),
    }
}

/// Previews edited parameters.
async fn preview(api: &Api, path: &str, form: &Form) -> Result<Edited, Problem> {
    let now: ApprovalView = api.get(path).await?;
    let params = question::edited_params(api, &now, form).await?;
    let view: PreviewView =
        api.post(&format!("{path}/preview"), &EditBody { params: params.clone() }).await?;
    Ok(Edited::of(view, params))
}

/// Decides about the marked questions, each for the digest that its row had. Tier R4 is never among them.
async fn decide_several(State(app): AppState, api: Api, headers: HeaderMap, form: Form) -> Page {
    let mut results = Vec::new();
    let (verb, reason) = (form.get("verb").unwrap_or_default(), form.text("reason"));
    let picks: Vec<_> =
        form.all("pick").filter_map(|pick| pick.split_once('=')).take(HELD_PAGE + 1).collect();
    if picks.len() > HELD_PAGE {
        let why = format!("mark at most {HELD_PAGE} questions, as many as a page has");
        return Err(Problem::of(Kind::DecisionInvalid, why).into());
    }
    for (id, digest) in picks {
        let path = format!("/v1/approvals/{}", percent_encoded(id));
        let view = api.get::<ApprovalView>(&path).await;
        let prompt = view.as_ref().ok().and_then(|view| view.prompt.as_ref());
        let what = view.as_ref().map_or_else(
            |_| id.to_owned(),
            |view| {
                let about = prompt.and_then(|prompt| prompt.about.clone()).unwrap_or_default();
                format!("{} {about}", view.tool_id)
            },
        );
        let done = match verb {
            "approve" | "deny" if prompt.is_some_and(|prompt| prompt.tier == "R4") => {
                Err(Problem::of(Kind::DecisionInvalid, "an action of tier R4 is not decided with others"))
            }
            "approve" => {
                let body = ApproveBody {
                    digest: Some(digest.to_owned()),
                    reason: reason.clone(),
                    ..ApproveBody::default()
                };
                api.post::<DecisionView>(&format!("{path}/approve?wait_ms=0"), &body).await
            }
            "deny" => deny(&api, &path, digest, reason.clone()).await,
            _ => Err(Problem::of(Kind::DecisionInvalid, "the form has no `verb` that the console knows")),
        };
        let said =
            done.as_ref().map_or_else(|problem| problem.detail.clone(), |done| done.approval.state.clone());
        results.push(Done { what, said, problem: done.err() });
    }
    if results.is_empty() {
        let problem = Problem::of(Kind::DecisionInvalid, "no question was marked");
        return show(
            &app,
            &api,
            &headers,
            Asked::default(),
            Extra { problem: Some(problem), ..Extra::default() },
        )
        .await;
    }
    show(&app, &api, &headers, Asked::default(), Extra { results, ..Extra::default() }).await
}

/// An action without harm, for somebody who has none yet. The policy judges it.
async fn attempt(api: Api, form: Form) -> Page {
    let action = form.text("action_id").unwrap_or_default();
    let request = json!({
        "action_id": action, "tool_id": "files.write_text", "dry_run": false,
        "subject_id": form.text("subject"), "space_id": form.text("space"), "policy_ctx": {},
        "params": { "path": "workspace/effectd-hello.txt", "text": "Hello from the console of effectd.\n", "space_id": form.text("space") },
    });
    // A refusal has a receipt, too, which the page then shows; what was never accepted is the problem's own page.
    match api.post::<ActionView>(&format!("/v1/actions?wait={WAIT_MS}"), &request).await {
        Err(problem) if problem.receipt.is_none() => Err(problem.into()),
        Ok(_) | Err(_) => Ok(Redirect::to(&format!("/?tried={}", percent_encoded(&action))).into_response()),
    }
}
