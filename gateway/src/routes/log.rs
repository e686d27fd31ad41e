//! The log, for auditors: its entries in order, its signed heads and keys, and the proof that a receipt is in it.

use std::sync::Arc;

use axum::extract::State;
use effectd_actors::PrincipalRole;
use effectd_actors::execution::log::{self, HEADS};
use effectd_bus::{Store, StoreError, StoredLogEntry};
use effectd_contracts::{Digest, InclusionProof, KeyEntry, LogHead, LogLine, Operation};
use serde::Deserialize;
use serde_json::{Value, json};

use super::operations::{self, Why, checked_reason};
use super::receipts::find;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Query, Reply, Viewer, integer};
use crate::limits::LOG_LIST_MAX;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::receipts::RotatedView;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Range {
    /// The first entry of the log that may be in the answer.
    #[serde(default, deserialize_with = "integer")]
    from: Option<u64>,
    /// At most this many.
    #[serde(default, deserialize_with = "integer")]
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    size: u64,
}

/// The log's size and its last signed head
///
/// The head is for everybody, since a proof needs one. The rest is for operators.
#[utoipa::path(get, path = "/v1/log", tag = "log",
    responses(
        (status = 200, description = "The last head; for operators also the log's size and root, the number of open intents and the first stored entry", body = serde_json::Value),
        Problems<503>,
    )
)]
pub(crate) async fn show(State(app): AppState, peer: Peer) -> Reply<Value> {
    let looks = app.may_operate(&peer, PrincipalRole::Look);
    read(&app, move |store| {
        let log = store.log()?;
        let head = log::last_head(store)?.map(|(_, head)| head);
        if !looks {
            return Ok(json!({ "head": head }));
        }
        Ok(json!({
            "size": log.size, "root": log.root, "open": log.open, "kept_from": log.kept_from, "head": head
        }))
    })
    .await
}

/// Sign a head over the log as it is now
#[utoipa::path(post, path = "/v1/log/head", tag = "log",
    responses(
        (status = 200, description = "The head; the last one if nothing was added since", body = ref("#/components/schemas/LogHead"), content_type = "application/json"),
        Problems<403>,
    )
)]
pub(crate) async fn sign(State(app): AppState, _: Operator) -> Reply<LogHead> {
    let services = app.services();
    Ok(Json(log::head(&*services.store, &services.identity, &*services.clock).await?))
}

/// The signing keys, in order
#[utoipa::path(get, path = "/v1/log/keys", tag = "log",
    responses((status = 200, description = "Each signed by the one before it", body = Vec<serde_json::Value>)))]
pub(crate) async fn keys(State(app): AppState) -> Reply<Vec<KeyEntry>> {
    read(&app, log::keys).await
}

/// Rotate the signing key
///
/// Nothing stops meanwhile. The log names the new key, signed by both; signatures of the old key stay valid, and its secret part is
/// destroyed.
#[utoipa::path(post, path = "/v1/log/keys", tag = "log",
    params(Why),
    responses(
        (status = 200, description = "The new key's entry in the log, and the receipt that names who asked", body = serde_json::Value),
        Problems<400, 403, 409, 503>,
    )
)]
pub(crate) async fn rotate(State(app): AppState, by: Operator, Query(why): Query<Why>) -> Reply<RotatedView> {
    let (principal, reason) = (by.0.principal.clone(), checked_reason(why.reason)?);
    let done = operations::by_host(&app, &by, (Operation::RotateKey {}, reason), move |host| {
        let entry = host.rotate_key()?;
        tracing::info!(key_id = entry.key_id, before = entry.previous, by = %principal, "another key signs from now on");
        let details = json!({ "key_id": entry.key_id, "previous": entry.previous });
        Ok((entry, details.as_object().cloned()))
    });
    let (entry, receipt_id) = done.await?;
    Ok(Json(RotatedView { entry, receipt_id }))
}

