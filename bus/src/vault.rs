//! The vault: payloads that may quote parameters are encrypted with keys that can be destroyed.
//!
//! Every hour has an *epoch key* in its own file, wrapped by the *device key*. Payloads are sealed with a key derived from
//! it. When all actions of an epoch have ended, its key file is overwritten and removed: from then on nobody can read its
//! payloads, even with the device key and all files. Neither the journal nor its backups are rewritten for that.

pub(crate) mod keyring;

pub use keyring::DeviceKeyChange;

use std::collections::BTreeMap;
use std::path::PathBuf;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use effectd_contracts::Timestamp;
use hkdf::Hkdf;
use parking_lot::{Mutex, RwLock};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::error::StoreError;
use crate::limits::{EPOCH_SECONDS, EPOCHS_AHEAD_MAX};
use keyring::{Keyring, Ring};

/// A key's bytes, wiped when dropped.
pub(crate) type Key = Zeroizing<[u8; 32]>;

const SEALED_VERSION: u8 = 1;
const NONCE_BYTES: usize = 24;
const SEALED_MARK: &[u8] = b"effectd sealed 1";
const DATA_KEY_INFO: &[u8] = b"effectd data key 1";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EpochReport {
    /// Epochs whose keys are destroyed.
    pub closed: Vec<u32>,
    /// Epochs with actions in progress.
    pub busy: Vec<u32>,
    /// Entries and dead letters that were sealed again under the current epoch.
    pub resealed: u64,
}

/// What a payload is. Bytes sealed as one kind do not open as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Event,
    Intent,
    Entry,
    /// The detail of a dead letter or a nack.
    Detail,
    /// The payload of a dead letter.
    Letter,
    Tries,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Event => 1,
            Kind::Intent => 2,
            Kind::Entry => 3,
            Kind::Detail => 4,
            Kind::Letter => 5,
            Kind::Tries => 6,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The epoch whose key opens them.
    pub epoch: u32,
    /// Version, nonce, ciphertext and tag.
    pub bytes: Vec<u8>,
}

pub struct Vault {
    /// Locked after `ciphers` where both are: a rotation must not meet a key that is being made or destroyed.
    keyring: Mutex<Keyring>,
    ciphers: RwLock<BTreeMap<u32, XChaCha20Poly1305>>,
    is_new: bool,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault")
    }
}

impl Vault {
    /// Keys in memory, for the memory engine.
    pub fn in_memory() -> Self {
        Vault { keyring: Mutex::new(Keyring::Memory), ciphers: RwLock::default(), is_new: false }
    }

    /// Keys in a directory, created on first use. With `accept_loss`, a lost device key is replaced: earlier payloads stay
    /// unreadable.
    pub fn open(directory: PathBuf, accept_loss: bool) -> Result<Self, StoreError> {
        let Ring { keyring, epochs, is_new } = Keyring::open(directory, accept_loss)?;
        let ciphers = epochs.into_iter().map(|(epoch, key)| Ok((epoch, cipher(&key)?)));
        let ciphers = RwLock::new(ciphers.collect::<Result<_, StoreError>>()?);
        Ok(Vault { keyring: Mutex::new(keyring), ciphers, is_new })
    }

    /// Called when the store has payloads already. If the device key is new, the old epoch keys are lost, perhaps one of this
    /// hour; with a new key for the same hour, old payloads would look damaged. So new payloads use the next hour's key.
    pub(crate) fn follows(&self, now: Timestamp) -> Result<(), StoreError> {
        if !self.is_new {
            return Ok(());
        }
        let epoch = Self::epoch_of(now).saturating_add(1);
        let mut ciphers = self.ciphers.write();
        let key = self.keyring.lock().create(epoch)?;
        ciphers.insert(epoch, cipher(&key)?);
        Ok(())
    }

    pub fn epoch_of(time: Timestamp) -> u32 {
        u32::try_from(time.as_second().div_euclid(EPOCH_SECONDS)).unwrap_or(0)
    }

