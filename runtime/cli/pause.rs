//! `effectd pause` and `effectd resume`: planning goes on, effects do not.

use effectd_contracts::Operation;

use super::Common;
use super::operate::{self, Confirm};
use super::output::Form;
use crate::exit::Exit;

/// Only try out whatever comes, until it is resumed
///
/// Every action goes its whole way, and its receipt says `skipped`: nothing is changed. What has begun is finished. It stays
/// so over a restart.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd pause --yes")]
pub(super) struct Pause {
    #[command(flatten)]
    asking: Asking,
}

/// Carry out again what comes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd resume --yes")]
pub(super) struct Resume {
    #[command(flatten)]
    asking: Asking,
}

#[derive(Debug, clap::Args)]
struct Asking {
    #[command(flatten)]
    confirm: Confirm,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Asking {
    fn main(&self, common: &Common, operation: &Operation) -> Exit {
        super::block_on(operate::main(common, operation, self.confirm, self.output))
    }
}

impl Pause {
    pub(super) fn main(&self, common: &Common) -> Exit {
        self.asking.main(common, &Operation::Pause {})
    }
}

impl Resume {
    pub(super) fn main(&self, common: &Common) -> Exit {
        self.asking.main(common, &Operation::Resume {})
    }
}
