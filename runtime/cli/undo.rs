//! `effectd undo`: undo what an action changed.

use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{ReceiptId, UNDO_TOOL};
use serde_json::json;

use super::request_args::{self, RequestArgs};
use super::short_id::Purpose;
use super::{CliError, Common, Confirm, Depth, receipt_ref, with_client};
use crate::error::Error;
use crate::exit::Exit;

/// Undo what an action changed, if nothing has changed since
///
/// The undo restores the files that the action replaced, byte for byte. It is an action of its own: it passes every gate and has its
/// own receipt. Undoing that receipt repeats the change. `--dry-run` says whether it could be undone.
///
/// An issue or a comment that was created in Linear is archived or deleted, and a message that was sent to Slack is deleted; people may
/// have read it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd undo --dry-run 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12\n  \
    effectd undo 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
pub(super) struct Undo {
    /// The receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    #[command(flatten)]
    confirm: Confirm,
}

impl Undo {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let found = with_client(common, Depth::Store, async |client| {
            receipt_ref::receipt(client, &self.receipt).await
        })
        .await?;
        let purpose = if self.confirm.dry_run { Purpose::Show } else { Purpose::Decide };
        purpose.check(self.receipt.as_str(), [found.receipt_id.as_str(), found.action_id.as_str()])?;
        let params = json!({ "receipt_id": found.receipt_id, "space_id": found.space_id });
        let params = params.as_object().cloned().unwrap_or_default();
        let at_service = undo_at_service(&found.tool_id);
        let tool = at_service.as_deref().unwrap_or(UNDO_TOOL).parse().map_err(Error::internal)?;
        let args = RequestArgs { subject: found.subject_id, space: found.space_id };
        let request = args.request(tool, params, self.confirm.dry_run);
        request_args::execute_and_print(common, request).await
    }
}
