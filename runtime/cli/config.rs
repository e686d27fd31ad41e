//! `effectd config`: the settings and their origins.

use clap::Subcommand;
use serde_json::json;

use super::{CliError, Common, Printer, serve};
use crate::exit::Exit;
use crate::settings::Takes;

/// Show the settings
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd config show --origin")]
pub(super) enum ConfigCommand {
    Show(Show),
}

/// Show every setting of the daemon
///
/// The configuration file is config.toml in the state directory. The environment overrides it, and the command line (--set KEY=VALUE)
/// overrides both. -o json adds each key's variable, default, permitted values and whether SIGHUP applies a change. A configuration
/// that cannot be used is an error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd config show\n  effectd config show store. --origin\n  \
    effectd config show --origin --set gateway.backlog_max=500 -o json")]
pub(super) struct Show {
    /// Only keys that begin with this text
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Show the origin of each value
    #[arg(long)]
    origin: bool,
}

impl ConfigCommand {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let Self::Show(show) = self;
        let settings = common.settings(Some(&serve::state(common)))?;
        let columns: &'static [(&str, usize)] = if show.origin {
            &[("KEY", 33), ("VALUE", 10), ("ORIGIN", 8), ("WHAT", 0)]
        } else {
            &[("KEY", 33), ("VALUE", 10), ("WHAT", 0)]
        };
        let mut printer = Printer::new(common.output, true, columns);
        for (key, text, origin) in settings.all() {
            if !key.name.starts_with(&show.prefix) {
                continue;
            }
            let origin = origin.to_string();
            let takes = match key.takes {
                Takes::Reload => "reload",
                Takes::Restart => "restart",
            };
            let mut value = json!({
                "key": key.name, "value": text, "about": key.about, "variable": key.variable(), "takes_effect": takes,
                "takes": key.expected(), "default": key.default(),
            });
            let mut cells = vec![key.name, &text];
            if show.origin {
                value["origin"] = origin.as_str().into();
                cells.push(&origin);
            }
            cells.push(key.about);
            printer.row(&value, &cells);
        }
        printer.finish();
        Ok(Exit::Done)
    }
}
