//! Failpoints: named points of the pipeline at which the crash tests inject a fault, by the Store's mechanism.

use effectd_contracts::ActionId;

/// All points, in the order in which an action passes them.
#[cfg(feature = "failpoints")]
pub const POINTS: [&str; 49] = [
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
    "plan.before_verify",
    "plan.before_repair",
    "plan.before_rollback",
    "plan.after_rollback",
    "executor.end",
    "recorder.begin",
    "recorder.before_commit",
    "recorder.after_commit",
    "recorder.after_answer",
    "sweeper.begin",
    "batch.begun",
    "batch.stopped",
    "batch.undone",
    "operation.begun",
    "operation.done",
    "operation.recorded",
    "session.marked",
    "session.holds",
    "session.grants",
    "session.letters",
    "session.blobs",
    "session.done",
    "automation.stored",
    "automation.saved",
];

#[cfg(not(feature = "failpoints"))]
pub(crate) async fn hit(_: &'static str, _: &ActionId) {}

#[cfg(not(feature = "failpoints"))]
pub(crate) async fn hit_idle(_: &'static str) {}

#[cfg(feature = "failpoints")]
pub(crate) async fn hit(name: &'static str, action: &ActionId) {
    hit_by(name, Some(action)).await;
}

#[cfg(feature = "failpoints")]
pub(crate) async fn hit_idle(name: &'static str) {
    hit_by(name, None).await;
}

#[cfg(feature = "failpoints")]
pub use effectd_bus::failpoint::{Fault, Trap, sprung_at};

#[cfg(feature = "failpoints")]
pub fn arm(trap: Trap) {
    assert!(POINTS.contains(&trap.point.as_str()), "{} is not in the list of points", trap.point);
    effectd_bus::failpoint::arm(trap);
}

#[cfg(feature = "failpoints")]
async fn hit_by(name: &'static str, action: Option<&ActionId>) {
    debug_assert!(POINTS.contains(&name), "{name} is not in the list of points");
    match effectd_bus::failpoint::sprung(name, action) {
        None => {}
        Some(Fault::Stop) => effectd_bus::failpoint::stop(),
        Some(Fault::Panic) => panic!("failpoint {name}"),
        Some(Fault::Stall) => {
            tracing::info!(failpoint = name, "stalled for good");
            std::future::pending().await
        }
    }
}
