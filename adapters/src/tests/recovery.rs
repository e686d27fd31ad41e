//! After a crash, probes tell what happened; an undo restores what was replaced, byte for byte.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use effectd_contracts::{Code, PathSnapshot, PathState, ProbeVerdict, Repeat, Restore};
use serde_json::Value;

use super::{prepare, samples};
use crate::spacepath::SpacePath;
use crate::tests::space::{TestSpace, Undoing};
use crate::tool::Tool;
use crate::workspace::Inspected;

/// Every path in the space, with its permissions and content.
pub(super) fn snapshot(place: &TestSpace) -> BTreeMap<String, (u32, Option<Vec<u8>>)> {
    let names = place.names().into_iter();
    names
        .map(|name| {
            let meta = std::fs::symlink_metadata(place.path(&name)).unwrap();
            // Reading a pipe would block, and a giant file does not fit into memory.
            let is_read = meta.is_file() && meta.len() < 1 << 24;
            let content = is_read.then(|| std::fs::read(place.path(&name)).unwrap());
            (name, (meta.permissions().mode(), content))
        })
        .collect()
}

/// The paths that a tool has changed, with those in a folder that it has filled.
fn changed_paths(
    place: &TestSpace,
    tool: &dyn Tool,
    params: &Value,
    seen: &[PathSnapshot],
) -> Vec<SpacePath> {
    let mut paths: Vec<_> = seen.iter().map(|seen| SpacePath::parse(&seen.path).unwrap()).collect();
    for touch in tool.touches(params.as_object().unwrap()).unwrap() {
        if touch.filled {
            let walk = place.workspace().walk(&SpacePath::parse(&touch.path).unwrap(), true);
            paths.extend(walk.unwrap().entries.into_iter().map(|entry| entry.path));
        }
    }
    paths
}

/// Adds the state `Absent` for paths that did not exist before.
fn with_absent(mut before: Vec<Inspected>, paths: &[SpacePath]) -> Vec<Inspected> {
    for path in paths.iter().map(ToString::to_string) {
        if !before.iter().any(|look| look.seen.path == path) {
            let standing = PathState::Absent;
            let seen = PathSnapshot::new(path, standing);
            before.push(Inspected { seen, content: None });
        }
    }
    before
}

fn look(place: &TestSpace, paths: &[SpacePath]) -> Vec<Inspected> {
    place.workspace().inspect(paths, 1 << 20).unwrap()
}

/// The present path of a folder that is to be moved back here: in the samples, the deepest new folder.
fn moved_from(now: &Inspected, then: &PathState, nows: &[Inspected], thens: &[Inspected]) -> Option<String> {
    if (&now.seen.standing, then) != (&PathState::Absent, &PathState::Folder) {
        return None;
    }
    // Folders above the moved one were made for it, and were not moved.
    let on_the_way = thens.iter().any(|other| {
        other.seen.standing == PathState::Folder
            && other.seen.path.starts_with(&format!("{}/", now.seen.path))
    });
    if on_the_way {
        return None;
    }
    let gone = |look: &&Inspected| {
        let then = thens.iter().find(|then| then.seen.path == look.seen.path);
        look.seen.standing == PathState::Folder
            && then.is_some_and(|then| then.seen.standing == PathState::Absent)
    };
    let deepest = nows.iter().filter(gone).max_by_key(|path| path.seen.path.len());
    deepest.map(|path| path.seen.path.clone())
}

/// What the pipeline would send for an undo: the state that each path must have, and the state to restore.
fn restore(nows: &[Inspected], thens: &[Inspected]) -> Undoing {
    let mut undoing = Undoing::default();
    for now in nows {
        let then = thens.iter().find(|then| then.seen.path == now.seen.path);
        let Some(then) = then.filter(|then| then.seen.standing != now.seen.standing) else {
            continue;
        };
        undoing.contents.extend(then.content.clone());
        undoing.restore.push(Restore {
            path: now.seen.path.clone(),
            now: now.seen.standing.clone(),
            then: then.seen.standing.clone(),
            beside: then.content.is_some(),
            from: moved_from(now, &then.seen.standing, nows, thens),
        });
    }
    undoing
}

#[test]
fn a_probe_tells_what_was_done_from_what_was_not() {
    for (tool, params) in samples() {
        if tool.spec().repeat != Repeat::Probe {
            continue;
        }
        let place = TestSpace::new();
        prepare(&place);
        let before = Some(place.look(tool, &params));
        let probe = |before| place.probe(tool, params.clone(), before);
        assert_eq!(probe(before.clone()), ProbeVerdict::NotDone, "{} {params}", tool.id());
        assert_eq!(probe(None), ProbeVerdict::CannotSay, "{} {params}", tool.id());
        place.run(tool, params.clone()).unwrap();
        assert_eq!(probe(before.clone()), ProbeVerdict::Done, "{} {params}", tool.id());
        assert_eq!(probe(None), ProbeVerdict::CannotSay, "{} {params}", tool.id());
        for touch in tool.touches(params.as_object().unwrap()).unwrap() {
            let name = touch.path.strip_prefix("workspace/").unwrap();
            let name = match place.path(name).is_dir() {
                true => format!("{name}/inside"),
                false => name.to_owned(),
            };
            place.put(&name, b"somebody else was here");
        }
        assert_eq!(probe(before), ProbeVerdict::CannotSay, "{} {params}", tool.id());
    }
}

