//! The log, for auditors: how it stands, its entries in order, and the proof that a receipt is in it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::log::{self, HEADS};
use effectd_actors::{Store, StoreError};
use effectd_contracts::{LogLine, Operation};
use serde::{Deserialize, Serialize};
use serde_json::json as value;

use super::receipts::find;
use super::{json, operations};
use crate::desk::{Desk, unavailable};
use crate::extract::{App, Operator, Path, Query};
use crate::limits::LOG_LIST_MAX;
use crate::operations::key_told;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::views::RotatedView;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Range {
    from: Option<u64>,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    size: u64,
}

/// How the log stands, and its last signed head
///
/// The head is for everybody, since a proof is worth nothing without one. How the log stands beyond it is for operators.
#[utoipa::path(
    get,
    path = "/v1/log",
    tag = "log",
    responses(
        (status = 200, description = "The last head; for operators also its size, its root, how many intents are open and the first entry that is kept", body = serde_json::Value),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, peer: Peer) -> Result<Response, Problem> {
    let standing = reading(&desk, move |store| {
        let standing = store.log()?;
        let head = log::last_head(store)?.map(|(_, head)| head);
        if !peer.operator {
            return Ok(value!({ "head": head }));
        }
        Ok(
            value!({ "size": standing.size, "root": standing.root, "open": standing.open, "kept_from": standing.kept_from, "head": head }),
        )
    });
    Ok(json(StatusCode::OK, &standing.await?))
}

/// Sign a head of the log as it is now
#[utoipa::path(
    post,
    path = "/v1/log/head",
    tag = "log",
    responses(
        (status = 200, description = "The head; the last one if nothing was added since", body = ref("#/components/schemas/LogHead"), content_type = "application/json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn sign(State(desk): App, _: Operator) -> Result<Response, Problem> {
    let head = log::head(desk.parts()).await;
    Ok(json(StatusCode::OK, &head.map_err(|error| unavailable(&error))?))
}

/// The keys that have signed, in order
#[utoipa::path(
    get,
    path = "/v1/log/keys",
    tag = "log",
    responses((status = 200, description = "Each signed by the one before it", body = Vec<serde_json::Value>))
)]
pub(crate) async fn keys(State(desk): App) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &reading(&desk, log::keys).await?))
}

/// Make a new signing key, and let it sign from now on
///
/// Nothing stops meanwhile. The log names the new key, by the word of both; what the old one signed stays valid, and its
/// secret part is gone.
#[utoipa::path(
    post,
    path = "/v1/log/keys",
    tag = "log",
    responses(
        (status = 200, description = "The new key's entry in the log, and the receipt that names who asked", body = serde_json::Value),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The log has had as many keys as it may", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn rotate(State(desk): App, Operator(peer): Operator) -> Result<Response, Problem> {
    let by = peer.principal.clone();
    let done = operations::by_host(&desk, &peer, Operation::RotateKey {}, move |host| {
        let entry = host.rotate_key()?;
        tracing::info!(key_id = entry.key_id, before = entry.previous, %by, "another key signs from now on");
        let told = key_told(&entry);
        Ok((entry, Some(told)))
    });
    let (entry, receipt_id) = done.await?;
    Ok(json(StatusCode::OK, &RotatedView { entry, receipt_id }))
}

