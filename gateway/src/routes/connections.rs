//! Connections and secrets of organisations, for operators and the organisation's admins.

use axum::extract::State;
use effectd_actors::operator::connections::{self as connections_of, check_value, set_secret};
use effectd_actors::services::connectors::source_of;
use effectd_actors::services::{connections, webhooks};
use effectd_actors::{OrgRole, PrincipalRole, Services};
use effectd_bus::StoreError;
use effectd_contracts::{Connection, ConnectionId, Connector, Operation, OrgId, SecretName, Transport, json};

use super::operations::{self, ChangeOf, ChangeQuery, change, checked_reason, to_end};
use crate::app::{App, AppState};
use crate::body::BodyBytes;
use crate::extract::{Json, Path, Payload, Query, Reply};
use crate::limits::CHANGE_BYTES_MAX;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::connections::{ConnectionBody, ConnectionTest, SecretBody};
use crate::views::operations::OperationView;

/// Connections
///
/// Operators see all, others those of organisations that they belong to.
#[utoipa::path(get, path = "/v1/connections", tag = "connections",
    responses((status = 200, description = "All of them, oldest first", body = Vec<serde_json::Value>), Problems<503>))]
pub(crate) async fn list(State(app): AppState, peer: Peer) -> Reply<Vec<Connection>> {
    app.blocking(move |app| Ok(visible(app, &peer)?)).await.map(Json)
}

