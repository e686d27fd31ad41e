//! Follows the receipts of notifications, and delivers what they say while there is somebody to deliver it to.

use std::sync::Arc;
use std::time::Duration;

use effectd_actors::limits::{
    BUS_TIME_MAX, NOTIFICATION_RETRY, NOTIFICATION_WAIT_MAX, NOTIFICATIONS_STOP_MAX,
};
use effectd_actors::notifications::{self, Delivery, Kept};
use effectd_actors::switches::Switches;
use effectd_actors::{Blobs, Parts, Store, StoreError};
use effectd_contracts::{Clock, Notice, Topic};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::session::{BusError, Session, Shown, places};
use super::words;

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
    /// Begins to follow. With `desktop` off, what was sent is only remembered.
    pub(crate) fn start(parts: &Parts, desktop: bool) -> Self {
        let (stop, stopped) = watch::channel(false);
        let following = Following {
            store: parts.store.clone(),
            blobs: parts.blobs.clone(),
            clock: parts.clock.clone(),
            desktop,
        };
        let task = tokio::spawn(supervise(following, stopped));
        Self {
            stop,
            abort: task.abort_handle(),
            task: Mutex::new(Some(task)),
        }
    }

    /// Takes a last look, and ends. What cannot be delivered quickly waits for the next start.
    pub(crate) async fn finish(&self) {
        self.stop.send_replace(true);
        let Some(task) = self.task.lock().await.take() else {
            return;
        };
        if tokio::time::timeout(NOTIFICATIONS_STOP_MAX.get(), task)
            .await
            .is_err()
        {
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
struct Following {
    store: Arc<dyn Store>,
    blobs: Arc<Blobs>,
    clock: Arc<dyn Clock>,
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
                    if waits {
                        NOTIFICATION_RETRY.get()
                    } else {
                        LOOK_EVERY
                    }
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
        let version = notifications::catch_up(&*self.store, &*self.clock).await?;
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
            waits: self.deliver(waiting).await?,
        })
    }

    /// Delivers what waits, oldest first. Says whether something waits on.
    async fn deliver(&self, waiting: Vec<Kept>) -> Result<bool, StoreError> {
        let mut session: Option<Session> = None;
        for kept in waiting {
            if !self.desktop {
                let why = "delivery to the desktop is off (`notifications.desktop`)";
                self.mark(&kept, Delivery::Undelivered, why).await?;
                continue;
            }
            let age = self.clock.now().duration_since(kept.value.sent_at);
            if age.as_millis() > i128::try_from(NOTIFICATION_WAIT_MAX.get().as_millis()).unwrap_or(i128::MAX)
            {
                let why = kept.value.why.clone();
                let why = why.unwrap_or_else(|| "it was too old to be shown".to_owned());
                self.mark(&kept, Delivery::Undelivered, &why).await?;
                continue;
            }
            let notice = match self.notice(&kept).await {
                Ok(notice) => notice,
                Err(why) => {
                    self.mark(&kept, Delivery::Undelivered, &why).await?;
                    continue;
                }
            };
            let opened = match session.take() {
                Some(open) => Ok(open),
                None => Session::open(&places(|name| std::env::var_os(name)), BUS_TIME_MAX.get()).await,
            };
            let mut open = match opened {
                Ok(open) => open,
                // The same for all that follow.
                Err(error) => {
                    self.still_waiting(&kept, &error).await?;
                    return Ok(true);
                }
            };
            match self.send(&kept, &notice, &mut open).await? {
                Sent::Settled => session = Some(open),
                Sent::NotNow => return Ok(true),
            }
        }
        Ok(false)
    }

    async fn notice(&self, kept: &Kept) -> Result<Notice, String> {
        let (store, blobs) = (self.store.clone(), self.blobs.clone());
        let receipt = kept.value.receipt_id.clone();
        let read = tokio::task::spawn_blocking(move || notifications::notice(&*store, &blobs, &receipt));
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Sends one. That it is being sent is on disk before.
    async fn send(&self, kept: &Kept, notice: &Notice, session: &mut Session) -> Result<Sent, StoreError> {
        let (store, clock) = (&*self.store, &*self.clock);
        let sending = notifications::mark(store, clock, kept, Delivery::Sending, None).await?;
        let Some(sending) = sending else {
            return Ok(Sent::Settled);
        };
        let (title, body) = words::shown(notice, &kept.value.subject_id);
        let shown = Shown {
            title: &title,
            body: &body,
            urgency: notice.urgency,
        };
        let receipt = kept.value.receipt_id.as_str();
        match session.notify(&shown, BUS_TIME_MAX.get()).await {
            Ok(number) => {
                tracing::info!(receipt, number, "a notification was delivered");
                notifications::mark(store, clock, &sending, Delivery::Delivered, None).await?;
                Ok(Sent::Settled)
            }
            Err(error @ (BusError::Nobody | BusError::None(_))) => {
                let why = Some(error.to_string());
                notifications::mark(store, clock, &sending, Delivery::Waiting, why).await?;
                Ok(Sent::NotNow)
            }
            Err(error @ BusError::Refused(_)) => {
                self.mark(&sending, Delivery::Undelivered, &error.to_string())
                    .await?;
                Ok(Sent::Settled)
            }
            Err(error @ BusError::Unanswered(_)) => {
                tracing::warn!(receipt, %error, "whether a notification was shown is not known");
                self.mark(&sending, Delivery::Unknown, &error.to_string()).await?;
                Ok(Sent::NotNow)
            }
        }
    }

    /// Written only when the reason is another one: a desktop that is away for long costs nothing.
    async fn still_waiting(&self, kept: &Kept, error: &BusError) -> Result<(), StoreError> {
        let why = error.to_string();
        if kept.value.why.as_ref() == Some(&why) {
            return Ok(());
        }
        self.mark(kept, Delivery::Waiting, &why).await
    }

    async fn mark(&self, kept: &Kept, delivery: Delivery, why: &str) -> Result<(), StoreError> {
        let why = Some(why.to_owned());
        notifications::mark(&*self.store, &*self.clock, kept, delivery, why)
            .await
            .map(drop)
    }
}

/// What sending one has come to.
enum Sent {
    /// What became of it is known, and the conversation goes on.
    Settled,
    /// Nobody takes any now, or whoever does is not heard of any more.
    NotNow,
}
