//! A notification: the document that the sandboxed tool writes and the runtime delivers.

use serde::{Deserialize, Serialize};

/// The tool that notifies people. The runtime delivers the artifacts that its receipts name, outside the sandbox.
pub const NOTIFY_TOOL: &str = "notify.local";

/// The name of the notification among the artifacts of its receipt.
pub const NOTICE_ARTIFACT: &str = "notification";

/// A notification. Its characters are untrusted: a program that shows it must escape them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// One line.
    pub title: String,
    /// Further text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// How prominently it is shown.
    #[serde(default)]
    pub urgency: Urgency,
}

impl std::fmt::Debug for Notice {
    /// Shows sizes only, so that the text reaches no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (title, body) = (self.title.len(), self.body.len());
        write!(f, "Notice({title} and {body} bytes, {})", self.urgency.as_str())
    }
}

crate::wire_enum! {
    /// How prominently a notification is shown.
    #[derive(Default)]
    pub enum Urgency {
        /// May be overlooked.
        Low = "low",
        /// Should be seen.
        #[default]
        Normal = "normal",
        /// Stays until it is dismissed.
        Critical = "critical",
    }
}
