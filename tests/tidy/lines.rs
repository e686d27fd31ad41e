//! How large the product is: a figure to watch, not a limit.

use std::collections::BTreeMap;

use crate::tree::{files_ending, members, text};

const TESTS_BEGIN: &str = "#[cfg(test)]\nmod tests {";

fn shipped(file: &str) -> bool {
    let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
    let others = ["tests", "benches", "examples"];
    !name.ends_with("tests.rs") && !folders.split('/').any(|folder| others.contains(&folder))
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure is for whoever runs the test")]
fn lines_without_tests_are_counted() {
    let mut crates: BTreeMap<String, usize> = members().into_iter().map(|name| (name, 0)).collect();
    crates.insert("runtime".to_owned(), 0);
    for file in files_ending(".rs").into_iter().filter(|file| shipped(file)) {
        let source = text(&file);
        let code = source.split(TESTS_BEGIN).next().unwrap_or_default();
        let folder = file.split('/').next().unwrap_or_default().to_owned();
        *crates.entry(folder).or_default() += code.lines().count();
    }
    for (name, lines) in &crates {
        println!("{lines:>8} {name}");
        assert!(*lines > 0, "{name} has no lines: is its folder still named so?");
    }
    println!("{:>8} in sum", crates.values().sum::<usize>());
}
