//! An approved action runs only on the state that the person saw, for folders and on every file system.

use effectd_contracts::{CallMode, Code, Failure, FolderListing, PathSnapshot, ToolReply};
use serde_json::{Value, json};

use crate::SpacePath;
use crate::answer;
use crate::failpoint::LACKING;
use crate::files;
use crate::limits::TREE_DIGEST_ENTRIES_MAX;
use crate::tests::space::TestSpace;
use crate::tool::Tool;
use crate::workspace::FileProblem;

fn path(name: &str) -> SpacePath {
    SpacePath::parse(&format!("workspace/{name}")).unwrap()
}

/// The state of these paths, with the listings of folders.
fn seen(place: &TestSpace, names: &[&str]) -> Vec<PathSnapshot> {
    let see = |name: &&str| place.workspace().inspect_tree(&path(name)).unwrap();
    names.iter().map(see).collect()
}

fn run(place: &TestSpace, tool: &dyn Tool, params: Value, expect: Vec<PathSnapshot>) -> Result<(), Failure> {
    let mut call = place.call(tool, CallMode::Run, params);
    call.expect = expect;
    match answer(tool, &place.workspace(), &call) {
        ToolReply::Done(_) => Ok(()),
        ToolReply::Failed(failure) => Err(failure),
        other @ (ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) => {
            panic!("{other:?}")
        }
    }
}

fn folder() -> TestSpace {
    let place = TestSpace::new();
    place.put("dir/deep/x", b"x");
    place.put("dir/y", b"y");
    place
}

/// What another program does in the folder.
type Meddling = (&'static str, fn(&TestSpace));

#[test]
fn a_folder_is_moved_only_with_what_was_seen_in_it() {
    let params = json!({ "from_path": "workspace/dir", "to_path": "workspace/new" });
    let changes: [Meddling; 5] = [
        ("another content of the same length", |place| {
            place.put("dir/deep/x", b"z");
        }),
        ("one more", |place| place.put("dir/deep/more", b"")),
        ("one less", |place| std::fs::remove_file(place.path("dir/y")).unwrap()),
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
        // The check during the move finds the change, too, and the folder is moved back.
        let workspace = place.workspace().expecting(&expect, "trace");
        let moved = workspace.move_folder(&path("dir"), &path("new"));
        assert_eq!(moved, Err(FileProblem::Changed), "{what}");
        assert_eq!(place.names(), names, "{what}");
    }
    let place = folder();
    let expect = seen(&place, &["dir", "new"]);
    run(&place, &files::Move, params, expect.clone()).unwrap();
    // A move does not change the listing of a folder.
    assert_eq!(seen(&place, &["new"])[0].inside, expect[0].inside);
}

/// The kernel's clock for file times moves in steps; two changes within one step have the same time.
fn settle_clock(place: &TestSpace) {
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
    for nth in 0..=TREE_DIGEST_ENTRIES_MAX {
        std::fs::File::create(place.path(&format!("many/{nth}"))).unwrap();
    }
    assert_eq!(place.workspace().tree_digest(&path("many")), Ok(FolderListing::TooMuch));
    assert!(matches!(place.workspace().tree_digest(&path("dir")), Ok(FolderListing::Listed(_))));
}

/// Runs `work` as on a file system that lacks these kinds of rename.
fn lacking<T>(ways: &[&'static str], work: impl FnOnce() -> T) -> T {
    LACKING.with_borrow_mut(|lacking| lacking.extend(ways));
    let done = work();
    LACKING.with_borrow_mut(Vec::clear);
    done
}

#[test]
fn where_two_files_cannot_change_places_one_is_set_aside_first() {
    let place = TestSpace::new();
    place.put("a", b"one");
    let write = json!({ "path": "workspace/a", "text": "new" });
    let expect = seen(&place, &["a"]);
    lacking(&["exchange"], || {
        run(&place, &files::WriteText, write.clone(), expect.clone()).unwrap();
        assert_eq!(place.get("a").unwrap(), b"new");
        // The file is not as it was seen.
        let failure = run(&place, &files::WriteText, write, expect.clone()).unwrap_err();
        assert_eq!(failure.code, Code::StateChanged);
        // The check during the replacement finds the change, too.
        let workspace = place.workspace().expecting(&expect, "trace");
        let draft = workspace
            .draft(&path("a"), b"newer", None, crate::workspace::Existing::Replace, "trace")
            .unwrap();
        assert_eq!(draft.place(), Err(FileProblem::Changed));
    });
    assert_eq!(place.get("a").unwrap(), b"new");
    assert_eq!(place.names(), ["a"]);
}

#[test]
fn without_rename_noreplace_nothing_is_done_and_reported() {
    let place = TestSpace::new();
    place.put("a", b"one");
    place.put("b", b"two");
    let expect = seen(&place, &["a", "b", "c"]);
    for (tool, params) in [
        (&files::WriteText as &dyn Tool, json!({ "path": "workspace/a", "text": "new" })),
        (&files::WriteText, json!({ "path": "workspace/c", "text": "new" })),
        (&files::Delete, json!({ "path": "workspace/a" })),
        (&files::Move, json!({ "from_path": "workspace/a", "to_path": "workspace/b", "overwrite": true })),
    ] {
        let failure =
            lacking(&["exchange", "noreplace"], || run(&place, tool, params, expect.clone()).unwrap_err());
        assert_eq!(failure.code, Code::ToolFailed, "{failure}");
        assert!(failure.message.contains("file system"), "{failure}");
        assert_eq!(place.names(), ["a", "b"], "{}", tool.id());
        assert_eq!((place.get("a").unwrap(), place.get("b").unwrap()), (b"one".to_vec(), b"two".to_vec()));
    }
}
