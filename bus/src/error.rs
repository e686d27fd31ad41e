//! What can go wrong with the Store, and whether trying again can help.

use std::path::PathBuf;

use effectd_contracts::{ActionId, IdInvalid, ReceiptId};

use crate::names::TopicName;

/// Why the Store did not do what it was asked. Nothing of a refused operation is stored.
///
/// Callers at the door see these words, so they name no path of the state, except [`StoreError::Locked`], which only opening
/// can answer. Where an error of the disk arises, the log has the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The queue in front of the writer, or a group's window, is full.
    #[error("the store is overloaded ({what}); try again shortly")]
    Overloaded { what: &'static str },
    #[error("{what} is {size}; at most {max} is allowed")]
    TooLarge {
        what: &'static str,
        size: usize,
        max: usize,
    },
    #[error("{0}")]
    Invalid(String),
    #[error("{what} is not known")]
    NotFound { what: &'static str },
    /// What was asked for is no longer kept.
    #[error(
        "events of {topic} before offset {begins} are no longer kept: go on from there (`seek` the group to its start)"
    )]
    Dropped { topic: TopicName, begins: u64 },
    /// The lease ran out and the event went to someone else, was settled, or belonged to an earlier run of the process.
    #[error("the lease is no longer held")]
    LeaseLost,
    /// Someone else took the action over, or its claim is already settled: this outcome must not be recorded.
    #[error("the claim of action {action_id} is held under another fence")]
    StaleFence { action_id: ActionId },
    #[error("action {action_id} already has receipt {receipt_id}")]
    AlreadyReceipted {
        action_id: ActionId,
        receipt_id: ReceiptId,
    },
    /// An id that was used before came back with other content.
    #[error("{what} was used before with other content")]
    Conflict { what: &'static str },
    #[error("the entry is at another version than expected")]
    VersionMismatch {
        /// The version that stands; `None` if there is no entry.
        current: Option<u64>,
    },
    /// The state directory has no room for new work; work already begun can still be recorded.
    #[error("the disk that holds the state is full: free some space; the store recovers by itself")]
    Full,
    /// The state directory cannot be written.
    #[error("the disk that holds the state is read-only: make it writable; the store recovers by itself")]
    ReadOnly,
    /// The last write failed and the store is being reopened. Whether that write happened is not known: ask again by id.
    #[error("the store is not available: {reason}")]
    Unavailable { reason: String },
    #[error("the store is closed")]
    Closed,
    /// Another process has the state directory open.
    #[error("{} is in use by another process: stop it, or choose another state directory", path.display())]
    Locked { path: PathBuf },
    /// The state was written by a version with another format.
    #[error("the store has format {found}, this version reads format {known}: use the effectd that wrote it")]
    Format { found: u32, known: u32 },
    /// What is on disk is not what was written.
    #[error("the store is damaged: {what}. {advice}")]
    Damaged { what: String, advice: &'static str },
    /// The keys that open sealed payloads are missing or do not fit.
    #[error("the store's keys cannot be used: {what}. {advice}")]
    Keys { what: String, advice: &'static str },
}

impl StoreError {
    /// Whether the same call may succeed later without anyone changing it.
    pub fn may_retry(&self) -> bool {
        match self {
            StoreError::Overloaded { .. }
            | StoreError::Full
            | StoreError::ReadOnly
            | StoreError::Unavailable { .. } => true,
            StoreError::TooLarge { .. }
            | StoreError::Invalid(_)
            | StoreError::NotFound { .. }
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
}

impl From<IdInvalid> for StoreError {
    fn from(error: IdInvalid) -> Self {
        StoreError::Invalid(error.to_string())
    }
}
