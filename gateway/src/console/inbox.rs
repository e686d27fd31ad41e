//! The inbox: what waits for a person, one question whole, and the ways to decide about it.

mod question;

use std::fmt::Write as _;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use effectd_actors::PrincipalRole;
use effectd_actors::limits::HELD_PAGE;
use effectd_contracts::{ActionId, ApprovalId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::Api;
use super::page::{Form, Page, Shell, filters, page};
use crate::app::{App, AppState};
use crate::client::percent_encoded;
use crate::extract::Query;
use crate::problem::{Kind, Problem};
use crate::signed_in;
use crate::views::actions::ActionView;
use crate::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, HowWord, PreviewView,
};
use crate::views::receipts::ReceiptList;
use question::{Block, Edited, How, Question, Row};

/// How long a decision waits for the end of its action, to say how it ended.
const WAIT_MS: u64 = 2_000;
/// Where nothing says otherwise, as on the command line.
const SUBJECT: &str = "agent://planner@deviceA";
const SPACE: &str = "shared:household";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(first))
        .route("/console/approvals", get(async || Redirect::to("/")).post(decide_several))
        .route("/console/approvals/{id}", get(one).post(decide))
        .route("/console/try", post(attempt))
}

#[derive(Template)]
#[template(path = "inbox.html")]
struct InboxPage {
    shell: Shell,
    rows: Vec<Row>,
    /// The `after` of this page of the queue, and of the next one.
    after: Option<String>,
    next: Option<String>,
    /// Whether the address names the question: on a narrow screen, it is then all that is shown.
    selected: bool,
    question: Option<Question>,
    /// Of what is shown as the question: a live refresh leaves it alone while this stays.
    version: String,
    may_decide: bool,
    notice: Option<Notice>,
    problem: Option<Problem>,
    results: Vec<Done>,
    first_run: Option<FirstRun>,
}

/// What the decision before came to.
struct Notice {
    tone: &'static str,
    text: String,
    action: Option<String>,
}

/// One of several decisions.
struct Done {
    what: String,
    said: String,
    problem: Option<Problem>,
}

