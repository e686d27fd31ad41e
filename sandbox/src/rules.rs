//! Landlock rules: what of the visible tree may be read, written or executed.
//!
//! Every right of the required version is handled, so that whatever no rule grants is refused, and the result is checked:
//! anything less than full enforcement is an error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope as LandlockScope,
};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::call::Narrowing;
use crate::profile::TreeAccess;

/// The version whose rights are all used; older kernels are refused before.
const VERSION: ABI = ABI::V6;

/// What the profile lets a child reach.
pub(crate) struct Scope<'a> {
    pub(crate) workspace: BorrowedFd<'a>,
    pub(crate) tmp: BorrowedFd<'a>,
    pub(crate) entries: &'a [Visible],
    pub(crate) proc: Option<&'a OwnedFd>,
}

/// One path of the host that is part of the tree.
pub(crate) struct Visible {
    pub(crate) handle: OwnedFd,
    pub(crate) access: TreeAccess,
    pub(crate) directory: bool,
}

fn readable() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// All but running programs, device files and sockets.
fn writable() -> BitFlags<AccessFs> {
    let never = AccessFs::Execute
        | AccessFs::IoctlDev
        | AccessFs::MakeChar
        | AccessFs::MakeBlock
        | AccessFs::MakeSock;
    AccessFs::from_all(VERSION) & !never
}

fn of_entry(entry: &Visible) -> BitFlags<AccessFs> {
    let access = match entry.access {
        TreeAccess::Read => readable(),
        TreeAccess::Execute => readable() | AccessFs::Execute,
        TreeAccess::Device => AccessFs::ReadFile | AccessFs::WriteFile,
    };
    if entry.directory {
        access
    } else {
        access & AccessFs::from_file(VERSION)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    format!("landlock: {error}")
}

/// The profile's own rules, taken on before the request is known.
pub(crate) fn restrict_to_profile(scope: &Scope<'_>) -> Result<(), String> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(VERSION))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(VERSION)))
        .and_then(|rules| rules.scope(LandlockScope::from_all(VERSION)))
        .and_then(Ruleset::create)
        .map_err(text)?;
    rules = allow(rules, scope.workspace, writable())?;
    rules = allow(rules, scope.tmp, writable())?;
    for entry in scope.entries {
        rules = allow(rules, entry.handle.as_fd(), of_entry(entry))?;
    }
    if let Some(proc) = scope.proc {
        rules = allow(rules, proc.as_fd(), readable())?;
    }
    enforce(rules)
}

fn allow(
    rules: RulesetCreated,
    at: BorrowedFd<'_>,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, String> {
    rules.add_rule(PathBeneath::new(at, access)).map_err(text)
}

fn enforce(rules: RulesetCreated) -> Result<(), String> {
    let status = rules.restrict_self().map_err(text)?;
    if status.ruleset != RulesetStatus::FullyEnforced || !status.no_new_privs {
        return Err("landlock: the rules are not fully enforced".to_owned());
    }
    Ok(())
}

/// A second layer for what the request declares. A layer can only take away from the one before it.
pub(crate) fn restrict_to_request(
    workspace: BorrowedFd<'_>,
    tmp: BorrowedFd<'_>,
    narrowing: &Narrowing,
) -> Result<(), String> {
    // Whoever needs all of the workspace is left what the profile gives: a layer that takes nothing away would only cost time.
    let needs_all =
        |paths: &&Vec<PathBuf>| narrowing.tmp && paths.iter().any(|path| path.as_os_str().is_empty());
    if let Some(paths) = narrowing.writable.as_ref().filter(|paths| !needs_all(paths)) {
        // Devices of the tree stay usable: they take bytes but keep none.
        let handled = writable() & !readable();
        let mut rules = layer(handled)?;
        for path in paths {
            let (at, directory) = open_nearest(workspace, path)?;
            let access = if directory {
                handled
            } else {
                handled & AccessFs::from_file(VERSION)
            };
            rules = allow(rules, at.as_fd(), access)?;
        }
        rules = if narrowing.tmp {
            allow(rules, tmp, handled)?
        } else {
            rules
        };
        rules = allow_devices(rules, handled)?;
        enforce(rules)?;
    }
    if let Some(paths) = &narrowing.readable {
        let handled = readable();
        let mut rules = layer(handled)?;
        for path in paths.iter().chain(narrowing.writable.iter().flatten()) {
            let (at, directory) = open_nearest(workspace, path)?;
            rules = allow(
                rules,
                at.as_fd(),
                if directory {
                    handled
                } else {
                    AccessFs::ReadFile.into()
                },
            )?;
        }
        rules = if narrowing.tmp {
            allow(rules, tmp, handled)?
        } else {
            rules
        };
        rules = allow_system(rules, handled)?;
        enforce(rules)?;
    }
    Ok(())
}

fn layer(handled: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)
        .and_then(Ruleset::create)
        .map_err(text)
}

/// The places of the tree that belong to no space. They are not there in every profile.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev"];

fn allow_system(mut rules: RulesetCreated, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    for path in SYSTEM {
        if let Some(at) = open_if_there(path)? {
            rules = allow(rules, at.as_fd(), access)?;
        }
    }
    Ok(rules)
}

fn allow_devices(rules: RulesetCreated, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    match open_if_there("/dev")? {
        Some(at) => allow(rules, at.as_fd(), access & AccessFs::WriteFile),
        None => Ok(rules),
    }
}

/// A folder of the tree, without reading it: the rules that hold already may forbid that.
fn open_if_there(path: &str) -> Result<Option<OwnedFd>, String> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty()) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(text(errno)),
    }
}

/// Opens a declared path beneath the workspace, or the nearest folder above it that exists: a rule needs something to hold
/// on to, and a file that is to be created needs its folder.
fn open_nearest(workspace: BorrowedFd<'_>, path: &Path) -> Result<(OwnedFd, bool), String> {
    if path
        .components()
        .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err(format!("{} is not a path beneath the workspace", path.display()));
    }
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let mut at = path;
    loop {
        let name = if at.as_os_str().is_empty() {
            Path::new(".")
        } else {
            at
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(resolve);
        match openat2(workspace, name, how) {
            Ok(handle) => {
                let status = nix::sys::stat::fstat(&handle).map_err(text)?;
                let directory = status.st_mode & libc::S_IFMT == libc::S_IFDIR;
                return Ok((handle, directory));
            }
            Err(Errno::ENOENT) => at = at.parent().ok_or_else(|| "the workspace is gone".to_owned())?,
            Err(errno) => return Err(format!("{}: {errno}", path.display())),
        }
    }
}
