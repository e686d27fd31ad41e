//! One receipt by its id.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use effectd_contracts::{Code, Failure, Phase, ReceiptId};

use super::{json, traced};
use crate::desk::Desk;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// One receipt
#[utoipa::path(
    get,
    path = "/v1/receipts/{id}",
    tag = "receipts",
    params(("id" = String, Path, description = "The receipt's id")),
    responses(
        (status = 200, description = "The receipt", body = ref("#/components/schemas/Receipt"), content_type = "application/json"),
        (status = 404, description = "No such receipt of yours", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let unknown = || Problem::of(Kind::ReceiptUnknown, "no receipt of this id was made for you");
    let Path(id) = id.map_err(|error| Problem::of(Kind::NoSuchPath, error.body_text()))?;
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    let failed = |why: String| Problem::failed(&Failure::new(Code::StoreUnavailable, Phase::Accept, why));
    let store = &desk.pipeline().parts().store;
    let stored = store.receipt(&id).map_err(|error| failed(error.to_string()))?;
    let stored = stored.ok_or_else(unknown)?;
    let receipt = stored.parse().map_err(|error| failed(error.to_string()))?;
    if !peer.may_see(&receipt) {
        return Err(unknown());
    }
    Ok(traced(receipt.trace_id.clone(), json(StatusCode::OK, &receipt)))
}
