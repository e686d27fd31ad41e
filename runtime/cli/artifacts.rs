//! `effectd artifacts`: long outputs of tools, and their quarantine.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_actors::effects::artifacts;
use effectd_contracts::{Operation, Receipt, ReceiptId};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::artifacts::{QuarantineList, QuarantineView};

use super::mutation::{ChangeArgs, Terms};
use super::output::Stdout;
use super::short_id::Purpose;
use super::{
    CliError, Common, Confirm, Depth, Printer, mutation, pages, print_json, print_rows, receipt_ref,
    short_id, with_client,
};
use crate::exit::Exit;

/// Get the long outputs of tools, of which receipts hold the beginning and the id
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  effectd artifacts list 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12\n  effectd artifacts quarantined"
)]
pub(super) enum ArtifactsCommand {
    /// List the artifacts of a receipt
    #[command(after_help = "Example:\n  effectd artifacts list 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
    List(List),
    /// Write an artifact to standard output, byte for byte
    ///
    /// If the tool put out only one, it need not be named. The pre-images that the receipt names are only for operators.
    #[command(
        after_help = "Examples:\n  effectd artifacts get 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12 | less\n  \
        effectd artifacts get 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12 --file build.log"
    )]
    Get(Get),
    /// Quarantine an artifact: it is listed, but nobody can get it
    ///
    /// Its id is the digest of its content, so it is quarantined in every space. An event on the topic ARTIFACTS records it.
    #[command(
        after_help = "Example:\n  effectd artifacts quarantine 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --reason secrets --yes"
    )]
    Quarantine {
        /// The artifact's id
        #[arg(value_name = "ARTIFACT")]
        artifact: String,
        /// The reason, for people; it is stored in clear
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Make a quarantined artifact available again
    #[command(
        after_help = "Example:\n  effectd artifacts release 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --yes"
    )]
    Release {
        /// The artifact's id
        #[arg(value_name = "ARTIFACT")]
        artifact: String,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// List quarantined artifacts
    #[command(after_help = "Example:\n  effectd artifacts quarantined -o jsonl")]
    Quarantined,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
}

#[derive(Debug, clap::Args)]
pub(super) struct Get {
    /// The receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// The artifact's id
    #[arg(value_name = "ARTIFACT")]
    artifact: Option<String>,
    /// Write it to this new file instead
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

const COLUMNS: [(&str, usize); 3] = [("ARTIFACT", 64), ("NAME", 12), ("BYTES", 12)];
const QUARANTINED: [(&str, usize); 4] = [("ARTIFACT", 64), ("BY", 16), ("SINCE", 24), ("REASON", 32)];

impl ArtifactsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List(list) => {
                let receipt = with_client(common, Depth::Store, async |client| {
                    receipt_ref::receipt(client, &list.receipt).await
                })
                .await?;
                Ok(print_rows(common.output, &COLUMNS, &artifacts::listed(&receipt), |artifact| {
                    let bytes = artifact.bytes.map(|bytes| bytes.to_string());
                    let name = artifact.name.unwrap_or_default().to_owned();
                    [artifact.artifact_id.to_owned(), name, bytes.unwrap_or_default()]
                }))
            }
            Self::Get(get) => {
                with_client(common, Depth::Store, async |client| {
                    let receipt = receipt_ref::receipt(client, &get.receipt).await?;
                    get.write(client, &receipt).await
                })
                .await
            }
            Self::Quarantine { artifact, reason, confirm } => {
                quarantine(common, artifact, reason, confirm).await
            }
            Self::Release { artifact, args } => release(common, artifact, args.terms()).await,
            Self::Quarantined => {
                Ok(print_rows(common.output, &QUARANTINED, &quarantined(common).await?, cells))
            }
        }
    }
}

fn cells(view: &QuarantineView) -> [String; 4] {
    let reason = view.reason.clone().unwrap_or_default();
    [view.artifact_id.clone(), view.by.clone(), view.since.clone(), reason]
}

/// All quarantined artifacts.
pub(super) async fn quarantined(common: &Common) -> Result<Vec<QuarantineView>, CliError> {
    let split = |page: QuarantineList| (page.artifacts, page.next);
    pages(common, Depth::Store, "/v1/artifacts/quarantined", split).await
}

