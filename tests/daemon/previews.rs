//! Previews in a daemon: they show what happens, and slow ones delay nobody else.

use std::os::unix::fs::{MetadataExt, chown};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Place, Serving, Who, is_root, write_note};
use crate::operator::break_it;

/// Longer than a preview may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn surplus_previews_get_retry_after_and_disturb_nobody() {
    let place = Place::seeded();
    // Tools hang in the copy until their timeout. The tool has a long one, so that everything else is done
    // before.
    let daemon = place.serve(&["--set", "pipeline.preview_time_ms_max=20000"]);
    break_it(&place);
    std::fs::write(place.path("workspace/r.txt"), "to be read").unwrap();
    let (told, replies) = mpsc::channel();
    std::thread::scope(|scope| {
        for nth in 0..6 {
            let (daemon, told) = (&daemon, told.clone());
            scope.spawn(move || {
                let mut pack = write_note(&format!("p-{nth}"), "none", "");
                pack["tool_id"] = "files.archive".into();
                pack["params"] = json!({
                    "from_path": "workspace/r.txt", "to_path": format!("workspace/p-{nth}.zip"), "space_id": "shared:household",
                });
                told.send(daemon.post("/v1/preview", &pack)).unwrap();
            });
        }
        for _ in 0..4 {
            let refused = replies.recv_timeout(PATIENCE).unwrap().problem(503, "overloaded");
            assert!(refused["retry_after_ms"].as_u64().is_some(), "{refused}");
        }
        // Two previews hang, and everything else works.
        for nth in 0..12 {
            let mut read = write_note(&format!("r-{nth}"), "r.txt", "");
            read["tool_id"] = "files.read_text".into();
            read["params"] = json!({ "path": "workspace/r.txt", "space_id": "shared:household" });
            let done = daemon.post("/v1/actions?wait", &read).json(200);
            assert_eq!(done["receipt"]["outcome"], "executed", "{done}");
            daemon.get("/v1/approvals").json(200);
        }
        assert!(replies.try_recv().is_err(), "a preview ended before everybody else");
        for _ in 0..2 {
            let view = replies.recv_timeout(PATIENCE).unwrap().json(200);
            assert!(view["preview"]["unavailable"].is_string(), "{view}");
        }
    });
    assert_eq!(daemon.stop(), 0);
}

/// Writes a file into the space as its owner.
fn put(place: &Place, name: &str, text: &str) {
    let owner = std::fs::metadata(place.state()).unwrap();
    let path = place.note(name);
    let mut made: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    made.push(&path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    for path in made {
        chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

fn ask(place: &Place, action: &str, tool: &str, params: Value) -> String {
    let mut request = write_note(action, "none", "");
    request["tool_id"] = tool.into();
    request["params"] = params;
    request["params"]["space_id"] = "shared:household".into();
    let ran = place.effectd(&["run", "-", "-o", "json"], Some(&request.to_string()));
    assert_eq!(ran.code(), 4, "{}", ran.stderr());
    open(place)
}

/// The one held action.
fn open(place: &Place) -> String {
    let all = place.effectd(&["approvals", "list", "-o", "json"], None).json(0);
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    all[0]["approval_id"].as_str().unwrap().to_owned()
}

/// The sandbox of an ordinary user is set up differently from root's: copy, diff and conditions must be the same.
fn shown_and_held_to_it(who: Who) {
    let place = Place::of(who);
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    place.for_every_machine();
    for tool in ["files.write_text", "files.move"] {
        let words = ["policy", "set-mode", "--org", "home", "--tool", tool, "require_approval", "--yes"];
        assert_eq!(place.effectd(&words, None).code(), 0);
    }
    let daemon = place.serve(&[]);
    let approve = |id: &str| {
        let words = ["approvals", "approve", id, "-o", "json"];
        let ran = place.effectd(&words, None);
        serde_json::from_str::<Value>(&ran.stdout()).unwrap()
    };
    put(&place, "a.txt", "one\ntwo\n");
    let write = json!({ "path": "workspace/a.txt", "text": "one\n2\n" });
    let id = ask(&place, "n-1", "files.write_text", write);
    let shown = place.effectd(&["approvals", "show", &id], None).stdout();
    for line in ["    -two", "    +2", "1 path to change"] {
        assert!(shown.contains(line), "{shown}");
    }
    put(&place, "a.txt", "one\ntwo\nthree\n");
    assert_eq!(approve(&id)["action"]["state"], "held");
    let again = open(&place);
    assert_ne!(again, id);
    let done = approve(&again);
    assert_eq!(done["action"]["receipt"]["preview"]["verdict"], "matched", "{done}");
    assert_eq!(std::fs::read_to_string(place.note("a.txt")).unwrap(), "one\n2\n");

    // For a folder, its content.
    put(&place, "dir/deep/x", "x");
    let params = json!({ "from_path": "workspace/dir", "to_path": "workspace/new" });
    let id = ask(&place, "n-2", "files.move", params);
    put(&place, "dir/deep/x", "y");
    assert_eq!(approve(&id)["action"]["state"], "held");
    assert!(place.note("dir/deep/x").exists());
    let done = approve(&open(&place));
    assert_eq!(done["action"]["receipt"]["preview"]["verdict"], "matched", "{done}");
    assert!(place.note("new/deep/x").exists());

    // Edited parameters are previewed, and need a confirmation where there is no terminal.
    let write = json!({ "path": "workspace/a.txt", "text": "three\n" });
    let id = ask(&place, "n-3", "files.write_text", write);
    let other = json!({ "path": "workspace/a.txt", "text": "edited\n", "space_id": "shared:household" });
    put(&place, "edited.json", &other.to_string());
    let mut words = vec!["approvals", "approve", &id, "--edit", "workspace/edited.json"];
    let unsure = place.effectd(&words, None);
    assert_eq!(unsure.code(), 2, "{}", unsure.stderr());
    assert!(unsure.stderr().contains("    +edited") && unsure.stderr().contains("--yes"));
    words.push("--yes");
    assert_eq!(place.effectd(&words, None).code(), 0);
    assert_eq!(std::fs::read_to_string(place.note("a.txt")).unwrap(), "edited\n");
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn previews_show_what_happens_and_ask_again_after_a_change() {
    shown_and_held_to_it(Who::Myself);
    if is_root("previews_show_what_happens_and_ask_again_after_a_change as root") {
        shown_and_held_to_it(Who::Nobody);
    }
}
