//! Failpoints: named stops between the steps of a write, for the crash tests.
//!
//! With the feature `failpoints`, a process with `EFFECTD_FAILPOINT=<name>:<n>` in its environment writes a line to the
//! descriptor `EFFECTD_FAILPOINT_FD` and stops forever when it passes that point for the n-th time. The test reads the line
//! and kills the process there. No release has the feature; only development dependencies of tests enable it.

/// Every point there is, so that tests can visit all of them.
#[cfg(feature = "failpoints")]
pub const POINTS: [&str; 22] = [
    "journal.opening",
    "writer.before_append",
    "journal.after_begin",
    "journal.after_table",
    "journal.after_insert",
    "journal.after_flush",
    "writer.after_append",
    "writer.before_answer",
    "index.before_write",
    "index.after_write",
    "index.before_sync",
    "index.before_rename",
    "index.after_rename",
    "index.after_merge",
    "index.before_drop",
    "retain.staged",
    "retain.taken_out",
    "retain.flushed",
    "retain.in_force",
    "journal.forwarded",
    "migrate.written",
    "migrate.in_force",
];

#[cfg(not(feature = "failpoints"))]
pub(crate) fn hit(_: &'static str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn hit(name: &'static str) {
    armed::hit(name);
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    pub(super) fn hit(name: &'static str) {
        debug_assert!(super::POINTS.contains(&name), "{name} is not in the list of points");
        let Some((armed, nth)) = ARMED.get_or_init(read) else {
            return;
        };
        if armed == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *nth {
            stop();
        }
    }

    fn read() -> Option<(String, u64)> {
        let armed = std::env::var("EFFECTD_FAILPOINT").ok()?;
        let (name, nth) = armed.rsplit_once(':')?;
        Some((name.to_owned(), nth.parse().ok()?))
    }

    fn stop() -> ! {
        let fd = std::env::var("EFFECTD_FAILPOINT_FD").unwrap_or_default();
        if let Ok(mut marker) = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}")) {
            let _ = marker.write_all(b"stopped\n");
        }
        loop {
            std::thread::park();
        }
    }
}
