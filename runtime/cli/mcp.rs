//! `effectd mcp …`: effectd as the MCP server of an agent.

mod bridge;
mod install;
mod link;
mod message;
mod no_policy;
mod start;
mod try_tool;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_contracts::{SpaceId, SubjectId};

use super::backend::named_state;
use super::{CliError, Common};
use crate::exit::Exit;
use crate::settings::config::{project_state, state_of_project};
use link::Link;

/// Serve an agent: speak MCP on standard input and output
///
/// An agent starts this command in the folder of a project. It passes each message on to a daemon, so that agents of one project share
/// one. If none answers, it starts one that stops after 15 minutes without work. The state is in your state folder
/// ($XDG_STATE_HOME, or ~/.local/state), outside of the project. `mcp install` makes it, with the policy `coding`; before that, the
/// agent sees no tools.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd mcp install claude-code --dry-run\n  effectd mcp")]
pub(super) struct Mcp {
    /// The folder of the project [default: the current folder]
    #[arg(long, global = true, value_name = "DIR")]
    project: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// Who the agent is and where it acts, if the policy leaves a choice.
#[derive(Debug, Default, clap::Args)]
struct Place {
    /// The subject to act for [default: the one that the policy lets you act for]
    #[arg(long, global = true, value_name = "SUBJECT")]
    subject: Option<SubjectId>,
    /// The space to act in [default: the one that the subject sees]
    #[arg(long, global = true, value_name = "SPACE")]
    space: Option<SpaceId>,
}

impl Place {
    /// What is named.
    fn named(&self) -> impl Iterator<Item = (&'static str, String)> {
        let subject = self.subject.as_ref().map(|subject| ("subject", subject.to_string()));
        let space = self.space.as_ref().map(|space| ("space", space.to_string()));
        subject.into_iter().chain(space)
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    Install(install::Install),
    Try(try_tool::Try),
}

impl Mcp {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let project = Project::find(self.project.as_deref())?;
        let link = || Link::of(common, &project, &self.place);
        match self.verb {
            None => bridge::run(link()?).await,
            Some(Verb::Install(install)) => install.main(common, &project, &self.place),
            Some(Verb::Try(attempt)) => attempt.main(common, &link()?).await,
        }
    }
}

/// The folder that an agent works in.
#[derive(Debug)]
struct Project {
    folder: PathBuf,
    /// Whether the command line names it.
    is_named: bool,
}

impl Project {
    fn find(named: Option<&Path>) -> Result<Self, CliError> {
        let path = named.unwrap_or(Path::new("."));
        let folder = path.canonicalize().map_err(|error| {
            CliError::request(format!("{} is no folder of a project: {error}", path.display()))
        })?;
        Ok(Self { folder, is_named: named.is_some() })
    }

    /// The state directory of the agent in this folder, which may be that of a project around it.
    fn state(&self, common: &Common) -> Result<PathBuf, CliError> {
        match absolute_state(common).or_else(|| state_of_project(&self.folder)) {
            Some(state) => Ok(state),
            None => self.new_state(common),
        }
    }

    /// The state directory for this folder alone.
    fn new_state(&self, common: &Common) -> Result<PathBuf, CliError> {
        let state = absolute_state(common).or_else(|| project_state(&self.folder));
        state.ok_or_else(|| CliError::request("a project needs a state folder: set HOME or XDG_STATE_HOME"))
    }
}

/// The state directory that the command line or the environment names. Not `.effectd` in the project: the agent, or whoever wrote
/// the project's files, could have made it, with a policy in it.
fn absolute_state(common: &Common) -> Option<PathBuf> {
    named_state(common).map(|state| std::path::absolute(&state).unwrap_or(state))
}
