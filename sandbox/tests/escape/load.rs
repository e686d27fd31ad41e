//! Many calls at a time do not see or disturb each other, and many in a row leave nothing behind.

use std::fs;

use effectd_contracts::SandboxProfile;
use effectd_sandbox::{Ending, Limits};
use serde_json::{Value, json};
use std::time::Duration;

use crate::ground::{Attack, DEFAULT, EXEC, Ground, HIGH, Promise, Scene, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("mark", mark)];

/// An honest call that would notice a neighbour: writes its own file again and again and finds only its own words in it.
fn mark(ground: &Ground<'_>, name: &Value) -> Value {
    use std::os::fd::AsRawFd;
    let name = name.as_str().unwrap();
    for turn in 0..20 {
        fs::write(name, format!("{name} {turn}")).unwrap();
        assert_eq!(fs::read_to_string(name).unwrap(), format!("{name} {turn}"));
    }
    // The scratch folder is its own: nobody else's file is ever in it.
    // SAFETY: opens a file beneath a descriptor that is there; the name is a C string.
    let made = unsafe {
        libc::openat(
            ground.tmp.as_raw_fd(),
            c"mine".as_ptr(),
            libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY,
            0o600,
        )
    };
    json!({ "name": name, "alone": made >= 0, "pid": std::process::id() })
}

/// How many calls are made, in the second promise. The full count of the release checks is 100,000.
pub(crate) const CALLS_VARIABLE: &str = "EFFECTD_TEST_CALLS";
const CALLS_DEFAULT: usize = 25_000;
const LANES: usize = 8;

fn hostile(turn: usize) -> (SandboxProfile, &'static str, Value) {
    let kill_all = json!([[libc::SYS_kill, -1, libc::SIGKILL]]);
    let attacks = [
        (DEFAULT, "raw", kill_all.clone()),
        (EXEC, "raw", kill_all),
        (EXEC, "fork", json!(1_000)),
        (DEFAULT, "eat", json!(400)),
        (DEFAULT, "burn", json!(60_000)),
        (EXEC, "daemonise", json!(null)),
        (HIGH, "every family", json!(null)),
        (DEFAULT, "lie", json!("gigabytes sent")),
    ];
    attacks[turn % attacks.len()].clone()
}

async fn lane(scene: &Scene, lane: usize, turns: usize) {
    for turn in 0..turns {
        if lane.is_multiple_of(2) {
            let (profile, attack, with) = hostile(turn + lane / 2);
            let mut call = scene.call(profile, attack, with);
            call.limits = Limits { memory_bytes: Some(64 << 20), processes: Some(12), ..Limits::default() };
            call.timeout = Duration::from_millis(400);
            scene.sandbox.call(call).await.unwrap();
        } else {
            let profile = [DEFAULT, EXEC, HIGH][turn % 3];
            let name = format!("lane-{lane}");
            let answer = scene.sandbox.call(scene.call(profile, "mark", json!(name))).await;
            let answer = answer.unwrap();
            let expected = json!({ "name": name, "alone": true, "pid": 1 });
            assert_eq!(replied(&answer), expected, "{profile}: {answer:?}");
            assert!(answer.denials.is_empty(), "{answer:?}");
        }
    }
}

/// What of the machine this runtime and everything beneath it hold.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    processes: usize,
    cgroups: usize,
    mounts: usize,
    zygote_kib: u64,
    own_kib: u64,
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn held(scene: &Scene) -> Held {
    let guards: Vec<u32> = scene.sandbox.zygotes().iter().map(|zygote| zygote.guard_pid).collect();
    let beneath: Vec<u32> = guards.iter().flat_map(|guard| crate::survivors::beneath(*guard)).collect();
    let zygotes: Vec<u32> =
        guards.iter().filter_map(|guard| crate::survivors::beneath(*guard).first().copied()).collect();
    // A zygote's own namespace is not ours to read as an ordinary user of another uid; as root it is.
    let mounts = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_or(0, |text| text.lines().count())
    };
    Held {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        processes: beneath.len(),
        cgroups: crate::survivors::own_cgroups(),
        mounts: zygotes.iter().map(mounts).sum::<usize>() + mounts(&std::process::id()),
        zygote_kib: zygotes.iter().map(|pid| resident_kib(*pid)).sum(),
        own_kib: resident_kib(std::process::id()),
    }
}

async fn many(scene: &Scene, calls: usize) {
    let lanes = (0..LANES).map(|lane| async move {
        for turn in 0..calls / LANES {
            let profile = if turn % 16 == 0 { EXEC } else { DEFAULT };
            let answer = scene.sandbox.call(scene.call(profile, "echo", json!(lane))).await.unwrap();
            assert!(matches!(answer.ending, Ending::Replied(_)), "{answer:?}");
        }
    });
    crate::ground::all(lanes.collect()).await;
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "hostile_and_honest_calls_at_once_do_not_disturb_each_other",
            keep: |scene| {
                let lanes = (0..LANES).map(|at| lane(scene, at, 8)).collect();
                scene.runtime.block_on(crate::ground::all(lanes));
            },
        },
        Promise {
            name: "very_many_calls_leave_nothing_behind",
            keep: |scene| {
                let calls = std::env::var(CALLS_VARIABLE).ok().and_then(|count| count.parse().ok());
                let calls = calls.unwrap_or(CALLS_DEFAULT);
                scene.runtime.block_on(many(scene, 400));
                let before = held(scene);
                scene.runtime.block_on(many(scene, calls));
                let most = |before: usize, slack: usize| before + slack;
                // What is kept ready comes and goes; nothing may grow with the number of calls.
                crate::survivors::eventually("what is left over going away", || {
                    let after = held(scene);
                    after.descriptors <= most(before.descriptors, 5 * 32)
                        && after.processes <= most(before.processes, 32)
                });
                let after = held(scene);
                println!("{calls} calls: before {before:?}, after {after:?}");
                assert!(after.cgroups <= most(before.cgroups, 32), "{before:?} {after:?}");
                assert!(after.mounts <= most(before.mounts, 32), "{before:?} {after:?}");
                assert!(after.zygote_kib <= before.zygote_kib + 1_024, "{before:?} {after:?}");
                assert!(after.own_kib <= before.own_kib + 8 * 1_024, "{before:?} {after:?}");
            },
        },
    ]
}