    pub fn epochs(&self) -> Vec<u32> {
        self.ciphers.read().keys().copied().collect()
    }

    /// Seals bytes under the current epoch. They open only with the same `context`, for example an action's id.
    pub fn seal(
        &self,
        now: Timestamp,
        kind: Kind,
        context: &str,
        bytes: &[u8],
    ) -> Result<Sealed, StoreError> {
        let wanted = Self::epoch_of(now);
        {
            let ciphers = self.ciphers.read();
            // A clock that is set back does not use an older epoch.
            if let Some((epoch, cipher)) = ciphers.last_key_value()
                && *epoch >= wanted
            {
                return seal(cipher, *epoch, kind, context, bytes);
            }
        }
        let mut ciphers = self.ciphers.write();
        let current = ciphers.last_key_value().map(|(epoch, _)| *epoch).filter(|epoch| *epoch >= wanted);
        let epoch = current.unwrap_or(wanted);
        if current.is_none() {
            let key = self.keyring.lock().create(epoch)?;
            ciphers.insert(epoch, cipher(&key)?);
        }
        let cipher = ciphers.get(&epoch).ok_or(StoreError::Closed)?;
        seal(cipher, epoch, kind, context, bytes)
    }

    /// Begins a new epoch now and returns it. Later payloads are sealed under it or a later one, so the keys of all earlier
    /// epochs can be destroyed.
    pub fn begin_epoch(&self, now: Timestamp) -> Result<u32, StoreError> {
        let hour = Self::epoch_of(now);
        let mut ciphers = self.ciphers.write();
        let next = ciphers.last_key_value().map_or(0, |(epoch, _)| *epoch + 1);
        if next > hour.saturating_add(EPOCHS_AHEAD_MAX) {
            return Err(StoreError::unavailable(
                "too many sealing epochs were begun by hand; try again in an hour",
            ));
        }
        let epoch = next.max(hour);
        let key = self.keyring.lock().create(epoch)?;
        ciphers.insert(epoch, cipher(&key)?);
        Ok(epoch)
    }

    /// Opens sealed bytes; `None` if the epoch's key is destroyed.
    pub fn open_sealed(
        &self,
        epoch: u32,
        kind: Kind,
        context: &str,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let ciphers = self.ciphers.read();
        let Some(cipher) = ciphers.get(&epoch) else {
            return Ok(None);
        };
        let damaged = || StoreError::Damaged {
            what: format!("a payload of epoch {epoch} cannot be decrypted: it was changed or moved"),
            advice: "run `effectd store check`",
        };
        let (version, rest) = bytes.split_first().ok_or_else(damaged)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_BYTES).ok_or_else(damaged)?;
        if *version != SEALED_VERSION {
            return Err(damaged());
        }
        let nonce = XNonce::try_from(nonce).map_err(|_| damaged())?;
        let bound = associated(epoch, kind, context);
        cipher.decrypt(&nonce, Payload { msg: sealed, aad: &bound }).map(Some).map_err(|_| damaged())
    }

    /// Replaces the device key; payloads stay readable.
    pub fn rotate_device_key(&self) -> Result<DeviceKeyChange, StoreError> {
        self.keyring.lock().rotate()
    }

    /// Destroys an epoch's key, on disk and then in memory: if the disk fails, the epoch still counts as open, and a later
    /// call tries again. Idempotent.
    pub fn destroy(&self, epoch: u32) -> Result<(), StoreError> {
        self.keyring.lock().destroy(epoch)?;
        self.ciphers.write().remove(&epoch);
        Ok(())
    }
}

fn cipher(epoch_key: &Key) -> Result<XChaCha20Poly1305, StoreError> {
    let mut data_key: Key = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(None, epoch_key.as_slice())
        .expand(DATA_KEY_INFO, data_key.as_mut_slice())
        .map_err(|_| keyring::broken("a data key could not be derived".into()))?;
    XChaCha20Poly1305::new_from_slice(data_key.as_slice())
        .map_err(|_| keyring::broken("a data key has the wrong length".into()))
}

