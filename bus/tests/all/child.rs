//! The child process that is killed: this test binary, working on a store and reporting what was answered.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use effectd_bus::embedded::{Durability, EmbeddedConfig, JournalKind};
use effectd_bus::testing::retention::retain_once;
use effectd_bus::testing::values::{
    action, claim, completion, group, key, put, resource, sealed_event, topic,
};
use effectd_bus::{
    Admission, Admitted, Expect, GroupOptions, Keep, Link, NewDeadLetter, Requeued, Retention, Store,
    StoreError, TopicKeep, TopicName, embedded, offline,
};
use effectd_contracts::{Digest, Status, SystemClock};
use nix::sys::signal::Signal;

use crate::watchdog;

const STATE: &str = "EFFECTD_BUS_CHILD_STATE";
const ROUND: &str = "EFFECTD_BUS_CHILD_ROUND";
const STEPS: &str = "EFFECTD_BUS_CHILD_STEPS";
const JOURNAL: &str = "EFFECTD_BUS_CHILD_JOURNAL";
const MIGRATES: &str = "EFFECTD_BUS_CHILD_MIGRATES";
const NO_SYNC: &str = "EFFECTD_BUS_CHILD_NO_SYNC";
const RETAINS: &str = "EFFECTD_BUS_CHILD_RETAINS";
const OPEN_MS: &str = "EFFECTD_BUS_CHILD_OPEN_MS";
const WORKERS: usize = 4;
/// Longest silence of a child that is alive, and longest time that its end may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both engines of the journal: tests run with each.
pub(crate) const BOTH: [JournalKind; 2] = [JournalKind::Files, JournalKind::Sled];

#[derive(Clone, Default)]
pub(crate) struct Order {
    pub(crate) round: u32,
    /// How much each worker does before the child closes the store; without it, until it is killed.
    pub(crate) steps: Option<u32>,
    pub(crate) failpoint: Option<String>,
    pub(crate) no_sync: bool,
    pub(crate) journal: JournalKind,
    /// It only changes the engine of the journal.
    pub(crate) migrates: Option<JournalKind>,
    /// How long the journal may take to open.
    pub(crate) open_max: Option<Duration>,
    /// Old blocks are dropped all the time.
    pub(crate) retains: bool,
}

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
        command.env(JOURNAL, order.journal.as_str());
        if let Some(to) = order.migrates {
            command.env(MIGRATES, to.as_str());
        }
        if order.retains {
            command.env(RETAINS, "1");
        }
        if order.no_sync {
            command.env(NO_SYNC, "1");
        }
        if let Some(max) = order.open_max {
            command.env(OPEN_MS, max.as_millis().to_string());
        }
        if let Some(failpoint) = &order.failpoint {
            command.env("EFFECTD_FAILPOINT", failpoint).env("EFFECTD_FAILPOINT_FD", "1");
        }
        let (output, input) = std::io::pipe().unwrap();
        let child = command.stdout(input).stderr(Stdio::inherit()).spawn().unwrap();
        // The command holds the child's end, too.
        drop(command);
        let stdout = BufReader::new(output);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // The child writes each line at once, and a pipe takes it whole: a kill cuts none off.
            for line in stdout.split(b'\n').map_while(Result::ok) {
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Worker { child, lines }
    }

    /// The next report; `None` when the child has ended.
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

    /// Kills the child. Returns its remaining reports, and whether the kill ended it.
    pub(crate) fn kill(mut self) -> (Vec<String>, bool) {
        self.child.kill().unwrap();
        let status = self.wait();
        (self.rest(), status.signal() == Some(Signal::SIGKILL as i32))
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn finish(mut self) -> Vec<String> {
        let lines = self.rest();
        assert!(self.wait().success());
        lines
    }
}

