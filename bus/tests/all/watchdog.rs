//! Nothing here may wait forever: a store that hangs must fail the run, and say where.

use std::sync::Once;
use std::time::Duration;

/// Far more than all tests of this binary take, on a slow machine.
const ALL_TESTS_MAX: Duration = Duration::from_secs(900);

/// Ends the process, with words, if its tests have not ended in time. Every test that opens a store calls it.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(ALL_TESTS_MAX);
            let threads: Vec<String> = std::fs::read_dir("/proc/self/task")
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
                .map(|name| name.trim_end().to_owned())
                .collect();
            eprintln!("the tests have not ended after {ALL_TESTS_MAX:?}; threads: {threads:?}");
            std::process::abort();
        });
    });
}
