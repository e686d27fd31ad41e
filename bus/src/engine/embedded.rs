//! The embedded engine: a store in a state directory, with the journal in plain files or in sled, and the index in files.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::Clock;
use nix::fcntl::Flock;
use parking_lot::Mutex;

use super::{LocalStore, Medium, Opened, gauged};
pub use crate::config::{Durability, EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use crate::files::{private_dir, remove_dir};
use crate::index::RunStore as _;
use crate::index::runs::RunFiles;
use crate::journal::state_dir::{Disk, lock_journal};
pub use crate::journal::state_dir::{choose, journal_of, refusal};
use crate::journal::{self, Journal};
use crate::merkle_log::MerkleLog;
use crate::state::snapshot;
use crate::stats::Meters;
use crate::vault::Vault;

/// Wraps the journal, for example in a slower or failing disk.
pub type Wrap = Box<dyn Fn(Arc<dyn Journal>) -> Arc<dyn Journal> + Send + Sync>;

/// Opens the store in a state directory, which is created if it does not exist. One process at a time.
pub fn open(config: EmbeddedConfig, clock: Arc<dyn Clock>) -> Result<LocalStore, StoreError> {
    open_wrapped(config, clock, Box::new(|journal| journal))
}

/// Opens the store with a wrapped journal, for measurements and tests.
pub fn open_wrapped(
    mut config: EmbeddedConfig,
    clock: Arc<dyn Clock>,
    wrap: Wrap,
) -> Result<LocalStore, StoreError> {
    let lock = lock_journal(&mut config)?;
    private_dir(&config.state.join("index"))?;
    let vault = Vault::open(config.state.join("keys"), config.accept_key_loss)?;
    let medium = StateDirectory { config, wrap, lock: Mutex::new(Some(lock)) };
    LocalStore::start(Box::new(medium), clock, Arc::new(vault))
}

struct StateDirectory {
    config: EmbeddedConfig,
    wrap: Wrap,
    lock: Mutex<Option<Flock<File>>>,
}

impl Medium for StateDirectory {
    fn open(&self) -> Result<Opened, StoreError> {
        let config = &self.config;
        let journal = journal::open(config)?;
        // Removes a journal of the other kind that a migration left, but only now that this one has opened.
        remove_dir(&journal::directory(config.journal.other(), &config.state))?;
        let log = MerkleLog::open(&config.state.join("log"))?;
        let runs = match open_runs(config, &log) {
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!(%error, "the index cannot be read; it is rebuilt from the journal");
                let path = config.state.join("index");
                remove_dir(&path)?;
                private_dir(&path)?;
                RunFiles::open(&path, config.index_cache_bytes)?
            }
            runs => runs?,
        };
        Ok(Opened {
            journal: (self.wrap)(journal),
            runs: Some(Arc::new(runs)),
            log,
            memtable_entries: config.index_memtable_entries,
            progress: config.progress.clone(),
        })
    }

    fn refusal(&self, meters: &Meters) -> Option<StoreError> {
        let disk = Disk::of(&self.config.state)?;
        meters.disk_free.set(gauged(disk.free_bytes));
        meters.disk_size.set(gauged(disk.size_bytes));
        disk.refusal(&self.config.state, self.config.disk_free_bytes_min)
    }

    fn letter_files(&self) -> Option<PathBuf> {
        Some(self.config.state.join("bus").join("dlq"))
    }

    fn release(&self) {
        self.lock.lock().take();
    }
}

/// The runs of the index, if the Merkle log has the hashes of their blocks.
fn open_runs(config: &EmbeddedConfig, log: &MerkleLog) -> Result<RunFiles, StoreError> {
    let runs = RunFiles::open(&config.state.join("index"), config.index_cache_bytes)?;
    let size = match runs.applied() {
        Some(applied) => {
            snapshot::log(&applied.snapshot).map_err(|error| StoreError::index_damaged(error.0))?.size()
        }
        None => 0,
    };
    if log.holds(size)? { Ok(runs) } else { Err(StoreError::index_damaged("hashes of the log are missing")) }
}
