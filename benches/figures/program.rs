//! The program under measurement, without a benchmark's own variables: it refuses what looks like a misspelt setting.

use std::ffi::OsStr;
use std::process::Command;

pub(crate) fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EFFECTD_BENCH_") {
            command.env_remove(name);
        }
    }
    command
}
