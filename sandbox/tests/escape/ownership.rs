//! A file that a tool creates belongs to the workspace's owner, and nobody gains root by it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, Ground, Promise, Scene, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] =
    &[("create", create), ("execute", execute), ("setuid file", setuid_file)];

fn create(_: &Ground<'_>, with: &Value) -> Value {
    fs::create_dir_all("made/deep").unwrap();
    fs::write("made/deep/file", with.as_str().unwrap()).unwrap();
    fs::write("inside", "changed").unwrap();
    // SAFETY: only asks.
    json!(unsafe { libc::getuid() })
}

fn execute(_: &Ground<'_>, with: &Value) -> Value {
    let status = std::process::Command::new(with.as_str().unwrap()).status();
    json!(
        status.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |status| status.code().unwrap_or(-1))
    )
}

/// A file with a set-user-id bit from its first moment, then given content by every means.
fn setuid_file(ground: &Ground<'_>, _: &Value) -> Value {
    use nix::fcntl::{OFlag, OpenHow, openat2};
    let flags = OFlag::O_RDWR | OFlag::O_CREAT;
    let how = OpenHow::new().flags(flags).mode(nix::sys::stat::Mode::from_bits_truncate(0o4755));
    let written = openat2(ground.workspace, "setuid-written", how)
        .map(|file| nix::unistd::write(&file, b"#!/bin/sh\n"));
    let grown = openat2(ground.workspace, "setuid-grown", how).map(|file| nix::unistd::ftruncate(&file, 10));
    json!(written.is_ok() && grown.is_ok())
}

fn owner(scene: &Scene, path: &str) -> (u32, u32) {
    let metadata = fs::metadata(scene.workspace.join(path)).unwrap();
    (metadata.uid(), metadata.gid())
}

/// The uids, as the host sees them, of everything beneath the guard.
fn host_uids(scene: &Scene) -> Vec<u32> {
    let guard = scene.sandbox.zygotes().iter().map(|zygote| zygote.guard_pid).collect::<Vec<_>>();
    let mut uids = Vec::new();
    for pid in guard {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for pid in children.split_whitespace().map(|pid| pid.parse().unwrap()).chain([pid]) {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
            uids.extend(line.split_whitespace().skip(1).map(|uid| uid.parse::<u32>().unwrap()));
        }
    }
    uids
}

fn create_and_check(scene: &Scene) {
    let expected = owner(scene, ".");
    for profile in [DEFAULT, EXEC] {
        assert_ne!(replied(&scene.attack(profile, "create", json!("text"))), json!(0), "it must not be root");
        for path in ["made", "made/deep", "made/deep/file", "inside"] {
            assert_eq!(owner(scene, path), expected, "{path}");
        }
        fs::remove_dir_all(scene.workspace.join("made")).unwrap();
    }
    let uids = host_uids(scene);
    assert!(!uids.is_empty() && !uids.contains(&0), "the host's uids: {uids:?}");
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise { name: "files_belong_to_the_owner_of_the_workspace", keep: create_and_check },
        Promise {
            name: "files_belong_to_another_owner_of_the_workspace",
            keep: |scene| {
                if !nix::unistd::geteuid().is_root() {
                    // This leg is about root serving somebody else; the root leg has run it.
                    return;
                }
                for path in [scene.workspace.clone(), scene.workspace.join("inside")] {
                    chown(path, Some(64_001), Some(64_002)).unwrap();
                }
                // Root's own folders above it need not be open to that owner.
                fs::set_permissions(scene.base.path(), fs::Permissions::from_mode(0o700)).unwrap();
                create_and_check(scene);
            },
        },
        Promise {
            name: "no_set_user_id_file_is_left_behind",
            keep: |scene| {
                let chmod = |call: Value| json!([call]);
                let by_fd = chmod(json!([libc::SYS_fchmod, { "fd": "workspace" }, 0o4755]));
                assert_eq!(killed(&scene.attack(DEFAULT, "raw", by_fd.clone())).as_str(), "syscall_denied");
                assert_eq!(replied(&scene.attack(EXEC, "raw", by_fd)), json!([libc::EPERM]));
                let by_path = chmod(json!([libc::SYS_fchmodat, libc::AT_FDCWD, "inside", 0o4755]));
                assert_eq!(replied(&scene.attack(EXEC, "raw", by_path.clone())), json!([libc::EPERM]));
                for profile in [DEFAULT, EXEC] {
                    assert_eq!(replied(&scene.attack(profile, "setuid file", json!(null))), json!(true));
                    for file in fs::read_dir(&scene.workspace).unwrap().flatten() {
                        let metadata = file.metadata().unwrap();
                        let harmful =
                            metadata.is_file() && metadata.len() > 0 && metadata.mode() & 0o6000 != 0;
                        assert!(!harmful, "{file:?}");
                    }
                }
                if nix::unistd::geteuid().is_root() {
                    // Only root keeps such a bit while it writes.
                    for name in ["setuid-written", "setuid-grown"] {
                        fs::remove_file(scene.workspace.join(name)).unwrap();
                    }
                    assert_eq!(scene.control("setuid file", json!(null)), json!(true));
                    let written = fs::metadata(scene.workspace.join("setuid-written")).unwrap();
                    assert_eq!((written.len(), written.mode() & 0o4000), (10, 0o4000), "the control");
                }
                assert_eq!(scene.control("raw", by_path), json!([0]), "the control");
                assert_eq!(
                    fs::metadata(scene.workspace.join("inside")).unwrap().mode() & 0o4000,
                    0o4000,
                    "the control"
                );
            },
        },
        Promise {
            name: "nothing_in_the_workspace_can_be_executed",
            keep: |scene| {
                let program = scene.workspace.join("program");
                fs::copy("/bin/true", &program).unwrap();
                assert_eq!(
                    killed(&scene.attack(DEFAULT, "execute", json!("/bin/true"))).as_str(),
                    "syscall_denied"
                );
                assert_eq!(
                    replied(&scene.attack(EXEC, "execute", json!("/bin/true"))),
                    json!(0),
                    "programs do run"
                );
                let answer = scene.attack(EXEC, "execute", json!("/workspace/program"));
                assert_eq!(replied(&answer), json!(libc::EACCES));
                assert_eq!(scene.control("execute", json!(program)), json!(0), "the control");
            },
        },
    ]
}
