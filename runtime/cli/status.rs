//! `effectd status`: how an action stands.

use effectd_contracts::ActionId;

use super::Common;
use super::backend::with_client;
use super::output::Form;
use super::told::show_one;
use crate::exit::Exit;
use crate::runtime::Depth;

/// Tell how an action stands
///
/// The exit code is 0 while it is on its way, and that of its outcome when it has ended. Without a daemon the store itself
/// is asked.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd status 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36\n  \
    effectd status -o json 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36"
)]
pub(super) struct Status {
    /// Which action
    #[arg(value_name = "ACTION")]
    action: ActionId,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Status {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let told = with_client(common, Depth::Store, async |client| {
                Ok(client.status(&self.action).await?)
            });
            Ok(show_one(&told.await?, self.output))
        })
    }
}
