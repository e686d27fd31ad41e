//! Extends the leases of long work, so that an action that runs or waits for another is not delivered again meanwhile.
//!
//! Only work that has a reason to take long is extended, and only while that reason lasts. A stage that hangs extends nothing, so
//! its action is delivered again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{LeaseId, Store};
use effectd_contracts::{Clock, Monotonic};
use parking_lot::Mutex;

pub(crate) struct Leases {
    pub(crate) store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// How long a delivery is leased at a time.
    pub(crate) ttl: Duration,
    extended: Arc<Mutex<HashMap<LeaseId, Monotonic>>>,
}

/// Extends one lease until it is dropped.
pub(crate) struct Extended {
    all: Arc<Mutex<HashMap<LeaseId, Monotonic>>>,
    lease: LeaseId,
}

impl Leases {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, ttl: Duration) -> Self {
        Self { store, clock, ttl, extended: Arc::default() }
    }

    /// Extends the lease until the result is dropped, for `at_most` this long.
    pub(crate) fn extend(&self, lease: LeaseId, at_most: Duration) -> Extended {
        let until = self.clock.monotonic().plus(at_most);
        self.extended.lock().insert(lease, until);
        Extended { all: self.extended.clone(), lease }
    }

    /// Extends all of them. The sweeper calls this several times per lease.
    pub(crate) fn extend_all(&self) {
        let now = self.clock.monotonic();
        let mut all = self.extended.lock();
        all.retain(|_, until| *until > now);
        for lease in all.keys() {
            // Not awaited: if the lease was lost meanwhile, the fence stops its action.
            drop(self.store.extend(*lease, self.ttl));
        }
    }
}

impl Drop for Extended {
    fn drop(&mut self) {
        self.all.lock().remove(&self.lease);
    }
}
