//! Delivers notifications to the session bus, oldest first.

use effectd_actors::StoreError;
use effectd_actors::limits::{BUS_TIME_MAX, NOTIFICATION_WAIT_MAX};
use effectd_actors::notifications::{self, Delivery, Kept};
use effectd_contracts::Notice;

use super::broker::Following;
use super::session::{BusError, Session, Shown, addresses};
use super::words;

impl Following {
    /// Delivers what waits, oldest first. Says whether something waits on.
    pub(super) async fn deliver(&self, waiting: Vec<Kept>) -> Result<bool, StoreError> {
        let mut session: Option<Session> = None;
        for kept in waiting {
            let age = self.clock.now().duration_since(kept.value.sent_at);
            if age.as_millis() > i128::try_from(NOTIFICATION_WAIT_MAX.as_millis()).unwrap_or(i128::MAX) {
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
                None => {
                    let addresses = addresses(|name| std::env::var(name).ok());
                    Session::open(&addresses, BUS_TIME_MAX).await
                }
            };
            let open = match opened {
                Ok(open) => open,
                // The same for all that follow.
                Err(error) => {
                    self.still_waiting(&kept, &error).await?;
                    return Ok(true);
                }
            };
            match self.send(&kept, &notice, &open).await? {
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
    async fn send(&self, kept: &Kept, notice: &Notice, session: &Session) -> Result<Sent, StoreError> {
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
        match session.notify(&shown, BUS_TIME_MAX).await {
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
}

enum Sent {
    /// What became of it is known, and the conversation goes on.
    Settled,
    /// Nobody takes any now, or whoever does is not heard of any more.
    NotNow,
}
