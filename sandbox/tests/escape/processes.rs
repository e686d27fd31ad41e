//! No other process can be seen, traced or signalled, and no namespace can be made.

use serde_json::{Value, json};

use crate::ground::{DEFAULT, EXEC, HIGH, Promise, Scene, killed, replied};

/// The result of the same attempt without a sandbox.
enum Free {
    /// It works, for every user, in new namespaces.
    Works,
    /// The same, without any namespace.
    WorksBare,
    /// The kernel runs the call, which refuses the arguments.
    Answers,
    /// The same, but only for root, and only outside of any namespace.
    AnswersRoot,
}

/// Calls that every profile bans.
fn banned(victim: u32) -> Vec<(&'static str, Value, Free)> {
    use Free::{Answers, AnswersRoot, Works, WorksBare};
    let zeroes = json!({ "zeroes": 256 });
    vec![
        ("be traced", json!([libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0]), Works),
        ("trace", json!([libc::SYS_ptrace, libc::PTRACE_SEIZE, victim, 0, 0]), AnswersRoot),
        ("process_vm_readv", json!([libc::SYS_process_vm_readv, victim, zeroes, 1, zeroes, 1, 0]), Works),
        ("process_vm_writev", json!([libc::SYS_process_vm_writev, victim, zeroes, 1, zeroes, 1, 0]), Works),
        ("pidfd_getfd", json!([libc::SYS_pidfd_getfd, 3, 0, 0]), Answers),
        ("unshare user", json!([libc::SYS_unshare, libc::CLONE_NEWUSER]), WorksBare),
        ("unshare mount", json!([libc::SYS_unshare, libc::CLONE_NEWNS]), Works),
        ("setns", json!([libc::SYS_setns, 4, 0]), Answers),
        ("mount", json!([libc::SYS_mount, "none", "/tmp", "tmpfs", 0, 0]), Works),
        ("fsopen", json!([libc::SYS_fsopen, "tmpfs", 0]), Works),
        ("chroot", json!([libc::SYS_chroot, "."]), Works),
        ("pivot_root", json!([libc::SYS_pivot_root, ".", "."]), Answers),
        ("keyctl", json!([libc::SYS_keyctl, 0, -3, 1]), Works),
        ("a key", json!([libc::SYS_add_key, "user", "x", "y", 1, -3]), Works),
        ("bpf", json!([libc::SYS_bpf, 0, zeroes, 64]), AnswersRoot),
        ("perf", json!([libc::SYS_perf_event_open, zeroes, 0, -1, -1, 0xff]), Answers),
        ("userfaultfd", json!([libc::SYS_userfaultfd, 1]), Works),
        ("shared memory", json!([libc::SYS_shmget, 0, 4_096, 0o1600]), Works),
        ("semaphores", json!([libc::SYS_semget, 0, 1, 0o1600]), Works),
        ("messages", json!([libc::SYS_msgget, 0, 0o1600]), Works),
        ("message queue", json!([libc::SYS_mq_open, "x", 0o102, 0o600, 0]), Answers),
        ("handle", json!([libc::SYS_open_by_handle_at, 4, zeroes, 0]), AnswersRoot),
        ("another filter", json!([libc::SYS_seccomp, 1, 0, zeroes]), Answers),
        ("set the parent-death signal", json!([libc::SYS_prctl, 1, 0, 0, 0, 0]), Works),
        ("become dumpable", json!([libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0]), Works),
        ("setuid", json!([libc::SYS_setuid, -1]), Answers),
        ("terminal injection", json!([libc::SYS_ioctl, 0, 0x5412, "x"]), Answers),
        (
            "terminal injection, high bits",
            json!([libc::SYS_ioctl, 0, 0x7fff_0000_0000_5412_i64, "x"]),
            Answers,
        ),
        ("the console's injection", json!([libc::SYS_ioctl, 0, 0x541c, "x"]), Answers),
        ("a real-time schedule", json!([libc::SYS_sched_setscheduler, 0, 1, { "zeroes": 8 }]), Answers),
        ("a priority", json!([libc::SYS_setpriority, 0, 0, 19]), Works),
        ("locked memory", json!([libc::SYS_mlock, 0, 0]), Works),
        ("a module", json!([libc::SYS_init_module, zeroes, 0, ""]), AnswersRoot),
        ("reboot", json!([libc::SYS_reboot, 0, 0, 0, 0]), AnswersRoot),
        ("set the clock", json!([libc::SYS_clock_settime, 1, zeroes]), Answers),
    ]
}

/// Namespaces in which an attempt that works does no harm to the host.
const OF_ITS_OWN: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;

