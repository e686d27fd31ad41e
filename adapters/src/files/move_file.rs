//! `files.move`: moves or renames a file or a folder within the space.

use super::copy::TwoPaths;
use crate::prelude::*;
use crate::probe::{before, now, same_content};

#[derive(Debug, Clone, Copy)]
pub struct Move;

impl TypedTool for Move {
    const ID: &'static str = "files.move";
    const DESCRIPTION: &'static str = "Moves or renames a file or a folder within the space. Overwrites an existing \
        file only on request, and never a folder. Use it to rename.";
    type Params = TwoPaths;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "moved": flag(), "dry_run": flag() });
        ToolSpec {
            resource: params::resource("file:{space_id}/{from_path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["moved"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "from_path": "workspace/notes/w36.txt", "to_path": "workspace/old/w36.txt" })
    }

    fn check(&self, params: &TwoPaths) -> Result<(), Failure> {
        params.check()?;
        let (from, to) = (&params.from_path, &params.to_path);
        for (name, path) in [("from_path", from), ("to_path", to)] {
            if path.base() != Base::Workspace {
                let why = "files.move works within workspace/ only; copy from or to tmp/ instead";
                return Err(params::invalid(name, why));
            }
        }
        if to.to_string().starts_with(&format!("{from}/")) {
            let why = "it is inside from_path; a folder cannot be moved into itself";
            return Err(params::invalid("to_path", why));
        }
        Ok(())
    }

    fn touches(&self, params: &TwoPaths) -> Option<Vec<Touch>> {
        let (from, to) = (&params.from_path, &params.to_path);
        Some(vec![Touch::moved(from.to_string(), to.to_string()), Touch::replaced(to.to_string())])
    }

    /// Quality is whether the file or folder is at the new path and not at the old one.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        if is_folder(workspace, from)? {
            workspace.move_folder(from, to)?;
        } else {
            workspace.move_file(from, to, Existing::replace_if(call.params.overwrite))?;
        }
        let moved = workspace.stat(from)?.is_none() && workspace.stat(to)?.is_some();
        Ok(params::verified(json!({ "moved": true }), moved))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        if is_folder(workspace, from)? {
            workspace.may_place(to, Existing::Keep)?;
        } else {
            workspace.open_file(from)?;
            workspace.may_place(to, Existing::replace_if(call.params.overwrite))?;
        }
        Ok(params::dry(json!({ "moved": false })))
    }

    /// Done if the file or folder is gone from the old path and is at the new one.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, TwoPaths>) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        let (Some(from_was), Some(to_was)) = (before(call, from), before(call, to)) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let (from_is, to_is) = (now(workspace, from)?, now(workspace, to)?);
        let folder =
            (from_was, to_was, &to_is) == (&PathState::Folder, &PathState::Absent, &PathState::Folder);
        Ok(if &from_is == from_was && &to_is == to_was {
            ProbeVerdict::NotDone
        } else if from_is == PathState::Absent && (same_content(&to_is, from_was) || folder) {
            ProbeVerdict::Done
        } else {
            ProbeVerdict::CannotSay
        })
    }
}

fn is_folder(workspace: &Workspace<'_>, path: &SpacePath) -> Result<bool, FileProblem> {
    let stat = workspace.stat(path)?;
    Ok(stat.is_some_and(|stat| stat.kind == FileKind::Folder))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use crate::tool::Tool;
    use effectd_contracts::Code;

    #[test]
    fn a_file_is_moved_and_another_is_only_overwritten_when_asked() {
        let place = TestSpace::new();
        place.put("a", b"one");
        place.put("b", b"two");
        let mut params = json!({ "from_path": "workspace/a", "to_path": "workspace/b" });
        assert_eq!(place.run(&Move, params.clone()).unwrap_err().code, Code::FileExists);
        assert_eq!((place.get("a"), place.get("b")), (Some(b"one".to_vec()), Some(b"two".to_vec())));
        params["overwrite"] = json!(true);
        place.run(&Move, params).unwrap();
        assert_eq!((place.get("a"), place.get("b")), (None, Some(b"one".to_vec())));
    }

    #[test]
    fn a_folder_moves_with_its_content_and_never_over_another() {
        let place = TestSpace::new();
        place.put("dir/deep/x", b"x");
        place.put("other/y", b"y");
        let params = |to: &str, overwrite: bool| json!({ "from_path": "workspace/dir", "to_path": to, "overwrite": overwrite });
        let before = place.names();
        for (to, code) in [
            ("workspace/other", Code::NotAFile),
            ("workspace/other/y", Code::FileExists),
            ("workspace/dir/deep/new", Code::ParamsInvalid),
            ("workspace/other/y/z", Code::NotAFolder),
        ] {
            for overwrite in [false, true] {
                let failure = place.run(&Move, params(to, overwrite)).unwrap_err();
                assert_eq!(failure.code, code, "{to}: {failure}");
                assert_eq!(place.names(), before, "{to}");
            }
        }
        assert!(place.dry_run(&Move, params("workspace/new/house", false)).is_ok());
        assert_eq!(place.names(), before);
        let output = place.run(&Move, params("workspace/new/house", false)).unwrap();
        assert_eq!(output.quality, Some(1.0));
        assert_eq!(place.get("new/house/deep/x"), Some(b"x".to_vec()));
        assert!(!place.path("dir").exists());
    }

    #[test]
    fn other_file_systems_are_refused() {
        let scratch = json!({ "from_path": "workspace/a", "to_path": "tmp/b" });
        assert_eq!(Tool::check(&Move, scratch.as_object().unwrap()).unwrap_err().code, Code::ParamsInvalid);
    }
}
