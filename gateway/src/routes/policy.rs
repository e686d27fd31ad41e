//! The policy: show, check, reload, change, and explain its decisions.

use axum::body::Body;
use axum::extract::State;
use effectd_actors::approvals::rejudge::{self, Changed, Rejudged};
use effectd_contracts::Operation;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::operations::{self, checked_reason};
use super::receipts;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Query, Reply, Viewer};
use crate::host::Host;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::policy::{Explanation, PolicyChange, PolicyFiles, PolicyView};

/// The policy in force
#[utoipa::path(get, path = "/v1/policy", tag = "policy",
    responses((status = 200, description = "The policy", body = PolicyView), Problems<403>))]
pub(crate) async fn show(State(app): AppState, _: Viewer) -> Reply<PolicyView> {
    app.blocking(|app| Ok(app.host.policy())).await.map(Json)
}

/// The files of the policy in force, and the changes beside them
#[utoipa::path(get, path = "/v1/policy/files", tag = "policy",
    responses((status = 200, description = "The files", body = PolicyFiles), Problems<403>))]
pub(crate) async fn files(State(app): AppState, _: Viewer) -> Reply<PolicyFiles> {
    app.blocking(|app| app.host.policy_files()).await.map(Json)
}

/// Check the policy's files, with the changes beside them and their examples
///
/// Nothing is put in force.
#[utoipa::path(post, path = "/v1/policy/check", tag = "policy",
    responses((status = 200, description = "The files are valid", body = PolicyView), Problems<403, 422>))]
pub(crate) async fn check(State(app): AppState, _: Viewer) -> Reply<PolicyView> {
    app.blocking(|app| app.host.check_policy()).await.map(Json)
}

/// Reload the policy's files and put them in force
///
/// If they are not valid, the policy in force stays. The present folders become the roots of the spaces; `/v1/policy/check` shows
/// beforehand which have changed. Leaves a receipt if it changes anything.
#[utoipa::path(post, path = "/v1/policy/reload", tag = "policy",
    responses((status = 200, description = "The files are in force", body = PolicyView), Problems<403, 422>))]
pub(crate) async fn reload(State(app): AppState, by: Operator) -> Reply<PolicyView> {
    record(&app, &by, (Operation::ReloadPolicy {}, None), |host| host.take_over_policy()).await
}

/// Whether the policy is changed, and why.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangeQuery {
    /// Change nothing, and answer what would change.
    preview: bool,
    /// The operator's reason, for the receipt.
    reason: Option<String>,
}

/// Make a change beside the policy's files, and put it in force
///
/// The answer comes when the change is durable and in force, with the receipt that names the operator. While the files are not
/// valid, every change is refused. Examples test the files alone, so that none of them can prevent a revocation. Pending approvals
/// are judged again: those that need no person because of the change start, and those that are denied now end. An operator who is
/// neither root nor the daemon's user also needs the role `admin`.
#[utoipa::path(post, path = "/v1/policy/changes", tag = "policy",
    params(ChangeQuery),
    request_body(content = PolicyChange, content_type = "application/json"),
    responses((status = 200, description = "The policy with the change; for a preview, the policy that it would become", body = PolicyView), Problems<400, 403, 422>))]
pub(crate) async fn change(
    State(app): AppState,
    by: Operator,
    Query(query): Query<ChangeQuery>,
    body: Body,
) -> Reply<PolicyView> {
    by.check_administers(&app)?;
    let (change, _share): (PolicyChange, _) = app.json_body(body, Kind::ChangeInvalid).await?;
    let reason = checked_reason(query.reason)?;
    if query.preview {
        return app.blocking(move |app| app.host.try_policy(change)).await.map(Json);
    }
    let (before, operation) = (app.services().policy(), (change.operation(), reason));
    let Json(view) = record(&app, &by, operation, move |host| host.change_policy(change)).await?;
    let Rejudged { released, ended, .. } = rejudge::after(app.services(), Changed::Policy(before)).await;
    Ok(Json(PolicyView { released, ended, ..view }))
}

/// Changes the policy, and leaves a receipt if the policy or a root differs afterwards.
async fn record(
    app: &App,
    by: &Operator,
    operation: (Operation, Option<String>),
    change: impl FnOnce(&dyn Host) -> Result<PolicyView, Problem> + Send + 'static,
) -> Reply<PolicyView> {
    let done = operations::by_host(app, by, operation, |host| {
        let before = host.policy().digest;
        let view = change(host)?;
        let details = details(&before, &view);
        Ok((view, details))
    });
    let (view, receipt_id) = done.await?;
    Ok(Json(PolicyView { receipt_id, ..view }))
}

/// What the receipt of a change says; `None` for the same policy with the same roots.
fn details(before: &str, after: &PolicyView) -> Option<Map<String, Value>> {
    let mut details = json!({ "policy_before": before, "policy_after": after.digest });
    if !after.roots.is_empty() {
        details["roots"] = json!(after.roots);
    }
    let changed = before != after.digest || !after.roots.is_empty();
    details.as_object().filter(|_| changed).cloned()
}

/// Explain how the policy would decide about a request, gate by gate
///
/// Nothing runs and nothing is recorded. You are the principal of the request.
#[utoipa::path(post, path = "/v1/policy/explain", tag = "policy",
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses((status = 200, description = "Every gate, what it saw, and what has to change", body = Explanation), Problems<400, 404>))]
pub(crate) async fn explain(State(app): AppState, peer: Peer, body: Body) -> Reply<Explanation> {
    let (request, _, _share) = app.action_request(body).await?;
    let explain = move |app: &App| app.host.explain_request(&request, &peer.principal);
    app.blocking(explain).await.map(Json)
}

/// Explain how the policy would decide now, from the facts in a receipt
#[utoipa::path(get, path = "/v1/receipts/{id}/explanation", tag = "receipts", operation_id = "explain",
    params(("id" = String, Path, description = "The receipt's id")),
    responses((status = 200, description = "Every gate, what it saw, and what has to change", body = Explanation), Problems<404>))]
pub(crate) async fn explain_receipt(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Reply<Explanation> {
    let receipt = receipts::find(&app, &peer, id)?;
    app.blocking(move |app| app.host.explain_receipt(&receipt)).await.map(Json)
}