/// Makes sure that the attempt was one: without a sandbox it works, or is answered by the call itself.
fn control(scene: &Scene, name: &str, call: &Value, free: &Free) {
    let unshare = json!([libc::SYS_unshare, OF_ITS_OWN]);
    let errno = match free {
        Free::Works | Free::Answers => scene.control("raw", json!([unshare, call]))[1].clone(),
        Free::WorksBare => scene.control("raw", json!([call]))[0].clone(),
        Free::AnswersRoot if nix::unistd::geteuid().is_root() => {
            scene.control("raw", json!([call]))[0].clone()
        }
        // The root leg has shown it.
        Free::AnswersRoot => return,
    };
    let errno = errno.as_i64().unwrap() as i32;
    match free {
        Free::Works | Free::WorksBare => assert_eq!(errno, 0, "the control of {name}"),
        Free::Answers => {
            assert!(![libc::EPERM, libc::ENOSYS].contains(&errno), "the control of {name}: {errno}");
        }
        // A kernel may be built without what only root could use, such as modules.
        Free::AnswersRoot => assert_ne!(errno, libc::EPERM, "the control of {name}"),
    }
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "banned_calls_end_the_call_or_fail_and_are_counted",
            keep: |scene| {
                let victim = sleeper();
                for (name, call, free) in banned(victim.0.id()) {
                    for profile in [DEFAULT, HIGH] {
                        let answer = scene.attack(profile, "raw", json!([call]));
                        assert_eq!(killed(&answer).as_str(), "syscall_denied", "{name} in {profile}");
                        assert_eq!(answer.denials.len(), 1, "{name} is counted: {:?}", answer.denials);
                    }
                    for profile in scene.profiles().into_iter().skip(2) {
                        let answer = scene.attack(profile, "raw", json!([call]));
                        assert_eq!(replied(&answer), json!([libc::EPERM]), "{name} in {profile}");
                        assert_eq!(answer.denials.len(), 1, "{name} is counted: {:?}", answer.denials);
                    }
                    control(scene, name, &call, &free);
                }
                let answer = scene.attack(DEFAULT, "raw", json!([[libc::SYS_ptrace, 0, 0, 0, 0]]));
                assert_eq!(answer.denials[0].what, "ptrace", "the telling ones are named");
            },
        },
        Promise {
            name: "no_process_outside_can_be_signalled_or_seen",
            keep: |scene| {
                let mut victim = sleeper();
                let kill = json!([
                    [libc::SYS_kill, victim.0.id(), libc::SIGKILL],
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
                assert!(victim.0.try_wait().unwrap().is_none(), "it was killed from inside");
                let see = json!([[libc::SYS_kill, std::process::id(), 0]]);
                assert_eq!(scene.control("raw", see), json!([0]), "the control");
                let kill = json!([[libc::SYS_kill, victim.0.id(), libc::SIGKILL]]);
                assert_eq!(scene.control("raw", kill), json!([0]), "the control");
                assert!(!victim.0.wait().unwrap().success(), "the control");
            },
        },
        Promise {
            name: "namespaces_cannot_be_had_by_clone_either",
            keep: |scene| {
                let clone = json!([[libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0]]);
                assert_eq!(killed(&scene.attack(DEFAULT, "raw", clone.clone())).as_str(), "syscall_denied");
                let answer = scene.attack(EXEC, "raw", clone.clone());
                assert_eq!(replied(&answer), json!([libc::EPERM]));
                assert_eq!(scene.control("raw", clone), json!([0]), "the control");
                let world = |at: &str| {
                    json!([
                        [libc::SYS_unshare, libc::CLONE_NEWUSER | libc::CLONE_NEWNS],
                        [libc::SYS_mount, "none", at, "tmpfs", 0, 0]
                    ])
                };
                for profile in scene.profiles() {
                    let answer = scene.attack(profile, "raw", world("/workspace"));
                    crate::ground::assert_foiled(&answer, &[libc::EPERM], "a world of its own");
                }
                assert_eq!(scene.control("raw", world(".")), json!([0, 0]), "the control");
                let clone3 = json!([[libc::SYS_clone3, { "zeroes": 88 }, 88]]);
                assert_eq!(scene.control("raw", clone3.clone()), json!([0]), "the control");
                assert_eq!(replied(&scene.attack(EXEC, "raw", clone3.clone())), json!([libc::ENOSYS]));
                assert_eq!(killed(&scene.attack(DEFAULT, "raw", clone3)).as_str(), "syscall_denied");
            },
        },
    ]
}

/// A process of ours that waits to be attacked, and does not outlive the test.
struct Victim(std::process::Child);

fn sleeper() -> Victim {
    let mut sleep = std::process::Command::new("/bin/sleep");
    Victim(sleep.arg("1000").stdout(std::process::Stdio::null()).spawn().unwrap())
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
