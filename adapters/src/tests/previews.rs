//! A preview shows what the run does, for every tool that changes files; and a run finds the state that the person saw.

use effectd_contracts::{
    CallMode, Code, FileState, PathSnapshot, PathState, PreviewResult, Restore, ToolReply,
};
use serde_json::{Value, json};

use crate::answer;
use crate::tests::space::TestSpace;
use crate::tool::Tool;
use crate::{SpacePath, artifact, files};

/// A tool with its parameters, and a change by somebody else.
struct Case {
    name: &'static str,
    tool: &'static dyn Tool,
    params: Value,
    /// A change by somebody else between the preview and the run.
    meddle: fn(&TestSpace),
}

fn cases() -> Vec<Case> {
    let case = |name, tool, params, meddle| Case { name, tool, params, meddle };
    let change_a: fn(&TestSpace) = |place| place.put("a", b"otherwise\n");
    let put_new: fn(&TestSpace) = |place| place.put("new", b"was not there");
    vec![
        case(
            "write a new file",
            &files::WriteText,
            json!({ "path": "workspace/n/ew", "text": "t" }),
            |place| {
                place.put("n/ew", b"x");
            },
        ),
        case("replace a file", &files::WriteText, json!({ "path": "workspace/a", "text": "t" }), change_a),
        case("append", &files::AppendText, json!({ "path": "workspace/a", "text": "more" }), change_a),
        case(
            "edit",
            &files::EditText,
            json!({ "path": "workspace/a", "find": "two", "replace": "2" }),
            |place| place.put("a", b"one\ntwo\nthree, and more\n"),
        ),
        case(
            "patch two files",
            &files::ApplyPatch,
            json!({ "patch": "--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n" }),
            put_new,
        ),
        case(
            "patch two files of which the second cannot be",
            &files::ApplyPatch,
            json!({ "patch": "--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n--- a/c\n+++ b/c\n@@ -1 +1 @@\n-see\n+sea\n" }),
            |place| set_mode(place, "c", 0o640),
        ),
        case("make a folder", &files::MakeDir, json!({ "path": "workspace/x/y" }), |place| {
            place.put("x/y", b"a file");
        }),
        case(
            "copy",
            &files::Copy,
            json!({ "from_path": "workspace/a", "to_path": "workspace/new" }),
            change_a,
        ),
        case(
            "copy over a file",
            &files::Copy,
            json!({ "from_path": "workspace/a", "to_path": "workspace/b", "overwrite": true }),
            |place| place.put("b", b"otherwise"),
        ),
        case(
            "move",
            &files::Move,
            json!({ "from_path": "workspace/a", "to_path": "workspace/new" }),
            change_a,
        ),
        case(
            "move over a file",
            &files::Move,
            json!({ "from_path": "workspace/a", "to_path": "workspace/b", "overwrite": true }),
            |place| place.put("b", b"otherwise"),
        ),
        case(
            "move a folder",
            &files::Move,
            json!({ "from_path": "workspace/dir", "to_path": "workspace/new" }),
            put_new,
        ),
        case("delete", &files::Delete, json!({ "path": "workspace/a" }), change_a),
        case(
            "get an artifact",
            &artifact::Get,
            json!({ "artifact_id": "0".repeat(64), "to_path": "workspace/new" }),
            put_new,
        ),
        case("undo", &files::Undo, json!({ "receipt_id": "r" }), change_a),
        case(
            "pack a file",
            &files::Archive,
            json!({ "from_path": "workspace/a", "to_path": "workspace/new.zip" }),
            change_a,
        ),
        case(
            "pack a folder in which something changes",
            &files::Archive,
            json!({ "from_path": "workspace/dir", "to_path": "workspace/b", "format": "tar.gz", "overwrite": true }),
            |place| place.put("dir/deep/x", b"y"),
        ),
        case(
            "pack a folder to which something comes",
            &files::Archive,
            json!({ "from_path": "workspace/dir", "to_path": "workspace/n/ew.tgz" }),
            |place| place.put("dir/deep/more", b"more"),
        ),
        case(
            "unpack",
            &files::Extract,
            json!({ "from_path": "workspace/packed.zip", "to_path": "workspace/new" }),
            put_new,
        ),
        case(
            "unpack what has changed",
            &files::Extract,
            json!({ "from_path": "workspace/packed.zip", "to_path": "workspace/x/new" }),
            |place| {
                let other = json!({ "from_path": "workspace/dir", "to_path": "workspace/packed.zip", "overwrite": true });
                place.run(&files::Archive, other).unwrap();
            },
        ),
    ]
}

