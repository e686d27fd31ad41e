//! `effectd keys`: the keys that sign receipts.

use clap::Subcommand;
use effectd_contracts::KeyEntry;
use effectd_gateway::views::RotatedView;
use hyper::Method;

use super::Common;
use super::backend::{Trouble, with_client};
use super::operate::{Confirm, tell_receipt};
use super::output::{Form, Printer, line};
use crate::exit::Exit;
use crate::runtime::Depth;

/// List the keys that sign receipts, or put another one in force
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd keys list\n  effectd keys rotate --yes")]
pub(super) struct KeysCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all keys that the log has had, the one in force last
    ///
    /// Public parts only. Give one of them to whoever checks your bundles: `receipts verify --key`.
    #[command(after_help = "Example:\n  effectd keys list -o jsonl")]
    List {
        /// How they are shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Make a new key and let it sign from now on
    ///
    /// The log names it, signed by the old key and the new one; receipts that the old key signed stay valid, and its secret
    /// part is gone. A daemon that runs goes on meanwhile. For operators; leaves a receipt that names you.
    #[command(after_help = "Example:\n  effectd keys rotate --yes")]
    Rotate {
        #[command(flatten)]
        confirm: Confirm,
    },
}

const COLUMNS: [(&str, usize); 3] = [("SINCE", 24), ("KEY", 16), ("PUBLIC", 64)];

impl KeysCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            match self.verb {
                Verb::List { output } => list(common, output).await,
                Verb::Rotate { confirm } => rotate(common, confirm).await,
            }
        })
    }
}

async fn all(common: &Common) -> Result<Vec<KeyEntry>, Trouble> {
    with_client(common, Depth::Store, async |client| {
        Ok(client.get("/v1/log/keys").await?)
    })
    .await
}

async fn list(common: &Common, form: Form) -> Result<Exit, Trouble> {
    let keys = all(common).await?;
    let mut printer = Printer::new(form, true, &COLUMNS);
    for key in &keys {
        // Plain data with text keys, for which serde_json has no failure.
        let value = serde_json::to_value(key).unwrap_or_default();
        let since = format!("{:.3}", key.at);
        printer.row(&value, &[&since, &key.key_id, &key.public_key]);
    }
    printer.finish();
    Ok(Exit::Done)
}

async fn rotate(common: &Common, confirm: Confirm) -> Result<Exit, Trouble> {
    let now = all(common).await?.pop();
    let now = now.map_or_else(|| "no key".to_owned(), |now| now.key_id);
    let says = format!("{now} signs -> a new key signs, and the secret part of the old one is destroyed");
    if !confirm.given(&[says]) {
        return Ok(Exit::Usage);
    }
    let rotated = with_client(common, Depth::Policy, async |client| {
        Ok(client.call(Method::POST, "/v1/log/keys", "").await?)
    });
    let RotatedView { entry, receipt_id } = rotated.await?;
    let before = entry.previous.as_deref().unwrap_or("none");
    line(&format!(
        "{} signs from now on; before it, {before} did",
        entry.key_id
    ));
    tell_receipt(receipt_id.as_deref());
    Ok(Exit::Done)
}
