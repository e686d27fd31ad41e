//! A child cannot raise its limits, cannot make huge sparse files, and leaves nothing behind when it crashes.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use effectd_sandbox::{Call, Limits};
use serde_json::{Value, json};

use crate::ground::{Attack, EXEC, EXEC_HIGH, Ground, Promise, assert_foiled, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("raise", raise),
    ("sparse", sparse),
    ("crash", crash),
    ("crash with a core", |ground, with| {
        let (_, hard) = getrlimit(Resource::RLIMIT_CORE).unwrap();
        setrlimit(Resource::RLIMIT_CORE, hard, hard).unwrap();
        crash(ground, with)
    }),
];

/// Asks for more of everything that is limited; the answer lists what was given.
fn raise(_: &Ground<'_>, _: &Value) -> Value {
    let resources = [
        libc::RLIMIT_CPU,
        libc::RLIMIT_FSIZE,
        libc::RLIMIT_CORE,
        libc::RLIMIT_NOFILE,
        libc::RLIMIT_NPROC,
        libc::RLIMIT_MEMLOCK,
        libc::RLIMIT_MSGQUEUE,
        libc::RLIMIT_SIGPENDING,
    ];
    let mut raised = Vec::new();
    for resource in resources {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel fills or reads one plain structure.
        unsafe {
            libc::getrlimit(resource, &raw mut limit);
            let more = libc::rlimit {
                rlim_cur: limit.rlim_max.saturating_add(1),
                rlim_max: limit.rlim_max.saturating_add(1),
            };
            let endless = limit.rlim_max == libc::RLIM_INFINITY;
            if endless || libc::setrlimit(resource, &raw const more) == 0 {
                raised.push(resource);
            }
        }
    }
    json!(raised)
}

/// Makes a file of that many bytes without writing them: by its length, by a reservation, by a byte at its end.
fn sparse(_: &Ground<'_>, with: &Value) -> Value {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    let size = with["size"].as_u64().unwrap();
    let file = fs::File::create("sparse").unwrap();
    let made = match with["how"].as_str().unwrap() {
        "length" => file.set_len(size),
        "reservation" => {
            // SAFETY: plain integers on an open descriptor.
            match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size as i64) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        }
        _ => file.write_all_at(b"x", size - 1),
    };
    json!(made.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1)))
}

fn crash(_: &Ground<'_>, _: &Value) -> Value {
    // SAFETY: none; it is meant to crash.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    json!(null)
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "limits_cannot_be_raised_again",
            keep: |scene| {
                for profile in scene.profiles() {
                    let answer = scene.attack(profile, "raise", json!(null));
                    assert_eq!(replied(&answer), json!([]), "{profile}");
                    // Nor those of another process.
                    let limits = json!([[libc::SYS_prlimit64, std::process::id(), 7, 0, { "zeroes": 16 }]]);
                    assert_foiled(
                        &scene.attack(profile, "raw", limits),
                        &[libc::ESRCH, libc::EPERM],
                        "another's limits",
                    );
                }
                let raised = scene.control("raise", json!(null));
                assert!(!raised.as_array().unwrap().is_empty(), "the control: {raised}");
            },
        },
        Promise {
            name: "huge_and_sparse_files_are_refused",
            keep: |scene| {
                const SIZE: u64 = 1 << 36;
                /// More than any profile allows, and no more than a disk has.
                const RESERVED: u64 = 300 << 20;
                let size = |how: &str| if how == "reservation" { RESERVED } else { SIZE };
                for profile in scene.profiles() {
                    for how in ["length", "reservation", "a byte at the end"] {
                        let with = json!({ "size": size(how), "how": how });
                        let answer = scene.attack(profile, "sparse", with);
                        if how == "reservation" && [EXEC, EXEC_HIGH].contains(&profile) {
                            // The filter fails it at any size: it takes no time.
                            assert_eq!(replied(&answer), json!(libc::EOPNOTSUPP), "{profile}: {answer:?}");
                        } else {
                            let code = killed(&answer);
                            assert_eq!(code.as_str(), "file_limit", "{how} in {profile}: {answer:?}");
                        }
                        let made = fs::metadata(scene.workspace.join("sparse")).unwrap();
                        assert_eq!(made.len(), 0, "{how} in {profile}");
                    }
                    let small = json!({ "size": 1 << 20, "how": "length" });
                    assert_eq!(replied(&scene.attack(profile, "sparse", small)), json!(0));
                }
                for how in ["length", "reservation", "a byte at the end"] {
                    let with = json!({ "size": size(how), "how": how });
                    assert_eq!(scene.control("sparse", with), json!(0), "the control of {how}");
                }
            },
        },
        Promise {
            name: "a_crash_leaves_no_core",
            keep: |scene| {
                let before = fs::read_dir(&scene.workspace).unwrap().count();
                for profile in scene.profiles() {
                    let call =
                        Call { limits: Limits::default(), ..scene.call(profile, "crash", json!(null)) };
                    let answer = scene.run(call);
                    assert_eq!(killed(&answer).as_str(), "sandbox_failed", "{profile}: {answer:?}");
                    assert_eq!(fs::read_dir(&scene.workspace).unwrap().count(), before, "{profile}");
                }
                let mut control = scene.control_command("crash with a core", &json!(null));
                let crashed = control.status().unwrap();
                // The kernel says whether it has written one, wherever its pattern puts it.
                assert!(crashed.core_dumped(), "the control: {crashed:?}");
            },
        },
    ]
}
