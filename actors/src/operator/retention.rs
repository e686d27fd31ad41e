//! Retention: drops what is older than the settings keep, from the store and from the blobs that old receipts name, and old
//! results of tools.

use std::sync::Arc;

use effectd_bus::{BlobKind, Retained, Retention, RetentionMode, Store, StoreError};
use effectd_contracts::Timestamp;

use super::service::blocking;
use crate::execution::log;
use crate::limits::{RESULT_KEPT, RETENTION_BLOBS_LONGER, RETENTION_INTENTS_PAGE};
use crate::services::Services;

/// What a round of retention would drop. Blocks.
pub fn preview(store: &dyn Store, retention: &Retention) -> Result<Retained, StoreError> {
    store.retain(retention, RetentionMode::Preview)
}

/// One round of bounded work. Before it drops a body of the log, it writes a signed head that says from which entry on bodies are
/// kept: so the newest head is true at every moment, also after a crash.
pub async fn run(services: &Arc<Services>) -> Result<Retained, StoreError> {
    let retain =
        |services: &Services| services.store.retain(&services.settings.retention, RetentionMode::Apply);
    let expired = blocking(services, retain).await?;
    let head = log::head(&*services.store, &services.identity, &*services.clock);
    let kept_from = head.await?.kept_from;
    blocking(services, move |services| {
        let retained = expired.then(services.store.shorten(kept_from)?);
        let now = services.clock.now();
        let ended = now.saturating_sub(RESULT_KEPT).unwrap_or(now);
        if let Err(error) = services.files.blobs.expire(&[BlobKind::Results], ended) {
            tracing::warn!(%error, "old results could not be removed");
        }
        if let Some(since) = retained.since {
            // A failure here is only logged, so that the caller learns what the store has dropped: the next round tries again.
            let expire = |before| services.files.blobs.expire(&BlobKind::OF_RECEIPTS, before);
            match blobs_before(&*services.store, since).map(expire) {
                Ok(Ok(gone)) => tracing::debug!(gone, "blobs of old receipts removed"),
                Ok(Err(error)) => tracing::warn!(%error, "blobs of old receipts could not be removed"),
                Err(error) => tracing::warn!(%error, "the blobs of old receipts cannot be determined"),
            }
        }
        Ok(retained)
    })
    .await
}

/// The time before which a blob belongs to no receipt that is kept. A blob is stored before its receipt, since the action still
/// has to run.
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
            stale: None,
        };
        store.claim(claim("young")).wait().unwrap();
        assert_eq!(blobs_before(&store, since).unwrap(), since - day);
        // Later receipts do not matter: the open intent is older.
        let later = since + day * 100;
        assert_eq!(blobs_before(&store, later).unwrap(), since - day);
    }
}
