//! Slots for connections and waits: a bounded number in all, and of each holder.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// A user at the socket.
    User(u32),
    /// An address over TCP.
    Address(IpAddr),
    /// A token, by its id.
    Token(String),
}

/// The slots in use, in all and of each holder.
#[derive(Clone, Default)]
pub(crate) struct Slots {
    taken: Arc<Mutex<HashMap<Holder, usize>>>,
    gauge: Option<prometheus::IntGauge>,
}

/// One slot; dropping it frees it.
pub(crate) struct Slot {
    slots: Slots,
    pub(crate) holder: Holder,
}

impl Slots {
    /// Slots whose number a gauge shows.
    pub(crate) fn shown_by(gauge: &prometheus::IntGauge) -> Self {
        Self { taken: Arc::default(), gauge: Some(gauge.clone()) }
    }

    pub(crate) fn of(&self, holder: &Holder) -> usize {
        self.taken.lock().get(holder).copied().unwrap_or(0)
    }

    /// Takes a slot, if all holders together and this holder have fewer than these.
    pub(crate) fn take(&self, holder: Holder, (all_max, each_max): (usize, usize)) -> Option<Slot> {
        let mut taken = self.taken.lock();
        let all: usize = taken.values().sum();
        let own = taken.get(&holder).copied().unwrap_or(0);
        if all >= all_max || own >= each_max {
            return None;
        }
        taken.insert(holder.clone(), own + 1);
        if let Some(gauge) = &self.gauge {
            gauge.inc();
        }
        Some(Slot { slots: self.clone(), holder })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        if let Some(own) = taken.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.holder);
            }
        }
        if let Some(gauge) = &self.slots.gauge {
            gauge.dec();
        }
    }
}
