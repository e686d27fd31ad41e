//! The root folders of spaces: where each one is, and whether it is still the same folder as before.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use effectd_actors::{Services, SpaceRoots};
use effectd_contracts::{Code, Failure, Phase, SpaceId};
use effectd_gateway::views::RootChange;
use effectd_policy::Policy;
use effectd_sandbox::{Ancestor, RootId, SandboxError, SpaceRoot};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::State;
use crate::error::Error;

/// The path of a space's root: the one in the policy, or a folder under `workspaces`.
pub(crate) fn root_of(policy: &Policy, space: &SpaceId, base: &Path) -> PathBuf {
    let named = policy.space_root(space).filter(|root| !root.as_os_str().is_empty());
    let relative = named.unwrap_or_else(|| Path::new("workspaces").join(percent_encoded(space.as_str())));
    let joined = base.join(relative);
    // Removes `.` components, so that paths can be compared.
    joined.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect()
}

const PINS: &str = "roots.json";
/// Names that effectd uses in the state directory, without endings such as `.new`. No root may lie in one of them.
const STATE_PARTS: [&str; 12] = [
    "blobs", "bus", "caches", "config", "index", "journal", "keys", "log", "plugins", "policy", "roots",
    "run",
];

/// The pinned root of a space: its path, and the identity of the folder when it was pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pin {
    path: String,
    id: RootId,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path, self.id)
    }
}

pub(crate) type Pins = BTreeMap<SpaceId, Pin>;

/// The roots of all spaces, and the only way to open one. [`Roots::open`] follows no link, and refuses a root that others could
/// replace, that shares files with the state directory or another root, or that is another folder than the one pinned.
///
/// A root is pinned when its space is first used or its policy is first loaded. The pin is replaced only by `effectd policy
/// reload` or when the policy's files name another path: both are decisions of the operator.
#[derive(Debug)]
pub(crate) struct Roots {
    base: PathBuf,
    state: SpaceRoot,
    pins: Mutex<Pins>,
}

#[derive(Debug, Default)]
pub(crate) struct Survey {
    pins: Pins,
    /// Spaces whose root is now another folder than the pinned one.
    pub(crate) changes: Vec<RootChange>,
    pub(crate) unusable: Vec<(SpaceId, SandboxError)>,
}

