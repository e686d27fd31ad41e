//! A connection to the D-Bus session bus. Every reply has a time limit; zbus limits the size of messages.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use effectd_contracts::Urgency;
use zbus::address::Address;
use zbus::address::transport::{Transport, Unix, UnixSocket};
use zbus::{Connection, DBusError, Variant, connection, fdo};

/// The socket's name in a user's runtime folder.
const SOCKET: &str = "bus";
const SERVICE: &str = "org.freedesktop.Notifications";
const PATH: &str = "/org/freedesktop/Notifications";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BusError {
    /// There is no usable session bus, so nothing was sent.
    #[error("there is no session bus: {0}")]
    None(String),
    #[error("no program shows notifications on the session bus")]
    Nobody,
    #[error("it was refused with {0}")]
    Refused(String),
    /// The notification was sent, and its outcome is unknown.
    #[error("it was sent, and there was no answer: {0}")]
    Unanswered(String),
}

/// The session bus in the environment. Only local sockets count: other addresses use a network or start programs.
pub(super) fn addresses(variable: impl Fn(&str) -> Option<String>) -> Vec<Address> {
    let named = variable("DBUS_SESSION_BUS_ADDRESS").filter(|address| !address.is_empty());
    if let Some(named) = named {
        let addresses = named.split(';').filter_map(|address| address.parse().ok());
        return addresses.filter(is_socket).collect();
    }
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute());
    let socket = runtime.map(|folder| UnixSocket::File(folder.join(SOCKET)));
    let address = socket.map(|socket| Transport::Unix(Unix::new(socket)).into());
    address.into_iter().collect()
}

fn is_socket(address: &Address) -> bool {
    let Transport::Unix(unix) = address.transport() else {
        return false;
    };
    let socket = unix.path();
    matches!(socket, UnixSocket::Abstract(_))
        || matches!(socket, UnixSocket::File(path) if path.is_absolute())
}

#[derive(Clone, Copy)]
pub(super) struct Shown<'t> {
    /// One line of text.
    pub(super) title: &'t str,
    /// Longer text, in which the desktop interprets markup.
    pub(super) body: &'t str,
    pub(super) urgency: Urgency,
}

pub(super) struct Session(Connection);

