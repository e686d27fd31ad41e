//! The state directory: made private, seeded on first use, and never inside what tools can reach.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use effectd_policy::{Overlay, Policy, PolicyDir, demo};

use crate::error::Error;
use crate::spaces;

/// A state directory that can be used.
#[derive(Debug, Clone)]
pub struct State {
    path: PathBuf,
    owner: u32,
    seeded: bool,
}

impl State {
    /// Makes the directory if it is not there, and the demo policy in it if it has none and that is wanted.
    pub fn prepare(path: &Path, seed_demo: bool) -> Result<Self, Error> {
        let unusable = |source| Error::State {
            path: path.to_owned(),
            source,
        };
        make_private(path).map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        let owner = fs::metadata(&path).map_err(unusable)?.uid();
        let mut state = Self {
            path,
            owner,
            seeded: false,
        };
        if seed_demo && !state.policy_dir().exists() {
            state.seed().map_err(unusable)?;
            state.seeded = true;
        }
        Ok(state)
    }

    /// A directory that is there already; none is made.
    pub fn existing(path: &Path) -> Result<Self, Error> {
        if !path.join("policy").is_dir() {
            return Err(Error::NoState(path.to_owned()));
        }
        Self::prepare(path, false)
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the policy lies.
    pub fn policy_dir(&self) -> PathBuf {
        self.path.join("policy")
    }

    /// Where keys lie.
    pub fn keys_dir(&self) -> PathBuf {
        self.path.join("keys")
    }

    /// Whether the demo policy was put there just now.
    pub fn seeded(&self) -> bool {
        self.seeded
    }

    /// The folder that relative roots of spaces start from: a hidden state directory belongs to the folder it lies in, a
    /// visible one stands on its own.
    pub fn base(&self) -> PathBuf {
        let hidden = self
            .path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let parent = self.path.parent().filter(|_| hidden);
        parent.unwrap_or(&self.path).to_owned()
    }

    /// The policy of the directory. Without one that can be read, nothing may happen.
    pub fn load_policy(&self, overlay: &Overlay) -> Result<Policy, Error> {
        let source = PolicyDir::load(self.policy_dir(), self.owner).map_err(Box::new)?;
        let policy = Policy::compile(&source, overlay).map_err(Box::new)?;
        for space in policy.spaces() {
            let root = spaces::root_of(&policy, space, &self.base());
            // A root through a link is no root, and where it lies is looked at whenever it is used.
            if self.path.starts_with(&root) {
                return Err(Error::StateInSpace {
                    state: self.path.clone(),
                    space: space.clone(),
                    root,
                });
            }
        }
        Ok(policy)
    }

    /// Writes the demo policy beside its place and moves it there, so that a half-written one is never read.
    fn seed(&self) -> io::Result<()> {
        let draft = self.path.join("policy.draft");
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        make_private(&draft)?;
        for (name, text) in demo::DEMO_FILES {
            let file = draft.join(name);
            // Not for a group to write to, whatever the umask is.
            let mut options = fs::OpenOptions::new();
            let mut made = options.write(true).create_new(true).mode(0o600).open(&file)?;
            made.write_all(text.as_bytes())?;
            made.sync_all()?;
        }
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, self.policy_dir())?;
        fs::File::open(&self.path)?.sync_all()
    }
}

/// Makes a directory that only its owner can enter; one that others can enter is closed to them.
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