impl Roots {
    /// The roots of a state directory, with the stored pins.
    pub(crate) fn of(state: &State) -> Result<Self, Error> {
        let file = state.path().join(PINS);
        let unreadable = |source| Error::State { path: file.clone(), source };
        let pins = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let why = format!("{error}; remove this file, and the next start pins the current roots");
                unreadable(io::Error::new(io::ErrorKind::InvalidData, why))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Pins::new(),
            Err(error) => return Err(unreadable(error)),
        };
        Self::with(state, pins)
    }

    /// The roots without pins, for a caller that reads the state and opens no space.
    pub(crate) fn without_pins(state: &State) -> Result<Self, Error> {
        Self::with(state, Pins::new())
    }

    fn with(state: &State, pins: Pins) -> Result<Self, Error> {
        Ok(Self { base: state.base(), state: SpaceRoot::open(state.path())?, pins: Mutex::new(pins) })
    }

    fn lock(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock()
    }

    /// The user that effectd runs as, who owns the state directory.
    fn daemon(&self) -> u32 {
        self.state.owner().0
    }

    /// Opens the root of a space. Creates a missing root, unless the space has a pin.
    pub(crate) fn open(&self, policy: &Policy, space: &SpaceId) -> Result<SpaceRoot, SandboxError> {
        let path = root_of(policy, space, &self.base);
        let pinned = |pins: &Pins| pins.get(space).filter(|pin| pin.is_at(&path)).cloned();
        let pin = pinned(&self.lock());
        let root = match (SpaceRoot::find(&path)?, &pin) {
            (Some(root), _) => root,
            (None, None) => SpaceRoot::make(&path, self.daemon())?,
            (None, Some(_)) => {
                return Err(unlike(&path, "the folder that the space had is gone".to_owned()));
            }
        };
        let way = self.check(&root)?;
        let mut pins = self.lock();
        apart(space, &root, &way, &pins)?;
        // A concurrent call may have made the pin meanwhile.
        match pin.or_else(|| pinned(&pins)) {
            Some(pin) if pin.id.is_same(&root.id()) => {}
            Some(pin) => {
                let what = format!("it is another folder than before: {} instead of {}", root.id(), pin.id);
                return Err(unlike(&path, what));
            }
            None => {
                let mut with = pins.clone();
                with.insert(space.clone(), Pin::of(&root));
                self.save(&with).map_err(|error| SandboxError::Workspace {
                    path,
                    what: format!("the identity of the folder cannot be stored ({error})"),
                    fix: "free space on the disk of the state directory".to_owned(),
                })?;
                *pins = with;
            }
        }
        Ok(root)
    }

    /// Refuses a root that others could replace or that shares files with the state directory. Returns the root's parent folders.
    fn check(&self, root: &SpaceRoot) -> Result<Vec<Ancestor>, SandboxError> {
        let way = root.ancestors()?;
        root.check_ancestors(&way, self.daemon())?;
        let (own, state) = (identity(root), identity(&self.state));
        let in_part = || {
            let inner = root.path().strip_prefix(self.state.path()).ok();
            let first = inner.and_then(|inner| inner.iter().next());
            let part = first.and_then(|name| name.to_str()?.split('.').next());
            part.is_none_or(|part| STATE_PARTS.contains(&part))
        };
        if own == state
            || (way.iter().any(|above| above.id == state) && in_part())
            || self.state.ancestors()?.iter().any(|above| above.id == own)
        {
            return Err(shared(root, "the state directory".to_owned()));
        }
        Ok(way)
    }

    pub(crate) fn pins(&self) -> Pins {
        self.lock().clone()
    }

    /// Compares the roots of a policy with the pins `before`. Nothing is created or changed.
    pub(crate) fn survey(&self, policy: &Policy, before: &Pins) -> Survey {
        let mut found = Survey::default();
        for space in policy.spaces() {
            let path = root_of(policy, space, &self.base);
            let was = before.get(space);
            match self.inspect(space, &path, &found.pins) {
                Ok(now) => {
                    let differs = |was: &&Pin| now.as_ref().is_none_or(|now| !now.is_like(was));
                    found.changes.extend(was.filter(differs).map(|was| RootChange {
                        space_id: space.to_string(),
                        before: was.to_string(),
                        after: now.as_ref().map(Pin::to_string),
                    }));
                    found.pins.extend(now.map(|now| (space.clone(), now)));
                }
                Err(error) => {
                    // An unusable root at the same path keeps its pin.
                    let kept = was.filter(|was| was.is_at(&path));
                    found.pins.extend(kept.map(|was| (space.clone(), was.clone())));
                    found.unusable.push((space.clone(), error));
                }
            }
        }
        found
    }

    /// The pin that a root would get now; `None` for a root that does not exist yet.
    fn inspect(&self, space: &SpaceId, path: &Path, others: &Pins) -> Result<Option<Pin>, SandboxError> {
        let Some(root) = SpaceRoot::find(path)? else {
            return SpaceRoot::check_new(path, self.daemon()).map(|_| None);
        };
        apart(space, &root, &self.check(&root)?, others)?;
        Ok(Some(Pin::of(&root)))
    }

    /// Pins the roots of a policy that was put in force. A space whose path is unchanged keeps its pin.
    pub(crate) fn load(&self, policy: &Policy) {
        let mut found = self.survey(policy, &self.pins());
        for (space, error) in &found.unusable {
            tracing::warn!(%space, %error, "a space cannot be used");
        }
        for RootChange { space_id, before, after } in &found.changes {
            tracing::warn!(
                space = space_id,
                before,
                after,
                "the root of a space is another folder than before"
            );
        }
        let mut pins = self.lock();
        for (space, was) in pins.iter() {
            let same_path =
                policy.space_root(space).is_some() && was.is_at(&root_of(policy, space, &self.base));
            let same = found.pins.get(space).is_some_and(|now| now.is_like(was));
            if same_path && !same {
                found.pins.insert(space.clone(), was.clone());
            }
        }
        if *pins == found.pins {
            return;
        }
        match self.save(&found.pins) {
            Ok(()) => *pins = found.pins,
            Err(error) => {
                tracing::warn!(%error, "the roots of spaces could not be pinned; effectd tries again when they are used")
            }
        }
    }

    /// Pins the roots as they are now, on an operator's request, and reports the changes.
    pub(crate) fn repin(&self, policy: &Policy, before: &Pins) -> Result<Survey, Error> {
        let found = self.survey(policy, before);
        let mut pins = self.lock();
        self.save(&found.pins)
            .map_err(|source| Error::State { path: self.state.path().join(PINS), source })?;
        pins.clone_from(&found.pins);
        Ok(found)
    }

    /// Replaces the file that stores the pins, atomically.
    fn save(&self, pins: &Pins) -> io::Result<()> {
        let (file, draft) = (self.state.path().join(PINS), self.state.path().join("roots.new"));
        let mut options = fs::OpenOptions::new();
        let mut written = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        written.write_all(&serde_json::to_vec_pretty(pins)?)?;
        written.sync_all()?;
        fs::rename(&draft, &file)?;
        fs::File::open(self.state.path())?.sync_all()
    }
}

