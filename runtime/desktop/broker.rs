//! Follows the receipts of notifications, and takes up what they say.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "desktop")]
use effectd_actors::Blobs;
use effectd_actors::limits::NOTIFICATION_RETRY;
use effectd_actors::notifications::{self, Delivery, Kept};
use effectd_actors::switches::Switches;
use effectd_actors::{Parts, Store, StoreError};
use effectd_contracts::{Clock, Topic};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

/// The pause between two looks: under load there is news all the time, and a notification can wait for a moment.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The pause after the store could not answer, or after a fault of our own.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two looks, should news ever be missed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The task that delivers. It ends when this is dropped.
pub(crate) struct Broker {
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
    abort: tokio::task::AbortHandle,
}

impl Broker {
    /// Begins to follow. With `desktop` off or not built in, notifications are remembered only.
    pub(crate) fn start(parts: &Parts, desktop: bool) -> Self {
        let (stop, stopped) = watch::channel(false);
        let following = Following {
            store: parts.store.clone(),
            #[cfg(feature = "desktop")]
            blobs: parts.blobs.clone(),
            clock: parts.clock.clone(),
            kept_max: parts.settings.notifications_max,
            desktop,
        };
        let task = tokio::spawn(supervise(following, stopped));
        Self {
            stop,
            abort: task.abort_handle(),
            task: Mutex::new(Some(task)),
        }
    }

    /// Takes a last look, and ends. What is not delivered within the grace waits for the next start.
    pub(crate) async fn finish(&self, grace: Duration) {
        self.stop.send_replace(true);
        let Some(task) = self.task.lock().await.take() else {
            return;
        };
        if tokio::time::timeout(grace, task).await.is_err() {
            tracing::warn!("the last notifications are not delivered; the next start goes on with them");
            self.abort.abort();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// Starts it again when it panics: nobody else would tell people anything.
async fn supervise(following: Following, stopped: watch::Receiver<bool>) {
    loop {
        // Ends with us, too.
        let mut one = tokio::task::JoinSet::new();
        one.spawn(following.clone().follow(stopped.clone()));
        match one.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                tracing::error!(%error, "delivering notifications met a panic; it begins anew");
                if *stopped.borrow() {
                    return;
                }
                tokio::time::sleep(TROUBLE_PAUSE).await;
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

/// What one look leaves to do.
#[derive(Clone, Copy)]
struct Looked {
    /// What had been taken up by then.
    version: u64,
    /// Something waits for a desktop.
    waits: bool,
}

impl Following {
    async fn follow(self, mut stopped: watch::Receiver<bool>) {
        let Ok(mut news) = self.store.watch(&Topic::ActionExecuted.into()) else {
            return;
        };
        let mut before: Option<Looked> = None;
        loop {
            // Asked before the look: what is sent until then is in it.
            let last = *stopped.borrow_and_update();
            let pause = match self.look(before.as_ref()).await {
                Ok(looked) => {
                    let waits = looked.waits;
                    before = Some(looked);
                    if waits { NOTIFICATION_RETRY } else { LOOK_EVERY }
                }
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, "notifications cannot be followed");
                    before = None;
                    TROUBLE_PAUSE
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
                        () = tokio::time::sleep(LOOK_PAUSE) => {}
                    }
                }
                () = due => before = before.filter(|before| !before.waits),
            }
        }
    }

    /// Takes up what is new, and tries what waits: at the beginning, when there is something new, and when it is time again.
    async fn look(&self, before: Option<&Looked>) -> Result<Looked, StoreError> {
        let version = notifications::catch_up(&*self.store, &*self.clock, self.kept_max).await?;
        if let Some(before) = before
            && before.version == version
        {
            return Ok(*before);
        }
        let restored = Switches::new(&*self.store).restored()?;
        let mut waiting = Vec::new();
        for kept in notifications::open(&*self.store)? {
            if restored
                .as_ref()
                .is_some_and(|restored| kept.value.sent_at <= restored.at)
            {
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
        Ok(Looked {
            version,
            waits: self.settle(waiting).await?,
        })
    }

    /// Delivers what waits, or settles it as undelivered. Says whether something waits on.
    async fn settle(&self, waiting: Vec<Kept>) -> Result<bool, StoreError> {
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

    pub(super) async fn mark(&self, kept: &Kept, delivery: Delivery, why: &str) -> Result<(), StoreError> {
        let why = Some(why.to_owned());
        notifications::mark(&*self.store, &*self.clock, kept, delivery, why)
            .await
            .map(drop)
    }
}
