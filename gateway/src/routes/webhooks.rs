//! Webhooks of organisations, for operators and the organisation's admins.

use axum::extract::State;
use effectd_actors::OrgRole;
use effectd_actors::services::webhooks;
use effectd_bus::StoreError;
use effectd_contracts::{Operation, Webhook, WebhookId};

use super::operations::{self, ChangeOf, ChangeQuery};
use crate::app::{App, AppState};
use crate::extract::{Json, Payload, Query, Reply};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::connections::WebhookBody;
use crate::views::operations::OperationView;

/// Webhooks
///
/// Operators see all, others those of organisations that they belong to.
#[utoipa::path(get, path = "/v1/webhooks", tag = "webhooks",
    responses((status = 200, description = "All of them, oldest first", body = Vec<serde_json::Value>), Problems<503>))]
pub(crate) async fn list(State(app): AppState, peer: Peer) -> Reply<Vec<Webhook>> {
    app.blocking(move |app| Ok(visible(app, &peer)?)).await.map(Json)
}

/// Create a webhook
///
/// It sends the organisation's events from now on, signed, to a `POST` route of one of its connections. The answer's `id` is the
/// webhook's.
#[utoipa::path(post, path = "/v1/webhooks", tag = "webhooks",
    params(ChangeQuery),
    request_body(content = WebhookBody, content_type = "application/json"),
    responses((status = 200, description = "It is created, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn create(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (body, _share): (WebhookBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let WebhookBody { org, source, path, topics, signed_by, slack } = body;
    app.check_org(&peer, org.as_str(), OrgRole::Admin)?;
    if slack.is_some() && peer.claims().is_some() {
        let why =
            "only users of this machine connect Slack: whoever knows its signing secret can answer for all";
        return Err(Problem::of(Kind::TokenForbidden, why));
    }
    let webhook_id = WebhookId::fresh();
    let id = webhook_id.to_string();
    let slack = slack.map(Box::new);
    let operation = Operation::CreateWebhook { webhook_id, org, source, path, topics, signed_by, slack };
    operations::create(&app, &peer, (operation, id), query).await
}

/// Send events again, from the next one on
#[utoipa::path(post, path = "/v1/webhooks/{id}/enable", tag = "webhooks",
    params(ChangeQuery),
    responses((status = 200, description = "It is enabled, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn enable(change: ChangeOf) -> Reply<OperationView> {
    let webhook_id = administered(&change)?;
    change.by(Operation::EnableWebhook { webhook_id }).await
}

/// Stop sending events
///
/// Those of the meantime are never sent.
#[utoipa::path(post, path = "/v1/webhooks/{id}/disable", tag = "webhooks",
    params(ChangeQuery),
    responses((status = 200, description = "It is disabled, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn disable(change: ChangeOf) -> Reply<OperationView> {
    let webhook_id = administered(&change)?;
    change.by(Operation::DisableWebhook { webhook_id }).await
}

/// Delete a webhook
#[utoipa::path(delete, path = "/v1/webhooks/{id}", tag = "webhooks",
    params(ChangeQuery),
    responses((status = 200, description = "It is deleted, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn delete(change: ChangeOf) -> Reply<OperationView> {
    let webhook_id = administered(&change)?;
    change.by(Operation::DeleteWebhook { webhook_id }).await
}

/// The webhook that a request names, if its peer may change it.
fn administered(ChangeOf { app, peer, id, .. }: &ChangeOf) -> Result<WebhookId, Problem> {
    let found = visible(app, peer)?.into_iter().find(|known| known.webhook_id.as_str() == id);
    let found = found.ok_or_else(|| Problem::of(Kind::NotFound, "you have no webhook of this id"))?;
    app.check_org(peer, found.org.as_str(), OrgRole::Admin)?;
    Ok(found.webhook_id)
}

/// The webhooks that this peer may see.
fn visible(app: &App, peer: &Peer) -> Result<Vec<Webhook>, StoreError> {
    let all = webhooks::all(app.store())?.into_iter().map(|(webhook, _)| webhook);
    Ok(all.filter(|known| app.sees_org(peer, known.org.as_str(), OrgRole::Member)).collect())
}
