//! What an action would change: found out by running its tool on a copy.
//!
//! A preview is no forecast. The same code runs in the same kind of sandbox, over a copy of what it may touch that vanishes
//! with the sandbox; what stands there afterwards is what would stand in the space.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effects::{Seen, Standing};
use crate::failure::Failure;

/// What came of running a tool on a copy. The one answer to [`crate::CallMode::Preview`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rehearsal {
    /// What stood in the space when the copy was made, at every path that the tool may change or reads.
    pub before: Vec<Seen>,
    /// What stood in the copy afterwards, at the paths that the tool may change.
    pub after: Vec<Rehearsed>,
    /// What the tool failed with, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failure>,
}

/// One path of the copy, after the tool has run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rehearsed {
    /// Where, as requests write it: `workspace/…`.
    pub path: String,
    /// What stands there.
    pub standing: Standing,
    /// The content of a file that is text, has changed and is not too long to be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The content of a file that is too long to be shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_long: bool,
}

/// What a preview said, and whether that is what happened. Stands in the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRecord {
    /// Whether what happened is what was shown before.
    pub verdict: PreviewVerdict,
    /// Why there was no preview, what was different, or what could not be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What would change, in numbers, if there was a preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

/// Whether what happened is what was shown before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewVerdict {
    /// Every path, content and permission is as it was shown.
    Matched,
    /// Something is otherwise.
    Differed,
    /// There was no preview, or nobody could look at what happened.
    NotPreviewed,
}

impl PreviewVerdict {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Matched => "matched",
            Self::Differed => "differed",
            Self::NotPreviewed => "not_previewed",
        }
    }
}

/// What would change, in numbers: what a rule can decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Paths that would not be as they are.
    pub files: u64,
    /// Those of them where a file or folder stands and nothing would, unless it is moved to another path.
    pub deletes: u64,
    /// The size of all files that would be new or different.
    pub bytes: u64,
}
