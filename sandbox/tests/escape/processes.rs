//! No other process can be seen, driven or signalled, and no new world can be made.

use serde_json::{Value, json};

use crate::ground::{DEFAULT, EXEC, HIGH, Promise, killed, replied};

/// Calls that every profile bans; the errno is what `exec` answers.
fn banned(parent: u32) -> Vec<(&'static str, Value, i32)> {
    let zeroes = json!({ "zeroes": 256 });
    let eperm = libc::EPERM;
    vec![
        (
            "ptrace",
            json!([libc::SYS_ptrace, libc::PTRACE_ATTACH, parent, 0, 0]),
            eperm,
        ),
        (
            "process_vm_readv",
            json!([libc::SYS_process_vm_readv, parent, zeroes, 1, zeroes, 1, 0]),
            eperm,
        ),
        ("pidfd_getfd", json!([libc::SYS_pidfd_getfd, 3, 0, 0]), eperm),
        (
            "unshare user",
            json!([libc::SYS_unshare, libc::CLONE_NEWUSER]),
            eperm,
        ),
        (
            "unshare mount",
            json!([libc::SYS_unshare, libc::CLONE_NEWNS]),
            eperm,
        ),
        ("setns", json!([libc::SYS_setns, 4, 0]), eperm),
        (
            "mount",
            json!([libc::SYS_mount, "none", "/tmp", "tmpfs", 0, 0]),
            eperm,
        ),
        ("fsopen", json!([libc::SYS_fsopen, "tmpfs", 0]), eperm),
        ("chroot", json!([libc::SYS_chroot, "."]), eperm),
        ("pivot_root", json!([libc::SYS_pivot_root, ".", "."]), eperm),
        ("keyctl", json!([libc::SYS_keyctl, 0, -3, 1]), eperm),
        ("bpf", json!([libc::SYS_bpf, 0, zeroes, 64]), eperm),
        (
            "perf",
            json!([libc::SYS_perf_event_open, zeroes, 0, -1, -1, 0]),
            eperm,
        ),
        ("userfaultfd", json!([libc::SYS_userfaultfd, 0]), eperm),
        (
            "shared memory",
            json!([libc::SYS_shmget, 0, 4_096, 0o1600]),
            eperm,
        ),
        (
            "message queue",
            json!([libc::SYS_mq_open, "x", 0o102, 0o600, 0]),
            eperm,
        ),
        (
            "handle",
            json!([libc::SYS_open_by_handle_at, 4, zeroes, 0]),
            eperm,
        ),
        ("another filter", json!([libc::SYS_seccomp, 1, 0, zeroes]), eperm),
        (
            "set the parent-death signal",
            json!([libc::SYS_prctl, 1, 0, 0, 0, 0]),
            eperm,
        ),
        (
            "become dumpable",
            json!([libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0]),
            eperm,
        ),
        ("setuid", json!([libc::SYS_setuid, 0]), eperm),
        (
            "terminal injection",
            json!([libc::SYS_ioctl, 0, 0x5412, "x"]),
            eperm,
        ),
        (
            "terminal injection, high bits",
            json!([libc::SYS_ioctl, 0, 0x7fff_0000_0000_5412_i64, "x"]),
            eperm,
        ),
        (
            "the console's injection",
            json!([libc::SYS_ioctl, 0, 0x541c, "x"]),
            eperm,
        ),
        ("semaphores", json!([libc::SYS_semget, 0, 1, 0o1600]), eperm),
        ("messages", json!([libc::SYS_msgget, 0, 0o1600]), eperm),
        (
            "a key",
            json!([libc::SYS_add_key, "user", "x", "y", 1, -3]),
            eperm,
        ),
        (
            "process_vm_writev",
            json!([libc::SYS_process_vm_writev, parent, zeroes, 1, zeroes, 1, 0]),
            eperm,
        ),
        (
            "a real-time schedule",
            json!([libc::SYS_sched_setscheduler, 0, 1, { "zeroes": 8 }]),
            eperm,
        ),
        ("a priority", json!([libc::SYS_setpriority, 0, 0, -5]), eperm),
        ("locked memory", json!([libc::SYS_mlockall, 1]), eperm),
        ("a module", json!([libc::SYS_init_module, zeroes, 0, ""]), eperm),
        ("reboot", json!([libc::SYS_reboot, 0, 0, 0, 0]), eperm),
        (
            "set the clock",
            json!([libc::SYS_clock_settime, 0, zeroes]),
            eperm,
        ),
    ]
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "banned_calls_end_the_call_or_fail_and_are_counted",
            keep: |scene| {
                for (name, call, errno) in banned(std::process::id()) {
                    for profile in [DEFAULT, HIGH] {
                        let answer = scene.attack(profile, "raw", json!([call]));
                        assert_eq!(killed(&answer).as_str(), "syscall_denied", "{name} in {profile}");
                        assert_eq!(answer.denials.len(), 1, "{name} is counted: {:?}", answer.denials);
                    }
                    for profile in scene.profiles().into_iter().skip(2) {
                        let answer = scene.attack(profile, "raw", json!([call]));
                        assert_eq!(replied(&answer), json!([errno]), "{name} in {profile}");
                        assert_eq!(answer.denials.len(), 1, "{name} is counted: {:?}", answer.denials);
                    }
                }
                let answer = scene.attack(DEFAULT, "raw", json!([[libc::SYS_ptrace, 0, 0, 0, 0]]));
                assert_eq!(answer.denials[0].what, "ptrace", "the telling ones are named");
                let free = json!([
                    [libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0],
                    [libc::SYS_fsopen, "tmpfs", 0]
                ]);
                assert_eq!(scene.control("raw", free)[0], json!(0), "the control");
                let unshare = json!([[libc::SYS_unshare, libc::CLONE_NEWUSER]]);
                assert_eq!(scene.control("raw", unshare), json!([0]), "the control");
            },
        },
        Promise {
            name: "no_process_outside_can_be_signalled_or_seen",
            keep: |scene| {
                let mut victim = std::process::Command::new("/bin/sleep")
                    .arg("1000")
                    .spawn()
                    .unwrap();
                let kill = json!([
                    [libc::SYS_kill, victim.id(), libc::SIGKILL],
                    [libc::SYS_kill, -1, libc::SIGKILL]
                ]);
                for profile in scene.profiles() {
                    assert_eq!(
                        replied(&scene.attack(profile, "raw", kill.clone())),
                        json!([libc::ESRCH, libc::ESRCH])
                    );
                    let see = json!([[libc::SYS_kill, std::process::id(), 0]]);
                    assert_eq!(
                        replied(&scene.attack(profile, "raw", see)),
                        json!([libc::ESRCH]),
                        "{profile}"
                    );
                }
                assert!(victim.try_wait().unwrap().is_none(), "it was killed from inside");
                let kill = json!([[libc::SYS_kill, victim.id(), libc::SIGKILL]]);
                assert_eq!(scene.control("raw", kill), json!([0]), "the control");
                assert!(!victim.wait().unwrap().success(), "the control");
            },
        },
        Promise {
            name: "namespaces_cannot_be_had_by_clone_either",
            keep: |scene| {
                let clone = json!([[libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0]]);
                assert_eq!(
                    killed(&scene.attack(DEFAULT, "raw", clone.clone())).as_str(),
                    "syscall_denied"
                );
                let answer = scene.attack(EXEC, "raw", clone);
                assert_eq!(replied(&answer), json!([libc::EPERM]));
                for profile in scene.profiles() {
                    let world = json!([
                        [libc::SYS_unshare, libc::CLONE_NEWUSER | libc::CLONE_NEWNS],
                        [libc::SYS_mount, "none", "/workspace", "tmpfs", 0, 0]
                    ]);
                    let answer = scene.attack(profile, "raw", world);
                    crate::ground::assert_foiled(&answer, &[libc::EPERM], "a world of its own");
                }
                let clone3 = json!([[libc::SYS_clone3, { "zeroes": 88 }, 88]]);
                assert_eq!(
                    replied(&scene.attack(EXEC, "raw", clone3.clone())),
                    json!([libc::ENOSYS])
                );
                assert_eq!(
                    killed(&scene.attack(DEFAULT, "raw", clone3)).as_str(),
                    "syscall_denied"
                );
            },
        },
    ]
}
