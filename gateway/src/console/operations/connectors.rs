//! Connectors: MCP servers, and what has changed in their tools since a person reviewed them.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use super::super::api::Api;
use super::super::page::{Page, Shell, filters, page};
use crate::app::App;
use crate::client::percent_encoded;
use crate::extract::Path;
use crate::views::connectors::ConnectorView;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/operations/connectors", get(list))
        .route("/console/operations/connectors/{id}", get(show))
}

#[derive(Template)]
#[template(path = "connectors.html")]
struct ConnectorsPage {
    shell: Shell,
    part: &'static str,
    connectors: Vec<ConnectorView>,
}

async fn list(api: Api) -> Page {
    let shown = ConnectorsPage {
        shell: Shell::new("Connectors", "operations", &api),
        part: "connectors",
        connectors: api.get("/v1/connectors").await?,
    };
    Ok(page(StatusCode::OK, &shown))
}

#[derive(Template)]
#[template(path = "connector.html")]
struct ConnectorPage {
    shell: Shell,
    part: &'static str,
    connector: ConnectorView,
}

async fn show(api: Api, Path(id): Path<String>) -> Page {
    let connector: ConnectorView = api.get(&format!("/v1/connectors/{}", percent_encoded(&id))).await?;
    let shown = ConnectorPage {
        shell: Shell::new(connector.name.clone(), "operations", &api),
        part: "connectors",
        connector,
    };
    Ok(page(StatusCode::OK, &shown))
}
