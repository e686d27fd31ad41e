//! The isolation of a call, described for its receipt.

use std::collections::BTreeMap;

use effectd_contracts::{BaseProfile, Isolation};

use super::pool::Pool;
use crate::call::Call;
use crate::confine::profile::{Ceilings, OnDenied};
use crate::sys::process::landlock_abi;
use crate::view::TreeAccess;

/// Without a cgroup, each process has its own memory limit. To bound their sum, each gets a quarter of the call's memory,
/// and a call has at most this many processes: together they use at most four times its memory.
const PROCESSES_WITHOUT_CGROUP_MAX: u64 = 16;
/// The same for a call with a view. The kernel counts threads too, and a compiler starts dozens, so their sum is bounded less well.
const VIEW_PROCESSES_WITHOUT_CGROUP_MAX: u64 = 128;

/// The limits of one call: the profile's, the call's, and what this host can count.
pub(crate) fn ceilings(pool: &Pool, call: &Call) -> Ceilings {
    let mut ceilings = pool.profile.ceilings.narrowed(&call.limits);
    if pool.cgroups.is_none() && ceilings.processes > 1 {
        ceilings.memory_bytes /= 4;
        let most = match call.view {
            Some(_) => VIEW_PROCESSES_WITHOUT_CGROUP_MAX,
            None => PROCESSES_WITHOUT_CGROUP_MAX,
        };
        ceilings.processes = ceilings.processes.min(most);
    }
    ceilings
}

pub(crate) fn describe(pool: &Pool, ceilings: &Ceilings) -> Isolation {
    let profile = &pool.profile;
    let memory = match (&pool.cgroups, ceilings.processes) {
        (Some(cgroups), _) => {
            format!("{} bytes for the tree, {}", ceilings.memory_bytes, cgroups.version.as_str())
        }
        (None, 1) => format!("{} bytes of address space, one process", ceilings.memory_bytes),
        (None, most) => format!("{} bytes for each of at most {most} processes", ceilings.memory_bytes),
    };
    let denied = match profile.on_denied {
        OnDenied::Kill => "a banned call ends the action",
        OnDenied::Errno => "a banned call fails and is counted",
    };
    let list = if profile.id.high_isolation { "allowlist" } else { "banlist" };
    let sockets = match (profile.id.base, profile.id.high_isolation) {
        (BaseProfile::Exec, false) => "sockets banned but connected pairs in the sandbox",
        (BaseProfile::Exec, true) | (BaseProfile::Default, _) => "sockets banned",
    };
    let identity = match pool.boot.identity.stands_in_for {
        Some((uid, _)) => format!("uid {}, files stored as uid {uid}", pool.boot.identity.uid),
        None => format!("uid {}", pool.boot.identity.uid),
    };
    let landlock = match landlock_abi() {
        Ok(abi) => format!("abi {abi}, fully enforced"),
        Err(_) => "unknown".to_owned(),
    };
    let mechanisms = [
        ("capabilities", "none".to_owned()),
        ("filesystem", filesystem(pool)),
        ("identity", identity),
        ("landlock", landlock),
        ("memory", memory),
        ("network", format!("an empty namespace, {sockets}")),
        ("processes", "a separate PID namespace".to_owned()),
        ("seccomp", format!("{list}, {denied}")),
    ];
    Isolation {
        profile: profile.id.as_str().to_owned(),
        mechanisms: BTreeMap::from(mechanisms.map(|(name, got)| (name.to_owned(), got))),
    }
}

fn filesystem(pool: &Pool) -> String {
    let Some(mounts) = &pool.boot.view else {
        return "a separate root".to_owned();
    };
    let of = |access| mounts.iter().filter(|mount| mount.access == access).count();
    let (writable, caches) = (of(TreeAccess::Write), of(TreeAccess::Cache));
    format!("a separate root, the space read-only but for {writable} paths and {caches} caches")
}
