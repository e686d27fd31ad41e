//! Rules about documents, and about words that no project file may contain.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use effectd::Exit;
use effectd::contracts::{ActionRequest, Code, Outcome};

use crate::test_names::tests;
use crate::tree::{files, files_ending, none, root, text, toml};

/// The two commands that do everything on a fresh machine.
const QUICKSTART: &str = "cargo run --release -- run examples/write_note.json";
const TEST: &str = "cargo test --workspace";

/// Places of one machine, and hosts that packages come from; neither means anything to a reader.
const FOREIGN: [&str; 9] = [
    "/work/",
    "/root/",
    "/home/",
    "index.crates.io",
    "static.crates.io",
    "artifactory",
    "registry.npmjs.org",
    "pypi.org",
    "ghcr.io",
];

/// Files that are made by tools, or that name what is forbidden in order to look for it.
fn is_exempt(file: &str) -> bool {
    file == "Cargo.lock" || file.starts_with("tests/tidy/")
}

#[test]
fn the_readme_has_the_two_commands_and_ci_runs_them() {
    let (readme, ci) = (text("README.md"), text(".ci/run"));
    for command in [QUICKSTART, TEST] {
        assert!(
            readme.lines().any(|line| line.trim() == command),
            "README.md must hold `{command}` on a line of its own"
        );
        assert!(
            ci.contains(command),
            "put `{command}`, letter for letter, into .ci/run: what the README says is what is checked"
        );
    }
    let clients = ["clients/run", "clients/python", "clients/agents"];
    let all = ["run", "long", "outside", "mcp/run", "mcp/session", "services/run", "web/run", "all-ran"];
    for script in all.into_iter().chain(clients) {
        let script = format!(".ci/{script}");
        let mode = fs::metadata(root().join(&script)).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "run `chmod +x {script}`");
    }
}

#[test]
fn the_readme_tells_every_exit_code() {
    let codes = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Denied,
        Exit::Held,
        Exit::Quarantined,
        Exit::Unknown,
        Exit::Unavailable,
        Exit::Broken,
        Exit::Output,
        Exit::TryAgain,
    ];
    let expected: BTreeSet<u8> = codes.into_iter().map(Exit::code).collect();
    let cells = text("README.md");
    let told: BTreeSet<u8> =
        cells.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()?.parse().ok()).collect();
    assert_eq!(told, expected, "the table of exit codes in README.md and runtime/exit.rs must agree");
}

/// Outcomes that nothing ends in: they are words of invocations.
const LATER: [Outcome; 2] = [Outcome::Approved, Outcome::Executing];

#[test]
fn the_page_of_receipts_tells_every_outcome_and_code() {
    let page = text("docs/receipts.md");
    let section = page.split("\n## ").find(|section| section.starts_with("How an action ends")).unwrap();
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let told = section.lines().filter(|line| line.starts_with("| `")).skip(1).map(cells);
    let told: Vec<_> = told.map(|row| [row[1].clone(), row[2].clone(), row[4].clone()]).collect();
    let outcomes = Outcome::ALL.into_iter().filter(|outcome| !LATER.contains(outcome));
    let expected = outcomes.map(|outcome| {
        let status = outcome.project().receipt.map(|status| format!("`{}`", status.as_str()));
        let status = status.unwrap_or_else(|| "no receipt".to_owned());
        let codes = Code::ALL.iter().filter(|code| code.outcome() == outcome);
        let codes: Vec<_> = codes.map(|code| format!("`{code}`")).collect();
        [format!("`{}`", outcome.as_str()), status, codes.join(", ")]
    });
    assert_eq!(told, expected.collect::<Vec<_>>(), "docs/receipts.md, \"How an action ends\"");
}

