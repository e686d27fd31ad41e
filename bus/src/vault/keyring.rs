//! The key files: how they are made, wrapped, rotated and destroyed.
//!
//! `device.key` is one line of text, so that it can be printed and put away. An epoch's file is `efek`, a version byte,
//! the first eight bytes of the device key's fingerprint, a nonce, and the epoch key under the device key.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use effectd_contracts::digest::{hex, unhex};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::Key;
use crate::error::StoreError;

const DEVICE_FILE: &str = "device.key";
const NEXT_FILE: &str = "device.key.next";
const EPOCHS_DIR: &str = "epochs";
const DEVICE_MARK: &str = "effectd-device-key-1:";
const EPOCH_MARK: &[u8; 5] = b"efek\x01";
const EPOCH_FILE_BYTES: usize = 5 + 8 + 24 + 32 + 16;
const ADVICE: &str = "Restore device.key and its epochs from the backup. Without one, move device.key and epochs/ aside: then \
                      decisions, holds and dead letters that were sealed can no longer be read; receipts and events stay.";

pub(crate) enum Keyring {
    Memory,
    Files { directory: PathBuf, device: Key },
}

pub(crate) struct Ring {
    pub(crate) keyring: Keyring,
    pub(crate) epochs: Vec<(u32, Key)>,
    /// The device key was made just now.
    pub(crate) is_new: bool,
}

pub(crate) fn broken(what: String) -> StoreError {
    StoreError::Keys { what, advice: ADVICE }
}

pub(crate) fn random(bytes: &mut [u8]) -> Result<(), StoreError> {
    getrandom::fill(bytes).map_err(|error| broken(format!("the system gives no randomness: {error}")))
}

fn random_key() -> Result<Key, StoreError> {
    let mut key: Key = Zeroizing::new([0; 32]);
    random(key.as_mut_slice())?;
    Ok(key)
}

impl Keyring {
    /// Opens the directory, finishing a rotation that was cut off, and reads every epoch's key.
    pub(crate) fn open(directory: PathBuf, accept_loss: bool) -> Result<Ring, StoreError> {
        let epochs_dir = directory.join(EPOCHS_DIR);
        private_dir(&directory)?;
        private_dir(&epochs_dir)?;
        let epochs = list_epochs(&epochs_dir)?;
        let next = read_device(&directory.join(NEXT_FILE))?;
        let device = match read_device(&directory.join(DEVICE_FILE)) {
            // The last step of a rotation wipes the old key before it puts the new one in its place.
            Err(_) if next.is_some() => None,
            device => device?,
        };
        let is_new = device.is_none() && next.is_none();
        let device = match (device, next) {
            (device, Some(next)) => {
                finish_rotation(&directory, device.as_ref(), &next)?;
                next
            }
            (Some(device), None) => device,
            (None, None) if epochs.is_empty() || accept_loss => {
                epochs
                    .iter()
                    .try_for_each(|epoch| shred(&epoch_path(&epochs_dir, *epoch)))?;
                let device = random_key()?;
                write_device(&directory.join(DEVICE_FILE), &device)?;
                device
            }
            (None, None) => {
                return Err(broken(
                    "device.key is missing, but there are epoch keys that it wraps".into(),
                ));
            }
        };
        let read = list_epochs(&epochs_dir)?
            .into_iter()
            .map(|epoch| Ok((epoch, unwrap_epoch(&epochs_dir, epoch, &device)?)))
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Ring {
            keyring: Keyring::Files { directory, device },
            epochs: read,
            is_new,
        })
    }

    /// Makes the key of an epoch; it is on disk when this returns.
    pub(crate) fn create(&self, epoch: u32) -> Result<Key, StoreError> {
        let key = random_key()?;
        if let Keyring::Files { directory, device } = self {
            wrap_epoch(&directory.join(EPOCHS_DIR), epoch, &key, device)?;
        }
        Ok(key)
    }

    /// Overwrites and removes the key of an epoch.
    pub(crate) fn destroy(&self, epoch: u32) -> Result<(), StoreError> {
        match self {
            Keyring::Memory => Ok(()),
            Keyring::Files { directory, .. } => shred(&epoch_path(&directory.join(EPOCHS_DIR), epoch)),
        }
    }
}