fn set_mode(place: &TestSpace, name: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
}

fn prepared() -> TestSpace {
    let place = TestSpace::new();
    place.put("a", b"one\ntwo\nthree\n");
    place.put("b", b"the other");
    place.put("c", b"see\n");
    place.put("dir/deep/x", b"x");
    place.put("packed.zip", &crate::archive::tests::sample());
    for (name, mode) in [("a", 0o644), ("b", 0o600), ("c", 0o600)] {
        set_mode(&place, name, mode);
    }
    place
}

fn call(place: &TestSpace, case: &Case, mode: CallMode) -> effectd_contracts::ToolCall {
    let mut call = place.call(case.tool, mode, case.params.clone());
    if case.tool.id() == "files.undo" {
        let old = b"as it was";
        let state = |bytes: &[u8]| {
            PathState::File(FileState {
                digest: effectd_contracts::Digest::of(bytes).to_string(),
                bytes: bytes.len() as u64,
                mode: 0o644,
            })
        };
        call.restore = vec![Restore {
            path: "workspace/a".to_owned(),
            now: state(b"one\ntwo\nthree\n"),
            then: state(old),
            beside: true,
            from: None,
        }];
    }
    place.send(&[b"as it was".to_vec()]);
    call
}

fn preview(place: &TestSpace, case: &Case) -> Result<PreviewResult, effectd_contracts::Failure> {
    let reply = answer(case.tool, &place.workspace(), &call(place, case, CallMode::Preview));
    // The next preview has an empty scratch folder, as in the sandbox.
    place.clear_scratch();
    match reply {
        ToolReply::Previewed(rehearsal) => Ok(rehearsal),
        ToolReply::Failed(failure) => Err(failure),
        other @ (ToolReply::Done(_) | ToolReply::Probed(_) | ToolReply::Verified(_)) => panic!("{other:?}"),
    }
}

fn everything(place: &TestSpace) -> Vec<(String, Option<Vec<u8>>)> {
    let names = place.names().into_iter();
    names.map(|name| (name.clone(), place.get(&name))).collect()
}

fn standing(place: &TestSpace, path: &str) -> PathState {
    place.workspace().standing(&SpacePath::parse(path).unwrap(), 0).unwrap().0
}

#[test]
fn what_is_shown_is_what_happens_for_every_file_tool() {
    for case in cases() {
        let place = prepared();
        let before = everything(&place);
        let shown = preview(&place, &case).unwrap_or_else(|failure| panic!("{}: {failure}", case.name));
        assert_eq!(everything(&place), before, "{}: a preview changed something", case.name);
        assert_eq!(shown.failed, None, "{}", case.name);
        assert!(!shown.after.is_empty(), "{}", case.name);
        // Run with the previewed state as precondition.
        let mut real = call(&place, &case, CallMode::Run);
        real.expect.clone_from(&shown.before);
        let reply = answer(case.tool, &place.workspace(), &real);
        assert!(matches!(reply, ToolReply::Done(_)), "{}: {reply:?}", case.name);
        let mut changed = 0;
        for after in &shown.after {
            assert_eq!(standing(&place, &after.path), after.standing, "{}: {}", case.name, after.path);
            // The entries of a new folder had no state before.
            let was = shown.before.iter().find(|seen| seen.path == after.path);
            changed += usize::from(was.is_none_or(|was| was.standing != after.standing));
        }
        for touch in case.tool.touches(case.params.as_object().unwrap()).unwrap_or_default() {
            let within = place.names().into_iter().filter(|name| {
                touch.filled && format!("workspace/{name}").starts_with(&format!("{}/", touch.path))
            });
            let told = |name: &String| {
                let path = format!("workspace/{name}");
                shown.after.iter().any(|after| after.path == path)
            };
            assert!(within.into_iter().all(|name| told(&name)), "{}", case.name);
        }
        assert!(changed > 0, "{}: nothing was to change", case.name);
        let drafts = place.names().into_iter().filter(|name| name.contains(".effectd-"));
        assert_eq!(drafts.count(), 0, "{}", case.name);
    }
}

