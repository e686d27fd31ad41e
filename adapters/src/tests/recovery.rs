//! After a crash and after a regret: probes tell what happened, and what was replaced comes back byte for byte.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use effectd_contracts::{Code, ProbeVerdict, Repeat, Restore, Seen, Standing};
use serde_json::Value;

use super::{prepare, samples};
use crate::spacepath::SpacePath;
use crate::testing::{Place, Undoing};
use crate::tool::Tool;
use crate::workspace::Look;

/// Everything in the space: permissions and content.
pub(super) fn snapshot(place: &Place) -> BTreeMap<String, (u32, Option<Vec<u8>>)> {
    let names = place.names().into_iter();
    names
        .map(|name| {
            let meta = std::fs::symlink_metadata(place.path(&name)).unwrap();
            // A pipe would be waited for, and a giant does not fit.
            let is_read = meta.is_file() && meta.len() < 1 << 24;
            let content = is_read.then(|| std::fs::read(place.path(&name)).unwrap());
            (name, (meta.permissions().mode(), content))
        })
        .collect()
}

/// Paths that a tool has changed, now that it has run: also those in a folder that it has filled.
fn changed_paths(place: &Place, tool: &dyn Tool, params: &Value, seen: &[Seen]) -> Vec<SpacePath> {
    let mut paths: Vec<_> = seen
        .iter()
        .map(|seen| SpacePath::parse(&seen.path).unwrap())
        .collect();
    for touch in tool.touches(params.as_object().unwrap()).unwrap() {
        if touch.filled {
            let walk = place
                .workspace()
                .walk(&SpacePath::parse(&touch.path).unwrap(), true);
            paths.extend(walk.unwrap().entries.into_iter().map(|entry| entry.path));
        }
    }
    paths
}

/// Nothing stood where something was made.
fn with_absent(mut before: Vec<Look>, paths: &[SpacePath]) -> Vec<Look> {
    for path in paths.iter().map(ToString::to_string) {
        if !before.iter().any(|look| look.seen.path == path) {
            let standing = Standing::Absent;
            let seen = Seen::new(path, standing);
            before.push(Look { seen, content: None });
        }
    }
    before
}

fn look(place: &Place, paths: &[SpacePath]) -> Vec<Look> {
    place.workspace().look(paths, 1 << 20).unwrap()
}

/// Where a folder that is to stand here again lies now: the samples make no other folder at the place to which one goes.
fn moved_from(now: &Look, then: &Standing, nows: &[Look], thens: &[Look]) -> Option<String> {
    if (&now.seen.standing, then) != (&Standing::Absent, &Standing::Folder) {
        return None;
    }
    // The folders that are made on the way are not the one that is moved.
    let on_the_way = thens.iter().any(|other| {
        other.seen.standing == Standing::Folder && other.seen.path.starts_with(&format!("{}/", now.seen.path))
    });
    if on_the_way {
        return None;
    }
    let gone = |look: &&Look| {
        let then = thens.iter().find(|then| then.seen.path == look.seen.path);
        look.seen.standing == Standing::Folder
            && then.is_some_and(|then| then.seen.standing == Standing::Absent)
    };
    let deepest = nows.iter().filter(gone).max_by_key(|look| look.seen.path.len());
    deepest.map(|look| look.seen.path.clone())
}

/// What the pipeline would hand over: what must be there, what is to be there again.
fn restore(nows: &[Look], thens: &[Look]) -> Undoing {
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
        let place = Place::new();
        prepare(&place);
        let before = Some(place.look(tool, &params));
        let probe = |before| place.probe(tool, params.clone(), before);
        assert_eq!(
            probe(before.clone()),
            ProbeVerdict::NotDone,
            "{} {params}",
            tool.id()
        );
        assert_eq!(probe(None), ProbeVerdict::CannotSay, "{} {params}", tool.id());
        place.run(tool, params.clone()).unwrap();
        assert_eq!(
            probe(before.clone()),
            ProbeVerdict::Done,
            "{} {params}",
            tool.id()
        );
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
    let (tool, params) = samples()
        .into_iter()
        .find(|(tool, _)| tool.id() == "files.apply_patch")
        .unwrap();
    let place = Place::new();
    prepare(&place);
    let before = place.look(tool, &params);
    place.run(tool, params.clone()).unwrap();
    let done = snapshot(&place);
    // As if the power had failed before the second file was moved into place.
    std::fs::remove_dir_all(place.path("new")).unwrap();
    assert_eq!(
        place.probe(tool, params.clone(), Some(before.clone())),
        ProbeVerdict::NotDone
    );
    let mut call = place.call(tool, effectd_contracts::CallMode::Run, params);
    call.before = Some(before);
    place.answer(tool, &call).unwrap();
    assert_eq!(snapshot(&place), done);
}

