//! The configuration of a runtime.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::Settings as PipelineSettings;
use effectd_actors::limits::LEASE_TTL;
use effectd_bus::embedded::{EmbeddedConfig, JournalKind};
use effectd_bus::limits::{BLOB_QUOTA_BYTES, DISK_FREE_BYTES_MIN, SEGMENT_BYTES};
use effectd_contracts::{Clock, Principal, SystemClock};
use effectd_sandbox::SandboxConfig;
use effectd_sandbox::limits::{READY_MAX, READY_MIN, ZYGOTES_MAX};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::tool_registry::{self, Tools};

/// The default state directory of `effectd run` and, if it exists, of the commands other than `serve`.
pub(crate) const STATE_DEFAULT: &str = ".effectd";
pub(crate) const STATE_VARIABLE: &str = "EFFECTD_STATE";
/// Where commands find a daemon at a URL.
pub(crate) const URL_VARIABLE: &str = "EFFECTD_URL";
pub(crate) const TOKEN_VARIABLE: &str = "EFFECTD_TOKEN";
pub(crate) const CONTEXT_VARIABLE: &str = "EFFECTD_CONTEXT";

/// Backups that are kept: one for each day of a week.
const BACKUPS_KEPT: usize = 7;

/// The cache of a sled journal, which is small because appends touch few pages.
const JOURNAL_CACHE_BYTES: u64 = 16 << 20;
/// The cache of the index, which holds the keys of the last hundred thousand actions.
const INDEX_CACHE_BYTES: u64 = 32 << 20;

/// How long running actions may take to finish when the runtime stops.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Config {
    /// The state directory.
    pub state: PathBuf,
    /// The policy directory; `policy` in the state directory if none is named.
    pub policy_dir: Option<PathBuf>,
    /// Whether to install the preset `household` in a state directory that has no policy.
    pub seed_demo: bool,
    /// Whether the policy last in force decides if the policy's files have a fault.
    pub last_good_policy: bool,
    /// The program that the sandbox starts as its zygote. Its `main` must call [`crate::init`] first.
    pub zygote_exe: PathBuf,
    /// Where this process listens: no connection leads there.
    pub listens_at: Vec<SocketAddr>,
    /// The principal of the requests that this process makes.
    pub principal: Principal,
    /// Whether somebody waits at a terminal. Then approvals expire after minutes.
    pub interactive: bool,
    /// Whether to show notifications on the desktop of this process's session, if it has one.
    pub desktop: bool,
    /// How long running actions may take to finish when the runtime stops.
    pub stop_grace: Duration,
    /// Tools beside the built-in ones; by default those given to [`crate::init`]. The sandbox can run no others.
    pub tools: Tools,
    /// How long a stalled stage holds a decision before another worker takes it, see [`LEASE_TTL`].
    pub lease_ttl: Duration,
    pub pipeline: PipelineSettings,
    pub store: StoreSettings,
    pub sandbox: SandboxSettings,
    pub clock: Arc<dyn Clock>,
}

/// The store's settings, see [`super::KEYS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    pub disk_free_bytes_min: u64,
    pub blob_quota_bytes: u64,
    pub index_cache_bytes: u64,
    pub journal: JournalKind,
    pub segment_bytes: usize,
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
    pub(crate) fn of(&self, state: &Path) -> EmbeddedConfig {
        let mut config = EmbeddedConfig::new(state);
        config.disk_free_bytes_min = self.disk_free_bytes_min;
        config.index_cache_bytes = self.index_cache_bytes;
        config.journal = self.journal;
        config.segment_bytes = self.segment_bytes;
        config.journal_cache_bytes = self.journal_cache_bytes;
        config
    }
}

/// How often the daemon does something by itself; `None` is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Every(pub(crate) Option<Duration>);

/// What the daemon does by itself, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobSettings {
    pub(crate) backup_every: Every,
    /// The directory of the backups.
    pub(crate) backup_to: String,
    /// The directory of their keys; empty to copy none.
    pub(crate) backup_keys: String,
    pub(crate) backup_keep: usize,
    pub(crate) check_every: Every,
}

impl Default for JobSettings {
    fn default() -> Self {
        let (backup_every, check_every) = (Every(None), Every(None));
        let (backup_to, backup_keys) = (String::new(), String::new());
        Self { backup_every, backup_to, backup_keys, backup_keep: BACKUPS_KEPT, check_every }
    }
}

/// The sandbox's settings, see [`super::KEYS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSettings {
    pub ready_min: usize,
    pub ready_max: usize,
    pub zygotes_max: usize,
    pub uid: Option<u32>,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { ready_min: READY_MIN, ready_max: READY_MAX, zygotes_max: ZYGOTES_MAX, uid: None }
    }
}

impl SandboxSettings {
    pub(crate) fn of(&self, zygote_exe: &Path) -> SandboxConfig {
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
    /// The configuration of a runtime in this process, for its user. It installs the preset `household` on first use.
    pub fn embedded(state: impl AsRef<Path>) -> Result<Self, Error> {
        let zygote_exe = std::env::current_exe()
            .map_err(|error| Error::Internal(format!("this program cannot be found on disk: {error}")))?;
        Ok(Self {
            state: state.as_ref().to_owned(),
            policy_dir: None,
            seed_demo: true,
            last_good_policy: false,
            zygote_exe,
            listens_at: Vec::new(),
            principal: local_principal()?,
            interactive: false,
            desktop: true,
            stop_grace: STOP_GRACE,
            tools: tool_registry::own(),
            lease_ttl: LEASE_TTL,
            pipeline: PipelineSettings::default(),
            store: StoreSettings::default(),
            sandbox: SandboxSettings::default(),
            clock: Arc::new(SystemClock),
        })
    }
}

/// `user://<name>` of the user that this process runs as, or `user://<uid>` if there is no name.
pub(crate) fn local_principal() -> Result<Principal, Error> {
    let uid = nix::unistd::geteuid();
    let name = match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    };
    Principal::new(format!("user://{name}")).map_err(|error| Error::Internal(error.to_string()))
}

/// The state directory: `named`, or the one in the environment, or the default.
pub(crate) fn state_dir(named: Option<PathBuf>) -> PathBuf {
    named.or_else(state_of_environment).unwrap_or_else(|| PathBuf::from(STATE_DEFAULT))
}

/// The state directory that the environment names.
pub(crate) fn state_of_environment() -> Option<PathBuf> {
    std::env::var_os(STATE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The state directory that a project gets from `effectd mcp install`: in the user's state folder, so that no tool reaches it.
/// `None` if the user has no such folder.
pub(crate) fn project_state(project: &Path) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let states = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    let digest = Sha256::digest(project.as_os_str().as_encoded_bytes());
    // Short, since the path of a socket is.
    let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Some(states.join("effectd").join(name))
}

/// The state directory of the project that this folder is in, if it has one.
pub(crate) fn state_of_project(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    folder.ancestors().find_map(installed_state)
}

/// The state directory of the project in this folder, named by its real path, if it has one.
pub(crate) fn installed_state(project: &Path) -> Option<PathBuf> {
    project_state(project).filter(|state| state.is_dir())
}
