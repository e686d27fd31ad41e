//! How large the product is: a figure to watch, not a limit.

use std::collections::BTreeMap;

use crate::tree::{files_ending, is_suite, is_test_file, members, text, without_tests};

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
