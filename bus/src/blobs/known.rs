//! What lies on one shelf: which blobs there are, where each lies, in which order they go, and which slots are free.
//!
//! Nothing here waits for the disk under the shelf's lock but the destruction of files. Slots are overwritten under it, and
//! whoever needs that to be on disk waits without it, in [`settle`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::slots::{Since, Slot, Slots, Written};
use super::{BlobError, destroy, lock, touch};

/// One blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    age: u64,
    /// How long it is, sealed.
    pub(super) bytes: u64,
    pub(super) place: Place,
}

/// Where a blob lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a file of its own.
    File,
    Slot(Slot),
}

/// A slot that was overwritten, and may not be so on disk.
#[derive(Debug)]
struct Going {
    number: u32,
    name: String,
    since: Since,
}

/// What lies on the shelf of one space, in the order of storing.
#[derive(Debug)]
pub(super) struct Known {
    folder: PathBuf,
    pub(super) by_name: HashMap<String, Entry>,
    by_age: BTreeMap<u64, String>,
    pub(super) bytes: u64,
    /// Bytes that are about to have a name, and for which room was made: those who write at once keep to the quota together.
    pub(super) coming: u64,
    /// Bytes without a name, which come in pieces.
    pub(super) drafted: u64,
    /// What somebody needs, and how many do.
    pub(super) pinned: HashMap<String, usize>,
    /// What an earlier process has left under a name, and may not have written to its end.
    pub(super) unproven: HashSet<String>,
    next: u64,
    pub(super) slots: Arc<Slots>,
    free: BTreeSet<u32>,
    going: BTreeMap<u64, Going>,
    /// Slots that could not be overwritten. They are tried again when their blob is removed, and by the next process.
    lost: Vec<(u32, String)>,
}

impl Known {
    pub(super) fn new(folder: PathBuf, slots: Slots, free: BTreeSet<u32>) -> Self {
        Self {
            folder,
            by_name: HashMap::new(),
            by_age: BTreeMap::new(),
            bytes: 0,
            coming: 0,
            drafted: 0,
            pinned: HashMap::new(),
            unproven: HashSet::new(),
            next: 0,
            slots: Arc::new(slots),
            free,
            going: BTreeMap::new(),
            lost: Vec::new(),
        }
    }

    /// Takes a blob down as the youngest. If it was in a slot that it is not in now, nobody needs that any more.
    pub(super) fn add(&mut self, name: &str, bytes: u64, place: Place) {
        let before = self.forget(name).map(|entry| entry.place);
        let age = self.next;
        self.by_name.insert(name.to_owned(), Entry { age, bytes, place });
        self.by_age.insert(age, name.to_owned());
        self.bytes += bytes;
        self.next += 1;
        if let (Some(Place::Slot(before)), Place::File) = (before, place) {
            self.give_up(before.number, name);
        }
    }

    /// Takes down what was just written to a slot. If somebody else has stored the same meanwhile, theirs is as good.
    pub(super) fn add_slot(&mut self, name: &str, bytes: u64, slot: Slot) {
        match self.by_name.get(name).copied() {
            Some(theirs) => {
                self.give_up(slot.number, name);
                self.add(name, theirs.bytes, theirs.place);
            }
            None => self.add(name, bytes, Place::Slot(slot)),
        }
    }

    fn forget(&mut self, name: &str) -> Option<Entry> {
        self.unproven.remove(name);
        let entry = self.by_name.remove(name)?;
        self.by_age.remove(&entry.age);
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// The slot with a blob; `None` if it lies in a file, or is not there.
    pub(super) fn slot(&self, name: &str) -> Option<Slot> {
        match self.by_name.get(name)?.place {
            Place::Slot(slot) => Some(slot),
            Place::File => None,
        }
    }

    /// The sealed bytes of a blob in a slot; `None` if it lies in a file, or is not there.
    pub(super) fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        let read = |slot: Slot| self.slots.read(slot.number, name);
        self.slot(name).map(read).transpose()
    }

    /// All names, those that were stored longest ago first.
    pub(super) fn names(&self) -> Vec<String> {
        self.by_age.values().cloned().collect()
    }

    /// Makes a blob the youngest, also on disk; `false` if it is not there.
    pub(super) fn renew(&mut self, name: &str) -> bool {
        let Some(entry) = self.by_name.get(name).copied() else {
            return false;
        };
        let place = match entry.place {
            Place::File => touch(&self.folder.join(name)).ok().map(|()| Place::File),
            Place::Slot(slot) => self.slots.touch(slot.number).ok().map(Place::Slot),
        };
        // What cannot be made younger stays what it is; whoever stores it again finds it as good.
        if let Some(place) = place {
            self.add(name, entry.bytes, place);
        }
        place.is_some()
    }

    /// Bytes that count against the quota.
    pub(super) fn counted(&self) -> u64 {
        self.bytes - self.pinned_bytes() + self.coming
    }

    pub(super) fn pinned_bytes(&self) -> u64 {
        let pinned = self.pinned.keys().filter_map(|name| self.by_name.get(name));
        pinned.map(|entry| entry.bytes).sum()
    }

    /// What goes first.
    fn oldest(&self) -> Option<String> {
        let free = |name: &&String| !self.pinned.contains_key(*name);
        self.by_age.values().find(free).cloned()
    }

    pub(super) fn destroy_oldest(&mut self) -> Result<(), BlobError> {
        // All that is there is being written or needed, and there is no room for more beside it.
        let oldest = self.oldest().ok_or(BlobError::Full)?;
        self.destroy(&oldest)
    }

