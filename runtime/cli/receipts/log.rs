//! The log, as the routes tell it.

use effectd_contracts::merkle::Frontier;
use effectd_contracts::{Digest, InclusionProof, KeyEntry, LogHead, LogLine, ReceiptId};
use effectd_gateway::client::{Client, percent_encoded};
use hyper::Method;

use crate::cli::backend::Trouble;
use crate::cli::named;
use crate::error::Error;

/// Entries asked for at once.
const PAGE: usize = 500;

pub(super) async fn head(client: &mut Client) -> Result<LogHead, Trouble> {
    Ok(client.call(Method::POST, "/v1/log/head", "").await?)
}

pub(super) async fn keys(client: &mut Client) -> Result<Vec<KeyEntry>, Trouble> {
    Ok(client.get("/v1/log/keys").await?)
}

/// Some entries from a place on; none when there are no more.
pub(super) async fn entries(client: &mut Client, from: u64) -> Result<Vec<LogLine>, Trouble> {
    let path = format!("/v1/log/entries?from={from}&limit={PAGE}");
    Ok(client.get(&path).await?)
}

/// Some heads that are entries from a place on.
pub(super) async fn heads(client: &mut Client, from: u64) -> Result<Vec<LogLine>, Trouble> {
    let path = format!("/v1/log/heads?from={from}&limit={PAGE}");
    Ok(client.get(&path).await?)
}

pub(super) async fn frontier(client: &mut Client, size: u64) -> Result<Frontier, Trouble> {
    let peaks: Vec<Digest> = client.get(&format!("/v1/log/frontier?size={size}")).await?;
    let wrong = || Error::Request("the daemon told a tree that cannot be".to_owned());
    Ok(Frontier::restore(size, peaks).ok_or_else(wrong)?)
}

/// The proof of a receipt that is named by its own id or its action's.
pub(super) async fn proof(client: &mut Client, name: &ReceiptId) -> Result<InclusionProof, Trouble> {
    let receipt = named::receipt(client, name).await?;
    let id = percent_encoded(receipt.receipt_id.as_str());
    Ok(client.get(&format!("/v1/receipts/{id}/proof")).await?)
}
