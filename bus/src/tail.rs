//! A reader that follows a topic as it grows.

use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::names::TopicName;
use crate::store::Store;
use crate::types::events::StoredEvent;
use crate::watch::Watch;

/// Reads a topic from an offset on and follows its end; uses no group.
pub struct Tail {
    store: Arc<dyn Store>,
    topic: TopicName,
    next: u64,
    watch: Watch,
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tail({} from {})", self.topic, self.next)
    }
}

impl Tail {
    pub fn new(store: Arc<dyn Store>, topic: TopicName, from: u64) -> Result<Self, StoreError> {
        let watch = store.watch(&topic)?;
        Ok(Tail { store, topic, next: from, watch })
    }

    /// The next events, at least one.
    pub async fn next(&mut self, max: usize) -> Result<Vec<StoredEvent>, StoreError> {
        loop {
            if let Some(events) = self.read(max)? {
                return Ok(events);
            }
            self.watch.changed().await?;
        }
    }

    /// The next events, for blocking callers; none if nothing arrives within `timeout`.
    #[expect(clippy::disallowed_methods, reason = "a thread waits; no rule depends on it")]
    pub fn next_blocking(&mut self, max: usize, timeout: Duration) -> Result<Vec<StoredEvent>, StoreError> {
        let end = std::time::Instant::now() + timeout;
        loop {
            if let Some(events) = self.read(max)? {
                return Ok(events);
            }
            let left = end.saturating_duration_since(std::time::Instant::now());
            if !self.watch.wait_changed(left)? {
                return Ok(Vec::new());
            }
        }
    }

    fn read(&mut self, max: usize) -> Result<Option<Vec<StoredEvent>>, StoreError> {
        let page = self.store.read(&self.topic, self.next, max.max(1))?;
        if page.events.is_empty() {
            return Ok(None);
        }
        self.next = page.next;
        Ok(Some(page.events))
    }
}
