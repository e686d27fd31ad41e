//! The source tree as the checks see it.

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
    text(path)
        .parse()
        .unwrap_or_else(|error| panic!("{path} is no TOML: {error}"))
}

/// Every file of ours, named from the root, in order.
pub(crate) fn files() -> Vec<String> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let names = found
        .iter()
        .map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let top = folder == root();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if top && NOT_SOURCE.iter().any(|other| entry.file_name() == *other) {
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
    members
        .iter()
        .map(|member| member.as_str().unwrap().to_owned())
        .collect()
}

/// The root package and the member crates: name for messages, Cargo.toml, lib.rs.
pub(crate) fn packages() -> Vec<(String, String, String)> {
    let own = (
        "the root package".to_owned(),
        "Cargo.toml".to_owned(),
        "runtime/lib.rs".to_owned(),
    );
    let member = |name: String| {
        (
            name.clone(),
            format!("{name}/Cargo.toml"),
            format!("{name}/src/lib.rs"),
        )
    };
    std::iter::once(own)
        .chain(members().into_iter().map(member))
        .collect()
}

/// Fails with all findings at once, so that one run shows everything that is to be done.
#[track_caller]
pub(crate) fn none(findings: &[String], what_to_do: &str) {
    assert!(findings.is_empty(), "{what_to_do}\n  {}\n", findings.join("\n  "));
}
