//! Errors of calls that did not start. How a started call ends is an [`crate::Ending`], never an error.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::{Code, Failure, Phase};

/// Why a call did not start. Nothing has run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SandboxError {
    /// The host cannot enforce what the profile promises.
    #[error("the sandbox is unavailable: {what}; {fix}")]
    Unavailable { what: String, fix: String },
    #[error("the workspace {} cannot be used: {what}; {fix}", path.display())]
    Workspace { path: PathBuf, what: String, fix: String },
    /// A path that a command's view needs is missing, or a link leads to it.
    #[error("{what}; {fix}")]
    Path { code: Code, what: String, fix: String },
    #[error("profile: {0}")]
    Profile(String),
    /// The request breaks a bound of the sandbox.
    #[error("the call was refused: {0}")]
    Refused(String),
    /// Every zygote is in use, or no child became ready in time.
    #[error("the sandbox is busy: {0}")]
    Busy(&'static str),
    #[error("the sandbox is shut down")]
    Closed,
    /// The zygote could not be started or reached.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: Arc<io::Error> },
}

impl SandboxError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source: Arc::new(source) }
    }

    pub const fn code(&self) -> Code {
        match self {
            Self::Unavailable { .. } | Self::Workspace { .. } | Self::Profile(_) => Code::SandboxUnavailable,
            Self::Path { code, .. } => *code,
            Self::Refused(_) => Code::ParamsInvalid,
            Self::Busy(_) => Code::Overloaded,
            Self::Closed => Code::ShuttingDown,
            Self::Io { .. } => Code::SandboxFailed,
        }
    }

    /// Whether the same call may succeed later without a repair.
    pub const fn retryable(&self) -> bool {
        self.code().retryable()
    }

    pub fn failure(&self) -> Failure {
        let failure = Failure::new(self.code(), Phase::Sandbox, self.to_string());
        if let Self::Path { fix, .. } = self { failure.unless(fix) } else { failure }
    }
}
