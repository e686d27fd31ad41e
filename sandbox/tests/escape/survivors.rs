//! Nothing outlives its call, its zygote or the runtime.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use effectd_sandbox::Call;
use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, Ground, Promise, Scene, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("daemonise", daemonise), ("stay", stay)];

/// Starts a process that has left its parent, its session and its group, and ignores what can be ignored. As long as it
/// lives it holds a lock on `alive`.
fn daemonise(_: &Ground<'_>, with: &Value) -> Value {
    // SAFETY: each copy of this single-threaded program runs on alone and never returns to the caller.
    unsafe {
        if libc::fork() == 0 {
            libc::setsid();
            if libc::fork() == 0 {
                for signal in 1..32 {
                    libc::signal(signal, libc::SIG_IGN);
                }
                let file = fs::File::create("alive").unwrap();
                file.lock().unwrap();
                fs::write("locked", "").unwrap();
                loop {
                    libc::pause();
                }
            }
            libc::_exit(0);
        }
        libc::wait(std::ptr::null_mut());
    }
    while !fs::exists("locked").unwrap() {
        std::thread::yield_now();
    }
    if with == "and stay" {
        return stay(&Ground { workspace: nix_stdin(), tmp: nix_stdin(), side_channel: None }, with);
    }
    json!(true)
}

fn nix_stdin() -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: standard input is open in every process here.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(0) }
}

fn stay(_: &Ground<'_>, _: &Value) -> Value {
    fs::write("started", "").unwrap();
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// Waits for a kernel event that has no handle, within bounds.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All living processes beneath `pid`, by the kernel's own table.
pub(crate) fn beneath(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let path = format!("/proc/{0}/task/{0}/children", found[at]);
        let children = fs::read_to_string(path).unwrap_or_default();
        found.extend(children.split_whitespace().map(|child| child.parse::<u32>().unwrap()));
        at += 1;
    }
    found.remove(0);
    found
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Every cgroup folder in which this process may have made groups, with the number of its own bases there.
fn cgroup_bases() -> Vec<(String, usize)> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = format!("effectd-{}-", std::process::id());
    let mut found = Vec::new();
    for group in groups.lines().filter_map(|line| line.rsplit(':').next()) {
        for tree in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"] {
            let place = format!("{tree}{group}");
            let entries = fs::read_dir(&place).into_iter().flatten().flatten();
            let bases = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own));
            found.push((place, bases.count()));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The groups that this process has made and not removed, in all trees.
pub(crate) fn own_cgroups() -> usize {
    let own = format!("effectd-{}-", std::process::id());
    let mut count = 0;
    for (place, _) in cgroup_bases() {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&own) {
                let groups = fs::read_dir(entry.path()).into_iter().flatten().flatten();
                count += groups.filter(|group| group.path().is_dir()).count();
            }
        }
    }
    count
}

/// Whether the process that `daemonise` has started is alive: the kernel gives its lock free only when it is gone.
fn survives(scene: &Scene) -> bool {
    fs::File::open(scene.workspace.join("alive")).unwrap().try_lock().is_err()
}

