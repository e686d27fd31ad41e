//! Profiles: data files that say what a confined process may see, call and use.
//!
//! They are compiled into the binary, so the reviewed files are the ones that run. A tool's spec and a call can only take
//! away from a profile.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::{BaseProfile, Code, SandboxProfile};
use serde::{Deserialize, Serialize};

use super::seccomp::{Condition, Test, Verdict, compile};
use super::syscalls;
use crate::call::Limits;
use crate::error::SandboxError;
use crate::limits::{CACHE_BYTES_MAX, OUTPUT_BYTES_MAX};
use crate::sys::seccomp::Program;
use crate::view::{TreeAccess, View};

const GROUPS: &str = include_str!("../../profiles/groups.toml");
const DEFAULT: &str = include_str!("../../profiles/default.toml");
const EXEC: &str = include_str!("../../profiles/exec.toml");
const EGRESS: &str = include_str!("../../profiles/egress.toml");
const HIGH_ISOLATION: &str = include_str!("../../profiles/high_isolation.toml");

/// System calls that the zygote and its children need only to confine themselves; the narrow filter takes them away again.
const SETUP: &str = "clone3 socketpair sendmsg recvmsg fsopen fsconfig fsmount move_mount mount capset prctl seccomp \
    signalfd4";

/// Processes and threads of a call with a view: builds use several for each processor.
const VIEW_PROCESSES: u64 = 512;
/// Size of each file of such a call: a program with its debugging information.
const VIEW_FILE_BYTES: u64 = 2 << 30;

/// The limits of a profile. Unlike in [`Limits`], each has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ceilings {
    pub(crate) cpu_ms: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u64,
    pub(crate) open_files: u64,
    pub(crate) file_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) tmp_bytes: u64,
}

