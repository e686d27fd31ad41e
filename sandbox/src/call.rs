//! A call into the sandbox, and its answer.

use std::path::PathBuf;
use std::time::Duration;

use effectd_contracts::{Code, Isolation, SandboxProfile, ToolId, TraceId};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::limits::{CALL_TIME_MAX, DENIALS_NAMED_MAX, NARROWING_PATHS_MAX, REQUEST_BYTES_MAX};
use crate::root::SpaceRoot;
use crate::view::View;

#[derive(Debug, Clone)]
pub struct Call {
    /// The tool, for logs only: the request decides what runs.
    pub tool_id: ToolId,
    pub profile: SandboxProfile,
    /// Adds the modifier `high_isolation` to the profile.
    pub high_isolation: bool,
    pub space_root: SpaceRoot,
    /// The bytes for the dispatcher in the child.
    pub request: Vec<u8>,
    pub limits: Limits,
    /// Wall-clock time, from the moment the child gets the request.
    pub timeout: Duration,
    /// For logs of denials.
    pub trace_id: TraceId,
    pub narrowing: Narrowing,
    /// What the call sees instead of a writable workspace.
    pub view: Option<View>,
}

/// How much one call may use. `None` keeps the profile's limit; a number can only lower it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Processor time in milliseconds, rounded up to the kernel's whole seconds.
    pub cpu_ms: Option<u64>,
    /// Memory of the whole process tree where there is a cgroup, otherwise of each process.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at a time.
    pub processes: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Size of each file that the call writes.
    pub file_bytes: Option<u64>,
    /// Bytes written to storage, all files together. The kernel counts them only when the processes end: a call over the
    /// limit fails, and its files stay. It also bounds each cache of a view while the call runs.
    pub written_bytes: Option<u64>,
    pub output_bytes: Option<u64>,
}

/// The part of the workspace that a request needs; everything else is taken away before the tool runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Narrowing {
    /// Paths beneath the root that may be read, with everything beneath them; `None` leaves everything readable.
    pub readable: Option<Vec<PathBuf>>,
    /// Paths beneath the root that may be changed, with everything beneath them; `None` leaves everything writable, or
    /// nothing under `high_isolation`. A path that does not exist means its nearest existing folder.
    pub writable: Option<Vec<PathBuf>>,
    /// Whether the scratch folder may be used.
    pub tmp: bool,
}

impl Default for Narrowing {
    fn default() -> Self {
        Self { readable: None, writable: None, tmp: true }
    }
}

impl Narrowing {
    /// A narrowing that lets a call change only the scratch folder.
    pub fn read_only() -> Self {
        Self { writable: Some(Vec::new()), ..Self::default() }
    }
}

impl Call {
    pub(crate) fn effective_profile(&self) -> SandboxProfile {
        SandboxProfile { high_isolation: self.profile.high_isolation || self.high_isolation, ..self.profile }
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
            return refuse("the deadline is out of range");
        }
        let lists = [&self.narrowing.readable, &self.narrowing.writable];
        let paths: Vec<_> = lists.into_iter().flatten().flatten().collect();
        if paths.len() > NARROWING_PATHS_MAX {
            return refuse("too many paths in the call's path list");
        }
        if paths.iter().any(|path| path.to_str().is_none()) {
            return refuse("a path in the call's path list is not UTF-8");
        }
        Ok(())
    }
}

/// The outcome of a call. The whole process tree is dead and reaped.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub ending: Ending,
    pub usage: Usage,
    /// The isolation that the call had, for the receipt.
    pub isolation: Isolation,
    pub denials: Vec<Denial>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The bytes that the child's dispatcher returned, unchecked.
    Replied(Vec<u8>),
    /// The call ended for a reason that the kernel or the runtime itself observed.
    Killed {
        code: Code,
        /// One line for people, with no bytes from the child.
        detail: String,
        /// Whether the tool received the request. If not, the call has had no effect.
        started: bool,
    },
}

/// What a call cost, as the kernel counts it for the whole process tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
    /// Most memory at a time: of the tree if a cgroup counted it, otherwise of its largest process.
    pub peak_memory_bytes: u64,
    /// Bytes written to storage, in whole pages; scratch files are not storage.
    pub bytes_written: u64,
    /// From sending the request until the last process is reaped.
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
    /// The kernel reported it.
    Kernel,
    /// Only the child reports it.
    Child,
}

/// Denials, merged and bounded: a program cannot fill a receipt with them.
#[derive(Debug, Default)]
pub(crate) struct Denials(pub(crate) Vec<Denial>);

impl Denials {
    pub(crate) fn count(&mut self, code: Code, what: &str, source: DenialSource) {
        self.add(Denial { code, what: what.to_owned(), count: 1, source });
    }

    pub(crate) fn add(&mut self, denial: Denial) {
        let is_same = |known: &&mut Denial| {
            known.code == denial.code && known.what == denial.what && known.source == denial.source
        };
        if let Some(known) = self.0.iter_mut().find(is_same) {
            known.count = known.count.saturating_add(denial.count);
        } else if self.0.len() < DENIALS_NAMED_MAX {
            self.0.push(denial);
        }
    }
}