fn guard(scene: &Scene) -> u32 {
    scene.sandbox.zygotes()[0].guard_pid
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "nothing_survives_the_answer",
            keep: |scene| {
                assert_eq!(replied(&scene.attack(EXEC, "daemonise", json!(null))), json!(true));
                assert!(!survives(scene));
                fs::remove_file(scene.workspace.join("locked")).unwrap();
                // Not by a pipe: the survivor would hold it open, and the test would wait for its end.
                let mut control = scene.control_command("daemonise", &json!(null));
                assert!(control.stdout(Stdio::null()).status().unwrap().success());
                assert!(survives(scene), "the control");
                end_strays(scene);
            },
        },
        Promise {
            name: "nothing_survives_the_deadline",
            keep: |scene| {
                for (profile, attack) in [(EXEC, "daemonise"), (DEFAULT, "burn"), (DEFAULT, "stay")] {
                    let with = if attack == "burn" { json!(60_000) } else { json!("and stay") };
                    let mut timeout = Duration::from_millis(300);
                    loop {
                        let begun = Instant::now();
                        let answer = scene.run(Call { timeout, ..scene.call(profile, attack, with.clone()) });
                        assert_eq!(killed(&answer).as_str(), "timed_out", "{attack}");
                        let took = begun.elapsed();
                        assert!(
                            took >= timeout && took < timeout + Duration::from_secs(30),
                            "{attack}: {took:?}"
                        );
                        // On a machine that stalls, the deadline may pass before the survivor starts: then retry with a later one.
                        if attack != "daemonise" || scene.workspace.join("locked").exists() {
                            break;
                        }
                        timeout *= 2;
                        assert!(timeout < Duration::from_secs(60), "{attack} never began");
                    }
                }
                assert!(!survives(scene));
            },
        },
        Promise {
            name: "a_call_that_is_dropped_is_killed",
            keep: |scene| {
                let call = scene.call(EXEC, "daemonise", json!("and stay"));
                scene.runtime.block_on(async {
                    let call = scene.sandbox.call(call);
                    let started = async {
                        while !scene.workspace.join("started").exists() {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! {
                        answer = call => panic!("{answer:?}"),
                        () = started => {}
                    }
                });
                eventually("its end", || !survives(scene));
                assert_eq!(
                    replied(&scene.attack(DEFAULT, "echo", json!(1)))["echo"],
                    json!(1),
                    "the next call works"
                );
            },
        },
        Promise {
            name: "a_zygote_that_dies_ends_its_calls_and_is_replaced",
            keep: |scene| {
                assert_eq!(replied(&scene.attack(DEFAULT, "echo", json!(1)))["echo"], json!(1));
                let guard = guard(scene);
                let zygote = beneath(guard)[0];
                let begun = Instant::now();
                let answer = std::thread::scope(|threads| {
                    threads.spawn(|| {
                        eventually("the start", || scene.workspace.join("started").exists());
                        nix::sys::signal::kill(
                            nix::unistd::Pid::from_raw(zygote as i32),
                            nix::sys::signal::SIGKILL,
                        )
                        .unwrap();
                    });
                    scene.attack(DEFAULT, "stay", json!(null))
                });
                assert_eq!(killed(&answer).as_str(), "sandbox_failed", "{answer:?}");
                assert!(begun.elapsed() < Duration::from_secs(30), "it was noticed late");
                eventually("the end of all", || !is_alive(guard) && beneath(guard).is_empty());
                assert_eq!(
                    replied(&scene.attack(DEFAULT, "echo", json!(2)))["echo"],
                    json!(2),
                    "it is replaced"
                );
            },
        },
        Promise {
            name: "nothing_survives_the_runtime",
            keep: |scene| {
                let mut runtime = std::process::Command::new(std::env::current_exe().unwrap());
                let runtime = runtime.arg("__runtime").arg(&scene.workspace).stdout(Stdio::piped());
                let mut runtime = runtime.spawn().unwrap();
                let mut line = String::new();
                BufReader::new(runtime.stdout.take().unwrap()).read_line(&mut line).unwrap();
                let guard: u32 = line.trim().parse().unwrap();
                eventually("the start", || scene.workspace.join("started").exists());
                let all = beneath(guard);
                assert!(all.len() >= 3, "zygote, call and survivor: {all:?}");
                runtime.kill().unwrap();
                runtime.wait().unwrap();
                for pid in all.into_iter().chain([guard]) {
                    eventually("the end of all", || !is_alive(pid));
                }
                assert!(!survives(scene));
            },
        },
        Promise {
            name: "nothing_survives_the_sandbox_handle",
            keep: |_| {
                let scene = Scene::new();
                scene.attack(EXEC, "echo", json!(1));
                let guard = guard(&scene);
                // The call itself is dead, but may not be reaped yet.
                let mut all = beneath(guard);
                all.retain(|pid| is_alive(*pid));
                assert!(!all.is_empty());
                drop(scene.sandbox);
                for pid in all.into_iter().chain([guard]) {
                    assert!(!is_alive(pid), "all are gone when drop returns");
                }
                // The scene that every promise is given has one of its own.
                for base in cgroup_bases() {
                    assert!(base.1 <= 1, "groups are left behind in {}", base.0);
                }
            },
        },
        Promise {
            name: "the_runtime_itself_stays_unconfined",
            keep: |scene| {
                for turn in 0..100 {
                    assert_eq!(replied(&scene.attack(DEFAULT, "echo", json!(turn)))["echo"], json!(turn));
                }
                fs::write(scene.outside.join("free"), "x").unwrap();
                fs::read("/proc/self/status").unwrap();
                std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let guard = guard(scene);
                eventually("reaping", || beneath(guard).len() <= 1 + 16);
            },
        },
    ]
}

/// Ends what this scene's own control has left behind on purpose.
pub(crate) fn end_strays(scene: &Scene) {
    let workspace = scene.workspace.to_str().unwrap();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if command.split('\0').skip(1).take(2).eq(["__control", workspace]) {
            let _gone = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
    }
}

/// A separate runtime with a call that never ends: `__runtime <workspace>`. Prints its guard's pid.
pub(crate) fn runtime_main(workspace: &str) {
    let mut scene = Scene::new();
    scene.workspace = workspace.into();
    let call = scene.call(EXEC, "daemonise", json!("and stay"));
    scene.runtime.block_on(async {
        scene.sandbox.warm(EXEC, &call.space_root).await.unwrap();
        println!("{}", guard(&scene));
        scene.sandbox.call(call).await.unwrap();
    });
}
