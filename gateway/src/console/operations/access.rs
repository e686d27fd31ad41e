//! Who may do what: the policy in force with its organisations and sessions, and who has access: sessions, grants and tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use effectd_actors::PrincipalRole;
use effectd_actors::services::sessions::is_visible;
use effectd_contracts::{Connection, Session};

use super::super::api::Api;
use super::super::inbox::grant;
use super::super::page::{Form, Page, Shell, filters, page, plain_breaks};
use super::permitted;
use crate::app::{App, AppState};
use crate::client::percent_encoded;
use crate::problem::{Kind, Problem};
use crate::text::shown_text;
use crate::views::grants::GrantView;
use crate::views::policy::{PolicyFile, PolicyFiles, PolicyView, ReplayView, ShadowFiles, ShadowView};
use crate::views::session::AvailableList;
use crate::views::sessions::{OrgView, SessionList};
use crate::views::tokens::{TokenList, TokenView};

/// Sessions that the table of the policy has columns for: the newest.
const SESSIONS: usize = 6;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/operations/policy", get(policy).post(replay))
        .route("/console/operations/access", get(access))
}

/// A row of the table: a tool, and the answer to each session.
struct Rule {
    tool: String,
    answers: Vec<&'static str>,
}

/// How a mode is shown.
fn answer(mode: Option<&str>) -> &'static str {
    match mode {
        Some("allow") => "allow",
        Some("require_approval") => "ask",
        Some(_) => "deny",
        None => "",
    }
}

#[derive(Template)]
#[template(path = "policy.html")]
struct PolicyPage {
    shell: Shell,
    part: &'static str,
    policy: Option<PolicyView>,
    /// Those in force for who may see them, or those that were sent.
    files: Vec<PolicyFile>,
    /// The changes beside the files, for who may see them.
    overlay: Option<String>,
    /// What past decisions would be under the files that were sent.
    replayed: Option<Result<ReplayView, Problem>>,
    shadow: Option<ShadowView>,
    orgs: Vec<OrgView>,
    sessions: Vec<Session>,
    rules: Vec<Rule>,
}

async fn policy(api: Api) -> Page {
    show(api, None).await
}

/// Asks for the past decisions under other files, the newest first.
async fn replay(api: Api, form: Form) -> Page {
    let file = |(name, text): (&str, &str)| PolicyFile { name: name.to_owned(), text: plain_breaks(text) };
    let mut sent = ShadowFiles { files: form.all("name").zip(form.all("text")).map(file).collect() };
    let after = form.text("after").map(|after| format!("&after={}", percent_encoded(&after)));
    let path = format!("/v1/policy/replay?order=newest{}", after.unwrap_or_default());
    let tried = sent.clone();
    sent.files.retain(|file| !file.text.trim().is_empty());
    match api.post::<ReplayView>(&path, &sent).await {
        Err(problem) if problem.code != Kind::PolicyInvalid.code() => Err(problem.into()),
        replayed => show(api, Some((tried, replayed))).await,
    }
}

async fn show(api: Api, replay: Option<(ShadowFiles, Result<ReplayView, Problem>)>) -> Page {
    let (mut sessions, mut rules) = (Vec::new(), BTreeMap::<String, Vec<&'static str>>::new());
    let open = newest_sessions(&api).await?.into_iter().filter(|session| session.ended_at.is_none());
    for session in open.take(SESSIONS) {
        let path = format!("/{}/actions/available", percent_encoded(session.session_id.as_str()));
        let list: AvailableList = match api.get(&path).await {
            Ok(list) => list,
            // Who created it and has left its organisation sees that it is there, and no more.
            Err(problem) if problem.status == 404 => continue,
            Err(problem) => return Err(problem.into()),
        };
        for one in list.actions {
            let Some(action) = one.action else { continue };
            let answers = rules.entry(format!("{}.{action}", one.integration)).or_default();
            answers.resize(sessions.len(), "");
            answers.push(answer(one.mode.as_deref()));
        }
        sessions.push(session);
    }
    let width = sessions.len();
    let rules = rules.into_iter().map(|(tool, mut answers)| {
        answers.resize(width, "");
        Rule { tool, answers }
    });
    let known: Option<PolicyFiles> = permitted(&api, "/v1/policy/files").await?;
    let overlay = known.as_ref().map(|files| serde_json::to_string_pretty(&files.overlay));
    let mut files = known.map(|known| known.files).unwrap_or_default();
    let (sent, replayed) = replay.unzip();
    files = sent.map_or(files, |sent| sent.files);
    for (name, ending) in [("policy.toml", ".toml"), ("rules.cedar", ".cedar")] {
        if !files.iter().any(|file| file.name.ends_with(ending)) {
            files.push(PolicyFile { name: name.to_owned(), text: String::new() });
        }
    }
    let status = match &replayed {
        Some(Err(_)) => StatusCode::UNPROCESSABLE_ENTITY,
        Some(Ok(_)) | None => StatusCode::OK,
    };
    let shown = PolicyPage {
        shell: Shell::new("Policy", "operations", &api),
        part: "policy",
        policy: permitted(&api, "/v1/policy").await?,
        overlay: overlay.and_then(Result::ok).map(|text| shown_text(&text)),
        files,
        replayed,
        shadow: permitted(&api, "/v1/policy/shadow").await?,
        orgs: api.get("/v1/orgs").await?,
        sessions,
        rules: rules.collect(),
    };
    Ok(page(status, &shown))
}

async fn newest_sessions(api: &Api) -> Result<Vec<Session>, Problem> {
    api.newest("/v1/sessions", |list: SessionList| (list.sessions, list.next)).await
}

#[derive(Template)]
#[template(path = "access.html")]
struct AccessPage {
    shell: Shell,
    part: &'static str,
    /// Each with whether this person may end it.
    sessions: Vec<(Session, bool)>,
    grants: Vec<GrantView>,
    /// At the socket only.
    tokens: Option<Vec<TokenView>>,
    connections: Vec<Connection>,
}

async fn access(State(app): AppState, api: Api) -> Page {
    let (policy, by) = (app.services().policy(), api.peer.decider());
    let sessions = newest_sessions(&api).await?.into_iter().map(|session| {
        let may_end = is_visible(&session, &policy, &by, PrincipalRole::Operate);
        (session, may_end)
    });
    let tokens: Option<TokenList> = permitted(&api, "/v1/tokens").await?;
    let shown = AccessPage {
        shell: Shell::new("Access", "operations", &api),
        part: "access",
        sessions: sessions.collect(),
        grants: grant::all(&api).await?,
        tokens: tokens.map(|list| list.tokens),
        connections: api.get("/v1/connections").await?,
    };
    Ok(page(StatusCode::OK, &shown))
}
