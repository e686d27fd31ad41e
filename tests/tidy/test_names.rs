//! Names of tests: a sentence short enough to be read in a list.

use crate::tree::{files_ending, none, text};

const LENGTH_MAX: usize = 60;

/// The names of the tests in a source file with their lines: functions under `#[test]`, and the tests of runners of our own, whose
/// names stand first in a pair, or under `name:`.
pub(crate) fn tests(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (index, line) in source.lines().enumerate() {
        let start = line.trim_start();
        is_test |= start.starts_with("#[test]") || start.starts_with("#[tokio::test");
        let function = start
            .split_once("fn ")
            .filter(|(before, _)| ["", "async ", "pub ", "pub(crate) "].contains(before));
        if let Some((_, rest)) = function.filter(|_| std::mem::take(&mut is_test)) {
            found.push((index + 1, rest.split(['(', '<']).next().unwrap_or_default()));
        }
        let literal = start.trim_start_matches('(').trim_start_matches("name: ").strip_prefix('"');
        let literal =
            literal.and_then(|rest| rest.split_once('"')).filter(|(_, after)| after.starts_with(','));
        found.extend(literal.filter(|(name, _)| is_sentence(name)).map(|(name, _)| (index + 1, name)));
    }
    found
}

/// Four words or more joined by underscores.
fn is_sentence(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    text.bytes().all(word) && text.split('_').filter(|word| !word.is_empty()).count() > 3
}

#[test]
fn names_of_tests_can_be_read_at_a_glance() {
    let mut findings = Vec::new();
    for file in files_ending(".rs") {
        let source = text(&file);
        let long = tests(&source).into_iter().filter(|(_, name)| name.len() > LENGTH_MAX);
        findings
            .extend(long.map(|(line, name)| format!("{file}:{line}: {name} ({} characters)", name.len())));
    }
    none(&findings, "Say the promise of these tests in at most 60 characters; details belong into the test:");
}

#[test]
fn names_of_tests_are_found_in_every_form() {
    let source = "    #[test]\n    #[ignore]\n    fn one_plain() {}\n#[tokio::test(flavor = \"multi_thread\")]\nasync fn two() {}\n\
        fn no_test_at_all() {}\nTESTS = &[\n    (\"three_is_a_pair\", three),\n    (\n        \"four_is_below_it\",\n        four)];\n\
        Promise {\n    name: \"five_has_a_field\",\n}\nlet code = [\"policy_denied\", x];\n";
    let names: Vec<_> = tests(source).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["one_plain", "two", "three_is_a_pair", "four_is_below_it", "five_has_a_field"]);
}
