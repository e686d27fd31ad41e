//! The sandbox: started once by the runtime, and called for every action.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use effectd_contracts::SandboxProfile;
use nix::unistd::{getegid, geteuid};
use parking_lot::Mutex;

use crate::call::{Answer, Call};
use crate::confine::profile::Profile;
use crate::drill::Drill;
use crate::error::SandboxError;
use crate::host::cgroup::Cgroups;
use crate::host::pool::{Pool, PoolSize};
use crate::host::reap::Reply;
use crate::host::session;
use crate::host::setup_error::landlock_fix;
use crate::host::zygote_owner::own_zygote;
use crate::limits::{LANDLOCK_ABI_MIN, READY_MAX, READY_MIN, STAND_IN_ID, ZYGOTES_MAX};
use crate::root::{RootId, SpaceRoot};
use crate::side_channel::SideChannel;
use crate::sys::process::landlock_abi;
use crate::view::View;
use crate::wire::{Boot, Identity};

#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// The program that becomes the zygote: it calls [`crate::init`] first in `main`. Usually this very program.
    pub zygote_exe: PathBuf,
    /// The uid and gid of children on the host. `None` means the workspace's owner, or a stand-in if the owner is root.
    /// If the runtime is not root, children have its own uid and gid.
    pub uid: Option<u32>,
    /// How many children are ready for each (profile, space root).
    pub pool: PoolSize,
    pub zygotes_max: usize,
    /// A cgroup folder delegated to effectd. `None` searches for one.
    pub cgroup_parent: Option<PathBuf>,
}

impl SandboxConfig {
    /// For a program that is its own zygote. It uses the running file itself, so an upgrade that replaces the binary on
    /// disk cannot start a zygote of another version.
    pub fn this_program() -> Self {
        Self::new("/proc/self/exe")
    }

    pub fn new(zygote_exe: impl Into<PathBuf>) -> Self {
        Self {
            zygote_exe: zygote_exe.into(),
            uid: None,
            pool: PoolSize { ready_min: READY_MIN, ready_max: READY_MAX },
            zygotes_max: ZYGOTES_MAX,
            cgroup_parent: None,
        }
    }
}

/// Makes calls into fresh, confined processes. Dropping it kills all of them.
pub struct Sandbox {
    config: SandboxConfig,
    cgroups: Option<Arc<Cgroups>>,
    profiles: HashMap<SandboxProfile, Arc<Profile>>,
    zygotes: Mutex<HashMap<Key, RunningZygote>>,
}

/// What a zygote is for. Another folder under the same path is another root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    profile: SandboxProfile,
    path: PathBuf,
    root: RootId,
    identity: Identity,
    view: Option<View>,
}

