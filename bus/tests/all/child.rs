//! The process that is killed: this test binary, run again, working on a store and saying what was answered.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use effectd_bus::conformance::values::{action, claim, completion, group, key, put, sealed_event, topic};
use effectd_bus::embedded::{Durability, EmbeddedConfig, JournalKind};
use effectd_bus::{Admission, Admitted, Expect, GroupOptions, Link, Store, StoreError, embedded};
use effectd_contracts::{Digest, Status, SystemClock};
use nix::sys::signal::Signal;

use crate::watchdog;

const STATE: &str = "EFFECTD_BUS_CHILD_STATE";
const ROUND: &str = "EFFECTD_BUS_CHILD_ROUND";
const STEPS: &str = "EFFECTD_BUS_CHILD_STEPS";
const SLED: &str = "EFFECTD_BUS_CHILD_SLED";
const NO_SYNC: &str = "EFFECTD_BUS_CHILD_NO_SYNC";
const OPEN_MS: &str = "EFFECTD_BUS_CHILD_OPEN_MS";
const WORKERS: usize = 4;
/// Longest silence of a child that is alive, and longest time that its end may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the parent chooses.
#[derive(Clone, Default)]
pub(crate) struct Order {
    pub(crate) round: u32,
    /// How much each worker does before the child closes the store; without it, until it is killed.
    pub(crate) steps: Option<u32>,
    pub(crate) failpoint: Option<String>,
    pub(crate) no_sync: bool,
    /// The journal lies in sled.
    pub(crate) sled: bool,
    /// How long the journal may take to open.
    pub(crate) open_max: Option<Duration>,
}

