//! `effectd undo`: take back what an action changed.

use effectd_contracts::{ReceiptId, UNDO_TOOL};
use serde_json::json;

use super::ask::{self, Asking};
use super::backend::{Trouble, with_client};
use super::output::Form;
use super::{Common, named, tools};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Depth;

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
    /// Which receipt, by its own id or its action's
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
        let found = with_client(common, Depth::Store, async |client| {
            named::receipt(client, &self.receipt).await
        })
        .await?;
        let asking = Asking {
            subject: found.subject_id.clone(),
            space: found.space_id.clone(),
            output: self.output,
        };
        let params = json!({ "receipt_id": found.receipt_id, "space_id": found.space_id });
        let params = params.as_object().cloned().unwrap_or_default();
        let tool = UNDO_TOOL
            .parse()
            .map_err(|error| Error::Internal(format!("{error}")))?;
        let request = tools::request(&asking, tool, params, self.dry_run);
        ask::have_done(common, request, self.output).await
    }
}
