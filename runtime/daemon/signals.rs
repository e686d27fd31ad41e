//! The signals that effectd handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    /// SIGTERM or SIGINT: stop.
    Stop,
    /// SIGHUP: read policy and settings again.
    Reload,
}

/// Listens for signals. From then on they do not end the process by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    /// Listens for SIGTERM and SIGINT.
    pub(crate) fn listen() -> Result<Self, Error> {
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hang_up: None,
        })
    }

    /// Listens for SIGTERM, SIGINT and SIGHUP.
    pub(crate) fn listen_with_reload() -> Result<Self, Error> {
        Ok(Self { hang_up: Some(on(SignalKind::hangup())?), ..Self::listen()? })
    }

    /// Resolves at SIGTERM or SIGINT.
    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    pub(crate) async fn next(&mut self) -> SignalEvent {
        let Self { terminate, interrupt, hang_up } = self;
        let reload = async {
            match hang_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => SignalEvent::Stop,
            _ = interrupt.recv() => SignalEvent::Stop,
            () = reload => SignalEvent::Reload,
        }
    }
}

fn on(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| Error::Internal(format!("signals cannot be handled: {error}")))
}
