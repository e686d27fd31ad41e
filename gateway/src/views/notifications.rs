//! Notifications in JSON.

use effectd_actors::operator::notifications::{Page, WithText};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A notification and its delivery.
#[serde_with::skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationView {
    /// The receipt of the action that sent it.
    pub receipt_id: String,
    pub subject_id: String,
    pub space_id: String,
    /// The time of its receipt.
    pub sent_at: String,
    /// `waiting`, `sending`, `delivered`, `undelivered`, or `unknown`: it may have been shown, and is not shown again.
    pub delivery: String,
    /// Since when the delivery has this state.
    pub since: String,
    /// Why it is not delivered, if it is not.
    pub why: Option<String>,
    pub title: Option<String>,
    pub body: Option<String>,
    /// `low`, `normal` or `critical`.
    pub urgency: Option<String>,
    /// Why title and body cannot be read, if so.
    pub missing: Option<String>,
}

impl std::fmt::Debug for NotificationView {
    /// Keeps title and body out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NotificationView({}, {})", self.receipt_id, self.delivery)
    }
}

impl From<WithText> for NotificationView {
    fn from(told: WithText) -> Self {
        let WithText { notification, notice } = told;
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

/// A page of notifications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationList {
    /// Oldest first.
    pub notifications: Vec<NotificationView>,
    /// The `after` of the next page; left out on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl From<Page> for NotificationList {
    fn from(page: Page) -> Self {
        Self {
            notifications: page.notifications.into_iter().map(NotificationView::from).collect(),
            next: page.next,
        }
    }
}
