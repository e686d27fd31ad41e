//! What an action changed, as far as somebody looked.
//!
//! The states before and after are what makes an effect reversible: whoever undoes it must find the one and put back the
//! other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was observed to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    /// Nothing ran, so nothing changed.
    None,
    /// Something ran, and nobody watched.
    Unobserved,
    /// Something ran, and it may have had its effect although the action failed.
    Possible,
    /// Something ran, and the paths that its tool says it may change were compared before and after.
    Observed(Observed),
}

/// What a comparison of before and after brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// Every path that is not as it was.
    pub changes: Vec<PathChange>,
    /// Whether what was replaced is kept, so that the action can be undone.
    pub undoable: bool,
    /// What the tool changed beyond what it says it changes. It is switched off since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undeclared: Vec<Undeclared>,
}

/// Something that a tool changed without saying that it would.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undeclared {
    /// Where, as requests write it; for what was made, the digest of its name under the device's key, since the tool chose it.
    pub path: String,
    /// What happened there.
    pub what: UndeclaredKind,
}

/// What can happen to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UndeclaredKind {
    /// It was not there before.
    Made,
    /// It is not there any more.
    Removed,
    /// It has another content, or another one stands there.
    Changed,
    /// It has other permissions, or is of another kind.
    Permissions,
}

impl UndeclaredKind {
    /// All of them.
    pub const ALL: [UndeclaredKind; 4] = [
        UndeclaredKind::Made,
        UndeclaredKind::Removed,
        UndeclaredKind::Changed,
        UndeclaredKind::Permissions,
    ];

    /// One word or two, for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            UndeclaredKind::Made => "made",
            UndeclaredKind::Removed => "removed",
            UndeclaredKind::Changed => "changed",
            UndeclaredKind::Permissions => "with other permissions",
        }
    }
}

/// One path that is not as it was. Digests are made under the device's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathChange {
    /// Where, as requests write it: `workspace/…`.
    pub path: String,
    /// What stood there before.
    pub before: Standing,
    /// What stands there now.
    pub after: Standing,
    /// Where the folder that stood here has gone, with all that is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
    /// What was in the folder that has gone elsewhere, as one digest of its listing; not there if that is too much to be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<String>,
}

/// One path, and what stood there when somebody looked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Where, as requests write it: `workspace/…`.
    pub path: String,
    /// What stood there.
    pub standing: Standing,
    /// What was in a folder that goes elsewhere or is read as a whole; of other folders nobody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

impl Seen {
    /// What stands at a path, whatever is in it.
    pub fn new(path: impl Into<String>, standing: Standing) -> Self {
        Self {
            path: path.into(),
            standing,
            inside: None,
        }
    }

    /// Whether the same stands at the same path. What is in a folder is not asked.
    pub fn is_like(&self, other: &Seen) -> bool {
        self.path == other.path && self.standing == other.standing
    }
}

/// What is in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inside {
    /// The digest of its listing: every name beneath it, with kind, size, permissions and the moment of its last change.
    Listed(String),
    /// It is more than is compared, or something of it cannot be read.
    TooMuch,
}

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Nothing.
    Absent,
    /// A folder, whatever is in it.
    Folder,
    /// A file.
    File(FileState),
    /// Something that is neither: a link, a pipe, a socket, a device.
    Other,
}

/// A file, by its content and permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileState {
    /// The digest of its content: `hmac-sha256:<hex>` in a receipt, `sha256:<hex>` on the way to a tool.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
    /// Its permissions.
    pub mode: u32,
}

/// What a tool that restores is to put back at one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// Where.
    pub path: String,
    /// What must stand there for it to be right.
    pub now: Standing,
    /// What is to stand there again.
    pub then: Standing,
    /// Whether the content of the file that is to stand there again comes beside the call, in pieces, in the order of these
    /// entries. Otherwise it lies at another of the paths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// Where the folder that is to stand here again lies now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A path that a tool may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// Where, as requests write it: `workspace/…`.
    pub path: String,
    /// Where in the space its content goes, if it goes on there: then it need not be kept for an undo.
    pub goes_to: Option<String>,
    /// A folder that is not there yet, and is filled with what the tool knows only when it runs.
    pub filled: bool,
}

impl Touch {
    /// A path whose content is replaced or removed.
    pub fn replaced(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            goes_to: None,
            filled: false,
        }
    }

    /// A folder that is made, with whatever will be in it.
    pub fn filled(path: impl Into<String>) -> Self {
        Self {
            filled: true,
            ..Self::replaced(path)
        }
    }

    /// A path whose content goes elsewhere in the space.
    pub fn moved(path: impl Into<String>, to: impl Into<String>) -> Self {
        Self {
            goes_to: Some(to.into()),
            ..Self::replaced(path)
        }
    }
}
