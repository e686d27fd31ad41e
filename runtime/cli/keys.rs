//! `effectd keys`: the keys that sign receipts.

use clap::Subcommand;
use effectd_actors::log;
use effectd_contracts::{Clock, KeyEntry, SystemClock};
use hyper::Method;

use super::backend::{Trouble, ask_or};
use super::output::{Form, Printer, line};
use super::{Common, stored};
use crate::error::Error;
use crate::exit::Exit;
use crate::keys;

/// List the keys that sign receipts, or put another one in force
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd keys list\n  effectd keys rotate")]
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
    /// part is gone. A daemon that runs goes on meanwhile. For operators.
    #[command(after_help = "Example:\n  effectd keys rotate")]
    Rotate,
}

const COLUMNS: [(&str, usize); 3] = [("SINCE", 24), ("KEY", 16), ("PUBLIC", 64)];

impl KeysCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            match self.verb {
                Verb::List { output } => list(common, output).await,
                Verb::Rotate => rotate(common).await,
            }
        })
    }
}

async fn list(common: &Common, form: Form) -> Result<Exit, Trouble> {
    let keys: Vec<KeyEntry> = ask_or(
        common,
        async |client| {
            let answer = client.call(Method::GET, "/v1/log/keys", Vec::new()).await?;
            answer.map_err(Trouble::Refused)
        },
        async |state| {
            let (_, store) = stored::open(common, state)?;
            Ok(log::keys(&*store).map_err(Error::from)?)
        },
    )
    .await?;
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

async fn rotate(common: &Common) -> Result<Exit, Trouble> {
    let entry: KeyEntry = ask_or(
        common,
        async |client| {
            let answer = client.call(Method::POST, "/v1/log/keys", Vec::new()).await?;
            answer.map_err(Trouble::Refused)
        },
        async |state| {
            let (state, store) = stored::open(common, state)?;
            let rotation = keys::rotate(&state.keys_dir(), &*store, SystemClock.now())?;
            rotation.in_place?;
            Ok(rotation.entry)
        },
    )
    .await?;
    let before = entry.previous.as_deref().unwrap_or("none");
    line(&format!(
        "{} signs from now on; before it, {before} did",
        entry.key_id
    ));
    Ok(Exit::Done)
}
