//! Looks at the files of a space for the pipeline, with the same care as the tools do inside.

use std::fs::File;
use std::os::fd::AsFd;

use effectd_actors::{Looked, Mark, Scan, Witness};
use effectd_adapters::{Look, SpacePath, Workspace, is_local};
use effectd_contracts::{Code, Failure, Inside, Phase, Seen};
use effectd_sandbox::SpaceRoot;

/// The witness of this process.
#[derive(Debug, Clone, Copy)]
pub struct Eyes;

fn failed(why: String) -> Failure {
    Failure::new(Code::SandboxUnavailable, Phase::Sandbox, why)
}

fn parsed(path: &str) -> Result<SpacePath, Failure> {
    SpacePath::parse(path).map_err(|why| failed(format!("a path that no tool takes: {why}")))
}

fn folder_path(path: &str) -> Result<SpacePath, Failure> {
    SpacePath::parse_folder(path).map_err(|why| failed(format!("a path that no tool takes: {why}")))
}

fn folder_paths(paths: &[String]) -> Result<Vec<SpacePath>, Failure> {
    paths.iter().map(|path| folder_path(path)).collect()
}

fn looked_at(look: Look) -> Looked {
    Looked {
        seen: look.seen,
        content: look.content,
    }
}

impl Witness for Eyes {
    fn look(&self, root: &SpaceRoot, paths: &[String], keep_bytes_max: u64) -> Result<Vec<Looked>, Failure> {
        // There is no scratch folder outside of the sandbox, and no path here is in one.
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let looked = workspace.look(&folder_paths(paths)?, keep_bytes_max)?;
        Ok(looked.into_iter().map(looked_at).collect())
    }

    fn look_now(&self, root: &SpaceRoot, paths: &[String], keep_bytes_max: u64) -> Option<Vec<Looked>> {
        if !is_local(root.as_fd()) {
            return None;
        }
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let looked = workspace.look_cached(&folder_paths(paths).ok()?, keep_bytes_max)?;
        Some(looked.into_iter().map(looked_at).collect())
    }

    fn inside(&self, root: &SpaceRoot, path: &str) -> Result<Inside, Failure> {
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        Ok(workspace.inside(&folder_path(path)?)?)
    }

    fn look_beneath(&self, root: &SpaceRoot, path: &str) -> Result<Vec<Looked>, Failure> {
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let beneath = workspace.look_beneath(&folder_path(path)?)?;
        let many = || failed("there are more files and folders than can be listed".to_owned());
        let looked = beneath.ok_or_else(many)?.into_iter();
        Ok(looked.map(|seen| Looked { seen, content: None }).collect())
    }

    fn open(&self, root: &SpaceRoot, path: &str) -> Result<File, Failure> {
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        Ok(workspace.open_file(&parsed(path)?)?.0)
    }

    fn nearest(&self, root: &SpaceRoot, folders: &[String]) -> Result<Vec<String>, Failure> {
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
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
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        // What cannot be looked at may be there; so may what has a name that no request can write.
        paths.retain(|path| {
            let path = SpacePath::parse_folder(path);
            path.is_ok_and(|path| matches!(workspace.stat(&path), Ok(None)))
        });
        Ok(paths)
    }

    fn scan(&self, root: &SpaceRoot, folders: &[String], entries_max: usize) -> Result<Scan, Failure> {
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let folders: Vec<_> = folders
            .iter()
            .map(|path| folder_path(path))
            .collect::<Result<_, _>>()?;
        let scan = workspace.scan(&folders, entries_max)?;
        let marks = scan.marks.into_iter().map(|(path, mark)| {
            let mark = Mark {
                is_folder: mark.is_folder,
                mode: mark.mode,
                bytes: mark.bytes,
                changed_ns: mark.changed_ns,
                identity: mark.identity,
            };
            (path, mark)
        });
        Ok(Scan {
            marks: marks.collect(),
            complete: scan.complete,
        })
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
        before: &[Seen],
        trace: &str,
    ) -> Result<(), Failure> {
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let mut all = Ok(());
        for path in paths {
            let was = before.iter().find(|seen| &seen.path == path);
            let removed = workspace.remove_draft(&parsed(path)?, trace, was.map(|seen| &seen.standing));
            // What cannot be removed at one path does not keep what another one has lost.
            all = all.and(removed.map_err(Failure::from));
        }
        all
    }
}
