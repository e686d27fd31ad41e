//! Only the programs of the system run, with no more rights than their caller; nothing that a tool writes can be executed.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use effectd_contracts::BaseProfile;
use serde_json::{Value, json};

use crate::ground::{Attack, EXEC, Ground, Promise, assert_foiled, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("memfd", memfd),
    ("dropped", dropped),
    ("through the loader", |_, _| {
        drop_program("dropped").unwrap();
        run("/lib64/ld-linux-x86-64.so.2", &["./dropped"])
    }),
    ("mount flags", mount_flags),
    ("executable memory of a file", mapped),
];

const HERE: i32 = libc::AT_FDCWD;

/// The program that is brought along: a copy of a harmless one of the system.
fn drop_program(at: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut made = fs::File::options();
    let mut made = made.write(true).create(true).truncate(true).mode(0o755).open(at)?;
    made.write_all(&fs::read("/bin/true")?)
}

fn run(program: &str, arguments: &[&str]) -> Value {
    let status = std::process::Command::new(program).args(arguments).status();
    json!(
        status.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |status| status.code().unwrap_or(-1))
    )
}

/// A program that never was a file.
fn memfd(_: &Ground<'_>, _: &Value) -> Value {
    let bytes = fs::read("/bin/true").unwrap_or_else(|_| b"\x7fELF".to_vec());
    // SAFETY: the name is a C string; the descriptor is written to and executed in a forked copy that ends by it.
    unsafe {
        let fd = libc::syscall(libc::SYS_memfd_create, c"x".as_ptr(), 0) as i32;
        if fd < 0 {
            return json!(std::io::Error::last_os_error().raw_os_error());
        }
        libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
        match libc::fork() {
            0 => {
                let (arguments, none) = ([c"x".as_ptr(), std::ptr::null()], [std::ptr::null()]);
                libc::syscall(
                    libc::SYS_execveat,
                    fd,
                    c"".as_ptr(),
                    arguments.as_ptr(),
                    none.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
                libc::execve(path.as_ptr(), arguments.as_ptr(), none.as_ptr());
                libc::_exit(std::io::Error::last_os_error().raw_os_error().unwrap())
            }
            pid => {
                let mut status = 0;
                libc::waitpid(pid, &raw mut status, 0);
                json!(libc::WEXITSTATUS(status))
            }
        }
    }
}

/// A program in the workspace or the scratch folder, made executable.
fn dropped(_: &Ground<'_>, at: &Value) -> Value {
    let at = at.as_str().unwrap();
    match drop_program(at) {
        Ok(()) => run(at, &[]),
        Err(error) => json!(error.raw_os_error()),
    }
}

/// The flags of the mounts at these paths; -1 where there is nothing.
fn mount_flags(_: &Ground<'_>, paths: &Value) -> Value {
    let flags = |path: &Value| {
        let status = nix::sys::statvfs::statvfs(path.as_str().unwrap());
        json!(status.map_or(-1, |status| status.flags().bits() as i64))
    };
    json!(paths.as_array().unwrap().iter().map(flags).collect::<Vec<_>>())
}

/// Code mapped from a file of the workspace.
fn mapped(_: &Ground<'_>, _: &Value) -> Value {
    use std::os::fd::AsRawFd;
    let file = fs::File::open("inside").unwrap();
    // SAFETY: a fresh mapping that nobody uses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4_096,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    json!(if at == libc::MAP_FAILED { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 })
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "nothing_that_a_tool_brought_along_can_be_executed",
            keep: |scene| {
                let refusals = [libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENOSYS];
                for profile in scene.profiles() {
                    for (attack, with) in [
                        ("memfd", json!(null)),
                        ("dropped", json!("./dropped")),
                        ("dropped", json!("/tmp/dropped")),
                        ("executable memory of a file", json!(null)),
                    ] {
                        let what = format!("{attack} {with} in {profile}");
                        assert_foiled(&scene.attack(profile, attack, with), &refusals, &what);
                    }
                    if profile.base == BaseProfile::Exec {
                        // The loader itself may run; what it is told to load may not.
                        let loaded = replied(&scene.attack(profile, "through the loader", json!(null)));
                        assert_ne!(loaded, json!(0), "through the loader in {profile}");
                    }
                }
                assert_eq!(
                    replied(&scene.attack(EXEC, "execute", json!("/bin/true"))),
                    json!(0),
                    "the system's programs run"
                );
                let _left = fs::remove_file(scene.workspace.join("dropped"));
                for (attack, with) in [
                    ("memfd", json!(null)),
                    ("dropped", json!("./dropped")),
                    ("dropped", json!(scene.outside.join("dropped"))),
                    ("through the loader", json!(null)),
                    ("executable memory of a file", json!(null)),
                ] {
                    assert_eq!(scene.control(attack, with), json!(0), "the control of {attack}");
                }
            },
        },
        Promise {
            name: "set_user_id_programs_and_devices_mean_nothing",
            keep: |scene| {
                let flags = |name: i64, of: &serde_json::Value| of.as_i64().unwrap() & name != 0;
                let (no_suid, no_dev, no_exec) =
                    (libc::ST_NOSUID as i64, libc::ST_NODEV as i64, libc::ST_NOEXEC as i64);
                for profile in scene.profiles() {
                    let paths = json!(["/", "/workspace", "/usr", "/tmp", "/proc"]);
                    let found = replied(&scene.attack(profile, "mount flags", paths));
                    for (at, of) in found.as_array().unwrap().iter().enumerate() {
                        if *of == json!(-1) {
                            assert!(at > 1 && profile.base == BaseProfile::Default);
                            continue;
                        }
                        assert!(flags(no_suid, of) && flags(no_dev, of), "{profile} {at}: {of}");
                        assert!(at == 2 || flags(no_exec, of), "{profile} {at}: {of}");
                    }
                    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
                        let make = json!([[libc::SYS_mknodat, HERE, "node", kind | 0o666, 0x103]]);
                        let errnos = [libc::EPERM, libc::EACCES];
                        assert_foiled(&scene.attack(profile, "raw", make), &errnos, "a device");
                        assert!(!scene.workspace.join("node").exists());
                    }
                }
                let flagged = scene.control("mount flags", json!(["/"]));
                assert!(!flags(no_suid, &flagged[0]), "the control: {flagged}");
                // Planting them takes root; the root leg does.
                if nix::unistd::geteuid().is_root() {
                    planted(scene);
                }
            },
        },
    ]
}

/// A device and a set-user-id program that somebody with the right to do so has put into the workspace.
fn planted(scene: &crate::ground::Scene) {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let node = scene.workspace.join("zero");
    mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 5)).unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    let program = scene.workspace.join("privileged");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let open = json!([[libc::SYS_openat, HERE, "zero", libc::O_RDONLY, 0]]);
    for profile in scene.profiles() {
        let answer = scene.attack(profile, "raw", open.clone());
        assert_foiled(&answer, &[libc::EACCES], "a planted device");
        let answer = scene.attack(profile, "execute", json!("./privileged"));
        assert_foiled(&answer, &[libc::EACCES, libc::EPERM], "a planted program");
    }
    assert_eq!(scene.control("raw", open), json!([0]), "the control");
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let make = json!([[libc::SYS_mknodat, HERE, format!("node-{kind}"), kind | 0o666, 0x103]]);
        assert_eq!(scene.control("raw", make), json!([0]), "the control");
    }
    assert_eq!(scene.control("execute", json!("./privileged")), json!(0), "the control");
}
