//! Letting go of what is kept no longer: in the store, and with the receipts what lies beside it.

use std::sync::Arc;

use effectd_bus::{Retained, Store, StoreError, Turn};
use effectd_contracts::Timestamp;

use crate::limits::{RETENTION_BLOBS_LONGER, RETENTION_INTENTS_PAGE};
use crate::log;
use crate::parts::Parts;

/// What a turn would do. Blocks.
pub fn preview(parts: &Parts) -> Result<Retained, StoreError> {
    parts.store.retain(&parts.settings.retention, Turn::Preview)
}

/// One turn, of bounded work. Before any body of the log is dropped, a signed head on disk says from where on they are kept: at
/// every moment, and after a crash at any point, the newest head is true.
pub async fn let_go(parts: &Arc<Parts>) -> Result<Retained, StoreError> {
    let retain = |parts: &Parts| parts.store.retain(&parts.settings.retention, Turn::LetGo);
    let expired = blocking(parts, retain).await?;
    let kept_from = log::head(parts).await?.kept_from;
    blocking(parts, move |parts| {
        let told = expired.then(parts.store.shorten(kept_from)?);
        if let Some(since) = told.since {
            // What the store has let go is told, whatever becomes of this: the next turn tries it again.
            match blobs_before(&*parts.store, since).map(|before| parts.blobs.expire(before)) {
                Ok(Ok(gone)) => tracing::debug!(gone, "blobs of receipts that are kept no longer"),
                Ok(Err(error)) => tracing::warn!(%error, "blobs of old receipts could not be removed"),
                Err(error) => tracing::warn!(%error, "which blobs are of old receipts is not known"),
            }
        }
        Ok(told)
    })
    .await
}

/// What reads and syncs, on a thread that nobody else needs.
async fn blocking(
    parts: &Arc<Parts>,
    work: impl FnOnce(&Parts) -> Result<Retained, StoreError> + Send + 'static,
) -> Result<Retained, StoreError> {
    let parts = parts.clone();
    let done = tokio::task::spawn_blocking(move || work(&parts)).await;
    done.unwrap_or_else(|error| {
        Err(StoreError::Unavailable {
            reason: error.to_string(),
        })
    })
}

/// The moment before which a blob was last stored that is nobody's any more. Blobs are touched when an action stores or names
/// them, which is before its receipt is written: by as long as the action then runs.
fn blobs_before(store: &dyn Store, since: Timestamp) -> Result<Timestamp, StoreError> {
    let (mut oldest, mut after) = (since, None);
    loop {
        let page = store.open_intents(after, RETENTION_INTENTS_PAGE).wait()?;
        oldest = page.iter().map(|open| open.since).fold(oldest, Timestamp::min);
        match page.last() {
            Some(last) => after = Some(last.fence),
            None => break,
        }
    }
    Ok(oldest.saturating_sub(RETENTION_BLOBS_LONGER).unwrap_or(oldest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::time::Duration;

    use effectd_bus::{Asker, Claim, memory};
    use effectd_contracts::{ActionId, Clock, Digest, ManualClock};

    use super::*;

    #[test]
    fn blobs_of_what_runs_long_or_is_under_way_are_kept() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let store = memory::open(clock.clone()).unwrap();
        let day = RETENTION_BLOBS_LONGER;
        clock.advance(Duration::from_secs(86_400 * 300));
        let since = clock.now();
        assert_eq!(blobs_before(&store, since).unwrap(), since - day);
        let claim = |name: &str| Claim {
            action_id: ActionId::new(name).unwrap(),
            action_digest: Digest::of(name.as_bytes()),
            asker: Asker {
                space: "shared:test".parse().unwrap(),
                subject: "agent://planner".parse().unwrap(),
                principal: "user://alice".parse().unwrap(),
            },
            key: None,
            params_digest: Digest::of(b"p"),
            intent: Vec::new(),
            resources: Vec::new(),
            depends: Vec::new(),
        };
        store.claim(claim("young")).wait().unwrap();
        assert_eq!(blobs_before(&store, since).unwrap(), since - day);
        // Receipts that were written since then do not matter to what is under way from before.
        let later = since + day * 100;
        assert_eq!(blobs_before(&store, later).unwrap(), since - day);
    }
}
