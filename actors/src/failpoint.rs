//! Failpoints: named points of the pipeline at which the crash tests inject a fault.
//!
//! Compiled only with the feature `failpoints`, which no release has. The environment arms them, as for the Store's failpoints:
//! `EFFECTD_FAILPOINT=<name>:<n>` writes a line to the descriptor `EFFECTD_FAILPOINT_FD` at the n-th pass and then stops the
//! process for good, so that the parent can kill it exactly there. With `EFFECTD_FAILPOINT_FAULT=panic` every pass from the n-th
//! on panics, with `=stall` it hangs. Commas separate several failpoints. Tests in the same process use `arm`, for one action.

use effectd_contracts::ActionId;

/// All points, in the order in which an action passes them.
#[cfg(feature = "failpoints")]
pub const POINTS: [&str; 34] = [
    "door.before_publish",
    "door.after_publish",
    "intake.before_lease",
    "intake.after_lease",
    "validator.begin",
    "validator.end",
    "gate.begin",
    "gate.end",
    "held.begin",
    "held.before_park",
    "held.after_park",
    "held.before_decide",
    "held.after_decide",
    "held.before_end",
    "held.before_act",
    "held.after_act",
    "idempotency.begin",
    "idempotency.before_claim",
    "idempotency.after_claim",
    "idempotency.after_take_over",
    "executor.begin",
    "executor.after_prepare",
    "executor.before_probe",
    "executor.before_child",
    "executor.after_child",
    "executor.end",
    "recorder.begin",
    "recorder.before_commit",
    "recorder.after_commit",
    "recorder.after_answer",
    "sweeper.begin",
    "operation.begun",
    "operation.done",
    "operation.recorded",
];

#[cfg(not(feature = "failpoints"))]
pub(crate) async fn hit(_: &'static str, _: &ActionId) {}

#[cfg(not(feature = "failpoints"))]
pub(crate) async fn hit_idle(_: &'static str) {}

#[cfg(feature = "failpoints")]
pub(crate) async fn hit(name: &'static str, action: &ActionId) {
    armed::hit(name, Some(action)).await;
}

#[cfg(feature = "failpoints")]
pub(crate) async fn hit_idle(name: &'static str) {
    armed::hit(name, None).await;
}

#[cfg(feature = "failpoints")]
pub use armed::{Fault, Trap, arm, sprung_at};

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
        let known = super::POINTS.contains(&trap.point.as_str());
        assert!(known, "{} is not in the list of points", trap.point);
        let mut traps = traps().lock();
        traps.push(Set { trap, passed: 0 });
    }

    /// Whether a fault that was armed for this action has happened at this point.
    pub fn sprung_at(point: &str, action: &ActionId) -> bool {
        let traps = traps().lock();
        traps.iter().any(|set| {
            let trap = &set.trap;
            trap.point == point && trap.action.as_ref() == Some(action) && set.passed >= trap.nth
        })
    }

    pub(super) async fn hit(name: &'static str, action: Option<&ActionId>) {
        debug_assert!(super::POINTS.contains(&name), "{name} is not in the list of points");
        match sprung(name, action) {
            None => {}
            Some(Fault::Stop) => stop(),
            Some(Fault::Panic) => panic!("failpoint {name}"),
            Some(Fault::Stall) => {
                tracing::info!(failpoint = name, "stalled for good");
                std::future::pending().await
            }
        }
    }

    fn sprung(name: &str, action: Option<&ActionId>) -> Option<Fault> {
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

    fn stop() -> ! {
        let fd = std::env::var("EFFECTD_FAILPOINT_FD").unwrap_or_default();
        if let Ok(mut marker) = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}")) {
            // If this write fails, the parent sees no line and the test times out.
            let _ = marker.write_all(b"stopped\n");
        }
        loop {
            std::thread::park();
        }
    }
}