/// A child at work.
pub(crate) struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    pub(crate) fn start(state: &Path, order: &Order) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::entry", "--nocapture", "--test-threads=1"]);
        command.env(STATE, state).env(ROUND, order.round.to_string());
        if let Some(steps) = order.steps {
            command.env(STEPS, steps.to_string());
        }
        if order.sled {
            command.env(SLED, "1");
        }
        if order.no_sync {
            command.env(NO_SYNC, "1");
        }
        if let Some(max) = order.open_max {
            command.env(OPEN_MS, max.as_millis().to_string());
        }
        if let Some(failpoint) = &order.failpoint {
            command
                .env("EFFECTD_FAILPOINT", failpoint)
                .env("EFFECTD_FAILPOINT_FD", "1");
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // A line that was cut off by the kill was not said.
            for line in stdout.split(b'\n').map_while(Result::ok) {
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Worker { child, lines }
    }

    /// The next thing that was said; `None` when the child has ended.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child has said nothing for {PATIENCE:?}"),
        }
    }

    fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    /// Waits for the end of the child, however it came.
    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the child has not ended for {PATIENCE:?}");
            // Its end has no handle here; it is a matter of microseconds.
            std::thread::yield_now();
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Stops the child and waits until every thread of it stands still, the ones inside a sync too.
    pub(crate) fn stop(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let options = nix::sys::wait::WaitPidFlag::WUNTRACED;
        let status = nix::sys::wait::waitpid(pid, Some(options)).unwrap();
        assert!(
            matches!(status, nix::sys::wait::WaitStatus::Stopped(..)),
            "{status:?}"
        );
    }

    /// Everything that has been said up to now, without waiting for more.
    pub(crate) fn said(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Kills the child, and gives the rest of what it said, and whether it really died of the kill.
    pub(crate) fn kill(mut self) -> (Vec<String>, bool) {
        self.child.kill().unwrap();
        let status = self.wait();
        (self.rest(), status.signal() == Some(Signal::SIGKILL as i32))
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the child to end by itself.
    pub(crate) fn finish(mut self) -> Vec<String> {
        let lines = self.rest();
        assert!(self.wait().success());
        lines
    }
}

/// A child that outlives a failed test holds its pipes, and with them whoever runs the tests.
impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn config(state: &Path) -> EmbeddedConfig {
    watchdog::start();
    EmbeddedConfig {
        disk_free_bytes_min: 0,
        // Few, so that files of the index are written and merged all the time.
        index_gather_entries: 60,
        // Small, so that files of the journal are begun all the time.
        segment_bytes: 32 << 10,
        ..EmbeddedConfig::new(state)
    }
}

/// Not a test: what a child runs. In an ordinary run it does nothing.
#[test]
fn entry() {
    let Some(state) = std::env::var_os(STATE) else {
        return;
    };
    // libtest has begun a line of its own; end it.
    say("");
    let round: u32 = std::env::var(ROUND).unwrap().parse().unwrap();
    let steps: Option<u32> = std::env::var(STEPS).ok().map(|steps| steps.parse().unwrap());
    let mut config = config(Path::new(&state));
    if std::env::var_os(SLED).is_some() {
        config.journal = JournalKind::Sled;
    }
    if std::env::var_os(NO_SYNC).is_some() {
        config.durability = Durability::FlushedOnly;
    }
    if let Ok(ms) = std::env::var(OPEN_MS) {
        config.journal_open_max = Duration::from_millis(ms.parse().unwrap());
    }
    let store = match embedded::open(config, Arc::new(SystemClock)) {
        Ok(store) => Arc::new(store),
        Err(error) => return say(&format!("refused {error}")),
    };
    let options = GroupOptions {
        deliveries_max: 1_000,
        ..GroupOptions::default()
    };
    store
        .configure(&topic("work"), &group("g"), options)
        .wait()
        .unwrap();
    say("ready");
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let store = store.clone();
            std::thread::spawn(move || {
                work(
                    store.as_ref(),
                    &format!("{round}-{worker}"),
                    steps.unwrap_or(u32::MAX),
                )
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    store.close().unwrap();
    say("closed");
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

/// Does a bit of everything, and says each thing when it was answered.
fn work(store: &dyn Store, name: &str, steps: u32) {
    for step in 0..steps {
        let id = format!("{name}-{step}");
        match step % 5 {
            0 | 3 => publish(store, &id, step),
            1 => exec(store, &id),
            2 => consume(store),
            _ => swap(store, name, step),
        }
    }
}

fn publish(store: &dyn Store, id: &str, step: u32) {
    // Now and then an event that needs several chunks.
    let body = vec![b'x'; if step % 60 == 33 { 30_000 } else { 300 }];
    let published = store
        .publish(&topic("work"), vec![sealed_event(id, id, &body)])
        .wait()
        .unwrap();
    say(&format!("published {id} {}", published[0].offset));
}

fn exec(store: &dyn Store, id: &str) {
    let admission = Admission {
        topic: topic("ACTION_DECISION"),
        group: group("pipeline"),
        ttl: Duration::from_secs(60),
        event: sealed_event(&format!("decision-{id}"), id, b"the request"),
        claim: claim(id, id, "p"),
    };
    let answer = store.admit(admission).wait().unwrap();
    let Admitted::Granted { fence, lease_id, .. } = answer else {
        panic!("{answer:?}")
    };
    say(&format!("admitted {id}"));
    let mut done = completion(&claim(id, id, "p"), Status::Ok, Some(fence));
    done.leases = vec![lease_id];
    store.commit(done).wait().unwrap();
    say(&format!("committed {id}"));
    let twin = format!("{id}-twin");
    let found = store
        .lookup(&claim(id, id, "p").space, &key(id), &Digest::of(b"p"))
        .unwrap();
    let effectd_bus::Lookup::Done { receipt_id } = found else {
        panic!("{found:?}")
    };
    let link = Link {
        action_id: action(&twin),
        action_digest: Digest::of(twin.as_bytes()),
        receipt_id,
        leases: Vec::new(),
    };
    // Not waited for, so that it rides with others; its durability is the last one's.
    drop(store.link(link));
}

fn consume(store: &dyn Store) {
    let leased = store
        .lease(&topic("work"), &group("g"), 2, Duration::from_secs(60))
        .wait()
        .unwrap();
    for (nth, delivery) in leased.deliveries.into_iter().enumerate() {
        if nth == 0 {
            store.ack(delivery.lease_id).wait().unwrap();
            say(&format!("acked {}", delivery.offset));
        } else {
            store
                .nack(delivery.lease_id, Duration::ZERO, "again")
                .wait()
                .unwrap();
            say(&format!("nacked {} {}", delivery.offset, delivery.delivery_count));
        }
    }
}

fn swap(store: &dyn Store, name: &str, step: u32) {
    let changed = store
        .change(put("counters", name, Expect::Any, &step.to_string()))
        .wait();
    match changed {
        Ok(changed) => say(&format!("swapped {name} {} {step}", changed.versions[0].unwrap())),
        Err(StoreError::VersionMismatch { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