struct RunningZygote {
    pool: Arc<Pool>,
    owner: JoinHandle<()>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZygoteInfo {
    pub profile: SandboxProfile,
    pub space_root: PathBuf,
    /// The zygote's parent; when it ends, the zygote and all its children end.
    pub guard_pid: u32,
}

impl Sandbox {
    /// Checks what can be checked before a zygote starts. A kernel that cannot confine is refused here.
    pub fn start(config: SandboxConfig) -> Result<Self, SandboxError> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(SandboxError::Unavailable {
                what: "only Linux on x86_64 is supported".to_owned(),
                fix: "use such a host".to_owned(),
            });
        }
        check_landlock()?;
        fs::metadata(&config.zygote_exe).map_err(SandboxError::io("looking for zygote_exe"))?;
        if config.uid.is_some_and(|uid| uid == 0 || (!geteuid().is_root() && uid != geteuid().as_raw())) {
            return Err(SandboxError::Refused(
                "sandbox.uid must be an ordinary uid, and only root can choose it".to_owned(),
            ));
        }
        let cgroups = match Cgroups::find(config.cgroup_parent.as_deref()) {
            Ok(cgroups) => Some(cgroups),
            Err(error) if config.cgroup_parent.is_some() => {
                return Err(SandboxError::io("cgroup_parent")(error));
            }
            Err(error) => {
                tracing::info!(%error, "no cgroup is available; memory is bounded for each process instead");
                None
            }
        };
        let mut sandbox = Self::closed(config);
        sandbox.cgroups = cgroups;
        for id in SandboxProfile::ALL {
            sandbox.profiles.insert(id, Arc::new(Profile::load(id)?));
        }
        Ok(sandbox)
    }

    /// A sandbox that runs nothing, on any host: for programs that only read a state directory.
    pub fn closed(config: SandboxConfig) -> Self {
        Self { config, cgroups: None, profiles: HashMap::new(), zygotes: Mutex::default() }
    }

    /// Makes one call. It returns when every process that the call started is dead and reaped; dropping the future kills
    /// them. It needs a tokio runtime with its I/O and time drivers enabled.
    pub async fn call(&self, call: Call) -> Result<Answer, SandboxError> {
        Ok(self.ask(call).await?.reap().await)
    }

    /// Like [`Sandbox::call`] in two steps, for callers with work to do while the kernel tears the processes down: it
    /// returns as soon as nothing that the call started can ever run again.
    pub async fn ask(&self, call: Call) -> Result<Reply, SandboxError> {
        self.ask_with(call, SideChannel::default()).await
    }

    /// Like [`Sandbox::ask`], with a side channel.
    pub async fn ask_with(&self, call: Call, side_channel: SideChannel) -> Result<Reply, SandboxError> {
        self.make(&call, None, side_channel).await
    }

    /// One call that attacks the sandbox instead of running a tool.
    pub(crate) async fn drill(&self, call: Call, drill: Drill) -> Result<Answer, SandboxError> {
        let reply = self.make(&call, Some(drill), SideChannel::default()).await?;
        Ok(reply.reap().await)
    }

    async fn make(
        &self,
        call: &Call,
        drill: Option<Drill>,
        side_channel: SideChannel,
    ) -> Result<Reply, SandboxError> {
        call.check()?;
        let pool = self.pool_for(call.effective_profile(), &call.space_root, call.view.as_ref())?;
        let in_flight = pool.enter();
        let child = pool.take().await?;
        session::run(in_flight, child, call, drill, side_channel).await
    }

    /// Starts the zygote for a (profile, space root) and waits for its first child: the first call finds it ready, and a
    /// host that cannot confine is noticed before any action is accepted.
    pub async fn warm(&self, profile: SandboxProfile, space_root: &SpaceRoot) -> Result<(), SandboxError> {
        let pool = self.pool_for(profile, space_root, None)?;
        let _in_flight = pool.enter();
        let child = pool.take().await?;
        pool.deliver(child);
        Ok(())
    }

    pub fn zygotes(&self) -> Vec<ZygoteInfo> {
        let info = |(key, zygote): (&Key, &RunningZygote)| {
            Some(ZygoteInfo {
                profile: key.profile,
                space_root: key.path.clone(),
                guard_pid: zygote.pool.guard_pid()?,
            })
        };
        self.zygotes.lock().iter().filter_map(info).collect()
    }

    /// Whether the memory of whole process trees can be bounded here, and by what.
    pub fn tree_memory(&self) -> Option<&'static str> {
        self.cgroups.as_ref().map(|cgroups| cgroups.version.as_str())
    }

    fn pool_for(
        &self,
        profile: SandboxProfile,
        root: &SpaceRoot,
        view: Option<&View>,
    ) -> Result<Arc<Pool>, SandboxError> {
        let (uid, gid) = root.owner();
        let key = Key {
            profile,
            path: root.path().to_owned(),
            root: root.id(),
            identity: self.identity(uid, gid),
            view: view.cloned(),
        };
        let mut zygotes = self.zygotes.lock();
        if let Some(zygote) = zygotes.get(&key) {
            return Ok(Arc::clone(&zygote.pool));
        }
        if zygotes.len() >= self.config.zygotes_max.max(1) {
            retire_one(&mut zygotes)?;
        }
        let zygote = self.start_zygote(&key, root)?;
        let pool = Arc::clone(&zygote.pool);
        zygotes.insert(key, zygote);
        Ok(pool)
    }

    /// The user of children: if root owns the workspace, a stand-in, whose files the mount stores as root's.
    fn identity(&self, owner_uid: u32, owner_gid: u32) -> Identity {
        if !geteuid().is_root() {
            return Identity { uid: geteuid().as_raw(), gid: getegid().as_raw(), stands_in_for: None };
        }
        let ordinary = |id: u32| if id == 0 { STAND_IN_ID } else { id };
        let (uid, gid) = match self.config.uid {
            Some(uid) => (uid, uid),
            None => (ordinary(owner_uid), ordinary(owner_gid)),
        };
        let stands_in_for = ((uid, gid) != (owner_uid, owner_gid)).then_some((owner_uid, owner_gid));
        Identity { uid, gid, stands_in_for }
    }

    fn start_zygote(&self, key: &Key, root: &SpaceRoot) -> Result<RunningZygote, SandboxError> {
        let mut profile = Arc::clone(self.profiles.get(&key.profile).ok_or(SandboxError::Closed)?);
        if let Some(view) = &key.view {
            profile = Arc::new(profile.with_view(view));
        }
        if profile.require_tree_memory && self.cgroups.is_none() {
            return Err(SandboxError::Unavailable {
                what: format!("the profile {} needs a memory bound for whole process trees", key.profile),
                fix: "delegate a cgroup to effectd (systemd: Delegate=yes), or run as root".to_owned(),
            });
        }
        let boot = Boot {
            space_root: key.path.clone(),
            identity: key.identity,
            tree: profile.tree.clone(),
            proc: profile.proc,
            child_namespaces: profile.child_namespaces.iter().copied().collect(),
            base_filter: profile.base_filter.clone(),
            narrow_filter: profile.narrow_filter.clone(),
            ceilings: profile.ceilings,
            view: key.view.as_ref().map(|view| view.mounts.clone()),
        };
        let pool = Arc::new(Pool::new(profile, (boot, root.clone()), self.cgroups.clone(), self.config.pool));
        let (owned, exe) = (Arc::clone(&pool), self.config.zygote_exe.clone());
        let owner = std::thread::Builder::new()
            .name("zygote-owner".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || own_zygote(&owned, &exe))
            .map_err(SandboxError::io("starting the thread of a zygote"))?;
        Ok(RunningZygote { pool, owner })
    }
}

