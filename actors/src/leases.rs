//! Keeps the deliveries of long work: an action that runs or waits for another is not given to someone else meanwhile.
//!
//! Only work that has a reason to be long is kept, and only for as long as that reason lasts. A stage that hangs keeps
//! nothing, so its action comes back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{LeaseId, Store};
use effectd_contracts::{Clock, Monotonic};
use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Default)]
pub(crate) struct Leases(Arc<Mutex<HashMap<LeaseId, Monotonic>>>);

/// Keeps one delivery as long as it lives.
pub(crate) struct Kept {
    leases: Leases,
    lease: LeaseId,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseId, Monotonic>> {
        self.0.lock()
    }

    /// Keeps the delivery, at most until then.
    pub(crate) fn keep(&self, lease: LeaseId, until: Monotonic) -> Kept {
        self.lock().insert(lease, until);
        Kept {
            leases: self.clone(),
            lease,
        }
    }

    /// Extends everything that is kept. To be called well within the time of a lease.
    pub(crate) fn extend_all(&self, store: &dyn Store, clock: &dyn Clock, ttl: Duration) {
        let now = clock.monotonic();
        let mut all = self.lock();
        all.retain(|_, until| *until > now);
        for lease in all.keys() {
            // Not waited for: a lease that was lost meanwhile is found out by the fence.
            drop(store.extend(*lease, ttl));
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.leases.lock().remove(&self.lease);
    }
}
