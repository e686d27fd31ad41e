//! The Store's errors, and which of them a retry can help.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::{ActionId, Code, Failure, IdInvalid, Phase, ReceiptId};

use crate::names::TopicName;

/// Advice for a journal whose bytes are not the bytes that were written.
const RESTORE: &str = "stop effectd, keep a copy of the state directory as it is, and restore the last backup, or write \
                       what is readable to a new state with `effectd store salvage --to DIR`";

/// Advice for an index that repairs itself.
const REBUILT: &str = "it is rebuilt from the journal when effectd next writes or starts";

/// Why the Store refused or failed an operation. A refused operation stores nothing.
///
/// Clients see these messages, so they name no path of the state directory, except
/// [`StoreError::Locked`], which only opening returns. The log has the path of a failed file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The writer's queue or a group's window is full, or too many claims are open.
    #[error("the store is overloaded ({what}); try again shortly")]
    Overloaded { what: &'static str },
    #[error("{what} is {size}; at most {max} is allowed")]
    TooLarge { what: &'static str, size: usize, max: usize },
    #[error("{0}")]
    Invalid(String),
    /// It does not fit what is stored now. The text says why.
    #[error("{0}")]
    StateConflict(String),
    #[error(transparent)]
    InvalidId(#[from] IdInvalid),
    #[error("{what} is unknown")]
    NotFound { what: &'static str },
    /// No tool or topic has the name that the caller gave. The text says which names there are.
    #[error(transparent)]
    NoSuchName(Cause),
    /// Retention has removed these events.
    #[error(
        "events of {topic} before offset {begins} have expired: continue from there (`seek` the group to the topic's start)"
    )]
    Dropped { topic: TopicName, begins: u64 },
    /// The lease expired and another consumer has the event, the event was acknowledged, or the lease belongs to an
    /// earlier process.
    #[error("the lease is no longer held")]
    LeaseLost,
    /// The action was taken over, or its claim has ended: this outcome must not be recorded.
    #[error("the claim of action {action_id} is held under another fence")]
    StaleFence { action_id: ActionId },
    #[error("action {action_id} already has receipt {receipt_id}")]
    AlreadyReceipted { action_id: ActionId, receipt_id: ReceiptId },
    /// The same id was used before with other content.
    #[error("{what} was already used with other content")]
    Conflict { what: &'static str },
    #[error("the entry is at another version than expected")]
    VersionMismatch {
        /// The version that is stored; `None` if there is no entry.
        current: Option<u64>,
    },
    /// The disk has no room for new work; work in progress can still be recorded.
    #[error("the disk that holds the state is full: free some space; the store recovers by itself")]
    Full,
    #[error("the disk that holds the state is read-only: make it writable; the store recovers by itself")]
    ReadOnly,
    /// A write failed, or the store cannot take the call now. A write may or may not have happened: repeat it with the same id.
    #[error("the store is not available: {reason}")]
    Unavailable {
        /// Quotes the source, if there is one: clients see only this text.
        reason: String,
        source: Option<Cause>,
    },
    #[error("the store is closed")]
    Closed,
    #[error("{} is in use by another process: stop it, or choose another state directory", path.display())]
    Locked { path: PathBuf },
    /// Another version of effectd wrote the state.
    #[error("the store has format {found}, this version reads format {known}: use the effectd that wrote it")]
    Format { found: u32, known: u32 },
    /// The bytes on disk are not the bytes that were written.
    #[error("the store is damaged: {what}; {advice}")]
    Damaged { what: String, advice: &'static str },
    /// The keys of sealed payloads are missing or do not fit.
    #[error("the store's keys cannot be used: {what}; {advice}")]
    Keys { what: String, advice: &'static str },
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn may_retry(&self) -> bool {
        match self {
            StoreError::Overloaded { .. }
            | StoreError::Full
            | StoreError::ReadOnly
            | StoreError::Unavailable { .. } => true,
            StoreError::TooLarge { .. }
            | StoreError::Invalid(_)
            | StoreError::StateConflict(_)
            | StoreError::InvalidId(_)
            | StoreError::NotFound { .. }
            | StoreError::NoSuchName(_)
            | StoreError::Dropped { .. }
            | StoreError::LeaseLost
            | StoreError::StaleFence { .. }
            | StoreError::AlreadyReceipted { .. }
            | StoreError::Conflict { .. }
            | StoreError::VersionMismatch { .. }
            | StoreError::Closed
            | StoreError::Locked { .. }
            | StoreError::Format { .. }
            | StoreError::Damaged { .. }
            | StoreError::Keys { .. } => false,
        }
    }

    /// This error as the failure of an action. The advice is what has to change, and not part of the message.
    pub fn failure(&self, phase: Phase) -> Failure {
        let text = self.to_string();
        let (StoreError::Damaged { advice, .. } | StoreError::Keys { advice, .. }) = self else {
            return Failure::new(Code::StoreUnavailable, phase, text);
        };
        let what = text.trim_end_matches(advice).trim_end_matches("; ");
        Failure::new(Code::StoreUnavailable, phase, what).unless(*advice)
    }

    /// Damage that the Store does not repair by itself.
    pub(crate) fn is_lasting_damage(&self) -> bool {
        matches!(self, StoreError::Damaged { advice, .. } if *advice != REBUILT)
    }

    /// Damage that a backup repairs, or that salvage leaves out.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        StoreError::Damaged { what: what.into(), advice: RESTORE }
    }

    /// Damage of the index that the next write or opening repairs by itself.
    pub(crate) fn index_damaged(what: &str) -> Self {
        StoreError::Damaged { what: format!("the index: {what}"), advice: REBUILT }
    }

    /// An index whose checksums are right but whose content is not: opening it again does not repair it.
    pub(crate) fn index_unreadable(what: &str) -> Self {
        StoreError::Damaged {
            what: format!("the index: {what}"),
            advice: "stop effectd and move the directory `index` away; it is rebuilt from the journal",
        }
    }

    pub fn unavailable(reason: impl Into<String>) -> Self {
        StoreError::Unavailable { reason: reason.into(), source: None }
    }

    /// [`StoreError::Unavailable`] because of an error from below the Store.
    pub fn unavailable_by(what: impl fmt::Display, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let cause = Cause::new(cause);
        StoreError::Unavailable { reason: format!("{what}: {cause}"), source: Some(cause) }
    }
}

/// An error of the operating system or of a library, as the source of ours. Two are equal if they have the same text.
#[derive(Debug, Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error: Box<dyn Error + Send + Sync> = error.into();
        Self(error.into())
    }
}

impl Deref for Cause {
    type Target = dyn Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

/// [`StoreError::TooLarge`] if the size is beyond its bound.
pub(crate) fn bound(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    if size > max {
        return Err(StoreError::TooLarge { what, size, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_remedy_of_damage_once() {
        let failure = StoreError::damaged("block 7").failure(Phase::Accept);
        assert_eq!(failure.message, "the store is damaged: block 7");
        let remedy = failure.change.unwrap_or_default();
        for way in ["restore the last backup", "`effectd store salvage --to DIR`"] {
            assert!(remedy.contains(way), "{remedy}");
        }
        assert_eq!(StoreError::Full.failure(Phase::Accept).message, StoreError::Full.to_string());
    }
}
