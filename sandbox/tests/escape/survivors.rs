//! Nothing outlives its call, its zygote or its runtime.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use effectd_sandbox::Call;
use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, Ground, Promise, Scene, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("daemonise", daemonise), ("stay", stay)];

/// Starts a process that has left its parent, its session and its group, and ignores what can be ignored. It writes the
/// time into `alive` again and again.
fn daemonise(_: &Ground<'_>, with: &Value) -> Value {
    // SAFETY: each copy of this single-threaded program runs on alone and never returns to the caller.
    unsafe {
        if libc::fork() == 0 {
            libc::setsid();
            if libc::fork() == 0 {
                for signal in 1..32 {
                    libc::signal(signal, libc::SIG_IGN);
                }
                for turn in 0u64.. {
                    let _full = fs::write("alive", turn.to_string());
                    libc::usleep(2_000);
                }
            }
            libc::_exit(0);
        }
        libc::wait(std::ptr::null_mut());
    }
    while !fs::exists("alive").unwrap() {
        std::thread::yield_now();
    }
    if with == "and stay" {
        return stay(
            &Ground {
                workspace: nix_stdin(),
                tmp: nix_stdin(),
            },
            with,
        );
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
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All living processes beneath `pid`, by the kernel's own table.
fn beneath(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let path = format!("/proc/{0}/task/{0}/children", found[at]);
        let children = fs::read_to_string(path).unwrap_or_default();
        found.extend(
            children
                .split_whitespace()
                .map(|child| child.parse::<u32>().unwrap()),
        );
        at += 1;
    }
    found.remove(0);
    found
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// The file is written no more.
fn is_still(scene: &Scene) {
    let read = || fs::read_to_string(scene.workspace.join("alive")).unwrap();
    let before = read();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(read(), before, "something survived");
}

fn guard(scene: &Scene) -> u32 {
    scene.sandbox.zygotes()[0].guard_pid
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "nothing_survives_the_answer",
            keep: |scene| {
                assert_eq!(
                    replied(&scene.attack(EXEC, "daemonise", json!(null))),
                    json!(true)
                );
                is_still(scene);
                let mut control = scene
                    .control_command("daemonise", &json!(null))
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                control.wait().unwrap();
                let read = || fs::read_to_string(scene.workspace.join("alive")).unwrap();
                let before = read();
                eventually("the control's survival", || read() != before);
                end_strays("daemonise");
            },
        },
        Promise {
            name: "nothing_survives_the_deadline",
            keep: |scene| {
                for (profile, attack) in [(EXEC, "daemonise"), (DEFAULT, "burn"), (DEFAULT, "stay")] {
                    let with = if attack == "burn" {
                        json!(60_000)
                    } else {
                        json!("and stay")
                    };
                    let timeout = Duration::from_millis(300);
                    let begun = Instant::now();
                    let answer = scene.run(Call {
                        timeout,
                        ..scene.call(profile, attack, with)
                    });
                    assert_eq!(killed(&answer).as_str(), "timed_out", "{attack}");
                    let took = begun.elapsed();
                    assert!(
                        took >= timeout && took < timeout + Duration::from_secs(2),
                        "{attack}: {took:?}"
                    );
                }
                is_still(scene);
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
                let last = || fs::read_to_string(scene.workspace.join("alive")).unwrap_or_default();
                let mut before = last();
                let mut quiet = Instant::now();
                eventually("its end", || {
                    let now = last();
                    if now != before {
                        before = now;
                        quiet = Instant::now();
                    }
                    quiet.elapsed() > Duration::from_millis(100)
                });
                is_still(scene);
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
                assert_eq!(
                    replied(&scene.attack(DEFAULT, "echo", json!(1)))["echo"],
                    json!(1)
                );
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
                assert!(begun.elapsed() < Duration::from_secs(5), "it was noticed late");
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
                let runtime = runtime
                    .arg("__runtime")
                    .arg(&scene.workspace)
                    .stdout(Stdio::piped());
                let mut runtime = runtime.spawn().unwrap();
                let mut line = String::new();
                BufReader::new(runtime.stdout.take().unwrap())
                    .read_line(&mut line)
                    .unwrap();
                let guard: u32 = line.trim().parse().unwrap();
                eventually("the start", || scene.workspace.join("started").exists());
                let all = beneath(guard);
                assert!(all.len() >= 3, "zygote, call and survivor: {all:?}");
                runtime.kill().unwrap();
                runtime.wait().unwrap();
                for pid in all.into_iter().chain([guard]) {
                    eventually("the end of all", || !is_alive(pid));
                }
                is_still(scene);
            },
        },
        Promise {
            name: "nothing_survives_the_sandbox_handle",
            keep: |_| {
                let scene = Scene::new();
                scene.attack(EXEC, "echo", json!(1));
                let guard = guard(&scene);
                let all = beneath(guard);
                assert!(!all.is_empty() && all.iter().all(|pid| is_alive(*pid)));
                drop(scene.sandbox);
                assert!(!is_alive(guard), "the guard is reaped when drop returns");
                for pid in all {
                    eventually("the end of all", || !is_alive(pid));
                }
            },
        },
        Promise {
            name: "the_runtime_itself_stays_unconfined",
            keep: |scene| {
                for turn in 0..100 {
                    assert_eq!(
                        replied(&scene.attack(DEFAULT, "echo", json!(turn)))["echo"],
                        json!(turn)
                    );
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

/// Ends what a control has left behind on purpose.
fn end_strays(attack: &str) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let mut parts = command.split('\0');
        if parts.nth(1) == Some("__control") && parts.nth(1) == Some(attack) {
            let _gone = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
    }
}

/// A runtime of its own, with a call that never ends: `__runtime <workspace>`. Prints its guard's pid.
pub(crate) fn runtime_main(workspace: &str) {
    let mut scene = Scene::new();
    scene.workspace = workspace.into();
    let call = scene.call(EXEC, "daemonise", json!("and stay"));
    scene.runtime.block_on(async {
        scene.sandbox.warm(EXEC, workspace.as_ref()).await.unwrap();
        println!("{}", guard(&scene));
        scene.sandbox.call(call).await.unwrap();
    });
}
