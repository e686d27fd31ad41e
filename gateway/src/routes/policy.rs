//! The policy: what is in force, whether the files are good, changes beside them, and why a request is judged as it is.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_contracts::{ActionRequest, Operation, json as strict};
use serde::Serialize;

use super::store::Preview;
use super::{json, operations, operators, receipts};
use crate::desk::Desk;
use crate::extract::{App, Operator, Path, Query};
use crate::limits::CHANGE_BYTES_MAX;
use crate::operations::policy_told;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::server::Host;
use crate::views::{Explanation, PolicyChange, PolicyView};

/// The policy in force
#[utoipa::path(
    get,
    path = "/v1/policy",
    tag = "policy",
    responses(
        (status = 200, description = "What it is", body = PolicyView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, _: Operator) -> Result<Response, Problem> {
    work(&desk, |host| Ok(host.policy())).await
}

/// Read the policy's files, with the changes beside them, and try their examples
///
/// Nothing is put in force.
#[utoipa::path(
    post,
    path = "/v1/policy/check",
    tag = "policy",
    responses(
        (status = 200, description = "They are good", body = PolicyView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "They are not, and this is why", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn check(State(desk): App, _: Operator) -> Result<Response, Problem> {
    work(&desk, |host| host.check_policy()).await
}

/// Read the policy's files anew and put them in force
///
/// If they are not good, what is in force stays. The roots of the spaces are taken as they are now; `/v1/policy/check` shows beforehand
/// which have changed. On record, if it changes anything.
#[utoipa::path(
    post,
    path = "/v1/policy/reload",
    tag = "policy",
    responses(
        (status = 200, description = "They are in force", body = PolicyView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "They are not good, and this is why", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn reload(State(desk): App, Operator(peer): Operator) -> Result<Response, Problem> {
    on_record(&desk, &peer, Operation::ReloadPolicy {}, |host| {
        host.take_over_policy()
    })
    .await
}

/// Make a change beside the policy's files, and put it in force
///
/// The answer comes when the change, and the receipt that names who made it, are on disk, and it is in force. A change under which
/// the policy does not pass its own examples is refused, and everything stays as it was.
#[utoipa::path(
    post,
    path = "/v1/policy/changes",
    tag = "policy",
    params(Preview),
    request_body(content = PolicyChange, content_type = "application/json"),
    responses(
        (status = 200, description = "It is in force, or, for a preview, what it would be", body = PolicyView),
        (status = 400, description = "It is no change", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The policy refuses it, and this is why", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn change(
    State(desk): App,
    Operator(peer): Operator,
    Query(Preview { preview }): Query<Preview>,
    body: Body,
) -> Result<Response, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let change: PolicyChange = strict::parse(&body.bytes, CHANGE_BYTES_MAX)
        .map_err(|error| Problem::of(Kind::ChangeInvalid, error.to_string()))?;
    if preview {
        return work(&desk, move |host| host.try_policy(change)).await;
    }
    tracing::info!(principal = %peer.principal, ?change, "the policy is to be changed");
    on_record(&desk, &peer, change.operation(), move |host| {
        host.change_policy(change)
    })
    .await
}

/// Has the policy changed, with a receipt if that makes it another one.
async fn on_record(
    desk: &Arc<Desk>,
    peer: &Peer,
    operation: Operation,
    change: impl FnOnce(&dyn Host) -> Result<PolicyView, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let done = operations::by_host(desk, peer, operation, |host| {
        let before = host.policy().digest;
        let view = change(host)?;
        let told = policy_told(&before, &view);
        Ok((view, told))
    });
    let (view, receipt_id) = done.await?;
    Ok(json(StatusCode::OK, &PolicyView { receipt_id, ..view }))
}

/// Tell how a request would be judged, gate by gate
///
/// Nothing is done and nothing is recorded. The request is judged as yours.
#[utoipa::path(
    post,
    path = "/v1/policy/explain",
    tag = "policy",
    request_body(content = ref("#/components/schemas/ActionRequest"), content_type = "application/json"),
    responses(
        (status = 200, description = "Every gate, what it saw, and what would have to change", body = Explanation),
        (status = 400, description = "It is no request", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such tool", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn explain(State(desk): App, peer: Peer, body: Body) -> Result<Response, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let request = ActionRequest::parse(&body.bytes).map_err(|failure| Problem::failed(&failure))?;
    work(&desk, move |host| host.explain_request(&request, &peer.principal)).await
}

/// Tell how a past decision would be judged now, from the facts that its receipt records
#[utoipa::path(
    get,
    path = "/v1/receipts/{id}/explanation",
    tag = "policy",
    params(("id" = String, Path, description = "The receipt's id")),
    responses(
        (status = 200, description = "Every gate, what it saw, and what would have to change", body = Explanation),
        (status = 404, description = "No such receipt of yours, or the policy was never asked", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn explain_receipt(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let receipt = receipts::find(&desk, &peer, id)?;
    work(&desk, move |host| host.explain_receipt(&receipt)).await
}

async fn work<T: Serialize + Send + 'static>(
    desk: &Arc<Desk>,
    ask: impl FnOnce(&dyn Host) -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let host = desk.host.clone();
    operators::work(desk, move || ask(&*host)).await
}
