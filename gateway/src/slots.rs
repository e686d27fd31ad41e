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
    taken: Arc<Mutex<Taken>>,
    gauge: Option<prometheus::IntGauge>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    each: HashMap<Holder, usize>,
}

/// One slot, or as many as it has grown to; dropping it frees them.
pub(crate) struct Slot {
    slots: Slots,
    holder: Holder,
    count: usize,
}

impl Slots {
    /// Slots whose number a gauge shows.
    pub(crate) fn shown_by(gauge: &prometheus::IntGauge) -> Self {
        Self { taken: Arc::default(), gauge: Some(gauge.clone()) }
    }

    pub(crate) fn of(&self, holder: &Holder) -> usize {
        self.taken.lock().each.get(holder).copied().unwrap_or(0)
    }

    /// Takes a slot, if all holders together and this holder then have at most these.
    pub(crate) fn take(&self, holder: Holder, most: (usize, usize)) -> Option<Slot> {
        let mut slot = self.none(holder);
        slot.grow(1, most).then_some(slot)
    }

    /// No slot yet, for a holder whose need shows later.
    pub(crate) fn none(&self, holder: Holder) -> Slot {
        Slot { slots: self.clone(), holder, count: 0 }
    }
}

impl Slot {
    /// Takes more slots, if all holders together and this holder then have at most these.
    pub(crate) fn grow(&mut self, more: usize, (all_max, each_max): (usize, usize)) -> bool {
        let mut taken = self.slots.taken.lock();
        let own = taken.each.get(&self.holder).copied().unwrap_or(0);
        let fits = taken.all.saturating_add(more) <= all_max && own.saturating_add(more) <= each_max;
        if fits {
            taken.all += more;
            taken.each.insert(self.holder.clone(), own + more);
            self.count += more;
            if let Some(gauge) = &self.slots.gauge {
                gauge.add(i64::try_from(more).unwrap_or(0));
            }
        }
        fits
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        taken.all -= self.count;
        if let Some(own) = taken.each.get_mut(&self.holder) {
            *own -= self.count;
            if *own == 0 {
                taken.each.remove(&self.holder);
            }
        }
        if let Some(gauge) = &self.slots.gauge {
            gauge.sub(i64::try_from(self.count).unwrap_or(0));
        }
    }
}
