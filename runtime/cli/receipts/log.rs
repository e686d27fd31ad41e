//! Requests about the log of receipts.

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{Digest, InclusionProof, KeyEntry, LogHead, LogLine, ReceiptId};
use effectd_gateway::client::{Client, percent_encoded};
use hyper::Method;

use crate::cli::{CliError, receipt_ref};

/// The number of entries in one request.
const PAGE: usize = 500;

pub(super) async fn head(client: &mut Client) -> Result<LogHead, CliError> {
    Ok(client.call(Method::POST, "/v1/log/head", "").await?)
}

pub(super) async fn keys(client: &mut Client) -> Result<Vec<KeyEntry>, CliError> {
    Ok(client.get("/v1/log/keys").await?)
}

/// The entries from this index on; empty at the end of the log.
pub(super) async fn entries(client: &mut Client, from: u64) -> Result<Vec<LogLine>, CliError> {
    let path = format!("/v1/log/entries?from={from}&limit={PAGE}");
    Ok(client.get(&path).await?)
}

/// The signed heads among the entries from this index on.
pub(super) async fn heads(client: &mut Client, from: u64) -> Result<Vec<LogLine>, CliError> {
    let path = format!("/v1/log/heads?from={from}&limit={PAGE}");
    Ok(client.get(&path).await?)
}

pub(super) async fn frontier(client: &mut Client, size: u64) -> Result<Frontier, CliError> {
    let peaks: Vec<Digest> = client.get(&format!("/v1/log/frontier?size={size}")).await?;
    let wrong = || CliError::request("the daemon sent an invalid tree");
    Frontier::restore(size, peaks).ok_or_else(wrong)
}

/// The proof of a receipt, by its own id or its action's.
pub(super) async fn proof(client: &mut Client, name: &ReceiptId) -> Result<InclusionProof, CliError> {
    let receipt = receipt_ref::receipt(client, name).await?;
    let id = percent_encoded(receipt.receipt_id.as_str());
    Ok(client.get(&format!("/v1/receipts/{id}/proof")).await?)
}