/// A child that outlives a failed test would keep its pipes open and block the test runner.
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
        index_memtable_entries: 60,
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
    // libtest has begun a line; end it.
    say("");
    let round: u32 = std::env::var(ROUND).unwrap().parse().unwrap();
    let steps: Option<u32> = std::env::var(STEPS).ok().map(|steps| steps.parse().unwrap());
    let mut config = config(Path::new(&state));
    let kind = |name| JournalKind::named(&std::env::var(name).ok()?);
    config.journal = kind(JOURNAL).unwrap();
    if std::env::var_os(NO_SYNC).is_some() {
        config.durability = Durability::Unsynced;
    }
    if let Ok(ms) = std::env::var(OPEN_MS) {
        config.journal_open_max = Duration::from_millis(ms.parse().unwrap());
    }
    if let Some(to) = kind(MIGRATES) {
        let migrated = offline::migrate(&config, to).unwrap();
        return say(&format!("migrated {}", migrated.blocks));
    }
    let store = match embedded::open(config, Arc::new(SystemClock)) {
        Ok(store) => Arc::new(store),
        Err(error) => return say(&format!("refused {error}")),
    };
    let options = GroupOptions { deliveries_max: 1_000, ..GroupOptions::default() };
    store.configure(&topic("work"), &group("g"), options).wait().unwrap();
    say("ready");
    let retains = std::env::var_os(RETAINS).is_some();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let store = store.clone();
            std::thread::spawn(move || {
                work(
                    store.as_ref(),
                    &format!("{round}-{worker}"),
                    steps.unwrap_or(u32::MAX),
                    retains && worker == 0,
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

/// Does a bit of everything, and reports each operation when it is answered.
fn work(store: &dyn Store, name: &str, steps: u32, retains: bool) {
    for step in 0..steps {
        if retains && step % 5 == 4 {
            retain(store);
        }
        let id = format!("{name}-{step}");
        match step % 7 {
            0 | 3 => publish(store, &id, step),
            1 => exec(store, &id),
            2 => consume(store),
            4 => swap(store, name, step),
            5 => fail(store, &id),
            _ => clear(store, &id, step),
        }
    }
}

/// Very little is kept, so that something is dropped with every call. Dead letters, and decisions and events
/// that are not acknowledged, are kept anyway.
fn retain(store: &dyn Store) {
    let keep = Keep { age: None, bytes: Some(4_000) };
    let topic = |unacknowledged| TopicKeep { keep, unacknowledged };
    let retention = Retention {
        receipts: keep,
        letters: None,
        topics: [("work", true), ("ACTION_DECISION", true)]
            .map(|(name, unsettled)| (TopicName::new(name).unwrap(), topic(unsettled)))
            .into(),
        others: topic(false),
    };
    let told = retain_once(store, &retention);
    say(&format!("retained {} {}", told.blocks, told.moved));
}

fn publish(store: &dyn Store, id: &str, step: u32) {
    // Now and then an event that needs several chunks.
    let body = vec![b'x'; if step % 60 == 33 { 30_000 } else { 300 }];
    let published = store.publish(&topic("work"), vec![sealed_event(id, id, &body)]).wait().unwrap();
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
    let Admitted::Granted { fence, lease_id, .. } = answer else { panic!("{answer:?}") };
    say(&format!("admitted {id}"));
    let mut done = completion(&claim(id, id, "p"), Status::Ok, Some(fence));
    done.leases = vec![lease_id];
    done.disturbed = vec![resource("file:s/folder")];
    done.appeared = vec![resource("file:s/came")];
    store.commit(done).wait().unwrap();
    say(&format!("committed {id}"));
    let twin = format!("{id}-twin");
    let found = store.lookup(&claim(id, id, "p").asker, &key(id), &Digest::of(b"p"), &[]).unwrap();
    let receipt_id = match found {
        effectd_bus::Lookup::Done { receipt_id } => receipt_id,
        // It was dropped already.
        effectd_bus::Lookup::Unknown if std::env::var_os(RETAINS).is_some() => return,
        other @ (effectd_bus::Lookup::Unknown
        | effectd_bus::Lookup::InFlight { .. }
        | effectd_bus::Lookup::Conflict) => panic!("{other:?}"),
    };
    let link = Link {
        action_id: action(&twin),
        action_digest: Digest::of(twin.as_bytes()),
        receipt_id,
        leases: Vec::new(),
    };
    // Nobody waits for it, so it shares a block with others; it is durable when the last one is.
    drop(store.link(link));
}

fn consume(store: &dyn Store) {
    let leased = store.lease(&topic("work"), &group("g"), 2, Duration::from_secs(60)).wait().unwrap();
    for (nth, delivery) in leased.deliveries.into_iter().enumerate() {
        if nth == 0 {
            store.ack(delivery.lease_id).wait().unwrap();
            say(&format!("acked {}", delivery.offset));
        } else {
            store.nack(delivery.lease_id, Duration::ZERO, "again").wait().unwrap();
            say(&format!("nacked {} {}", delivery.offset, delivery.delivery_count));
        }
    }
}

fn fail(store: &dyn Store, id: &str) {
    let mut done = completion(&claim(id, id, "p"), Status::Error, None);
    done.letter = Some(NewDeadLetter {
        topic: topic("ACTION_DECISION"),
        code: "timed_out".into(),
        detail: format!("no answer to {id}"),
        attempts: 1,
        tries: Vec::new(),
        payload: id.as_bytes().to_vec(),
    });
    store.commit(done).wait().unwrap();
    say(&format!("failed {id}"));
}

/// Requeues a dead letter, or purges it. Others do so at the same time.
fn clear(store: &dyn Store, id: &str, step: u32) {
    let page = store.letters(None, u64::from(step) / 14, 1).unwrap();
    let Some(letter) = page.letters.first() else {
        return;
    };
    let number = letter.letter;
    let Some(failed) = letter.payload.bytes() else {
        return;
    };
    let failed = String::from_utf8(failed.to_vec()).unwrap();
    if step.is_multiple_of(2) {
        let again = sealed_event(&format!("again-{number}-{id}"), &failed, b"the request");
        say(&format!("requeuing {failed}"));
        match store.requeue(number, again).wait() {
            Ok(Requeued::Published { offset }) => say(&format!("requeued {number} {offset} {failed}")),
            Ok(Requeued::Gone) | Err(StoreError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    } else {
        say(&format!("purging {failed}"));
        store.purge(vec![number]).wait().unwrap();
        say(&format!("purged {number}"));
    }
}

fn swap(store: &dyn Store, name: &str, step: u32) {
    let changed = store.change(put("counters", name, Expect::Any, &step.to_string())).wait();
    match changed {
        Ok(changed) => say(&format!("swapped {name} {} {step}", changed.versions[0].unwrap())),
        Err(StoreError::VersionMismatch { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
