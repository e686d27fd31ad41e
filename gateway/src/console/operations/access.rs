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
use super::super::page::{Page, Shell, filters, page};
use super::permitted;
use crate::app::{App, AppState};
use crate::client::percent_encoded;
use crate::problem::Problem;
use crate::text::shown_text;
use crate::views::grants::GrantView;
use crate::views::policy::{PolicyFile, PolicyFiles, PolicyView, ShadowView};
use crate::views::session::AvailableList;
use crate::views::sessions::{OrgView, SessionList};
use crate::views::tokens::{TokenList, TokenView};

/// Sessions that the table of the policy has columns for: the newest.
const SESSIONS: usize = 6;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/operations/policy", get(policy))
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
    /// At the socket only.
    files: Option<PolicyFiles>,
    overlay: String,
    shadow: Option<ShadowView>,
    orgs: Vec<OrgView>,
    sessions: Vec<Session>,
    rules: Vec<Rule>,
}

async fn policy(api: Api) -> Page {
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
    let files: Option<PolicyFiles> = permitted(&api, "/v1/policy/files").await?;
    let overlay = files.as_ref().map(|files| serde_json::to_string_pretty(&files.overlay));
    let shown_files = |files: PolicyFiles| PolicyFiles {
        files: files
            .files
            .into_iter()
            .map(|file| PolicyFile { text: shown_text(&file.text), ..file })
            .collect(),
        ..files
    };
    let shown = PolicyPage {
        shell: Shell::new("Policy", "operations", &api),
        part: "policy",
        policy: permitted(&api, "/v1/policy").await?,
        overlay: overlay.and_then(Result::ok).map(|text| shown_text(&text)).unwrap_or_default(),
        files: files.map(shown_files),
        shadow: permitted(&api, "/v1/policy/shadow").await?,
        orgs: api.get("/v1/orgs").await?,
        sessions,
        rules: rules.collect(),
    };
    Ok(page(StatusCode::OK, &shown))
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
