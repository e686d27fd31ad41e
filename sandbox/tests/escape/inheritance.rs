//! A child inherits nothing: no descriptor, no variable, no terminal, no privilege.

use std::os::fd::AsRawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::ground::{Attack, Ground, Promise, SECRET, replied};

/// Beyond what `select` and careless loops know of.
const ABOVE: i32 = 2_000;

pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("descriptors", descriptors),
    ("environment", environment),
    ("privileges", privileges),
    ("steal", steal),
];

/// Every open descriptor, found by trying all numbers.
fn descriptors(_: &Ground<'_>, _: &Value) -> Value {
    // SAFETY: F_GETFD only asks.
    let open: Vec<i32> = (0..4_096).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect();
    json!(open)
}

/// Reads whatever any descriptor above the standard ones gives.
fn steal(_: &Ground<'_>, _: &Value) -> Value {
    let mut found = Vec::new();
    for fd in 6..4_096 {
        let mut bytes = [0u8; 64];
        // SAFETY: the buffer is valid for its length.
        let count = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if count > 0 {
            found.push(String::from_utf8_lossy(&bytes[..count as usize]).into_owned());
        }
    }
    json!(found)
}

fn environment(_: &Ground<'_>, _: &Value) -> Value {
    json!(std::env::vars().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>())
}

fn privileges(_: &Ground<'_>, _: &Value) -> Value {
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: capget fills two sets of three words; prctl and the get calls only ask.
    unsafe {
        libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr());
        json!({
            "capabilities": sets.iter().any(|set| *set != 0),
            "no_new_privs": libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
            "dumpable": libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0),
            "root": libc::getuid() == 0 || libc::geteuid() == 0,
            "pid": libc::getpid(),
            "leader": libc::getsid(0) == libc::getpid(),
        })
    }
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "only_the_channel_and_two_folders_are_inherited",
            keep: |scene| {
                // A secret that every careless fork would inherit, also above the usual limit.
                let secret = std::fs::File::open(scene.outside.join("secret")).unwrap();
                let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
                assert!(hard > ABOVE as u64, "the host allows only {hard} descriptors");
                setrlimit(Resource::RLIMIT_NOFILE, soft.max(ABOVE as u64 + 1), hard).unwrap();
                let high = nix::fcntl::fcntl(&secret, nix::fcntl::FcntlArg::F_DUPFD(ABOVE)).unwrap();
                assert!(high >= ABOVE && secret.as_raw_fd() > 2);
                for profile in scene.profiles() {
                    let open = replied(&scene.attack(profile, "descriptors", json!(null)));
                    // The standard ones, which lead nowhere; the channel; the workspace; the scratch folder.
                    assert_eq!(open, json!([0, 1, 2, 3, 4, 5]), "{profile}");
                    assert_eq!(replied(&scene.attack(profile, "steal", json!(null))), json!([]), "{profile}");
                }
                assert!(
                    scene.control("steal", json!(null)).as_array().unwrap().contains(&json!(SECRET)),
                    "the control"
                );
                // SAFETY: the number was made above and is owned by nobody else.
                unsafe { libc::close(high) };
            },
        },
        Promise {
            name: "no_variable_is_inherited",
            keep: |scene| {
                for profile in scene.profiles() {
                    assert_eq!(replied(&scene.attack(profile, "environment", json!(null))), json!([]));
                }
                let mut control = scene.control_command("environment", &json!(null));
                let output = control.env("EFFECTD_SECRET", SECRET).output().unwrap();
                assert!(String::from_utf8(output.stdout).unwrap().contains(SECRET), "the control");
            },
        },
        Promise {
            name: "no_privilege_is_left",
            keep: |scene| {
                let expected = json!({
                    "capabilities": false, "no_new_privs": 1, "dumpable": 0, "root": false, "pid": 1, "leader": true
                });
                for profile in scene.profiles() {
                    assert_eq!(
                        replied(&scene.attack(profile, "privileges", json!(null))),
                        expected,
                        "{profile}"
                    );
                }
                let free = scene.control("privileges", json!(null));
                let is_root = nix::unistd::geteuid().is_root();
                assert_eq!(free["no_new_privs"], json!(0), "the control");
                assert_eq!(
                    (&free["capabilities"], &free["root"]),
                    (&json!(is_root), &json!(is_root)),
                    "the control"
                );
                assert_ne!(free["pid"], json!(1), "the control");
                assert_eq!((&free["dumpable"], &free["leader"]), (&json!(1), &json!(false)), "the control");
            },
        },
    ]
}
