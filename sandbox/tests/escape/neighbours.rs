//! Calls do not see each other and share nothing: processes, `/proc`, `/tmp`, `/dev/shm`, the cgroup tree.

use std::fs;
use std::os::fd::AsRawFd;

use effectd_contracts::BaseProfile;
use serde_json::{Value, json};

use crate::ground::{Attack, Ground, Promise, SECRET, assert_foiled, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("processes", |_, _| json!(processes())),
    ("leave", leave),
    ("found", |_, paths| {
        let there = |path: &&Value| fs::metadata(path.as_str().unwrap()).is_ok();
        json!(paths.as_array().unwrap().iter().filter(there).collect::<Vec<_>>())
    }),
    ("spy", spy),
];

const HERE: i32 = libc::AT_FDCWD;
/// It does not exist, or access is denied.
const NOT_THERE: &[i32] = &[libc::ENOENT, libc::EACCES, libc::EPERM, libc::EROFS, libc::ESRCH, libc::ENOTDIR];

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect()
}

/// Leaves a file in every place that processes share on a usual system, and in the scratch folder.
fn leave(ground: &Ground<'_>, name: &Value) -> Value {
    let name = name.as_str().unwrap();
    let places = ["/tmp", "/dev/shm", "/var/tmp", "/run"];
    let left = |place: &&str| fs::write(format!("{place}/{name}"), "x").is_ok();
    let left: Vec<_> = places.into_iter().filter(left).collect();
    let scratch = format!("/proc/self/fd/{}", ground.tmp.as_raw_fd());
    let entries = fs::read_dir(scratch).map_or(0, Iterator::count);
    json!({ "left": left, "found": entries.saturating_sub(usize::from(left.contains(&"/tmp"))) })
}

/// Searches for the secret in everything that `/proc` shows of any process.
fn spy(_: &Ground<'_>, with: &Value) -> Value {
    let mut pids = processes();
    pids.extend(1..64);
    pids.push(with["pid"].as_u64().unwrap() as u32);
    let mut found = Vec::new();
    for pid in pids {
        for place in ["environ", "cmdline", "cwd/secret", "root/etc/shadow", "mem"] {
            let text = fs::read(format!("/proc/{pid}/{place}")).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains(SECRET) {
                found.push(place);
            }
        }
    }
    json!(found)
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "nothing_of_other_processes_is_seen_in_proc",
            keep: |scene| {
                let mut victim = std::process::Command::new("/bin/sleep")
                    .arg("1000")
                    .env("EFFECTD_SECRET", SECRET)
                    .current_dir(&scene.outside)
                    .spawn()
                    .unwrap();
                let with = json!({ "pid": victim.id() });
                for profile in scene.profiles() {
                    let seen = replied(&scene.attack(profile, "processes", json!(null)));
                    let own = if profile.base == BaseProfile::Exec { json!([1]) } else { json!([]) };
                    assert_eq!(seen, own, "{profile}");
                    let spied = replied(&scene.attack(profile, "spy", with.clone()));
                    assert_eq!(spied, json!([]), "{profile}");
                    for place in ["environ", "mem", "cwd", "root", "fd/0", "ns/user"] {
                        let path = format!("/proc/{}/{place}", victim.id());
                        let open = json!([[libc::SYS_openat, HERE, path, libc::O_RDONLY, 0]]);
                        assert_foiled(&scene.attack(profile, "raw", open), NOT_THERE, place);
                    }
                }
                for place in ["environ", "mem", "cwd", "root", "fd/0", "ns/user"] {
                    let path = format!("/proc/{}/{place}", victim.id());
                    let open = json!([[libc::SYS_openat, HERE, path, libc::O_RDONLY, 0]]);
                    assert_eq!(scene.control("raw", open), json!([0]), "the control of {place}");
                }
                let spied = scene.control("spy", with);
                let spied: Vec<_> = spied.as_array().unwrap().iter().collect();
                assert!(
                    spied.contains(&&json!("environ")) && spied.contains(&&json!("cwd/secret")),
                    "the control: {spied:?}"
                );
                victim.kill().unwrap();
                victim.wait().unwrap();
            },
        },
        Promise {
            name: "nothing_is_shared_between_calls_but_the_workspace",
            keep: |scene| {
                let name = format!("effectd-left-{}", std::process::id());
                for profile in scene.profiles() {
                    // Twice, so that the second would find what the first has left.
                    for _ in 0..2 {
                        let answer = scene.attack(profile, "leave", json!(name));
                        let left = replied(&answer);
                        let own = if profile.base == BaseProfile::Exec { json!(["/tmp"]) } else { json!([]) };
                        assert_eq!(left, json!({ "left": own, "found": 0 }), "{profile}: {answer:?}");
                    }
                }
                let places =
                    json!([format!("/tmp/{name}"), format!("/dev/shm/{name}"), format!("/var/tmp/{name}")]);
                assert_eq!(scene.control("found", places.clone()), json!([]), "they got out");
                scene.control("leave", json!(name));
                let found = scene.control("found", places);
                assert!(found.as_array().unwrap().contains(&json!(format!("/tmp/{name}"))), "the control");
                for path in found.as_array().unwrap() {
                    fs::remove_file(path.as_str().unwrap()).unwrap();
                }
                let _only_root = fs::remove_file(format!("/run/{name}"));
            },
        },
        Promise {
            name: "the_machines_own_settings_are_out_of_reach",
            keep: |scene| {
                let places = [
                    "/proc/sys/kernel/core_pattern",
                    "/proc/sysrq-trigger",
                    "/proc/self/oom_score_adj",
                    "/proc/self/uid_map",
                    "/sys/fs/cgroup/cgroup.procs",
                    "/sys/fs/cgroup/memory/cgroup.procs",
                    "/sys/kernel/uevent_helper",
                    "/dev/mem",
                    "/dev/kmsg",
                    "/dev/tty",
                    "/dev/vda",
                ];
                for profile in scene.profiles() {
                    for path in places {
                        let open = json!([[libc::SYS_openat, HERE, path, libc::O_WRONLY, 0]]);
                        assert_foiled(&scene.attack(profile, "raw", open), NOT_THERE, path);
                    }
                }
                let open = |path: &&str| json!([libc::SYS_openat, HERE, path, libc::O_WRONLY, 0]);
                let calls: Vec<_> = places.iter().map(open).collect();
                let errnos = scene.control("raw", json!(calls));
                let is_root = nix::unistd::geteuid().is_root();
                for (path, errno) in places.iter().zip(errnos.as_array().unwrap()) {
                    // Not every host has all devices, or lets even root have them; whatever else there is, root may open.
                    let fine = [0, libc::ENOENT, libc::EROFS].map(|errno| json!(errno));
                    let fine = path.starts_with("/dev/") || fine.contains(errno);
                    assert!(!is_root || fine, "the control of {path}: {errno}");
                }
                let opened = errnos.as_array().unwrap().iter().filter(|errno| **errno == json!(0)).count();
                assert!(opened >= if is_root { 5 } else { 1 }, "the control: {errnos}");
            },
        },
    ]
}
