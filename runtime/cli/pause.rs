//! `effectd pause` and `effectd resume`: turn all effects off and on.

use effectd_contracts::Operation;

use super::mutation::{ChangeArgs, Terms};
use super::{CliError, Common, Confirm, mutation};
use crate::exit::Exit;

/// Dry-run every action until `effectd resume`, or for a while
///
/// Every action passes all stages, but nothing is changed and its receipt says `skipped`. Running actions are finished. The pause
/// survives a restart.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd pause --yes\n  effectd pause --for 30m --reason \"disk is being moved\" --yes"
)]
pub(super) struct Pause {
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    confirm: Confirm,
}

/// Carry out actions again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd resume --yes")]
pub(super) struct Resume {
    #[command(flatten)]
    args: ChangeArgs,
}

impl Pause {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        mutation::run_on(common, &Operation::Pause {}, &self.terms, self.confirm).await
    }
}

impl Resume {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        self.args.clone().run(common, &Operation::Resume {}).await
    }
}
