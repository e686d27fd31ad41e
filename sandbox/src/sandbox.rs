//! The sandbox as the runtime sees it: started once, called often.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use effectd_contracts::SandboxProfile;
use nix::unistd::{getegid, geteuid};
use parking_lot::{Mutex, MutexGuard};

use crate::beside::Beside;
use crate::call::{Answer, Call};
use crate::cgroup::Cgroups;
use crate::drill::Drill;
use crate::error::SandboxError;
use crate::keeper::{Starter, keep};
use crate::limits::{LANDLOCK_ABI_MIN, READY_MAX, READY_MIN, STAND_IN_ID, ZYGOTES_MAX};
use crate::pool::{Pool, PoolSize};
use crate::profile::Profile;
use crate::root::{RootId, SpaceRoot};
use crate::settle::Reply;
use crate::sys::process::landlock_abi;
use crate::trouble::landlock_fix;
use crate::wire::{Boot, Identity};

#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// The program that becomes the zygote: one that calls [`crate::init`] first in `main`. Usually this very program.
    pub zygote_exe: PathBuf,
    /// The uid (and gid) that children have on the host. `None` means the workspace's owner, or a stand-in where that is
    /// root. Only root can choose.
    pub uid: Option<u32>,
    /// How many children are kept ready for each (profile, space root).
    pub pool: PoolSize,
    pub zygotes_max: usize,
    /// A cgroup folder that is delegated to effectd. `None` looks for one.
    pub cgroup_parent: Option<PathBuf>,
}

impl SandboxConfig {
    /// For a program that is its own zygote. It names the running file itself, so that an upgrade which replaces the binary
    /// on disk cannot start a zygote of another version.
    pub fn this_program() -> Self {
        Self::new("/proc/self/exe")
    }

    pub fn new(zygote_exe: impl Into<PathBuf>) -> Self {
        Self {
            zygote_exe: zygote_exe.into(),
            uid: None,
            pool: PoolSize {
                ready_min: READY_MIN,
                ready_max: READY_MAX,
            },
            zygotes_max: ZYGOTES_MAX,
            cgroup_parent: None,
        }
    }
}

/// Makes calls into fresh, confined processes. Dropping it ends all of them.
pub struct Sandbox {
    config: SandboxConfig,
    cgroups: Option<Arc<Cgroups>>,
    profiles: HashMap<SandboxProfile, Arc<Profile>>,
    zygotes: Mutex<HashMap<Key, Entry>>,
}

/// What a zygote is for. A root that was replaced by another folder of the same name is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    profile: SandboxProfile,
    path: PathBuf,
    root: RootId,
    identity: Identity,
}

