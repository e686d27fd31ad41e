//! Runs the promises in both legs: as root and as an ordinary user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use crate::ground::{Promise, Scene, control_main};

/// The ordinary uid of the second leg, which no user has.
const ORDINARY: u32 = 65_530;

/// Says that the other leg has been run already.
const SECOND_LEG: &str = "EFFECTD_ESCAPE_SECOND_LEG";

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("__control") => control_main(&arguments[1..]),
        Some("__runtime") => crate::survivors::runtime_main(&arguments[1]),
        Some("__doctor") => crate::unsupported::doctor_main(&arguments[1]),
        Some("__one") => crate::unsupported::one_main(&arguments[1]),
        _ => return legs(&arguments),
    }
    ExitCode::SUCCESS
}

fn legs(arguments: &[String]) -> ExitCode {
    let is_root = nix::unistd::geteuid().is_root();
    let leg = if is_root { "root" } else { "ordinary" };
    let mut settings = Arguments::from_args();
    // One at a time: some promises are about how many processes there are, or how much memory.
    settings.test_threads = Some(1);
    let trial = |promise: Promise| {
        Trial::test(format!("{} ({leg})", promise.name), move || {
            (promise.keep)(&Scene::new());
            Ok(())
        })
    };
    let trials = crate::promises().into_iter().map(trial).collect();
    let mut failed = libtest_mimic::run(&settings, trials).has_failed();
    if is_root && !settings.list {
        failed |= !ordinary_leg(arguments);
    } else if !is_root && std::env::var_os(SECOND_LEG).is_none() {
        for promise in crate::promises() {
            eprintln!("NOT RUN (needs root): {}", promise.name);
        }
    }
    ExitCode::from(u8::from(failed))
}

/// The same program again, under a uid that owns nothing.
fn ordinary_leg(arguments: &[String]) -> bool {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("escape");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .env_clear()
        .env(SECOND_LEG, "1")
        .env("TMPDIR", "/tmp")
        .envs(std::env::vars().filter(|(name, _)| name == crate::load::CALLS_VARIABLE))
        .uid(ORDINARY)
        .gid(ORDINARY)
        .current_dir("/");
    command.status().unwrap().success()
}
