//! `effectd caches`: the caches of named commands.

use clap::Subcommand;
use effectd_actors::Caches;
use effectd_contracts::SpaceId;
use serde_json::json;

use super::{CliError, Common, Confirm, line, print_json, print_rows, state_dir_of};
use crate::error::Error;
use crate::exit::Exit;
use crate::state::State;

/// List and clear the caches of named commands
///
/// A cache is a folder in the state directory that effectd mounts into a space while a named command runs. Run this as the user of
/// the daemon.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  effectd caches list\n  effectd caches clear shared:household --yes")]
pub(super) enum CachesCommand {
    /// List all caches with their sizes
    #[command(after_help = "Example:\n  effectd caches list -o jsonl")]
    List,
    /// Remove all caches of a space
    ///
    /// Commands then start with empty caches; one that runs now may fail.
    #[command(after_help = "Example:\n  effectd caches clear shared:household --yes")]
    Clear {
        /// The space
        #[arg(value_name = "SPACE")]
        space: SpaceId,
        #[command(flatten)]
        confirm: Confirm,
    },
}

const COLUMNS: [(&str, usize); 5] =
    [("SPACE", 24), ("COMMAND", 16), ("PATH", 24), ("BYTES", 14), ("FILES", 8)];

impl CachesCommand {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let state = State::existing(&state_dir_of(common))?;
        let (path, caches) = (state.caches_dir(), Caches::new(state.caches_dir()));
        let failed = |source| Error::State { path: path.clone(), source };
        match self {
            Self::List => {
                let all = caches.list().map_err(failed)?;
                print_rows(common.output, &COLUMNS, &all, |cache| {
                    let (space, command) = (cache.space.clone(), cache.command.clone());
                    [space, command, cache.path.clone(), cache.bytes.to_string(), cache.files.to_string()]
                });
            }
            Self::Clear { space, confirm } => {
                if !confirm.confirmed(&[format!("the caches of {space} -> removed")]) {
                    return Ok(confirm.declined());
                }
                let cleared = caches.clear(&space).map_err(failed)?;
                let said = if cleared { "has no caches any more" } else { "had no caches" };
                if !print_json(common.output, &json!({ "space": space, "cleared": cleared })) {
                    line(&format!("{space} {said}"));
                }
            }
        }
        Ok(Exit::Done)
    }
}
