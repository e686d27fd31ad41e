//! The task that follows the receipts of notifications and delivers them.

use std::sync::Arc;
use std::time::Duration;

use effectd_actors::Services;
use effectd_actors::control::switches::Switches;
use effectd_actors::limits::NOTIFICATION_RETRY;
use effectd_actors::operator::notifications::{self, Delivery, Stored};
#[cfg(feature = "desktop")]
use effectd_bus::Blobs;
use effectd_bus::{Store, StoreError};
use effectd_contracts::{Clock, Topic};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

/// The pause between a new receipt and its round: under load, one round handles many receipts.
const ROUND_PAUSE: Duration = Duration::from_millis(20);
/// The pause after an error or a panic.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two rounds, in case a wake-up is missed.
const ROUND_EVERY: Duration = Duration::from_secs(60);

/// The task that delivers notifications. Dropping this aborts it.
pub(crate) struct NotificationWorker {
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
    abort: tokio::task::AbortHandle,
}

impl NotificationWorker {
    /// Starts the task. With `desktop` off or not built in, notifications are only stored.
    pub(crate) fn start(services: &Services, desktop: bool) -> Self {
        let (stop, stopped) = watch::channel(false);
        let following = Following {
            store: services.store.clone(),
            #[cfg(feature = "desktop")]
            blobs: services.files.blobs.clone(),
            clock: services.clock.clone(),
            kept_max: services.settings.notifications_max,
            desktop,
        };
        let task = tokio::spawn(supervise(following, stopped));
        Self { stop, abort: task.abort_handle(), task: Mutex::new(Some(task)) }
    }

    /// Runs a last round and ends the task. Notifications that are not delivered within the grace period wait for the next start.
    pub(crate) async fn finish(&self, grace: Duration) {
        self.stop.send_replace(true);
        let Some(task) = self.task.lock().await.take() else {
            return;
        };
        if tokio::time::timeout(grace, task).await.is_err() {
            tracing::warn!("the last notifications are not delivered; the next start continues with them");
            self.abort.abort();
        }
    }
}

impl Drop for NotificationWorker {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// Restarts the task when it panics.
async fn supervise(following: Following, stopped: watch::Receiver<bool>) {
    loop {
        let mut one = tokio::task::JoinSet::new();
        one.spawn(following.clone().follow(stopped.clone()));
        match one.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                tracing::error!(%error, "the delivery of notifications panicked; it restarts");
                if *stopped.borrow() {
                    return;
                }
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            Some(_) | None => return,
        }
    }
}

#[derive(Clone)]
pub(super) struct Following {
    pub(super) store: Arc<dyn Store>,
    #[cfg(feature = "desktop")]
    pub(super) blobs: Arc<Blobs>,
    pub(super) clock: Arc<dyn Clock>,
    kept_max: usize,
    desktop: bool,
}

/// The result of one round.
#[derive(Clone, Copy)]
struct Round {
    /// The version of the stored notifications after the round.
    version: u64,
    /// Whether a notification waits for a desktop.
    waits: bool,
}

impl Following {
    async fn follow(self, mut stopped: watch::Receiver<bool>) {
        let Ok(mut news) = self.store.watch(&Topic::ActionExecuted.into()) else {
            return;
        };
        let mut before: Option<Round> = None;
        loop {
            // Read before the round, so that the last round includes everything sent before the stop.
            let last = *stopped.borrow_and_update();
            let pause = match self.round(before.as_ref()).await {
                Ok(round) => {
                    let waits = round.waits;
                    before = Some(round);
                    if waits { NOTIFICATION_RETRY } else { ROUND_EVERY }
                }
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, "notifications cannot be followed");
                    before = None;
                    ERROR_PAUSE
                }
            };
            if last {
                return;
            }
            let due = tokio::time::sleep(pause);
            tokio::select! {
                _ = stopped.changed() => {}
                changed = news.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::select! {
                        _ = stopped.changed() => {}
                        () = tokio::time::sleep(ROUND_PAUSE) => {}
                    }
                }
                () = due => before = before.filter(|before| !before.waits),
            }
        }
    }

    /// Stores new notifications. Delivers waiting ones at the start, when there are new ones, and when a retry is due.
    async fn round(&self, before: Option<&Round>) -> Result<Round, StoreError> {
        let version = notifications::catch_up(&*self.store, &*self.clock, self.kept_max).await?;
        if let Some(before) = before
            && before.version == version
        {
            return Ok(*before);
        }
        let restored = Switches::new(&*self.store).restored()?;
        let mut waiting = Vec::new();
        for kept in notifications::open(&*self.store)? {
            if restored.as_ref().is_some_and(|restored| kept.value.sent_at <= restored.at) {
                let why =
                    "it was open in the backup that this state was restored from; it may have been shown";
                self.mark(&kept, Delivery::Unknown, why).await?;
            } else if kept.value.delivery == Delivery::Sending {
                let why = "it was being delivered when effectd ended; it may have been shown";
                self.mark(&kept, Delivery::Unknown, why).await?;
            } else {
                waiting.push(kept);
            }
        }
        Ok(Round { version, waits: self.deliver_or_drop(waiting).await? })
    }

    /// Delivers waiting notifications or, without a desktop, marks them as undelivered. Returns whether one still waits.
    async fn deliver_or_drop(&self, waiting: Vec<Stored>) -> Result<bool, StoreError> {
        #[cfg(feature = "desktop")]
        if self.desktop {
            return self.deliver(waiting).await;
        }
        let why = if self.desktop {
            "this build has no desktop notifications (cargo feature `desktop`)"
        } else {
            "delivery to the desktop is off (`notifications.desktop`)"
        };
        for kept in waiting {
            self.mark(&kept, Delivery::Undelivered, why).await?;
        }
        Ok(false)
    }

    pub(super) async fn mark(&self, kept: &Stored, delivery: Delivery, why: &str) -> Result<(), StoreError> {
        let why = Some(why.to_owned());
        notifications::mark(&*self.store, &*self.clock, kept, delivery, why).await.map(drop)
    }
}
