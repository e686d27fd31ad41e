//! Slots for connections and waits, and places for blocking work: a bounded number in all, and of each holder.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use effectd_contracts::Principal;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// A user at the socket.
    User(u32),
    /// An address over TCP.
    Address(IpAddr),
    /// An account with its sessions, or a session that no account has made.
    Account(Principal),
    /// Work that no request waits for.
    Nobody,
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

/// Places for blocking work, first come, first served. A holder's requests wait for one of its part, and then for one of all.
pub(crate) struct Places {
    all: Arc<Semaphore>,
    each: Mutex<HashMap<Holder, Weak<Semaphore>>>,
    each_max: usize,
}

/// One place; dropping it frees it.
pub(crate) struct Place {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Places {
    pub(crate) fn new(all_max: usize, each_max: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all_max)), each: Mutex::default(), each_max }
    }

    /// Takes a place as soon as there is one. `None` never happens: nothing closes the semaphores.
    pub(crate) async fn wait(&self, holder: &Holder) -> Option<Place> {
        let own = self.part_of(holder).acquire_owned().await.ok()?;
        let of_all = self.all.clone().acquire_owned().await.ok()?;
        Some(Place { _own: own, _of_all: of_all })
    }

    fn part_of(&self, holder: &Holder) -> Arc<Semaphore> {
        let mut each = self.each.lock();
        if let Some(part) = each.get(holder).and_then(Weak::upgrade) {
            return part;
        }
        // Only who has a place or waits for one is remembered.
        each.retain(|_, part| part.strong_count() > 0);
        let part = Arc::new(Semaphore::new(self.each_max));
        each.insert(holder.clone(), Arc::downgrade(&part));
        part
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn places_are_given_in_turn_and_one_part_to_a_holder() {
        let (places, one, other) = (Places::new(3, 2), Holder::User(1), Holder::User(2));
        let [first, second] = [(); 2].map(|()| places.wait(&one).now_or_never().flatten().unwrap());
        let mut third = Box::pin(places.wait(&one));
        assert!(third.as_mut().now_or_never().is_none(), "it has its part");
        let held = places.wait(&other).now_or_never().flatten().unwrap();
        let mut fourth = Box::pin(places.wait(&other));
        assert!(fourth.as_mut().now_or_never().is_none(), "no place is left");
        let mut late = Box::pin(places.wait(&Holder::Nobody));
        assert!(late.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "another one came before it");
        assert!(late.as_mut().now_or_never().is_none(), "another one came before it");
        let fourth = fourth.now_or_never().flatten().unwrap();
        drop((second, fourth));
        let (late, third) = (late.now_or_never().flatten(), third.now_or_never().flatten());
        assert!(late.is_some() && third.is_some());
        drop((held, late, third));
        drop(places.wait(&Holder::User(3)).await);
        assert_eq!(places.each.lock().len(), 1, "who waits for nothing is forgotten");
    }
}
