//! A program that embeds effectd with its own tool: `examples/tools`, as its page describes it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::*;

/// The example, which `cargo test --workspace` builds beside the tests.
fn example() -> PathBuf {
    let program = PathBuf::from(program()).with_file_name("examples").join("tools");
    let changed = |path: &Path| std::fs::metadata(path).and_then(|stat| stat.modified());
    let sources = ["main.rs", "sort_lines.rs"].map(|name| root().join("examples/tools").join(name));
    let newest = sources.iter().map(|source| changed(source).unwrap()).max();
    let is_new = changed(&program).is_ok_and(|built| Some(built) >= newest);
    assert!(
        is_new,
        "run `cargo build --workspace --example tools`: {} is not there or old",
        program.display()
    );
    program
}

/// The lines of the page's one block, for a shell.
fn page() -> String {
    let page = std::fs::read_to_string(root().join("examples/tools/README.md")).unwrap();
    let (_, block) = page.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

fn shell(place: &Place, script: &str) -> (i32, String, String) {
    // The page's `$E` is split at spaces, and the path of the checkout may have some.
    let program = place.path("tools");
    if !program.exists() {
        std::os::unix::fs::symlink(example(), &program).unwrap();
    }
    let ran = Command::new("sh")
        .args(["-euc", script])
        .current_dir(place.path(""))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("E", program)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap_or(-1), text(ran.stdout), text(ran.stderr))
}

#[test]
fn an_embedded_tool_is_gated_confined_and_undone_like_others() {
    let place = Place::new();
    let (code, _, told) = shell(&place, &page());
    assert_eq!(code, 0, "{told}");
    let fruit = || std::fs::read_to_string(place.note("fruit.txt")).unwrap();
    assert_eq!(fruit(), "apple\npear\n");
    let (_, receipts, _) = shell(&place, "$E receipts list -o jsonl");
    let receipt: serde_json::Value = serde_json::from_str(receipts.lines().next().unwrap()).unwrap();
    assert_eq!(receipt["tool_id"], "text.sort_lines");
    assert_eq!(receipt["status"], "ok");
    let id = receipt["receipt_id"].as_str().unwrap();
    let (code, _, told) = shell(&place, &format!("$E undo {id}"));
    assert_eq!((code, fruit().as_str()), (0, "pear\napple\npear\n"), "{told}");
}

#[test]
fn an_embedded_tool_needs_consent_and_cannot_take_a_name() {
    let place = Place::new();
    let script: Vec<String> = page().lines().map(str::to_owned).collect();
    let without: Vec<&str> =
        script.iter().map(String::as_str).filter(|line| !line.contains("grant-consent")).collect();
    assert_eq!(without.len() + 1, script.len());
    let (code, _, told) = shell(&place, &without.join("\n"));
    assert_eq!(code, 3, "{told}");
    let fruit = std::fs::read_to_string(place.note("fruit.txt")).unwrap();
    assert_eq!(fruit, "pear\napple\npear\n");
    let (_, listed, _) = shell(&place, "$E tools list -o jsonl");
    let own = listed.lines().filter(|line| line.contains("text.sort_lines"));
    assert_eq!((own.count(), listed.contains("files.write_text")), (1, true));
}
