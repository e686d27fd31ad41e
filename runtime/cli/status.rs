//! `effectd status`: the state of an action.

use effectd_contracts::ActionId;

use super::action_output::show_one;
use super::short_id::Purpose;
use super::{CliError, Common, Depth, short_id, with_client};
use crate::exit::Exit;

/// Show the state of an action
///
/// The exit code is 0 while the action is in flight, and that of its outcome when it has ended. Without a daemon the store is read
/// directly.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd status 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36\n  \
    effectd status -o json 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36")]
pub(super) struct Status {
    /// The action's id
    #[arg(value_name = "ACTION")]
    action: ActionId,
}

impl Status {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let reply = with_client(common, Depth::Store, async |client| {
            let action = short_id::action(client, &self.action, Purpose::Show).await?;
            Ok(client.status(&action).await?)
        });
        Ok(show_one(&reply.await?, common.output))
    }
}
