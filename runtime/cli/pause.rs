//! `effectd pause` and `effectd resume`: turn all effects off and on.

use effectd_contracts::Operation;

use super::{CliError, Common, Confirm, mutation};
use crate::exit::Exit;

/// Dry-run every action until `effectd resume`
///
/// Every action passes all stages, but nothing is changed and its receipt says `skipped`. Running actions are finished. The pause
/// survives a restart.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd pause --yes")]
pub(super) struct Pause {
    #[command(flatten)]
    confirm: Confirm,
}

/// Carry out actions again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd resume --yes")]
pub(super) struct Resume {
    #[command(flatten)]
    confirm: Confirm,
}

impl Pause {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        mutation::run(common, &Operation::Pause {}, self.confirm).await
    }
}

impl Resume {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        mutation::run(common, &Operation::Resume {}, self.confirm).await
    }
}
