//! Small blobs share a file: each lies in a slot of its own, which is one block of the disk.
//!
//! A file for a few hundred bytes costs two turns of the file system's journal. A slot was written before, with zeros, so
//! that a blob in it takes neither new room nor an entry in a folder: its bytes are written over, and a sync of data alone
//! makes it durable. Those who store at once share that sync.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | the mark |
//! | 8..16 | when it was stored or last named, in nanoseconds since 1970 |
//! | 16..20 | checksum of all that follows, up to the end of the blob |
//! | 20..24 | length of the sealed blob |
//! | 24..56 | its name |
//! | 56.. | the sealed blob, as it would lie in a file; then zeros |
//!
//! The time is not under the checksum: it is written over without a sync, and torn it costs the age and nothing else. A slot
//! that is destroyed is all zeros, and is used again only when that is on disk. One whose checksum does not fit was being
//! written when the power failed, and nobody was told of it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use effectd_contracts::digest::{hex, unhex};
use effectd_contracts::{Clock, SystemClock};

use super::{BlobError, lock};

/// The file with the slots of a shelf. No blob has such a name.
pub(super) const SLOTS: &str = "slots";
/// One block of the disk: it is written as a whole or, at worst, by its sectors.
pub(super) const SLOT_BYTES: usize = 4_096;
/// What a disk writes as a whole, at the least.
const SECTOR_BYTES: usize = 512;
const MARK: &[u8; 8] = b"effslot1";
const STORED_AT: usize = 8;
const CHECKSUM: usize = 16;
const LENGTH: usize = 20;
const NAME: usize = 24;
pub(super) const SLOT_HEAD_BYTES: usize = 56;
/// The longest sealed blob that has its place in a slot.
pub(super) const SLOT_SEALED_BYTES_MAX: u64 = (SLOT_BYTES - SLOT_HEAD_BYTES) as u64;
/// Slots that are paved at once at first. Later it is as many as there are.
const PAVED_FIRST: u32 = 64;
/// Most slots that are paved at once, and that are left free at the end of the file by a start.
const PAVED_MAX: u32 = 1_024;
/// What is read at once when a shelf is first needed.
const READ_BYTES: usize = 64 * SLOT_BYTES;

/// A slot with a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) number: u32,
    /// In nanoseconds since 1970.
    pub(super) stored_at: i64,
}

/// What was found in a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) slot: Slot,
    pub(super) name: String,
    /// How long the sealed blob is.
    pub(super) bytes: u64,
}

/// The slots of one shelf. Which of them are free is known to the shelf.
#[derive(Debug)]
pub(super) struct Slots {
    path: PathBuf,
    /// Open as long as anybody is at work: there may be more spaces than a process may have files open.
    open: Mutex<Weak<File>>,
    /// How many there are. Whoever paves more holds it meanwhile.
    paved: Mutex<u32>,
    syncs: Mutex<Syncs>,
    ended: Condvar,
}

/// Syncs of one file, one after the other.
#[derive(Debug, Default)]
struct Syncs {
    begun: u64,
    ended: u64,
    failed: u64,
    /// Why the last one failed that did.
    why: Option<BlobError>,
}

/// How many syncs had begun when something had been written. One that begins later stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written(u64);

/// How many syncs had failed when something was written, or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Since(u64);

