//! No call can exceed its limits, and each limit has its own code.

use std::path::Path;
use std::time::Duration;

use effectd_sandbox::{Call, Ending, Limits, Narrowing, SpaceRoot, View};
use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, EXEC_HIGH, Ground, HIGH, Promise, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("burn", burn),
    ("burn limited", |ground, ms| {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CPU, 1, 2).unwrap();
        burn(ground, ms)
    }),
    ("nap", nap),
    ("eat", eat),
    ("fork", fork),
    ("fork on and on", |ground, _| {
        loop {
            fork(ground, &json!(1_000));
        }
    }),
    ("tree eats", tree_eats),
    ("fill", fill),
    ("hoard", hoard),
    ("open", open),
    ("shout", |_, size| json!("x".repeat(size.as_u64().unwrap() as usize))),
];

/// Uses that much processor time, by the process's own clock.
fn burn(_: &Ground<'_>, ms: &Value) -> Value {
    let mut used = nix::sys::time::TimeSpec::new(0, 0);
    while Duration::from(used) < Duration::from_millis(ms.as_u64().unwrap()) {
        // SAFETY: the clock is written to a valid place.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, used.as_mut()) };
    }
    json!(true)
}

/// Waits for the kernel to end a process for its use of the processor, and says what that was, in milliseconds.
fn cost_of_killed_ms(plain: std::process::Child) -> f64 {
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: our own child; both places are valid, and all zeroes is a valid rusage.
    let usage = unsafe {
        assert_eq!(libc::wait4(plain.id() as i32, &raw mut status, 0, usage.as_mut_ptr()), plain.id() as i32);
        usage.assume_init()
    };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGXCPU, "{status}");
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

fn nap(_: &Ground<'_>, ms: &Value) -> Value {
    std::thread::sleep(Duration::from_millis(ms.as_u64().unwrap()));
    json!(true)
}

/// Takes that many MiB, and touches every page.
fn eat(_: &Ground<'_>, mib: &Value) -> Value {
    let mut eaten = Vec::new();
    for _ in 0..mib.as_u64().unwrap() {
        eaten.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
    json!(eaten.len())
}

/// Forks children that wait, until it may not, at most that many times; says how many there were.
fn fork(_: &Ground<'_>, most: &Value) -> Value {
    let mut pids = Vec::new();
    let mut errno = 0;
    for _ in 0..most.as_u64().unwrap() {
        // SAFETY: the child makes one harmless call and never returns from it.
        match unsafe { libc::syscall(libc::SYS_fork) } {
            0 => loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            },
            -1 => {
                errno = std::io::Error::last_os_error().raw_os_error().unwrap();
                break;
            }
            pid => pids.push(pid as i32),
        }
    }
    for pid in &pids {
        // SAFETY: our own child; it is killed and reaped.
        unsafe {
            libc::kill(*pid, libc::SIGKILL);
            libc::waitpid(*pid, std::ptr::null_mut(), 0);
        }
    }
    json!({ "forked": pids.len(), "errno": errno })
}

/// Many processes that together eat far more than each alone may: `[processes, MiB each]`.
fn tree_eats(_: &Ground<'_>, with: &Value) -> Value {
    use std::io::{Read, Write};
    // None ends before all have eaten: each says so, unless it is killed, and waits until the pipe to all of them is closed.
    let (released, release) = std::io::pipe().unwrap();
    let mut children = Vec::new();
    for _ in 0..with[0].as_u64().unwrap() {
        let (has_eaten, mut say) = std::io::pipe().unwrap();
        // SAFETY: the copy runs this single-threaded program on and ends by _exit.
        match unsafe { libc::fork() } {
            0 => {
                drop(release);
                let eaten: Vec<_> = (0..with[1].as_u64().unwrap())
                    .map(|_| std::hint::black_box(vec![1u8; 1 << 20]))
                    .collect();
                say.write_all(b".").unwrap();
                let _closed = (&released).read(&mut [0]);
                // SAFETY: ends the copy.
                unsafe { libc::_exit(i32::from(json!(eaten.len()) != with[1])) }
            }
            pid => children.push((pid, has_eaten)),
        }
    }
    for (_, has_eaten) in &mut children {
        let _said_or_dead = has_eaten.read(&mut [0]);
    }
    drop(release);
    let mut whole = 0;
    for (pid, _) in children {
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        whole += i32::from(status == 0);
    }
    json!({ "whole": whole })
}