impl Ceilings {
    /// The smaller value of each field.
    fn lowest(self, other: Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms.min(other.cpu_ms),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
            processes: self.processes.min(other.processes),
            open_files: self.open_files.min(other.open_files),
            file_bytes: self.file_bytes.min(other.file_bytes),
            written_bytes: self.written_bytes.min(other.written_bytes),
            output_bytes: self.output_bytes.min(other.output_bytes),
            tmp_bytes: self.tmp_bytes.min(other.tmp_bytes),
        }
    }

    /// The profile's limits, lowered where the call asks for less.
    pub(crate) fn narrowed(self, limits: &Limits) -> Self {
        let least = |ceiling: u64, asked: Option<u64>| asked.map_or(ceiling, |asked| asked.min(ceiling));
        Self {
            cpu_ms: least(self.cpu_ms, limits.cpu_ms),
            memory_bytes: least(self.memory_bytes, limits.memory_bytes),
            processes: least(self.processes, limits.processes),
            open_files: least(self.open_files, limits.open_files),
            file_bytes: least(self.file_bytes, limits.file_bytes),
            written_bytes: least(self.written_bytes, limits.written_bytes),
            output_bytes: least(self.output_bytes, limits.output_bytes).min(OUTPUT_BYTES_MAX),
            tmp_bytes: self.tmp_bytes,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnDenied {
    /// The tool's call ends.
    Kill,
    /// The system call fails with an errno and is counted as a denial.
    Errno,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TreeEntry {
    pub(crate) path: String,
    pub(crate) access: TreeAccess,
    #[serde(default)]
    pub(crate) optional: bool,
}

/// The namespaces that each child gets for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildNamespace {
    Pid,
    User,
    Mount,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    on_denied: OnDenied,
    proc: bool,
    child_namespaces: BTreeSet<ChildNamespace>,
    tree: Vec<TreeEntry>,
    syscalls: SyscallsFile,
    limits: Ceilings,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SyscallsFile {
    deny: Vec<String>,
    announce: Vec<String>,
    quiet: BTreeMap<String, Errno>,
    #[serde(default)]
    probes: Vec<Probe>,
    argument: Vec<ArgumentFile>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Errno {
    Enosys,
    Eperm,
    Eopnotsupp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArgumentFile {
    syscall: String,
    argument: u32,
    deny_bits: Option<u32>,
    deny: Option<Vec<u32>>,
    allow: Option<Vec<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModifierFile {
    require_tree_memory: bool,
    allow: Vec<String>,
    limits: Ceilings,
}

/// A profile, ready to be enforced.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) id: SandboxProfile,
    pub(crate) on_denied: OnDenied,
    pub(crate) proc: bool,
    pub(crate) child_namespaces: BTreeSet<ChildNamespace>,
    pub(crate) tree: Vec<TreeEntry>,
    pub(crate) base_filter: Program,
    pub(crate) narrow_filter: Program,
    pub(crate) ceilings: Ceilings,
    /// Whether the memory of all processes together must be bounded by the kernel.
    pub(crate) require_tree_memory: bool,
    network: BTreeSet<u32>,
    probes: Vec<Probe>,
}

/// A banned system call that ordinary programs make to find out what the host offers: it fails uncounted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Probe {
    syscall: String,
    arguments: Vec<u64>,
}

/// The system calls that a profile bans whatever their arguments, each with its errno if it fails uncounted.
#[cfg(feature = "testing")]
pub(crate) fn banned(id: SandboxProfile) -> Result<Vec<(u32, Option<u16>)>, SandboxError> {
    let (_, _, rules) = read(id)?;
    let quiet = |number: u32| (number, rules.quiet.get(&number).copied());
    Ok(rules.denied.iter().copied().map(quiet).collect())
}

fn read(id: SandboxProfile) -> Result<(ProfileFile, Option<ModifierFile>, Rules), SandboxError> {
    let text = match id.base {
        BaseProfile::Default => DEFAULT,
        BaseProfile::Exec => EXEC,
    };
    let groups: BTreeMap<String, Vec<String>> = parse("groups", GROUPS)?;
    let file: ProfileFile = parse(id.as_str(), text)?;
    let modifier: Option<ModifierFile> = match id.high_isolation {
        true => Some(parse("high_isolation", HIGH_ISOLATION)?),
        false => None,
    };
    let rules = Rules::read(&groups, &file, modifier.as_ref())?;
    Ok((file, modifier, rules))
}

impl Profile {
    /// Reads the profile's data. Fails only if the shipped data is wrong, which a test rules out.
    pub(crate) fn load(id: SandboxProfile) -> Result<Self, SandboxError> {
        let (file, modifier, rules) = read(id)?;
        for probe in &file.syscalls.probes {
            number(&probe.syscall)?;
        }
        let ceilings = modifier.as_ref().map_or(file.limits, |modifier| file.limits.lowest(modifier.limits));
        Ok(Self {
            id,
            on_denied: file.on_denied,
            proc: file.proc,
            child_namespaces: file.child_namespaces,
            tree: file.tree,
            base_filter: rules.base(),
            narrow_filter: rules.narrow(),
            ceilings,
            require_tree_memory: modifier.is_some_and(|modifier| modifier.require_tree_memory)
                && ceilings.processes > 1,
            network: rules.network,
            probes: file.syscalls.probes,
        })
    }

    /// The same profile with the limits of a view, which may be higher.
    pub(crate) fn with_view(&self, view: &View) -> Self {
        let ceilings = Ceilings {
            cpu_ms: view.cpu_ms,
            memory_bytes: view.memory_bytes,
            processes: VIEW_PROCESSES,
            file_bytes: VIEW_FILE_BYTES,
            // A first build fills its cache.
            written_bytes: CACHE_BYTES_MAX,
            tmp_bytes: view.memory_bytes / 2,
            ..self.ceilings
        };
        Self { ceilings, ..self.clone() }
    }

    /// Whether a refused system call is one of the profile's probes.
    pub(crate) fn is_probe(&self, number: u32, arguments: &[u64]) -> bool {
        let is_same = |probe: &Probe| {
            syscalls::number(&probe.syscall) == Some(number) && arguments.starts_with(&probe.arguments)
        };
        self.probes.iter().any(is_same)
    }

    pub(crate) fn code_of(&self, number: u32) -> Code {
        if self.network.contains(&number) { Code::NetworkDenied } else { Code::SyscallDenied }
    }
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, SandboxError> {
    toml::from_str(text).map_err(|error| SandboxError::Profile(format!("{name}: {}", error.message())))
}

/// What a profile says about system calls, by number.
struct Rules {
    denied: BTreeSet<u32>,
    quiet: BTreeMap<u32, u16>,
    conditions: BTreeMap<u32, Vec<Condition>>,
    network: BTreeSet<u32>,
    announce: BTreeSet<u32>,
    setup: BTreeSet<u32>,
    on_denied: OnDenied,
}

fn number(name: &str) -> Result<u32, SandboxError> {
    syscalls::number(name).ok_or_else(|| SandboxError::Profile(format!("unknown system call {name:?}")))
}

impl Rules {
    fn read(
        groups: &BTreeMap<String, Vec<String>>,
        file: &ProfileFile,
        modifier: Option<&ModifierFile>,
    ) -> Result<Self, SandboxError> {
        let group = |name: &str| -> Result<BTreeSet<u32>, SandboxError> {
            let names = groups.get(name).ok_or_else(|| SandboxError::Profile(format!("no group @{name}")))?;
            names.iter().map(|name| number(name)).collect()
        };
        let list = |items: &[String]| -> Result<BTreeSet<u32>, SandboxError> {
            let mut numbers = BTreeSet::new();
            for item in items {
                match item.strip_prefix('@') {
                    Some(name) => numbers.extend(group(name)?),
                    None => _ = numbers.insert(number(item)?),
                }
            }
            Ok(numbers)
        };
        let mut denied = list(&file.syscalls.deny)?;
        if let Some(modifier) = modifier {
            let allowed = list(&modifier.allow)?;
            denied.extend(syscalls::numbers().filter(|number| !allowed.contains(number)));
        }
        let mut quiet = BTreeMap::new();
        for (name, errno) in &file.syscalls.quiet {
            let errno = match errno {
                Errno::Enosys => libc::ENOSYS,
                Errno::Eperm => libc::EPERM,
                Errno::Eopnotsupp => libc::EOPNOTSUPP,
            };
            quiet.insert(number(name)?, errno as u16);
            denied.insert(number(name)?);
        }
        let mut conditions: BTreeMap<u32, Vec<Condition>> = BTreeMap::new();
        for rule in &file.syscalls.argument {
            let (at, condition) = rule.read()?;
            // Only a condition that lists allowed arguments is an exception to a ban.
            let excepted = matches!(condition.test, Test::Allow(_));
            let banned_by_modifier = modifier.is_some_and(|m| !m.allow.contains(&rule.syscall));
            if excepted && !banned_by_modifier {
                denied.remove(&at);
            }
            conditions.entry(at).or_default().push(condition);
        }
        Ok(Self {
            denied,
            quiet,
            conditions,
            network: group("network")?,
            announce: list(&file.syscalls.announce)?,
            setup: SETUP.split(' ').filter_map(syscalls::number).collect(),
            on_denied: file.on_denied,
        })
    }

    /// Whether the kernel announces a refused system call to the runtime instead of killing the process at once.
    fn announced(&self, number: u32) -> bool {
        match self.on_denied {
            OnDenied::Errno => true,
            OnDenied::Kill => self.announce.contains(&number) || self.setup.contains(&number),
        }
    }

    fn base(&self) -> Program {
        let known: BTreeSet<u32> = syscalls::numbers().collect();
        let verdict = |number: u32| {
            let killed =
                !known.contains(&number) || (self.denied.contains(&number) && !self.announced(number));
            match self.on_denied {
                OnDenied::Kill if killed && !self.setup.contains(&number) => Verdict::Kill,
                OnDenied::Kill | OnDenied::Errno => Verdict::Allow,
            }
        };
        let unknown = match self.on_denied {
            OnDenied::Kill => Verdict::Kill,
            OnDenied::Errno => Verdict::Errno(libc::ENOSYS as u16),
        };
        compile(verdict, |_| Vec::new(), unknown)
    }

    fn narrow(&self) -> Program {
        let known: BTreeSet<u32> = syscalls::numbers().collect();
        let verdict = |number: u32| match (self.quiet.get(&number), self.denied.contains(&number)) {
            (Some(errno), _) => Verdict::Errno(*errno),
            (None, _) if !known.contains(&number) => match self.on_denied {
                OnDenied::Kill => Verdict::Whatever,
                OnDenied::Errno => Verdict::Errno(libc::ENOSYS as u16),
            },
            (None, true) if self.announced(number) => Verdict::Announce,
            (None, true) => Verdict::Whatever,
            (None, false) => Verdict::Allow,
        };
        compile(
            verdict,
            |number| self.conditions.get(&number).cloned().unwrap_or_default(),
            Verdict::Whatever,
        )
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BrokerFile {
    memory_bytes: u64,
    open_files: u64,
    allow: Vec<String>,
    argument: Vec<ArgumentFile>,
}

/// The profile of the egress broker.
#[derive(Debug)]
pub(crate) struct BrokerProfile {
    pub(crate) memory_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) filter: Program,
}

impl BrokerProfile {
    /// Reads the profile's data. Fails only if the shipped data is wrong, which a test rules out.
    pub(crate) fn load() -> Result<Self, SandboxError> {
        let BrokerFile { memory_bytes, open_files, allow, argument } = parse("egress", EGRESS)?;
        let allowed = allow.iter().map(|name| number(name)).collect::<Result<BTreeSet<u32>, _>>()?;
        let mut conditions: BTreeMap<u32, Vec<Condition>> = BTreeMap::new();
        for rule in &argument {
            let (at, condition) = rule.read()?;
            conditions.entry(at).or_default().push(condition);
        }
        // An unknown call fails as on an older kernel, so that a newer C library falls back to one that is known.
        let refused = |number| if number == CLONE3 { libc::ENOSYS } else { libc::EPERM } as u16;
        let filter = compile(
            |number| if allowed.contains(&number) { Verdict::Allow } else { Verdict::Errno(refused(number)) },
            |number| conditions.get(&number).cloned().unwrap_or_default(),
            Verdict::Errno(libc::ENOSYS as u16),
        );
        Ok(Self { memory_bytes, open_files, filter })
    }
}

/// The C library tries it before `clone`.
const CLONE3: u32 = libc::SYS_clone3 as u32;

impl ArgumentFile {
    fn read(&self) -> Result<(u32, Condition), SandboxError> {
        let test = match (self.deny_bits, &self.deny, &self.allow) {
            (Some(bits), None, None) => Test::DenyBits(bits),
            (None, Some(values), None) if values.len() < 100 => Test::Deny(values.clone()),
            (None, None, Some(values)) if values.len() < 100 => Test::Allow(values.clone()),
            _ => {
                return Err(SandboxError::Profile(format!("one test is needed for {}", self.syscall)));
            }
        };
        if self.argument > 5 {
            let what = format!("{} has no argument {}", self.syscall, self.argument);
            return Err(SandboxError::Profile(what));
        }
        let argument = self.argument;
        Ok((number(&self.syscall)?, Condition { argument, test }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_shipped_profile_reads() {
        for id in SandboxProfile::ALL {
            let profile = Profile::load(id).unwrap();
            assert!(profile.base_filter.0.len() < 1_000 && profile.narrow_filter.0.len() < 1_000, "{id}");
        }
        assert!(BrokerProfile::load().unwrap().filter.0.len() < 1_000);
    }

    #[test]
    fn high_isolation_only_takes_away() {
        for base in [BaseProfile::Default, BaseProfile::Exec] {
            let plain = Profile::load(SandboxProfile { base, high_isolation: false }).unwrap();
            let high = Profile::load(SandboxProfile { base, high_isolation: true }).unwrap();
            assert_eq!(high.ceilings, high.ceilings.lowest(plain.ceilings));
            assert_eq!(high.tree, plain.tree);
        }
    }

    #[test]
    fn limits_can_only_lower() {
        let ceilings = Profile::load(SandboxProfile::default()).unwrap().ceilings;
        let asked = Limits { memory_bytes: Some(u64::MAX), cpu_ms: Some(1_000), ..Limits::default() };
        let narrowed = ceilings.narrowed(&asked);
        assert_eq!(narrowed, Ceilings { cpu_ms: 1_000, ..ceilings });
    }
}
