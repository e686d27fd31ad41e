//! Failpoints: named points at which the crash tests inject a fault, here and in the pipeline.
//!
//! Compiled only with the feature `failpoints`, which no release has. The environment arms them: `EFFECTD_FAILPOINT=<name>:<n>`
//! writes a line to the descriptor `EFFECTD_FAILPOINT_FD` at the n-th pass and then stops the process for good, so that the
//! parent can kill it exactly there. With `EFFECTD_FAILPOINT_FAULT=panic` every pass from the n-th on panics, with `=stall` it
//! hangs. Commas separate several failpoints. Tests in the same process use `arm`, for one action.

/// All points of the Store.
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
    debug_assert!(POINTS.contains(&name), "{name} is not in the list of points");
    match sprung(name, None) {
        None => {}
        Some(Fault::Stop) => stop(),
        Some(Fault::Panic) => panic!("failpoint {name}"),
        Some(Fault::Stall) => park(),
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{Fault, Trap, arm, park, sprung, sprung_at, stop};

#[cfg(feature = "failpoints")]
mod armed {
    use std::io::Write;
    use std::sync::OnceLock;

    use effectd_contracts::ActionId;
    use parking_lot::Mutex;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault {
        /// The process reports the point, and waits to be killed.
        Stop,
        Panic,
        /// The worker hangs.
        Stall,
    }

    #[derive(Debug, Clone)]
    pub struct Trap {
        pub point: String,
        /// The action that meets the fault; `None` for any action.
        pub action: Option<ActionId>,
        pub nth: u64,
        /// How many passes meet the fault, counted from the `nth`.
        pub times: u64,
        pub fault: Fault,
    }

    struct Set {
        trap: Trap,
        passed: u64,
    }

    fn traps() -> &'static Mutex<Vec<Set>> {
        static TRAPS: OnceLock<Mutex<Vec<Set>>> = OnceLock::new();
        TRAPS.get_or_init(|| {
            Mutex::new(from_environment().into_iter().map(|trap| Set { trap, passed: 0 }).collect())
        })
    }

    pub fn arm(trap: Trap) {
        traps().lock().push(Set { trap, passed: 0 });
    }

    /// Whether a fault that was armed for this action has happened at this point.
    pub fn sprung_at(point: &str, action: &ActionId) -> bool {
        let traps = traps().lock();
        traps.iter().any(|set| {
            let trap = &set.trap;
            trap.point == point && trap.action.as_ref() == Some(action) && set.passed >= trap.nth
        })
    }

    /// Counts a pass, and returns its fault.
    pub fn sprung(name: &str, action: Option<&ActionId>) -> Option<Fault> {
        let mut traps = traps().lock();
        let meant = traps.iter_mut().filter(|set| {
            set.trap.point == name && (set.trap.action.is_none() || set.trap.action.as_ref() == action)
        });
        let mut fault = None;
        for set in meant {
            set.passed += 1;
            let from = set.trap.nth;
            if set.passed >= from && set.passed - from < set.trap.times {
                fault = Some(set.trap.fault);
            }
        }
        fault
    }

    fn from_environment() -> Vec<Trap> {
        let (fault, times) = match std::env::var("EFFECTD_FAILPOINT_FAULT").as_deref() {
            Ok("panic") => (Fault::Panic, u64::MAX),
            Ok("stall") => (Fault::Stall, u64::MAX),
            _ => (Fault::Stop, 1),
        };
        let armed = std::env::var("EFFECTD_FAILPOINT").unwrap_or_default();
        let traps = armed.split(',').filter_map(|armed| {
            let (name, nth) = armed.rsplit_once(':')?;
            Some(Trap { point: name.to_owned(), action: None, nth: nth.parse().ok()?, times, fault })
        });
        traps.collect()
    }

    pub fn stop() -> ! {
        let fd = std::env::var("EFFECTD_FAILPOINT_FD").unwrap_or_default();
        if let Ok(mut marker) = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}")) {
            // If this write fails, the parent sees no line and the test times out.
            let _ = marker.write_all(b"stopped\n");
        }
        park()
    }

    pub fn park() -> ! {
        loop {
            std::thread::park();
        }
    }
}
