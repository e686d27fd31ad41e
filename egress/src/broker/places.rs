//! Places that are few, of which nobody may have most: a service that is slow on purpose must not keep others from theirs.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug, Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// Those of each key that has or waits for one.
    each: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    each_max: usize,
}

/// Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place(#[expect(dead_code, reason = "held")] [OwnedSemaphorePermit; 2]);

impl Places {
    pub(super) fn new(all_max: usize, each_max: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all_max)), each: Arc::default(), each_max }
    }

    /// Waits for a place.
    pub(super) async fn take(&self, key: &str) -> Option<Place> {
        let own = {
            let mut each = self.each.lock();
            // Nobody has or waits for one: the map alone knows it, and all its places are free.
            each.retain(|_, own| Arc::strong_count(own) > 1 || own.available_permits() < self.each_max);
            let new = || Arc::new(Semaphore::new(self.each_max));
            each.entry(key.to_owned()).or_insert_with(new).clone()
        };
        let own = own.acquire_owned().await.ok()?;
        let place = self.all.clone().acquire_owned().await.ok()?;
        Some(Place([own, place]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_has_most_and_nothing_is_left_behind() {
        let places = Places::new(4, 2);
        let soon = |key: &'static str| {
            let places = places.clone();
            async move {
                let taking = places.take(key);
                tokio::time::timeout(std::time::Duration::from_secs(1), taking).await.ok().flatten()
            }
        };
        let held = [soon("slow").await.unwrap(), soon("slow").await.unwrap()];
        assert!(soon("slow").await.is_none());
        let others = [soon("a").await.unwrap(), soon("b").await.unwrap()];
        assert!(soon("c").await.is_none(), "there are four in all");
        drop(held);
        assert!(soon("c").await.is_some() && soon("slow").await.is_some());
        drop(others);
        assert!(soon("d").await.is_some());
        assert!(places.each.lock().len() <= 1);
    }
}
