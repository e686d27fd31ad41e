//! Reports readiness and health to the service manager, by systemd's notify protocol: datagrams to the socket in `NOTIFY_SOCKET`.
#![expect(clippy::disallowed_types, reason = "sends datagrams to the service manager")]

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager that the environment names. If it cannot be reached, that is logged and the daemon runs without it.
    pub(crate) fn from_environment() -> Self {
        let named = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = named.and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "the service manager cannot be reached");
                None
            }
        });
        let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let for_us = variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = variable("WATCHDOG_USEC").filter(|_| for_us).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// How often to send a sign of life: twice within the watchdog's time limit; `None` without a watchdog.
    pub(crate) fn watchdog_every(&self) -> Option<Duration> {
        let every = self.watchdog.filter(|_| self.socket.is_some())? / 2;
        Some(every.max(Duration::from_millis(1)))
    }

    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing actions in flight");
    }

    /// Sets the status line.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(state.as_bytes(), address)
        {
            tracing::warn!(%error, "a message to the service manager was not sent");
        }
    }
}

/// If `name` begins with `@`, it is an abstract socket.
fn connect(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not block the daemon.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}
