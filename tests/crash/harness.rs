//! Runs the tests, a few at a time, and says how each went.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::Test;

/// Processes side by side: they wait for the disk and for each other more than they compute.
pub(crate) const SIDE_BY_SIDE: usize = 4;

pub(crate) fn main(tests: &[Test]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let exact = arguments.iter().any(|argument| argument == "--exact");
    let wanted = |name: &str| match filter {
        Some(filter) if exact => name == filter,
        Some(filter) => name.contains(filter.as_str()),
        None => true,
    };
    let chosen: Vec<_> = tests.iter().filter(|(name, _)| wanted(name)).collect();
    let failed: Vec<_> = chosen
        .iter()
        .filter(|(name, test)| {
            let begun = Instant::now();
            let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
            let verdict = if passed { "ok" } else { "FAILED" };
            println!("test {name} ... {verdict} ({} ms)", begun.elapsed().as_millis());
            !passed
        })
        .map(|(name, _)| *name)
        .collect();
    println!(
        "crash: {} passed, {} failed {failed:?}",
        chosen.len() - failed.len(),
        failed.len()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The panics that the tests ask for are no news.
pub(crate) fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let said = info.payload_as_str().unwrap_or_default();
        if !said.starts_with("failpoint ") {
            usual(info);
        }
    }));
}

/// Does the same with each of these, a few side by side, in any order; the results are in order.
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

/// Threads of its own for an asynchronous test.
pub(crate) fn asynchronously(test: impl Future<Output = ()>) {
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    threads.block_on(test);
}
