//! The gateway's settings, and how they are shared while it runs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Open connections. A planner needs one; a process may by default have 1,024 files open, and the store and the sandbox
    /// need some of them.
    pub connections_max: usize,
    /// Open connections of one user: fewer than all, so that one user leaves room for others.
    pub connections_per_user_max: usize,
    /// How long a client may take to send its headers, and how long a connection may idle between two requests.
    pub header_time_max: Duration,
    /// How long a client may take to send its body: a megabyte over a local socket takes milliseconds.
    pub body_time_max: Duration,
    /// How long a client may leave its answer unread before its connection is closed.
    pub write_time_max: Duration,
    /// How long one request may wait for a receipt. To wait longer, a client repeats the request.
    pub wait_time_max: Duration,
    /// Accepted decisions that have not ended; more are refused as `overloaded`.
    pub backlog_max: u64,
    /// Bytes of these decisions, which wait on disk.
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

/// Settings that can be replaced while the gateway runs. Every new connection and request reads the current ones.
#[derive(Debug, Clone)]
pub struct SharedSettings(Arc<RwLock<Arc<Settings>>>);

impl SharedSettings {
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    pub fn get(&self) -> Arc<Settings> {
        self.0.read().clone()
    }

    pub fn set(&self, settings: Settings) {
        *self.0.write() = Arc::new(settings);
    }
}
