//! What operators do while the daemon runs, each on record. Also for the older paths that do one thing each.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::{Parts, StoreError, operations as record};
use effectd_contracts::{Operation, Principal, json as strict};
use serde_json::{Map, Value};

use super::store::Preview;
use super::{json, operators};
use crate::desk::Desk;
use crate::extract::{App, Operator, Query};
use crate::limits::CHANGE_BYTES_MAX;
use crate::operations::{self, OperationView};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::server::Host;

/// Do something to the daemon itself, or say what that would change
///
/// Tools, effects, breakers, dead letters, groups and artifacts. Answered when it and its receipt, which names who asked, are
/// on disk. What changes nothing leaves no receipt.
#[utoipa::path(
    post,
    path = "/v1/operations",
    tag = "operations",
    params(Preview),
    request_body(content = ref("#/components/schemas/Operation"), content_type = "application/json"),
    responses(
        (status = 200, description = "What changed, or would", body = OperationView),
        (status = 400, description = "That is no operation, or it cannot be done", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn perform(
    State(desk): App,
    Operator(peer): Operator,
    Query(Preview { preview }): Query<Preview>,
    body: Body,
) -> Result<Response, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let operation: Operation = strict::parse(&body.bytes, CHANGE_BYTES_MAX)
        .map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    if preview {
        return operators::with_parts(&desk, move |parts| operations::look(parts, &operation)).await;
    }
    Ok(json(StatusCode::OK, &done(&desk, &peer, operation).await?))
}

/// Does it, to its end.
pub(super) async fn done(desk: &Desk, peer: &Peer, operation: Operation) -> Result<OperationView, Problem> {
    tracing::info!(principal = %peer.principal, operation = operation.tool(), "an operator does something");
    to_its_end(desk, peer, move |parts, by| {
        operations::perform(parts, operation, by)
    })
    .await
}

/// Has the host do something, to its end and on record. What it refuses leaves no receipt, and neither does what changed nothing.
pub(super) async fn by_host<T: Send + 'static>(
    desk: &Desk,
    peer: &Peer,
    operation: Operation,
    ask: impl FnOnce(&dyn Host) -> Result<(T, Option<Map<String, Value>>), Problem> + Send + 'static,
) -> Result<(T, Option<String>), Problem> {
    tracing::info!(principal = %peer.principal, operation = operation.tool(), "an operator does something");
    let host = desk.host.clone();
    let (done, receipt_id) = to_its_end(desk, peer, |parts, by| async move {
        let work = async {
            let asked = tokio::task::spawn_blocking(move || ask(&*host)).await;
            let asked = asked.map_err(|error| StoreError::Unavailable {
                reason: error.to_string(),
            })?;
            match asked {
                Ok((done, told)) => Ok((Ok(done), told)),
                // Refused before anything was begun.
                Err(problem) if problem.status < 500 => Ok((Err(problem), None)),
                Err(problem) => Err(StoreError::Unavailable {
                    reason: problem.detail,
                }),
            }
        };
        record::recorded(&parts, &operation, &by, work).await
    })
    .await?;
    Ok((done?, receipt_id.map(|id| id.to_string())))
}

/// Carries something out to its end, also if the client hangs up meanwhile.
pub(super) async fn to_its_end<T: Send + 'static, F>(
    desk: &Desk,
    peer: &Peer,
    work: impl FnOnce(Arc<Parts>, Principal) -> F,
) -> Result<T, Problem>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let _turn = desk.turn().await?;
    let (parts, by) = (desk.parts().clone(), peer.principal.clone());
    let answer = tokio::spawn(work(parts, by)).await;
    let answer = answer.map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    answer.map_err(|error| operators::refused(&error))
}