/// Replaces the device key, and wraps every epoch key anew. For a store that nobody has open. If it is cut off, the next
/// open finishes it: until the last step both keys are there.
pub fn rotate_device_key(directory: &Path) -> Result<(), StoreError> {
    // Opening finishes an earlier rotation first.
    let Ring { keyring, .. } = Keyring::open(directory.to_owned(), false)?;
    let Keyring::Files { device, .. } = keyring else {
        return Ok(());
    };
    let next = random_key()?;
    write_device(&directory.join(NEXT_FILE), &next)?;
    finish_rotation(directory, Some(&device), &next)
}

fn finish_rotation(directory: &Path, device: Option<&Key>, next: &Key) -> Result<(), StoreError> {
    let epochs_dir = directory.join(EPOCHS_DIR);
    for epoch in list_epochs(&epochs_dir)? {
        // Those that the old key does not open are wrapped by the new one already.
        if let Some(Ok(key)) = device.map(|device| unwrap_epoch(&epochs_dir, epoch, device)) {
            wrap_epoch(&epochs_dir, epoch, &key, next)?;
        }
    }
    overwrite(&directory.join(DEVICE_FILE))?;
    fs::rename(directory.join(NEXT_FILE), directory.join(DEVICE_FILE))
        .map_err(|error| failed(directory, &error))?;
    sync_dir(directory)
}

fn wrap_epoch(epochs_dir: &Path, epoch: u32, key: &Key, device: &Key) -> Result<(), StoreError> {
    let mut nonce = [0; 24];
    random(&mut nonce)?;
    let wrapped = XChaCha20Poly1305::new_from_slice(device.as_slice())
        .ok()
        .and_then(|cipher| {
            let payload = Payload {
                msg: key.as_slice(),
                aad: &epoch_bound(epoch),
            };
            cipher.encrypt(&XNonce::from(nonce), payload).ok()
        })
        .ok_or_else(|| broken("an epoch key could not be wrapped".into()))?;
    let mut bytes = EPOCH_MARK.to_vec();
    bytes.extend_from_slice(&fingerprint(device));
    bytes.extend_from_slice(&nonce);
    bytes.extend_from_slice(&wrapped);
    write_new(&epoch_path(epochs_dir, epoch), &bytes)
}

fn unwrap_epoch(epochs_dir: &Path, epoch: u32, device: &Key) -> Result<Key, StoreError> {
    let path = epoch_path(epochs_dir, epoch);
    let bytes = fs::read(&path).map_err(|error| failed(&path, &error))?;
    let wrong = |what: &str| broken(format!("{}: {what}", name(&path)));
    if bytes.len() != EPOCH_FILE_BYTES || &bytes[..5] != EPOCH_MARK {
        return Err(wrong("not an epoch key of a format known here"));
    }
    if bytes[5..13] != fingerprint(device) {
        return Err(wrong("wrapped by another device key"));
    }
    let nonce = XNonce::try_from(&bytes[13..37]).map_err(|_| wrong("cut off"))?;
    let payload = Payload {
        msg: &bytes[37..],
        aad: &epoch_bound(epoch),
    };
    let opened = XChaCha20Poly1305::new_from_slice(device.as_slice())
        .ok()
        .and_then(|cipher| cipher.decrypt(&nonce, payload).ok())
        .map(Zeroizing::new)
        .ok_or_else(|| wrong("changed since it was written"))?;
    let mut key: Key = Zeroizing::new([0; 32]);
    key.copy_from_slice(&opened);
    Ok(key)
}

fn epoch_bound(epoch: u32) -> Vec<u8> {
    let mut bound = b"effectd epoch key 1".to_vec();
    bound.extend_from_slice(&epoch.to_be_bytes());
    bound
}