struct Entry {
    pool: Arc<Pool>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZygoteInfo {
    pub profile: SandboxProfile,
    pub space_root: PathBuf,
    /// The process that guards it; when that ends, all beneath it ends.
    pub guard_pid: u32,
}

impl Sandbox {
    /// Checks what can be checked before any zygote is started. A kernel that cannot confine is refused here.
    pub fn start(config: SandboxConfig) -> Result<Self, SandboxError> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(SandboxError::Unavailable {
                what: "only Linux on x86_64 is supported".to_owned(),
                fix: "use such a host".to_owned(),
            });
        }
        check_landlock()?;
        fs::metadata(&config.zygote_exe).map_err(SandboxError::io("looking for zygote_exe"))?;
        if config
            .uid
            .is_some_and(|uid| uid == 0 || (!geteuid().is_root() && uid != geteuid().as_raw()))
        {
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
                tracing::info!(%error, "no cgroup can be had; memory is bounded for each process instead");
                None
            }
        };
        let mut profiles = HashMap::new();
        for id in SandboxProfile::ALL {
            profiles.insert(id, Arc::new(Profile::load(id)?));
        }
        Ok(Self {
            config,
            cgroups,
            profiles,
            zygotes: Mutex::default(),
        })
    }

    /// A sandbox that runs nothing, whatever the host is like: for programs that only look at a state.
    pub fn closed(config: SandboxConfig) -> Self {
        Self {
            config,
            cgroups: None,
            profiles: HashMap::new(),
            zygotes: Mutex::default(),
        }
    }

    /// Makes one call. The answer comes when every process it started is dead and reaped; dropping the future kills them.
    /// Any tokio runtime will do that has its I/O and time drivers enabled.
    pub async fn call(&self, call: Call) -> Result<Answer, SandboxError> {
        Ok(self.ask(call).await?.settle().await)
    }

    /// The same in two steps, for callers who have something to do while the kernel takes the processes down. What comes is
    /// the reply, as soon as nothing that the call started can ever run again.
    pub async fn ask(&self, call: Call) -> Result<Reply, SandboxError> {
        self.ask_with(call, Beside::default()).await
    }

    /// The same with something long that goes in or comes out beside the call, in pieces.
    pub async fn ask_with(&self, call: Call, beside: Beside) -> Result<Reply, SandboxError> {
        self.make(&call, None, beside).await
    }

    /// One call with an attack of our own in place of the tool.
    pub(crate) async fn drill(&self, call: Call, drill: Drill) -> Result<Answer, SandboxError> {
        let reply = self.make(&call, Some(drill), Beside::default()).await?;
        Ok(reply.settle().await)
    }

    async fn make(&self, call: &Call, drill: Option<Drill>, beside: Beside) -> Result<Reply, SandboxError> {
        call.check()?;
        let pool = self.pool_for(call.effective_profile(), &call.space_root)?;
        let in_flight = pool.enter();
        let child = pool.take().await?;
        crate::run::run(in_flight, child, call, drill, beside).await
    }

    /// Starts the zygote for a (profile, space root) and waits for its first child, so that the first call finds it ready,
    /// and what the host refuses shows before any action is accepted.
    pub async fn warm(&self, profile: SandboxProfile, space_root: &SpaceRoot) -> Result<(), SandboxError> {
        let pool = self.pool_for(profile, space_root)?;
        let _in_flight = pool.enter();
        let child = pool.take().await?;
        pool.deliver(child);
        Ok(())
    }

    pub fn zygotes(&self) -> Vec<ZygoteInfo> {
        let entries = self.lock();
        let info = |(key, entry): (&Key, &Entry)| {
            let guard_pid = entry.pool.guard_pid()?;
            Some(ZygoteInfo {
                profile: key.profile,
                space_root: key.path.clone(),
                guard_pid,
            })
        };
        entries.iter().filter_map(info).collect()
    }

    /// Whether the memory of whole process trees can be bounded here, and by what.
    pub fn tree_memory(&self) -> Option<&'static str> {
        self.cgroups.as_ref().map(|cgroups| cgroups.version.as_str())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.zygotes.lock()
    }

    fn pool_for(&self, profile: SandboxProfile, root: &SpaceRoot) -> Result<Arc<Pool>, SandboxError> {
        let key = self.key(profile, root);
        let mut zygotes = self.lock();
        if let Some(entry) = zygotes.get(&key) {
            return Ok(Arc::clone(&entry.pool));
        }
        if zygotes.len() >= self.config.zygotes_max.max(1) {
            retire_one(&mut zygotes)?;
        }
        let entry = self.new_entry(&key, root)?;
        let pool = Arc::clone(&entry.pool);
        zygotes.insert(key, entry);
        Ok(pool)
    }

    fn key(&self, profile: SandboxProfile, root: &SpaceRoot) -> Key {
        let (uid, gid) = root.owner();
        Key {
            profile,
            path: root.path().to_owned(),
            root: root.id(),
            identity: self.identity(uid, gid),
        }
    }

    /// Never root: where root owns the workspace, a stand-in acts and the mount stores its files as root's.
    fn identity(&self, owner_uid: u32, owner_gid: u32) -> Identity {
        if !geteuid().is_root() {
            return Identity {
                uid: geteuid().as_raw(),
                gid: getegid().as_raw(),
                stands_in_for: None,
            };
        }
        let ordinary = |id: u32| if id == 0 { STAND_IN_ID } else { id };
        let (uid, gid) = match self.config.uid {
            Some(uid) => (uid, uid),
            None => (ordinary(owner_uid), ordinary(owner_gid)),
        };
        let stands_in_for = ((uid, gid) != (owner_uid, owner_gid)).then_some((owner_uid, owner_gid));
        Identity {
            uid,
            gid,
            stands_in_for,
        }
    }

    fn new_entry(&self, key: &Key, root: &SpaceRoot) -> Result<Entry, SandboxError> {
        let profile = self.profiles.get(&key.profile).ok_or(SandboxError::Closed)?;
        if profile.require_tree_memory && self.cgroups.is_none() {
            return Err(SandboxError::Unavailable {
                what: format!("the profile {} needs a memory bound for whole process trees", key.profile),
                fix: "delegate a cgroup to effectd (systemd: Delegate=yes and DelegateSubgroup=runtime), or run as root".to_owned(),
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
        };
        let pool = Arc::new(Pool::new(
            Arc::clone(profile),
            (boot, root.clone()),
            self.cgroups.clone(),
            self.config.pool,
        ));
        let starter = Starter {
            exe: self.config.zygote_exe.clone(),
        };
        let kept = Arc::clone(&pool);
        let keeper = std::thread::Builder::new()
            .name("sandbox-keeper".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || keep(&kept, &starter))
            .map_err(SandboxError::io("starting a keeper"))?;
        Ok(Entry {
            pool,
            keeper: Some(keeper),
        })
    }
}

/// Makes room by ending the zygote that was idle for longest.
fn retire_one(zygotes: &mut HashMap<Key, Entry>) -> Result<(), SandboxError> {
    let idle = zygotes
        .iter()
        .filter_map(|(key, entry)| Some((entry.pool.idle_since()?, key.clone())))
        .min_by_key(|(since, _)| *since);
    let Some((_, key)) = idle else {
        return Err(SandboxError::Busy("every zygote is in use"));
    };
    // The keeper ends by itself; nobody waits for it here.
    if let Some(entry) = zygotes.remove(&key) {
        entry.pool.close();
    }
    Ok(())
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let mut zygotes = std::mem::take(&mut *self.lock());
        for entry in zygotes.values() {
            entry.pool.close();
        }
        for entry in zygotes.values_mut() {
            if let Some(keeper) = entry.keeper.take() {
                let _panicked = keeper.join();
            }
        }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox")
            .field("config", &self.config)
            .field("zygotes", &self.zygotes())
            .finish()
    }
}

/// The raw system call decides; there is no best effort.
pub(crate) fn check_landlock() -> Result<u32, SandboxError> {
    let what = match landlock_abi() {
        Ok(abi) if abi >= LANDLOCK_ABI_MIN => return Ok(abi),
        Ok(abi) => format!("this kernel has Landlock version {abi}; {LANDLOCK_ABI_MIN} is needed"),
        Err(error) => format!("this kernel has no Landlock ({error})"),
    };
    Err(SandboxError::Unavailable {
        what,
        fix: landlock_fix(),
    })
}
