//! Calls that make room leave half of the processors to whoever asks, as long as they are short.

use std::time::Duration;

use effectd_contracts::SandboxProfile;
use effectd_contracts::bound::Tunable as _;
use effectd_sandbox::Call;
use effectd_sandbox::limits::ROOM_CALL_US_MAX;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::{Pid, gettid};
use serde_json::json;

use crate::ground::{DEFAULT, EXEC, Promise, Scene};
use crate::survivors::{beneath, eventually};

/// The processors on which a process may run; none if it is gone.
fn processors(pid: u32) -> Option<CpuSet> {
    sched_getaffinity(Pid::from_raw(pid.cast_signed())).ok()
}

/// Those of the zygote of a profile and of its children.
fn of_zygote(scene: &Scene, profile: SandboxProfile) -> Vec<CpuSet> {
    let zygotes = scene.sandbox.zygotes();
    let zygote = zygotes
        .iter()
        .find(|zygote| zygote.profile == profile && zygote.space_root == scene.workspace);
    let all = beneath(zygote.unwrap().guard_pid);
    all.into_iter().filter_map(processors).collect()
}

fn call(scene: &Scene, profile: SandboxProfile, attack: &str, makes_room: bool) -> Call {
    Call {
        makes_room,
        ..scene.call(profile, attack, json!(null))
    }
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise {
        name: "calls_that_make_room_keep_to_half_of_the_processors_while_they_are_short",
        keep: |scene| {
            let everywhere = processors(std::process::id()).unwrap();
            let count = std::thread::available_parallelism().unwrap().get();
            assert!(count > 1, "this needs a host with more than one processor");
            // Where there are many, everybody finds one that is free.
            let few = count <= 4;
            // Whatever this machine takes for a call.
            ROOM_CALL_US_MAX.set(1_000_000).unwrap();
            // A thread that everybody waits for keeps to the other half meanwhile.
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel::<()>();
            let waited_for = std::thread::spawn(move || {
                tell.send(gettid()).unwrap();
                ends.recv().unwrap();
            });
            let thread = told.recv().unwrap();
            scene.sandbox.leave_room_for(thread.as_raw());
            for (makes_room, profile) in [(true, DEFAULT), (false, DEFAULT), (true, EXEC), (true, DEFAULT)] {
                if !scene.profiles().contains(&profile) {
                    continue;
                }
                let is_expected =
                    |one: &CpuSet| (*one != everywhere) == (few && makes_room && profile == DEFAULT);
                // What waits was made before, and there may be several.
                eventually("children for such calls", || {
                    scene.run(call(scene, profile, "echo", makes_room));
                    eventually("a child for the next call", || {
                        of_zygote(scene, profile).len() > 1
                    });
                    of_zygote(scene, profile).iter().all(is_expected)
                });
                let own = sched_getaffinity(thread).unwrap();
                assert!(is_expected(&own), "{profile}, {makes_room}: {own:?}");
                if own != everywhere {
                    let theirs = of_zygote(scene, profile);
                    assert!(theirs.iter().all(|theirs| *theirs != own), "{theirs:?}, {own:?}");
                }
            }
            end.send(()).unwrap();
            waited_for.join().unwrap();
            let long = scene.sandbox.call(call(scene, DEFAULT, "stay", true));
            let let_out = async {
                while !of_zygote(scene, DEFAULT).contains(&everywhere) {
                    tokio::task::yield_now().await;
                }
            };
            scene.runtime.block_on(async {
                tokio::select! {
                    answer = long => panic!("{answer:?}"),
                    late = tokio::time::timeout(Duration::from_secs(60), let_out) => late.unwrap(),
                }
            });
        },
    }]
}
