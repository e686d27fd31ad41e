//! `effectd keys`: the keys that sign receipts, and the device key.

use clap::Subcommand;
use effectd_contracts::{KeyEntry, Operation};
use effectd_gateway::views::RotatedView;
use hyper::Method;

use super::mutation::{ChangeArgs, Terms};
use super::{CliError, Common, Confirm, Depth, get, line, mutation, print_json, print_rows, with_client};
use crate::exit::Exit;

/// List the keys that sign receipts, or rotate a key
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  effectd keys list\n  effectd keys rotate --yes")]
pub(super) enum KeysCommand {
    /// List all keys of the log, the current one last
    ///
    /// Public parts only. Give one to the people who verify your bundles: `receipts verify --key`.
    #[command(after_help = "Example:\n  effectd keys list -o jsonl")]
    List,
    /// Replace the signing key
    ///
    /// The log names the new key, signed by both keys. Receipts that the old key signed stay valid; its secret part is destroyed. A
    /// running daemon continues meanwhile. For operators; leaves a receipt with your name.
    #[command(after_help = "Example:\n  effectd keys rotate --yes")]
    Rotate {
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Replace the device key, which wraps the keys of sealed payloads
    ///
    /// Every epoch key is wrapped with the new key, then the old one is destroyed: sealed payloads stay readable, and whoever has an
    /// old copy of the device key can open nothing newer. An interrupted change is finished by the next start. A running daemon
    /// continues meanwhile. Make a backup of the keys afterwards. For operators; leaves a receipt with your name.
    #[command(after_help = "Example:\n  effectd keys rotate-device --reason \"a disk was lost\" --yes")]
    RotateDevice {
        #[command(flatten)]
        args: ChangeArgs,
    },
}

const COLUMNS: [(&str, usize); 3] = [("SINCE", 24), ("KEY", 16), ("PUBLIC", 64)];

impl KeysCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => Ok(print_rows(common.output, &COLUMNS, &keys(common).await?, |key| {
                [format!("{:.3}", key.at), key.key_id.clone(), key.public_key.clone()]
            })),
            Self::Rotate { args } => rotate(common, keys(common).await?.pop(), args.terms()).await,
            Self::RotateDevice { args } => args.run(common, &Operation::RotateDeviceKey {}).await,
        }
    }
}

async fn keys(common: &Common) -> Result<Vec<KeyEntry>, CliError> {
    get(common, Depth::Store, "/v1/log/keys").await
}

async fn rotate(
    common: &Common,
    now: Option<KeyEntry>,
    (terms, confirm): (Terms, Confirm),
) -> Result<Exit, CliError> {
    let now = now.map_or_else(|| "no key".to_owned(), |now| now.key_id);
    let says = format!("signing key {now} -> a new one; the old private key is destroyed");
    if !confirm.confirmed(&[says]) {
        return Ok(confirm.declined());
    }
    let path = format!("/v1/log/keys{}", terms.first_query());
    let rotated =
        with_client(common, Depth::Policy, async |client| Ok(client.call(Method::POST, &path, "").await?));
    let rotated: RotatedView = rotated.await?;
    let is_printed = print_json(common.output, &rotated);
    let RotatedView { entry, receipt_id } = rotated;
    let before = entry.previous.as_deref().unwrap_or("none");
    if !is_printed {
        line(&format!("{} is the signing key from now on; it replaces {before}", entry.key_id));
    }
    mutation::report_receipt_id(receipt_id.as_deref());
    Ok(Exit::Done)
}