    /// Destroys a blob: at once if it lies in a file, with the next [`settle`] if in a slot.
    pub(super) fn destroy(&mut self, name: &str) -> Result<(), BlobError> {
        // Not known before its head goes: if that fails in the middle, nobody takes it for a blob.
        match self.forget(name).map(|entry| entry.place) {
            Some(Place::Slot(slot)) => self.wipe(slot.number, name),
            Some(Place::File) | None => destroy(&self.folder.join(name)),
        }
    }

    /// Destroys whatever there may be of a blob, known or not.
    pub(super) fn destroy_all_of(&mut self, name: &str) -> Result<(), BlobError> {
        let lost = std::mem::take(&mut self.lost);
        let (again, others): (Vec<_>, Vec<_>) = lost.into_iter().partition(|(_, of)| of == name);
        self.lost = others;
        let mut wiped = Ok(());
        for (number, _) in again {
            wiped = wiped.and(self.wipe(number, name));
        }
        let in_slot = self.slot(name).is_some();
        self.destroy(name)?;
        if in_slot {
            destroy(&self.folder.join(name))?;
        }
        wiped
    }

    fn wipe(&mut self, number: u32, name: &str) -> Result<(), BlobError> {
        let (name, since) = (name.to_owned(), self.slots.since());
        if let Err(error) = self.slots.wipe(number) {
            self.lost.push((number, name));
            return Err(error.into());
        }
        self.going.insert(self.next, Going { number, name, since });
        self.next += 1;
        Ok(())
    }

    /// Best effort: nobody was told that something is in that slot, or the same is elsewhere. Without this, the next process
    /// finds it.
    fn give_up(&mut self, number: u32, name: &str) {
        let _ = self.wipe(number, name);
    }

    /// The slots that were overwritten so far, and since when a sync must not have failed to stand for all of them.
    pub(super) fn going(&self) -> Leaving {
        let since = self.going.values().map(|going| going.since).min();
        (self.going.keys().copied().collect(), since)
    }

    /// After a sync: slots that are overwritten on disk are free, and the others must not be used.
    fn settled(&mut self, gone: &[u64], synced: &Result<(), BlobError>) {
        for going in gone.iter().filter_map(|ticket| self.going.remove(ticket)) {
            match synced {
                Ok(()) => {
                    self.free.insert(going.number);
                }
                Err(_) => {
                    // What the kernel has in memory may be said to be on disk; the next start must not take it for zeros.
                    self.slots.spoil(going.number);
                    self.lost.push((going.number, going.name));
                }
            }
        }
    }
}

/// Slots that were overwritten, and since when a sync must not have failed to stand for all of them.
pub(super) type Leaving = (Vec<u64>, Option<Since>);

/// Returns when every slot that was overwritten is so on disk, whoever did it.
pub(super) fn settle(known: &Mutex<Known>) -> Result<(), BlobError> {
    let leaving = lock(known).going();
    settle_those(known, leaving)
}

/// The same for those that were leaving at a moment: if somebody else has synced for them since, and failed, that is told, too.
pub(super) fn settle_those(known: &Mutex<Known>, (gone, since): Leaving) -> Result<(), BlobError> {
    let Some(since) = since else {
        return Ok(());
    };
    let slots = lock(known).slots.clone();
    let synced = slots.sync(since, slots.written());
    lock(known).settled(&gone, &synced);
    synced
}

/// A slot that was filled, and may not be so on disk.
#[derive(Debug)]
pub(super) struct Filled {
    slot: Slot,
    slots: Arc<Slots>,
    /// What was overwritten before is so on disk by the same sync.
    gone: Vec<u64>,
    since: Since,
    written: Written,
    /// Not closed between writing and the sync.
    _open: Arc<File>,
}

/// Puts a sealed blob into a slot. It is durable after [`Filled::sync`].
pub(super) fn fill(known: &Mutex<Known>, name: &str, sealed: &[u8]) -> Result<Filled, BlobError> {
    let slots = lock(known).slots.clone();
    let free = |paved: Range<u32>| {
        let mut known = lock(known);
        known.free.extend(paved);
        known.free.pop_first()
    };
    let number = match slots.take(free) {
        Ok(number) => number,
        // Nothing more can be paved, but what has made room is free as soon as that is on disk.
        Err(error) => {
            settle(known)?;
            free(0..0).ok_or(error)?
        }
    };
    let written = slots.file().map_err(BlobError::from).and_then(|open| {
        let (gone, since) = lock(known).going();
        Ok(Filled {
            since: since.unwrap_or_else(|| slots.since()),
            slot: slots.write(number, name, sealed)?,
            written: slots.written(),
            slots,
            gone,
            _open: open,
        })
    });
    if written.is_err() {
        lock(known).give_up(number, name);
    }
    written
}

impl Filled {
    /// Waits until the slot is on disk. One of which that cannot be said is given up.
    pub(super) fn sync(self, known: &Mutex<Known>, name: &str) -> Result<Slot, BlobError> {
        let synced = self.slots.sync(self.since, self.written);
        let mut known = lock(known);
        known.settled(&self.gone, &synced);
        match synced {
            Ok(()) => Ok(self.slot),
            Err(error) => {
                known.give_up(self.slot.number, name);
                Err(error)
            }
        }
    }

    /// Whether it is on disk already.
    pub(super) fn is_settled(&self) -> bool {
        self.slots.is_over(self.since, self.written)
    }

    /// Nobody needs it.
    pub(super) fn give_up(self, known: &Mutex<Known>, name: &str) {
        lock(known).give_up(self.slot.number, name);
    }
}
