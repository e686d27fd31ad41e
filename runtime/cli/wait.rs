//! `effectd wait`: wait until an action has ended.

use std::time::Duration;

use effectd_contracts::ActionId;
use effectd_gateway::client::Told;
use effectd_gateway::views::State;

use super::Common;
use super::backend::{Session, Trouble, is_alone, wait_for};
use super::output::Form;
use super::told::show_one;
use crate::exit::Exit;
use crate::runtime::Depth;

/// Wait until an action has ended, and show its receipt
///
/// The exit code is that of its outcome, or 75 if the time was over before. Without a daemon, this process carries out what
/// is on the bus.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd wait 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36\n  \
    effectd wait --timeout 5 -o json 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36"
)]
pub(super) struct Wait {
    /// Which action
    #[arg(value_name = "ACTION")]
    action: ActionId,
    /// How long to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    timeout: u64,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Wait {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let told = self.told(common).await?;
            let exit = show_one(&told, self.output);
            let over = matches!(&told, Told::View(view) if view.state == State::Accepted);
            Ok(if over { Exit::TryAgain } else { exit })
        })
    }

    async fn told(&self, common: &Common) -> Result<Told, Trouble> {
        let wait = Duration::from_secs(self.timeout);
        let mut session = Session::reach(common, Depth::Store).await?;
        if is_alone(&session.client) {
            // Nobody but this process can end it, by carrying out what is on the bus.
            let told = session.client.status(&self.action).await;
            session.close().await?;
            let told = told?;
            if !matches!(&told, Told::View(view) if view.state == State::Accepted) {
                return Ok(told);
            }
            session = Session::alone(common, Depth::Pipeline).await?;
        }
        let told = wait_for(&mut session.client, &self.action, wait).await;
        session.close().await?;
        told
    }
}
