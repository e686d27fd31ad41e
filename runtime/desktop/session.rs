//! A conversation with the session bus: who we are, one greeting, then calls that are answered one after another.
//!
//! Whoever is at the other end is not trusted with our time or memory: every answer has a bound in both, and what was not asked for is
//! passed over, not for ever.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_actors::limits::{BUS_MESSAGE_BYTES_MAX, BUS_MESSAGES_MAX};
use effectd_contracts::Urgency;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::wire::{HEAD_BYTES, Kind, Malformed, Message, Reader, Writer};

/// Longest line while it is settled who we are.
const LINE_BYTES_MAX: usize = 1_024;
/// Where a session bus listens beneath the folder of a user who is logged in.
const SOCKET: &str = "bus";
/// Who shows notifications, and what is asked of them.
const NOTIFY: [&str; 4] = [
    "org.freedesktop.Notifications",
    "/org/freedesktop/Notifications",
    "org.freedesktop.Notifications",
    "Notify",
];
const HELLO: [&str; 4] = [
    "org.freedesktop.DBus",
    "/org/freedesktop/DBus",
    "org.freedesktop.DBus",
    "Hello",
];
/// What a bus says when nobody shows notifications on it.
const NOBODY: [&str; 2] = [
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
];

/// Why a notification was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// There is no session bus, or none that lets us in. Nothing was sent.
    #[error("there is no session bus: {0}")]
    None(String),
    /// There is one, and nobody on it shows notifications.
    #[error("nobody shows notifications on the session bus")]
    Nobody,
    /// Whoever shows notifications did not want this one.
    #[error("it was refused with {0}")]
    Refused(String),
    /// It was sent, and nobody said what became of it.
    #[error("it was sent, and there was no answer: {0}")]
    Unanswered(String),
}

/// Where the session bus of this environment is to be found, as sockets; the first of them that answers is it. A name that begins
/// with NUL is no file but lives in the kernel's own list of names.
pub fn places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let named = variable("DBUS_SESSION_BUS_ADDRESS").filter(|address| !address.is_empty());
    if let Some(address) = named {
        return address
            .as_bytes()
            .split(|byte| *byte == b';')
            .filter_map(socket)
            .collect();
    }
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute());
    runtime.map(|folder| folder.join(SOCKET)).into_iter().collect()
}

/// The socket of one address: `unix:path=…` or `unix:abstract=…`. Other ways to a bus lead over a network or start programs.
fn socket(address: &[u8]) -> Option<PathBuf> {
    let pairs = address.strip_prefix(b"unix:")?;
    pairs.split(|byte| *byte == b',').find_map(|pair| {
        let (path, from) = (pair.strip_prefix(b"path="), pair.strip_prefix(b"abstract="));
        let plain = path.and_then(unescaped).filter(|path| path.starts_with(b"/"));
        let hidden = from
            .and_then(unescaped)
            .map(|name| [b"\0".as_slice(), &name].concat());
        plain
            .or(hidden)
            .map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
    })
}

/// A value of an address, in which `%2f` stands for `/`.
fn unescaped(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(out)
}

/// A conversation.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    serial: u32,
}

impl Session {
    /// Greets the first bus that answers at one of these places, in this time.
    pub async fn open(places: &[PathBuf], time_max: Duration) -> Result<Self, BusError> {
        let mut why = "none is named in the environment".to_owned();
        for place in places {
            why = match tokio::time::timeout(time_max, Self::greet(place)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
        }
        Err(BusError::None(why))
    }

    async fn greet(place: &Path) -> Result<Self, Trouble> {
        let stream = UnixStream::connect(place).await?;
        let mut session = Self { stream, serial: 0 };
        // The kernel tells the bus who we are; this says that it is to ask the kernel.
        let uid = nix::unistd::geteuid().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("\0AUTH EXTERNAL {hex}\r\n");
        session.stream.write_all(line.as_bytes()).await?;
        if !session.line().await?.starts_with(b"OK ") {
            return Err(Trouble::Stranger);
        }
        session.stream.write_all(b"BEGIN\r\n").await?;
        let answer = session.call(HELLO, "", Writer::default()).await?;
        match answer.kind {
            Kind::Return => Ok(session),
            Kind::Call | Kind::Error | Kind::Signal => Err(Trouble::Stranger),
        }
    }

    /// One line, without reading beyond it: what follows may be messages.
    async fn line(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() >= LINE_BYTES_MAX {
                return Err(Trouble::Malformed(Malformed("a line without end")));
            }
            line.push(self.stream.read_u8().await?);
        }
        Ok(line)
    }

    /// Calls a method, and reads on until its answer comes.
    async fn call(&mut self, whom: [&str; 4], signature: &str, body: Writer) -> Result<Message, Trouble> {
        self.serial += 1;
        let message = Message::call(self.serial, whom).with(signature, body);
        self.stream.write_all(&message.encode()).await?;
        for _ in 0..BUS_MESSAGES_MAX {
            let message = self.message().await?;
            let answers = matches!(message.kind, Kind::Return | Kind::Error);
            if answers && message.reply_to == Some(self.serial) {
                return Ok(message);
            }
        }
        Err(Trouble::Malformed(Malformed("too much that nobody asked for")))
    }

