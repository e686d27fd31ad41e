//! Tool commands: list, show, try and undo.

use effectd::contracts::Digest;
use serde_json::Value;

use crate::harness::{Place, Ran, Who, is_root};

/// A place with the demo policy and a space.
fn ready(who: Who) -> Place {
    let place = Place::of(who);
    let begun = place.effectd(&["init"], None);
    assert_eq!(begun.code(), 0, "{}", begun.stderr());
    place.for_every_machine();
    place
}

fn attempt(place: &Place, arguments: &[&str]) -> Ran {
    let arguments = [&["tools", "try", "-o", "json"], arguments].concat();
    place.effectd(&arguments, None)
}

fn done(place: &Place, arguments: &[&str]) -> Value {
    attempt(place, arguments).json(0)
}

fn undo(place: &Place, told: &Value) -> Ran {
    let receipt = told["receipt"]["receipt_id"].as_str().unwrap();
    place.effectd(&["undo", "-o", "json", receipt], None)
}

#[test]
fn every_tool_is_listed_and_shown_with_what_it_promises() {
    let place = Place::new();
    let listed = place.effectd(&["tools", "list", "-o", "json"], None).json(0);
    let ids: Vec<_> =
        listed.as_array().unwrap().iter().map(|tool| tool["tool_id"].as_str().unwrap()).collect();
    for id in [
        "command.run",
        "core.diagnose_error",
        "files.append_text",
        "files.delete",
        "files.undo",
        "files.write_text",
    ] {
        assert!(ids.contains(&id), "{ids:?}");
        let shown = place.effectd(&["tools", "show", id], None);
        assert_eq!(shown.code(), 0);
        assert!(shown.stdout().starts_with(id), "{}", shown.stdout());
    }
    let delete = &listed[ids.iter().position(|id| *id == "files.delete").unwrap()];
    assert_eq!(
        (&delete["tier"], &delete["sandbox_profile"], &delete["version"]),
        (&"R4".into(), &"high_isolation".into(), &"1.0.0".into())
    );
    let write = place.effectd(&["tools", "show", "files.write_text", "-o", "json"], None).json(0);
    assert_eq!(write["spec"]["timeout_ms"], 4000);
    assert_eq!(write["capability"]["input_schema"], write["spec"]["params_schema"]);
    assert_eq!(write["tier"], "R1");
    let alias = place.effectd(&["tools", "show", "diagnose_error"], None);
    assert!(alias.stdout().starts_with("core.diagnose_error"), "{}", alias.stdout());
    let unknown = place.effectd(&["tools", "show", "files.wirte_text"], None);
    assert_eq!(unknown.code(), 2);
    assert!(unknown.stderr().contains("did you mean files.write_text?"), "{}", unknown.stderr());
}

#[test]
fn what_was_done_is_undone_and_done_again() {
    let place = ready(Who::Myself);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.path("workspace/note.txt"), "first\n").unwrap();
    let text = || std::fs::read_to_string(place.path("workspace/note.txt")).unwrap();
    let written = done(&place, &["files.write_text", "path=workspace/note.txt", "text=second"]);
    assert_eq!(text(), "second");
    let change = &written["receipt"]["effects"]["observed"]["changes"][0];
    assert_eq!(change["path"], "workspace/note.txt");
    assert!(!change.to_string().contains(&Digest::of(b"first\n").hex()), "digests are keyed");
    let undone = undo(&place, &written).json(0);
    assert_eq!((text().as_str(), &undone["receipt"]["tool_id"]), ("first\n", &"files.undo".into()));
    let redone = undo(&place, &undone).json(0);
    assert_eq!(text(), "second");
    std::fs::write(place.path("workspace/note.txt"), "by somebody else").unwrap();
    let refused = undo(&place, &redone);
    assert_eq!(refused.json(1)["code"], "state_changed");
    assert_eq!(text(), "by somebody else");
    let read = done(&place, &["files.read_text", "path=workspace/note.txt"]);
    assert_eq!(read["result"]["text"], "by somebody else");
    assert!(!read["receipt"].to_string().contains("by somebody else"), "a receipt quotes nothing");
    // Writing the same again is carried out: the undo was a change in between.
    let again = done(&place, &["files.write_text", "path=workspace/note.txt", "text=second"]);
    assert_eq!((text().as_str(), &again["already_done"]), ("second", &false.into()));
}

#[test]
fn a_second_undo_says_that_it_is_undone() {
    let place = ready(Who::Myself);
    let written = done(&place, &["files.write_text", "path=workspace/twice.txt", "text=once"]);
    let receipt = written["receipt"]["receipt_id"].as_str().unwrap();
    let first = undo(&place, &written).json(0);
    assert_eq!(
        (&first["result"]["restored"], &first["result"]["already_undone"]),
        (&1.into(), &false.into())
    );
    let again = undo(&place, &written).json(0);
    assert_eq!((&again["result"]["restored"], &again["result"]["already_undone"]), (&0.into(), &true.into()));
    assert_eq!(again["receipt"]["outputs"]["already_undone"], true);
    let told = place.effectd(&["undo", receipt], None);
    assert!(told.code() == 0 && told.stdout().starts_with("already undone: "), "{}", told.stdout());
}

#[test]
fn folders_that_were_made_on_the_way_go_with_the_undo() {
    let place = ready(Who::Myself);
    let patch = "--- /dev/null\n+++ b/a/b/new.txt\n@@ -0,0 +1 @@\n+new\n";
    let patched = done(&place, &["files.apply_patch", &format!("patch={patch}")]);
    assert!(place.path("workspace/a/b/new.txt").is_file());
    undo(&place, &patched).json(0);
    assert_eq!(std::fs::read_dir(place.path("workspace")).unwrap().count(), 0);
}

