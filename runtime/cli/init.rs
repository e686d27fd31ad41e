//! `effectd init`: a state directory with a policy to start from.

use effectd_bus::embedded::{self, JournalKind};

use super::output::line;
use super::{Common, complain};
use crate::config::state_dir;
use crate::error::Error;
use crate::exit::Exit;
use crate::state::State;

/// Make a state directory with a commented policy to start from
///
/// The policy permits the example and little else. A state directory that has a policy already is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd init --state .effectd\n  effectd init --journal sled")]
pub(super) struct Init {
    /// What carries the journal; without it, what `store.journal` says when the store is first used
    #[arg(long, value_name = "KIND", value_parser = ["files", "sled"])]
    journal: Option<String>,
}

impl Init {
    pub(super) fn main(self, common: &Common) -> Exit {
        match self.make(common) {
            Ok(state) if state.seeded() => {
                line(&state.policy_dir().display().to_string());
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

    fn make(&self, common: &Common) -> Result<State, Error> {
        let state = State::prepare(&state_dir(common.state.clone()), true)?;
        let journal = self.journal.as_deref().and_then(JournalKind::named);
        if let Some(journal) = journal.filter(|_| state.seeded()) {
            embedded::choose(state.path(), journal)?;
        }
        Ok(state)
    }
}