impl Slots {
    /// The slots of a folder, what lies in them, and which are free. What is not whole is overwritten first.
    pub(super) fn read_all(folder: &Path) -> Result<(Self, Vec<Found>, BTreeSet<u32>), BlobError> {
        let path = folder.join(SLOTS);
        let (mut found, mut free, mut paved) = (HashMap::new(), BTreeSet::new(), 0);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
            Ok(file) => {
                paved = u32::try_from(file.metadata()?.len() / SLOT_BYTES as u64).unwrap_or(u32::MAX);
                free = read_slots(&file, paved, &mut found)?;
                // What a killed process wrote may not be on disk yet, nor the file's own name; from here on they are relied upon.
                file.sync_data()?;
                File::open(folder)?.sync_all()?;
                let used = found.values().map(|found: &Found| found.slot.number + 1).max();
                let kept = used.unwrap_or(0).saturating_add(PAVED_MAX);
                if kept < paved {
                    file.set_len(at(kept))?;
                    free.split_off(&kept);
                    paved = kept;
                }
            }
        }
        let slots = Self {
            path,
            open: Mutex::default(),
            paved: Mutex::new(paved),
            syncs: Mutex::default(),
            ended: Condvar::new(),
        };
        Ok((slots, found.into_values().collect(), free))
    }

    /// The file, which stays open as long as somebody has it.
    pub(super) fn file(&self) -> io::Result<Arc<File>> {
        let mut open = lock(&self.open);
        if let Some(file) = open.upgrade() {
            return Ok(file);
        }
        let file = Arc::new(OpenOptions::new().read(true).write(true).open(&self.path)?);
        *open = Arc::downgrade(&file);
        Ok(file)
    }

    /// A free slot. `free` has it, after it was given those that were paved just now; at first that is none.
    pub(super) fn take(&self, free: impl Fn(Range<u32>) -> Option<u32>) -> Result<u32, BlobError> {
        if let Some(number) = free(0..0) {
            return Ok(number);
        }
        let mut paved = lock(&self.paved);
        // Somebody else may have paved meanwhile.
        if let Some(number) = free(0..0) {
            return Ok(number);
        }
        let more = self.pave(*paved)?;
        *paved = more.end;
        free(more).ok_or(BlobError::Full)
    }

    /// Writes slots of zeros behind those that are there. The file is opened anew: whatever a sync of it is told must not be
    /// kept from those that stand for blobs.
    fn pave(&self, paved: u32) -> Result<Range<u32>, BlobError> {
        let more = paved..paved + paved.clamp(PAVED_FIRST, PAVED_MAX);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)?;
        let mut slots = more.clone();
        let written = slots.try_for_each(|number| file.write_all_at(&[0; SLOT_BYTES], at(number)));
        if let Err(error) = written.and_then(|()| file.sync_all()) {
            // Best effort: what is left of it is written over by the next who paves.
            let _ = file.set_len(at(paved));
            let error = BlobError::from(error);
            // It may have been about what others wrote, and nobody else is told.
            let mut syncs = lock(&self.syncs);
            syncs.failed += 1;
            syncs.why = Some(error.clone());
            return Err(error);
        }
        if paved == 0
            && let Some(folder) = self.path.parent()
        {
            File::open(folder)?.sync_all()?;
        }
        Ok(more)
    }

    /// Fills a slot. It is durable after a sync that began later.
    pub(super) fn write(&self, number: u32, name: &str, sealed: &[u8]) -> Result<Slot, BlobError> {
        let slot = Slot {
            number,
            stored_at: now(),
        };
        let filled = filled(name, slot.stored_at, sealed)?;
        self.file()?.write_all_at(&filled, at(number))?;
        Ok(slot)
    }

    /// The sealed blob in a slot, if it is the one of this name.
    pub(super) fn read(&self, number: u32, name: &str) -> Result<Vec<u8>, BlobError> {
        let mut bytes = vec![0; SLOT_BYTES];
        match self.file()?.read_exact_at(&mut bytes, at(number)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(BlobError::Damaged),
            read => read?,
        }
        let length = match lies_in(&bytes) {
            Some((found, _, length)) if found == name => length,
            Some(_) | None => return Err(BlobError::Damaged),
        };
        bytes.truncate(SLOT_HEAD_BYTES + length);
        bytes.drain(..SLOT_HEAD_BYTES);
        Ok(bytes)
    }

    /// It is used again: it goes to the end of the line, also after a restart. Nobody waits for that to be on disk.
    pub(super) fn touch(&self, number: u32) -> io::Result<Slot> {
        let slot = Slot {
            number,
            stored_at: now(),
        };
        let begin = at(number) + STORED_AT as u64;
        self.file()?.write_all_at(&slot.stored_at.to_be_bytes(), begin)?;
        Ok(slot)
    }

    /// Overwrites a slot. It is gone for good after a sync that began later.
    pub(super) fn wipe(&self, number: u32) -> io::Result<()> {
        self.file()?.write_all_at(&[0; SLOT_BYTES], at(number))
    }

    /// Best effort: makes a slot that could not be overwritten one that is not whole, so that the next start tries again.
    pub(super) fn spoil(&self, number: u32) {
        let spoiled = self
            .file()
            .and_then(|file| file.write_all_at(&[u8::MAX; SLOT_BYTES], at(number)));
        drop(spoiled);
    }

    /// To be asked for before something is written that a sync is to stand for.
    pub(super) fn since(&self) -> Since {
        Since(lock(&self.syncs).failed)
    }

    /// To be asked for after something was written.
    pub(super) fn written(&self) -> Written {
        Written(lock(&self.syncs).begun)
    }

    /// Whether a sync that began after this was written has ended, and none has failed.
    pub(super) fn is_over(&self, since: Since, written: Written) -> bool {
        let syncs = lock(&self.syncs);
        syncs.ended > written.0 && syncs.failed == since.0
    }

    /// Returns when what was written is on disk. One sync stands for all that was written before it began; whoever
    /// comes while one is under way that began before waits for the next.
    ///
    /// The kernel tells of a write that failed once, to whoever syncs next, and forgets the bytes. So a sync that failed
    /// stands also for those who had written by then and were about to wait for another.
    pub(super) fn sync(&self, since: Since, written: Written) -> Result<(), BlobError> {
        let file = self.file()?;
        let mut syncs = lock(&self.syncs);
        let mine = written.0 + 1;
        while syncs.ended < mine && syncs.begun > syncs.ended {
            syncs = self.ended.wait(syncs).unwrap_or_else(PoisonError::into_inner);
        }
        if syncs.ended < mine {
            syncs.begun += 1;
            drop(syncs);
            let synced = file.sync_data();
            syncs = lock(&self.syncs);
            syncs.ended = syncs.begun;
            if let Err(error) = synced {
                syncs.failed += 1;
                syncs.why = Some(error.into());
            }
            self.ended.notify_all();
        }
        match &syncs.why {
            Some(why) if syncs.failed != since.0 => Err(why.clone()),
            Some(_) | None => Ok(()),
        }
    }
}

