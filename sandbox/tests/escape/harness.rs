//! Runs the promises, in both legs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, exit};
use std::time::Instant;

use crate::ground::{Scene, control_main};

/// The ordinary uid of the second leg; nobody's.
const ORDINARY: u32 = 65_530;

/// Says that the other leg has been run already.
const SECOND_LEG: &str = "--second-leg";

pub(crate) fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("__control") => return control_main(&arguments[1..]),
        Some("__runtime") => return crate::survivors::runtime_main(&arguments[1]),
        Some("__doctor") => return crate::unsupported::doctor_main(&arguments[1]),
        Some("__one") => return crate::unsupported::one_main(&arguments[1]),
        Some("--list") => return list(),
        _ => {}
    }
    let is_root = nix::unistd::geteuid().is_root();
    let filter = arguments
        .iter()
        .find(|argument| !argument.starts_with('-'))
        .cloned();
    let mut failed = run_leg(if is_root { "root" } else { "ordinary" }, filter.as_deref());
    if is_root {
        failed |= !ordinary_leg(filter.as_deref());
    } else if !arguments.iter().any(|argument| argument == SECOND_LEG) {
        for promise in crate::promises() {
            eprintln!("NOT RUN (needs root): {}", promise.name);
        }
    }
    exit(i32::from(failed));
}

fn list() {
    for promise in crate::promises() {
        println!("{}: test", promise.name);
    }
}

fn run_leg(leg: &str, filter: Option<&str>) -> bool {
    let mut failed = Vec::new();
    let mut passed = 0;
    for promise in crate::promises() {
        if filter.is_some_and(|filter| !promise.name.contains(filter)) {
            continue;
        }
        let begun = Instant::now();
        let kept = catch_unwind(AssertUnwindSafe(|| (promise.keep)(&Scene::new())));
        let verdict = if kept.is_ok() { "ok" } else { "FAILED" };
        println!(
            "test {} ({leg}) ... {verdict} ({} ms)",
            promise.name,
            begun.elapsed().as_millis()
        );
        match kept {
            Ok(()) => passed += 1,
            Err(_) => failed.push(promise.name),
        }
    }
    println!(
        "escape, {leg} leg: {passed} kept, {} broken {failed:?}",
        failed.len()
    );
    !failed.is_empty()
}

/// The same program again, under a uid that owns nothing.
fn ordinary_leg(filter: Option<&str>) -> bool {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("escape");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command
        .arg(SECOND_LEG)
        .args(filter)
        .env_clear()
        .env("TMPDIR", "/tmp")
        .envs(std::env::vars().filter(|(name, _)| name == crate::load::CALLS_VARIABLE))
        .uid(ORDINARY)
        .gid(ORDINARY)
        .current_dir("/");
    command.status().unwrap().success()
}
