//! `effectd undo`: take back what an action changed.

use effectd_contracts::{Receipt, ReceiptId, UNDO_TOOL};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::ask::{self, Asking};
use super::backend::{Backend, Hand, Trouble};
use super::output::Form;
use super::{Common, complain, tools};
use crate::client::ClientError;
use crate::error::Error;
use crate::exit::Exit;

/// Take back what an action changed, if nothing has changed since
///
/// The files that the action of this receipt replaced come back byte for byte, as an action of its own that passes every
/// gate and has its own receipt. Undoing that receipt does it again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd undo --dry-run 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12\n  \
    effectd undo 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12"
)]
pub(super) struct Undo {
    /// The receipt of the action
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// Say whether it could be undone, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Undo {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(self.undo(common))
    }

    async fn undo(self, common: &Common) -> Result<Exit, Trouble> {
        let backend = Backend::reach(common, None).await?;
        let found = receipt(&backend, &self.receipt).await;
        backend.close().await;
        let Some(found) = found? else {
            complain(&format!(
                "there is no receipt {} of yours; `effectd status <action>` shows an action's receipt",
                self.receipt
            ));
            return Ok(Exit::Usage);
        };
        let asking = Asking {
            subject: found.subject_id.clone(),
            space: found.space_id.clone(),
            output: self.output,
        };
        let params = json!({ "receipt_id": self.receipt, "space_id": found.space_id });
        let params = params.as_object().cloned().unwrap_or_default();
        let tool = UNDO_TOOL
            .parse()
            .map_err(|error| Error::Internal(format!("{error}")))?;
        let request = tools::request(&asking, tool, params, self.dry_run);
        ask::have_done(common, request, self.output).await
    }
}

/// The receipt, as the daemon shows it to us or as the store has it.
pub(super) async fn receipt(backend: &Backend, id: &ReceiptId) -> Result<Option<Receipt>, Trouble> {
    match backend.hand() {
        Hand::Daemon(mut client) => {
            let path = format!("/v1/receipts/{}", crate::client::percent_encoded(id.as_str()));
            let (status, body) = client.ask(Method::GET, &path, Bytes::new()).await?;
            if status != 200 {
                return Ok(None);
            }
            let receipt =
                serde_json::from_slice(&body).map_err(|error| ClientError::Strange(error.to_string()))?;
            Ok(Some(receipt))
        }
        Hand::Direct(runtime) => {
            let stored = runtime.store().receipt(id).map_err(Error::from)?;
            let receipt = stored.map(|stored| stored.parse()).transpose();
            Ok(receipt.map_err(Error::from)?)
        }
    }
}
