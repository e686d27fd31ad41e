//! `effectd artifacts`: what tools said at length.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_actors::artifacts;
use effectd_contracts::{Receipt, ReceiptId};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::backend::{Backend, Hand, Trouble};
use super::output::{Form, Printer};
use super::{Common, complain, undo};
use crate::client::{ClientError, percent_encoded};
use crate::error::Error;
use crate::exit::Exit;

/// Get what a tool said at length: the receipt holds its beginning and its name
#[derive(Debug, clap::Args)]
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
}

#[derive(Debug, clap::Args)]
struct List {
    /// Whose artifacts
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// Whose artifact
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
            let backend = Backend::reach(common, None).await?;
            let ended = self.verb.main(&backend).await;
            backend.close().await;
            ended
        })
    }
}

impl Verb {
    async fn main(&self, backend: &Backend) -> Result<Exit, Trouble> {
        let id = match self {
            Verb::List(list) => &list.receipt,
            Verb::Get(get) => &get.receipt,
        };
        let Some(receipt) = undo::receipt(backend, id).await? else {
            complain(&format!(
                "there is no receipt {id} of yours; `effectd receipts list` shows what there is"
            ));
            return Ok(Exit::Usage);
        };
        match self {
            Verb::List(list) => Ok(list.show(&receipt)),
            Verb::Get(get) => get.write(backend, &receipt).await,
        }
    }
}

impl List {
    fn show(&self, receipt: &Receipt) -> Exit {
        let mut printer = Printer::new(self.output, true, &[("ARTIFACT", 64)]);
        for name in artifacts::named(receipt) {
            printer.row(&json!({ "artifact_id": name }), &[name]);
        }
        printer.finish();
        Exit::Done
    }
}

impl Get {
    async fn write(&self, backend: &Backend, receipt: &Receipt) -> Result<Exit, Trouble> {
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
        let bytes = fetch(backend, receipt, name).await?;
        let written = match &self.file {
            None => std::io::stdout().lock().write_all(&bytes),
            Some(file) => new_file(file, &bytes),
        };
        match written {
            Ok(()) => Ok(Exit::Done),
            // Whoever has closed the other end has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Done),
            Err(error) => {
                complain(&format!("the artifact cannot be written: {error}"));
                Ok(Exit::Failed)
            }
        }
    }
}

/// Never in place of another file, and for nobody else to read.
fn new_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

async fn fetch(backend: &Backend, receipt: &Receipt, name: &str) -> Result<Vec<u8>, Trouble> {
    match backend.hand() {
        Hand::Daemon(mut client) => {
            let (receipt, name) = (
                percent_encoded(receipt.receipt_id.as_str()),
                percent_encoded(name),
            );
            let path = format!("/v1/receipts/{receipt}/artifacts/{name}");
            let (status, body) = client.ask(Method::GET, &path, Bytes::new()).await?;
            if status == 200 {
                return Ok(body.to_vec());
            }
            let problem =
                serde_json::from_slice(&body).map_err(|error| ClientError::Strange(error.to_string()))?;
            Err(Trouble::Refused(problem))
        }
        Hand::Direct(runtime) => {
            let found = artifacts::fetch(runtime.pipeline().parts(), receipt, name);
            Ok(found.map_err(|error| Error::Request(error.to_string()))?)
        }
    }
}
