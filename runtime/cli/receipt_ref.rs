//! Finds a receipt by its own id or by its action's, in full or by its beginning. Every command that takes a receipt takes these.

use effectd_contracts::{ActionId, Receipt, ReceiptId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::ActionView;

use super::{ActionReply, CliError, short_id};
use crate::error::Error;

/// The receipt of this name; it is an error if there is none.
pub(super) async fn receipt(client: &mut Client, name: &ReceiptId) -> Result<Receipt, CliError> {
    Ok(find(client, name).await?.ok_or_else(|| unknown(name))?)
}

/// The receipt of this name; `None` if there is none that the caller may see.
pub(super) async fn find(client: &mut Client, name: &ReceiptId) -> Result<Option<Receipt>, CliError> {
    let path = format!("/v1/receipts/{}", percent_encoded(name.as_str()));
    match client.get::<Receipt>(&path).await {
        Err(ClientError::Refused(problem)) if problem.code == "receipt_unknown" => {}
        found => return Ok(Some(found?)),
    }
    match client.status(&action(name)?).await? {
        ActionReply::View(ActionView { receipt, .. }) => Ok(receipt.map(|receipt| *receipt)),
        ActionReply::Problem(problem) if problem.code == "action_unknown" => {
            short_id::receipt(client, name.as_str()).await
        }
        ActionReply::Problem(problem) => Err(CliError::Refused(Box::new(problem))),
    }
}

fn action(name: &ReceiptId) -> Result<ActionId, Error> {
    ActionId::new(name.as_str()).map_err(|error| Error::Request(error.to_string()))
}

fn unknown(name: &ReceiptId) -> Error {
    Error::Request(format!(
        "you have no receipt and no ended action with the id {name}; `effectd receipts list` shows the last receipts"
    ))
}
