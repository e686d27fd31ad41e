//! The console: pages for people in a browser, at `/` of the door on the network.
//!
//! It decides nothing itself. A page asks the routes of `/v1` in this process, as the person who is signed in, and shows their answers as
//! HTML; a form sends its fields to them. So the roles of the account decide here as they do everywhere. Every page works without the
//! script, which sends the same forms, swaps what has changed, and listens to live events.

mod actions;
mod api;
mod assets;
mod inbox;
mod operations;
mod page;
mod sign_in;

use std::future::ready;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method};
use axum::routing::{any, get};
use axum::{Extension, Router, middleware};
use futures_util::StreamExt;

use crate::app::{App, AppState};
use crate::problem::{Kind, Problem};
use crate::signed_in;
use api::Api;
use page::{Failed, Page};

const LAST_EVENT_ID: &str = "last-event-id";

/// Whether a browser's session may be used at this path, and nothing else.
pub(crate) fn is_at(path: &str) -> bool {
    path == "/" || path == "/console" || path.starts_with("/console/")
}

/// The pages. They are no part of `/openapi.json`, which describes what programs use.
pub(crate) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    Router::new()
        .merge(assets::routes())
        .merge(sign_in::routes())
        .merge(inbox::routes())
        .merge(actions::routes())
        .merge(operations::routes())
        .route("/console/stream", get(stream))
        .route("/console/{*path}", any(nothing_here))
        .layer(Extension(api::Routes::new(app)))
        .layer(middleware::map_response_with_state(app.clone(), page::secured))
}

async fn nothing_here() -> Failed {
    Failed(Problem::of(Kind::NoSuchPath, "the console has no such page"))
}

/// The live events of `/v1/stream`, for a browser, whose cookie counts only here.
async fn stream(State(app): AppState, api: Api, cookies: HeaderMap) -> Page {
    let last = cookies.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let headers: Vec<_> = last.map(|id| (LAST_EVENT_ID, id)).into_iter().collect();
    let answer = api.send(Method::GET, "/v1/stream", Vec::new(), &headers).await?;
    let session = signed_in::cookie(&cookies, app.settings().is_tls()).unwrap_or_default().to_owned();
    // It ends with the session, at the latest with the next sign of life.
    let is_here =
        move |_: &Result<_, _>| ready(app.signed_in.peer(&session, app.services().clock.now()).is_some());
    Ok(answer.map(|body| Body::from_stream(body.into_data_stream().take_while(is_here))))
}