struct FirstRun {
    subject: String,
    space: String,
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
    notice: Option<Notice>,
    problem: Option<Problem>,
    results: Vec<Done>,
    edited: Option<Edited>,
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

async fn show(app: &App, api: &Api, headers: &HeaderMap, asked: Asked, extra: Extra) -> Page {
    let Extra { selected, mut notice, mut problem, results, edited } = extra;
    let after = asked.after.as_ref().map(|after| format!("?after={}", percent_encoded(after)));
    let list: ApprovalList = api.get(&format!("/v1/approvals{}", after.unwrap_or_default())).await?;
    let open = match &selected {
        Some(id) => {
            Some(api.get::<ApprovalView>(&format!("/v1/approvals/{}", percent_encoded(id.as_str()))).await?)
        }
        None => list.approvals.first().cloned(),
    };
    let current = open.as_ref().map(|open| open.approval_id.clone()).unwrap_or_default();
    let rows: Vec<Row> =
        list.approvals.iter().map(|view| Row::of(view, &current, asked.after.as_deref())).collect();
    let following = rows
        .iter()
        .skip_while(|row| row.id != current)
        .nth(1)
        .or_else(|| rows.iter().find(|row| row.id != current));
    let following = following.map_or_else(String::new, |row| row.id.clone());
    if let (None, Some(did)) = (&notice, &asked.did) {
        notice = outcome_of(api, did).await;
    }
    if let (None, Some(tried)) = (&notice, &asked.tried) {
        notice = attempted(api, tried).await;
    }
    let mut question = match open {
        None => None,
        // What is asked for beside the question may be refused, as `always` is under a floor: then the question says so.
        Some(view) => match Question::load(api, view.clone(), (asked.how, edited), following.clone()).await {
            Ok(question) => Some(question),
            Err(refused) if asked.how != How::Look && problem.is_none() => {
                problem = Some(refused);
                Some(Question::load(api, view, (How::Look, None), following).await?)
            }
            Err(refused) => return Err(refused.into()),
        },
    };
    if let Some(question) = &mut question
        && let Some(value) = signed_in::cookie(headers, app.settings().is_tls())
        && let Ok(id) = ApprovalId::new(question.id.clone())
    {
        question.compare(|text| app.signed_in.shown(value, &id, text));
    }
    // Who sees only receipts of their own cannot tell whether nothing has happened.
    let sees_all = app.may_operate(&api.peer, PrincipalRole::Learner);
    let first_run = if sees_all && rows.is_empty() && question.is_none() && notice.is_none() {
        let any: ReceiptList = api.get("/v1/receipts?limit=1").await?;
        any.receipts.is_empty().then(|| FirstRun { subject: SUBJECT.to_owned(), space: SPACE.to_owned() })
    } else {
        None
    };
    let version = question.as_ref().map_or_else(|| "none".to_owned(), Question::stamp);
    let status = problem.as_ref().and_then(|problem| StatusCode::from_u16(problem.status).ok());
    let inbox = InboxPage {
        shell: Shell::new(
            if rows.is_empty() { "Inbox".to_owned() } else { format!("Inbox ({})", rows.len()) },
            "inbox",
            api,
        ),
        rows,
        after: asked.after,
        next: list.next,
        selected: selected.is_some(),
        question,
        version,
        may_decide: app.may_decide(&api.peer),
        notice,
        problem,
        results,
        first_run,
    };
    Ok(page(status.unwrap_or(StatusCode::OK), &inbox))
}

/// How a decision went, from its record and its action.
async fn outcome_of(api: &Api, did: &ApprovalId) -> Option<Notice> {
    let view: ApprovalView =
        api.get(&format!("/v1/approvals/{}", percent_encoded(did.as_str()))).await.ok()?;
    let action = view.action_ids.first()?.clone();
    let mut text = format!("{}: {}", view.tool_id, view.state);
    let mut tone = if view.state == "approved" { "good" } else { "" };
    if view.state == "approved" {
        let found: Result<ActionView, _> =
            api.get(&format!("/v1/actions/{}", percent_encoded(&action))).await;
        if let Ok(ActionView { approval: Some(held), .. }) = &found {
            tone = "warn";
            // Writing to a string cannot fail.
            let _ = write!(text, ", but it needs another approval: {}", held.reasons.join("; "));
        } else if let Ok(ActionView { outcome: Some(outcome), receipt, .. }) = found {
            let error = receipt.and_then(|receipt| receipt.error).map(|error| error.message);
            tone = if error.is_some() { "bad" } else { tone };
            let _ = write!(
                text,
                ", {}{}",
                question::words(outcome.as_str()),
                error.map(|why| format!(": {why}")).unwrap_or_default()
            );
        }
    }
    Some(Notice { tone, text, action: Some(action) })
}

/// How an action went that was made from the first page.
async fn attempted(api: &Api, action: &ActionId) -> Option<Notice> {
    let found: Result<ActionView, Problem> =
        api.get(&format!("/v1/actions/{}", percent_encoded(action.as_str()))).await;
    let (tone, text) = match found {
        Ok(view) => {
            let error = view.receipt.as_ref().and_then(|receipt| receipt.error.as_ref());
            let outcome = view.outcome.map_or("accepted", |outcome| outcome.as_str());
            let why = error.map(|error| format!(": {}", error.message)).unwrap_or_default();
            (
                if error.is_some() { "bad" } else { "good" },
                format!("Your action: {}{why}", question::words(outcome)),
            )
        }
        Err(problem) => ("bad", problem.detail),
    };
    Some(Notice { tone, text, action: Some(action.to_string()) })
}

/// A decision about one question, for the digest that was shown. What is refused shows the question as it is now, and why.
async fn decide(
    State(app): AppState,
    api: Api,
    headers: HeaderMap,
    Path(id): Path<String>,
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
                return show(&app, &api, &headers, Asked::default(), extra).await;
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
        Ok(_) => {
            let next = form.text("next").and_then(|next| ApprovalId::new(next).ok());
            let to = next.map_or("/".to_owned(), |next| {
                format!("/console/approvals/{}", percent_encoded(next.as_str()))
            });
            Ok(Redirect::to(&format!("{to}?did={}", percent_encoded(id.as_str()))).into_response())
        }
        Err(problem) => {
            extra.problem = Some(problem);
            let how = if verb == "preview" { How::Edit } else { How::Look };
            show(&app, &api, &headers, Asked { how, ..Asked::default() }, extra).await
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
        // What cannot be read may be of this tier.
        let is_highest = prompt.is_none_or(|prompt| prompt.tier == "R4");
        let done = match verb {
            "approve" | "deny" if is_highest => {
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
    let action = ActionId::fresh();
    let request = json!({
        "action_id": action, "tool_id": "files.write_text", "dry_run": false,
        "subject_id": form.text("subject"), "space_id": form.text("space"), "policy_ctx": {},
        "params": { "path": "workspace/effectd-hello.txt", "text": "Hello from the console of effectd.\n", "space_id": form.text("space") },
    });
    // A refusal has a receipt, too, which the page then shows; what was never accepted is the problem's own page.
    match api.post::<ActionView>(&format!("/v1/actions?wait={WAIT_MS}"), &request).await {
        Err(problem) if problem.receipt.is_none() => Err(problem.into()),
        Ok(_) | Err(_) => {
            Ok(Redirect::to(&format!("/?tried={}", percent_encoded(action.as_str()))).into_response())
        }
    }
}
