//! Work that takes a thread for a while.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::{Parts, StoreError};
use serde::Serialize;

use super::json;
use crate::desk::{Desk, unavailable};
use crate::problem::{Kind, Problem};

/// Does what waits for the disk, or computes for long, on a thread that nobody else needs; a few at a time.
pub(super) async fn work<T: Serialize + Send + 'static>(
    desk: &Arc<Desk>,
    ask: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &working(desk, ask).await?))
}

/// The same, for whoever goes on with the answer.
pub(super) async fn working<T: Send + 'static>(
    desk: &Arc<Desk>,
    ask: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let _turn = desk.turn().await?;
    let answer = tokio::task::spawn_blocking(ask).await;
    answer.unwrap_or_else(|error| Err(Problem::of(Kind::Internal, error.to_string())))
}

/// [`work`] on what the pipeline is made of, mostly its store.
pub(super) async fn with_parts<T: Serialize + Send + 'static>(
    desk: &Arc<Desk>,
    ask: impl FnOnce(&Parts) -> Result<T, StoreError> + Send + 'static,
) -> Result<Response, Problem> {
    let host = desk.host.clone();
    work(desk, move || ask(host.parts()).map_err(|error| refused(&error))).await
}

pub(super) fn refused(error: &StoreError) -> Problem {
    match error {
        StoreError::NotFound { .. } => Problem::of(Kind::LetterUnknown, error.to_string()),
        StoreError::Dropped { .. } => Problem::of(Kind::Dropped, error.to_string()),
        StoreError::Invalid(_) | StoreError::TooLarge { .. } => {
            Problem::of(Kind::QueryInvalid, error.to_string())
        }
        StoreError::Overloaded { .. }
        | StoreError::LeaseLost
        | StoreError::StaleFence { .. }
        | StoreError::AlreadyReceipted { .. }
        | StoreError::Conflict { .. }
        | StoreError::VersionMismatch { .. }
        | StoreError::Full
        | StoreError::ReadOnly
        | StoreError::Unavailable { .. }
        | StoreError::Closed
        | StoreError::Locked { .. }
        | StoreError::Format { .. }
        | StoreError::Damaged { .. }
        | StoreError::Keys { .. } => unavailable(error),
    }
}