#[test]
fn examples_are_requests_that_can_be_read() {
    let examples: Vec<_> = files_ending(".json")
        .into_iter()
        .filter(|file| file.starts_with("examples/") && file.matches("/").count() == 1)
        .collect();
    assert!(
        examples.contains(&"examples/write_note.json".to_owned()),
        "the quickstart needs examples/write_note.json"
    );
    for example in examples {
        if let Err(failure) = ActionRequest::parse(text(&example).as_bytes()) {
            panic!("{example}: {failure}; correct the example");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    for file in files_ending(".md") {
        let folder = Path::new(&file).parent().unwrap().to_owned();
        for target in links(&text(&file)) {
            let path = target.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || path.is_empty();
            if !outside && !root().join(&folder).join(path).exists() {
                findings.push(format!("{file}: {target}"));
            }
        }
    }
    none(&findings, "These links lead nowhere; correct them or write the page:");
}

/// The targets of `[text](target)`.
fn links(markdown: &str) -> Vec<String> {
    let after = markdown.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn commands_on_pages_select_tests_that_exist() {
    let mut findings = Vec::new();
    for program in ["crash", "pressure"] {
        let (folder, command) = (format!("tests/{program}/"), format!("--test {program} -- "));
        let mut names = Vec::new();
        for file in files_ending(".rs").iter().filter(|file| file.starts_with(&folder)) {
            names.extend(tests(&text(file)).into_iter().map(|(_, name)| name.to_owned()));
        }
        for file in files_ending(".md") {
            for (index, line) in text(&file).lines().enumerate() {
                let filters = line.split(&command).skip(1).filter_map(|rest| rest.split([' ', '`']).next());
                // `soak` is a command, not a filter.
                let filters = filters.filter(|filter| (program, *filter) != ("crash", "soak"));
                let unmatched = filters.filter(|filter| !names.iter().any(|name| name.contains(*filter)));
                findings.extend(unmatched.map(|filter| format!("{file}:{}: {filter}", index + 1)));
            }
        }
    }
    none(&findings, "These filters select no test; write a part of the name of one that exists:");
}

#[test]
fn the_tests_that_hold_the_invariants_exist() {
    let architecture = text("ARCHITECTURE.md");
    let section = architecture.split("\n## ").find(|section| section.starts_with("Invariants"));
    let section = section.expect("ARCHITECTURE.md needs a section `## Invariants`");
    let sources: Vec<_> = files_ending(".rs").iter().map(|file| text(file)).collect();
    let mut findings = Vec::new();
    let mut named = 0;
    for line in section.lines().filter(|line| line.trim_start().starts_with("- Held by")) {
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_test_name(name)) {
            named += 1;
            let (function, promise) = (format!("fn {name}("), format!("\"{name}\""));
            if !sources.iter().any(|source| source.contains(&function) || source.contains(&promise)) {
                findings.push(name.to_owned());
            }
        }
    }
    none(&findings, "ARCHITECTURE.md names tests that do not exist; name those that hold the invariant now:");
    assert!(named >= 7, "name the tests that hold the invariants, in lines that begin with `- Held by`");
}

/// Words joined by underscores, as tests are named; not a path, a flag or a type.
fn is_test_name(text: &str) -> bool {
    text.contains('_')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[test]
fn product_files_speak_of_the_product_only() {
    let mut findings = Vec::new();
    for file in files().into_iter().filter(|file| !is_exempt(file)) {
        let bytes = fs::read(root().join(&file)).unwrap();
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            // The principals of the preset's organisation are no folders.
            let line = &line.replace("account://home/", "account:").replace("session://home/", "session:");
            let place =
                FOREIGN.iter().find(|foreign| line.contains(**foreign)).map(|foreign| (*foreign).to_owned());
            if let Some(found) = place.or_else(|| row_id(line)) {
                findings.push(format!("{file}:{}: {found}", number + 1));
            }
        }
    }
    none(
        &findings,
        "Say it without a machine's own paths, package hosts and numbers of lists that no reader has:",
    );
}

/// A letter, a dash and a number on its own, such as lists of requirements use.
fn row_id(line: &str) -> Option<String> {
    let word = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
    line.split(|character: char| !word(character))
        .find(|found| {
            let bytes = found.as_bytes();
            (3..=5).contains(&bytes.len())
                && bytes[0].is_ascii_uppercase()
                && bytes[1] == b'-'
                && bytes[2..].iter().all(u8::is_ascii_digit)
        })
        .map(str::to_owned)
}

#[test]
fn every_source_file_begins_with_what_it_is() {
    let findings: Vec<_> =
        files_ending(".rs").into_iter().filter(|file| !text(file).starts_with("//!")).collect();
    none(&findings, "Say in the first line of these files what they are, after `//!`:");
}

#[test]
fn every_ignored_advisory_has_a_reason_and_a_crate() {
    let deny = toml("deny.toml");
    let ignored = deny["advisories"]["ignore"].as_array().expect("[advisories] ignore is a list");
    let lock = text("Cargo.lock");
    let mut findings = Vec::new();
    for entry in ignored {
        let field = |name| entry.get(name).and_then(toml::Value::as_str).unwrap_or_default();
        let (id, reason) = (field("id"), field("reason"));
        if id.is_empty() || reason.len() < 40 {
            findings.push(format!(
                "{entry}: write {{ id = \"…\", reason = \"<crate> is …, and why we can live with it\" }}"
            ));
            continue;
        }
        let krate = reason.split_whitespace().next().unwrap_or_default();
        if !lock.contains(&format!("name = \"{krate}\"\n")) {
            findings.push(format!("{id}: {krate} is not in Cargo.lock; take the exception out"));
        }
    }
    none(&findings, "Exceptions in deny.toml:");
}

#[test]
fn every_banned_method_has_a_reason() {
    let clippy = toml("clippy.toml");
    let lists = ["disallowed-methods", "disallowed-types", "disallowed-macros"];
    let entries = lists.iter().filter_map(|list| clippy.get(*list)?.as_array()).flatten();
    let bare = entries
        .filter(|entry| entry.get("reason").and_then(toml::Value::as_str).unwrap_or_default().len() < 20);
    let findings: Vec<_> = bare.map(ToString::to_string).collect();
    none(&findings, "Say in clippy.toml why it is banned and what to use instead:");
}

/// Clippy reads the nearest file alone, so that one has to repeat what holds for the whole tree.
#[test]
fn crates_that_write_no_files_ban_it_and_what_all_ban() {
    let common = toml("clippy.toml");
    let mut findings = Vec::new();
    for member in ["contracts", "policy", "actors", "gateway"] {
        let own = toml(&format!("{member}/clippy.toml"));
        for (list, entries) in &common {
            let here = own.get(list).and_then(toml::Value::as_array).cloned().unwrap_or_default();
            let missing = entries.as_array().unwrap().iter().filter(|entry| !here.contains(entry));
            findings.extend(missing.map(|entry| format!("{member}: {list} lacks {entry}")));
        }
        let banned = own["disallowed-methods"].to_string();
        for call in ["std::fs::write", "std::time::Instant::now", "tokio::time::Instant::now"] {
            if !banned.contains(&format!("\"{call}\"")) {
                findings.push(format!("{member}: {call} is not banned"));
            }
        }
    }
    none(&findings, "Add these to the crate's clippy.toml:");
}

#[test]
fn row_ids_are_found_and_ordinary_words_are_not() {
    // Put together here, so that the check above needs no exception for its own examples.
    let id = format!("{}-{}", 'C', 40);
    assert_eq!(row_id(&format!("as {id} says")), Some(id.clone()));
    assert_eq!(row_id(&format!("({id})")), Some(id));
    for harmless in ["SHA-256 and UTF-8", "X-Api-Key", "a-1", "RUSTSEC-2024-0384", "2026-01-07"] {
        assert_eq!(row_id(harmless), None, "{harmless}");
    }
}

#[test]
fn the_plots_are_drawn_from_the_lines_beside_them() {
    let checked = Command::new("python3")
        .arg(root().join("benches/figures/plot.py"))
        .arg("--check")
        .output()
        .expect("python3 draws the plots");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
