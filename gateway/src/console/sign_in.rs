//! Signing in, with a token or a one-time link, and signing out.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use effectd_contracts::TokenKind;
use serde::Deserialize;

use super::page::{Form, Page, Query, Shell, filters, page};
use crate::app::{App, AppState};
use crate::authenticate;
use crate::peer::{Caller, Peer};
use crate::problem::{Kind, Problem};
use crate::signed_in::{cookie, set_cookie};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/login", get(form).post(login))
        .route("/console/link/{value}", get(link).post(redeem))
        .route("/console/logout", post(logout))
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    shell: Shell,
    /// Where to go afterwards.
    to: String,
    problem: Option<String>,
}

#[derive(Template)]
#[template(path = "link.html")]
struct LinkPage {
    shell: Shell,
    principal: String,
}

#[derive(Deserialize)]
struct To {
    to: Option<String>,
}

/// A path of the console, and never another site.
fn path(to: Option<&str>) -> String {
    let own = |to: &&str| {
        super::is_at(to.split('?').next().unwrap_or_default())
            && !to.contains(|c: char| c == '\\' || c.is_control())
    };
    to.filter(own).unwrap_or("/").to_owned()
}

async fn form(Query(To { to }): Query<To>) -> Response {
    refused(StatusCode::OK, path(to.as_deref()), None)
}

fn refused(status: StatusCode, to: String, problem: Option<String>) -> Response {
    page(status, &LoginPage { shell: Shell::bare("Sign in"), to, problem })
}

async fn login(State(app): AppState, headers: HeaderMap, body: Body) -> Page {
    let read = app.strangers_body(body).await?;
    let form = Form::of(&read.bytes)?;
    let to = path(form.get("to"));
    match signed_in(&app, form.get("token").unwrap_or_default().trim()).await {
        Ok(peer) => enter(&app, &headers, peer, &to),
        Err(problem) if problem.status == 401 || problem.status == 403 => {
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::UNAUTHORIZED);
            Ok(refused(status, to, Some(problem.detail)))
        }
        Err(problem) => Err(problem.into()),
    }
}

/// The holder of a token, if it is a person.
async fn signed_in(app: &App, token: &str) -> Result<Peer, Problem> {
    let claims = authenticate::holder(app, token).await?;
    if claims.kind != TokenKind::User {
        let kind = claims.kind.as_str();
        let why =
            format!("the console is for people: a {kind} token decides nothing; use one of the kind `user`");
        return Err(Problem::of(Kind::TokenForbidden, why));
    }
    let principal = claims.principal.clone();
    Ok(Peer { caller: Caller::Token(Arc::new(claims)), principal, operator: false })
}

fn enter(app: &App, headers: &HeaderMap, peer: Peer, to: &str) -> Page {
    let is_tls = app.settings().is_tls();
    // The session before this one, if there is one, has no further use.
    if let Some(before) = cookie(headers, is_tls) {
        app.signed_in.leave(before);
    }
    let clock = &app.services().clock;
    let (value, ends) = app.signed_in.enter(peer, &**clock)?;
    let left = u64::try_from(ends.as_second() - clock.now().as_second()).unwrap_or(0);
    let cookie = set_cookie(is_tls, Some((&value, Duration::from_secs(left))));
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(to)).into_response())
}

async fn logout(State(app): AppState, headers: HeaderMap) -> Response {
    let is_tls = app.settings().is_tls();
    if let Some(value) = cookie(&headers, is_tls) {
        app.signed_in.leave(value);
    }
    ([(header::SET_COOKIE, set_cookie(is_tls, None))], Redirect::to("/console/login")).into_response()
}

fn used_up() -> Problem {
    let why = "this link was used already, or is too old; `effectd console` prints another one";
    Problem::of(Kind::Unauthenticated, why)
}

/// Asks before it signs in: what opens links by itself, such as a chat, does not use this one up.
async fn link(State(app): AppState, Path(value): Path<String>) -> Page {
    let peer = app.signed_in.linked(&value, app.services().clock.now()).ok_or_else(used_up)?;
    let principal = peer.principal.to_string();
    Ok(page(StatusCode::OK, &LinkPage { shell: Shell::bare("Sign in"), principal }))
}

async fn redeem(State(app): AppState, Path(value): Path<String>, headers: HeaderMap) -> Page {
    let peer = app.signed_in.redeem(&value, app.services().clock.now()).ok_or_else(used_up)?;
    enter(&app, &headers, peer, "/")
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_sign_in_leads_to_the_console_and_nowhere_else() {
        for own in ["/", "/console/approvals/1?x=y", "/?after=1"] {
            assert_eq!(path(Some(own)), own);
        }
        for other in [
            "//evil.example",
            "https://evil.example",
            "/v1/receipts",
            "/console/\\evil",
            "",
            "console/",
            "/console/\nx",
        ] {
            assert_eq!(path(Some(other)), "/", "{other}");
        }
    }
}