#[test]
fn what_an_interrupted_run_left_behind_is_taken_up_by_the_next() {
    let place = Place::new();
    let path = SpacePath::parse("workspace/x").unwrap();
    let draft = place
        .workspace()
        .draft(&path, b"half", None, crate::workspace::Existing::Replace, "trace")
        .unwrap();
    // A process that is killed drops nothing.
    #[expect(clippy::disallowed_methods, reason = "stands for a kill")]
    std::mem::forget(draft);
    assert_eq!(place.names().len(), 1);
    let params = serde_json::json!({ "path": "workspace/x", "text": "whole" });
    place.run(&crate::files::WriteText, params).unwrap();
    assert_eq!(
        (place.names(), place.get("x")),
        (vec!["x".to_owned()], Some(b"whole".to_vec()))
    );
}

#[test]
fn undoing_restores_byte_for_byte_and_redoing_does_it_again() {
    for (tool, params) in samples() {
        let place = Place::new();
        prepare(&place);
        let (first, seen) = (snapshot(&place), place.look(tool, &params));
        let paths: Vec<_> = seen
            .iter()
            .map(|seen| SpacePath::parse(&seen.path).unwrap())
            .collect();
        let before = look(&place, &paths);
        place.run(tool, params.clone()).unwrap();
        let paths = changed_paths(&place, tool, &params, &seen);
        let before = with_absent(before, &paths);
        let (second, after) = (snapshot(&place), look(&place, &paths));
        let undo = restore(&after, &before);
        place.restore(undo.clone()).unwrap();
        assert_eq!(snapshot(&place), first, "{} {params}", tool.id());
        // An undo that was interrupted is run again.
        place.restore(undo).unwrap();
        assert_eq!(snapshot(&place), first, "{} {params}", tool.id());
        place.restore(restore(&before, &after)).unwrap();
        assert_eq!(snapshot(&place), second, "{} {params}", tool.id());
    }
}

#[test]
fn what_has_changed_since_is_not_undone() {
    for (tool, params) in samples() {
        let place = Place::new();
        prepare(&place);
        let seen = place.look(tool, &params);
        let paths: Vec<_> = seen
            .iter()
            .map(|seen| SpacePath::parse(&seen.path).unwrap())
            .collect();
        let before = look(&place, &paths);
        place.run(tool, params.clone()).unwrap();
        let paths = changed_paths(&place, tool, &params, &seen);
        let before = with_absent(before, &paths);
        let after = look(&place, &paths);
        let Some(file) = after
            .iter()
            .find(|look| matches!(look.seen.standing, Standing::File(_)))
        else {
            continue;
        };
        place.put(
            file.seen.path.strip_prefix("workspace/").unwrap(),
            b"somebody else was here",
        );
        let now = snapshot(&place);
        let failure = place.restore(restore(&after, &before)).unwrap_err();
        assert_eq!(failure.code, Code::StateChanged, "{} {params}", tool.id());
        assert_eq!(snapshot(&place), now, "{} {params}", tool.id());
    }
}

#[test]
fn a_large_file_is_moved_back_without_having_been_kept() {
    let place = Place::new();
    let paths = ["workspace/big", "workspace/there"].map(|path| SpacePath::parse(path).unwrap());
    place.put("big", &vec![7; 3 << 20]);
    let before = place.workspace().look(&paths, 1_000).unwrap();
    assert!(before.iter().all(|look| look.content.is_none()));
    let params = serde_json::json!({ "from_path": "workspace/big", "to_path": "workspace/there" });
    place.run(&crate::files::Move, params).unwrap();
    let after = place.workspace().look(&paths, 1_000).unwrap();
    place.restore(restore(&after, &before)).unwrap();
    assert_eq!(place.names(), ["big"]);
}

#[test]
fn a_folder_that_somebody_uses_stays() {
    let place = Place::new();
    let path = SpacePath::parse("workspace/a/b").unwrap();
    let before = look(&place, std::slice::from_ref(&path));
    let paths: Vec<_> = before
        .iter()
        .map(|look| SpacePath::parse(&look.seen.path).unwrap())
        .collect();
    place
        .run(
            &crate::files::MakeDir,
            serde_json::json!({ "path": "workspace/a/b" }),
        )
        .unwrap();
    place.put("a/theirs", b"x");
    let output = place.restore(restore(&look(&place, &paths), &before)).unwrap();
    assert_eq!(
        output.result,
        serde_json::json!({ "restored": 1, "folders_kept": 1 })
    );
    assert_eq!(place.names(), ["a", "a/theirs"]);
}