#[test]
fn a_folder_is_moved_and_moved_back_with_all_that_is_in_it() {
    let place = ready(Who::Myself);
    std::fs::create_dir_all(place.path("workspace/dir/deep")).unwrap();
    std::fs::write(place.path("workspace/dir/deep/x"), "x").unwrap();
    let (from, to) = ("from_path=workspace/dir", "to_path=workspace/a/b/house");
    let moved = done(&place, &["files.move", from, to]);
    let observed = &moved["receipt"]["effects"]["observed"];
    let change = observed["changes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|change| change["path"] == "workspace/dir")
        .unwrap();
    assert_eq!(
        (&change["moved_to"], &observed["undoable"]),
        (&"workspace/a/b/house".into(), &true.into()),
        "{observed}"
    );
    std::fs::write(place.path("workspace/a/b/house/new"), "since").unwrap();
    let undone = undo(&place, &moved).json(0);
    let there = |name: &str| std::fs::read_to_string(place.path("workspace").join(name)).unwrap_or_default();
    assert_eq!((there("dir/deep/x").as_str(), there("dir/new").as_str()), ("x", "since"));
    assert!(!place.path("workspace/a").exists(), "made on the way, and gone with it");
    undo(&place, &undone).json(0);
    assert_eq!(there("a/b/house/deep/x"), "x");
    assert!(!place.path("workspace/dir").exists());
    let into_itself =
        attempt(&place, &["files.move", "from_path=workspace/a", "to_path=workspace/a/b/inside"]);
    assert_eq!(into_itself.json(2)["code"], "params_invalid");
    let deleted = attempt(&place, &["files.copy", "from_path=workspace/a", "to_path=workspace/c"]);
    let told = deleted.json(1);
    assert_eq!(told["code"], "not_a_file", "{told}");
    assert!(told.to_string().contains("files.move moves a whole folder"), "{told}");
}

#[test]
fn dangerous_tools_are_denied_by_default() {
    let place = ready(Who::Myself);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.path("workspace/x"), "x").unwrap();
    let deleted = attempt(&place, &["files.delete", "path=workspace/x"]);
    assert_eq!(deleted.code(), 3, "{}", deleted.stdout());
    let ran = attempt(&place, &["command.run", r#"argv=["rm","x"]"#]);
    assert_eq!(ran.code(), 3, "{}", ran.stdout());
    assert!(place.path("workspace/x").exists());
}

#[test]
fn parameters_are_read_as_the_schema_has_them() {
    let place = ready(Who::Myself);
    let listed = done(&place, &["files.list", "path=workspace", "recursive=true"]);
    assert_eq!(listed["result"]["complete"], true);
    let same = done(&place, &["files.list", "--json", r#"{ "path": "workspace" }"#]);
    assert_eq!(same["result"]["count"], 0);
    for bad in [
        &["files.list", "path=workspace", "recursive=perhaps"][..],
        &["files.list", "path"],
        &["files.list", "--json", "[1]"],
    ] {
        assert_eq!(attempt(&place, bad).code(), 2, "{bad:?}");
    }
    let unknown = attempt(&place, &["files.list", "path=workspace", "surprise=1"]);
    assert_eq!((unknown.code(), &unknown.json(unknown.code())["code"]), (2, &"params_invalid".into()));
    let dry = done(&place, &["files.make_dir", "path=workspace/new", "--dry-run"]);
    assert_eq!((&dry["outcome"], place.path("workspace/new").exists()), (&"dry_run".into(), false));
    let sample = done(&place, &["diagnose_error"]);
    assert_eq!(
        (&sample["receipt"]["status"], &sample["receipt"]["tool_id"]),
        (&"ok".into(), &"core.diagnose_error".into())
    );
}

#[test]
fn a_file_that_the_user_may_not_touch_has_its_own_code() {
    use std::os::unix::fs::PermissionsExt;
    let name = "a_file_that_the_user_may_not_touch_has_its_own_code";
    if !is_root(name) {
        return;
    }
    let place = ready(Who::Nobody);
    done(&place, &["files.write_text", "path=workspace/x", "text=secret"]);
    std::fs::set_permissions(place.path("workspace/x"), std::fs::Permissions::from_mode(0o000)).unwrap();
    for arguments in [
        &["files.read_text", "path=workspace/x"][..],
        &["files.append_text", "path=workspace/x", "text=more"],
    ] {
        let refused = attempt(&place, arguments);
        assert_eq!(refused.json(1)["code"], "permission_denied", "{arguments:?}");
    }
    assert_eq!(std::fs::read_to_string(place.path("workspace/x")).unwrap(), "secret");
}

#[test]
fn what_is_kept_for_an_undo_lies_sealed() {
    let place = ready(Who::Myself);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let canary = "canary-5f1c9e-of-what-was-there";
    std::fs::write(place.path("workspace/x"), canary).unwrap();
    let written = done(&place, &["files.write_text", "path=workspace/x", "text=other"]);
    let mut files = vec![place.state()];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            seen += 1;
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(canary.len()).any(|piece| piece == canary.as_bytes());
            assert!(!found, "{} quotes it", path.display());
        }
    }
    assert!(seen > 5);
    undo(&place, &written).json(0);
    assert_eq!(std::fs::read_to_string(place.path("workspace/x")).unwrap(), canary);
}
