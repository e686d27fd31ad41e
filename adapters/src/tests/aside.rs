//! A file that is set aside for a check is never lost, and a probe finds out how far a killed run came.

use effectd_contracts::{CallMode, Code, PathSnapshot, PathState, ProbeVerdict, Restore, ToolReply};
use serde_json::json;

use crate::SpacePath;
use crate::answer;
use crate::files;
use crate::spacepath::{aside_name, draft_name};
use crate::tests::space::TestSpace;
use crate::workspace::FileProblem;

fn path(name: &str) -> SpacePath {
    SpacePath::parse(&format!("workspace/{name}")).unwrap()
}

fn aside(name: &str) -> String {
    aside_name(&format!("trace\n{}", path(name)))
}

fn look(place: &TestSpace, names: &[&str]) -> Vec<PathSnapshot> {
    let paths: Vec<_> = names.iter().map(|name| path(name)).collect();
    let looked = place.workspace().inspect(&paths, 0).unwrap();
    looked.into_iter().map(|path| path.seen).collect()
}

fn restore_aside(place: &TestSpace, name: &str, before: &[PathSnapshot]) -> Result<bool, FileProblem> {
    let was = before.iter().find(|seen| seen.path == path(name).to_string());
    let workspace = place.workspace();
    workspace.remove_draft(&path(name), "trace", was.map(|seen| &seen.standing))
}

fn rename(place: &TestSpace, from: &str, to: &str) {
    std::fs::rename(place.path(from), place.path(to)).unwrap();
}

/// A space with two files, and their states.
fn two() -> (TestSpace, Vec<PathSnapshot>) {
    let place = TestSpace::new();
    place.put("a", b"one");
    place.put("b", b"two");
    let before = look(&place, &["a", "b"]);
    (place, before)
}

#[test]
fn a_move_that_is_killed_at_any_step_is_told_to_be_done_or_not() {
    let params = json!({ "from_path": "workspace/a", "to_path": "workspace/b", "overwrite": true });
    for (steps, verdict, left) in
        [(1, ProbeVerdict::NotDone, ["a", "b"].as_slice()), (2, ProbeVerdict::Done, &["b"])]
    {
        let (place, before) = two();
        rename(&place, "b", &aside("b"));
        if steps == 2 {
            rename(&place, "a", "b");
        }
        for name in ["a", "b"] {
            assert_eq!(restore_aside(&place, name, &before), Ok(name == "b"), "{steps}");
        }
        assert_eq!(place.names(), left, "{steps}");
        let probed = place.probe(&files::Move, params.clone(), Some(before));
        assert_eq!(probed, verdict, "{steps}");
    }
}

#[test]
fn a_write_killed_anywhere_leaves_old_or_new_content() {
    for (exchanged, content) in [(false, b"two"), (true, b"new")] {
        let (place, before) = two();
        place.put(&aside("b"), b"new");
        if exchanged {
            rename(&place, "b", "old");
            rename(&place, &aside("b"), "b");
            rename(&place, "old", &aside("b"));
        }
        restore_aside(&place, "b", &before).unwrap();
        assert_eq!(place.get("b").unwrap(), content);
        assert_eq!(place.names(), ["a", "b"]);
    }
}

#[test]
fn what_is_aside_and_nobody_expected_is_put_back_or_stays() {
    let (place, before) = two();
    // Somebody else wrote to the file at the moment in which it was set aside.
    place.put("b", b"new");
    place.put(&aside("b"), b"theirs");
    place.put(&draft_name(&format!("trace\n{}", path("b"))), b"half");
    assert_eq!(restore_aside(&place, "b", &before), Err(FileProblem::LeftAside));
    assert_eq!(restore_aside(&place, "b", &[]), Err(FileProblem::LeftAside));
    assert_eq!(place.get(&aside("b")).unwrap(), b"theirs");
    assert_eq!(place.names().len(), 3, "{:?}", place.names());
    // Neither a repeated run nor another change of the same action removes the file that is set aside.
    for (tool, params) in [
        (&files::WriteText as &dyn crate::Tool, json!({ "path": "workspace/b", "text": "again" })),
        (&files::Delete, json!({ "path": "workspace/b" })),
    ] {
        let mut call = place.call(tool, CallMode::Run, params);
        call.expect = look(&place, &["b"]);
        let ToolReply::Failed(failure) = answer(tool, &place.workspace(), &call) else {
            panic!("{} went over what is aside", tool.id());
        };
        assert_eq!(failure.code, Code::StateChanged);
        assert!(failure.message.contains(".aside"), "{failure}");
        assert_eq!(place.get("b").unwrap(), b"new");
        assert_eq!(place.get(&aside("b")).unwrap(), b"theirs");
    }
    std::fs::remove_file(place.path("b")).unwrap();
    restore_aside(&place, "b", &[]).unwrap();
    assert_eq!(place.get("b").unwrap(), b"theirs");
    assert_eq!(place.names(), ["a", "b"]);
}

/// Reads the target all the time while a large file is moved over another; the move takes as long as reading both.
#[test]
fn nobody_sees_the_replaced_file_in_the_place_of_the_moved_one() {
    let (place, _) = two();
    place.put("a", &vec![b'a'; 2_000_000]);
    place.put("b", &vec![b'b'; 2_000_000]);
    let params = json!({ "from_path": "workspace/a", "to_path": "workspace/b", "overwrite": true });
    let mut call = place.call(&files::Move, CallMode::Run, params);
    call.expect = look(&place, &["a", "b"]);
    let (ready, done) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            use std::io::Read;
            ready.wait();
            let mut wrong = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let mut first = [0];
                let file = std::fs::File::open(place.path("a"));
                let read = file.and_then(|mut file| file.read(&mut first));
                wrong += usize::from(read.is_ok() && first == *b"b");
            }
            wrong
        });
        ready.wait();
        let reply = answer(&files::Move, &place.workspace(), &call);
        done.store(true, std::sync::atomic::Ordering::Release);
        assert!(matches!(reply, ToolReply::Done(_)), "{reply:?}");
        assert_eq!(watching.join().unwrap(), 0);
    });
    assert_eq!(place.names(), ["b"]);
}

/// A content that is too large for the side channel is moved back, and the replaced file gets its path again.
#[test]
fn an_undone_move_restores_what_it_replaced() {
    let (place, was) = two();
    rename(&place, "a", "b");
    let is = look(&place, &["a", "b"]);
    assert_eq!(is[0].standing, PathState::Absent);
    let mut call = place.call(&files::Undo, CallMode::Run, json!({ "receipt_id": "r" }));
    let both = was.iter().zip(&is);
    call.restore = both
        .map(|(was, is)| Restore {
            path: was.path.clone(),
            now: is.standing.clone(),
            then: was.standing.clone(),
            beside: was.path == "workspace/b",
            from: None,
        })
        .collect();
    call.expect = is;
    place.send(&[b"two".to_vec()]);
    let reply = answer(&files::Undo, &place.workspace(), &call);
    assert!(matches!(reply, ToolReply::Done(_)), "{reply:?}");
    assert_eq!(look(&place, &["a", "b"]), was);
    assert_eq!(place.names(), ["a", "b"]);
}
