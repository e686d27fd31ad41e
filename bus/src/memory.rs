//! The memory engine: the same engine on a journal in memory, for tests and as the model of the durable ones.

use std::sync::Arc;

use effectd_contracts::Clock;

use crate::engine::{LocalStore, Medium, Opened};
use crate::error::StoreError;
use crate::journal::MemoryJournal;
use crate::merkle_log::{Kept, MerkleLog};
use crate::progress::Progress;
use crate::vault::Vault;

/// The journal, log hashes and keys of a memory store, with which a later store can be opened.
#[derive(Debug, Clone)]
pub struct MemoryDisk {
    journal: Arc<MemoryJournal>,
    log: Kept,
    vault: Arc<Vault>,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        MemoryDisk { journal: Arc::default(), log: Kept::default(), vault: Arc::new(Vault::in_memory()) }
    }
}

impl Medium for MemoryDisk {
    fn open(&self) -> Result<Opened, StoreError> {
        Ok(Opened {
            journal: self.journal.clone(),
            runs: None,
            log: MerkleLog::in_memory(self.log.clone()),
            memtable_entries: usize::MAX,
            progress: Progress::default(),
        })
    }
}

/// Opens an empty store, whose content is lost when it is dropped.
pub fn open(clock: Arc<dyn Clock>) -> Result<LocalStore, StoreError> {
    open_on(&MemoryDisk::default(), clock)
}

/// Opens a store on the memory of an earlier one. Only one store at a time may use it.
pub fn open_on(disk: &MemoryDisk, clock: Arc<dyn Clock>) -> Result<LocalStore, StoreError> {
    LocalStore::start(Box::new(disk.clone()), clock, disk.vault.clone())
}
