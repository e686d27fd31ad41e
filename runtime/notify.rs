//! Tells the service manager how we are, the way systemd wants to be told: one datagram to the socket it named.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Whoever the environment names. A name that cannot be used is the same as none, but is logged.
    pub fn from_environment() -> Self {
        let named = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = named.and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "the service manager cannot be told anything");
                None
            }
        });
        let variable = |name: &str| {
            std::env::var(name)
                .ok()
                .and_then(|value| value.parse::<u64>().ok())
        };
        let for_us = variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = variable("WATCHDOG_USEC")
            .filter(|_| for_us)
            .map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// How often to tell that all is well: twice within the time after which we would be killed.
    pub fn watchdog_every(&self) -> Option<Duration> {
        let every = self.watchdog.filter(|_| self.socket.is_some())? / 2;
        Some(every.max(Duration::from_millis(1)))
    }

    /// Work can be taken.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// All is well.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// We are about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing what is on its way");
    }

    /// One line for whoever looks.
    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={status}"));
    }

    fn tell(&self, state: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(state.as_bytes(), address)
        {
            tracing::warn!(%error, "the service manager was not told");
        }
    }
}

/// A name that begins with `@` is no file but lives in the kernel's own list of names.
fn connect(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not stop us.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}
