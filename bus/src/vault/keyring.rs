//! The key files: created, wrapped, rotated and destroyed.
//!
//! `device.key` is one line of text that can be printed. An epoch's file is `efek`, a version byte, the first eight
//! bytes of the device key's fingerprint, a nonce, and the epoch key encrypted with the device key.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use effectd_contracts::digest::{hex, unhex};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::Key;
use crate::error::StoreError;
use crate::files::{file_name, io_error, numbered, private_dir, remove_file, sync_dir, write_new};

const DEVICE_FILE: &str = "device.key";
const NEXT_FILE: &str = "device.key.next";
const EPOCHS_DIR: &str = "epochs";
const DEVICE_MARK: &str = "effectd-device-key-1:";
const EPOCH_MARK: &[u8; 5] = b"efek\x01";
const EPOCH_FILE_BYTES: usize = 5 + 8 + 24 + 32 + 16;
const ADVICE: &str = "restore device.key and its epochs from the backup; without one, move device.key and epochs/ aside: then sealed decisions, holds, sessions, secrets and dead letters can no longer be read; receipts and \
                      events remain";

pub(crate) enum Keyring {
    Memory,
    Files { directory: PathBuf, device: Key },
}

/// A replaced device key, and the new one: the beginnings of their digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceKeyChange {
    pub before: String,
    pub after: String,
}

pub(crate) struct Ring {
    pub(crate) keyring: Keyring,
    pub(crate) epochs: Vec<(u32, Key)>,
    /// The device key was just created.
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
    /// Opens the directory, finishes an interrupted rotation, and reads every epoch key.
    pub(crate) fn open(directory: PathBuf, accept_loss: bool) -> Result<Ring, StoreError> {
        let epochs_dir = directory.join(EPOCHS_DIR);
        private_dir(&directory)?;
        private_dir(&epochs_dir)?;
        finish_destruction(&epochs_dir)?;
        let epochs = list_epochs(&epochs_dir)?;
        let next = read_device(&directory.join(NEXT_FILE))?;
        let device = match read_device(&directory.join(DEVICE_FILE)) {
            // The last step of a rotation overwrites the old key before it renames the new one.
            Err(_) if next.is_some() => None,
            device => device?,
        };
        let is_new = device.is_none() && next.is_none();
        let device = match (device, next) {
            (device, Some(next)) => {
                wrap_all(&directory, device.as_ref(), &next)?;
                put_next_in_place(&directory)?;
                next
            }
            (Some(device), None) => device,
            (None, None) if epochs.is_empty() || accept_loss => {
                epochs.iter().try_for_each(|epoch| shred(&epoch_path(&epochs_dir, *epoch)))?;
                let device = random_key()?;
                write_device(&directory.join(DEVICE_FILE), &device)?;
                device
            }
            (None, None) => {
                return Err(broken("device.key is missing, but epoch keys exist that it wraps".into()));
            }
        };
        let read = list_epochs(&epochs_dir)?
            .into_iter()
            .map(|epoch| Ok((epoch, unwrap_epoch(&epochs_dir, epoch, &device)?)))
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Ring { keyring: Keyring::Files { directory, device }, epochs: read, is_new })
    }

    /// Creates the key of an epoch, durably.
    pub(crate) fn create(&self, epoch: u32) -> Result<Key, StoreError> {
        let key = random_key()?;
        if let Keyring::Files { directory, device } = self {
            wrap_epoch(&directory.join(EPOCHS_DIR), epoch, &key, device)?;
        }
        Ok(key)
    }

    /// Replaces the device key, and wraps every epoch key with the new one. Both keys exist until all are wrapped; the next open,
    /// or the next call, finishes an interrupted rotation.
    pub(crate) fn rotate(&mut self) -> Result<DeviceKeyChange, StoreError> {
        let Keyring::Files { directory, device } = self else {
            return Err(StoreError::Invalid("the keys of this store are in memory only".to_owned()));
        };
        let path = directory.join(NEXT_FILE);
        let next = match read_device(&path)? {
            Some(next) => next,
            None => {
                let next = random_key()?;
                write_device(&path, &next)?;
                next
            }
        };
        let change = DeviceKeyChange { before: hex(&fingerprint(device)), after: hex(&fingerprint(&next)) };
        wrap_all(directory, Some(&*device), &next)?;
        // Now, and not after the last step: if that fails, the next open has only the new key, and must open new epochs with it.
        *device = next;
        put_next_in_place(directory)?;
        Ok(change)
    }

    /// Overwrites and removes the key of an epoch.
    pub(crate) fn destroy(&self, epoch: u32) -> Result<(), StoreError> {
        match self {
            Keyring::Memory => Ok(()),
            Keyring::Files { directory, .. } => shred(&epoch_path(&directory.join(EPOCHS_DIR), epoch)),
        }
    }
}

