//! The bridge: a line on standard input is a message of the agent, a line on standard output one for it.
//!
//! It keeps no session. Each message is a request to the daemon of its own, so that one that waits for a person holds up no other.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::link::Link;
use super::message::{INTERNAL_ERROR, INVALID_REQUEST, Lines, Message, failure, say};
use crate::cli::CliError;
use crate::error::Error;
use crate::exit::Exit;

/// The longest line from an agent. The daemon takes less, and says so in its answer.
const LINE_BYTES_MAX: usize = 16 * 1_048_576;
/// Lines that wait in either direction.
const LINES_MAX: usize = 16;
/// Requests of the agent at one time: the daemon gives one user 256 connections.
const REQUESTS_MAX: usize = 64;
/// How long answers may take after the agent has closed its end.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// The pauses before the bridge tries again to listen to a daemon.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
const LISTEN_PAUSE_MAX: Duration = Duration::from_secs(10);

pub(super) async fn run(link: Link) -> Result<Exit, CliError> {
    let mut input = read_lines();
    let (lines, written) = write_lines();
    let mut bridge = Bridge {
        link: Arc::new(link),
        lines,
        requests: JoinSet::new(),
        streams: JoinSet::new(),
        unanswered: Vec::new(),
        listens: false,
    };
    loop {
        let line = tokio::select! {
            line = input.recv() => line,
            Some(_) = bridge.requests.join_next() => continue,
            Some(_) = bridge.streams.join_next() => continue,
            // Nobody reads the answers any more.
            () = bridge.lines.closed() => None,
        };
        let message = match line {
            None => break,
            Some(Line::Whole(line)) if line.trim_ascii().is_empty() => continue,
            Some(Line::Whole(line)) => Message::parse(line),
            Some(Line::TooLong) => {
                let why = format!("a message has at most {LINE_BYTES_MAX} bytes");
                Err(failure(&Value::Null, INVALID_REQUEST, &why, None))
            }
        };
        match message {
            Ok(message) => bridge.take(message).await,
            Err(answer) => say(&bridge.lines, answer.to_string().into_bytes()).await,
        }
    }
    bridge.end().await;
    // An agent that does not read does not get the rest.
    let _ = timeout(END_TIME_MAX, written).await;
    Ok(Exit::Done)
}

struct Bridge {
    link: Arc<Link>,
    lines: Lines,
    requests: JoinSet<()>,
    /// Tasks without an answer to wait for. They are stopped when the agent ends.
    streams: JoinSet<()>,
    /// The tasks of requests, by the ids that the agent gave them.
    unanswered: Vec<(Value, AbortHandle)>,
    /// Whether the task that tells an agent of an older revision about changed tools was started.
    listens: bool,
}

impl Bridge {
    async fn take(&mut self, message: Message) {
        if let Some(id) = &message.cancels {
            // The daemon sees that nobody waits any more, and withdraws what has not begun.
            self.unanswered.iter().filter(|(other, _)| other == id).for_each(|(_, task)| task.abort());
        }
        if message.method == "notifications/initialized" && !std::mem::replace(&mut self.listens, true) {
            self.streams.spawn(listen(self.link.clone(), self.lines.clone()));
        }
        if self.requests.len() + self.streams.len() >= REQUESTS_MAX {
            if let Some(id) = &message.id {
                let why = format!("{REQUESTS_MAX} requests are unanswered; send this one again later");
                say(&self.lines, failure(id, INTERNAL_ERROR, &why, None).to_string().into_bytes()).await;
            }
            return;
        }
        let is_stream = message.method == "subscriptions/listen";
        let tasks = if is_stream { &mut self.streams } else { &mut self.requests };
        let (link, lines, id) = (self.link.clone(), self.lines.clone(), message.id.clone());
        let task = tasks.spawn(async move { link.pass(&message, &lines).await });
        self.unanswered.retain(|(_, task)| !task.is_finished());
        self.unanswered.extend(id.map(|id| (id, task)));
    }

    /// Waits for answers, but not for ever: the daemon goes on with what it has begun.
    async fn end(mut self) {
        let _ = timeout(END_TIME_MAX, async { while self.requests.join_next().await.is_some() {} }).await;
        self.requests.shutdown().await;
        self.streams.shutdown().await;
    }
}

/// Tells a legacy agent, which cannot ask for it, that its tools have changed. A daemon that was away may have come back with
/// others.
async fn listen(link: Arc<Link>, lines: Lines) {
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    let tell = || say(&lines, changed.to_string().into_bytes());
    let (mut missed, mut had_no_policy, mut pause) = (false, false, LISTEN_PAUSE);
    loop {
        let (news, mut heard) = mpsc::channel::<Vec<u8>>(LINES_MAX);
        let hear = async {
            let mut is_heard = false;
            while let Some(line) = heard.recv().await {
                let message: Value = serde_json::from_slice(&line).unwrap_or_default();
                is_heard |= message.get("method").is_some();
                // The first message says that the daemon listens for changes.
                if message["method"] == changed["method"] || (is_heard && std::mem::take(&mut missed)) {
                    tell().await;
                }
            }
            is_heard
        };
        let (ended, is_heard) = tokio::join!(link.listen(news), hear);
        missed = true;
        let has_no_policy = matches!(&ended, Err(CliError::Runtime(Error::NoState(_))));
        if had_no_policy && !has_no_policy && !is_heard {
            // A person has made one. The agent's next request starts the daemon.
            tell().await;
        }
        had_no_policy = has_no_policy;
        pause = if is_heard { LISTEN_PAUSE } else { (pause * 2).min(LISTEN_PAUSE_MAX) };
        tokio::time::sleep(pause).await;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// The lines of standard input. A thread of its own reads them, since reading may block for ever; the program can end without it.
fn read_lines() -> mpsc::Receiver<Line> {
    let (send, lines) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        // An input that cannot be read has ended.
        while let Ok(Some(line)) = next_line(&mut input, LINE_BYTES_MAX) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// The next line; `None` at the end. Of one that is too long, nothing is kept.
fn next_line(input: &mut impl BufRead, bytes_max: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let most = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    if input.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_some() || line.len() <= bytes_max {
        return Ok(Some(Line::Whole(line)));
    }
    input.skip_until(b'\n')?;
    Ok(Some(Line::TooLong))
}

/// Where lines for standard output go, and what resolves when all are written.
fn write_lines() -> (Lines, oneshot::Receiver<()>) {
    let (lines, mut receive) = mpsc::channel::<Vec<u8>>(LINES_MAX);
    let (done, written) = oneshot::channel();
    std::thread::spawn(move || {
        let mut output = io::stdout().lock();
        while let Some(line) = receive.blocking_recv() {
            if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                break;
            }
        }
        // Nobody waits any more if this fails.
        let _ = done.send(());
    });
    (lines, written)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_that_is_too_long_costs_only_itself() {
        let mut input: &[u8] = b"one\nlonger than ten\nexactly-10\n\nlast";
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input, 10).unwrap() {
            lines.push(line);
        }
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        let expected = [whole("one"), Line::TooLong, whole("exactly-10"), whole(""), whole("last")];
        assert_eq!(lines, expected);
    }
}