/// Entries of the log, in order
///
/// Go on behind the last one's `index`. An entry that retention has dropped has only its hash.
#[utoipa::path(
    get,
    path = "/v1/log/entries",
    tag = "log",
    params(
        ("from" = Option<u64>, Query, description = "The first entry"),
        ("limit" = Option<usize>, Query, description = "At most so many"),
    ),
    responses(
        (status = 200, description = "Some of them; none when there are no more", body = Vec<serde_json::Value>),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn entries(
    State(desk): App,
    _: Operator,
    Query(range): Query<Range>,
) -> Result<Response, Problem> {
    let (from, limit) = range.bounds();
    let lines = reading(&desk, move |store| lines(&store.log_entries(from, limit)?));
    Ok(json(StatusCode::OK, &lines.await?))
}

/// Signed heads of the log, in order
///
/// For everybody: a head says how many entries the log had and how many actions were open when it was signed, and nothing of what
/// they are. Heads are entries themselves. Go on behind the last one's `index`.
#[utoipa::path(
    get,
    path = "/v1/log/heads",
    tag = "log",
    params(
        ("from" = Option<u64>, Query, description = "The first entry of the log that may be one"),
        ("limit" = Option<usize>, Query, description = "At most so many"),
    ),
    responses(
        (status = 200, description = "Some of them; none when there are no more", body = Vec<serde_json::Value>),
    )
)]
pub(crate) async fn heads(State(desk): App, Query(range): Query<Range>) -> Result<Response, Problem> {
    let (from, limit) = range.bounds();
    let lines = reading(&desk, move |store| lines(&store.notes(HEADS, from, limit)?));
    Ok(json(StatusCode::OK, &lines.await?))
}

/// The tree over the first entries: roots of its complete subtrees, the largest first
///
/// For everybody up to the last signed head, beyond it for operators.
#[utoipa::path(
    get,
    path = "/v1/log/frontier",
    tag = "log",
    params(("size" = u64, Query, description = "Over how many entries")),
    responses(
        (status = 200, description = "One for each bit of the size", body = Vec<String>),
        (status = 400, description = "The log is not that long, or not signed up to there", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn frontier(
    State(desk): App,
    peer: Peer,
    Query(Size { size }): Query<Size>,
) -> Result<Response, Problem> {
    let peaks = reading(&desk, move |store| {
        let signed = log::last_head(store)?.map_or(0, |(_, head)| head.size);
        if !peer.operator && size > signed {
            return Err(StoreError::Invalid(format!(
                "the last signed head is over {signed} entries; beyond it the log is for operators"
            )));
        }
        Ok(store.log_frontier(size)?.peaks().to_vec())
    });
    Ok(json(StatusCode::OK, &peaks.await?))
}

/// The proof that a receipt is in the log
///
/// With it and the device's key, nobody needs to ask effectd again whether the receipt is genuine.
#[utoipa::path(
    get,
    path = "/v1/receipts/{id}/proof",
    tag = "receipts",
    params(("id" = String, Path, description = "The receipt's id")),
    responses(
        (status = 200, description = "The receipt, its place, the way to the root, and the signed head", body = ref("#/components/schemas/InclusionProof"), content_type = "application/json"),
        (status = 404, description = "No such receipt of yours", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn proof(State(desk): App, peer: Peer, Path(id): Path<String>) -> Result<Response, Problem> {
    let receipt = find(&desk, &peer, id)?;
    let parts = desk.parts();
    let proof = log::proof(&*parts.store, &parts.identity, &*parts.clock, &receipt.receipt_id).await;
    let proof = proof.map_err(|error| unavailable(&error))?;
    let none = || Problem::of(Kind::ReceiptUnknown, "the receipt is not in the log");
    Ok(json(StatusCode::OK, &proof.ok_or_else(none)?))
}

impl Range {
    fn bounds(&self) -> (u64, usize) {
        let limit = self.limit.unwrap_or(LOG_LIST_MAX).clamp(1, LOG_LIST_MAX);
        (self.from.unwrap_or(0), limit)
    }
}

fn lines(stored: &[effectd_actors::StoredEntry]) -> Result<Vec<LogLine>, StoreError> {
    stored.iter().map(log::line).collect()
}

/// Reads from the store where it holds nobody up.
async fn reading<T: Serialize + Send + 'static>(
    desk: &Arc<Desk>,
    read: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let _turn = desk.turn().await?;
    let store = desk.parts().store.clone();
    match tokio::task::spawn_blocking(move || read(&*store)).await {
        Ok(Err(StoreError::Invalid(why))) => Err(Problem::of(Kind::QueryInvalid, why)),
        Ok(answer) => answer.map_err(|error| unavailable(&error)),
        Err(error) => Err(Problem::of(Kind::Internal, error.to_string())),
    }
}
