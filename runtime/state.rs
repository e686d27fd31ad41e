//! The state directory: private to its owner, outside of every space, with the policy, the keys and the roots of spaces.

pub(crate) mod id;
pub(crate) mod keys;
pub(crate) mod policy_store;
pub(crate) mod spaces;

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use effectd_actors::Registry;
use effectd_policy::{Overlay, Policy, PolicyDir, PolicyError, Source};
use effectd_sandbox::View;

use crate::error::Error;
use crate::tool_registry;

#[derive(Debug, Clone)]
pub(crate) struct State {
    path: PathBuf,
    policy_dir: PathBuf,
    /// The folder with the packages of plugins.
    plugins: PathBuf,
    owner: u32,
    seeded: bool,
}

impl State {
    /// Creates the directory if it is missing; with `seed`, also a policy of these files if there is none.
    pub(crate) fn prepare(
        path: &Path,
        policy_dir: Option<&Path>,
        seed: Option<[(&str, &str); 2]>,
    ) -> Result<Self, Error> {
        let unusable = |source| Error::State { path: path.to_owned(), source };
        make_private(path).map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        let owner = fs::metadata(&path).map_err(unusable)?.uid();
        let policy_dir = match policy_dir {
            // Links and `..` are resolved, so that the path can be compared with the roots of spaces.
            Some(named) => fs::canonicalize(named).map_err(|source| {
                let path = named.to_owned();
                Box::new(PolicyError::Unreadable { path, source })
            })?,
            None => path.join("policy"),
        };
        let plugins = plugins_in(&path, "");
        let mut state = Self { path, policy_dir, plugins, owner, seeded: false };
        if let Some(files) = seed.filter(|_| !state.policy_dir.exists()) {
            state.seed(files).map_err(unusable)?;
            state.seeded = true;
        }
        Ok(state)
    }

    /// Opens a state directory that has a policy or a store: an embedded effectd may keep its policy elsewhere. Creates nothing.
    pub(crate) fn existing(path: &Path) -> Result<Self, Error> {
        if !["policy", "journal"].iter().any(|part| path.join(part).is_dir()) {
            return Err(Error::NoState(path.to_owned()));
        }
        Self::prepare(path, None, None)
    }

