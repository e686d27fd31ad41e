//! The signals that a program of ours obeys.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

/// What a signal says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// SIGTERM or SIGINT: stop.
    Stop,
    /// SIGHUP: look again.
    Reload,
}

/// Listens for them. From then on none of them ends the process by itself, except SIGHUP where it is not wanted.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    /// Those that ask to stop.
    pub fn listen() -> Result<Self, Error> {
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hang_up: None,
        })
    }

    /// Those, and the one that asks to look again.
    pub fn listen_with_reload() -> Result<Self, Error> {
        Ok(Self {
            hang_up: Some(on(SignalKind::hangup())?),
            ..Self::listen()?
        })
    }

    /// Resolves when it is time to stop.
    pub async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Whatever comes next.
    pub async fn next(&mut self) -> Told {
        let Self {
            terminate,
            interrupt,
            hang_up,
        } = self;
        let reload = async {
            match hang_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => Told::Stop,
            _ = interrupt.recv() => Told::Stop,
            () = reload => Told::Reload,
        }
    }
}

fn on(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| Error::Internal(format!("no signal can be listened for: {error}")))
}
