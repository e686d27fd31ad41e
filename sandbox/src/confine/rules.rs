//! Landlock rules: which parts of the tree may be read, written or executed.
//!
//! The rules handle every right of the required version, so whatever no rule grants is refused. Anything less than full
//! enforcement is an error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope as LandlockScope,
};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::call::Narrowing;
use crate::view::TreeAccess;

/// The rules use all rights of this version; `check_landlock` refuses older kernels.
const VERSION: ABI = ABI::V6;

/// What the profile lets a child reach.
pub(crate) struct Scope<'a> {
    pub(crate) workspace: BorrowedFd<'a>,
    /// Whether the workspace may only be read.
    pub(crate) read_only: bool,
    pub(crate) tmp: BorrowedFd<'a>,
    pub(crate) entries: &'a [Visible],
    pub(crate) proc: Option<&'a OwnedFd>,
}

/// A path of the host that is visible in the child's file tree.
pub(crate) struct Visible {
    pub(crate) handle: OwnedFd,
    pub(crate) access: TreeAccess,
    pub(crate) directory: bool,
}

fn readable() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// All rights but executing files, controlling devices, and making device files or sockets.
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
        TreeAccess::Write => writable(),
        TreeAccess::Cache => writable() | AccessFs::Execute,
    };
    if entry.directory { access } else { access & AccessFs::from_file(VERSION) }
}

fn text(error: impl std::fmt::Display) -> String {
    format!("landlock: {error}")
}

/// Applies the rules of the profile, before the request is known.
pub(crate) fn restrict_to_profile(scope: &Scope<'_>) -> Result<(), String> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(VERSION))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(VERSION)))
        .and_then(|rules| rules.scope(LandlockScope::from_all(VERSION)))
        .and_then(Ruleset::create)
        .map_err(text)?;
    let of_workspace = if scope.read_only { readable() } else { writable() };
    rules = allow(rules, scope.workspace, of_workspace)?;
    rules = allow(rules, scope.tmp, writable())?;
    for entry in scope.entries {
        rules = allow(rules, entry.handle.as_fd(), of_entry(entry))?;
    }
    if let Some(proc) = scope.proc {
        rules = allow(rules, proc.as_fd(), readable())?;
    }
    enforce(rules)
}

/// Lets this process read these files and folders, and no other. It may write none, and listen on no port. A path that does not
/// exist is left out.
pub(crate) fn restrict_to_reading(paths: &[PathBuf]) -> Result<(), String> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(VERSION))
        .and_then(|rules| rules.handle_access(AccessNet::BindTcp))
        .and_then(|rules| rules.scope(LandlockScope::from_all(VERSION)))
        .and_then(Ruleset::create)
        .map_err(text)?;
    for path in paths {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let at = match nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty()) {
            Ok(at) => at,
            Err(Errno::ENOENT) => continue,
            Err(errno) => return Err(format!("{}: {errno}", path.display())),
        };
        let status = nix::sys::stat::fstat(&at).map_err(text)?;
        let directory = status.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let access = if directory { readable() } else { readable() & AccessFs::from_file(VERSION) };
        rules = allow(rules, at.as_fd(), access)?;
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

/// Adds layers of rules for the paths that the request declares. A layer can only take rights away.
pub(crate) fn restrict_to_request(
    workspace: BorrowedFd<'_>,
    tmp: BorrowedFd<'_>,
    narrowing: &Narrowing,
) -> Result<(), String> {
    // A request to write in the whole workspace and the scratch folder needs no layer: one would only cost time.
    let needs_all =
        |paths: &&Vec<PathBuf>| narrowing.tmp && paths.iter().any(|path| path.as_os_str().is_empty());
    let tmp = narrowing.tmp.then_some(tmp);
    if let Some(paths) = narrowing.writable.as_ref().filter(|paths| !needs_all(paths)) {
        // Devices such as `/dev/null` stay writable: they store no bytes.
        let handled = writable() & !readable();
        let rules = layer(workspace, tmp, paths.iter(), handled)?;
        enforce(allow_devices(rules, handled)?)?;
    }
    if let Some(paths) = &narrowing.readable {
        let paths = paths.iter().chain(narrowing.writable.iter().flatten());
        let rules = layer(workspace, tmp, paths, readable())?;
        enforce(allow_system(rules, readable())?)?;
    }
    Ok(())
}

/// A layer that allows these paths and the scratch folder.
fn layer<'p>(
    workspace: BorrowedFd<'_>,
    tmp: Option<BorrowedFd<'_>>,
    paths: impl Iterator<Item = &'p PathBuf>,
    handled: BitFlags<AccessFs>,
) -> Result<RulesetCreated, String> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)
        .and_then(Ruleset::create)
        .map_err(text)?;
    for path in paths {
        let (at, directory) = open_nearest(workspace, path)?;
        let file_access = handled & AccessFs::from_file(VERSION);
        rules = allow(rules, at.as_fd(), if directory { handled } else { file_access })?;
    }
    match tmp {
        Some(tmp) => allow(rules, tmp, handled),
        None => Ok(rules),
    }
}

/// The paths of the child's file tree outside of the workspace. Not every profile has all of them.
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

/// Opens a folder of the child's file tree with `O_PATH`: the active rules may forbid reading it.
fn open_if_there(path: &str) -> Result<Option<OwnedFd>, String> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty()) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(text(errno)),
    }
}

/// Opens a declared path beneath the workspace, or its nearest existing folder: a rule needs an existing path, and a new
/// file needs its folder.
fn open_nearest(workspace: BorrowedFd<'_>, path: &Path) -> Result<(OwnedFd, bool), String> {
    let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !path.components().all(is_inside) {
        return Err(format!("{} is not a path beneath the workspace", path.display()));
    }
    let resolve =
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let mut at = path;
    loop {
        let name = if at.as_os_str().is_empty() { Path::new(".") } else { at };
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
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
