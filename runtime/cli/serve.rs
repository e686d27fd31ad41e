//! `effectd serve`: the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::backend::named_state;
use super::{CliError, Common, TIME, span};
use crate::daemon::{SERVE_STATE_DEFAULT, serve};
use crate::error::chain;
use crate::exit::Exit;
use crate::settings::Settings;
use crate::settings::config::Config;
use crate::state::State;
use crate::telemetry::{Exporter, LogDial};

/// Run the daemon, which serves planners through a local socket
///
/// The state directory must have a policy: `effectd init` makes one. SIGTERM and SIGINT finish running actions and stop; a second
/// signal stops at once. SIGHUP reads policy and settings again, and the log says which settings need a restart. A service manager is
/// told when the daemon is ready. The log is JSON by default. The default state directory is /var/lib/effectd.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd serve --state .effectd\n  \
    effectd serve --state .effectd --socket .effectd/run/planners.sock --set gateway.socket_mode=0660\n  \
    effectd serve --state .effectd --listen 127.0.0.1:7070\n  \
    effectd serve --state .effectd --idle-exit 15m")]
pub(super) struct Serve {
    /// If the policy's files have a fault, go on with the policy that was last in force
    ///
    /// Without this, such a start names every fault and exits with 69. With it, `/readyz`, `top`, `check policy` and the metric
    /// effectd_policy_files_in_force say that the files are not in force.
    #[arg(long)]
    last_good_policy: bool,
    /// Also listen at this TCP address, for holders of tokens [default: gateway.listen]
    ///
    /// Standard output says where it listens: port 0 is any free port. Off loopback it needs gateway.tls_cert and
    /// gateway.tls_key, or gateway.behind_proxy.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Stop when for this long nobody has asked anything or is connected, and nothing is in flight: `15m`
    ///
    /// `effectd mcp` starts such daemons. What awaits a person stays on disk.
    #[arg(long, value_name = TIME, value_parser = idle_time)]
    idle_exit: Option<Duration>,
}

fn idle_time(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        time => Ok(time),
    }
}

/// How long the end waits for the collector of spans.
const EXPORT_END_MAX: Duration = Duration::from_secs(2);

pub(super) fn state(common: &Common) -> PathBuf {
    named_state(common).unwrap_or_else(|| PathBuf::from(SERVE_STATE_DEFAULT))
}

impl Serve {
    /// The arguments of every command, with this one's own setting.
    pub(super) fn with_setting(&self, common: &Common) -> Common {
        let mut common = common.clone();
        common.set.extend(self.listen.map(|address| format!("gateway.listen={address}")));
        common
    }

    pub(super) async fn main(
        self,
        common: &Common,
        settings: Settings,
        log: LogDial,
        exporter: Option<Exporter>,
    ) -> Result<Exit, CliError> {
        let state = state(common);
        // Checked before anything is created: a daemon on an empty state would deny everything and seem to work.
        State::existing(&state)?;
        let mut config = Config::embedded(&state)?;
        config.seed_demo = false;
        config.last_good_policy = self.last_good_policy;
        let common = common.clone();
        let read_settings = move || common.settings(Some(&state)).map_err(|error| chain(&error));
        let (stop, stopped) = oneshot::channel();
        let exporting = exporter.map(|exporter| tokio::spawn(exporter.run(stopped)));
        let ended = serve(config, settings, log, Box::new(read_settings), self.idle_exit).await;
        drop(stop);
        if let Some(exporting) = exporting {
            // The last spans, unless the collector does not answer.
            let _ = timeout(EXPORT_END_MAX, exporting).await;
        }
        ended?;
        Ok(Exit::Done)
    }
}
