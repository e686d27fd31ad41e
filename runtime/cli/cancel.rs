//! `effectd cancel`: withdraw an action that has not started.

use effectd_contracts::{ActionId, Outcome};
use effectd_gateway::client::Told;

use super::Common;
use super::backend::with_client;
use super::output::Form;
use super::told::show_one;
use crate::exit::Exit;
use crate::runtime::Depth;

/// Withdraw an action that has not started
///
/// It ends with a receipt that says `cancelled`; withdrawing it again is harmless. What has ended otherwise, or is on its
/// way, cannot be withdrawn: the answer says which, and the exit code is 1. Without a daemon the store itself is used.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd cancel 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36")]
pub(super) struct Cancel {
    /// Which action
    #[arg(value_name = "ACTION")]
    action: ActionId,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Cancel {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let told = with_client(common, Depth::Policy, async |client| {
                Ok(client.cancel(&self.action).await?)
            });
            let told = told.await?;
            let exit = show_one(&told, self.output);
            // A refusal for everybody else, and just what was wanted here.
            let withdrawn = matches!(&told, Told::View(view) if view.outcome == Some(Outcome::Cancelled));
            Ok(if withdrawn { Exit::Done } else { exit })
        })
    }
}