/// Entries of the log, in order
///
/// The next page begins after the last one's `index`. An entry that retention has dropped has only its hash.
#[utoipa::path(get, path = "/v1/log/entries", tag = "log",
    params(Range),
    responses((status = 200, description = "A page of them; empty at the end", body = Vec<serde_json::Value>), Problems<403>))]
pub(crate) async fn entries(
    State(app): AppState,
    _: Viewer,
    Query(range): Query<Range>,
) -> Reply<Vec<LogLine>> {
    let (from, limit) = range.bounds();
    read(&app, move |store| lines(&store.log_entries(from, limit)?)).await
}

/// Signed heads of the log, in order
///
/// For everybody: a head says how many entries the log had and how many actions were open when it was signed, and nothing about
/// them. Heads are entries themselves. The next page begins after the last one's `index`.
#[utoipa::path(get, path = "/v1/log/heads", tag = "log",
    params(Range),
    responses((status = 200, description = "A page of them; empty at the end", body = Vec<serde_json::Value>)))]
pub(crate) async fn heads(State(app): AppState, Query(range): Query<Range>) -> Reply<Vec<LogLine>> {
    let (from, limit) = range.bounds();
    read(&app, move |store| lines(&store.notes(HEADS, from, limit)?)).await
}

/// The tree over the first entries: the roots of its complete subtrees, largest first
///
/// Everybody may read up to the last signed head, only operators beyond it.
#[utoipa::path(get, path = "/v1/log/frontier", tag = "log",
    params(("size" = u64, Query, description = "The number of entries")),
    responses((status = 200, description = "One hash for each set bit of the size", body = Vec<String>), Problems<400>))]
pub(crate) async fn frontier(
    State(app): AppState,
    peer: Peer,
    Query(Size { size }): Query<Size>,
) -> Reply<Vec<Digest>> {
    let looks = app.may_operate(&peer, PrincipalRole::Look);
    read(&app, move |store| {
        let signed = log::last_head(store)?.map_or(0, |(_, head)| head.size);
        if !looks && size > signed {
            return Err(StoreError::Invalid(format!(
                "only operators may read beyond the last signed head, of size {signed}"
            )));
        }
        Ok(store.log_frontier(size)?.peaks().to_vec())
    })
    .await
}

/// The proof that a receipt is in the log
///
/// With it and the device's key, anybody can verify the receipt without effectd.
#[utoipa::path(get, path = "/v1/receipts/{id}/proof", tag = "receipts",
    responses(
        (status = 200, description = "The receipt, its index, the path to the root, and the signed head", body = ref("#/components/schemas/InclusionProof"), content_type = "application/json"),
        Problems<404>,
    )
)]
pub(crate) async fn proof(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<InclusionProof> {
    let receipt = find(&app, &peer, id)?;
    let services = app.services();
    let proof =
        log::proof(&*services.store, &services.identity, &*services.clock, &receipt.receipt_id).await?;
    let none = || Problem::of(Kind::ReceiptUnknown, "the receipt is not in the log");
    proof.map(Json).ok_or_else(none)
}

impl Range {
    fn bounds(&self) -> (u64, usize) {
        let limit = self.limit.unwrap_or(LOG_LIST_MAX).clamp(1, LOG_LIST_MAX);
        (self.from.unwrap_or(0), limit)
    }
}

fn lines(stored: &[StoredLogEntry]) -> Result<Vec<LogLine>, StoreError> {
    stored.iter().map(log::line).collect()
}

/// Reads from the store on a thread of its own. A range that the log does not have is the client's mistake.
async fn read<T: Send + 'static>(
    app: &Arc<App>,
    read: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Reply<T> {
    let answer = app.blocking(move |app| {
        read(app.store()).map_err(|error| {
            if let StoreError::Invalid(why) = error {
                Problem::of(Kind::QueryInvalid, why)
            } else {
                error.into()
            }
        })
    });
    answer.await.map(Json)
}
