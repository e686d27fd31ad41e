//! The library's public surface, inside a program with tools of its own.

use effectd::contracts::{Code, Outcome};
use effectd::{ActionStatus, Cancellation, Effectd, Error, Executed};

use crate::Test;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed, request, request_how};
use crate::tools::{NEVER, PROBE, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("the_library_executes_submits_and_reports", executes),
    ("the_library_bounds_its_backlog", bounded),
    ("the_library_installs_no_policy", no_policy),
    ("the_library_stops_in_order_with_a_live_handle", live_handle),
];

fn executes() {
    asynchronously(async {
        let place = Place::new();
        let effectd = Effectd::builder(place.state()).start().await.unwrap();
        let executed = effectd.execute(parsed(&request("executed", SAFE))).await;
        let Ok(Executed::Done(done)) = executed else { panic!("{executed:?}") };
        assert_eq!(done.receipt.outcome, Outcome::Executed);
        let repeated = effectd.execute(parsed(&request("executed", SAFE))).await;
        let Ok(Executed::Done(before)) = repeated else { panic!("{repeated:?}") };
        assert!(before.before && done.result.as_ref().unwrap().is_some());
        assert_eq!(before.result, done.result);
        let action = effectd.submit(parsed(&request("submitted", PROBE))).await.unwrap();
        let done = action.receipt().await.unwrap();
        assert_eq!(done.receipt.outcome, Outcome::Executed);
        let status = action.status().await.unwrap();
        assert!(matches!(status, ActionStatus::Done(_)), "{status:?}");
        let cancelled = action.cancel().await.unwrap();
        assert!(matches!(cancelled, Cancellation::AlreadyEnded(_)), "{cancelled:?}");
        drop(action);
        assert!(effectd.shutdown().await);
    });
}

/// While one submitted action runs, a second one exceeds a backlog of one.
fn bounded() {
    asynchronously(async {
        let place = Place::new();
        let effectd = Effectd::builder(place.state()).setting("gateway.backlog_max", 1);
        let effectd = effectd.start().await.unwrap();
        let marker = place.marker();
        let first = effectd.submit(parsed(&request_how("a", NEVER, "wait"))).await;
        let first = first.unwrap();
        let waiting = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE));
        assert_eq!(waiting.await.unwrap().as_deref(), Ok("waiting"));
        let rejected = effectd.submit(parsed(&request("b", SAFE))).await.unwrap_err();
        assert_eq!(rejected.failure().code, Code::Overloaded);
        place.open_gate();
        assert_eq!(first.receipt().await.unwrap().receipt.outcome, Outcome::Executed);
        drop(first);
        assert!(effectd.shutdown().await);
    });
}

fn no_policy() {
    asynchronously(async {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let refused = Effectd::builder(&state).start().await;
        assert!(matches!(refused, Err(Error::Policy(_))), "{refused:?}");
        assert!(!state.join("policy").exists());
    });
}

/// A handle that outlives the shutdown does not keep the state in use.
fn live_handle() {
    asynchronously(async {
        let place = Place::new();
        let effectd = Effectd::builder(place.state()).start().await.unwrap();
        let action = effectd.submit(parsed(&request("a", SAFE))).await.unwrap();
        assert_eq!(action.receipt().await.unwrap().receipt.outcome, Outcome::Executed);
        assert!(effectd.shutdown().await);
        let again = Effectd::builder(place.state()).start().await.unwrap();
        assert!(again.shutdown().await);
        drop(action);
    });
}