fn fingerprint(device: &Key) -> [u8; 8] {
    let mut hasher = Sha256::new();
    hasher.update(b"effectd device key fingerprint 1");
    hasher.update(device.as_slice());
    let mut print = [0; 8];
    print.copy_from_slice(&hasher.finalize()[..8]);
    print
}

fn epoch_path(epochs_dir: &Path, epoch: u32) -> PathBuf {
    epochs_dir.join(format!("{epoch}.key"))
}

fn list_epochs(epochs_dir: &Path) -> Result<Vec<u32>, StoreError> {
    let mut epochs = Vec::new();
    for entry in fs::read_dir(epochs_dir).map_err(|error| failed(epochs_dir, &error))? {
        let name = entry.map_err(|error| failed(epochs_dir, &error))?.file_name();
        // Anything else is a file that was being written when the process died; it was never used.
        if let Some(epoch) = name
            .to_str()
            .and_then(|name| name.strip_suffix(".key"))
            .and_then(|n| n.parse().ok())
        {
            epochs.push(epoch);
        }
    }
    epochs.sort_unstable();
    Ok(epochs)
}

fn read_device(path: &Path) -> Result<Option<Key>, StoreError> {
    let text = match fs::read(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, &error)),
    };
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let bytes = text
        .trim_end()
        .strip_prefix(DEVICE_MARK)
        .and_then(unhex)
        .map(Zeroizing::new);
    let bytes = bytes.filter(|bytes| bytes.len() == 32);
    let bytes = bytes.ok_or_else(|| broken(format!("{} is not a device key", name(path))))?;
    let mut key: Key = Zeroizing::new([0; 32]);
    key.copy_from_slice(&bytes);
    Ok(Some(key))
}

fn write_device(path: &Path, key: &Key) -> Result<(), StoreError> {
    let text = Zeroizing::new(format!("{DEVICE_MARK}{}\n", *Zeroizing::new(hex(key.as_slice()))));
    write_new(path, text.as_bytes())
}

/// Writes a file so that it is there as a whole or not at all, and only for its owner.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let partial = path.with_extension("partial");
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().map_err(|error| failed(path, &error))?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn overwrite(path: &Path) -> Result<(), StoreError> {
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        file.write_all(&vec![0; len])?;
        file.sync_all()
    };
    match write() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| failed(path, &error)),
    }
}

fn shred(path: &Path) -> Result<(), StoreError> {
    overwrite(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path, &error)),
        Ok(()) => path.parent().map_or(Ok(()), sync_dir),
    }
}

/// Makes a directory that only its owner may enter, and makes its name durable. One that others may enter is narrowed.
pub(crate) fn private_dir(path: &Path) -> Result<(), StoreError> {
    if !path.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| failed(path, &error))?;
        return path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .map_or(Ok(()), sync_dir);
    }
    let narrow = || -> std::io::Result<()> {
        let mut permissions = fs::metadata(path)?.permissions();
        if permissions.mode() & 0o077 != 0 {
            permissions.set_mode(permissions.mode() & !0o077);
            fs::set_permissions(path, permissions)?;
        }
        Ok(())
    };
    narrow().map_err(|error| failed(path, &error))
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed(path, &error))
}

pub(crate) fn failed(path: &Path, error: &std::io::Error) -> StoreError {
    tracing::warn!(path = %path.display(), %error, "a file of the state cannot be used");
    if error.kind() == ErrorKind::StorageFull {
        return StoreError::Full;
    }
    if error.kind() == ErrorKind::ReadOnlyFilesystem {
        return StoreError::ReadOnly;
    }
    StoreError::Unavailable {
        reason: format!("{}: {error}", name(path)),
    }
}

/// A file of the state by its name: who reads an error at the door must not learn where the state lies.
pub(crate) fn name(path: &Path) -> std::path::Display<'_> {
    path.file_name()
        .map_or(Path::new("the state"), Path::new)
        .display()
}