impl Session {
    /// Connects to the first bus that answers within `time_max`.
    pub(super) async fn open(addresses: &[Address], time_max: Duration) -> Result<Self, BusError> {
        let mut why = "none is named in the environment".to_owned();
        for address in addresses {
            let connect = connection::Builder::address(address.clone()).build();
            why = match tokio::time::timeout(time_max, connect).await {
                Ok(Ok(connection)) => return Ok(Self(connection)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
        }
        Err(BusError::None(why))
    }

    /// Shows a notification and returns the number that the desktop gave it.
    pub(super) async fn notify(&self, shown: &Shown<'_>, time_max: Duration) -> Result<u32, BusError> {
        let urgency = match shown.urgency {
            Urgency::Low => 0_u8,
            Urgency::Normal => 1,
            Urgency::Critical => 2,
        };
        let (replaces, icon, actions) = (0_u32, "", Vec::<&str>::new());
        let hints = HashMap::from([("urgency", Variant::from(urgency))]);
        // The desktop decides how long to show the notification.
        let time = -1_i32;
        let body = ("effectd", replaces, icon, shown.title, shown.body, actions, hints, time);
        let call = self.0.call_method(Some(SERVICE), PATH, Some(SERVICE), "Notify", &body);
        match tokio::time::timeout(time_max, call).await {
            Ok(Ok(answer)) => answer.body().deserialize().map_err(outcome),
            Ok(Err(error)) => Err(outcome(error)),
            Err(_) => Err(BusError::Unanswered("it took too long".to_owned())),
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other error after the call was sent leaves its outcome unknown"
)]
fn outcome(error: zbus::Error) -> BusError {
    match error {
        zbus::Error::FDO(error) => match *error {
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => BusError::Nobody,
            fdo::Error::ZBus(error) => BusError::Unanswered(error.to_string()),
            error => BusError::Refused(plain(error.name().as_str())),
        },
        zbus::Error::MethodError(name, ..) => BusError::Refused(plain(name.as_str())),
        error => BusError::Unanswered(error.to_string()),
    }
}

/// An error name from the bus, in safe characters.
fn plain(name: &str) -> String {
    const NAME_BYTES_MAX: usize = 255;
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    name.chars().filter(plain).take(NAME_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_types)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn found(address: Option<&str>, runtime: Option<&str>) -> Vec<String> {
        let addresses = addresses(|name| match name {
            "DBUS_SESSION_BUS_ADDRESS" => address.map(str::to_owned),
            "XDG_RUNTIME_DIR" => runtime.map(str::to_owned),
            _ => None,
        });
        let socket = |address: &Address| {
            let Transport::Unix(unix) = address.transport() else {
                panic!("{address}");
            };
            if let UnixSocket::File(path) = unix.path() {
                return path.to_str().unwrap().to_owned();
            }
            let UnixSocket::Abstract(name) = unix.path() else {
                panic!("{address}");
            };
            format!("\0{}", name.to_str().unwrap())
        };
        addresses.iter().map(socket).collect()
    }

    #[test]
    fn a_bus_is_where_the_environment_says() {
        assert_eq!(
            found(Some("unix:path=/run/user/7/bus,guid=0123456789abcdef0123456789abcdef"), None),
            ["/run/user/7/bus"]
        );
        assert_eq!(
            found(Some("tcp:host=x,port=1;unix:abstract=/tmp/d-x;unix:path=/a"), None),
            ["\0/tmp/d-x", "/a"]
        );
        assert_eq!(found(None, Some("/run/user/7")), ["/run/user/7/bus"]);
        assert_eq!(found(Some(""), Some("/run/user/7")), ["/run/user/7/bus"]);
        for none in ["unix:path=relative", "autolaunch:", "unix:dir=/tmp", "unixexec:path=/bin/sh"] {
            assert!(found(Some(none), Some("/run/user/7")).is_empty(), "{none}");
        }
        assert!(found(None, Some("relative")).is_empty() && found(None, None).is_empty());
    }

    /// Opens a session with a bus that sends only these bytes. Only a silent bus has a short time limit.
    async fn against(said: &'static [u8]) -> Result<Session, BusError> {
        let time_max = Duration::from_millis(if said.is_empty() { 500 } else { 60_000 });
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(SOCKET);
        let listener = tokio::net::UnixListener::bind(&place).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(said).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let address = Transport::Unix(Unix::new(UnixSocket::File(place))).into();
        Session::open(&[address], time_max).await
    }

    #[tokio::test]
    async fn a_bus_that_is_none_is_not_waited_for() {
        let hello = b"OK 0123456789abcdef0123456789abcdef\r\nAGREE_UNIX_FD\r\nl\x02\0\x01\xff\xff\xff\x7f\x01\0\0\0\xff\xff\xff\x7f";
        for said in [
            b"".as_slice(),
            b"REJECTED EXTERNAL\r\n",
            hello,
            b"OK 0123456789abcdef0123456789abcdef\r\nAGREE_UNIX_FD\r\ngarbage that is long enough",
        ] {
            let error = against(said).await.map(drop).unwrap_err();
            assert!(matches!(error, BusError::None(_)), "{error}");
        }
        let nowhere = addresses(|_| Some("unix:path=/nonexistent".to_owned()));
        for addresses in [nowhere.as_slice(), &[]] {
            let error = Session::open(addresses, Duration::from_secs(60)).await.map(drop);
            assert!(matches!(error, Err(BusError::None(_))));
        }
    }

    #[test]
    fn a_name_from_the_bus_is_only_a_name() {
        assert_eq!(plain("a.B_1\u{1b}\n<x>"), "a.B_1x");
        assert_eq!(plain(&"n".repeat(1_000)).len(), 255);
    }
}
