//! What a notification says: the one document that the confined tool spools, and that the runtime delivers.

use serde::{Deserialize, Serialize};

/// The tool that tells people something. The runtime delivers what its receipts name, outside of the sandbox.
pub const NOTIFY_TOOL: &str = "notify.local";

/// What the spooled document is called among the artifacts of its receipt.
pub const NOTICE_ARTIFACT: &str = "notification";

/// A notification, as its author wrote it. Whoever shows it must not trust its characters.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// One line.
    pub title: String,
    /// More, if there is more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// How much it matters.
    #[serde(default)]
    pub urgency: Urgency,
}

impl std::fmt::Debug for Notice {
    /// What it says reaches no log by way of a `{:?}`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (title, body) = (self.title.len(), self.body.len());
        write!(f, "Notice({title} and {body} bytes, {})", self.urgency.as_str())
    }
}

/// How much a notification matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// It can be overlooked.
    Low,
    /// It is to be seen.
    #[default]
    Normal,
    /// It stays until it was seen.
    Critical,
}

impl Urgency {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Urgency::Low => "low",
            Urgency::Normal => "normal",
            Urgency::Critical => "critical",
        }
    }

    /// All of them, mildest first.
    pub const ALL: [Urgency; 3] = [Urgency::Low, Urgency::Normal, Urgency::Critical];
}
