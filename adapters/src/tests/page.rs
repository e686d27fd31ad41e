//! `docs/adding-a-tool.md` agrees with the code and lists every tool.

use std::path::Path;

use crate::all;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The lines of a text without indentation and blank lines.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_snippet_on_the_page_is_in_the_tool() {
    let (page, tool) = (read("docs/adding-a-tool.md"), read("adapters/src/files/make_dir.rs"));
    let tool = lines(&tool);
    let mut pieces = 0;
    for piece in page.split("```rust\n").skip(1) {
        let piece = lines(piece.split("```").next().unwrap());
        assert!(
            tool.windows(piece.len()).any(|window| window == piece),
            "not in make_dir.rs any more: {piece:#?}"
        );
        pieces += 1;
    }
    assert!(pieces >= 5, "the page shows only {pieces} pieces");
}

#[test]
fn the_page_names_every_part_of_a_tool_and_every_tool() {
    let page = read("docs/adding-a-tool.md");
    for line in read("adapters/src/tool.rs").lines() {
        if let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split('(').next().unwrap();
            assert!(page.contains(&format!("`{name}`")), "the page says nothing about {name}");
        }
    }
    let (_, list) = page.split_once("## Built-in tools").unwrap();
    for tool in all() {
        let row = format!("| `{}` | {} |", tool.id(), tool.spec().description);
        assert!(list.contains(&row), "write into the page: {row}");
    }
    let rows = list.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, all().len(), "the page lists tools that there are not");
}
