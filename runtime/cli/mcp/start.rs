//! Starts the daemon of a project, for whoever finds none.
#![expect(clippy::disallowed_types, reason = "starts this program again, as the daemon")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use effectd_gateway::socket::make_private;

use crate::daemon::{LOG, bound_log};
use crate::error::{AtPath, Error};
use crate::exit::Exit;

/// How long the daemon stays without work: longer than a person thinks between two questions to an agent.
const IDLE_EXIT: &str = "15m";

/// A daemon that was started, until it answers or has ended.
#[derive(Debug)]
pub(super) struct Starting {
    child: Child,
    log: PathBuf,
}

/// Why a daemon ended before it answered.
#[derive(Debug)]
pub(super) enum Ended {
    /// Another process has the state.
    InUse,
    Failed(String),
}

impl Starting {
    /// Starts a daemon that outlives this process.
    pub(super) fn begin(state: &Path) -> Result<Self, Error> {
        let log = state.join(LOG);
        make_private(&state.join("run")).at(&log)?;
        // There may be none yet.
        let _ = bound_log(state);
        let program = std::env::current_exe().map_err(Error::internal)?;
        let stderr = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
        let begun = stderr.and_then(|stderr| {
            Command::new(&program)
                .args(["serve", "--idle-exit", IDLE_EXIT, "--state"])
                .arg(state)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(stderr)
                // What ends the agent's terminal does not end the daemon, which others may use.
                .process_group(0)
                .spawn()
        });
        Ok(Self { child: begun.at(&log)?, log })
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().ok().flatten()?;
        if status.code() == Some(i32::from(Exit::TryAgain.code())) {
            return Some(Ended::InUse);
        }
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.lines().rev().find_map(|line| line.strip_prefix("effectd: "));
        let why = last.map_or_else(|| format!("it ended with {status}"), str::to_owned);
        Some(Ended::Failed(format!("the daemon does not start: {why} (its log is {})", self.log.display())))
    }

    /// Leaves it to itself.
    pub(super) fn leave(mut self) {
        // Without this, one that ends before this process would stay in the list of processes.
        std::thread::spawn(move || self.child.wait());
    }
}
