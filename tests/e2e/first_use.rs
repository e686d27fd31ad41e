//! The README's commands, on a fresh machine.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Place, as_root_and_as_ordinary_user, example, program, root};

#[test]
fn the_example_is_done_once_and_remembered() {
    for journal in ["files", "sled"] {
        done_once(journal);
    }
}

fn done_once(journal: &str) {
    as_root_and_as_ordinary_user("the_example_is_done_once_and_remembered", |who| {
        let place = Place::of(who);
        let request = std::fs::read_to_string(example()).unwrap();
        let run = |request| {
            let choose = |command: &mut Command| {
                command.env("EFFECTD_STORE_JOURNAL", journal);
            };
            place.effectd_on(&["run", "-"], Some(request), choose)
        };
        let first = run(&request);
        assert_eq!(first.code(), 0, "{}", first.stderr());
        assert!(
            first.stdout().starts_with("done: files.write_text in shared:household"),
            "{}",
            first.stdout()
        );
        assert!(first.stderr().contains("first use: wrote the policy `household` to"), "{}", first.stderr());
        let text =
            serde_json::from_str::<Value>(&request).unwrap()["params"]["text"].as_str().unwrap().to_owned();
        let note = place.path("workspace/notes/w36.txt");
        assert_eq!(std::fs::read_to_string(&note).unwrap(), text);

        std::fs::remove_file(&note).unwrap();
        let second = run(&request);
        assert_eq!(second.code(), 0, "{}", second.stderr());
        assert!(second.stdout().starts_with("already done: files.write_text"), "{}", second.stdout());
        assert!(!second.stderr().contains("first use"), "{}", second.stderr());
        let same = |line: &str| line.starts_with("  receipt");
        let receipts =
            [first.stdout(), second.stdout()].map(|out| out.lines().find(|l| same(l)).unwrap().to_owned());
        assert_eq!(receipts[0], receipts[1], "the second run shows the first one's receipt");
        assert!(!note.exists(), "the second run did it again");
        let format = std::fs::read_to_string(place.state().join("journal/format")).unwrap();
        assert_eq!(format, format!("3 {journal}\n"));
    });
}

#[test]
fn the_file_belongs_to_the_owner_of_the_workspace() {
    use std::os::unix::fs::MetadataExt;
    as_root_and_as_ordinary_user("the_file_belongs_to_the_owner_of_the_workspace", |who| {
        let place = Place::of(who);
        // The checkout may lie in a folder that is closed to other users.
        let request = std::fs::read_to_string(example()).unwrap();
        assert_eq!(place.effectd(&["run", "-"], Some(&request)).code(), 0);
        let owner = |path: &str| std::fs::metadata(place.path(path)).unwrap().uid();
        assert_eq!(owner("workspace/notes/w36.txt"), owner("workspace"));
    });
}

#[test]
fn state_and_keys_are_private() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    place.effectd(&["run", example().to_str().unwrap()], None);
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(place.state()), 0o700);
    for key in std::fs::read_dir(place.state().join("keys")).unwrap() {
        let path = key.unwrap().path();
        if path.is_file() {
            assert_eq!(mode(path.clone()), 0o600, "{}", path.display());
        }
    }
}

#[test]
fn every_command_of_the_readme_works() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let place = Place::new();
    std::fs::create_dir_all(place.path("target/release")).unwrap();
    std::os::unix::fs::symlink(program(), place.path("target/release/effectd")).unwrap();
    let request = std::fs::read_to_string(example()).unwrap();
    assert_eq!(place.effectd(&["run", "-"], Some(&request)).code(), 0);
    // What cargo builds and tests is run by .ci/run.
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let script: String =
        blocks.map(|(block, _)| block).filter(|block| !block.starts_with("cargo ")).collect();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]).current_dir(place.path("")).env_clear().env("PATH", "/usr/bin:/bin");
    let ran = shell.output().unwrap();
    let table = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && table.contains("files.write_text"), "{ran:?}");

    let table = readme.split("## What it does").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let named: Vec<_> = rows.filter_map(|row| row.split(" | ").nth(1)).collect();
    let named: Vec<_> = named.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 25, "{named:?}");
    for command in named {
        let arguments: Vec<_> = command.split(' ').collect();
        let words: Vec<_> = arguments.iter().copied().filter(|word| !word.starts_with("--")).collect();
        let help = place.effectd(&[&words[..], &["--help"]].concat(), None);
        assert_eq!(help.code(), 0, "effectd {command}: {}", help.stderr());
        for flag in arguments.iter().filter(|word| word.starts_with("--")) {
            assert!(help.stdout().contains(*flag), "effectd {command}");
        }
    }
}

#[test]
fn help_comes_with_examples_and_exit_codes() {
    let place = Place::new();
    for arguments in [&["--help"][..], &["run", "--help"]] {
        let help = place.effectd(arguments, None);
        assert_eq!(help.code(), 0);
        assert!(help.stdout().contains("effectd run examples/write_note.json"), "{}", help.stdout());
    }
    let help = place.effectd(&["--help"], None).stdout();
    for group in ["Act", "Decide", "Look", "Operate", "Store", "Global options"] {
        assert_eq!(help.matches(&format!("\n{group}:\n")).count(), 1, "{group}: {help}");
    }
    assert_eq!(help.matches("--state <DIR>").count(), 1, "{help}");
    for arguments in [&["run", "--help"][..], &["dlq", "--help"], &["dlq", "list", "--help"]] {
        let help = place.effectd(arguments, None).stdout();
        assert!(!help.contains("--state <DIR>") && !help.contains("--color <"), "{help}");
        assert!(help.contains("see `effectd --help`"), "{help}");
    }
    assert_eq!(place.effectd(&["--version"], None).code(), 0);
    assert_eq!(place.effectd(&[], None).code(), 2);
    assert_eq!(place.effectd(&["fly"], None).code(), 2);
}
