//! Idempotency: an action is not repeated until something else changes its effect; and of several actions that change one
//! resource at once, each sees the effect of the one before it.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use effectd::contracts::{Code, Outcome, Receipt};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use serde_json::{Value, json};

use crate::approvals::{allowing, approved, request};
use crate::harness::{Place, Running, is_root};
use crate::mounts::Mount;

async fn done(runtime: &Runtime, action: &str, tool: &str, params: Value) -> Receipt {
    match runtime.exec(request(action, tool, params)).await {
        Answer::Done(done) => (*done.receipt).clone(),
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{action}: {other:?}"),
    }
}

fn ready() -> Place {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    place
}

/// Which action did it: the one that asked, or an earlier one.
async fn write(runtime: &Runtime, action: &str, path: &str) -> bool {
    let params = json!({ "path": path, "text": "the same" });
    let receipt = done(runtime, action, "files.write_text", params).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    receipt.action_id.as_str() == action
}

#[tokio::test(flavor = "multi_thread")]
async fn spellings_of_a_path_are_one_request() {
    let place = ready();
    let runtime = place.runtime().await;
    assert!(write(&runtime, "one", "workspace/a/x").await);
    assert!(!write(&runtime, "two", "workspace//a/./x").await, "done already");
    assert!(write(&runtime, "three", "workspace/a/X").await, "another file");
    assert!(runtime.stop().await);
}

