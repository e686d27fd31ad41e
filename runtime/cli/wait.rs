//! `effectd wait`: wait until an action has ended.

use std::time::Duration;

use effectd_contracts::ActionId;
use effectd_gateway::views::State;

use super::action_output::show_one;
use super::backend::wait_for;
use super::short_id::Purpose;
use super::{ActionReply, CliError, Common, Depth, Session, TIME, is_in_process, short_id, span};
use crate::exit::Exit;

/// Wait until an action has ended, and show its receipt
///
/// The exit code is that of the action's outcome, or 75 if the time is over before. Without a daemon, this process carries out what
/// is on the bus.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd wait 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36\n  \
    effectd wait --timeout 5s -o json 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36")]
pub(super) struct Wait {
    /// The action's id
    #[arg(value_name = "ACTION")]
    action: ActionId,
    /// How long to wait: `90s`, `30m`, `2h`; a bare number is seconds
    #[arg(long, value_name = TIME, value_parser = span, default_value = "1h")]
    timeout: Duration,
}

fn is_open(reply: &ActionReply) -> bool {
    matches!(reply, ActionReply::View(view) if view.state == State::Accepted)
}

impl Wait {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let reply = self.reply(common).await?;
        let exit = show_one(&reply, common.output);
        Ok(if is_open(&reply) { Exit::TryAgain } else { exit })
    }

    async fn reply(&self, common: &Common) -> Result<ActionReply, CliError> {
        let mut session = Session::reach(common, Depth::Store).await?;
        let action = match short_id::action(&mut session.client, &self.action, Purpose::Show).await {
            Ok(action) => action,
            Err(error) => return session.close().await.and(Err(error)),
        };
        if is_in_process(&session.client) {
            let reply = session.client.status(&action).await;
            session.close().await?;
            let reply = reply?;
            if !is_open(&reply) {
                return Ok(reply);
            }
            // No daemon runs, so this process must carry out the action.
            session = Session::in_process(common, Depth::Pipeline).await?;
        }
        let reply = wait_for(&mut session.client, &action, self.timeout).await;
        session.close().await?;
        reply
    }
}
