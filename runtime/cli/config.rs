//! `effectd config`: what is set, and by whom.

use clap::Subcommand;
use serde_json::json;

use super::output::{Form, Printer};
use super::{Common, complain, serve};
use crate::exit::Exit;
use crate::settings::Takes;

/// Show what is set
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd config show --origin")]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Show(Show),
}

/// Show every setting of the daemon, as it would be in force
///
/// The configuration file is config.toml in the state directory; above it stands the environment, and above that the
/// command line (--set KEY=VALUE). With -o json, the variable of each key, its default, what values it takes and whether
/// SIGHUP is enough for a new one are told, too. A configuration that cannot be used is an error here, too.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd config show\n  effectd config show store. --origin\n  \
    effectd config show --origin --set gateway.backlog_max=500 -o json"
)]
struct Show {
    /// Only keys that begin so
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Show where each value comes from
    #[arg(long)]
    origin: bool,
    /// How the settings are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl ConfigCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let Verb::Show(show) = self.verb;
        let settings = match common.settings(Some(&serve::state(common))) {
            Ok(settings) => settings,
            Err(error) => {
                complain(&error);
                return Exit::Usage;
            }
        };
        let columns: &'static [(&str, usize)] = if show.origin {
            &[("KEY", 33), ("VALUE", 10), ("ORIGIN", 8), ("WHAT", 0)]
        } else {
            &[("KEY", 33), ("VALUE", 10), ("WHAT", 0)]
        };
        let mut printer = Printer::new(show.output, true, columns);
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
        Exit::Done
    }
}
