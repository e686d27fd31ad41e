//! A real session bus for one test, and a notification service on it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::runtime::Runtime;
use zbus::OwnedVariant;

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
    /// Its address, as in `DBUS_SESSION_BUS_ADDRESS`.
    pub address: String,
}

impl Bus {
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
        Self { child, address: address.trim().to_owned() }
    }

    /// A service that shows notifications, and answers each or none.
    pub fn desktop(&self, answers: Answers) -> Desktop {
        let (seen, shown) = channel();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = zbus::connection::Builder::address(self.address.as_str())
            .serve_at("/org/freedesktop/Notifications", Service { seen, answers })
            .name("org.freedesktop.Notifications");
        let connection = runtime.block_on(service.build()).unwrap();
        Desktop { shown, connection: Some(connection), runtime }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How the notification service behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    Each,
    Never,
}

struct Service {
    seen: Sender<Shown>,
    answers: Answers,
}

#[zbus::interface(name = "org.freedesktop.Notifications")]
impl Service {
    #[expect(clippy::too_many_arguments, reason = "the interface of desktops")]
    async fn notify(
        &self,
        program: String,
        replaces: u32,
        icon: String,
        title: String,
        body: String,
        actions: Vec<String>,
        hints: HashMap<String, OwnedVariant>,
        time: i32,
    ) -> u32 {
        assert_eq!((replaces, icon.as_str(), actions.len(), time), (0, "", 0, -1));
        assert_eq!(hints.len(), 1, "{hints:?}");
        let urgency = u8::try_from(&hints["urgency"]).unwrap();
        let _ = self.seen.send(Shown { program, title, body, urgency });
        if self.answers == Answers::Never {
            std::future::pending::<()>().await;
        }
        1
    }
}

/// A service that shows notifications. Leaves the bus when it is dropped.
pub struct Desktop {
    shown: Receiver<Shown>,
    connection: Option<zbus::Connection>,
    runtime: Runtime,
}

impl Desktop {
    pub fn next(&self) -> Shown {
        self.shown.recv_timeout(LONG).expect("the desktop is asked to show something")
    }

    pub fn is_quiet(&self) -> bool {
        self.shown.try_recv().is_err()
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = self.runtime.block_on(connection.close());
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub program: String,
    pub title: String,
    pub body: String,
    pub urgency: u8,
}
