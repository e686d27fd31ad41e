//! Lines: how many the product has, which is a figure to watch and not a limit, and what those of its log have.

use std::collections::BTreeMap;

use crate::tree::{files_ending, is_suite, is_test_file, members, none, text, without_tests};

#[test]
#[expect(clippy::print_stdout, reason = "the figure is for whoever runs the test")]
fn lines_without_tests_are_counted() {
    let mut crates: BTreeMap<String, usize> = members().into_iter().map(|name| (name, 0)).collect();
    crates.insert("runtime".to_owned(), 0);
    let mut suites = 0;
    for file in files_ending(".rs") {
        let (source, folder) = (text(&file), file.split('/').next().unwrap_or_default());
        if is_suite(&file) && crates.contains_key(folder) {
            suites += source.lines().count();
        } else if !is_test_file(&file) {
            *crates.entry(folder.to_owned()).or_default() += without_tests(&source).len();
        }
    }
    for (name, lines) in &crates {
        println!("{lines:>8} {name}");
        assert!(*lines > 0, "{name} has no lines: is its folder still named so?");
    }
    println!("{:>8} in sum", crates.values().sum::<usize>());
    println!("{suites:>8} in suites for tests (testing, conformance), not counted");
}

/// The arguments of the `tracing` calls in a source file.
fn logged(source: &str) -> Vec<&str> {
    let levels = ["error", "warn", "info", "debug", "trace"];
    let calls = source.split("tracing::").skip(1).filter_map(|call| call.split_once("!("));
    let arguments = calls.filter(|(name, _)| levels.contains(name)).map(|(_, rest)| {
        let mut depth = 1;
        let end = rest.find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    });
    arguments.collect()
}

#[test]
fn no_log_line_has_debug_text() {
    let is_debug = |call: &&str| call.contains(" ?") || call.starts_with('?') || call.contains(":?}");
    let mut found = Vec::new();
    for file in files_ending(".rs").into_iter().filter(|file| !is_test_file(file)) {
        let source = text(&file);
        found.extend(logged(&source).into_iter().filter(is_debug).map(|call| format!("{file}: {call}")));
    }
    none(&found, "Log a field by its display (`%`), a number or `as_str()`; `Some(Failures)` is for nobody:");
}
