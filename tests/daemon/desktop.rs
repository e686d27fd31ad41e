//! A session bus of one's own, by the real bus daemon, and somebody on it who shows notifications.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use effectd::desktop::wire::{HEAD_BYTES, Kind, Message, Reader, Writer};

use crate::harness::{LONG, Place};

/// A bus without any service that could be started.
const BUS_CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:LISTEN</listen>
  <auth>EXTERNAL</auth>
  <policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>
"#;

/// A running bus. Killed when the test ends.
pub struct Bus {
    child: Child,
    /// As the environment of a session names it.
    pub address: String,
    socket: PathBuf,
}

impl Bus {
    /// One that listens in the place.
    pub fn start(place: &Place) -> Self {
        let (config, socket) = (place.path("bus.conf"), place.path("bus"));
        let text = BUS_CONFIG.replace("LISTEN", &format!("path={}", socket.display()));
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--print-address=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon is needed for this test: install the package dbus");
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (say, said) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            say.send(line)
        });
        let address = said.recv_timeout(LONG).expect("the bus says where it listens");
        assert!(address.starts_with("unix:"), "the bus did not start: {address:?}");
        Self {
            child,
            address: address.trim().to_owned(),
            socket,
        }
    }

    /// Somebody who shows notifications, and answers each or keeps silent.
    pub fn desktop(&self, answers: Answers) -> Desktop {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let uid = nix::unistd::geteuid().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        stream
            .write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())
            .unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        assert!(line.starts_with(b"OK "), "{line:?}");
        stream.write_all(b"BEGIN\r\n").unwrap();
        let bus = |member| {
            [
                "org.freedesktop.DBus",
                "/org/freedesktop/DBus",
                "org.freedesktop.DBus",
                member,
            ]
        };
        let mut name = Writer::default();
        name.text("org.freedesktop.Notifications").number(4);
        let hello = Message::call(1, bus("Hello"));
        let own = Message::call(2, bus("RequestName")).with("su", name);
        for call in [hello, own] {
            stream.write_all(&call.encode()).unwrap();
            let answer = loop {
                let message = read(&mut stream).expect("the bus answers");
                if message.reply_to == Some(call.serial) {
                    break message;
                }
            };
            assert_eq!(answer.kind, Kind::Return, "{answer:?}");
        }
        let (seen, shown) = channel();
        let hang_up = stream.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut serial = 2;
            while let Some(message) = read(&mut stream) {
                if message.member.as_deref() != Some("Notify") {
                    continue;
                }
                let _ = seen.send(Shown::of(&message));
                serial += 1;
                let mut reply = Message::empty(Kind::Return, serial);
                reply.reply_to = Some(message.serial);
                reply.destination = message.sender;
                let mut number = Writer::default();
                number.number(serial);
                if answers == Answers::Each {
                    let _ = stream.write_all(&reply.with("u", number).encode());
                }
            }
        });
        Desktop { shown, hang_up }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next message; nothing when the other end is gone.
fn read(stream: &mut UnixStream) -> Option<Message> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).ok()?;
    let mut bytes = head.to_vec();
    bytes.resize(Message::length(&head, 1 << 20).unwrap(), 0);
    stream.read_exact(&mut bytes[HEAD_BYTES..]).ok()?;
    Some(Message::decode(&bytes).unwrap())
}

/// What a desktop does when it was asked to show something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    Each,
    Never,
}

/// Somebody who shows notifications. Leaves the bus when it is dropped.
pub struct Desktop {
    shown: Receiver<Shown>,
    hang_up: UnixStream,
}

impl Desktop {
    /// The next that it was asked to show.
    pub fn next(&self) -> Shown {
        self.shown
            .recv_timeout(LONG)
            .expect("the desktop is asked to show something")
    }

    /// Whether it was asked for nothing more.
    pub fn is_quiet(&self) -> bool {
        self.shown.try_recv().is_err()
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        let _ = self.hang_up.shutdown(std::net::Shutdown::Both);
    }
}

/// What a desktop was asked to show.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub program: String,
    pub title: String,
    pub body: String,
    pub urgency: u8,
}

impl Shown {
    fn of(message: &Message) -> Self {
        assert_eq!(message.signature, "susssasa{sv}i");
        let mut values = Reader::new(&message.body, message.order);
        let program = values.text().unwrap().to_owned();
        assert_eq!((values.number(), values.text()), (Ok(0), Ok("")));
        let title = values.text().unwrap().to_owned();
        let body = values.text().unwrap().to_owned();
        assert!(values.array(4).unwrap().is_at_end());
        let mut hints = values.array(8).unwrap();
        hints.structure().unwrap();
        assert_eq!((hints.text(), hints.signature()), (Ok("urgency"), Ok("y")));
        let urgency = hints.byte().unwrap();
        assert_eq!(values.number(), Ok(u32::MAX));
        assert!(hints.is_at_end() && values.is_at_end());
        Self {
            program,
            title,
            body,
            urgency,
        }
    }
}