fn seal(
    cipher: &XChaCha20Poly1305,
    epoch: u32,
    kind: Kind,
    context: &str,
    bytes: &[u8],
) -> Result<Sealed, StoreError> {
    let mut nonce = [0; NONCE_BYTES];
    keyring::random(&mut nonce)?;
    let bound = associated(epoch, kind, context);
    let sealed = cipher
        .encrypt(&XNonce::from(nonce), Payload { msg: bytes, aad: &bound })
        .map_err(|_| keyring::broken("sealing failed".into()))?;
    let mut out = Vec::with_capacity(1 + NONCE_BYTES + sealed.len());
    out.push(SEALED_VERSION);
    out.extend_from_slice(&nonce);
    out.extend_from_slice(&sealed);
    Ok(Sealed { epoch, bytes: out })
}

fn associated(epoch: u32, kind: Kind, context: &str) -> Vec<u8> {
    let mut bound = SEALED_MARK.to_vec();
    bound.push(kind.byte());
    bound.extend_from_slice(&epoch.to_be_bytes());
    bound.extend_from_slice(context.as_bytes());
    bound
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn hour(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * EPOCH_SECONDS).unwrap()
    }

    #[test]
    fn sealed_bytes_open_only_where_they_belong() {
        let vault = Vault::in_memory();
        let sealed = vault.seal(hour(5), Kind::Intent, "action-1", b"secret").unwrap();
        assert_eq!(sealed.epoch, 5);
        assert!(!sealed.bytes.windows(6).any(|window| window == b"secret"));
        let open = |epoch, kind, context| vault.open_sealed(epoch, kind, context, &sealed.bytes);
        assert_eq!(open(5, Kind::Intent, "action-1").unwrap().as_deref(), Some(&b"secret"[..]));
        assert!(open(5, Kind::Intent, "action-2").is_err());
        assert!(open(5, Kind::Event, "action-1").is_err());
        assert_eq!(open(6, Kind::Intent, "action-1"), Ok(None));
        let mut changed = sealed.bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(vault.open_sealed(5, Kind::Intent, "action-1", &changed).is_err());
        for len in 0..sealed.bytes.len() {
            assert!(vault.open_sealed(5, Kind::Intent, "action-1", &sealed.bytes[..len]).is_err());
        }
    }

    #[test]
    fn a_clock_that_goes_back_stays_in_the_newest_epoch() {
        let vault = Vault::in_memory();
        vault.seal(hour(9), Kind::Event, "a", b"x").unwrap();
        assert_eq!(vault.seal(hour(3), Kind::Event, "a", b"x").unwrap().epoch, 9);
    }

    #[test]
    fn keys_survive_and_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        let sealed = Vault::open(keys.clone(), false).unwrap().seal(hour(1), Kind::Entry, "k", b"v").unwrap();
        for file in [keys.join("device.key"), keys.join("epochs/1.key")] {
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        }
        for dir in [keys.clone(), keys.join("epochs")] {
            assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700, "{dir:?}");
        }
        let again = Vault::open(keys, false).unwrap();
        assert_eq!(
            again.open_sealed(1, Kind::Entry, "k", &sealed.bytes).unwrap().as_deref(),
            Some(&b"v"[..])
        );
    }

    #[test]
    fn a_destroyed_epoch_stays_destroyed() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        let old = vault.seal(hour(1), Kind::Entry, "k", b"v").unwrap();
        let new = vault.seal(hour(2), Kind::Entry, "k", b"v").unwrap();
        vault.destroy(1).unwrap();
        vault.destroy(1).unwrap();
        drop(vault);
        let again = Vault::open(dir.path().to_owned(), false).unwrap();
        assert_eq!(again.open_sealed(1, Kind::Entry, "k", &old.bytes), Ok(None));
        assert!(again.open_sealed(2, Kind::Entry, "k", &new.bytes).unwrap().is_some());
    }

    #[test]
    fn a_key_that_cannot_be_destroyed_yet_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        vault.seal(hour(1), Kind::Entry, "k", b"v").unwrap();
        vault.seal(hour(2), Kind::Entry, "k", b"v").unwrap();
        // A directory in the file's place can neither be overwritten nor removed as a file.
        let (file, aside) = (dir.path().join("epochs/1.key"), dir.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        std::fs::create_dir(&file).unwrap();
        vault.destroy(1).unwrap_err();
        assert_eq!(vault.epochs(), [1, 2], "somebody has to try again");
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
        // With a file in the directory's place, nobody can tell whether the key exists.
        let epochs = dir.path().join("epochs");
        std::fs::rename(&epochs, &aside).unwrap();
        std::fs::write(&epochs, b"").unwrap();
        vault.destroy(1).unwrap_err();
        assert_eq!(vault.epochs(), [1, 2], "an unknown state is not a destroyed key");
        std::fs::remove_file(&epochs).unwrap();
        std::fs::rename(&aside, &epochs).unwrap();
        vault.destroy(1).unwrap();
        assert_eq!((vault.epochs(), file.exists()), (vec![2], false));
    }

    #[test]
    fn a_lost_device_key_is_refused_until_the_loss_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let sealed = {
            let vault = Vault::open(dir.path().to_owned(), false).unwrap();
            vault.seal(hour(1), Kind::Entry, "k", b"v").unwrap()
        };
        std::fs::remove_file(dir.path().join("device.key")).unwrap();
        assert!(matches!(Vault::open(dir.path().to_owned(), false), Err(StoreError::Keys { .. })));
        let anew = Vault::open(dir.path().to_owned(), true).unwrap();
        assert_eq!(anew.open_sealed(1, Kind::Entry, "k", &sealed.bytes), Ok(None));
        anew.follows(hour(1)).unwrap();
        let fresh = anew.seal(hour(1), Kind::Entry, "k", b"w").unwrap();
        // No other key takes the lost one's place, not even in the same hour.
        assert_eq!(fresh.epoch, 2);
        assert_eq!(anew.open_sealed(1, Kind::Entry, "k", &sealed.bytes), Ok(None));
        assert!(anew.open_sealed(fresh.epoch, Kind::Entry, "k", &fresh.bytes).unwrap().is_some());
    }

    #[test]
    fn another_device_key_does_not_open_the_epochs() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        drop(
            Vault::open(dir.path().to_owned(), false).unwrap().seal(hour(1), Kind::Entry, "k", b"v").unwrap(),
        );
        drop(Vault::open(other.path().to_owned(), false).unwrap());
        std::fs::copy(other.path().join("device.key"), dir.path().join("device.key")).unwrap();
        assert!(matches!(Vault::open(dir.path().to_owned(), false), Err(StoreError::Keys { .. })));
    }

    #[test]
    fn a_rotation_keeps_what_is_sealed_and_changes_the_device_key() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device.key");
        let sealed =
            Vault::open(dir.path().to_owned(), false).unwrap().seal(hour(1), Kind::Entry, "k", b"v").unwrap();
        let before = std::fs::read(&device).unwrap();
        let change = Vault::open(dir.path().to_owned(), false).unwrap().rotate_device_key().unwrap();
        assert_ne!(change.before, change.after);
        assert_ne!(std::fs::read(&device).unwrap(), before);
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        assert!(vault.open_sealed(1, Kind::Entry, "k", &sealed.bytes).unwrap().is_some());
        drop(vault);
        // The old device key opens nothing any more.
        std::fs::write(&device, before).unwrap();
        assert!(matches!(Vault::open(dir.path().to_owned(), false), Err(StoreError::Keys { .. })));
    }

    #[test]
    fn a_rotation_killed_at_any_step_is_finished_on_open() {
        // The files in the order in which a rotation writes them.
        let steps = ["device.key.next", "epochs/1.key", "epochs/2.key", "device.key"];
        for killed_after in 0..=steps.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            let vault = Vault::open(dir.path().to_owned(), false).unwrap();
            let sealed = [1, 2].map(|n| vault.seal(hour(n), Kind::Entry, "k", b"v").unwrap());
            let before = ["device.key", "epochs/1.key", "epochs/2.key"].map(|name| (name, path(name)));
            let before = before.map(|(name, path)| (name, std::fs::read(path).unwrap()));
            vault.rotate_device_key().unwrap();
            drop(vault);
            // The rename is the last step of all; take back what comes after the kill.
            std::fs::rename(path("device.key"), path("device.key.next")).unwrap();
            let done = &steps[..killed_after];
            for (name, old) in &before {
                // The old device key is overwritten before the new one takes its name.
                let blank = *name == "device.key" && done.contains(name);
                if blank || !done.contains(name) {
                    std::fs::write(path(name), if blank { vec![0; old.len()] } else { old.clone() }).unwrap();
                }
            }
            if !done.contains(&"device.key.next") {
                std::fs::rename(path("device.key.next"), path("device.key.partial")).unwrap();
            }
            for _ in 0..2 {
                let vault = Vault::open(dir.path().to_owned(), false).unwrap();
                for (epoch, sealed) in [1, 2].into_iter().zip(&sealed) {
                    let opened = vault.open_sealed(epoch, Kind::Entry, "k", &sealed.bytes).unwrap();
                    assert_eq!(opened.as_deref(), Some(&b"v"[..]), "epoch {epoch} after {done:?}");
                }
                assert!(!path("device.key.next").exists(), "{done:?}");
                vault.rotate_device_key().unwrap();
            }
        }
    }

    #[test]
    fn a_kill_while_a_key_is_destroyed_does_not_stop_the_next_open() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        let [one, two] = [1, 2].map(|n| vault.seal(hour(n), Kind::Entry, "k", b"v").unwrap());
        drop(vault);
        let file = dir.path().join("epochs/1.key");
        std::fs::write(&file, vec![0; std::fs::read(&file).unwrap().len()]).unwrap();
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        assert_eq!(vault.open_sealed(1, Kind::Entry, "k", &one.bytes), Ok(None));
        assert!(vault.open_sealed(2, Kind::Entry, "k", &two.bytes).unwrap().is_some());
        assert!(!file.exists());
    }

    #[test]
    fn a_rotation_that_failed_is_finished_and_loses_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device.key");
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        let one = vault.seal(hour(1), Kind::Entry, "k", b"1").unwrap();
        // The last step fails: the old key cannot be overwritten.
        std::fs::remove_file(&device).unwrap();
        std::fs::create_dir(&device).unwrap();
        assert!(vault.rotate_device_key().is_err());
        let two = vault.seal(hour(2), Kind::Entry, "k", b"2").unwrap();
        std::fs::remove_dir(&device).unwrap();
        let opens = |vault: &Vault| {
            for (epoch, sealed) in [(1, &one), (2, &two)] {
                assert!(vault.open_sealed(epoch, Kind::Entry, "k", &sealed.bytes).unwrap().is_some());
            }
        };
        opens(&Vault::open(dir.path().to_owned(), false).unwrap());
        // A key that neither device key opens keeps the old one.
        let before = std::fs::read(&device).unwrap();
        let vault = Vault::open(dir.path().to_owned(), false).unwrap();
        let intact = std::fs::read(dir.path().join("epochs/2.key")).unwrap();
        std::fs::write(dir.path().join("epochs/2.key"), b"damaged").unwrap();
        assert!(vault.rotate_device_key().is_err());
        assert_eq!(std::fs::read(&device).unwrap(), before);
        std::fs::write(dir.path().join("epochs/2.key"), intact).unwrap();
        vault.rotate_device_key().unwrap();
        assert_ne!(std::fs::read(&device).unwrap(), before);
        assert!(!dir.path().join("device.key.next").exists());
        opens(&Vault::open(dir.path().to_owned(), false).unwrap());
    }
}