/// Which is why it is faster; the bench `pipeline` measures by how much.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_runs_nothing_and_leaves_no_receipt() {
    let place = ready();
    let runtime = place.runtime().await;
    for n in 0..9 {
        assert_eq!(write(&runtime, &format!("a-{n}"), "workspace/x").await, n == 0, "{n}");
    }
    let page = prometheus::TextEncoder::new().encode_to_string(&runtime.metrics().gather()).unwrap();
    for line in [
        "effectd_action_exec_seconds_count{tool_id=\"files.write_text\"} 1\n",
        "effectd_actions_total{outcome=\"executed\",tool_id=\"files.write_text\"} 1\n",
        "effectd_actions_cached_total{tool_id=\"files.write_text\"} 8\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_are_one_where_the_file_system_ignores_them() {
    let name = "cases_are_one_where_the_file_system_ignores_them";
    if !is_root(name) {
        return;
    }
    if !Path::new("/sys/fs/ext4/features/casefold").exists() {
        let line = format!("NOT RUN (this kernel's ext4 has no casefold): {name}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return;
    }
    let place = ready();
    let image = place.path("image");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let make = ["-q", "-F", "-O", "casefold", "-E", "encoding=utf8"];
    assert!(Command::new("mkfs.ext4").args(make).arg(&image).status().unwrap().success());
    let workspace = Mount::image(&image, place.path("workspace"));
    // Only an empty folder can be told to ignore case.
    std::fs::remove_dir(workspace.path().join("lost+found")).unwrap();
    assert!(Command::new("chattr").arg("+F").arg(workspace.path()).status().unwrap().success());
    let runtime = place.runtime().await;
    assert!(write(&runtime, "one", "workspace/Note.txt").await);
    assert!(!write(&runtime, "two", "workspace/NOTE.txt").await, "the same file, as it was left");
    std::fs::write(place.note("note.TXT"), "something else").unwrap();
    assert!(write(&runtime, "three", "workspace/NOTE.txt").await, "somebody has changed it");
    assert_eq!(std::fs::read_to_string(place.note("Note.txt")).unwrap(), "the same");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_into_a_folder_that_moved_is_written_again() {
    let place = ready();
    let runtime = place.runtime().await;
    let all = ["a/x", "a/deep/y", "a b/z"];
    for (number, path) in all.iter().enumerate() {
        let path = format!("workspace/{path}");
        assert!(write(&runtime, &format!("one-{number}"), &path).await);
        assert!(!write(&runtime, &format!("two-{number}"), &path).await, "done already");
    }
    let params = json!({ "from_path": "workspace/a", "to_path": "workspace/b" });
    let moved = done(&runtime, "move", "files.move", params).await;
    assert_eq!(moved.outcome, Outcome::Executed, "{:?}", moved.error);
    assert!(write(&runtime, "three-0", "workspace/a/x").await);
    assert!(write(&runtime, "three-1", "workspace/a/deep/y").await);
    assert!(!write(&runtime, "three-2", "workspace/a b/z").await, "it lies elsewhere");
    for path in ["a/x", "a/deep/y", "b/x", "b/deep/y"] {
        assert_eq!(std::fs::read_to_string(place.note(path)).unwrap(), "the same", "{path}");
    }
    // The move back succeeds, and invalidates what was done at the new path.
    std::fs::remove_dir_all(place.note("a")).unwrap();
    assert!(write(&runtime, "four", "workspace/b/x").await);
    let undo = json!({ "receipt_id": moved.receipt_id });
    let undone = done(&runtime, "undo", "files.undo", undo).await;
    assert_eq!(undone.outcome, Outcome::Executed, "{:?}", undone.error);
    assert!(!place.note("b").exists());
    assert!(write(&runtime, "five", "workspace/b/x").await);
    assert!(write(&runtime, "six", "workspace/a/x").await, "it is not what it was written by");
    assert!(runtime.stop().await);
    // Also after a restart.
    let runtime = place.runtime().await;
    assert!(!write(&runtime, "seven", "workspace/b/x").await);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_the_scratch_folder_counts_as_done() {
    let place = ready();
    let runtime = place.runtime().await;
    for action in ["one", "two"] {
        let made = done(&runtime, action, "files.make_dir", json!({ "path": "tmp/dir" })).await;
        assert_eq!((made.action_id.as_str(), &made.outputs["folders_made"]), (action, &json!(1)), "{made:?}");
        assert_eq!(made.idempotency_key, None);
        assert!(write(&runtime, &format!("write-{action}"), "tmp/x").await);
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_program_has_run_nothing_in_its_space_counts_as_done() {
    let place = allowing(&["rm"]);
    let runtime = place.runtime().await;
    let make =
        |action: &'static str| done(&runtime, action, "files.make_dir", json!({ "path": "workspace/dir" }));
    assert_eq!(make("one").await.action_id.as_str(), "one");
    assert_eq!(make("two").await.action_id.as_str(), "one");
    let remove = request("rm", "command.run", json!({ "argv": ["rm", "-r", "dir"] }));
    let removed = approved(&runtime, remove).await;
    assert_eq!(removed.outputs["exit_code"], 0, "{removed:?}");
    assert_eq!(make("three").await.action_id.as_str(), "three");
    assert!(place.note("dir").is_dir());
    assert!(runtime.stop().await);
}

/// A chosen idempotency key identifies the request: it holds whatever happens to the files.
#[tokio::test(flavor = "multi_thread")]
async fn a_chosen_key_holds_after_moves_and_program_runs() {
    let place = allowing(&["true"]);
    std::fs::create_dir_all(place.path("workspace/a")).unwrap();
    let runtime = place.runtime().await;
    let append = |action: &str, text: &str| {
        let params = json!({ "path": "workspace/a/log", "text": text });
        let mut asked = request(action, "files.append_text", params);
        asked.idempotency_key = Some("the-one".parse().unwrap());
        runtime.exec(asked)
    };
    let first = append("one", "line\n").await;
    assert!(matches!(&first, Answer::Done(done) if done.receipt.outcome == Outcome::Executed), "{first:?}");
    let ran = approved(&runtime, request("true", "command.run", json!({ "argv": ["true"] }))).await;
    assert_eq!(ran.outputs["exit_code"], 0, "{ran:?}");
    let params = json!({ "from_path": "workspace/a", "to_path": "workspace/b" });
    assert_eq!(done(&runtime, "move", "files.move", params).await.outcome, Outcome::Executed);
    let Answer::Done(again) = append("two", "line\n").await else { panic!() };
    assert_eq!(again.receipt.action_id.as_str(), "one", "done before");
    let Answer::Done(other) = append("three", "another line\n").await else { panic!() };
    assert_eq!(other.receipt.error.as_ref().map(|error| error.code), Some(Code::IdempotencyConflict));
    assert!(!place.note("a").exists());
    assert_eq!(std::fs::read_to_string(place.note("b/log")).unwrap(), "line\n");
    assert!(runtime.stop().await);
}

/// Each kind of change, by eight actions at once: how many may succeed, and what is there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_one_file_each_see_the_previous_one() {
    const MANY: usize = 8;
    let place = ready();
    for name in ["append", "edit", "patch", "source", "move"] {
        std::fs::write(place.note(name), "one\n").unwrap();
    }
    let runtime = place.runtime().await;
    let patch = "--- patch\n+++ patch\n@@ -1 +1 @@\n-one\n+two\n";
    let kept = done(&runtime, "put", "artifact.put", json!({ "text": "kept" })).await;
    let id = &kept.outputs["artifact_ids"][0];
    let cases = [
        ("files.append_text", json!({ "path": "workspace/append", "text": "more\n" }), MANY, ""),
        (
            "files.edit_text",
            json!({ "path": "workspace/edit", "find": "one", "replace": "two" }),
            1,
            "state_changed",
        ),
        ("files.apply_patch", json!({ "patch": patch }), 1, "state_changed"),
        (
            "files.copy",
            json!({ "from_path": "workspace/source", "to_path": "workspace/copy" }),
            1,
            "file_exists",
        ),
        (
            "files.move",
            json!({ "from_path": "workspace/move", "to_path": "workspace/moved" }),
            1,
            "file_not_found",
        ),
        ("files.write_text", json!({ "path": "workspace/write", "text": "one\n" }), MANY, ""),
        ("files.make_dir", json!({ "path": "workspace/a/b" }), MANY, ""),
        ("artifact.get", json!({ "artifact_id": id, "to_path": "workspace/got" }), MANY, ""),
    ];
    for (tool, params, well, code) in cases {
        let asked = (0..MANY).map(|number| {
            let asked = request(&format!("{tool}-{number}"), tool, params.clone());
            runtime.exec(asked)
        });
        let answers = futures(asked.collect()).await;
        let mut codes = Vec::new();
        for answer in answers {
            let Answer::Done(done) = answer else { panic!("{tool}: {answer:?}") };
            codes.extend(done.receipt.error.as_ref().map(|failure| failure.code.to_string()));
        }
        assert_eq!(codes, vec![code; MANY - well], "{tool}");
    }
    let text = |name: &str| std::fs::read_to_string(place.note(name)).unwrap();
    assert_eq!(text("append"), format!("one\n{}", "more\n".repeat(MANY)));
    for (name, wanted) in
        [("edit", "two\n"), ("patch", "two\n"), ("copy", "one\n"), ("moved", "one\n"), ("got", "kept")]
    {
        assert_eq!(text(name), wanted, "{name}");
    }
    assert!(runtime.stop().await);
}

/// All of them at once.
async fn futures<F: Future>(all: Vec<F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    let mut ended: Vec<Option<F::Output>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (one, end) in all.iter_mut().zip(&mut ended) {
            if end.is_none()
                && let std::task::Poll::Ready(output) = one.as_mut().poll(context)
            {
                *end = Some(output);
            }
        }
        if ended.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}