async fn quarantine(
    common: &Common,
    artifact_id: String,
    reason: Option<String>,
    confirm: Confirm,
) -> Result<Exit, CliError> {
    let operation = Operation::QuarantineArtifact { artifact_id: artifact_id.clone(), reason };
    let Some(done) = mutation::confirm_and_send_on(common, &operation, &Terms::default(), confirm).await?
    else {
        return Ok(confirm.declined());
    };
    mutation::report_done(&done);
    let mut printer = Printer::new(common.output, false, &QUARANTINED);
    let all = quarantined(common).await?;
    let this = all.iter().filter(|view| view.artifact_id == artifact_id);
    this.for_each(|view| printer.row(view, &cells(view)));
    printer.finish();
    Ok(Exit::Done)
}

async fn release(
    common: &Common,
    mut artifact_id: String,
    (terms, confirm): (Terms, Confirm),
) -> Result<Exit, CliError> {
    if short_id::is_short(&artifact_id) {
        let all = quarantined(common).await?;
        let found = short_id::pick(&artifact_id, all.iter().map(|view| view.artifact_id.as_str()))?;
        Purpose::Decide.check(&artifact_id, found)?;
        artifact_id = found.map_or(artifact_id.clone(), str::to_owned);
    }
    let operation = Operation::ReleaseArtifact { artifact_id };
    let Some(done) = mutation::confirm_and_send_on(common, &operation, &terms, confirm).await? else {
        return Ok(confirm.declined());
    };
    if done.changed {
        print_json(common.output, &done);
        mutation::report_done(&done);
        return Ok(Exit::Done);
    }
    let why = "that artifact was not quarantined; `effectd artifacts quarantined` lists those that are";
    Err(CliError::request(why).exiting(Exit::Failed))
}

impl Get {
    async fn write(&self, client: &mut Client, receipt: &Receipt) -> Result<Exit, CliError> {
        let names = artifacts::put_out(receipt);
        let name = match (&self.artifact, names.as_slice()) {
            (Some(name), _) => short_id::pick(name, artifacts::named(receipt))?.unwrap_or(name),
            (None, [only]) => only,
            (None, []) => {
                let why = "that action has no artifacts; `effectd receipts show` prints its whole output";
                return Err(CliError::request(why).exiting(Exit::Failed));
            }
            (None, [_, _, ..]) => {
                let why = format!("the receipt has several artifacts; name one of {}", names.join(", "));
                return Err(CliError::request(why));
            }
        };
        let written = match &self.file {
            None => fetch(client, receipt, name, &mut Stdout).await?,
            Some(file) => new_file(client, receipt, name, file).await?,
        };
        match written {
            Ok(()) => Ok(Exit::Done),
            // The reader has closed the pipe, which is not an error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
            Err(error) => {
                let why = format!("the artifact cannot be written: {error}");
                Err(CliError::request(why).exiting(Exit::Failed))
            }
        }
    }
}

/// Writes an artifact into a new file that only its owner can read. Removes the file if it is incomplete.
async fn new_file(
    client: &mut Client,
    receipt: &Receipt,
    name: &str,
    path: &Path,
) -> Result<io::Result<()>, CliError> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let written = fetch(client, receipt, name, &mut file).await;
    let written = written.map(|written| written.and_then(|()| file.sync_all()));
    if !matches!(written, Ok(Ok(()))) {
        // Best effort: the caller reports the error of the write.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Writes an artifact in pieces. The inner error is that of `to`, the outer that of the client.
async fn fetch(
    client: &mut Client,
    receipt: &Receipt,
    name: &str,
    to: &mut impl Write,
) -> Result<io::Result<()>, CliError> {
    let (receipt, name) = (percent_encoded(receipt.receipt_id.as_str()), percent_encoded(name));
    let path = format!("/v1/receipts/{receipt}/artifacts/{name}");
    let written = client.fetch(&path, |piece| to.write_all(piece)).await?;
    Ok(written.and_then(|()| to.flush()))
}
