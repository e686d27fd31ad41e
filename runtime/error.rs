//! Why the runtime cannot be used, each with what to do about it.

use std::path::PathBuf;

use effectd_actors::{RegistryError, StartError};
use effectd_bus::StoreError;
use effectd_contracts::SpaceId;
use effectd_gateway::GatewayError;
use effectd_policy::PolicyError;
use effectd_sandbox::SandboxError;

use crate::exit::Exit;

/// Why the runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be made or written.
    #[error("the state directory {} cannot be used: {source}; choose another with --state", path.display())]
    State {
        /// Which directory.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The state lies where tools may write.
    #[error("the state directory {} lies inside the space {space} ({}), where tools could change it; move one of them",
        state.display(), root.display())]
    StateInSpace {
        /// The state directory.
        state: PathBuf,
        /// The space.
        space: SpaceId,
        /// Its root.
        root: PathBuf,
    },
    /// A key file is not what it should be.
    #[error("the key {} is unusable: {why}; restore it from your backup", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The policy cannot be read, so nothing may happen.
    #[error("the policy cannot be used: {0}")]
    Policy(#[from] Box<PolicyError>),
    /// The host cannot confine tools, so nothing is run.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A tool is described wrongly.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The pipeline did not start.
    #[error(transparent)]
    Pipeline(#[from] StartError),
    /// The door cannot be opened.
    #[error(transparent)]
    Door(#[from] GatewayError),
    /// What was named cannot be used.
    #[error("{0}")]
    Request(String),
    /// There is no state directory yet.
    #[error("there is no state in {}; with --state {} `effectd init` makes one, or --state names another", .0.display(), .0.display())]
    NoState(PathBuf),
    /// The pipeline gave up: one of its parts died again and again.
    #[error("the pipeline gave up: {0}; what was accepted stays on disk, and the next start goes on with it")]
    Broken(String),
    /// A fault of effectd itself.
    #[error("{0}; this is a fault of effectd")]
    Internal(String),
}

impl Error {
    /// How the program ends because of it.
    pub fn exit(&self) -> Exit {
        match self {
            Error::Store(StoreError::Locked { .. }) => Exit::TryAgain,
            Error::Door(error) if error.may_retry() => Exit::TryAgain,
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
            | Error::Door(_)
            | Error::Pipeline(_) => Exit::Unavailable,
        }
    }
}
