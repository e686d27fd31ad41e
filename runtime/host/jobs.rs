//! What the daemon does by itself, again and again: backups, and checks of the journal.
//!
//! One job at a time, on a thread of its own, so that no action waits for it. The store keeps how each job went the last time, so a
//! restart changes no due time; a job that has never been done is due at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use effectd_actors::Services;
use effectd_bus::journal_copy::JournalWriter;
use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, Store, Swap};
use effectd_contracts::{Clock, Timestamp};
use effectd_gateway::views::health::JobView;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use crate::backup::{BackupError, Dated, make_dated};
use crate::error::{Error, chain};
use crate::settings::config::JobSettings;

const FAMILY: &str = "jobs";
/// How often the daemon looks whether a job is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure, unless the job is due earlier.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    Backup(Dated),
    Check,
}

impl Work {
    const fn name(&self) -> &'static str {
        match self {
            Work::Backup(_) => "backup",
            Work::Check => "check",
        }
    }

    /// Does it, and blocks until it is done. The error has no paths, since every client may read it; the log has them.
    fn run(&self, state: &Path, store: &dyn Store, clock: &dyn Clock) -> Result<(), String> {
        let done = match self {
            Work::Backup(into) => {
                make_dated(state, into, clock, &|writer: &mut JournalWriter| copy_journal(store, writer))
            }
            Work::Check => store.check_journal().map(|_| ()).map_err(Error::from),
        };
        done.map_err(|error| {
            let error = chain(&error);
            tracing::error!(job = self.name(), error, "a scheduled job failed");
            self.without_paths(&error, state)
        })
    }

    fn without_paths(&self, error: &str, state: &Path) -> String {
        let mut paths = vec![(state, "the state")];
        if let Work::Backup(into) = self {
            paths.push((into.to.as_path(), "backup.to"));
            paths.extend(into.keys.as_deref().map(|keys| (keys, "backup.keys")));
        }
        // A path may begin with another one.
        paths.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_os_str().len()));
        paths
            .iter()
            .fold(error.to_owned(), |text, (path, name)| text.replace(&path.display().to_string(), name))
    }
}

/// Copies the journal that this process has open; only needed for one that is not in plain files.
fn copy_journal(store: &dyn Store, writer: &mut JournalWriter) -> Result<bool, BackupError> {
    let mut reader = store.read_journal().map_err(Error::from)?;
    // Retention may drop a block before it is read: then the backup begins again.
    while let Some(piece) = reader.piece().map_err(|_| BackupError::Moved)? {
        writer.write(&piece).map_err(Error::from)?;
    }
    Ok(true)
}

/// How a job went the last time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Outcome {
    at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// When it was last done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    done_at: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Job {
    work: Work,
    every: Duration,
    last: Option<Outcome>,
}

impl Job {
    /// When it is due. At once, if the last time is in the future: somebody has set the clock back.
    fn due(&self, now: Timestamp) -> Timestamp {
        let Some(last) = self.last.as_ref().filter(|last| last.at <= now) else {
            return now;
        };
        let pause = if last.error.is_none() { self.every } else { self.every.min(RETRY_AFTER) };
        last.at.checked_add(pause).unwrap_or(Timestamp::MAX)
    }
}

/// The scheduled jobs, by name.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<BTreeMap<&'static str, Job>>);

impl Jobs {
    /// Takes the schedule from the settings, and how each job went the last time from the store.
    pub(super) fn schedule(&self, settings: &JobSettings, store: &dyn Store) -> Result<(), Error> {
        // Absolute, so that no other word of an error looks like one of them.
        let absolute = |path: &str| std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        let keys = Some(&settings.backup_keys).filter(|keys| !keys.is_empty());
        let backup = Work::Backup(Dated {
            to: absolute(&settings.backup_to),
            keys: keys.map(|keys| absolute(keys)),
            keep: settings.backup_keep,
        });
        for (work, every) in [(backup, settings.backup_every), (Work::Check, settings.check_every)] {
            if let Some(every) = every.0 {
                let last = stored(store, work.name())?;
                self.0.lock().insert(work.name(), Job { work, every, last });
            }
        }
        Ok(())
    }

    pub(super) fn views(&self, now: Timestamp) -> Vec<JobView> {
        let view = |(name, job): (&&'static str, &Job)| {
            let last = job.last.clone().unwrap_or_default();
            JobView {
                job: (*name).to_owned(),
                last_at: job.last.as_ref().map(|last| last.at),
                error: last.error,
                done_at: last.done_at,
                next_at: job.due(now),
            }
        };
        self.0.lock().iter().map(view).collect()
    }

    /// The job that has been due for the longest time.
    fn next(&self, now: Timestamp) -> Option<Work> {
        let jobs = self.0.lock();
        let due = jobs.values().filter(|job| job.due(now) <= now);
        due.min_by_key(|job| job.due(now)).map(|job| job.work.clone())
    }