#[test]
fn what_is_not_as_it_was_seen_is_left_alone_by_every_file_tool() {
    for case in cases() {
        let place = prepared();
        let shown = preview(&place, &case).unwrap();
        (case.meddle)(&place);
        let before = everything(&place);
        let mut real = call(&place, &case, CallMode::Run);
        real.expect = shown.before;
        match answer(case.tool, &place.workspace(), &real) {
            ToolReply::Failed(failure) => assert_eq!(failure.code, Code::StateChanged, "{}", case.name),
            other @ (ToolReply::Done(_)
            | ToolReply::Probed(_)
            | ToolReply::Previewed(_)
            | ToolReply::Verified(_)) => {
                panic!("{}: {other:?}", case.name)
            }
        }
        assert_eq!(everything(&place), before, "{}", case.name);
    }
}

/// Leaves out the check at the beginning: somebody may change a file between that check and the change itself.
#[test]
fn every_file_tool_puts_back_a_last_moment_change() {
    for case in cases() {
        let place = prepared();
        let shown = preview(&place, &case).unwrap();
        (case.meddle)(&place);
        let before = everything(&place);
        let real = call(&place, &case, CallMode::Run);
        let workspace = place.workspace();
        let workspace = workspace.expecting(&shown.before, "trace");
        let failure = case.tool.run(&workspace, &real).unwrap_err();
        let gone = [Code::StateChanged, Code::FileExists, Code::NotAFile, Code::NotAFolder];
        assert!(gone.contains(&failure.code), "{}: {failure}", case.name);
        assert_eq!(everything(&place), before, "{}", case.name);
    }
}

#[test]
fn previews_show_failures_and_need_declared_changes() {
    let place = prepared();
    let fails = Case {
        name: "edit what is not there",
        tool: &files::EditText,
        params: json!({ "path": "workspace/a", "find": "nine", "replace": "9" }),
        meddle: |_| (),
    };
    assert!(preview(&place, &fails).unwrap().failed.is_some());
    let silent = Case {
        name: "run a command",
        tool: &crate::command::Run,
        params: json!({ "argv": ["true"] }),
        meddle: |_| (),
    };
    let failure = preview(&place, &silent).unwrap_err();
    assert!(failure.message.contains("does not declare"), "{failure}");
}

#[test]
fn texts_are_shown_and_bytes_are_not() {
    let place = prepared();
    let text = |params: Value, tool: &'static dyn Tool| {
        let case = Case { name: "", tool, params, meddle: |_| () };
        let shown = preview(&place, &case).unwrap();
        shown.after.last().unwrap().text.clone()
    };
    let write = |text: &str| json!({ "path": "workspace/t", "text": text });
    assert_eq!(text(write("hello"), &files::WriteText).as_deref(), Some("hello"));
    assert_eq!(text(write("nul \0 in it"), &files::WriteText), None);
    let long = "x".repeat(crate::limits::PREVIEW_TEXT_BYTES_MAX as usize + 1);
    assert_eq!(text(write(&long), &files::WriteText), None);
    // A preview copies links as dangling links, and refuses them like the real ones.
    std::os::unix::fs::symlink("/etc/passwd", place.path("link")).unwrap();
    let through = Case {
        name: "through a link",
        tool: &files::WriteText,
        params: json!({ "path": "workspace/link", "text": "t" }),
        meddle: |_| (),
    };
    let shown = preview(&place, &through).unwrap();
    let seen: &PathSnapshot = shown.before.last().unwrap();
    assert_eq!(seen.standing, PathState::Other);
    assert_eq!(shown.failed.map(|failure| failure.code), Some(Code::PathDenied));
}