/// Writes that many bytes into one file.
fn fill(_: &Ground<'_>, with: &Value) -> Value {
    use std::io::Write;
    let mut file = std::fs::File::create("filled").unwrap();
    let block = vec![7u8; 1 << 16];
    let mut left = with.as_u64().unwrap() as usize;
    while left > 0 {
        let count = left.min(block.len());
        match file.write(&block[..count]) {
            Ok(written) => left -= written,
            Err(error) => return json!(error.raw_os_error()),
        }
    }
    json!(0)
}

/// Fills a file in the cache, as deep as asked. With `closed`, takes the permissions of its folder away; with `stay`, never ends.
fn hoard(_: &Ground<'_>, with: &Value) -> Value {
    use std::os::unix::fs::PermissionsExt;
    let folder = format!("build/in/{}", "d/".repeat(with["depth"].as_u64().unwrap_or(0) as usize));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(format!("{folder}file"), vec![7u8; with["bytes"].as_u64().unwrap() as usize]).unwrap();
    if with["closed"] == true {
        std::fs::set_permissions("build/in", std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    if with["stay"] == true {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    json!(0)
}

fn open(_: &Ground<'_>, most: &Value) -> Value {
    let files: Vec<_> =
        (0..most.as_u64().unwrap()).map_while(|_| std::fs::File::open("inside").ok()).collect();
    json!(files.len())
}

fn limited(call: Call, limits: Limits) -> Call {
    Call { limits, ..call }
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "processor_time_is_measured_and_bounded",
            keep: |scene| {
                let limits = Limits { cpu_ms: Some(1_000), ..Limits::default() };
                // Where the kernel counts processor time by clock ticks, its limit does too, and kills early beside processes that
                // run for less than a tick. So plain processes with the same limit, at the same time, are the measure.
                let plain = [(); 2].map(|()| {
                    let mut plain = scene.control_command("burn limited", &json!(30_000));
                    plain.stdout(std::process::Stdio::null()).spawn().unwrap()
                });
                let burn = limited(scene.call(DEFAULT, "burn", json!(30_000)), limits);
                // Processor time counts, however long a busy machine takes to give it.
                let timeout = Duration::from_secs(60);
                let answer = scene.run(Call { timeout, ..burn });
                let mut plain = plain.map(cost_of_killed_ms);
                plain.sort_by(f64::total_cmp);
                assert_eq!(killed(&answer).as_str(), "cpu_limit", "{answer:?}");
                let expected = plain[0] - 100.0..plain[1] + 100.0;
                assert!(expected.contains(&answer.usage.cpu_ms()), "{:?}, plain: {plain:?}", answer.usage);
                // Some hosts count it as work when they stall, but not each time.
                let measured = |attack: &str, fits: fn(f64) -> bool| {
                    let all = [(); 5].map(|()| scene.attack(DEFAULT, attack, json!(200)).usage);
                    assert!(all.iter().any(|usage| fits(usage.cpu_ms())), "{attack}: {all:?}");
                    all
                };
                measured("burn", |ms| (190.0..300.0).contains(&ms));
                let napped = measured("nap", |ms| ms < 50.0);
                assert!(napped.iter().all(|usage| usage.wall >= Duration::from_millis(200)), "{napped:?}");
                assert_eq!(scene.control("burn", json!(1_500)), json!(true), "the control");
            },
        },
        Promise {
            name: "memory_is_measured_and_bounded",
            keep: |scene| {
                for profile in [DEFAULT, HIGH, EXEC] {
                    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
                    let answer = scene.run(limited(scene.call(profile, "eat", json!(400)), limits));
                    assert_eq!(killed(&answer).as_str(), "memory_limit", "{profile}: {answer:?}");
                    assert!(answer.usage.peak_memory_bytes < 100 << 20, "{:?}", answer.usage);
                }
                let answer = scene.attack(DEFAULT, "eat", json!(48));
                assert_eq!(replied(&answer), json!(48));
                assert!(
                    (48 << 20..100 << 20).contains(&answer.usage.peak_memory_bytes),
                    "{:?}",
                    answer.usage
                );
                assert_eq!(scene.control("eat", json!(400)), json!(400), "the control");
            },
        },
        Promise {
            name: "the_memory_of_a_whole_tree_is_bounded",
            keep: |scene| {
                let limits = Limits { memory_bytes: Some(128 << 20), ..Limits::default() };
                let answer = scene.run(limited(scene.call(EXEC, "tree eats", json!([8, 48])), limits));
                match scene.sandbox.tree_memory() {
                    Some(_) => {
                        assert!(answer.usage.peak_memory_bytes <= 129 << 20, "{:?}", answer.usage);
                        let all = matches!(&answer.ending, effectd_sandbox::Ending::Replied(_))
                            && replied(&answer)["whole"] == 8;
                        assert!(!all, "{answer:?}");
                    }
                    // Each process is bounded to a quarter, and the answer says so.
                    None => {
                        assert_eq!(replied(&answer)["whole"], 0, "{answer:?}");
                        assert!(
                            answer.isolation.mechanisms["memory"].contains("each of at most 16 processes")
                        );
                        let refused = scene.try_run(scene.call(EXEC_HIGH, "nap", json!(1))).unwrap_err();
                        assert_eq!(
                            refused.code().as_str(),
                            "sandbox_unavailable",
                            "high isolation demands more"
                        );
                    }
                }
                assert_eq!(scene.control("tree eats", json!([8, 48])), json!({ "whole": 8 }), "the control");
            },
        },
        Promise {
            name: "fork_bombs_stay_small",
            keep: |scene| {
                assert_eq!(killed(&scene.attack(DEFAULT, "fork", json!(10))).as_str(), "syscall_denied");
                let limits = Limits { processes: Some(12), ..Limits::default() };
                let bombs = [scene.call(EXEC, "fork", json!(1_000)), scene.call(EXEC, "fork", json!(1_000))];
                // Two at a time: each has its own count.
                let [first, second] = bombs.map(|call| scene.sandbox.call(limited(call, limits)));
                let answers = scene.runtime.block_on(async { tokio::join!(first, second) });
                for answer in [answers.0.unwrap(), answers.1.unwrap()] {
                    let expected = json!({ "forked": 11, "errno": libc::EAGAIN });
                    assert_eq!(replied(&answer), expected, "{answer:?}");
                    // Where a cgroup counts, the kernel's refusal is in the answer.
                    let counted = answer.denials.iter().any(|denial| denial.code.as_str() == "process_limit");
                    assert_eq!(counted, scene.sandbox.tree_memory().is_some(), "{answer:?}");
                }
                if scene.sandbox.tree_memory().is_some() {
                    let bomb = limited(scene.call(EXEC, "fork on and on", json!(null)), limits);
                    let mut timeout = Duration::from_millis(300);
                    let code = loop {
                        let answer = scene.run(Call { timeout, ..bomb.clone() });
                        let code = killed(&answer);
                        // On a machine that stalls the deadline may come before the bomb has gone off.
                        if code.as_str() != "timed_out" || timeout > Duration::from_secs(30) {
                            break code;
                        }
                        timeout *= 2;
                    };
                    assert_eq!(code.as_str(), "process_limit");
                }
                assert_eq!(
                    scene.control("fork", json!(100)),
                    json!({ "forked": 100, "errno": 0 }),
                    "the control"
                );
            },
        },
        Promise {
            name: "files_and_descriptors_are_bounded",
            keep: |scene| {
                let limits = Limits { file_bytes: Some(1 << 20), open_files: Some(20), ..Limits::default() };
                for profile in [DEFAULT, EXEC] {
                    let answer = scene.run(limited(scene.call(profile, "fill", json!(4 << 20)), limits));
                    assert_eq!(killed(&answer).as_str(), "file_limit", "{profile}: {answer:?}");
                    assert!(std::fs::metadata(scene.workspace.join("filled")).unwrap().len() <= 1 << 20);
                    let answer = scene.run(limited(scene.call(profile, "open", json!(100)), limits));
                    assert_eq!(replied(&answer), json!(14), "{profile}");
                }
                let written = scene.attack(DEFAULT, "fill", json!(1 << 20));
                assert_eq!(replied(&written), json!(0));
                let all_files = Limits { written_bytes: Some(1 << 20), ..Limits::default() };
                let answer = scene.run(limited(scene.call(DEFAULT, "fill", json!(4 << 20)), all_files));
                assert_eq!(killed(&answer).as_str(), "file_limit", "all files together: {answer:?}");
                assert_eq!(scene.control("fill", json!(4 << 20)), json!(0), "the control");
                assert_eq!(scene.control("open", json!(100)), json!(100), "the control");
            },
        },
        Promise {
            name: "a_call_that_fills_its_cache_or_the_disk_fails",
            keep: |scene| {
                std::fs::create_dir(scene.workspace.join("build")).unwrap();
                let root = SpaceRoot::open(&scene.workspace).unwrap();
                let cache = SpaceRoot::open(&scene.outside).unwrap();
                let run = |with: &Value, written_bytes: u64, free: u64, timeout: u64| {
                    effectd_sandbox::empty_cache(&cache).unwrap();
                    let mut view = View::new(1 << 30, 60_000);
                    view.add_cache(&root, Path::new("build"), &cache).unwrap();
                    view.keep_free(&scene.outside, free);
                    let limits = Limits { written_bytes: Some(written_bytes), ..Limits::default() };
                    let call = limited(scene.call(EXEC, "hoard", with.clone()), limits);
                    let (view, timeout) = (Some(view), Duration::from_secs(timeout));
                    scene.run(Call { view, timeout, narrowing: Narrowing::default(), ..call })
                };
                // The controls: within its bounds, a call outlives the checks while it runs and the one at its end.
                let within = run(&json!({ "bytes": 4 << 20, "stay": true }), 64 << 20, 0, 4);
                assert_eq!(killed(&within).as_str(), "timed_out", "the control: {within:?}");
                let within = run(&json!({ "bytes": 4 << 20 }), 64 << 20, 0, 60);
                assert_eq!(replied(&within), json!(0), "the control");
                let (cached, disk) = (("file_limit", "a cache"), ("disk_full", "the disk"));
                let over = json!({ "bytes": 4 << 20 });
                let deep = json!({ "bytes": 1, "depth": effectd_sandbox::limits::CACHE_DEPTH_MAX });
                let mut rows = vec![(over, 1 << 20, 0, cached), (deep, 64 << 20, 0, cached)];
                // Root reads a folder without permissions and counts it.
                if !nix::unistd::geteuid().is_root() {
                    rows.push((json!({ "bytes": 1, "closed": true }), 64 << 20, 0, cached));
                }
                rows.push((json!({ "bytes": 1 }), 64 << 20, u64::MAX, disk));
                for (mut with, written, free, (expected, why)) in rows {
                    for stay in [true, false] {
                        with["stay"] = stay.into();
                        let answer = run(&with, written, free, 60);
                        let Ending::Killed { code, detail, started } = &answer.ending else {
                            panic!("{with}: {answer:?}")
                        };
                        assert_eq!((code.as_str(), *started), (expected, true), "{with}: {answer:?}");
                        assert!(detail.starts_with(why), "{with}: {detail}");
                    }
                }
            },
        },
        Promise {
            name: "output_is_bounded",
            keep: |scene| {
                let limits = Limits { output_bytes: Some(1_000), ..Limits::default() };
                for size in [999, 5_000, 10 << 20] {
                    let answer = scene.run(limited(scene.call(DEFAULT, "shout", json!(size)), limits));
                    assert_eq!(killed(&answer).as_str(), "output_limit", "{size}");
                }
                let answer = scene.run(limited(scene.call(DEFAULT, "shout", json!(998)), limits));
                assert_eq!(replied(&answer).as_str().unwrap().len(), 998);
                let shouted = scene.control("shout", json!(10 << 20));
                assert_eq!(shouted.as_str().unwrap().len(), 10 << 20, "the control");
            },
        },
    ]
}
