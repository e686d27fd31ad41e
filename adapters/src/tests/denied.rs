//! Permission denied, for every tool that uses files: it has its own code, and the space stays unchanged.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use effectd_contracts::{Code, Failure, PathState, Restore, ToolOutput};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use serde_json::{Value, json};

use super::bad_input::{every_tool, path_params};
use super::prepare;
use super::recovery::snapshot;
use crate::spacepath::SpacePath;
use crate::tests::space::{TestSpace, Undoing};
use crate::tool::Tool;
use crate::{artifact, files};

/// A user who owns nothing here. For a test that does not run as root, changing to it has no effect.
const NOBODY: u32 = 65_534;

/// The calling thread accesses files as an ordinary user until this value is dropped.
struct Ordinary(Uid, Gid);

impl Ordinary {
    fn new() -> Self {
        let gid = setfsgid(Gid::from_raw(NOBODY));
        Self(setfsuid(Uid::from_raw(NOBODY)), gid)
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        setfsuid(self.0);
        setfsgid(self.1);
    }
}

/// Permissions that hold until this value is dropped.
struct Closed(Vec<(PathBuf, u32)>);

impl Closed {
    fn new(place: &TestSpace, modes: &[(&str, u32)]) -> Self {
        let mut before = Vec::new();
        for (name, mode) in modes {
            let path = place.path(name);
            before.push((path.clone(), std::fs::metadata(&path).unwrap().permissions().mode()));
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode)).unwrap();
        }
        Self(before)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        for (path, mode) in self.0.drain(..).rev() {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

/// Calls a tool as an ordinary user with these permissions; the space must stay as it was.
fn denied(place: &TestSpace, tool: &dyn Tool, params: &Value, modes: &[(&str, u32)], case: &str) {
    let asked = |answer: Result<ToolOutput, Failure>| answer.map_err(|failure| failure.code);
    let before = snapshot(place);
    let (run, dry) = {
        let _closed = Closed::new(place, modes);
        let _ordinary = Ordinary::new();
        place.send(&[b"what was kept".to_vec()]);
        let run = asked(place.run(tool, params.clone()));
        (run, asked(place.dry_run(tool, params.clone())))
    };
    assert_eq!(run.unwrap_err(), Code::PermissionDenied, "{} {case}: {params}", tool.id());
    // A dry run does not find every missing permission; the run does.
    assert!(matches!(dry, Ok(_) | Err(Code::PermissionDenied)), "{} {case}: {dry:?}", tool.id());
    assert_eq!(snapshot(place), before, "{} {case}: {params}", tool.id());
}

#[test]
fn a_folder_that_may_not_be_entered_is_told_by_every_tool() {
    let place = TestSpace::new();
    prepare(&place);
    place.put("closed/x", b"x");
    let mut asked = 0;
    for (tool, params) in every_tool() {
        for name in path_params(&params) {
            let mut bad = params.clone();
            bad[&name] = json!("workspace/closed/x");
            denied(&place, tool, &bad, &[("closed", 0o000)], "closed");
            asked += 1;
        }
    }
    assert!(asked >= 20, "{asked}");
    let patch = "--- closed/x\n+++ closed/x\n@@ -1 +1 @@\n-x\n+y\n";
    denied(&place, &files::ApplyPatch, &json!({ "patch": patch }), &[("closed", 0o000)], "closed");
    let run = json!({ "argv": ["true"], "directory_path": "workspace/closed/x" });
    denied(&place, &crate::command::Run, &run, &[("closed", 0o000)], "closed");
}

#[test]
fn what_may_not_be_written_is_told_by_every_tool_that_writes() {
    let modes = [("", 0o555), ("folder", 0o555), ("text", 0o444)];
    let mut samples = super::samples();
    let get = json!({ "artifact_id": "0".repeat(64), "to_path": "workspace/new" });
    samples.push((&artifact::Get, get));
    let get = json!({ "artifact_id": "0".repeat(64), "to_path": "workspace/text", "overwrite": true });
    samples.push((&artifact::Get, get));
    for (tool, params) in samples {
        let place = TestSpace::new();
        prepare(&place);
        std::fs::set_permissions(place.path("private"), std::fs::Permissions::from_mode(0o644)).unwrap();
        denied(&place, tool, &params, &modes, "read-only");
    }
}

#[test]
fn what_may_not_be_read_is_told_by_every_tool_that_reads() {
    let place = TestSpace::new();
    prepare(&place);
    let patch = "--- text\n+++ text\n@@ -1 +1 @@\n-one\n+ONE\n";
    let text = json!({ "path": "workspace/text" });
    let readers: [(&dyn Tool, Value); 9] = [
        (&files::ReadText, text.clone()),
        (&files::AppendText, json!({ "path": "workspace/text", "text": "x" })),
        (&files::EditText, json!({ "path": "workspace/text", "find": "one", "replace": "x" })),
        (&files::ApplyPatch, json!({ "patch": patch })),
        (&files::Copy, json!({ "from_path": "workspace/text", "to_path": "workspace/copy" })),
        (&files::Delete, json!({ "path": "workspace/text", "expected_sha256": "0".repeat(64) })),
        (&artifact::Put, text),
        (&files::List, json!({ "path": "workspace/folder" })),
        (&files::Search, json!({ "path": "workspace/folder", "glob": "*" })),
    ];
    let modes = [("", 0o777), ("text", 0o000), ("folder", 0o000)];
    for (tool, params) in readers {
        denied(&place, tool, &params, &modes, "unreadable");
    }
}

#[test]
fn an_undo_that_may_not_write_leaves_all_as_it_was() {
    let place = TestSpace::new();
    prepare(&place);
    let path = SpacePath::parse("workspace/folder/inside").unwrap();
    let now = place.workspace().standing(&path, 0).unwrap().0;
    let PathState::File(state) = now.clone() else {
        panic!("{now:?}");
    };
    let content = b"before".to_vec();
    let then = effectd_contracts::FileState {
        digest: effectd_contracts::Digest::of(&content).to_string(),
        bytes: content.len() as u64,
        ..state
    };
    let undoing = Undoing {
        restore: vec![Restore {
            path: path.to_string(),
            now,
            then: PathState::File(then),
            beside: true,
            from: None,
        }],
        contents: vec![content],
    };
    for modes in [[("folder", 0o555)], [("folder", 0o000)]] {
        let before = snapshot(&place);
        let failure = {
            let _closed = Closed::new(&place, &modes);
            let _ordinary = Ordinary::new();
            place.restore(undoing.clone()).unwrap_err()
        };
        assert_eq!(failure.code, Code::PermissionDenied, "{modes:?}: {failure}");
        assert_eq!(snapshot(&place), before);
    }
}
