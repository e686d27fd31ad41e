//! Delivers notifications to the session bus, oldest first.

use effectd_actors::limits::{BUS_TIME_MAX, NOTIFICATION_WAIT_MAX};
use effectd_actors::operator::notifications::{self, Delivery, Stored};
use effectd_bus::StoreError;
use effectd_contracts::Notice;

use super::session::{BusError, Session, Shown, addresses};
use super::text;
use super::worker::Following;

impl Following {
    /// Delivers waiting notifications, oldest first. Returns whether one still waits.
    pub(super) async fn deliver(&self, waiting: Vec<Stored>) -> Result<bool, StoreError> {
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
                // The remaining notifications would fail the same way.
                Err(error) => {
                    self.still_waiting(&kept, &error).await?;
                    return Ok(true);
                }
            };
            match self.send(&kept, &notice, &open).await? {
                Sent::Finished => session = Some(open),
                Sent::Later => return Ok(true),
            }
        }
        Ok(false)
    }

    async fn notice(&self, kept: &Stored) -> Result<Notice, String> {
        let (store, blobs) = (self.store.clone(), self.blobs.clone());
        let receipt = kept.value.receipt_id.clone();
        let read = tokio::task::spawn_blocking(move || notifications::notice(&*store, &blobs, &receipt));
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Sends a notification. Before that, the store records that it is being sent.
    async fn send(&self, kept: &Stored, notice: &Notice, session: &Session) -> Result<Sent, StoreError> {
        let (store, clock) = (&*self.store, &*self.clock);
        let sending = notifications::mark(store, clock, kept, Delivery::Sending, None).await?;
        let Some(sending) = sending else {
            return Ok(Sent::Finished);
        };
        let (title, body) = text::shown(notice, &kept.value.subject_id);
        let shown = Shown { title: &title, body: &body, urgency: notice.urgency };
        let receipt = kept.value.receipt_id.as_str();
        match session.notify(&shown, BUS_TIME_MAX).await {
            Ok(number) => {
                tracing::info!(receipt, number, "a notification was delivered");
                notifications::mark(store, clock, &sending, Delivery::Delivered, None).await?;
                Ok(Sent::Finished)
            }
            Err(error @ (BusError::Nobody | BusError::None(_))) => {
                let why = Some(error.to_string());
                notifications::mark(store, clock, &sending, Delivery::Waiting, why).await?;
                Ok(Sent::Later)
            }
            Err(error @ BusError::Refused(_)) => {
                self.mark(&sending, Delivery::Undelivered, &error.to_string()).await?;
                Ok(Sent::Finished)
            }
            Err(error @ BusError::Unanswered(_)) => {
                tracing::warn!(receipt, %error, "whether a notification was shown is not known");
                self.mark(&sending, Delivery::Unknown, &error.to_string()).await?;
                Ok(Sent::Later)
            }
        }
    }

    /// Stores why a notification still waits, only if the reason changed: a long absence of the desktop costs no writes.
    async fn still_waiting(&self, kept: &Stored, error: &BusError) -> Result<(), StoreError> {
        let why = error.to_string();
        if kept.value.why.as_ref() == Some(&why) {
            return Ok(());
        }
        self.mark(kept, Delivery::Waiting, &why).await
    }
}

enum Sent {
    /// The notification's result is stored, and the connection can be used again.
    Finished,
    /// No desktop shows notifications now, or it did not answer: the round ends here.
    Later,
}
