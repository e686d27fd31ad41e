//! Plugins, for operators: the packages in the operator's folder, and those of them whose tools are offered.

use axum::extract::State;
use effectd_contracts::Operation;

use super::operations::{ChangeOf, ChangeQuery, change};
use crate::app::AppState;
use crate::extract::{Operator, Path, Payload, Query, Reply, Viewer};
use crate::problem::{Kind, Problems};
use crate::views::operations::OperationView;
use crate::views::plugins::{AddBody, PluginView};

/// Plugins
///
/// All packages in the operator's folder, and all that were added.
#[utoipa::path(get, path = "/v1/plugins", tag = "plugins",
    responses((status = 200, description = "All of them, by name", body = Vec<PluginView>), Problems<403, 503>))]
pub(crate) async fn list(State(app): AppState, _: Viewer) -> Reply<Vec<PluginView>> {
    app.store_query(|services| {
        Ok(services.plugins()?.iter().map(|known| PluginView::of(services, known)).collect())
    })
    .await
}

/// A plugin
///
/// The `digest` is what is accepted by adding it.
#[utoipa::path(get, path = "/v1/plugins/{name}", tag = "plugins",
    responses((status = 200, description = "The package as it is now, and what was added", body = PluginView), Problems<400, 403, 404, 503>))]
pub(crate) async fn show(State(app): AppState, _: Viewer, Path(name): Path<String>) -> Reply<PluginView> {
    app.store_query(move |services| Ok(PluginView::of(services, &services.plugin(&name)?))).await
}

/// Let the package of a plugin be a tool, as it is now
///
/// Refused if it is not what was shown. A package that changes afterwards does not run until it is added again.
#[utoipa::path(post, path = "/v1/plugins/{name}/add", tag = "plugins",
    params(ChangeQuery),
    request_body(content = AddBody, content_type = "application/json"),
    responses((status = 200, description = "It is added, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn add(
    State(app): AppState,
    by: Operator,
    Path(name): Path<String>,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    by.check_administers(&app)?;
    let (AddBody { digest }, _share) = app.json_body(body, Kind::QueryInvalid).await?;
    change(&app, &by.0, Operation::AddPlugin { name, digest }, query).await
}

/// Take the tool of a plugin away
#[utoipa::path(delete, path = "/v1/plugins/{name}", tag = "plugins",
    params(ChangeQuery),
    responses((status = 200, description = "It is removed, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn remove(by: Operator, change: ChangeOf) -> Reply<OperationView> {
    by.check_administers(&change.app)?;
    let name = change.id.clone();
    change.by(Operation::RemovePlugin { name }).await
}
