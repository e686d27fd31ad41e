//! How a runtime is set up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::Settings as PipelineSettings;
use effectd_actors::limits::LEASE_TTL;
use effectd_actors::reward::Weights;
use effectd_bus::embedded::{EmbeddedConfig, JournalKind};
use effectd_bus::limits::{BLOB_QUOTA_BYTES, DISK_FREE_BYTES_MIN, SEGMENT_BYTES};
use effectd_contracts::{Clock, Principal, SystemClock};
use effectd_sandbox::SandboxConfig;
use effectd_sandbox::limits::{READY_MAX, READY_MIN, ZYGOTES_MAX};

use crate::error::Error;
use crate::tools::{self, Tools};

/// The state directory of `effectd run`, unless another is named.
pub const STATE_DEFAULT: &str = ".effectd";
/// The environment variable that names the state directory.
pub const STATE_VARIABLE: &str = "EFFECTD_STATE";

/// What a journal in sled may cache, unless said otherwise: the working set of appends is small.
pub const JOURNAL_CACHE_BYTES: u64 = 16 << 20;
/// What the store's index may cache, unless said otherwise: keys of the last hundred thousand actions fit.
pub const INDEX_CACHE_BYTES: u64 = 32 << 20;

/// How long work on its way may take to finish when the runtime stops, unless said otherwise.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// How a runtime is set up.
#[derive(Clone)]
pub struct Config {
    /// Where everything is kept.
    pub state: PathBuf,
    /// Put the demo policy into a state directory that has none.
    pub seed_demo: bool,
    /// The program that becomes the sandbox's zygote: one that calls [`crate::init`] first in `main`.
    pub zygote_exe: PathBuf,
    /// On whose behalf this process speaks.
    pub principal: Principal,
    /// Somebody sits at a terminal and waits: a person who must be asked is expected within minutes.
    pub interactive: bool,
    /// Show people what they are told on the desktop of this process's session, if it has one.
    pub desktop: bool,
    /// How long work on its way may take to finish when the runtime stops.
    pub stop_grace: Duration,
    /// Tools beside those that effectd brings. The sandbox can run only those that [`crate::init_with`] was given, which
    /// are the default.
    pub tools: Tools,
    /// How long a decision is held by a part of the pipeline that does not get on before another takes it up, see
    /// [`LEASE_TTL`].
    pub lease_ttl: Duration,
    /// What an operator may set about the pipeline.
    pub pipeline: PipelineSettings,
    /// What an operator may set about the store.
    pub store: StoreSettings,
    /// What an operator may set about the sandbox.
    pub sandbox: SandboxSettings,
    /// How rewards are made.
    pub weights: Weights,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

/// What an operator may set about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// Free space below which new work is refused.
    pub disk_free_bytes_min: u64,
    /// Room for pre-images, and as much for long outputs, in each space.
    pub blob_quota_bytes: u64,
    /// What the index may cache.
    pub index_cache_bytes: u64,
    /// What carries the journal of a store that is made.
    pub journal: JournalKind,
    /// Size at which a file of the journal is full.
    pub segment_bytes: usize,
    /// What a journal in sled may cache.
    pub journal_cache_bytes: u64,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            disk_free_bytes_min: DISK_FREE_BYTES_MIN,
            blob_quota_bytes: BLOB_QUOTA_BYTES,
            index_cache_bytes: INDEX_CACHE_BYTES,
            journal: JournalKind::default(),
            segment_bytes: SEGMENT_BYTES,
            journal_cache_bytes: JOURNAL_CACHE_BYTES,
        }
    }
}

impl StoreSettings {
    /// The store of this state directory.
    pub fn of(&self, state: &Path) -> EmbeddedConfig {
        let mut config = EmbeddedConfig::new(state);
        config.disk_free_bytes_min = self.disk_free_bytes_min;
        config.index_cache_bytes = self.index_cache_bytes;
        config.journal = self.journal;
        config.segment_bytes = self.segment_bytes;
        config.journal_cache_bytes = self.journal_cache_bytes;
        config
    }
}

/// What an operator may set about the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Children kept ready for each profile and space when nothing is going on.
    pub ready_min: usize,
    /// Most children kept ready for each profile and space.
    pub ready_max: usize,
    /// Most pairs of profile and space that are kept ready.
    pub zygotes_max: usize,
    /// The ordinary user that tools run as; the workspace's owner if none is named.
    pub uid: Option<u32>,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            ready_min: READY_MIN,
            ready_max: READY_MAX,
            zygotes_max: ZYGOTES_MAX,
            uid: None,
        }
    }
}

impl SandboxSettings {
    /// The sandbox whose zygote is this program.
    pub fn of(&self, zygote_exe: &Path) -> SandboxConfig {
        let mut config = SandboxConfig::new(zygote_exe);
        config.pool.ready_min = self.ready_min;
        config.pool.ready_max = self.ready_max;
        config.zygotes_max = self.zygotes_max;
        config.uid = self.uid;
        config
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("state", &self.state)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// A runtime inside this process, with this state directory, for the user this process runs as. On first use the
    /// demo policy is put there.
    pub fn embedded(state: impl AsRef<Path>) -> Result<Self, Error> {
        let zygote_exe = std::env::current_exe()
            .map_err(|error| Error::Internal(format!("this program cannot be found on disk: {error}")))?;
        Ok(Self {
            state: state.as_ref().to_owned(),
            seed_demo: true,
            zygote_exe,
            principal: local_principal()?,
            interactive: false,
            desktop: true,
            stop_grace: STOP_GRACE,
            tools: tools::own(),
            lease_ttl: LEASE_TTL,
            pipeline: PipelineSettings::default(),
            store: StoreSettings::default(),
            sandbox: SandboxSettings::default(),
            weights: Weights::default(),
            clock: Arc::new(SystemClock),
        })
    }
}

/// `user://<name>` of the user this process runs as; the number where there is no name.
pub(crate) fn local_principal() -> Result<Principal, Error> {
    let uid = nix::unistd::geteuid();
    let name = match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    };
    Principal::new(format!("user://{name}")).map_err(|error| Error::Internal(error.to_string()))
}

/// The state directory: what is named, or the environment's, or the default.
pub fn state_dir(named: Option<PathBuf>) -> PathBuf {
    let from_environment = || {
        std::env::var_os(STATE_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named
        .or_else(from_environment)
        .unwrap_or_else(|| PathBuf::from(STATE_DEFAULT))
}