/// Wraps every epoch key with the next device key. Fails if neither key opens one of them: then the old key must stay.
fn wrap_all(directory: &Path, device: Option<&Key>, next: &Key) -> Result<(), StoreError> {
    let epochs_dir = directory.join(EPOCHS_DIR);
    for epoch in list_epochs(&epochs_dir)? {
        match device.map(|device| unwrap_epoch(&epochs_dir, epoch, device)) {
            Some(Ok(key)) => wrap_epoch(&epochs_dir, epoch, &key, next)?,
            // Wrapped already by an attempt that was interrupted.
            Some(Err(_)) | None => drop(unwrap_epoch(&epochs_dir, epoch, next)?),
        }
    }
    Ok(())
}

/// Destroys the old device key; the next one takes its name.
fn put_next_in_place(directory: &Path) -> Result<(), StoreError> {
    overwrite(&directory.join(DEVICE_FILE))?;
    fs::rename(directory.join(NEXT_FILE), directory.join(DEVICE_FILE))
        .map_err(|error| io_error(directory, error))?;
    sync_dir(directory)
}

fn wrap_epoch(epochs_dir: &Path, epoch: u32, key: &Key, device: &Key) -> Result<(), StoreError> {
    let mut nonce = [0; 24];
    random(&mut nonce)?;
    let wrapped = XChaCha20Poly1305::new_from_slice(device.as_slice())
        .ok()
        .and_then(|cipher| {
            let payload = Payload { msg: key.as_slice(), aad: &epoch_bound(epoch) };
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
    let bytes = fs::read(&path).map_err(|error| io_error(&path, error))?;
    let wrong = |what: &str| broken(format!("{}: {what}", file_name(&path)));
    if bytes.len() != EPOCH_FILE_BYTES || &bytes[..5] != EPOCH_MARK {
        return Err(wrong("not an epoch key, or of an unknown format"));
    }
    if bytes[5..13] != fingerprint(device) {
        return Err(wrong("wrapped by another device key"));
    }
    let nonce = XNonce::try_from(&bytes[13..37]).map_err(|_| wrong("cut off"))?;
    let payload = Payload { msg: &bytes[37..], aad: &epoch_bound(epoch) };
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

/// The epochs with a key file. Other files are partial writes of a killed process; nothing uses them.
fn list_epochs(epochs_dir: &Path) -> Result<Vec<u32>, StoreError> {
    let numbers = numbered(epochs_dir, "key")?.into_iter();
    Ok(numbers.filter_map(|epoch| u32::try_from(epoch).ok()).collect())
}

/// Removes the keys that a process had overwritten when it was killed.
fn finish_destruction(epochs_dir: &Path) -> Result<(), StoreError> {
    for epoch in list_epochs(epochs_dir)? {
        let path = epoch_path(epochs_dir, epoch);
        let bytes = Zeroizing::new(fs::read(&path).map_err(|error| io_error(&path, error))?);
        if bytes.len() == EPOCH_FILE_BYTES && bytes.iter().all(|byte| *byte == 0) {
            tracing::warn!(epoch, "an epoch key was overwritten and not yet removed; it is removed now");
            shred(&path)?;
        }
    }
    Ok(())
}

fn read_device(path: &Path) -> Result<Option<Key>, StoreError> {
    let text = match fs::read(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(path, error)),
    };
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let bytes = text.trim_end().strip_prefix(DEVICE_MARK).and_then(unhex).map(Zeroizing::new);
    let bytes = bytes.filter(|bytes| bytes.len() == 32);
    let bytes = bytes.ok_or_else(|| broken(format!("{} is not a device key", file_name(path))))?;
    let mut key: Key = Zeroizing::new([0; 32]);
    key.copy_from_slice(&bytes);
    Ok(Some(key))
}

fn write_device(path: &Path, key: &Key) -> Result<(), StoreError> {
    let text = Zeroizing::new(format!("{DEVICE_MARK}{}\n", *Zeroizing::new(hex(key.as_slice()))));
    write_new(path, text.as_bytes())
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
        other => other.map_err(|error| io_error(path, error)),
    }
}

fn shred(path: &Path) -> Result<(), StoreError> {
    if !path.try_exists().map_err(|error| io_error(path, error))? {
        return Ok(());
    }
    overwrite(path)?;
    remove_file(path)?;
    path.parent().map_or(Ok(()), sync_dir)
}
