//! `effectd bus tail --exec`: runs a command for each event.
//!
//! The operator starts it, and it has the operator's rights: the daemon itself starts no command.
#![expect(clippy::disallowed_types, reason = "runs what the operator names; the daemon never does")]

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::sync::oneshot;

use super::{CliError, eprint_line};
use crate::daemon::signals::Signals;
use crate::error::Error;
use crate::exit::Exit;

/// The pause after the first failure; each later one is four times as long, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long a killed command may take to end. Only root can kill a process of another user, such as one that `sudo` started.
const KILL_TIME_MAX: Duration = Duration::from_secs(10);

pub(super) struct EventCommand {
    /// The program and its arguments.
    pub(super) words: Vec<OsString>,
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) timeout: Duration,
    /// How often the command is tried for one event.
    pub(super) attempts: u32,
}

/// How the command did with one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handled {
    Done,
    /// Every attempt failed.
    GivenUp,
    /// A signal came before the command had succeeded: the event stays.
    Stopped,
}

/// Whether SIGTERM or SIGINT has come.
pub(super) struct Stop {
    signals: Signals,
    requested: bool,
}

impl Stop {
    pub(super) fn listen() -> Result<Self, Error> {
        Ok(Self { signals: Signals::listen()?, requested: false })
    }

    /// Resolves when a signal has come.
    pub(super) async fn wait(&mut self) {
        if !self.requested {
            self.signals.stop().await;
            self.requested = true;
        }
    }

    /// Whether a signal has come, even if nobody waited for it meanwhile.
    pub(super) async fn is_requested(&mut self) -> bool {
        self.or(std::future::ready(())).await.is_none()
    }

    /// The output of `work`; `None` if a signal comes before.
    pub(super) async fn or<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wait() => None,
            done = work => Some(done),
        }
    }
}

impl EventCommand {
    /// Runs the command until it succeeds for this event, with growing pauses.
    pub(super) async fn handle(&self, event: &Value, stop: &mut Stop) -> Result<Handled, CliError> {
        let mut pause = PAUSE_FIRST;
        for attempt in 1..=self.attempts {
            let Some(why) = self.run(event, attempt, stop).await? else {
                return Ok(Handled::Done);
            };
            let (id, last) = (text(event, "id"), self.attempts);
            eprint_line(&format!("attempt {attempt} of {last} for event {id} failed: {why}"));
            if stop.is_requested().await {
                return Ok(Handled::Stopped);
            }
            if attempt < self.attempts {
                if stop.or(tokio::time::sleep(pause)).await.is_none() {
                    return Ok(Handled::Stopped);
                }
                pause = (pause * 4).min(PAUSE_MAX);
            }
        }
        Ok(Handled::GivenUp)
    }

    /// Runs the command once, to its end even if a signal comes. Returns why it failed; `None` if it succeeded.
    async fn run(&self, event: &Value, attempt: u32, stop: &mut Stop) -> Result<Option<String>, CliError> {
        let [program, arguments @ ..] = self.words.as_slice() else {
            return Err(CliError::request("name a command after --exec"));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("EFFECTD_EVENT_TOPIC", &self.topic)
            .env("EFFECTD_EVENT_GROUP", &self.group)
            .env("EFFECTD_EVENT_ID", text(event, "id"))
            .env("EFFECTD_EVENT_TYPE", text(event, "type"))
            .env("EFFECTD_EVENT_OFFSET", event["offset"].to_string())
            .env("EFFECTD_EVENT_ATTEMPT", attempt.to_string())
            .stdin(Stdio::piped())
            // Of its own, so that a command that takes too long ends with everything that it started.
            .process_group(0);
        let mut child = command.spawn().map_err(|error| {
            let program = program.display();
            CliError::request(format!("{program} cannot be started: {error}; name a program after --exec"))
        })?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        if let Some(mut stdin) = child.stdin.take() {
            let line = format!("{event}\n");
            // A command that does not read must not hold this up; one that ends without reading is fine.
            std::thread::spawn(move || stdin.write_all(line.as_bytes()));
        }
        let (send, ended) = oneshot::channel();
        // A thread of its own, since the end of the program waits for those of tokio.
        std::thread::spawn(move || send.send(child.wait()));
        let kill = || {
            let _ = killpg(group, Signal::SIGKILL);
        };
        let ending = end_of(ended, [self.timeout, KILL_TIME_MAX], kill);
        tokio::pin!(ending);
        let ending = loop {
            tokio::select! {
                ending = &mut ending => break ending,
                () = stop.wait(), if !stop.requested => {}
            }
        };
        let Some((status, is_late)) = ending else {
            let why = format!(
                "the command took more than {} s, and goes on although it was killed: perhaps it runs as another user. End the process group \
                {group}, then start `bus tail` again: the event is not read yet",
                self.timeout.as_secs()
            );
            return Err(CliError::request(why).exiting(Exit::Failed));
        };
        let failed = |why: String| Error::Internal(format!("the command cannot be waited for: {why}"));
        let status = status.map_err(|error| failed(error.to_string()))?;
        let status = status.map_err(|error| failed(error.to_string()))?;
        Ok(self.fault(status, is_late))
    }

    fn fault(&self, status: ExitStatus, is_late: bool) -> Option<String> {
        if is_late {
            return Some(format!("it took more than {} s", self.timeout.as_secs()));
        }
        // "exit status: 1" or "signal: 15 (SIGTERM)".
        (!status.success()).then(|| status.to_string())
    }
}

/// Waits for a command, and kills it when its time is up. Returns how it ended, and whether it was late; `None` if it goes on for
/// too long after that.
async fn end_of<T>(
    ended: impl Future<Output = T>,
    [timeout, killing]: [Duration; 2],
    kill: impl FnOnce(),
) -> Option<(T, bool)> {
    tokio::pin!(ended);
    if let Ok(ended) = tokio::time::timeout(timeout, &mut ended).await {
        return Some((ended, false));
    }
    kill();
    let killed = tokio::time::timeout(killing, ended).await;
    killed.ok().map(|ended| (ended, true))
}

/// A field of an event; empty if it has none.
fn text<'a>(event: &'a Value, name: &str) -> &'a str {
    event[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_that_cannot_be_killed_is_not_waited_for() {
        let brief = [Duration::from_millis(1); 2];
        let mut killed = false;
        assert_eq!(end_of(std::future::pending::<()>(), brief, || killed = true).await, None);
        assert!(killed);
        assert_eq!(end_of(std::future::ready(7), brief, || ()).await, Some((7, false)));
    }
}
