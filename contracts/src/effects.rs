//! Effects: what an action changed, as far as it was observed.
//!
//! The states before and after make an effect reversible: an undo checks that the state after still holds, and restores the
//! state before.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::Code;

/// What was observed to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    /// Nothing ran, so nothing changed.
    None,
    /// The tool ran, and its effect was not observed.
    Unobserved,
    /// The tool ran, and may have had its effect although the action failed.
    Possible,
    /// The tool ran, and the paths that it declares were compared before and after.
    Observed(Observed),
}

/// The result of comparing before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// The paths that changed; all of them unless `incomplete`.
    pub changes: Vec<PathChange>,
    /// Whether the pre-images are kept, so that the action can be undone.
    pub undoable: bool,
    /// What the tool changed beyond what it declares. The tool is disabled since then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undeclared: Vec<Undeclared>,
    /// Declared paths that the action left as they were, if its idempotency key follows from its parameters: a repeat compares
    /// them with what is there then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<Unchanged>,
    /// Whether more may have changed than `changes` lists: there are too many files, or names that no tool takes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

impl Observed {
    /// The state in which the action left a path, if it is known.
    pub fn after(&self, path: &str) -> Option<&PathState> {
        self.find(|other| other == path)
    }

    /// The state in which the action left the first path that matches.
    pub fn find(&self, is_it: impl Fn(&str) -> bool) -> Option<&PathState> {
        let changed = self.changes.iter().find(|change| is_it(&change.path)).map(|change| &change.after);
        changed.or_else(|| self.unchanged.iter().find(|same| is_it(&same.path)).map(|same| &same.state))
    }
}

/// A path that did not change. Digests are made with the device's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unchanged {
    /// The path as requests write it: `workspace/…`.
    pub path: String,
    /// Its state.
    pub state: PathState,
}

/// A change that the tool did not declare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undeclared {
    /// The path as requests write it. For a new path, the digest of its name under the device's key, since the tool chose it.
    pub path: String,
    /// What happened there.
    pub what: UndeclaredKind,
}

/// What can happen to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UndeclaredKind {
    /// It was created.
    Made,
    /// It was removed.
    Removed,
    /// Its content changed, or it was replaced.
    Changed,
    /// Its permissions or its type changed.
    Permissions,
}

impl UndeclaredKind {
    /// All of them.
    pub const ALL: [UndeclaredKind; 4] = [Self::Made, Self::Removed, Self::Changed, Self::Permissions];

    /// One word or two, for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Permissions => "with other permissions",
        }
    }
}

/// One path that changed. Digests are made with the device's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathChange {
    /// The path as requests write it: `workspace/…`.
    pub path: String,
    /// Its state before.
    pub before: PathState,
    /// Its state after.
    pub after: PathState,
    /// Where the folder that was here has moved, with its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
    /// The digest of the listing of the folder that moved; absent if it is too large to be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<String>,
}

/// One path and its state at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSnapshot {
    /// The path as requests write it: `workspace/…`.
    pub path: String,
    /// Its state.
    pub standing: PathState,
    /// The content of a folder that is moved or read as a whole; absent for other folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<FolderListing>,
}

impl PathSnapshot {
    /// A path and its state, without the content of a folder.
    pub fn new(path: impl Into<String>, standing: PathState) -> Self {
        Self { path: path.into(), standing, inside: None }
    }

    /// Whether both have the same path and state, whatever is in a folder.
    pub fn is_like(&self, other: &PathSnapshot) -> bool {
        self.path == other.path && self.standing == other.standing
    }
}

/// The content of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FolderListing {
    /// The digest of the listing: every name in the folder, with type, size, permissions and time of the last change.
    Listed(String),
    /// The folder is too large to be compared, or not all of it can be read.
    TooMuch,
}

/// What lies beneath a path, as far as one receipt can list it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beneath {
    /// The state of each path.
    pub seen: Vec<PathSnapshot>,
    /// Why the list is not complete: a code, and a line for people that ends with the first path that is not listed.
    pub missing: Option<(Code, String)>,
    /// The files that have several names.
    pub linked: Vec<LinkedFile>,
}

/// A name of a file that has several names (hard links).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedFile {
    /// The path as requests write it: `workspace/…`.
    pub path: String,
    /// Device and inode.
    pub identity: (u64, u64),
    /// The number of its names, wherever they are.
    pub names: u64,
}

/// Everything in some folders, to notice changes by comparing two scans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// By path, as in requests. A name that is not UTF-8 is replaced by its inode number.
    pub marks: BTreeMap<String, Mark>,
    /// Whether the marks are complete: no limit was reached, and all folders could be read.
    pub complete: bool,
}

/// An entry of a folder, without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Permissions and kind.
    pub mode: u32,
    /// The size of a file.
    pub bytes: u64,
    /// The last change of content or metadata, in nanoseconds since 1970. The kernel sets it, and nobody in the sandbox can set
    /// it back.
    pub changed_ns: i128,
    /// Device and inode.
    pub identity: (u64, u64),
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// Nothing.
    Absent,
    /// A folder, whatever is in it.
    Folder,
    /// A file.
    File(FileState),
    /// A link, a pipe, a socket or a device.
    Other,
}

/// A file's content and permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileState {
    /// The digest of its content: `hmac-sha256:<hex>` in a receipt, `sha256:<hex>` in a call.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
    /// Its permissions.
    pub mode: u32,
}

/// One path that an undo restores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// The path.
    pub path: String,
    /// The state that it must have now.
    pub now: PathState,
    /// The state to restore.
    pub then: PathState,
    /// Whether the side channel carries this entry's content, in the order of the entries. If not, the content is at another
    /// entry's path, or none is needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// Where the folder to restore is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A path that a tool may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The path as requests write it: `workspace/…`.
    pub path: String,
    /// Where in the space its content moves. Content that moves needs no pre-image.
    pub goes_to: Option<String>,
    /// Whether it is a new folder whose content the tool knows only when it runs.
    pub filled: bool,
}

impl Touch {
    /// A path whose content is replaced or removed.
    pub fn replaced(path: impl Into<String>) -> Self {
        Self { path: path.into(), goes_to: None, filled: false }
    }

    /// A new folder with any content.
    pub fn filled(path: impl Into<String>) -> Self {
        Self { filled: true, ..Self::replaced(path) }
    }

    /// A path whose content moves to another path of the space.
    pub fn moved(path: impl Into<String>, to: impl Into<String>) -> Self {
        Self { goes_to: Some(to.into()), ..Self::replaced(path) }
    }
}
