//! What is asked of the sandbox, and what it answers.

use std::path::PathBuf;
use std::time::Duration;

use effectd_contracts::{Code, Isolation, SandboxProfile, ToolId, TraceId};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::limits::{CALL_TIME_MAX, NARROWING_PATHS_MAX, REQUEST_BYTES_MAX};
pub use crate::profile::Limits;
use crate::root::SpaceRoot;

#[derive(Debug, Clone)]
pub struct Call {
    /// Which tool; for logs only, the sandbox runs whatever the request says.
    pub tool_id: ToolId,
    pub profile: SandboxProfile,
    /// Forces the modifier `high_isolation`, also where the profile does not name it.
    pub high_isolation: bool,
    pub space_root: SpaceRoot,
    /// The bytes the dispatcher in the child gets.
    pub request: Vec<u8>,
    /// What it may use, at most as much as the profile says.
    pub limits: Limits,
    /// Wall-clock time, counted from when the child gets the request.
    pub timeout: Duration,
    /// For logs of refused attempts.
    pub trace_id: TraceId,
    /// What the request needs of the workspace; everything else is taken away before the tool runs.
    pub narrowing: Narrowing,
}

/// What of the workspace a request needs. It can only take away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Narrowing {
    /// Paths beneath the root that may be read, with all beneath them; `None` leaves everything readable.
    pub readable: Option<Vec<PathBuf>>,
    /// Paths beneath the root that may be changed, with all beneath them; `None` leaves everything writable, except under
    /// `high_isolation`, where it leaves nothing. A path that does not exist stands for its nearest existing folder.
    pub writable: Option<Vec<PathBuf>>,
    /// Whether the scratch folder may be used.
    pub tmp: bool,
}

impl Default for Narrowing {
    fn default() -> Self {
        Self {
            readable: None,
            writable: None,
            tmp: true,
        }
    }
}

impl Narrowing {
    /// Nothing may be changed but the scratch folder.
    pub fn read_only() -> Self {
        Self {
            writable: Some(Vec::new()),
            ..Self::default()
        }
    }
}

impl Call {
    pub(crate) fn effective_profile(&self) -> SandboxProfile {
        SandboxProfile {
            high_isolation: self.profile.high_isolation || self.high_isolation,
            ..self.profile
        }
    }

    pub(crate) fn effective_narrowing(&self) -> Narrowing {
        let mut narrowing = self.narrowing.clone();
        if self.effective_profile().high_isolation && narrowing.writable.is_none() {
            narrowing.writable = Some(Vec::new());
        }
        narrowing
    }

    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let refuse = |why: &str| Err(SandboxError::Refused(why.to_owned()));
        if self.request.len() > REQUEST_BYTES_MAX {
            return refuse("the request is too large");
        }
        if self.timeout.is_zero() || self.timeout > CALL_TIME_MAX {
            return refuse("the deadline is out of bounds");
        }
        let lists = [&self.narrowing.readable, &self.narrowing.writable];
        let paths: Vec<_> = lists.into_iter().flatten().flatten().collect();
        if paths.len() > NARROWING_PATHS_MAX {
            return refuse("too many paths in the narrowing");
        }
        if paths.iter().any(|path| path.to_str().is_none()) {
            return refuse("a path of the narrowing is not UTF-8");
        }
        Ok(())
    }
}

/// What came of a call. The whole process tree is dead and reaped.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub ending: Ending,
    pub usage: Usage,
    /// The isolation that was really obtained, for the receipt.
    pub isolation: Isolation,
    pub denials: Vec<Denial>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The child answered; these are the dispatcher's bytes. They are the child's own words and still to be checked.
    Replied(Vec<u8>),
    /// It ended otherwise, for a reason that the kernel or the runtime itself has seen.
    Killed {
        code: Code,
        /// One line for people, without anything that the child said.
        detail: String,
        /// Whether the tool had been given the request. If not, it has had no effect.
        started: bool,
    },
}

/// What a call cost, by the kernel's own account of the whole process tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
    /// Most memory at a time: of the tree if a cgroup counted it, otherwise of its largest process.
    pub peak_memory_bytes: u64,
    /// Bytes that were written to storage, in whole pages as the kernel counts them; scratch files are not storage.
    pub bytes_written: u64,
    /// From handing over the request to the last process being reaped.
    pub wall: Duration,
}

impl Usage {
    pub fn cpu_ms(&self) -> f64 {
        (self.cpu_user_us + self.cpu_system_us) as f64 / 1_000.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// `network_denied`, `syscall_denied`, `path_denied`, `process_limit` …
    pub code: Code,
    /// The system call or path.
    pub what: String,
    pub count: u32,
    pub source: DenialSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenialSource {
    /// The kernel told the runtime.
    Kernel,
    /// Only the child itself says so.
    Child,
}
