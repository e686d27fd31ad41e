//! How notifications are shown.

use effectd_actors::notifications::{Told, ToldPage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A notification, what it says, and what became of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationView {
    /// The receipt of the action that sent it.
    pub receipt_id: String,
    /// Who sent it.
    pub subject_id: String,
    /// From which space.
    pub space_id: String,
    /// When its receipt was written.
    pub sent_at: String,
    /// `waiting`, `sending`, `delivered`, `undelivered`, or `unknown`: it may have been shown, and is not shown again.
    pub delivery: String,
    /// Since when.
    pub since: String,
    /// Why it is not delivered, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What else it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// `low`, `normal` or `critical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub urgency: Option<String>,
    /// Why it cannot be told what it says, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl std::fmt::Debug for NotificationView {
    /// What it says reaches no log by way of a `{:?}`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NotificationView({}, {})", self.receipt_id, self.delivery)
    }
}

impl From<Told> for NotificationView {
    fn from(told: Told) -> Self {
        let Told { notification, notice } = told;
        let (notice, missing) = match notice {
            Ok(notice) => (Some(notice), None),
            Err(why) => (None, Some(why)),
        };
        let urgency = notice.as_ref().map(|notice| notice.urgency.as_str().to_owned());
        let (title, body) = notice.map(|notice| (notice.title, notice.body)).unzip();
        Self {
            receipt_id: notification.receipt_id.to_string(),
            subject_id: notification.subject_id.to_string(),
            space_id: notification.space_id.to_string(),
            sent_at: notification.sent_at.to_string(),
            delivery: notification.delivery.as_str().to_owned(),
            since: notification.since.to_string(),
            why: notification.why,
            title,
            body: body.filter(|body: &String| !body.is_empty()),
            urgency,
            missing,
        }
    }
}

/// Some of the notifications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationList {
    /// Oldest first.
    pub notifications: Vec<NotificationView>,
    /// What to ask for as `after` to see more; nothing if there is no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl From<ToldPage> for NotificationList {
    fn from(page: ToldPage) -> Self {
        Self {
            notifications: page
                .notifications
                .into_iter()
                .map(NotificationView::from)
                .collect(),
            next: page.next,
        }
    }
}
