//! What each layer of confinement costs, for the bench: each step is measured alone, in a fresh process.
//!
//! Behind the feature `testing`, because nothing that ships measures itself.
#![expect(clippy::disallowed_methods, reason = "measures the kernel")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::SandboxProfile;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;

use crate::confine::profile::Profile;
use crate::confine::rules::{Scope, restrict_to_profile};
use crate::host::cgroup::Cgroups;
use crate::sys::{mount, process, seccomp};

/// The name of a layer, and its median cost.
pub type Layer = (&'static str, Duration);

type Step = fn(&Given) -> io::Result<()>;

struct Given {
    workspace: OwnedFd,
    profile: Profile,
}

/// Measures every layer of the profile `default`. Call it before any thread starts: it forks. The measuring processes
/// enter a user namespace, as a zygote does.
pub fn costs(workspace: &Path, rounds: usize) -> io::Result<Vec<Layer>> {
    let other = |error: crate::SandboxError| io::Error::other(error.to_string());
    let given = Given {
        workspace: std::fs::File::open(workspace)?.into(),
        profile: Profile::load(SandboxProfile::default()).map_err(other)?,
    };
    let mut layers = vec![];
    let plain = births(0, rounds)?;
    layers.push(("a copy of the process, born, ended and reaped", plain));
    let namespaces = [
        ("a PID namespace", libc::CLONE_NEWPID),
        (
            "PID, user and mount namespaces (exec)",
            libc::CLONE_NEWPID | libc::CLONE_NEWUSER | libc::CLONE_NEWNS,
        ),
    ];
    for (name, flags) in namespaces {
        layers.push((name, births(flags as u64, rounds)?.saturating_sub(plain)));
    }
    let steps: [(&str, Step); 5] = [
        ("a scratch filesystem, made and taken down", scratch),
        ("Landlock rules", landlock),
        ("no capabilities", |_| process::drop_capabilities()),
        ("the base filter (once, in the zygote)", |given| seccomp::install(&given.profile.base_filter)),
        ("the second filter, with its listener", |given| {
            seccomp::install_with_listener(&given.profile.narrow_filter).map(drop)
        }),
    ];
    for (name, step) in steps {
        layers.push((name, steps_taken(step, &given, rounds)?));
    }
    if let Ok(cgroups) = Cgroups::find(None) {
        let times = (0..rounds).map(|_| placed(&cgroups)).collect::<io::Result<_>>()?;
        layers.push(("a memory cgroup from the pool", median(times)));
    }
    Ok(layers)
}

/// Puts a child into a cgroup, and recycles the cgroup when the child is killed.
fn placed(cgroups: &Arc<Cgroups>) -> io::Result<Duration> {
    let (pid, handle) = match process::clone_process(0)? {
        process::Cloned::Child => loop {
            nix::unistd::pause();
        },
        process::Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    let begun = Instant::now();
    let slot = cgroups.acquire()?;
    let added = slot.add(pid, false);
    let took = begun.elapsed();
    process::kill(handle.as_fd())?;
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
    added?;
    slot.recycle();
    Ok(took)
}

fn scratch(_: &Given) -> io::Result<()> {
    let options = [(c"size", Some(c"16m")), (c"mode", Some(c"700"))];
    mount::fresh(c"tmpfs", &options, mount::NO_SUID | mount::NO_DEV | mount::NO_EXEC).map(drop)
}

fn landlock(given: &Given) -> io::Result<()> {
    let workspace = given.workspace.as_fd();
    let scope = Scope { workspace, read_only: false, tmp: workspace, entries: &[], proc: None };
    restrict_to_profile(&scope).map_err(io::Error::other)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Runs `what` in a process with its own user namespace, and returns the median of its times.
fn in_namespace(what: impl Fn(usize) -> io::Result<Duration>, rounds: usize) -> io::Result<Duration> {
    let (reader, writer) = nix::unistd::pipe()?;
    match process::clone_process(0)? {
        process::Cloned::Child => {
            let measured = (|| {
                let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
                unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
                std::fs::write("/proc/self/setgroups", "deny")?;
                std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
                std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
                let times = (0..rounds).map(what).collect::<io::Result<Vec<_>>>()?;
                send(&writer, median(times))
            })();
            process::exit_now(i32::from(measured.is_err()))
        }
        process::Cloned::Parent { pid, .. } => {
            drop(writer);
            receive(&reader, pid)
        }
    }
}

fn send(writer: &OwnedFd, time: Duration) -> io::Result<()> {
    let bytes = (time.as_nanos() as u64).to_le_bytes();
    Ok(nix::unistd::write(writer, &bytes).map(drop)?)
}

/// The time that the process measured, once it is reaped.
fn receive(reader: &OwnedFd, pid: i32) -> io::Result<Duration> {
    let mut bytes = [0; 8];
    let count = nix::unistd::read(reader, &mut bytes)?;
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
    match count {
        8 => Ok(Duration::from_nanos(u64::from_le_bytes(bytes))),
        _ => Err(io::Error::other("a layer could not be measured")),
    }
}

fn births(flags: u64, rounds: usize) -> io::Result<Duration> {
    let born = |_| {
        let begun = Instant::now();
        match process::clone_process(flags)? {
            process::Cloned::Child => process::exit_now(0),
            process::Cloned::Parent { pid, .. } => {
                nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
                Ok(begun.elapsed())
            }
        }
    };
    in_namespace(born, rounds)
}

fn steps_taken(step: Step, given: &Given, rounds: usize) -> io::Result<Duration> {
    let taken = |_| {
        let (reader, writer) = nix::unistd::pipe()?;
        match process::clone_process(0)? {
            process::Cloned::Child => {
                let _set = prctl::set_no_new_privs();
                let begun = Instant::now();
                let done = step(given);
                let took = begun.elapsed();
                let sent = done.and_then(|()| send(&writer, took));
                process::exit_now(i32::from(sent.is_err()))
            }
            process::Cloned::Parent { pid, .. } => {
                drop(writer);
                receive(&reader, pid)
            }
        }
    };
    in_namespace(taken, rounds)
}
