//! `effectd artifacts`: what tools said at length, and what was kept as an artifact.

pub(super) mod quarantine;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_actors::artifacts;
use effectd_contracts::{Receipt, ReceiptId};
use effectd_gateway::client::{Client, percent_encoded};
use serde_json::json;

use super::backend::{Trouble, with_client};
use super::output::{Form, Printer, Stdout};
use super::{Common, complain, named};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Get what a tool said at length: the receipt holds its beginning and its name
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd artifacts list 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12\n  effectd artifacts quarantined"
)]
pub(super) struct ArtifactsCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the artifacts of a receipt
    #[command(after_help = "Example:\n  effectd artifacts list 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
    List(List),
    /// Write an artifact to standard output, byte for byte
    ///
    /// If the receipt has only one, it need not be named.
    #[command(
        after_help = "Examples:\n  effectd artifacts get 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12 | less\n  \
        effectd artifacts get 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12 --file build.log"
    )]
    Get(Get),
    /// Take an artifact aside: it is listed, and not handed out any more
    ///
    /// Its id follows from its content, so that it is taken aside in every space. An event on the topic ARTIFACTS says so.
    #[command(
        after_help = "Example:\n  effectd artifacts quarantine 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --reason secrets --yes"
    )]
    Quarantine(quarantine::Quarantine),
    /// Hand an artifact out again
    #[command(
        after_help = "Example:\n  effectd artifacts release 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --yes"
    )]
    Release(quarantine::Release),
    /// List the artifacts that are not handed out
    #[command(after_help = "Example:\n  effectd artifacts quarantined -o jsonl")]
    Quarantined(quarantine::Quarantined),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Whose artifacts: the receipt's own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// Whose artifact: the receipt's own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// Which one
    #[arg(value_name = "ARTIFACT")]
    artifact: Option<String>,
    /// Write it to this new file instead
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ArtifactsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            match &self.verb {
                Verb::Quarantine(verb) => verb.main(common).await,
                Verb::Release(verb) => verb.main(common).await,
                Verb::Quarantined(verb) => verb.main(common).await,
                Verb::List(List { receipt, .. }) | Verb::Get(Get { receipt, .. }) => {
                    with_client(common, Depth::Store, async |client| {
                        self.verb.of_receipt(client, receipt).await
                    })
                    .await
                }
            }
        })
    }
}

impl Verb {
    async fn of_receipt(&self, client: &mut Client, id: &ReceiptId) -> Result<Exit, Trouble> {
        let receipt = named::receipt(client, id).await?;
        match self {
            Verb::List(list) => Ok(list.show(&receipt)),
            Verb::Get(get) => get.write(client, &receipt).await,
            Verb::Quarantine(_) | Verb::Release(_) | Verb::Quarantined(_) => Ok(Exit::Usage),
        }
    }
}

impl List {
    fn show(&self, receipt: &Receipt) -> Exit {
        const COLUMNS: &[(&str, usize)] = &[("ARTIFACT", 64), ("NAME", 12), ("BYTES", 12)];
        let mut printer = Printer::new(self.output, true, COLUMNS);
        for artifact in artifacts::listed(receipt) {
            let bytes = artifact.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
            let name = artifact.name.unwrap_or_default();
            printer.row(&json!(artifact), &[artifact.artifact_id, name, &bytes]);
        }
        printer.finish();
        Exit::Done
    }
}

impl Get {
    async fn write(&self, client: &mut Client, receipt: &Receipt) -> Result<Exit, Trouble> {
        let names = artifacts::named(receipt);
        let name = match (&self.artifact, names.as_slice()) {
            (Some(name), _) => name.as_str(),
            (None, [only]) => only,
            (None, []) => {
                complain(&"that action said nothing at length; `effectd receipts show` has all of it");
                return Ok(Exit::Failed);
            }
            (None, [_, _, ..]) => {
                complain(&format!(
                    "the receipt has several artifacts: name one of {}",
                    names.join(", ")
                ));
                return Ok(Exit::Usage);
            }
        };
        let written = match &self.file {
            None => fetch(client, receipt, name, &mut Stdout).await?,
            Some(file) => new_file(client, receipt, name, file).await?,
        };
        match written {
            Ok(()) => Ok(Exit::Done),
            // Whoever has closed the other end has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
            Err(error) => {
                complain(&format!("the artifact cannot be written: {error}"));
                Ok(Exit::Failed)
            }
        }
    }
}

/// Never in place of another file, and for nobody else to read. One that is not whole is removed again.
async fn new_file(
    client: &mut Client,
    receipt: &Receipt,
    name: &str,
    path: &Path,
) -> Result<io::Result<()>, Trouble> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let written = fetch(client, receipt, name, &mut file).await;
    let written = written.map(|written| written.and_then(|()| file.sync_all()));
    if !matches!(written, Ok(Ok(()))) {
        // Best effort: what went wrong with it is told in any case.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Writes an artifact in pieces. The inner error is that of the writing.
async fn fetch(
    client: &mut Client,
    receipt: &Receipt,
    name: &str,
    to: &mut impl Write,
) -> Result<io::Result<()>, Trouble> {
    let (receipt, name) = (
        percent_encoded(receipt.receipt_id.as_str()),
        percent_encoded(name),
    );
    let path = format!("/v1/receipts/{receipt}/artifacts/{name}");
    let written = client.fetch(&path, |piece| to.write_all(piece)).await?;
    Ok(written.and_then(|()| to.flush()))
}
