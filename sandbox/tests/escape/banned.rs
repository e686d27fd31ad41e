//! Every system call that a profile bans is refused, one by one; and the kernel would have answered each of them.

use serde_json::{Value, json};

use effectd_contracts::{BaseProfile, SandboxProfile};
use effectd_sandbox::testing::{Banned, banned};

use crate::ground::{Attack, DEFAULT, EXEC, Ground, Promise, Scene, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("each alone", each_alone)];

/// Arguments that are invalid for every call, so that a call that is not refused does nothing.
fn senseless(banned: &Banned) -> Value {
    let (number, no) = (banned.number, -1);
    match banned.name.as_str() {
        // Anything but reading is a call that the kernel does not know.
        "modify_ldt" => json!([number, 0, 0, 0]),
        _ => json!([number, no, no, no, no, no, no]),
    }
}

/// How many calls one attack makes: each must be named in the answer.
const AT_ONCE: usize = 30;

/// What only a fully privileged process is answered otherwise than by EPERM.
const PRIVILEGED: &[&str] = &[
    "acct",
    "bpf",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "init_module",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "open_by_handle_at",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "setdomainname",
    "setgroups",
    "sethostname",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "vhangup",
    "pivot_root",
    "chroot",
    "mount",
    "move_mount",
    "fsopen",
    "fspick",
    "fsmount",
    "mount_setattr",
    "statmount",
    "listmount",
    "create_module",
    "lookup_dcookie",
];

/// Makes each of these calls in a separate process without confinement, and lists the errnos.
fn each_alone(ground: &Ground<'_>, calls: &Value) -> Value {
    let one = |call: &Value| {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        // SAFETY: the copy makes the one call, tells its errno and ends by _exit.
        match unsafe { libc::fork() } {
            0 => {
                // Without a terminal there is none to be hung up.
                let _leads_already = nix::unistd::setsid();
                let errno = match call[0].as_i64().unwrap() {
                    libc::SYS_fork | libc::SYS_vfork => forked(call[0].as_i64().unwrap()),
                    _ => crate::raw::raw(ground, &json!([call]))[0].as_i64().unwrap() as i32,
                };
                nix::unistd::write(&writer, &errno.to_le_bytes()).unwrap();
                // SAFETY: ends the copy.
                unsafe { libc::_exit(0) }
            }
            pid => {
                drop(writer);
                let mut bytes = [0; 4];
                let count = nix::unistd::read(&reader, &mut bytes).unwrap();
                // SAFETY: our own child.
                unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
                json!(if count == 4 { i32::from_le_bytes(bytes) } else { -1 })
            }
        }
    };
    json!(calls.as_array().unwrap().iter().map(one).collect::<Vec<_>>())
}

/// The errno of a call that returns twice. No function may stand between: the copy shares the stack.
fn forked(number: i64) -> i32 {
    let result: i64;
    // SAFETY: the copy ends within the block and touches nothing but registers.
    unsafe {
        std::arch::asm!(
            "syscall", "test rax, rax", "jnz 2f", "mov eax, 60", "xor edi, edi", "syscall", "2:",
            inout("rax") number => result, out("rcx") _, out("r11") _, out("rdi") _,
        );
    }
    i32::try_from(-result.min(0)).unwrap()
}

fn refused_in_default(scene: &Scene, profile: SandboxProfile, banned: &Banned) {
    let answer = scene.attack(profile, "raw", json!([senseless(banned)]));
    let code = killed(&answer);
    let expected = ["syscall_denied", "network_denied"];
    assert!(expected.contains(&code.as_str()), "{} in {profile}: {answer:?}", banned.name);
    assert_eq!(answer.denials.len(), 1, "{} in {profile} is counted: {answer:?}", banned.name);
}

fn refused_in_exec(scene: &Scene, profile: SandboxProfile, some: &[Banned]) {
    let calls: Vec<_> = some.iter().map(senseless).collect();
    let answer = scene.attack(profile, "raw", json!(calls));
    let errnos: Vec<_> = some.iter().map(|banned| banned.quiet.unwrap_or(libc::EPERM)).collect();
    assert_eq!(replied(&answer), json!(errnos), "{profile}: {some:?}");
    for banned in some.iter().filter(|banned| banned.quiet.is_none()) {
        let counted = answer.denials.iter().any(|denial| denial.what == banned.name && denial.count == 1);
        assert!(counted, "{} in {profile}: {:?}", banned.name, answer.denials);
    }
}

/// What the kernel itself says to each of them. Those that it does not have are left out; nobody can ban them twice.
fn control(scene: &Scene, all: &[Banned]) {
    let calls: Vec<_> = all.iter().map(senseless).collect();
    let errnos = scene.control("each alone", json!(calls));
    let mut absent = Vec::new();
    for (banned, errno) in all.iter().zip(errnos.as_array().unwrap()) {
        let errno = errno.as_i64().unwrap() as i32;
        assert_ne!(errno, -1, "the control of {} gave no answer", banned.name);
        let by_privilege = errno == libc::EPERM && PRIVILEGED.contains(&banned.name.as_str());
        match errno {
            libc::ENOSYS => absent.push(banned.name.as_str()),
            libc::EPERM => assert!(
                by_privilege && !fully_privileged(),
                "the control of {}: the kernel refuses it by itself",
                banned.name
            ),
            _ => {}
        }
    }
    assert!(absent.len() < all.len() / 5, "the kernel lacks {absent:?}");
}

/// Whether this process has every capability that there is, in the first user namespace.
fn fully_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let last: u32 = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap().trim().parse().unwrap();
    let all = u64::MAX >> (63 - last);
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    u64::from_str_radix(&set("CapEff:"), 16).unwrap() == all && map.contains("4294967295")
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise {
        name: "every_banned_call_is_refused_and_would_have_been_answered",
        keep: |scene| {
            let (native, programs) = (banned(DEFAULT).unwrap(), banned(EXEC).unwrap());
            assert!(native.len() > 150 && programs.len() > 120, "{} {}", native.len(), programs.len());
            for profile in scene.profiles() {
                match profile.base {
                    BaseProfile::Default => {
                        native.iter().for_each(|one| refused_in_default(scene, profile, one))
                    }
                    BaseProfile::Exec => {
                        programs.chunks(AT_ONCE).for_each(|some| refused_in_exec(scene, profile, some))
                    }
                }
            }
            control(scene, &native);
            control(scene, &programs);
        },
    }]
}
