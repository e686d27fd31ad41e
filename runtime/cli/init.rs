//! `effectd init`: create a state directory with the demo policy.

use effectd_bus::embedded::{self, JournalKind};

use super::{CliError, Common, eprint_line, line};
use crate::error::Error;
use crate::exit::Exit;
use crate::settings::config::state_dir;
use crate::state::State;

/// Create a state directory with a commented policy to start from
///
/// The policy permits `examples/write_note.json` and little else. An existing policy is not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd init --state .effectd\n  effectd init --journal sled")]
pub(super) struct Init {
    /// The journal's engine; by default the setting `store.journal` decides when the store is first used
    #[arg(long, value_name = "KIND", value_parser = ["files", "sled"])]
    journal: Option<String>,
}

impl Init {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let state = State::prepare(&state_dir(common.state.clone()), None, true)?;
        if !state.seeded() {
            let path = state.path().display();
            eprint_line(&format!("{path} already has a policy, which stays unchanged"));
            return Ok(Exit::Failed);
        }
        if let Some(journal) = self.journal.as_deref().and_then(JournalKind::named) {
            embedded::choose(state.path(), journal).map_err(Error::from)?;
        }
        line(&state.policy_dir().display().to_string());
        Ok(Exit::Done)
    }
}
