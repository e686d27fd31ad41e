//! The door for Slack: what people click there. Slack has no token; it signs each request, and the body of one is read to check that.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use effectd_actors::approvals::slack::{self, Refused};
use effectd_actors::limits::SLACK_ANSWER_MAX;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::app::{App, AppState};
use crate::problem::{Kind, Problem};

/// Whether a request at this path proves itself by Slack's signature.
pub(crate) fn is_at(path: &str) -> bool {
    path.starts_with("/slack/interactions/")
}

/// It is no part of `/openapi.json`, which describes what programs use.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/slack/interactions/{org}", post(interact))
}

/// Takes a click once, and answers when it is decided or Slack would wait no longer. What the person hears of it follows by Slack's API.
async fn interact(
    State(app): AppState,
    Path(org): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    let read = app.strangers_body(body).await?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let proof = (header("x-slack-request-timestamp"), header("x-slack-signature"));
    let own = slack::signed(app.services(), &org, proof, &read.bytes).await?;
    let mut fields = form_urlencoded::parse(&read.bytes);
    let payload = fields.find_map(|(name, value)| (name == "payload").then_some(value));
    let interaction = payload.and_then(|payload| serde_json::from_str(&payload).ok());
    let interaction =
        interaction.ok_or_else(|| Problem::of(Kind::QueryInvalid, "this is no interaction of Slack"))?;
    let (services, (tell, told)) = (app.services().clone(), oneshot::channel());
    // It completes even if Slack does not wait.
    tokio::spawn(async move {
        let (answer, echo) = match slack::decide(&services, own, interaction).await {
            Ok(echo) => (Ok(()), echo),
            Err(refused) => (Err(refused), None),
        };
        // Nobody may wait any more.
        let _ = tell.send(answer);
        if let Some(echo) = echo {
            slack::echo(services, echo).await;
        }
    });
    match timeout(SLACK_ANSWER_MAX, told).await {
        Ok(Ok(Err(refused))) => Err(refused.into()),
        Ok(Ok(Ok(())) | Err(_)) | Err(_) => Ok(StatusCode::OK),
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotSigned => Self::of(Kind::Unauthenticated, refused.to_string()),
            Refused::Elsewhere => Self::of(Kind::NotFound, refused.to_string()),
            Refused::Store(error) => error.into(),
        }
    }
}
