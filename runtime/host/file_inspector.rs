//! Inspects the files of a space for the pipeline, by the same rules as the tools in the sandbox.

use std::fs::File;
use std::os::fd::AsFd;

use effectd_actors::{FileInspector, Inspected};
use effectd_adapters::{SpacePath, Workspace, is_local};
use effectd_contracts::{Beneath, Code, Failure, FolderListing, PathSnapshot, Phase, Scan};
use effectd_sandbox::SpaceRoot;

#[derive(Debug, Clone, Copy)]
pub struct WorkspaceInspector;

/// Outside of the sandbox there is no scratch folder, and no path here lies in one. The root takes its place.
fn workspace(root: &SpaceRoot) -> Workspace<'_> {
    Workspace::new(root.as_fd(), root.as_fd())
}

fn failed(why: String) -> Failure {
    Failure::new(Code::SandboxUnavailable, Phase::Sandbox, why)
}

fn parsed(path: &str) -> Result<SpacePath, Failure> {
    SpacePath::parse(path).map_err(|why| failed(format!("an invalid path: {why}")))
}

fn folder_path(path: &str) -> Result<SpacePath, Failure> {
    SpacePath::parse_folder(path).map_err(|why| failed(format!("an invalid path: {why}")))
}

fn folder_paths(paths: &[String]) -> Result<Vec<SpacePath>, Failure> {
    paths.iter().map(|path| folder_path(path)).collect()
}

fn inspected(by_adapter: effectd_adapters::Inspected) -> Inspected {
    Inspected { seen: by_adapter.seen, content: by_adapter.content }
}

impl FileInspector for WorkspaceInspector {
    fn inspect(
        &self,
        root: &SpaceRoot,
        paths: &[String],
        keep_bytes_max: u64,
    ) -> Result<Vec<Inspected>, Failure> {
        let workspace = workspace(root);
        let found = workspace.inspect(&folder_paths(paths)?, keep_bytes_max)?;
        Ok(found.into_iter().map(inspected).collect())
    }

    fn inspect_cached(
        &self,
        root: &SpaceRoot,
        paths: &[String],
        keep_bytes_max: u64,
    ) -> Option<Vec<Inspected>> {
        if !is_local(root.as_fd()) {
            return None;
        }
        let workspace = workspace(root);
        let found = workspace.inspect_cached(&folder_paths(paths).ok()?, keep_bytes_max)?;
        Some(found.into_iter().map(inspected).collect())
    }

    fn inside(&self, root: &SpaceRoot, path: &str) -> Result<FolderListing, Failure> {
        let workspace = workspace(root);
        Ok(workspace.tree_digest(&folder_path(path)?)?)
    }

    fn inspect_beneath(&self, root: &SpaceRoot, path: &str, digests: bool) -> Result<Beneath, Failure> {
        let workspace = workspace(root);
        Ok(workspace.inspect_beneath(&folder_path(path)?, digests)?)
    }

    fn open(&self, root: &SpaceRoot, path: &str) -> Result<File, Failure> {
        let workspace = workspace(root);
        Ok(workspace.open_file(&parsed(path)?)?.0)
    }

    fn nearest(&self, root: &SpaceRoot, folders: &[String]) -> Result<Vec<String>, Failure> {
        let workspace = workspace(root);
        let nearest = folders.iter().map(|folder| {
            let mut path = folder_path(folder)?;
            while workspace.stat(&path)?.is_none()
                && let Some(above) = path.parent()
            {
                path = above;
            }
            Ok(path.to_string())
        });
        nearest.collect()
    }

    fn gone(&self, root: &SpaceRoot, mut paths: Vec<String>) -> Result<Vec<String>, Failure> {
        let workspace = workspace(root);
        // Keeps only paths that certainly do not exist: a path that cannot be inspected or parsed may exist.
        paths.retain(|path| {
            let path = SpacePath::parse_folder(path);
            path.is_ok_and(|path| matches!(workspace.stat(&path), Ok(None)))
        });
        Ok(paths)
    }

    fn scan(&self, root: &SpaceRoot, folders: &[String], entries_max: usize) -> Result<Scan, Failure> {
        let workspace = workspace(root);
        Ok(workspace.scan(&folder_paths(folders)?, entries_max)?)
    }

    fn drafts_of(&self, path: &str, trace: &str) -> Vec<String> {
        let path = SpacePath::parse(path).ok();
        let drafts = path.map(|path| path.drafts(trace).map(|draft| draft.to_string()));
        drafts.into_iter().flatten().collect()
    }

    fn remove_drafts(
        &self,
        root: &SpaceRoot,
        paths: &[String],
        before: &[PathSnapshot],
        trace: &str,
    ) -> (Vec<String>, Result<(), Failure>) {
        let workspace = workspace(root);
        let (mut cleaned, mut all) = (Vec::new(), Ok(()));
        for path in paths {
            let was = before.iter().find(|seen| &seen.path == path).map(|seen| &seen.standing);
            let removed = parsed(path).and_then(|parsed| Ok(workspace.remove_draft(&parsed, trace, was)?));
            match removed {
                Ok(true) => cleaned.push(path.clone()),
                Ok(false) => {}
                // A draft that cannot be removed does not prevent the removal of the others.
                Err(failure) => all = all.and(Err(failure)),
            }
        }
        (cleaned, all)
    }
}