    /// With another folder of plugins, unless the path is empty. It must exist apart from the state.
    pub(crate) fn with_plugins(mut self, root: &Path) -> Result<Self, Error> {
        if root.as_os_str().is_empty() {
            return Ok(self);
        }
        let unusable = |source| Error::State { path: root.to_owned(), source };
        let refused = |why: &str| unusable(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !root.is_absolute() {
            return Err(refused("plugins.root must be an absolute path"));
        }
        let root = fs::canonicalize(root).map_err(unusable)?;
        if root.starts_with(&self.path) || self.path.starts_with(&root) {
            return Err(refused("plugins.root shares files with the state directory; move one of them"));
        }
        self.plugins = root;
        Ok(self)
    }

    pub(crate) fn plugins(&self) -> &Path {
        &self.plugins
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn policy_dir(&self) -> &Path {
        &self.policy_dir
    }

    pub(crate) fn keys_dir(&self) -> PathBuf {
        self.path.join("keys")
    }

    /// The caches of named commands.
    pub(crate) fn caches_dir(&self) -> PathBuf {
        self.path.join("caches")
    }

    /// Whether [`State::prepare`] installed a policy.
    pub(crate) fn seeded(&self) -> bool {
        self.seeded
    }

    /// The folder that relative roots of spaces start from: the parent of a hidden state directory (`.effectd`), otherwise the
    /// state directory itself.
    pub(crate) fn base(&self) -> PathBuf {
        let hidden = self.path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let parent = self.path.parent().filter(|_| hidden);
        parent.unwrap_or(&self.path).to_owned()
    }

    /// Compiles the policy. Refuses a space whose root contains the state, the policy or the plugins, since tools could change them, and a command
    /// whose programs others could replace.
    pub(crate) fn load_policy(&self, overlay: &Overlay, registry: &Registry) -> Result<Policy, Error> {
        let source = PolicyDir::load(&self.policy_dir, self.owner).map_err(Box::new)?;
        self.compile_policy(&source, overlay, registry)
    }

    /// [`State::load_policy`] from these files.
    pub(crate) fn compile_policy(
        &self,
        source: &Source,
        overlay: &Overlay,
        registry: &Registry,
    ) -> Result<Policy, Error> {
        self.check_policy(tool_registry::compile_policy(source, overlay, registry).map_err(Box::new)?)
    }

    /// [`State::load_policy`] from files that were in force before, without their examples.
    pub(crate) fn load_policy_again(&self, source: &Source, overlay: &Overlay) -> Result<Policy, Error> {
        self.check_policy(Policy::compile_unchecked(source, overlay).map_err(Box::new)?)
    }

    fn check_policy(&self, policy: Policy) -> Result<Policy, Error> {
        for space in policy.spaces() {
            let root = spaces::root_of(&policy, space, &self.base());
            // This compares paths; `Roots` follows no link when it opens a root.
            let inside = [&self.path, &self.policy_dir, &self.plugins];
            let around = Some(&self.plugins).filter(|plugins| root.starts_with(plugins));
            if let Some(directory) = inside.into_iter().find(|path| path.starts_with(&root)).or(around) {
                return Err(Error::StateInSpace { directory: directory.clone(), space: space.clone(), root });
            }
        }
        self.check_programs(&policy)?;
        Ok(policy)
    }

    /// What no program may have: the roots of all spaces, the state, the policy and the plugins.
    pub(crate) fn kept(&self, policy: &Policy) -> Vec<PathBuf> {
        let roots = policy.spaces().map(|space| spaces::root_of(policy, space, &self.base()));
        roots.chain([self.path.clone(), self.policy_dir.clone(), self.plugins.clone()]).collect()
    }

    /// Refuses folders of programs that others could change, or that share files with the state or a space.
    fn check_programs(&self, policy: &Policy) -> Result<(), Error> {
        let kept = self.kept(policy);
        for command in policy.commands() {
            for folder in &command.programs {
                let checked = View::check_outside(folder, &kept)
                    .and_then(|()| View::check_programs(folder, self.owner).map(drop));
                checked.map_err(|why| {
                    let message = format!("the programs of the command {:?}: {why}", command.name);
                    Box::new(policy.faulty_command(command, message))
                })?;
            }
        }
        Ok(())
    }

    /// Writes the policy to a draft and renames it, so that a half-written policy is never read.
    fn seed(&self, files: [(&str, &str); 2]) -> io::Result<()> {
        let draft = self.path.join("policy.draft");
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        make_private(&draft)?;
        for (name, text) in files {
            let file = draft.join(name);
            // The group cannot write it, whatever the umask.
            let mut options = fs::OpenOptions::new();
            let mut made = options.write(true).create_new(true).mode(0o600).open(&file)?;
            made.write_all(text.as_bytes())?;
            made.sync_all()?;
        }
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &self.policy_dir)?;
        fs::File::open(&self.path)?.sync_all()
    }
}

/// The folder of plugins: the named one, or that of the state directory.
pub(crate) fn plugins_in(state: &Path, named: &str) -> PathBuf {
    if named.is_empty() { state.join("plugins") } else { PathBuf::from(named) }
}

/// Creates a directory with mode 0700. If it exists, takes away the permissions of group and others.
fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            DirBuilder::new().mode(0o700).create(path)?;
        }
        Err(error) => return Err(error),
    }
    let metadata = fs::metadata(path)?;
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_policy::Preset;

    use super::*;

    #[test]
    fn a_store_without_a_policy_is_a_state() {
        let folder = tempfile::tempdir().unwrap();
        let none = State::existing(folder.path());
        assert!(matches!(none, Err(Error::NoState(_))), "{none:?}");
        fs::create_dir(folder.path().join("journal")).unwrap();
        let state = State::existing(folder.path()).unwrap();
        let registry = tool_registry::registry(&[]).unwrap();
        assert!(matches!(state.load_policy(&Overlay::default(), &registry), Err(Error::Policy(_))));
    }

    #[test]
    fn a_policy_inside_a_space_is_refused_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let (state, space) = (folder.path().join(".effectd"), folder.path().join("workspace"));
        State::prepare(&state, None, Some(Preset::Household.files())).unwrap();
        fs::create_dir(&space).unwrap();
        fs::rename(state.join("policy"), space.join("policy")).unwrap();
        std::os::unix::fs::symlink(&space, folder.path().join("link")).unwrap();
        let real = fs::canonicalize(space.join("policy")).unwrap();
        let registry = tool_registry::registry(&[]).unwrap();
        for named in ["workspace/policy", "link/policy", ".effectd/../workspace/policy"] {
            let state = State::prepare(&state, Some(&folder.path().join(named)), None).unwrap();
            let refused = state.load_policy(&Overlay::default(), &registry).map(drop);
            assert!(
                matches!(&refused, Err(Error::StateInSpace { directory, .. }) if *directory == real),
                "{named}: {refused:?}"
            );
        }
    }
}
