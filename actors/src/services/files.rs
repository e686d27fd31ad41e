//! The files of spaces, inspected from outside of the sandbox, and the blobs that hold pre-images, artifacts and results.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use effectd_bus::{Blobs, Store};
use effectd_contracts::{Beneath, Code, Failure, FolderListing, PathSnapshot, Phase, Scan, SpaceId};
use effectd_sandbox::{RootId, SpaceRoot};
use parking_lot::Mutex;

use super::SpaceRoots;
use super::caches::Caches;
use super::signer::Identity;

/// Inspects the files of a space. It never follows a link, and opens nothing but files.
pub trait FileInspector: Send + Sync {
    /// The state of these paths beneath the root, and of the missing folders above them. Contents are included while they fit
    /// together into this many bytes.
    fn inspect(
        &self,
        root: &SpaceRoot,
        paths: &[String],
        keep_bytes_max: u64,
    ) -> Result<Vec<Inspected>, Failure>;

    /// [`FileInspector::inspect`] from the page cache alone; `None` if the disk is needed.
    fn inspect_cached(
        &self,
        _root: &SpaceRoot,
        _paths: &[String],
        _keep_bytes_max: u64,
    ) -> Option<Vec<Inspected>> {
        None
    }

    /// A digest of everything in the folder at a path beneath the root.
    fn inside(&self, root: &SpaceRoot, path: &str) -> Result<FolderListing, Failure>;

    /// What lies beneath a folder, as far as it can be listed. Without `digests` no file is read, and the digests are empty. Of a
    /// path that is a file, only whether it has other names.
    fn inspect_beneath(&self, root: &SpaceRoot, path: &str, digests: bool) -> Result<Beneath, Failure>;

    /// Opens the file at a path beneath the root.
    fn open(&self, root: &SpaceRoot, path: &str) -> Result<File, Failure>;

    /// The nearest existing folders: each folder itself, or the first one above it that exists.
    fn nearest(&self, root: &SpaceRoot, folders: &[String]) -> Result<Vec<String>, Failure>;

    /// The paths among these that do not exist.
    fn gone(&self, root: &SpaceRoot, paths: Vec<String>) -> Result<Vec<String>, Failure>;

    /// Everything in these folders and beneath, up to this many entries.
    fn scan(&self, root: &SpaceRoot, folders: &[String], entries_max: usize) -> Result<Scan, Failure>;

    /// Where a call under this trace keeps its drafts of a path, and what it sets aside.
    fn drafts_of(&self, path: &str, trace: &str) -> Vec<String>;

    /// Removes the drafts that a killed call under this trace left for these paths, and puts back what it set aside. `before` is
    /// the snapshot before the call, as far as it is known. Returns the paths where there was anything to do, and whether all of it
    /// was done.
    fn remove_drafts(
        &self,
        root: &SpaceRoot,
        paths: &[String],
        before: &[PathSnapshot],
        trace: &str,
    ) -> (Vec<String>, Result<(), Failure>);
}

/// The state of a path, with its content if that is wanted and small enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub seen: PathSnapshot,
    pub content: Option<Vec<u8>>,
}

pub struct Files {
    pub(crate) roots: SpaceRoots,
    pub(crate) inspector: Arc<dyn FileInspector>,
    pub blobs: Arc<Blobs>,
    pub(crate) caches: Caches,
    /// Keys the digests by which receipts and blobs name contents.
    pub(crate) identity: Arc<Identity>,
    /// Its receipts say what an undo restores.
    pub(crate) store: Arc<dyn Store>,
    /// Which folder is the root of a space, and whether it ignores case.
    pub(crate) ignoring: Mutex<HashMap<SpaceId, (RootId, bool)>>,
}

impl Files {
    pub(crate) fn root(&self, space: &SpaceId) -> Result<SpaceRoot, Failure> {
        let root = (self.roots)(space)?;
        let is_known = self.ignoring.lock().get(space).is_some_and(|(id, _)| *id == root.id());
        if !is_known {
            let ignores = root.ignores_case();
            self.ignoring.lock().insert(space.clone(), (root.id(), ignores));
        }
        Ok(root)
    }

    /// Whether two spellings that differ in case are one file of this space, as far as its root was opened since the start.
    pub(crate) fn ignores_case(&self, space: &SpaceId) -> bool {
        self.ignoring.lock().get(space).is_some_and(|(_, ignores)| *ignores)
    }

    /// Opens the root for [`Files::ignores_case`], unless that was done before. It makes a missing root: only for what is permitted.
    pub(crate) fn learn_case(&self, space: &SpaceId) {
        let is_known = self.ignoring.lock().contains_key(space);
        if !is_known {
            // If it cannot be opened, the execution reports it.
            let _root = self.root(space);
        }
    }

    /// Works on the files of a space on a blocking thread: a disk may be slow.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        space: &SpaceId,
        work: impl FnOnce(&dyn FileInspector, &SpaceRoot) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (root, inspector) = (self.root(space)?, self.inspector.clone());
        let working = tokio::task::spawn_blocking(move || work(&*inspector, &root));
        working.await.unwrap_or_else(|_| {
            let message = "work on the files of the space failed";
            Err(Failure::new(Code::Internal, Phase::Sandbox, message))
        })
    }

    pub(crate) async fn inspect(
        &self,
        space: &SpaceId,
        paths: Vec<String>,
        keep_bytes_max: u64,
    ) -> Result<Vec<Inspected>, Failure> {
        let cached = self.inspector.inspect_cached(&self.root(space)?, &paths, keep_bytes_max);
        match cached {
            Some(found) => Ok(found),
            None => {
                let inspect = move |inspector: &dyn FileInspector, root: &SpaceRoot| {
                    inspector.inspect(root, &paths, keep_bytes_max)
                };
                self.blocking(space, inspect).await
            }
        }
    }

    pub(crate) async fn beneath(
        &self,
        space: &SpaceId,
        path: &str,
        digests: bool,
    ) -> Result<Beneath, Failure> {
        let path = path.to_owned();
        self.blocking(space, move |inspector, root| inspector.inspect_beneath(root, &path, digests)).await
    }

    /// The digest of a folder's contents; `TooMuch` if it cannot be computed.
    pub(crate) async fn inside(&self, space: &SpaceId, path: &str) -> FolderListing {
        let path = path.to_owned();
        let inside = self.blocking(space, move |inspector, root| inspector.inside(root, &path));
        inside.await.unwrap_or(FolderListing::TooMuch)
    }
}