/// Device and inode of an open folder.
fn identity(root: &SpaceRoot) -> (u64, u64) {
    (root.id().device, root.id().inode)
}

impl Pin {
    fn of(root: &SpaceRoot) -> Self {
        Self { path: root.path().to_string_lossy().into_owned(), id: root.id() }
    }

    fn is_at(&self, path: &Path) -> bool {
        self.path == path.to_string_lossy()
    }

    fn is_like(&self, other: &Self) -> bool {
        self.path == other.path && self.id.is_same(&other.id)
    }
}

/// Refuses a root that overlaps with another one.
///
/// Paths decide whether another root is inside this one. That is enough: paths of roots have no links, and a root that was
/// moved away from its path is refused when it is used.
fn apart(space: &SpaceId, root: &SpaceRoot, way: &[Ancestor], others: &Pins) -> Result<(), SandboxError> {
    let own = identity(root);
    let others = others.iter().filter(|(other, _)| *other != space);
    for (other, pin) in others {
        let theirs = (pin.id.device, pin.id.inode);
        let inside = theirs == own || way.iter().any(|above| above.id == theirs);
        if inside || Path::new(&pin.path).starts_with(root.path()) {
            return Err(shared(root, format!("the space {other}")));
        }
    }
    Ok(())
}

fn shared(root: &SpaceRoot, with: String) -> SandboxError {
    SandboxError::Workspace {
        path: root.path().to_owned(),
        what: format!("it overlaps with {with}"),
        fix: "move one of them".to_owned(),
    }
}

fn unlike(path: &Path, what: String) -> SandboxError {
    SandboxError::Workspace {
        path: path.to_owned(),
        what,
        fix: "restore the previous folder; if the change is intended, `effectd policy reload` shows and accepts it"
            .to_owned(),
    }
}

/// The function that opens roots for the pipeline, by the policy in force. The services own it, so it refers to them weakly.
pub(crate) fn roots(roots: Arc<Roots>, services: Arc<OnceLock<Weak<Services>>>) -> SpaceRoots {
    Arc::new(move |space: &SpaceId| {
        let down = || Failure::new(Code::SandboxUnavailable, Phase::Sandbox, "the runtime is not up");
        let services = services.get().and_then(Weak::upgrade).ok_or_else(down)?;
        roots.open(&services.policy(), space).map_err(|error| error.failure())
    })
}

/// The id of a space as one path component.
fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_space_is_one_folder() {
        assert_eq!(percent_encoded("private:bob"), "private%3Abob");
        assert_eq!(percent_encoded("../x"), "%2E%2E%2Fx");
        assert_eq!(percent_encoded("ü"), "%C3%BC");
    }
}