/// Makes room by closing the zygote that has been idle longest.
fn retire_one(zygotes: &mut HashMap<Key, RunningZygote>) -> Result<(), SandboxError> {
    let idle = zygotes
        .iter()
        .filter_map(|(key, zygote)| Some((zygote.pool.idle_since()?, key.clone())))
        .min_by_key(|(since, _)| *since);
    let Some((_, key)) = idle else {
        return Err(SandboxError::Busy("every zygote is in use"));
    };
    // The owner thread ends by itself.
    if let Some(zygote) = zygotes.remove(&key) {
        zygote.pool.close();
    }
    Ok(())
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let zygotes = std::mem::take(self.zygotes.get_mut());
        for zygote in zygotes.values() {
            zygote.pool.close();
        }
        for zygote in zygotes.into_values() {
            let _panicked = zygote.owner.join();
        }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("config", &self.config).field("zygotes", &self.zygotes()).finish()
    }
}

/// Refuses a kernel with an old Landlock. The raw system call decides; there is no best effort.
pub(crate) fn check_landlock() -> Result<u32, SandboxError> {
    let what = match landlock_abi() {
        Ok(abi) if abi >= LANDLOCK_ABI_MIN => return Ok(abi),
        Ok(abi) => format!("this kernel has Landlock version {abi}; {LANDLOCK_ABI_MIN} is needed"),
        Err(error) => format!("this kernel has no Landlock ({error})"),
    };
    Err(SandboxError::Unavailable { what, fix: landlock_fix() })
}
