//! `effectd init`: a state directory with a policy to start from.

use super::{Common, complain};
use crate::config::state_dir;
use crate::exit::Exit;
use crate::state::State;

/// Make a state directory with a commented policy to start from
///
/// The policy permits the example and little else. A state directory that has a policy already is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd init --state .effectd")]
pub(super) struct Init {}

impl Init {
    #[expect(
        clippy::print_stdout,
        reason = "where the policy is, is what the command is for"
    )]
    pub(super) fn main(self, common: &Common) -> Exit {
        match State::prepare(&state_dir(common.state.clone()), true) {
            Ok(state) if state.seeded() => {
                println!("{}", state.policy_dir().display());
                Exit::Done
            }
            Ok(state) => {
                complain(&format!(
                    "{} has a policy already; it is left as it is",
                    state.path().display()
                ));
                Exit::Failed
            }
            Err(error) => {
                complain(&error);
                error.exit()
            }
        }
    }
}
