//! No link, however it is made, leads out of the workspace.

use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use serde_json::{Value, json};

use crate::ground::{Attack, Ground, Promise, SECRET, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("race", race), ("magic", magic)];

const HERE: i32 = libc::AT_FDCWD;

/// Opens a path in which `{workspace}` stands for the number of the workspace's descriptor.
fn magic(ground: &Ground<'_>, path: &Value) -> Value {
    use std::os::fd::AsRawFd;
    let number = ground.workspace.as_raw_fd().to_string();
    let opened = fs::File::open(path.as_str().unwrap().replace("{workspace}", &number));
    json!(opened.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1)))
}

/// Writes to `race/file` again and again, as an adapter does, while somebody outside swaps `race` for a link.
fn race(ground: &Ground<'_>, with: &Value) -> Value {
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let follow = with.as_bool().unwrap();
    let (mut written, mut refused) = (0, 0);
    for _ in 0..3_000 {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).mode(nix::sys::stat::Mode::from_bits_truncate(0o644));
        let how = if follow { how } else { how.resolve(resolve) };
        match openat2(ground.workspace, "race/file", how) {
            Ok(file) => written += i64::from(nix::unistd::write(&file, b"x").is_ok()),
            Err(_) => refused += 1,
        }
    }
    json!({ "written": written, "refused": refused })
}

fn swap(one: &Path, other: &Path) {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).unwrap();
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "symbolic_links_do_not_lead_out",
            keep: |scene| {
                symlink(scene.outside.join("secret"), scene.workspace.join("absolute")).unwrap();
                symlink("../outside/secret", scene.workspace.join("relative")).unwrap();
                symlink(&scene.outside, scene.workspace.join("folder")).unwrap();
                let before = scene.outside_state();
                for path in ["absolute", "relative", "folder/secret"] {
                    for flags in [libc::O_RDONLY, libc::O_WRONLY | libc::O_TRUNC] {
                        let open = json!([[libc::SYS_openat, HERE, path, flags, 0]]);
                        for profile in scene.profiles() {
                            let errno = replied(&scene.attack(profile, "raw", open.clone()))[0]
                                .as_i64()
                                .unwrap() as i32;
                            assert!([libc::ENOENT, libc::EACCES].contains(&errno), "{path}: {errno}");
                        }
                    }
                    let read = json!([[libc::SYS_openat, HERE, path, libc::O_RDONLY, 0]]);
                    assert_eq!(scene.control("raw", read), json!([0]), "the control of {path}");
                }
                assert_eq!(scene.outside_state(), before);
            },
        },
        Promise {
            name: "the_root_is_the_folder_that_was_opened",
            keep: |scene| {
                let aside = scene.base.path().join("aside");
                let open = |name: &str| json!([libc::SYS_openat, HERE, name, libc::O_RDONLY, 0]);
                let both = json!([open("inside"), open("secret")]);
                for profile in scene.profiles() {
                    let call = scene.call(profile, "raw", both.clone());
                    // The root is opened, and its zygote is not started yet.
                    fs::rename(&scene.workspace, &aside).unwrap();
                    symlink(&scene.outside, &scene.workspace).unwrap();
                    assert_eq!(replied(&scene.run(call)), json!([0, libc::ENOENT]), "{profile}");
                    let elsewhere = json!([libc::ENOENT, 0]);
                    assert_eq!(scene.control("raw", both.clone()), elsewhere, "the control");
                    fs::remove_file(&scene.workspace).unwrap();
                    fs::rename(&aside, &scene.workspace).unwrap();
                }
            },
        },
        Promise {
            name: "magic_links_do_not_lead_out",
            keep: |scene| {
                let secret = scene.outside.join("secret");
                let ways = [
                    format!("/proc/self/root{}", secret.display()),
                    format!("/proc/1/root{}", secret.display()),
                    "/proc/self/cwd/../outside/secret".to_owned(),
                    "/proc/self/fd/{workspace}/../outside/secret".to_owned(),
                    "/dev/fd/{workspace}/../outside/secret".to_owned(),
                ];
                for path in &ways {
                    for profile in scene.profiles() {
                        let errno = replied(&scene.attack(profile, "magic", json!(path)));
                        let errno = errno.as_i64().unwrap() as i32;
                        let expected = [libc::ENOENT, libc::EACCES, libc::EPERM, libc::ENOTDIR];
                        assert!(expected.contains(&errno), "{profile} {path}: {errno}");
                    }
                    // Outside, the first process is somebody else's; the one that runs this test is not.
                    let ours = path.replace("/proc/1/", &format!("/proc/{}/", std::process::id()));
                    assert_eq!(scene.control("magic", json!(ours)), json!(0), "the control of {path}");
                }
            },
        },
        Promise {
            name: "a_folder_swapped_for_a_link_meanwhile_does_not_lead_out",
            keep: |scene| {
                let (real, link) = (scene.workspace.join("race"), scene.workspace.join("link"));
                fs::create_dir(&real).unwrap();
                symlink(&scene.outside, &link).unwrap();
                let stop = AtomicBool::new(false);
                let (mut refused, mut escaped) = (0, false);
                std::thread::scope(|threads| {
                    threads.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            swap(&real, &link);
                        }
                    });
                    let attacked = catch_unwind(AssertUnwindSafe(|| {
                        // Until the swap has come between at least a hundred times.
                        for profile in scene.profiles().into_iter().cycle().take(60) {
                            let seen = replied(&scene.attack(profile, "race", json!(false)));
                            refused += seen["refused"].as_i64().unwrap();
                            // Even code that follows links ends in a tree where their target does not exist.
                            scene.attack(profile, "race", json!(true));
                            if refused > 100 {
                                break;
                            }
                        }
                        escaped = scene.outside.join("file").exists();
                        for _ in 0..60 {
                            scene.control("race", json!(true));
                            if scene.outside.join("file").exists() {
                                break;
                            }
                        }
                    }));
                    stop.store(true, Ordering::Relaxed);
                    attacked.unwrap();
                });
                assert!(!escaped, "it wrote outside");
                assert!(refused > 100, "the swap hardly ever came between: {refused}");
                assert!(scene.outside.join("file").exists(), "the control");
                assert_eq!(fs::read_to_string(scene.outside.join("secret")).unwrap(), SECRET);
            },
        },
    ]
}
