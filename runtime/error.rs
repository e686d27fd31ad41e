//! Why effectd cannot be used, and what to do about it.

use std::path::{Path, PathBuf};

use effectd_actors::{RegistryError, StartError};
use effectd_bus::StoreError;
use effectd_contracts::SpaceId;
use effectd_gateway::GatewayError;
use effectd_policy::PolicyError;
use effectd_sandbox::SandboxError;

use crate::exit::Exit;

/// Why effectd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be created or written.
    #[error("the state directory {} cannot be used: {source}; choose another with --state", path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The state directory, the policy directory or the folder of plugins shares files with a space, where tools may write.
    #[error("{} and the space {space} ({}) share files, which tools could change; move one of them",
        directory.display(), root.display())]
    StateInSpace {
        /// The state directory, the policy directory or the folder of plugins.
        directory: PathBuf,
        /// The space.
        space: SpaceId,
        /// The root of the space.
        root: PathBuf,
    },
    /// A key file is missing, damaged or readable by others.
    #[error("the key {} is unusable: {source}; restore it from your backup", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The policy cannot be read or compiled.
    #[error("the policy cannot be used: {0}")]
    Policy(#[from] Box<PolicyError>),
    /// This machine cannot confine tools.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A tool's description is wrong.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The pipeline did not start.
    #[error(transparent)]
    Pipeline(#[from] StartError),
    /// The gateway cannot listen.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// An argument or a setting cannot be used.
    #[error("{0}")]
    Request(String),
    /// There is no state directory yet.
    #[error("there is no state in {}; create it with `effectd init --state {}`, or choose another with --state", .0.display(), .0.display())]
    NoState(PathBuf),
    /// The pipeline gave up, because one of its actors died again and again.
    #[error("the pipeline gave up: {0}; accepted actions stay on disk, and the next start continues them")]
    Broken(String),
    /// A bug in effectd.
    #[error("{0}; this is a bug in effectd")]
    Internal(String),
}

impl Error {
    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
        Error::Internal(error.to_string())
    }

    /// The exit code of the program.
    pub fn exit(&self) -> Exit {
        match self {
            Error::Store(StoreError::Locked { .. }) => Exit::TryAgain,
            Error::Gateway(error) if error.may_retry() => Exit::TryAgain,
            Error::Internal(_) => Exit::Failed,
            Error::Broken(_) | Error::Pipeline(StartError::GaveUp(_)) => Exit::Broken,
            Error::Request(_) | Error::NoState(_) => Exit::Usage,
            Error::State { .. }
            | Error::StateInSpace { .. }
            | Error::Key { .. }
            | Error::Store(_)
            | Error::Policy(_)
            | Error::Sandbox(_)
            | Error::Registry(_)
            | Error::Gateway(_)
            | Error::Pipeline(_) => Exit::Unavailable,
        }
    }
}

/// Adds the path to an I/O error.
pub(crate) trait AtPath<T> {
    fn at(self, path: &Path) -> Result<T, Error>;
}

impl<T> AtPath<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::State { path: path.to_owned(), source })
    }
}

/// An error with its causes, `message: cause: cause`. A cause that a message already quotes is not repeated.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        if !text.contains(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the copy failed")]
        struct Copy(#[source] Error);
        let source = std::io::Error::other("disk full");
        let state = Error::State { path: "s".into(), source };
        let text = chain(&Copy(state));
        let expected =
            "the copy failed: the state directory s cannot be used: disk full; choose another with --state";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_cause_of_a_store_error_is_kept_and_told_once() {
        let broken = std::io::Error::from_raw_os_error(5);
        let told = format!("the store is not available: 1.seg: {broken}");
        let error = Error::Store(StoreError::unavailable_by("1.seg", broken));
        let source =
            std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(5));
        assert_eq!(chain(&error), told);
    }
}
