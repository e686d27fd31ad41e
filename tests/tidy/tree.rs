//! The source tree as the checks see it: its files, its crates, and the code that is not for tests.

use std::fs;
use std::path::{Path, PathBuf};

/// What holds no source: what Cargo, git and effectd itself make. (In a second work tree, git's is a file.)
const NOT_SOURCE: [&str; 5] = ["target", ".git", ".effectd", "workspace", "workspaces"];

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The text of one file, named from the root.
pub(crate) fn text(path: &str) -> String {
    let full = root().join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

/// A Cargo.toml or another TOML file, named from the root.
pub(crate) fn toml(path: &str) -> toml::Table {
    text(path).parse().unwrap_or_else(|error| panic!("{path} is no TOML: {error}"))
}

/// Every file of ours, named from the root, in order.
pub(crate) fn files() -> Vec<String> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let names = found.iter().map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let top = folder == root();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        // npm makes it beside a package.json.
        let is_other = top && NOT_SOURCE.iter().any(|other| entry.file_name() == *other);
        if is_other || entry.file_name() == "node_modules" {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

pub(crate) fn files_ending(end: &str) -> Vec<String> {
    files().into_iter().filter(|name| name.ends_with(end)).collect()
}

pub(crate) fn members() -> Vec<String> {
    let manifest = toml("Cargo.toml");
    let members = manifest["workspace"]["members"].as_array().unwrap();
    members.iter().map(|member| member.as_str().unwrap().to_owned()).collect()
}

/// The root package and the member crates: name for messages, Cargo.toml, lib.rs.
pub(crate) fn packages() -> Vec<(String, String, String)> {
    let own = ("the root package".to_owned(), "Cargo.toml".to_owned(), "runtime/lib.rs".to_owned());
    let member = |name: String| (name.clone(), format!("{name}/Cargo.toml"), format!("{name}/src/lib.rs"));
    std::iter::once(own).chain(members().into_iter().map(member)).collect()
}

/// Fails with all findings at once, so that one run shows everything that is to be done.
#[track_caller]
pub(crate) fn none(findings: &[String], what_to_do: &str) {
    assert!(findings.is_empty(), "{what_to_do}\n  {}\n", findings.join("\n  "));
}

/// Folders of suites that a crate offers to others, behind a cargo feature for tests.
const SUITES: [&str; 2] = ["testing", "conformance"];

/// Whether a source file holds tests, or what they need, and nothing that is shipped.
pub(crate) fn is_test_file(file: &str) -> bool {
    let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
    let others = ["tests", "benches", "examples"];
    name.ends_with("tests.rs") || folders.split('/').any(|folder| others.contains(&folder)) || is_suite(file)
}

/// Whether a source file belongs to a suite that a crate offers to others: `testing.rs` or a file of `testing/`.
pub(crate) fn is_suite(file: &str) -> bool {
    let parts: Vec<_> = file.split('/').skip(1).collect();
    parts.iter().any(|part| SUITES.contains(&part.trim_end_matches(".rs")))
}

/// The lines of a source file without the items under `#[cfg(test)]`, with their numbers.
pub(crate) fn without_tests(source: &str) -> Vec<(usize, &str)> {
    let mut kept = Vec::new();
    let mut lines = source.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push((number, line));
            continue;
        }
        // The item ends with its first line, or with a brace below the attribute.
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = [format!("{indent}}}"), format!("{indent}}};")];
        let attribute = |line: &str| line.trim_start().starts_with("#[");
        let mut item = lines.by_ref().skip_while(|(_, line)| attribute(line));
        if item.next().is_some_and(|(_, first)| !first.ends_with([';', ',']) && !first.ends_with('}')) {
            lines.find(|(_, line)| end.iter().any(|end| line == end));
        }
    }
    kept
}

/// Compares a page with what it should be; with `EFFECTD_BLESS=1`, writes it.
#[track_caller]
pub(crate) fn agree(page: &str, wanted: &str) {
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        fs::write(root().join(page), wanted).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(root().join(page)).is_ok_and(|text| text == wanted),
        "{page} is behind the code; `EFFECTD_BLESS=1 cargo test --test tidy` writes it, then read what changed"
    );
}
