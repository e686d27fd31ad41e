//! `effectd serve`: the long-running runtime with its local door.

use std::path::{Path, PathBuf};

use super::Common;
use super::backend::Trouble;
use crate::config::{Config, STATE_VARIABLE};
use crate::exit::Exit;
use crate::serve::{SERVE_STATE_DEFAULT, serve};
use crate::settings::Settings;
use crate::telemetry::LogDial;

/// Serve planners through a local socket until told to stop
///
/// The state directory must have a policy: `effectd init` makes one. SIGTERM and SIGINT finish what is on its way and stop,
/// a second one stops at once; SIGHUP reads policy and settings anew, and the log says which settings need a restart. A service manager is told when work can be taken. The log is
/// JSON unless said otherwise. The default state directory is /var/lib/effectd.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd serve --state .effectd\n  \
    effectd serve --state .effectd --socket .effectd/run/planners.sock --set gateway.socket_mode=0660")]
pub(super) struct Serve {}

pub(super) fn state(common: &Common) -> PathBuf {
    let variable = || {
        std::env::var_os(STATE_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let named = common.state.clone().or_else(variable);
    named.unwrap_or_else(|| PathBuf::from(SERVE_STATE_DEFAULT))
}

impl Serve {
    pub(super) fn main(self, common: &Common, settings: Settings, log: LogDial) -> Exit {
        let state = state(common);
        super::block_on(async {
            // Before anything is made: a daemon on an empty state would deny everything, and look as if it worked.
            crate::state::State::existing(&state)?;
            let mut config = Config::embedded(&state)?;
            config.seed_demo = false;
            let reread = reread(common, &state);
            serve(config, settings, log, reread).await?;
            Ok::<_, Trouble>(Exit::Done)
        })
    }
}

fn reread(common: &Common, state: &Path) -> crate::serve::Reread {
    let (common, state) = (common.clone(), state.to_owned());
    Box::new(move || common.settings(Some(&state)).map_err(|error| error.to_string()))
}
