//! How artifacts that are taken aside are shown.

use effectd_actors::quarantine::{QuarantinePage, Quarantined};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why an artifact is taken aside.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantineBody {
    /// For people; it is stored in clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An artifact that is not handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuarantineView {
    /// Which artifact.
    pub artifact_id: String,
    /// Who said so.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when.
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

/// Some of the artifacts that are not handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuarantineList {
    /// By their ids.
    pub artifacts: Vec<QuarantineView>,
    /// What to ask for as `after` to see more; nothing if there is no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl From<QuarantinePage> for QuarantineList {
    fn from(page: QuarantinePage) -> Self {
        Self {
            artifacts: page.artifacts.into_iter().map(QuarantineView::from).collect(),
            next: page.next,
        }
    }
}

/// What came of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleaseView {
    /// Which artifact.
    pub artifact_id: String,
    /// Whether it was quarantined until now.
    pub released: bool,
}
