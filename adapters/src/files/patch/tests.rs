//! Patches of all kinds, and the property that an inverted patch restores the old text.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn one(text: &str) -> FilePatch {
    let mut patch = Patch::parse(text).unwrap();
    assert_eq!(patch.files.len(), 1);
    patch.files.remove(0)
}

const SIMPLE: &str = "--- a/x.txt\n+++ b/x.txt\n@@ -2,3 +2,3 @@ head\n two\n-three\n+THREE\n four\n";

#[test]
fn a_patch_applies_where_it_says_or_at_the_only_other_place() {
    let patch = one(SIMPLE);
    assert_eq!(patch.path.to_string(), "workspace/x.txt");
    assert_eq!(patch.apply("one\ntwo\nthree\nfour\nfive\n").unwrap(), "one\ntwo\nTHREE\nfour\nfive\n");
    assert_eq!(patch.apply("0\n1\none\ntwo\nthree\nfour\n").unwrap(), "0\n1\none\ntwo\nTHREE\nfour\n");
    let twice = "0\n0\n0\ntwo\nthree\nfour\ntwo\nthree\nfour\n";
    assert_eq!(patch.apply(twice), Err(PatchProblem::DoesNotApply { hunk: 1 }));
    assert!(patch.apply("one\ntwo\nother\nfour\n").is_err());
    assert!(patch.apply("").is_err());
}

#[test]
fn files_are_created_and_ends_without_newline_are_kept() {
    let new =
        one("--- /dev/null\n+++ b/deep/new\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n");
    assert!(new.creates);
    assert_eq!(new.apply("").unwrap(), "one\ntwo");
    let end = one("--- x\n+++ x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n");
    assert_eq!(end.apply("a").unwrap(), "b\n");
    assert!(end.apply("a\n").is_err());
    let crlf = one("--- x\n+++ x\n@@ -1 +1 @@\n-a\r\n+b\r\n");
    assert_eq!(crlf.apply("a\r\n").unwrap(), "b\r\n");
    assert!(crlf.apply("a\n").is_err());
}

#[test]
fn later_hunks_follow_where_earlier_ones_drifted() {
    let patch = one("--- x\n+++ x\n@@ -1 +1 @@\n-a\n+A\n@@ -3,0 +4,1 @@\n+new\n");
    assert_eq!(patch.apply("0\n0\na\nb\nc\nd\n").unwrap(), "0\n0\nA\nb\nc\nnew\nd\n");
}

#[test]
fn what_is_no_patch_says_where() {
    for (text, wanted) in [
        ("", "changes nothing"),
        ("hello\n", "changes nothing"),
        ("--- x\n", "line 1 of the patch must be a `+++ ` line"),
        ("@@ -1 +1 @@\n", "before this one"),
        ("--- x\n+++ x\n@@ -1 +x @@\n", "line 3"),
        ("--- x\n+++ x\n@@ -1,99999999999999999999999 +1 @@\n", "line 3"),
        ("--- x\n+++ x\n@@ -1,2 +1,2 @@\n a\n", "line 3"),
        ("--- x\n+++ x\n@@ -1 +1 @@\n*a\n", "line 4"),
        ("--- x\n+++ y\n@@ -1 +1 @@\n-a\n+b\n", "rename"),
        ("--- x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "delete"),
        ("rename from x\n", "rename"),
        ("--- ../x\n+++ ../x\n@@ -1 +1 @@\n-a\n+b\n", "without .."),
        ("--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n", "relative"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n a\n", "changes nothing"),
        ("--- /dev/null\n+++ x\n@@ -1 +1 @@\n-a\n+b\n", "only adds"),
    ] {
        let problem = Patch::parse(text).unwrap_err().to_string();
        assert!(problem.contains(wanted), "{text:?}: {problem}");
    }
    let twice = format!("{SIMPLE}{SIMPLE}");
    assert_eq!(Patch::parse(&twice), Err(PatchProblem::Twice));
    let hunks = format!("--- x\n+++ x\n{}", "@@ -1 +1 @@\n-a\n+b\n".repeat(PATCH_HUNKS_MAX + 1));
    assert_eq!(Patch::parse(&hunks), Err(PatchProblem::TooMany));
}

/// A text and another made from it by changing some lines, as a patch of one hunk for each change.
fn edits() -> impl Strategy<Value = (Vec<String>, Vec<(usize, String)>)> {
    let lines = prop::collection::vec("[ab]{0,2}", 1..12);
    lines.prop_flat_map(|lines| {
        let count = lines.len();
        let edits = prop::collection::btree_map(0..count, "[cd]{1,3}", 1..4);
        (Just(lines), edits.prop_map(|edits| edits.into_iter().collect()))
    })
}

proptest! {
    #[test]
    fn applying_and_taking_back_gives_what_was_there((lines, edits) in edits()) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut patch = "--- a/x\n+++ b/x\n".to_owned();
        let mut wanted = lines.clone();
        for (at, new) in &edits {
            patch.push_str(&format!("@@ -{} +{} @@\n-{}\n+{new}\n", at + 1, at + 1, lines[*at]));
            wanted[*at] = new.clone();
        }
        let patch = one(&patch);
        let wanted: String = wanted.iter().map(|line| format!("{line}\n")).collect();
        let applied = patch.apply(&text).unwrap();
        prop_assert_eq!(&applied, &wanted);
        prop_assert_eq!(patch.inverted().apply(&applied).unwrap(), text);
    }

    #[test]
    fn whatever_comes_is_read_or_refused_and_never_escapes(text in "[-+@ ,0-9a/.x\n\\\\]{0,200}", file in "[ax\n]{0,40}") {
        crate::files::fuzz::patch(text.as_bytes(), file.as_bytes());
    }
}
