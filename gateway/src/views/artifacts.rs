//! Quarantined artifacts in JSON.

use effectd_actors::effects::quarantine::{QuarantinePage, Quarantined};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of a quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantineBody {
    /// For people; it is not sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A quarantined artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuarantineView {
    pub artifact_id: String,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub since: String,
}

impl From<Quarantined> for QuarantineView {
    fn from(from: Quarantined) -> Self {
        Self {
            artifact_id: from.artifact_id,
            by: from.by,
            reason: from.reason,
            since: from.since.to_string(),
        }
    }
}

/// A page of quarantined artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuarantineList {
    /// In the order of their ids.
    pub artifacts: Vec<QuarantineView>,
    /// The `after` of the next page; left out on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl From<QuarantinePage> for QuarantineList {
    fn from(page: QuarantinePage) -> Self {
        Self { artifacts: page.artifacts.into_iter().map(QuarantineView::from).collect(), next: page.next }
    }
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleaseView {
    pub artifact_id: String,
    /// Whether it was quarantined before.
    pub released: bool,
}
