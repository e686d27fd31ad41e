//! Connectors: the tools of MCP servers, and what people have reviewed of them. Members of the organisation look, its admins and operators
//! change. They are created, enabled, disabled and deleted as connections are.

use axum::extract::State;
use effectd_actors::OrgRole;
use effectd_actors::operator::{connections as connections_of, connectors as connectors_of};
use effectd_actors::services::connectors::{self, Known};
use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{Code, IdInvalid, Operation, ToolId, ToolOverlay, Transport};

use super::connections::{administered, administered_by, visible};
use super::operations::{ChangeOf, ChangeQuery, change};
use crate::app::{App, AppState};
use crate::extract::{Json, Path, Payload, Query, Reply};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::connectors::{ConnectorCheck, ConnectorView, OverlayBody, ReviewBody};
use crate::views::operations::OperationView;

/// Connectors
///
/// Operators see all, others those of organisations that they belong to. One whose server does not answer has an `error`.
#[utoipa::path(get, path = "/v1/connectors", tag = "connectors",
    responses((status = 200, description = "All of them, oldest first, without their tools", body = Vec<ConnectorView>), Problems<503>))]
pub(crate) async fn list(State(app): AppState, peer: Peer) -> Reply<Vec<ConnectorView>> {
    let list = move |app: &App| {
        let all = connectors::all(app.services())?.into_iter();
        let seen = all.filter(|known| app.sees_org(&peer, known.connection.org.as_str(), OrgRole::Member));
        Ok(seen.map(|known| ConnectorView::of(&known, None)).collect())
    };
    app.blocking(list).await.map(Json)
}

/// A connector with its tools
///
/// Each tool has how it differs from what was reviewed. The `digest` is what a review accepts.
#[utoipa::path(get, path = "/v1/connectors/{id}", tag = "connectors",
    responses((status = 200, description = "The connector", body = ConnectorView), Problems<404, 503>))]
pub(crate) async fn show(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<ConnectorView> {
    let show = move |app: &App| {
        let registry = app.services().registry();
        Ok(ConnectorView::of(&seen(app, &peer, &id)?, Some(&registry)))
    };
    app.blocking(show).await.map(Json)
}

/// The connector of this id, if the peer may see it.
fn seen(app: &App, peer: &Peer, id: &str) -> Result<Known, Problem> {
    let connection = visible(app, peer)?.into_iter().find(|known| known.connection_id.as_str() == id);
    let known =
        connection.map(|connection| connectors::known(app.services(), connection)).transpose()?.flatten();
    known.ok_or_else(|| Problem::of(Kind::NotFound, "you have no connector of this id"))
}

/// Look whether a server can be used
///
/// It is reached and asked for its tools. Nothing of the answer is stored.
#[utoipa::path(post, path = "/v1/connectors/{id}/validate", tag = "connectors",
    responses((status = 200, description = "What was found, also if the server cannot be used", body = ConnectorCheck), Problems<403, 404>))]
pub(crate) async fn validate(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Reply<ConnectorCheck> {
    let known = seen(&app, &peer, &id)?;
    let id = administered_by(&app, &peer, &id)?;
    let mut check = ConnectorCheck { says: Vec::new(), fault: None, advice: None };
    if matches!(known.connector.transport, Transport::Http { .. })
        && let Ok(tested) = connections_of::test(app.services(), &id).await
        && let (Some(seen), None) = (&tested.seen, &tested.fault)
    {
        let address = tested.record.address.unwrap_or_default();
        check.says.push(format!("{} is {address} ({})", tested.record.host, seen.class.as_str()));
    }
    match connectors_of::listed(app.services(), &id).await {
        Ok(harvest) => check.listed(&harvest),
        Err(failure) => {
            let host = known.connection.hosts.first().map_or("HOST", String::as_str);
            let known = [
                (Code::NetworkNotWhitelisted, format!("effectd policy set-entry hosts {host} allow")),
                (Code::ConnectionMissing, format!("effectd connectors enable {id}")),
                (Code::SecretMissing, "effectd secrets set".to_owned()),
            ];
            let known = known.into_iter().find_map(|(code, advice)| (code == failure.code).then_some(advice));
            let else_look = "look whether the address, the path and the credential are right, and whether the server runs";
            check.advice = known.or_else(|| Some(else_look.to_owned()));
            check.fault = Some(failure.message);
        }
    }
    Ok(Json(check))
}

/// Ask a server for its tools
///
/// What it lists replaces what it listed before, in one piece. If it does not answer, that stays.
#[utoipa::path(post, path = "/v1/connectors/{id}/harvest", tag = "connectors",
    params(ChangeQuery),
    responses((status = 200, description = "It has listed its tools, or would be asked", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn harvest(of: ChangeOf) -> Reply<OperationView> {
    let connection_id = administered(&of)?;
    of.by(Operation::HarvestConnector { connection_id }).await
}

/// Accept the tools of a server as they are described now
///
/// Refused if they are described otherwise than what was shown.
#[utoipa::path(post, path = "/v1/connectors/{id}/review", tag = "connectors",
    params(ChangeQuery),
    request_body(content = ReviewBody, content_type = "application/json"),
    responses((status = 200, description = "They are accepted, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn review(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (ReviewBody { digest }, _share) = app.json_body(body, Kind::QueryInvalid).await?;
    let connection_id = administered_by(&app, &peer, &id)?;
    change(&app, &peer, Operation::ReviewConnector { connection_id, digest }, query).await
}

/// Say about a tool what its server says otherwise
///
/// An empty body restores the server's words.
#[utoipa::path(put, path = "/v1/connectors/{id}/tools/{name}", tag = "connectors",
    params(ChangeQuery),
    request_body(content = OverlayBody, content_type = "application/json"),
    responses((status = 200, description = "It is said, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn overlay(
    State(app): AppState,
    peer: Peer,
    Path((id, tool)): Path<(String, String)>,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (body, _share): (OverlayBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let connection_id = administered_by(&app, &peer, &id)?;
    let no_name = |error: IdInvalid| Problem::of(Kind::QueryInvalid, error.to_string());
    let tool_id = ToolId::new(format!("{CONNECTOR_SOURCE}{connection_id}.{tool}")).map_err(no_name)?;
    let OverlayBody { title, description, risk, tier } = body;
    let says = ToolOverlay { title, description, risk, tier };
    let says = (says != ToolOverlay::default()).then(|| Box::new(says));
    change(&app, &peer, Operation::OverlayTool { tool_id, says }, query).await
}
