//! A preview of an action: what it would change, and whether the execution changed the same.

use effectd_contracts::{
    Digest, Effects, Failure, Method, PathChange, PathState, Predicted, PreviewRecord, PreviewVerdict,
    canonical,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preview {
    Shown(Shown),
    /// The request that would be sent to a service.
    Request(RequestShown),
    /// The tool would fail with this failure, and change none of the paths that it declares.
    WouldFail(Failure),
    /// There is no preview, for this reason.
    Unavailable(String),
}

impl Preview {
    /// Removes the diffs, for people who may not read the files. Paths and sizes remain.
    pub fn leave_texts_out(&mut self) {
        match self {
            Preview::Shown(shown) => {
                for change in &mut shown.changes {
                    if change.diff.take().is_some() {
                        change.left_out = Some(LeftOut::NotYours);
                    }
                }
            }
            // It is made of the parameters, which whoever sees the preview sees as well.
            Preview::Request(_) | Preview::WouldFail(_) | Preview::Unavailable(_) => {}
        }
    }
}

/// A request to a service, without secrets and personal data. The connection adds who asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestShown {
    pub method: Method,
    /// Where it goes, with its path and query.
    pub url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The body, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Diff>,
    pub body_bytes: usize,
    /// The keyed digest of all that would be sent: no other request leaves once this one is approved.
    pub digest: Digest,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    pub predicted: Predicted,
    /// One for each changed path, with keyed digests.
    pub changes: Vec<Change>,
    /// Whether there are more changes than the list holds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The digest of all changes, listed or not.
    pub(crate) digest: Digest,
    /// For a batch: the requests to services that its items would send.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<ItemRequest>,
}

impl Shown {
    /// No file would change.
    pub(crate) fn nothing() -> Self {
        let (predicted, digest) = (Predicted::default(), digest(&[]));
        Self { predicted, changes: Vec::new(), cut: false, digest, requests: Vec::new() }
    }
}

/// The request that an item of a batch would send.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ItemRequest {
    /// The item, from zero.
    pub item: usize,
    pub request: RequestShown,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The path in the form that requests use: `workspace/…`.
    pub path: String,
    pub before: PathState,
    pub after: PathState,
    /// Where the tool would move the folder at this path, with its contents.
    pub moved_to: Option<String>,
    pub diff: Option<Diff>,
    /// Why there is no diff, if there is none.
    pub left_out: Option<LeftOut>,
}

/// A diff of two texts: lines that begin with `+`, `-` or a space, or with `@@` where lines are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    pub text: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Whether a secret or personal data was removed from the diff.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
}

/// Why there is no diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    NotText,
    TooLong,
    /// The earlier diffs used up the bytes of the preview.
    NoRoom,
    TookTooLong,
    /// The reader may not read the file.
    NotYours,
}

impl LeftOut {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotText => "it is not text",
            Self::TooLong => "it is too long to compare",
            Self::NoRoom => "the preview is full",
            Self::TookTooLong => "comparing took too long",
            Self::NotYours => "you may not read this file",
        }
    }
}

impl Preview {
    /// Why the tool would fail, if it would.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::WouldFail(failure) => Some(failure),
            Self::Shown(_) | Self::Request(_) | Self::Unavailable(_) => None,
        }
    }

    /// The request that this item of a batch would send.
    pub(crate) fn request_of(&self, item: usize) -> Option<&RequestShown> {
        match self {
            Self::Shown(shown) => {
                let asked = shown.requests.iter().find(|asked| asked.item == item);
                asked.map(|asked| &asked.request)
            }
            Self::Request(_) | Self::WouldFail(_) | Self::Unavailable(_) => None,
        }
    }

    /// How much would change; `None` if that is not known.
    pub fn predicted(&self) -> Option<Predicted> {
        match self {
            Self::Shown(shown) => Some(shown.predicted),
            Self::Request(_) => None,
            Self::WouldFail(_) => Some(Predicted::default()),
            Self::Unavailable(_) => None,
        }
    }

    /// Whether the observed changes are the predicted ones.
    pub(crate) fn compared(&self, effects: &Effects) -> PreviewRecord {
        let record = |verdict, why: Option<&str>| PreviewRecord {
            verdict,
            why: why.map(str::to_owned),
            predicted: self.predicted(),
        };
        let happened = match effects {
            Effects::Observed(observed) => Some(digest(&observed.changes)),
            Effects::None => Some(digest(&[])),
            Effects::Unobserved | Effects::Possible => None,
        };
        match (self, happened) {
            (Self::Unavailable(why), _) => record(PreviewVerdict::NotPreviewed, Some(why)),
            // No other request leaves than the one that was shown.
            (Self::Request(_), _) => record(PreviewVerdict::Matched, None),
            (_, None) => record(PreviewVerdict::NotPreviewed, Some("effectd did not observe what changed")),
            (Self::Shown(shown), Some(happened)) if shown.digest == happened => {
                record(PreviewVerdict::Matched, unseen(effects))
            }
            (Self::WouldFail(_), Some(happened)) if happened == digest(&[]) => {
                record(PreviewVerdict::Matched, None)
            }
            (Self::Shown(_), Some(_)) => {
                record(PreviewVerdict::Differed, Some("the changes differ from the preview"))
            }
            (Self::WouldFail(_), Some(_)) => record(
                PreviewVerdict::Differed,
                Some("the preview predicted a failure, but something changed"),
            ),
        }
    }
}

/// What could not be compared, if everything else matches.
fn unseen(effects: &Effects) -> Option<&'static str> {
    match effects {
        Effects::Observed(observed) => observed
            .changes
            .iter()
            .any(|change| change.moved_to.is_some() && change.inside.is_none())
            .then_some("the moved folder holds too much to compare"),
        Effects::None | Effects::Unobserved | Effects::Possible => None,
    }
}

/// In any order.
pub(crate) fn digest(changes: &[PathChange]) -> Digest {
    let mut changes: Vec<_> = changes.iter().collect();
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    // Plain data with text keys, for which serde_json has no failure.
    canonical::digest(&serde_json::to_value(changes).unwrap_or_default())
}
