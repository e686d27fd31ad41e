//! Named points on the way of one action, for the crash tests.
//!
//! With the feature `failpoints`, a fault can be armed at a point: from outside, by the environment that the Store's own
//! points use (`EFFECTD_FAILPOINT=<name>:<n>` stops the process for good at the n-th pass, after a line was written to the
//! descriptor that `EFFECTD_FAILPOINT_FD` names, so that the parent can kill it exactly there; with
//! `EFFECTD_FAILPOINT_FAULT=panic` every pass from the n-th on panics instead, with `=stall` it never goes on; several are separated by commas), or from inside, by `arm`, for one action. Without the feature, which no release has, nothing of this exists.

use effectd_contracts::ActionId;

/// Every point there is, in the order of the way, so that tests can visit all of them.
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
pub use armed::{Fault, Trap, arm};

#[cfg(feature = "failpoints")]
mod armed {
    use std::io::Write;
    use std::sync::OnceLock;

    use effectd_contracts::ActionId;
    use parking_lot::Mutex;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault {
        /// The process says where it is, and waits to be killed.
        Stop,
        Panic,
        /// The worker never goes on.
        Stall,
    }

    #[derive(Debug, Clone)]
    pub struct Trap {
        pub point: String,
        /// For which action; for any, if none is named.
        pub action: Option<ActionId>,
        pub nth: u64,
        /// At how many passes from then on.
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
            Mutex::new(
                from_environment()
                    .into_iter()
                    .map(|trap| Set { trap, passed: 0 })
                    .collect(),
            )
        })
    }

    pub fn arm(trap: Trap) {
        let known = super::POINTS.contains(&trap.point.as_str());
        assert!(known, "{} is not in the list of points", trap.point);
        let mut traps = traps().lock();
        traps.push(Set { trap, passed: 0 });
    }

    pub(super) async fn hit(name: &'static str, action: Option<&ActionId>) {
        debug_assert!(
            super::POINTS.contains(&name),
            "{name} is not in the list of points"
        );
        match sprung(name, action) {
            None => {}
            Some(Fault::Stop) => stop(),
            Some(Fault::Panic) => panic!("failpoint {name}"),
            Some(Fault::Stall) => {
                tracing::info!(failpoint = name, "stands here for good");
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
            Some(Trap {
                point: name.to_owned(),
                action: None,
                nth: nth.parse().ok()?,
                times,
                fault,
            })
        });
        traps.collect()
    }

    fn stop() -> ! {
        let fd = std::env::var("EFFECTD_FAILPOINT_FD").unwrap_or_default();
        if let Ok(mut marker) = std::fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/self/fd/{fd}"))
        {
            // Whoever does not hear it does not kill, and the test fails by its own bound.
            let _ = marker.write_all(b"stopped\n");
        }
        loop {
            std::thread::park();
        }
    }
}