    async fn message(&mut self) -> Result<Message, Trouble> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).await?;
        let length = Message::length(&head, BUS_MESSAGE_BYTES_MAX)?;
        let mut bytes = head.to_vec();
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[HEAD_BYTES..]).await?;
        Ok(Message::decode(&bytes)?)
    }

    /// Has a notification shown, and answers the number that it has there. After an error that is not [`BusError::Refused`] the
    /// conversation is over.
    pub async fn notify(&mut self, shown: &Shown<'_>, time_max: Duration) -> Result<u32, BusError> {
        let call = self.call(NOTIFY, Shown::SIGNATURE, shown.body());
        let answer = match tokio::time::timeout(time_max, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(trouble)) => return Err(BusError::Unanswered(trouble.to_string())),
            Err(_) => return Err(BusError::Unanswered("it took too long".to_owned())),
        };
        if answer.kind == Kind::Error {
            let name = answer.error.unwrap_or_default();
            return Err(match NOBODY.contains(&name.as_str()) {
                true => BusError::Nobody,
                false => BusError::Refused(plain(&name)),
            });
        }
        let number = Reader::new(&answer.body, answer.order).number();
        number.map_err(|error| BusError::Unanswered(error.to_string()))
    }
}

/// A name from the bus, as it may stand in what we store.
fn plain(name: &str) -> String {
    const NAME_BYTES_MAX: usize = 255;
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    name.chars().filter(plain).take(NAME_BYTES_MAX).collect()
}

/// What is to be shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shown<'t> {
    /// One line of text.
    pub title: &'t str,
    /// More, in which markup is markup.
    pub body: &'t str,
    /// How much it matters.
    pub urgency: Urgency,
}

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shown({} and {} bytes)", self.title.len(), self.body.len())
    }
}

impl Shown<'_> {
    /// Name of the program, number of what it replaces, icon, title, body, actions, hints, how long.
    const SIGNATURE: &'static str = "susssasa{sv}i";

    fn body(&self) -> Writer {
        let mut body = Writer::default();
        body.text("effectd").number(0).text("");
        body.text(self.title).text(self.body);
        body.array(4, |_| ());
        let urgency = match self.urgency {
            Urgency::Low => 0,
            Urgency::Normal => 1,
            Urgency::Critical => 2,
        };
        body.array(8, |hints| {
            hints.structure().text("urgency").signature("y").byte(urgency);
        });
        // As long as whoever shows it thinks right.
        body.number(u32::MAX);
        body
    }
}

/// What can go wrong in a conversation.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("it does not let us in")]
    Stranger,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(address: Option<&str>, runtime: Option<&str>) -> Vec<String> {
        let places = places(|name| match name {
            "DBUS_SESSION_BUS_ADDRESS" => address.map(OsString::from),
            "XDG_RUNTIME_DIR" => runtime.map(OsString::from),
            _ => None,
        });
        let text = |place: &PathBuf| place.to_str().unwrap().to_owned();
        places.iter().map(text).collect()
    }

    #[test]
    fn a_bus_is_where_the_environment_says() {
        assert_eq!(
            found(Some("unix:path=/run/user/7/bus,guid=00"), None),
            ["/run/user/7/bus"]
        );
        assert_eq!(
            found(
                Some("tcp:host=x,port=1;unix:guid=1,abstract=/tmp/d%2dx;unix:path=/a"),
                None
            ),
            ["\0/tmp/d-x", "/a"]
        );
        assert_eq!(found(None, Some("/run/user/7")), ["/run/user/7/bus"]);
        assert_eq!(found(Some(""), Some("/run/user/7")), ["/run/user/7/bus"]);
        for none in [
            "unix:path=relative",
            "unix:path=/a%4",
            "unix:path=/a%zz",
            "autolaunch:",
            "unix:dir=/tmp",
            "unixexec:path=/bin/sh",
        ] {
            assert!(found(Some(none), Some("/run/user/7")).is_empty(), "{none}");
        }
        assert!(found(None, Some("relative")).is_empty() && found(None, None).is_empty());
    }

    /// Somebody at the other end who says these bytes and nothing else. Only who says nothing is given up by the clock.
    async fn against(said: &'static [u8]) -> Result<Session, BusError> {
        let time_max = Duration::from_millis(if said.is_empty() { 500 } else { 60_000 });
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("bus");
        let listener = tokio::net::UnixListener::bind(&place).unwrap();
        let other = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut rest = Vec::new();
            // Whoever has heard enough hangs up, also before all is said.
            let _ = stream.write_all(said).await;
            let _ = stream.read_to_end(&mut rest).await;
        });
        let session = Session::open(&[place], time_max).await;
        if session.is_err() {
            other.await.unwrap();
        }
        session
    }

    #[tokio::test]
    async fn whoever_is_at_the_other_end_has_neither_our_time_nor_our_memory() {
        let endless: &[u8] = Box::leak(vec![b'x'; 100_000].into_boxed_slice());
        let hello = b"OK 00\r\nl\x02\0\x01\xff\xff\xff\x7f\x01\0\0\0\xff\xff\xff\x7f";
        let mut chatty = b"OK 00\r\n".to_vec();
        for serial in 1..200 {
            chatty.extend(Message::empty(Kind::Signal, serial).encode());
        }
        let chatty: &[u8] = Box::leak(chatty.into_boxed_slice());
        for (said, why) in [
            (b"".as_slice(), "does not answer"),
            (b"REJECTED EXTERNAL\r\n", "let us in"),
            (endless, "without end"),
            (hello, "longer than any"),
            (chatty, "nobody asked for"),
            (b"OK 00\r\ngarbage that is long enough", "no order of bytes"),
        ] {
            let error = against(said).await.unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let nowhere = Session::open(&[PathBuf::from("/nonexistent")], Duration::from_secs(60)).await;
        assert!(matches!(nowhere, Err(BusError::None(_))));
        assert!(matches!(
            Session::open(&[], Duration::from_secs(60)).await,
            Err(BusError::None(_))
        ));
    }

    #[test]
    fn a_name_from_the_bus_is_only_a_name() {
        assert_eq!(plain("a.B_1\u{1b}\n<x>"), "a.B_1x");
        assert_eq!(plain(&"n".repeat(1_000)).len(), 255);
    }
}