    /// Remembers how a job went, here and in the store.
    async fn ended(&self, work: &Work, at: Timestamp, done: Result<(), String>, store: &dyn Store) {
        let error = done.err();
        let last = {
            let mut jobs = self.0.lock();
            let Some(job) = jobs.get_mut(work.name()) else { return };
            let before = job.last.take().and_then(|last| last.done_at);
            let done_at = if error.is_none() { Some(at) } else { before };
            job.last.insert(Outcome { at, error, done_at }).clone()
        };
        if let Err(error) = keep(store, work.name(), &last).await {
            tracing::warn!(
                error = chain(&error),
                "how the job went is not kept; it is due again after a restart"
            );
        }
    }
}

fn stored(store: &dyn Store, name: &str) -> Result<Option<Outcome>, Error> {
    let entry = store.entry(&FamilyName::new(FAMILY)?, name)?;
    // An entry of another version counts as none.
    Ok(entry.and_then(|entry| serde_json::from_slice(entry.value.bytes()?).ok()))
}

async fn keep(store: &dyn Store, name: &str, outcome: &Outcome) -> Result<(), Error> {
    let value = serde_json::to_vec(outcome).map_err(Error::internal)?;
    let change = KvChange::Put(NewBody::Clear(value));
    let swap = Swap { family: FamilyName::new(FAMILY)?, key: name.to_owned(), expect: Expect::Any, change };
    store.change(Change { swaps: vec![swap], ..Change::default() }).await?;
    Ok(())
}

/// Does the jobs when they are due, until the runtime is gone.
pub(super) async fn run(jobs: Arc<Jobs>, services: Weak<Services>, state: PathBuf) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let Some(services) = services.upgrade() else {
            return;
        };
        let (store, clock) = (services.store.clone(), services.clock.clone());
        // The runtime can stop while a job runs.
        drop(services);
        let Some(work) = jobs.next(clock.now()) else {
            continue;
        };
        tracing::info!(job = work.name(), "a scheduled job begins");
        let (send, result) = oneshot::channel();
        let thread = {
            let (work, state, store, clock) = (work.clone(), state.clone(), store.clone(), clock.clone());
            // Not a thread of the runtime: the process can end without it, and the next backup removes its draft.
            let run = move || drop(send.send(work.run(&state, &*store, &*clock)));
            std::thread::Builder::new().name("job".to_owned()).spawn(run)
        };
        let done = match thread {
            Ok(_) => result.await.unwrap_or_else(|_| Err("it panicked; the log says why".to_owned())),
            Err(error) => Err(format!("no thread can be started: {error}")),
        };
        if done.is_ok() {
            tracing::info!(job = work.name(), "a scheduled job is done");
        }
        jobs.ended(&work, clock.now(), done, &*store).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::ManualClock;

    use super::*;
    use crate::settings::config::Every;

    #[tokio::test]
    async fn a_job_is_due_by_the_clock_and_by_how_it_went_last() {
        let clock = Arc::new(ManualClock::at("2026-11-17T10:00:00Z".parse().unwrap()));
        let store = effectd_bus::memory::open(clock.clone()).unwrap();
        let hours = |hours: u64| Every(Some(Duration::from_secs(hours * 3_600)));
        let settings = JobSettings {
            backup_every: hours(24),
            backup_to: "backups".to_owned(),
            check_every: hours(1),
            ..JobSettings::default()
        };
        let scheduled = || {
            let jobs = Jobs::default();
            jobs.schedule(&settings, &store).unwrap();
            jobs
        };
        let name = |jobs: &Jobs| jobs.next(clock.now()).map(|work| work.name());
        let jobs = scheduled();
        assert_eq!(name(&jobs), Some("backup"), "what has never been done is due at once");
        let backup = jobs.next(clock.now()).unwrap();
        jobs.ended(&backup, clock.now(), Err("no disk".to_owned()), &store).await;
        assert_eq!(name(&jobs), Some("check"));
        jobs.ended(&Work::Check, clock.now(), Ok(()), &store).await;
        assert_eq!(name(&jobs), None);
        // A failure is tried again sooner, also after a restart.
        clock.advance(RETRY_AFTER);
        let jobs = scheduled();
        assert_eq!(name(&jobs), Some("backup"));
        let view = jobs.views(clock.now()).remove(0);
        assert_eq!(
            (view.job.as_str(), view.error.as_deref(), view.done_at),
            ("backup", Some("no disk"), None)
        );
        let done = clock.now();
        jobs.ended(&backup, done, Ok(()), &store).await;
        assert_eq!(name(&jobs), None);
        clock.advance(Duration::from_secs(3_000));
        assert_eq!(name(&scheduled()), Some("check"));
        jobs.ended(&backup, clock.now(), Err("again".to_owned()), &store).await;
        assert_eq!(jobs.views(clock.now())[0].done_at, Some(done), "the last good one is not forgotten");
        // After a jump back of the clock, everything is due.
        clock.jump_to("2026-11-16T10:00:00Z".parse().unwrap());
        assert_eq!(name(&jobs), Some("backup"));
        assert_eq!(scheduled().views(clock.now())[1].next_at, clock.now());
    }

    #[test]
    fn an_error_that_everybody_may_read_has_no_paths() {
        let into = Dated { to: PathBuf::from("/b"), keys: Some(PathBuf::from("/b/keys")), keep: 1 };
        let said = Work::Backup(into).without_paths("/b/keys/x: /b/y and /s/z: no space", Path::new("/s"));
        assert_eq!(said, "backup.keys/x: backup.to/y and the state/z: no space");
    }
}
