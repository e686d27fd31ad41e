//! What an operator may set about a door, with the defaults.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Connections open at one time: a planner needs one; a process may by default have 1,024 files open, and the store and
    /// the sandbox need theirs.
    pub connections_max: usize,
    /// Connections of one user at one time: a user that opens all it can leaves room for the others.
    pub connections_per_user_max: usize,
    /// How long a client may take to send its headers, and how long a connection may idle between two requests.
    pub header_time_max: Duration,
    /// How long a client may take to send its body: a megabyte over a local socket takes milliseconds.
    pub body_time_max: Duration,
    /// How long a client may leave its answer unread before its connection is cut.
    pub write_time_max: Duration,
    /// How long one request may wait for a receipt. A client that wants to wait longer asks again; nothing is lost in
    /// between.
    pub wait_time_max: Duration,
    /// Decisions that are accepted and not yet ended; more are turned away.
    pub backlog_max: u64,
    /// Bytes of these decisions: they wait on disk, and a gigabyte of them is more than a day's work of planners.
    pub backlog_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: 512,
            connections_per_user_max: 256,
            header_time_max: Duration::from_secs(15),
            body_time_max: Duration::from_secs(10),
            write_time_max: Duration::from_secs(15),
            wait_time_max: Duration::from_secs(600),
            backlog_max: 100_000,
            backlog_bytes_max: 1 << 30,
        }
    }
}

/// The settings of a door that is open: turned by whoever holds it, and looked at for every connection and request.
#[derive(Debug, Clone)]
pub struct Dial(Arc<RwLock<Arc<Settings>>>);

impl Dial {
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    pub fn settings(&self) -> Arc<Settings> {
        self.0.read().clone()
    }

    /// Turns it: whatever begins from now on goes by these settings.
    pub fn turn(&self, settings: Settings) {
        *self.0.write() = Arc::new(settings);
    }
}
