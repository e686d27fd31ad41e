//! Previews: what an action would change, found by running its tool on a copy.
//!
//! The tool's code runs in the same kind of sandbox, over a copy of the paths that it may touch. After the run, the copy shows
//! what the space would be like; it vanishes with the sandbox.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effects::{PathSnapshot, PathState};
use crate::exchange::Exchange;
use crate::failure::Failure;

/// The result of running a tool on a copy: the answer to [`crate::CallMode::Preview`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviewResult {
    /// The space when the copy was made, at every path that the tool may change or reads.
    pub before: Vec<PathSnapshot>,
    /// The copy after the run, at the paths that the tool may change.
    pub after: Vec<PreviewedPath>,
    /// What each item of a batch changed, of those that ran on the copy and did not fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<PreviewedItem>,
    /// The request that a tool would send to its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<AskedRequest>,
    /// The tool's failure, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failure>,
}

/// The paths that an item of a batch may change, before and after it ran on the copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviewedItem {
    /// The item, from zero.
    pub index: usize,
    /// The copy before.
    pub before: Vec<PathSnapshot>,
    /// The copy after.
    pub after: Vec<PathSnapshot>,
}

/// A request as its tool would send it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedRequest {
    head: Exchange,
    /// The body in base64.
    body: String,
}

impl AskedRequest {
    /// The request with its body.
    pub fn of(exchange: Exchange) -> Self {
        Self { body: STANDARD.encode(&exchange.body), head: exchange }
    }

    /// The exchange; `None` if the body is no base64.
    pub fn exchange(self) -> Option<Exchange> {
        Some(Exchange { body: STANDARD.decode(self.body).ok()?, ..self.head })
    }
}

/// One path of the copy after the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviewedPath {
    /// The path as requests write it: `workspace/…`.
    pub path: String,
    /// Its state.
    pub standing: PathState,
    /// The content of a text file that changed and is short enough to be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Whether the content is too long to be shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_long: bool,
}

/// What a preview predicted, and whether it happened. Part of the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRecord {
    /// Whether the effect is the one that the preview showed.
    pub verdict: PreviewVerdict,
    /// Why there was no preview, what differed, or what could not be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The predicted amounts, if there was a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

crate::wire_enum! {
    /// Whether the effect is the one that the preview showed.
    pub enum PreviewVerdict {
        /// Every path, content and permission is as shown.
        Matched = "matched",
        /// Something is different.
        Differed = "differed",
        /// There was no preview, or the effect could not be observed.
        NotPreviewed = "not_previewed",
    }
}

/// How much an action would change. Policy rules can decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Paths that would change.
    pub files: u64,
    /// Files and folders that would be gone, except those that would be moved.
    pub deletes: u64,
    /// The size of all files that would be new or different.
    pub bytes: u64,
}
