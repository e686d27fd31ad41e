//! Attacks on the broker and through it. Each first succeeds with a plain client; then the same is asked of the real process.
//!
//! The suite has a network of its own, in which every address is this machine: so a plain client really reaches "8.8.8.8" and
//! "169.254.169.254", and what refuses is the broker alone. That takes root. What the broker promises beside is shown for an
//! ordinary user, too, with servers of this machine.
//!
//! A child that floods the channel, and one that lies about its connection, are attacks on the daemon and not here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_types,
    clippy::disallowed_methods
)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod addresses;
mod bodies;
mod credentials;
mod life;
mod names;
mod network;
mod plain;
mod redirects;
mod requests;
mod server;
mod tls;
mod world;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use crate::world::{World, has_network};

/// One case: a name, the attack with a plain client, and with the broker. Both return whether the attack succeeded.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) plain: Box<dyn Fn(&World) -> bool + Send>,
    pub(crate) broker: Box<dyn Fn(&World) -> bool + Send>,
}

pub(crate) fn case(
    name: impl Into<String>,
    plain: impl Fn(&World) -> bool + Send + 'static,
    broker: impl Fn(&World) -> bool + Send + 'static,
) -> Case {
    Case { name: name.into(), plain: Box::new(plain), broker: Box::new(broker) }
}

/// Set for the second leg, which an ordinary user runs.
const SECOND_LEG: &str = "EFFECTD_ATTACKS_SECOND_LEG";
/// Owns nothing.
const ORDINARY: u32 = 65_533;

fn main() -> ExitCode {
    effectd_egress::init();
    let arguments = Arguments::from_args();
    let is_root = has_network();
    if is_root && !arguments.list {
        network::enter();
    }
    let cases = [
        addresses::cases(),
        names::cases(),
        redirects::cases(),
        requests::cases(),
        credentials::cases(),
        bodies::cases(),
        tls::cases(),
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let attacks = cases.len();
    assert!(attacks >= 50, "{attacks} cases");
    let mut trials = Vec::new();
    if is_root {
        trials.extend(cases.into_iter().map(trial));
    } else if std::env::var_os(SECOND_LEG).is_none() {
        for case in cases {
            eprintln!("NOT RUN (needs root): {}", case.name);
        }
    }
    let leg = if is_root { "root" } else { "ordinary" };
    trials.extend(life::promises().into_iter().map(|(name, keep)| {
        Trial::test(format!("{name} ({leg})"), move || {
            keep(&World::new());
            Ok(())
        })
    }));
    let mut failed = libtest_mimic::run(&arguments, trials).has_failed();
    if is_root && !arguments.list {
        println!("{attacks} attacks, each with a plain client first, unless filtered out");
        failed |= !ordinary_leg();
    }
    ExitCode::from(u8::from(failed))
}

/// The promises again, by a user who owns nothing: the broker has no user of its own then.
fn ordinary_leg() -> bool {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("attacks");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).env_clear().env(SECOND_LEG, "1").env("RUST_TEST_THREADS", "4");
    command.uid(ORDINARY).gid(ORDINARY).current_dir("/").status().unwrap().success()
}

fn trial(case: Case) -> Trial {
    Trial::test(case.name, move || {
        if !(case.plain)(&World::new()) {
            return Err("the attack fails with a plain client, too: it proves nothing".into());
        }
        if (case.broker)(&World::new()) { Err("the attack succeeds with the broker".into()) } else { Ok(()) }
    })
}
