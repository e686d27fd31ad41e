//! `effectd limits show`: every bound that can be set, what it is here, and from where to where it may be.

use clap::Subcommand;
use serde_json::json;

use super::output::{Form, Printer};
use super::{Common, complain, serve};
use crate::exit::Exit;
use crate::settings::{KEYS, Key};

/// Show the bounds that hold here
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd limits show store.")]
pub(super) struct LimitsCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List every bound that can be set: what it is here, its default, what it may be, and what it is for
    ///
    /// As the daemon of this state directory would have them. Why each has its default, and the bounds that are fixed, are in
    /// docs/limits.md. Settings that bound nothing are in `config show`.
    #[command(after_help = "Examples:\n  effectd limits show\n  effectd limits show store. -o json")]
    Show {
        /// Only those whose name begins so
        #[arg(value_name = "PREFIX", default_value = "")]
        prefix: String,
        /// How they are shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
}

const COLUMNS: [(&str, usize); 5] = [
    ("LIMIT", 36),
    ("VALUE", 14),
    ("DEFAULT", 14),
    ("TAKES", 44),
    ("WHAT", 0),
];

impl LimitsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let Verb::Show { prefix, output } = self.verb;
        let settings = match common.settings(Some(&serve::state(common))) {
            Ok(settings) => settings,
            Err(error) => {
                complain(&error);
                return Exit::Usage;
            }
        };
        let mut printer = Printer::new(output, true, &COLUMNS);
        for (name, value, _) in settings.all() {
            let key = KEYS.iter().find(|key| key.name == name);
            let Some(key) = key.filter(|key| is_bound(key) && name.starts_with(&prefix)) else {
                continue;
            };
            let (default, takes) = (key.default(), key.expected());
            let told = json!({
                "limit": name, "value": value, "default": default, "takes": takes, "about": key.about,
            });
            printer.row(&told, &[name, value, &default, &takes, key.about]);
        }
        printer.finish();
        Exit::Done
    }
}

/// Whether it is a number with an end.
fn is_bound(key: &Key) -> bool {
    key.expected().starts_with("a number from")
}
