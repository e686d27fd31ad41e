//! `effectd version`: the version of this program and of the action API.

use effectd_contracts::ACTION_API;
use serde_json::json;

use super::{CliError, Common, line, print_json};
use crate::exit::Exit;

/// Show the version of this program, and of the action API that plans and packages follow
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd version\n  effectd version -o json")]
pub(super) struct Version {}

impl Version {
    pub(super) fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let version = env!("CARGO_PKG_VERSION");
        if !print_json(common.output, &json!({ "version": version, "action_api": ACTION_API })) {
            line(&format!("effectd {version}"));
            line(&format!("action API {ACTION_API}"));
        }
        Ok(Exit::Done)
    }
}