/// Where a slot begins.
fn at(number: u32) -> u64 {
    u64::from(number) * SLOT_BYTES as u64
}

fn now() -> i64 {
    i64::try_from(SystemClock.now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Reads all slots; which of them are free. Of two blobs of one name, which a crash may leave, the newer one is kept.
fn read_slots(
    file: &File,
    paved: u32,
    found: &mut HashMap<String, Found>,
) -> Result<BTreeSet<u32>, BlobError> {
    let mut reader = BufReader::with_capacity(READ_BYTES, file);
    let (mut free, mut bytes) = (BTreeSet::new(), [0; SLOT_BYTES]);
    let wipe = |number: u32| file.write_all_at(&[0; SLOT_BYTES], at(number));
    for number in 0..paved {
        reader.read_exact(&mut bytes)?;
        let Some((name, stored_at, length)) = lies_in(&bytes) else {
            if bytes.iter().any(|byte| *byte != 0) {
                wipe(number)?;
            }
            free.insert(number);
            continue;
        };
        let this = Found {
            slot: Slot { number, stored_at },
            bytes: length as u64,
            name: name.clone(),
        };
        let older = match found.remove(&name) {
            Some(other) if other.slot.stored_at > stored_at => {
                found.insert(name, other);
                Some(this)
            }
            other => {
                found.insert(name, this);
                other
            }
        };
        if let Some(older) = older {
            wipe(older.slot.number)?;
            free.insert(older.slot.number);
        }
    }
    Ok(free)
}

/// A whole slot with a blob.
fn filled(name: &str, stored_at: i64, sealed: &[u8]) -> Result<[u8; SLOT_BYTES], BlobError> {
    let bad_name = || BlobError::Name(name.to_owned());
    let raw: [u8; 32] = unhex(name)
        .and_then(|raw| raw.try_into().ok())
        .ok_or_else(bad_name)?;
    let (size, max) = (sealed.len() as u64, SLOT_SEALED_BYTES_MAX);
    if size > max {
        return Err(BlobError::TooLarge { size, max });
    }
    let mut bytes = [0; SLOT_BYTES];
    let end = SLOT_HEAD_BYTES + sealed.len();
    bytes[..STORED_AT].copy_from_slice(MARK);
    bytes[STORED_AT..CHECKSUM].copy_from_slice(&stored_at.to_be_bytes());
    bytes[LENGTH..NAME].copy_from_slice(&(sealed.len() as u32).to_be_bytes());
    bytes[NAME..SLOT_HEAD_BYTES].copy_from_slice(&raw);
    bytes[SLOT_HEAD_BYTES..end].copy_from_slice(sealed);
    let checksum = crc32fast::hash(&bytes[LENGTH..end]);
    bytes[CHECKSUM..LENGTH].copy_from_slice(&checksum.to_be_bytes());
    Ok(bytes)
}

/// Which blob lies in a slot, since when, and how long it is; `None` if none does, or it is not whole.
pub(super) fn lies_in(bytes: &[u8]) -> Option<(String, i64, usize)> {
    let rest = bytes.strip_prefix(MARK)?;
    let (stored_at, rest) = rest.split_first_chunk()?;
    let (checksum, checked) = rest.split_first_chunk()?;
    let (length, rest) = checked.split_first_chunk()?;
    let length = u32::from_be_bytes(*length) as usize;
    let (name, sealed) = rest.split_first_chunk::<32>()?;
    sealed.get(..length)?;
    let checked = checked.get(..NAME - LENGTH + name.len() + length)?;
    let fits = crc32fast::hash(checked) == u32::from_be_bytes(*checksum);
    fits.then(|| (hex(name), i64::from_be_bytes(*stored_at), length))
}

/// The name in a slot, whole or not.
pub(super) fn name_in(slot: &[u8; SLOT_BYTES]) -> String {
    hex(&slot[NAME..SLOT_HEAD_BYTES])
}

/// Whether a slot that is not whole may have been cut off by a power failure while it was written: the disk writes whole sectors,
/// and one of those that the blob covers still has the zeros from before.
pub(super) fn was_cut_off(slot: &[u8; SLOT_BYTES]) -> bool {
    let length = slot[LENGTH..NAME]
        .iter()
        .fold(0, |all, byte| (all << 8) | usize::from(*byte));
    let covered = &slot[..(SLOT_HEAD_BYTES + length).min(SLOT_BYTES)];
    covered
        .chunks(SECTOR_BYTES)
        .any(|sector| sector.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests;