#[test]
fn a_patch_that_was_interrupted_between_two_files_goes_on() {
    let (tool, params) = samples().into_iter().find(|(tool, _)| tool.id() == "files.apply_patch").unwrap();
    let place = TestSpace::new();
    prepare(&place);
    let before = place.look(tool, &params);
    place.run(tool, params.clone()).unwrap();
    let done = snapshot(&place);
    // As if the power had failed before the patch moved its second file into place.
    std::fs::remove_dir_all(place.path("new")).unwrap();
    assert_eq!(place.probe(tool, params.clone(), Some(before.clone())), ProbeVerdict::NotDone);
    let mut call = place.call(tool, effectd_contracts::CallMode::Run, params);
    call.before = Some(before);
    place.answer(tool, &call).unwrap();
    assert_eq!(snapshot(&place), done);
}

#[test]
fn what_an_interrupted_run_left_behind_is_taken_up_by_the_next() {
    let place = TestSpace::new();
    let path = SpacePath::parse("workspace/x").unwrap();
    let draft =
        place.workspace().draft(&path, b"half", None, crate::workspace::Existing::Replace, "trace").unwrap();
    // A process that is killed drops nothing.
    #[expect(clippy::disallowed_methods, reason = "stands for a kill")]
    std::mem::forget(draft);
    assert_eq!(place.names().len(), 1);
    let params = serde_json::json!({ "path": "workspace/x", "text": "whole" });
    place.run(&crate::files::WriteText, params).unwrap();
    assert_eq!((place.names(), place.get("x")), (vec!["x".to_owned()], Some(b"whole".to_vec())));
}

#[test]
fn undoing_restores_byte_for_byte_and_redoing_does_it_again() {
    for (tool, params) in samples() {
        let place = TestSpace::new();
        prepare(&place);
        let (first, seen) = (snapshot(&place), place.look(tool, &params));
        let paths: Vec<_> = seen.iter().map(|seen| SpacePath::parse(&seen.path).unwrap()).collect();
        let before = look(&place, &paths);
        place.run(tool, params.clone()).unwrap();
        let paths = changed_paths(&place, tool, &params, &seen);
        let before = with_absent(before, &paths);
        let (second, after) = (snapshot(&place), look(&place, &paths));
        let undo = restore(&after, &before);
        place.restore(undo.clone()).unwrap();
        assert_eq!(snapshot(&place), first, "{} {params}", tool.id());
        // Repeats the undo, as after an interruption.
        place.restore(undo).unwrap();
        assert_eq!(snapshot(&place), first, "{} {params}", tool.id());
        place.restore(restore(&before, &after)).unwrap();
        assert_eq!(snapshot(&place), second, "{} {params}", tool.id());
    }
}

#[test]
fn what_has_changed_since_is_not_undone() {
    for (tool, params) in samples() {
        let place = TestSpace::new();
        prepare(&place);
        let seen = place.look(tool, &params);
        let paths: Vec<_> = seen.iter().map(|seen| SpacePath::parse(&seen.path).unwrap()).collect();
        let before = look(&place, &paths);
        place.run(tool, params.clone()).unwrap();
        let paths = changed_paths(&place, tool, &params, &seen);
        let before = with_absent(before, &paths);
        let after = look(&place, &paths);
        let Some(file) = after.iter().find(|look| matches!(look.seen.standing, PathState::File(_))) else {
            continue;
        };
        place.put(file.seen.path.strip_prefix("workspace/").unwrap(), b"somebody else was here");
        let now = snapshot(&place);
        let failure = place.restore(restore(&after, &before)).unwrap_err();
        assert_eq!(failure.code, Code::StateChanged, "{} {params}", tool.id());
        assert_eq!(snapshot(&place), now, "{} {params}", tool.id());
    }
}

#[test]
fn a_large_file_is_moved_back_without_having_been_kept() {
    let place = TestSpace::new();
    let paths = ["workspace/big", "workspace/there"].map(|path| SpacePath::parse(path).unwrap());
    place.put("big", &vec![7; 3 << 20]);
    let before = place.workspace().inspect(&paths, 1_000).unwrap();
    assert!(before.iter().all(|look| look.content.is_none()));
    let params = serde_json::json!({ "from_path": "workspace/big", "to_path": "workspace/there" });
    place.run(&crate::files::Move, params).unwrap();
    let after = place.workspace().inspect(&paths, 1_000).unwrap();
    place.restore(restore(&after, &before)).unwrap();
    assert_eq!(place.names(), ["big"]);
}

#[test]
fn a_folder_that_somebody_uses_stays() {
    let place = TestSpace::new();
    let path = SpacePath::parse("workspace/a/b").unwrap();
    let before = look(&place, std::slice::from_ref(&path));
    let paths: Vec<_> = before.iter().map(|look| SpacePath::parse(&look.seen.path).unwrap()).collect();
    place.run(&crate::files::MakeDir, serde_json::json!({ "path": "workspace/a/b" })).unwrap();
    place.put("a/theirs", b"x");
    let output = place.restore(restore(&look(&place, &paths), &before)).unwrap();
    assert_eq!(
        output.result,
        serde_json::json!({ "restored": 1, "folders_kept": 1, "already_undone": false })
    );
    assert_eq!(place.names(), ["a", "a/theirs"]);
}
