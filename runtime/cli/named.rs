//! Which receipt is meant: people name it by its own id, planners by that of their action. Every command that takes one takes both.

use effectd_contracts::{ActionId, Receipt, ReceiptId};
use effectd_gateway::client::{Client, ClientError, Told, percent_encoded};
use effectd_gateway::views::ActionView;

use super::backend::Trouble;
use crate::error::Error;

/// The receipt of this name; what there is none of is told.
pub(super) async fn receipt(client: &mut Client, name: &ReceiptId) -> Result<Receipt, Trouble> {
    Ok(find(client, name).await?.ok_or_else(|| unknown(name))?)
}

/// The receipt of this name, if there is one for whoever asks.
pub(super) async fn find(client: &mut Client, name: &ReceiptId) -> Result<Option<Receipt>, Trouble> {
    let path = format!("/v1/receipts/{}", percent_encoded(name.as_str()));
    match client.get::<Receipt>(&path).await {
        Err(ClientError::Refused(problem)) if problem.code == "receipt_unknown" => {}
        found => return Ok(Some(found?)),
    }
    match client.status(&action(name)?).await? {
        Told::View(ActionView { receipt, .. }) => Ok(receipt.map(|receipt| *receipt)),
        Told::Problem(problem) if problem.code == "action_unknown" => Ok(None),
        Told::Problem(problem) => Err(Trouble::Refused(Box::new(problem))),
    }
}

fn action(name: &ReceiptId) -> Result<ActionId, Error> {
    ActionId::new(name.as_str()).map_err(|error| Error::Request(error.to_string()))
}

/// What is said about a name that is neither.
pub(super) fn unknown(name: &ReceiptId) -> Error {
    Error::Request(format!(
        "no receipt and no action of yours is called {name}, or the action has not ended; `effectd receipts list` shows the last receipts"
    ))
}