/// Create a connection
///
/// It is enabled at once. An organisation has one connection to a source. The answer's `id` is the connection's. One that starts a
/// program of this machine is for its operators, and for no token.
#[utoipa::path(post, path = "/v1/connections", tag = "connections",
    params(ChangeQuery),
    request_body(content = ConnectionBody, content_type = "application/json"),
    responses((status = 200, description = "It is created, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn create(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (body, _share): (ConnectionBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let ConnectionBody { org, source, name, hosts, secrets, access, connector } = body;
    app.check_org(&peer, org.as_str(), OrgRole::Admin)?;
    check_program(&app, &peer, connector.as_ref())?;
    let connection_id = ConnectionId::fresh();
    let id = connection_id.to_string();
    let (access, connector) = (access.map(Box::new), connector.map(Box::new));
    // The id is not known before.
    let source = if connector.is_some() { source_of(&connection_id) } else { source };
    let operation =
        Operation::CreateConnection { connection_id, org, source, name, hosts, secrets, access, connector };
    operations::create(&app, &peer, (operation, id), query).await
}

/// Make a connection lead elsewhere
///
/// Its organisation and source stay. If it leads to another MCP server, the tools are listed and reviewed anew.
#[utoipa::path(put, path = "/v1/connections/{id}", tag = "connections",
    params(ChangeQuery),
    request_body(content = ConnectionBody, content_type = "application/json"),
    responses((status = 200, description = "It is replaced, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn replace(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (body, _share): (ConnectionBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let ConnectionBody { org, source: _, name, hosts, secrets, access, connector } = body;
    let connection_id = administered_by(&app, &peer, &id)?;
    app.check_org(&peer, org.as_str(), OrgRole::Admin)?;
    check_program(&app, &peer, connector.as_ref())?;
    let (access, connector) = (access.map(Box::new), connector.map(Box::new));
    let operation = Operation::ReplaceConnection { connection_id, name, hosts, secrets, access, connector };
    change(&app, &peer, operation, query).await
}

/// Let a connection be used again
#[utoipa::path(post, path = "/v1/connections/{id}/enable", tag = "connections",
    params(ChangeQuery),
    responses((status = 200, description = "It is enabled, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn enable(change: ChangeOf) -> Reply<OperationView> {
    let connection_id = administered(&change)?;
    let known = visible(&change.app, &change.peer)?.into_iter();
    let connector =
        known.filter(|known| known.connection_id == connection_id).find_map(|known| known.connector);
    check_program(&change.app, &change.peer, connector.as_ref())?;
    change.by(Operation::EnableConnection { connection_id }).await
}

/// Refuses a program of this machine to all but its operators: it reads folders that belong to no organisation.
fn check_program(app: &App, peer: &Peer, connector: Option<&Connector>) -> Result<(), Problem> {
    let is_program = connector.is_some_and(|new| matches!(new.transport, Transport::Stdio { .. }));
    match is_program {
        true if peer.claims().is_some() => {
            let why = "no token connects a program of this machine; use the daemon's socket";
            Err(Problem::of(Kind::TokenForbidden, why))
        }
        true if !app.may_operate(peer, PrincipalRole::Operate) => {
            let why =
                "only operators connect a program of this machine: it reads folders of the whole machine";
            Err(Problem::of(Kind::OperatorsOnly, why))
        }
        _ => Ok(()),
    }
}

/// Stop the use of a connection
#[utoipa::path(post, path = "/v1/connections/{id}/disable", tag = "connections",
    params(ChangeQuery),
    responses((status = 200, description = "It is disabled, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn disable(change: ChangeOf) -> Reply<OperationView> {
    let connection_id = administered(&change)?;
    change.by(Operation::DisableConnection { connection_id }).await
}

/// Test a connection
///
/// Finds the address, makes a connection, and asks the first route that only reads and has no placeholder. Nothing is asked if there is
/// no such route. A database says its version, and what the role that asks may do.
#[utoipa::path(post, path = "/v1/connections/{id}/test", tag = "connections",
    responses((status = 200, description = "What was found, also if it cannot be reached", body = ConnectionTest), Problems<403, 404, 502>))]
pub(crate) async fn test(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<ConnectionTest> {
    let id = administered_by(&app, &peer, &id)?;
    let services = app.services();
    let tested = connections_of::test(services, &id).await;
    tested.map(|tested| Json(tested.into())).map_err(Problem::from)
}

/// Delete a connection
#[utoipa::path(delete, path = "/v1/connections/{id}", tag = "connections",
    params(ChangeQuery),
    responses((status = 200, description = "It is deleted, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn delete(change: ChangeOf) -> Reply<OperationView> {
    let connection_id = administered(&change)?;
    change.by(Operation::DeleteConnection { connection_id }).await
}

/// The connection that a request names, if its peer may change it.
pub(super) fn administered(ChangeOf { app, peer, id, .. }: &ChangeOf) -> Result<ConnectionId, Problem> {
    administered_by(app, peer, id)
}

pub(super) fn administered_by(app: &App, peer: &Peer, id: &str) -> Result<ConnectionId, Problem> {
    let found = visible(app, peer)?.into_iter().find(|known| known.connection_id.as_str() == id);
    let unknown = || Problem::of(Kind::NotFound, "you have no connection of this id");
    let found = found.ok_or_else(unknown)?;
    app.check_org(peer, found.org.as_str(), OrgRole::Admin)?;
    Ok(found.connection_id)
}

/// The connections that this peer may see.
pub(super) fn visible(app: &App, peer: &Peer) -> Result<Vec<Connection>, StoreError> {
    let all = connections::all(app.store())?.into_iter().map(|(connection, _)| connection);
    Ok(all.filter(|known| app.sees_org(peer, known.org.as_str(), OrgRole::Member)).collect())
}

/// Secrets, without their values
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", operation_id = "list",
    responses((status = 200, description = "All of them, by organisation and name", body = Vec<serde_json::Value>), Problems<503>))]
pub(crate) async fn secrets(State(app): AppState, peer: Peer) -> Reply<Vec<SecretName>> {
    let list = move |app: &App| {
        let all = connections::secrets(app.store())?.into_iter();
        Ok(all.filter(|known| app.sees_org(&peer, known.org.as_str(), OrgRole::Admin)).collect())
    };
    app.blocking(list).await.map(Json)
}

/// Set the value of a secret
///
/// It is stored sealed, and no answer shows it again. A preview needs no body.
#[utoipa::path(put, path = "/v1/secrets/{org}/{name}", tag = "secrets", operation_id = "set",
    params(ChangeQuery),
    request_body(content = SecretBody, content_type = "application/json"),
    responses((status = 200, description = "It is set, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn set(
    State(app): AppState,
    peer: Peer,
    Path((org, name)): Path<(String, String)>,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let org = administered_org(&app, &peer, org)?;
    if peer.claims().is_some() {
        let hooks = webhooks::all(app.store())?;
        let mut channels = hooks.iter().map(|(hook, _)| hook).filter(|hook| hook.slack.is_some());
        if channels.any(|hook| hook.org == org && hook.signed_by == name) {
            let why = "only users of this machine set it: whoever knows it can answer in Slack for all";
            return Err(Problem::of(Kind::TokenForbidden, why));
        }
    }
    let operation = Operation::SetSecret { org: org.clone(), name: name.clone() };
    let BodyBytes { bytes, share: _share } = app.body(body).await?;
    if query.preview && bytes.is_empty() {
        return change(&app, &peer, operation, query).await;
    }
    // The parser's own words may quote the value.
    let text =
        format!("the body must be {{\"value\": \"…\"}} with a text, in at most {CHANGE_BYTES_MAX} bytes");
    let invalid = |_| Problem::of(Kind::QueryInvalid, text);
    let SecretBody { value } = json::parse(&bytes, CHANGE_BYTES_MAX).map_err(invalid)?;
    check_value(&value).map_err(|error| Problem::for_operator(&error))?;
    if query.preview {
        return change(&app, &peer, operation, query).await;
    }
    let reason = checked_reason(query.reason)?;
    tracing::info!(principal = %peer.principal, operation = operation.tool(), "an operator starts an operation");
    let says = vec![format!("secret {name} of {org} is set")];
    let receipt_id = to_end(&app, &peer, |services, by| async move {
        let services: &Services = &services;
        set_secret(services, (&org, &name), value, (&by, reason)).await
    });
    let receipt_id = receipt_id.await?.map(|id| id.to_string());
    Ok(Json(OperationView { changed: true, says, receipt_id, ..OperationView::default() }))
}

/// Delete a secret
///
/// Refused while a connection needs it.
#[utoipa::path(delete, path = "/v1/secrets/{org}/{name}", tag = "secrets", operation_id = "delete",
    params(ChangeQuery),
    responses((status = 200, description = "It is deleted, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn unset(
    State(app): AppState,
    peer: Peer,
    Path((org, name)): Path<(String, String)>,
    Query(query): Query<ChangeQuery>,
) -> Reply<OperationView> {
    let org = administered_org(&app, &peer, org)?;
    change(&app, &peer, Operation::DeleteSecret { org, name }, query).await
}

fn administered_org(app: &App, peer: &Peer, org: String) -> Result<OrgId, Problem> {
    let org = OrgId::new(org).map_err(|error| Problem::of(Kind::NotFound, error.to_string()))?;
    app.check_org(peer, org.as_str(), OrgRole::Admin)?;
    Ok(org)
}
