//! `effectd cancel`: cancel an action that has not started.

use effectd_contracts::{ActionId, Outcome};
use effectd_gateway::views::State as ActionState;

use super::action_output::show_one;
use super::short_id::Purpose;
use super::{ActionReply, CliError, Common, Confirm, Depth, short_id, with_client};
use crate::exit::Exit;

/// Cancel an action that has not started
///
/// It ends with a receipt that says `cancelled`; cancelling it again is harmless. An action that runs or has ended otherwise cannot
/// be cancelled: the answer says which, and the exit code is 1. Without a daemon the store is used directly.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd cancel 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36")]
pub(super) struct Cancel {
    /// The action's id
    #[arg(value_name = "ACTION")]
    action: ActionId,
    #[command(flatten)]
    confirm: Confirm,
}

impl Cancel {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let reply = with_client(common, Depth::Policy, async |client| {
            let action = short_id::action(client, &self.action, Purpose::Decide).await?;
            let dry_run = self.confirm.dry_run;
            Ok(if dry_run { client.status(&action).await? } else { client.cancel(&action).await? })
        });
        let reply = reply.await?;
        if let (ActionReply::View(view), true) = (&reply, self.confirm.dry_run) {
            if matches!(view.state, ActionState::Done | ActionState::Ended) {
                let why = format!("{} has ended, so it cannot be cancelled", view.action_id);
                return Err(CliError::request(why).exiting(Exit::Failed));
            }
            self.confirm.only_shows(&[format!("cancel {}, unless it has started", view.action_id)]);
            return Ok(Exit::Done);
        }
        let exit = show_one(&reply, common.output);
        // Every other command treats `cancelled` as a refusal; here it is success.
        let cancelled = matches!(&reply, ActionReply::View(view) if view.outcome == Some(Outcome::Cancelled));
        Ok(if cancelled { Exit::Done } else { exit })
    }
}
