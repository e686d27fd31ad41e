//! Nothing outside of the workspace can be read, changed or seen, by any path or system call.

use serde_json::{Value, json};

use effectd_contracts::BaseProfile;

use crate::ground::{DEFAULT, Promise, Scene, killed, replied};

const HERE: i32 = libc::AT_FDCWD;

/// Each attack on the file at `path` as one call: name, whether `default` bans the call itself, and the call.
fn attacks(outside: &str) -> Vec<(&'static str, bool, Value)> {
    let secret = format!("{outside}/secret");
    let times = json!({ "zeroes": 64 });
    vec![
        ("read", false, json!([libc::SYS_openat, HERE, secret, libc::O_RDONLY, 0])),
        ("write", false, json!([libc::SYS_openat, HERE, secret, libc::O_WRONLY, 0])),
        (
            "create",
            false,
            json!([libc::SYS_openat, HERE, format!("{outside}/new"), libc::O_WRONLY | libc::O_CREAT, 0o644]),
        ),
        ("append", false, json!([libc::SYS_openat, HERE, secret, libc::O_WRONLY | libc::O_APPEND, 0])),
        ("truncate", false, json!([libc::SYS_truncate, secret, 1])),
        ("stat", false, json!([libc::SYS_newfstatat, HERE, secret, { "zeroes": 256 }, 0])),
        ("link in", false, json!([libc::SYS_linkat, HERE, secret, HERE, "stolen", 0])),
        ("link out", false, json!([libc::SYS_linkat, HERE, "inside", HERE, format!("{outside}/planted"), 0])),
        ("rename in", false, json!([libc::SYS_renameat2, HERE, secret, HERE, "stolen", 0])),
        (
            "rename out",
            false,
            json!([libc::SYS_renameat2, HERE, "inside", HERE, format!("{outside}/planted"), 0]),
        ),
        ("unlink", false, json!([libc::SYS_unlinkat, HERE, secret, 0])),
        ("mkdir", false, json!([libc::SYS_mkdirat, HERE, format!("{outside}/folder"), 0o755])),
        ("symlink out", false, json!([libc::SYS_symlinkat, "x", HERE, format!("{outside}/link")])),
        ("list", false, json!([libc::SYS_openat, HERE, outside, libc::O_RDONLY | libc::O_DIRECTORY, 0])),
        ("chmod", true, json!([libc::SYS_fchmodat, HERE, secret, 0o777])),
        ("chown", true, json!([libc::SYS_fchownat, HERE, secret, -1, -1, 0])),
        ("utimes", true, json!([libc::SYS_utimensat, HERE, secret, times, 0])),
        ("setxattr", true, json!([libc::SYS_setxattr, secret, "user.x", "y", 1, 0])),
        ("old utimes", true, json!([libc::SYS_utimes, secret, { "zeroes": 64 }])),
    ]
}

fn keep(scene: &Scene, outside: &str) {
    let before = scene.outside_state();
    for (name, banned, call) in attacks(outside) {
        for profile in scene.profiles() {
            let answer = scene.attack(profile, "raw", json!([call]));
            if banned && profile.base == BaseProfile::Default {
                assert_eq!(killed(&answer).as_str(), "syscall_denied", "{name} in {profile}");
            } else {
                refused(name, &replied(&answer)[0]);
            }
        }
        assert_eq!(scene.outside_state(), before, "{name} changed the world outside");
        assert!(!scene.workspace.join("stolen").exists(), "{name} brought something in");
        assert!(scene.workspace.join("inside").exists(), "{name} took something out");
    }
    controls(|scene| scene.outside.to_str().unwrap().to_owned());
}

/// Without a sandbox every one of them works, on a fresh file each.
fn controls(outside: fn(&Scene) -> String) {
    for at in 0..attacks("").len() {
        let scene = Scene::new();
        let (name, _, call) = attacks(&outside(&scene)).swap_remove(at);
        let errnos = scene.control("raw", json!([call]));
        assert_eq!(errnos, json!([0]), "the control of {name}");
    }
}

/// Only these errors are accepted: it does not exist, or access is denied.
fn refused(name: &str, errno: &Value) {
    let errno = errno.as_i64().unwrap() as i32;
    let expected = [libc::ENOENT, libc::EACCES, libc::EPERM, libc::EXDEV, libc::EROFS];
    assert!(expected.contains(&errno), "{name}: errno {errno}");
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "nothing_outside_is_reached_by_an_absolute_path",
            keep: |scene| keep(scene, scene.outside.to_str().unwrap()),
        },
        Promise {
            name: "nothing_outside_is_reached_by_dot_dot",
            keep: |scene| {
                let before = scene.outside_state();
                for up in ["..", "../..", "sub/../..", "/workspace/.."] {
                    for (name, banned, call) in attacks(&format!("{up}/outside")) {
                        if !banned {
                            refused(name, &replied(&scene.attack(DEFAULT, "raw", json!([call])))[0]);
                        }
                    }
                }
                assert_eq!(scene.outside_state(), before);
                controls(|_| "../outside".to_owned());
            },
        },
    ]
}
