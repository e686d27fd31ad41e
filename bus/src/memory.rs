//! The memory engine: the same engine on a journal in memory, for tests, and as the model for the durable ones.

use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::Clock;

use crate::engine::{LocalStore, Medium, Opened};
use crate::error::StoreError;
use crate::journal::MemoryJournal;
use crate::log::{Kept, Log};
use crate::vault::Vault;

/// What a memory store leaves behind for the next one: its journal, the hashes of its log, and its keys.
#[derive(Debug, Clone)]
pub struct MemoryDisk {
    journal: Arc<MemoryJournal>,
    log: Kept,
    vault: Arc<Vault>,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        MemoryDisk {
            journal: Arc::default(),
            log: Kept::default(),
            vault: Arc::new(Vault::in_memory()),
        }
    }
}

impl Medium for MemoryDisk {
    fn open(&self) -> Result<Opened, StoreError> {
        Ok(Opened {
            journal: self.journal.clone(),
            base: None,
            log: Log::in_memory(self.log.clone()),
            gather_entries: usize::MAX,
        })
    }

    fn refusal(&self) -> Option<StoreError> {
        None
    }

    fn letter_files(&self) -> Option<PathBuf> {
        None
    }

    fn release(&self) {}
}

/// Opens an empty store that is gone when it is dropped.
pub fn open(clock: Arc<dyn Clock>) -> Result<LocalStore, StoreError> {
    open_on(&MemoryDisk::default(), clock)
}

/// Opens a store on what another left behind. Only one may be open on it.
pub fn open_on(disk: &MemoryDisk, clock: Arc<dyn Clock>) -> Result<LocalStore, StoreError> {
    LocalStore::start(Box::new(disk.clone()), clock, disk.vault.clone())
}
