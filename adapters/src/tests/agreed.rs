//! What a person has agreed to finds what they saw, in folders and on every file system, or does nothing.

use effectd_contracts::{CallMode, Code, Failure, Inside, Seen, ToolReply};
use serde_json::{Value, json};

use crate::SpacePath;
use crate::failpoint::LACKING;
use crate::files;
use crate::limits::INSIDE_ENTRIES_MAX;
use crate::testing::Place;
use crate::tool::{Tool, answer};
use crate::workspace::FileProblem;

fn path(name: &str) -> SpacePath {
    SpacePath::parse(&format!("workspace/{name}")).unwrap()
}

/// What stands at these paths, with what is in folders.
fn seen(place: &Place, names: &[&str]) -> Vec<Seen> {
    let see = |name: &&str| place.workspace().see_whole(&path(name)).unwrap();
    names.iter().map(see).collect()
}

fn run(place: &Place, tool: &dyn Tool, params: Value, expect: Vec<Seen>) -> Result<(), Failure> {
    let mut call = place.call(tool, CallMode::Run, params);
    call.expect = expect;
    match answer(tool, &place.workspace(), &call) {
        ToolReply::Done(_) => Ok(()),
        ToolReply::Failed(failure) => Err(failure),
        other @ (ToolReply::Probed(_) | ToolReply::Rehearsed(_)) => panic!("{other:?}"),
    }
}

fn folder() -> Place {
    let place = Place::new();
    place.put("dir/deep/x", b"x");
    place.put("dir/y", b"y");
    place
}

/// What somebody else does in the folder.
type Meddling = (&'static str, fn(&Place));

#[test]
fn a_folder_is_moved_only_with_what_was_seen_in_it() {
    let params = json!({ "from_path": "workspace/dir", "to_path": "workspace/new" });
    let changes: [Meddling; 5] = [
        ("another content of the same length", |place| {
            place.put("dir/deep/x", b"z");
        }),
        ("one more", |place| place.put("dir/deep/more", b"")),
        ("one less", |place| {
            std::fs::remove_file(place.path("dir/y")).unwrap()
        }),
        ("another name", |place| {
            std::fs::rename(place.path("dir/y"), place.path("dir/z")).unwrap();
        }),
        ("other permissions", |place| {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(place.path("dir/y"), mode).unwrap();
        }),
    ];
    for (what, change) in changes {
        let place = folder();
        let expect = seen(&place, &["dir", "new"]);
        settle_clock(&place);
        change(&place);
        let names = place.names();
        let failure = run(&place, &files::Move, params.clone(), expect.clone()).unwrap_err();
        assert_eq!(failure.code, Code::StateChanged, "{what}");
        assert_eq!(place.names(), names, "{what}");
        // Also if it happens after the first look: the folder goes back to where it was.
        let workspace = place.workspace().expecting(&expect, "trace");
        let moved = workspace.move_folder(&path("dir"), &path("new"));
        assert_eq!(moved, Err(FileProblem::Changed), "{what}");
        assert_eq!(place.names(), names, "{what}");
    }
    let place = folder();
    let expect = seen(&place, &["dir", "new"]);
    run(&place, &files::Move, params, expect.clone()).unwrap();
    // A folder takes what is in it along as it is.
    assert_eq!(seen(&place, &["new"])[0].inside, expect[0].inside);
}

/// The kernel's clock for files moves in steps; two changes within one are one moment.
fn settle_clock(place: &Place) {
    use std::os::unix::fs::MetadataExt;
    let moment = |name: &str| {
        place.put(name, b"");
        let meta = std::fs::metadata(place.path(name)).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let first = moment("tick");
    let passed = (0..100_000_000).any(|_| moment("tick") != first);
    assert!(passed, "the clock stands still");
    std::fs::remove_file(place.path("tick")).unwrap();
}

#[test]
fn a_folder_with_too_much_in_it_is_not_compared_and_says_so() {
    let place = folder();
    std::fs::create_dir_all(place.path("many")).unwrap();
    for nth in 0..=INSIDE_ENTRIES_MAX {
        std::fs::File::create(place.path(&format!("many/{nth}"))).unwrap();
    }
    assert_eq!(place.workspace().inside(&path("many")), Ok(Inside::TooMuch));
    assert!(matches!(
        place.workspace().inside(&path("dir")),
        Ok(Inside::Listed(_))
    ));
}

/// Runs with a file system that lacks some ways to rename.
fn lacking<T>(ways: &[&'static str], work: impl FnOnce() -> T) -> T {
    LACKING.with_borrow_mut(|lacking| lacking.extend(ways));
    let done = work();
    LACKING.with_borrow_mut(Vec::clear);
    done
}

#[test]
fn where_two_files_cannot_change_places_one_is_set_aside_first() {
    let place = Place::new();
    place.put("a", b"one");
    let write = json!({ "path": "workspace/a", "text": "new" });
    let expect = seen(&place, &["a"]);
    lacking(&["exchange"], || {
        run(&place, &files::WriteText, write.clone(), expect.clone()).unwrap();
        assert_eq!(place.get("a").unwrap(), b"new");
        // It is not what was seen any more.
        let failure = run(&place, &files::WriteText, write, expect.clone()).unwrap_err();
        assert_eq!(failure.code, Code::StateChanged);
        // Also if it was changed after the first look.
        let workspace = place.workspace().expecting(&expect, "trace");
        let draft = workspace
            .draft(
                &path("a"),
                b"newer",
                None,
                crate::workspace::Existing::Replace,
                "trace",
            )
            .unwrap();
        assert_eq!(draft.place(), Err(FileProblem::Changed));
    });
    assert_eq!(place.get("a").unwrap(), b"new");
    assert_eq!(place.names(), ["a"]);
}

#[test]
fn where_nothing_can_be_renamed_without_replacing_nothing_is_done_and_that_is_said() {
    let place = Place::new();
    place.put("a", b"one");
    place.put("b", b"two");
    let expect = seen(&place, &["a", "b", "c"]);
    for (tool, params) in [
        (
            &files::WriteText as &dyn Tool,
            json!({ "path": "workspace/a", "text": "new" }),
        ),
        (&files::WriteText, json!({ "path": "workspace/c", "text": "new" })),
        (&files::Delete, json!({ "path": "workspace/a" })),
        (
            &files::Move,
            json!({ "from_path": "workspace/a", "to_path": "workspace/b", "overwrite": true }),
        ),
    ] {
        let failure = lacking(&["exchange", "noreplace"], || {
            run(&place, tool, params, expect.clone()).unwrap_err()
        });
        assert_eq!(failure.code, Code::ToolFailed, "{failure}");
        assert!(failure.message.contains("file system"), "{failure}");
        assert_eq!(place.names(), ["a", "b"], "{}", tool.id());
        assert_eq!(
            (place.get("a").unwrap(), place.get("b").unwrap()),
            (b"one".to_vec(), b"two".to_vec())
        );
    }
}
