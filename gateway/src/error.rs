//! Why the gateway cannot start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("another program already listens on {}; stop it, or choose another socket", .0.display())]
    InUse(PathBuf),
    /// The gateway does not touch the file.
    #[error("{} already exists and is not a socket; move it away, or choose another socket", .0.display())]
    NotASocket(PathBuf),
    #[error("there is no folder {}; create it for those who may connect, or choose another socket", .0.display())]
    NoFolder(PathBuf),
    #[error("the path {} is too long for a socket ({max} bytes at most); choose a shorter one with --socket", path.display())]
    TooLong { path: PathBuf, max: usize },
    #[error("the socket {} cannot be created: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("{setting}: {address} cannot be used: {source}; choose another address, or \"\" for none")]
    Listen { setting: &'static str, address: SocketAddr, source: io::Error },
    #[error("gateway.tls_cert and gateway.tls_key cannot be used: {0}")]
    Certificate(String),
    /// Two gateways share one registry.
    #[error("the gateway's metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl GatewayError {
    /// Whether a later attempt may succeed without a change.
    pub fn may_retry(&self) -> bool {
        match self {
            GatewayError::InUse(_) => true,
            GatewayError::Listen { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            GatewayError::NotASocket(_)
            | GatewayError::NoFolder(_)
            | GatewayError::TooLong { .. }
            | GatewayError::Socket { .. }
            | GatewayError::Certificate(_)
            | GatewayError::Metrics(_) => false,
        }
    }
}
