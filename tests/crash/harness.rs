//! Runs the tests, and what several of them need.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};

use crate::Test;
use crate::place::PATIENCE;

/// Processes at a time: they wait for the disk and for each other more than they compute.
pub(crate) const SIDE_BY_SIDE: usize = 4;

/// Two at a time: each test is several processes already.
pub(crate) fn main(tests: &[Test]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(2);
    let trial = |(name, test): &Test| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.iter().map(trial).collect()).exit_code()
}

/// Does not print the panics that failpoints make.
pub(crate) fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let said = info.payload_as_str().unwrap_or_default();
        if !said.starts_with("failpoint ") {
            usual(info);
        }
    }));
}

/// Does the same with each of these, a few at a time and in any order; the results are in the order of the input.
pub(crate) fn side_by_side<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(index) else { return };
                    let result = work(one);
                    results.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Waits for something that has no handle to wait on.
#[track_caller]
pub(crate) fn until_blocking(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// The same in an asynchronous test.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, waiting).await;
    in_time.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"));
}

/// Runs an asynchronous test on a runtime of four threads.
pub(crate) fn asynchronously(test: impl Future<Output = ()>) {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    threads.block_on(test);
}
