//! `effectd init`: create a state directory with a policy.

use effectd_bus::embedded::{self, JournalKind};
use effectd_policy::Preset;
use serde_json::json;

use super::{CliError, Common, Confirm, eprint_line, line, print_json};
use crate::error::Error;
use crate::exit::Exit;
use crate::settings::config::state_dir;
use crate::state::State;

/// Create a state directory with a commented policy to start from
///
/// `coding`: an agent reads and writes source code in ./workspace and runs three git commands; a person decides about deletions and all
/// other programs.
/// `household`: a planner reads and writes notes, also in `examples/write_note.json`; a person decides about deletions.
/// `locked`: a planner reads; a person decides about each write. An existing policy is not changed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd init --preset coding --state project/.effectd\n  effectd init --state .effectd\n  effectd init --journal sled"
)]
pub(super) struct Init {
    /// The policy to start from
    #[arg(long, value_name = "NAME", default_value = Preset::Household.as_str(), value_parser = Preset::ALL.map(Preset::as_str))]
    preset: String,
    /// The journal's engine; by default the setting `store.journal` decides when the store is first used
    #[arg(long, value_name = "KIND", value_parser = ["files", "sled"])]
    journal: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

impl Init {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let state = state_dir(common.state.clone());
        let policy = state.join("policy");
        if !policy.exists()
            && self.confirm.only_shows(&[format!("write the policy {} to {}", self.preset, policy.display())])
        {
            return Ok(Exit::Done);
        }
        let state = State::prepare(&state, None, Preset::named(&self.preset).map(Preset::files))?;
        if !state.seeded() {
            let why = format!("{} already has a policy, which stays unchanged", state.path().display());
            return Err(CliError::request(why).exiting(Exit::Failed));
        }
        if let Some(journal) = self.journal.as_deref().and_then(JournalKind::named) {
            embedded::choose(state.path(), journal).map_err(Error::from)?;
        }
        if self.preset == Preset::Locked.as_str() {
            eprint_line(
                &"nobody is named as approver: the user who runs effectd decides, also about its own requests if planners run as \
                 that user; edit [principals]",
            );
        }
        if !print_json(common.output, &json!({ "state": state.path(), "policy": state.policy_dir() })) {
            line(&state.policy_dir().display().to_string());
        }
        Ok(Exit::Done)
    }
}
