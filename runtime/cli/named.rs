//! Which receipt is meant: people name it by its own id, planners by that of their action. Every command that takes one takes both.

use effectd_bus::Store;
use effectd_contracts::{ActionId, Receipt, ReceiptId};
use effectd_gateway::views::ActionView;
use hyper::Method;

use super::backend::{Backend, Hand, Trouble};
use crate::client::{Client, Told, percent_encoded};
use crate::error::Error;

/// The receipt of this name, by way of a backend.
pub(super) async fn of_backend(backend: &Backend, name: &ReceiptId) -> Result<Receipt, Trouble> {
    let found = match backend.hand() {
        Hand::Daemon(mut client) => of_daemon(&mut client, name).await?,
        Hand::Direct(runtime) => of_store(&**runtime.store(), name)?,
    };
    Ok(found.ok_or_else(|| unknown(name))?)
}

/// As the daemon shows it to whoever asks.
pub(super) async fn of_daemon(client: &mut Client, name: &ReceiptId) -> Result<Option<Receipt>, Trouble> {
    let path = format!("/v1/receipts/{}", percent_encoded(name.as_str()));
    match client.call::<Receipt>(Method::GET, &path, Vec::new()).await? {
        Ok(receipt) => Ok(Some(receipt)),
        Err(problem) if problem.code != "receipt_unknown" => Err(Trouble::Refused(problem)),
        Err(_) => match client.status(&action(name)?).await? {
            Told::View(ActionView { receipt, .. }) => Ok(receipt.map(|receipt| *receipt)),
            Told::Problem(problem) if problem.code != "action_unknown" => {
                Err(Trouble::Refused(Box::new(problem)))
            }
            Told::Problem(_) => Ok(None),
        },
    }
}

/// As a store has it that nobody else uses.
pub(super) fn of_store(store: &dyn Store, name: &ReceiptId) -> Result<Option<Receipt>, Trouble> {
    let mut found = store.receipt(name).map_err(Error::from)?;
    if found.is_none() {
        found = store.receipt_of(&action(name)?).map_err(Error::from)?;
    }
    let receipt = found.map(|found| found.parse()).transpose();
    Ok(receipt.map_err(Error::from)?)
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
