//! `files.search`: finds files by name, and lines by text.

use super::glob;
use crate::limits::{PATTERN_BYTES_MAX, SEARCH_FILE_BYTES_MAX, SEARCH_HITS_MAX, SEARCH_LINE_BYTES_MAX};
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct Search;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{ "required": ["glob"] }, { "required": ["text"] }]))]
pub struct Params {
    path: FolderPath,
    /// A pattern of paths, such as **/*.rs. Leave it out to search all files.
    #[schemars(length(min = 1, max = PATTERN_BYTES_MAX), extend("x-public" = true, "x-resource" = true))]
    glob: Option<String>,
    /// A text to find within one line; no regular expression. Leave it out to find paths only.
    #[schemars(length(min = 1, max = PATTERN_BYTES_MAX), extend("x-resource" = true))]
    text: Option<String>,
    /// Take upper and lower case for the same. Default: false.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    ignore_case: bool,
    /// Hits to return at most. Default: the largest number.
    #[schemars(range(min = 1, max = SEARCH_HITS_MAX), extend("x-public" = true))]
    max_hits: Option<usize>,
}

impl TypedTool for Search {
    const ID: &'static str = "files.search";
    const DESCRIPTION: &'static str = "Finds files beneath a folder of the space by a path pattern (*, ?, **), by \
        text, or by both. Text is searched line by line. Use it to find where something is defined or used.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let line = json!({ "type": "integer", "minimum": 1 });
        let hit = params::object(&["path"], json!({ "path": text(), "line": line, "text": text() }));
        let result = json!({
            "hits": { "type": "array", "items": hit },
            "count": count(), "complete": flag(), "files_searched": count(), "files_skipped": count(),
        });
        params::reads::<Self>(&["hits", "count", "complete", "files_searched", "files_skipped"], result)
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace", "glob": "*.txt", "text": "hello" })
    }

    /// Files that are not text or too large are skipped and counted. Quality is the share of files that were searched,
    /// halved if there may be more hits.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let wanted = &call.params;
        let walk = workspace.walk(&wanted.path.0, true)?;
        let head = format!("{}/", wanted.path.0);
        let text = wanted.text.as_ref().map(|text| folded(text, wanted.ignore_case));
        let mut found = Found::default();
        for entry in walk.entries {
            let name = entry.path.to_string();
            let below = name.strip_prefix(&head).unwrap_or(&name);
            let fits = wanted.glob.as_ref().is_none_or(|glob| glob::matches(glob, below));
            if entry.stat.kind != FileKind::File || !fits {
                continue;
            }
            let Some(text) = &text else {
                found.searched += 1;
                found.add(wanted, json!({ "path": name }));
                continue;
            };
            let content = workspace.read(&entry.path, SEARCH_FILE_BYTES_MAX);
            match content.as_ref().map(|content| content.text()) {
                Ok(Ok(content)) => {
                    found.searched += 1;
                    found.lines(wanted, &name, content, text);
                }
                Ok(Err(_)) | Err(_) => found.skipped += 1,
            }
            if found.full {
                break;
            }
        }
        let complete = !found.full && !walk.partial;
        let looked = (found.searched + found.skipped).max(1) as f64;
        let share = if found.searched + found.skipped == 0 { 1.0 } else { found.searched as f64 / looked };
        let result = json!({
            "count": found.hits.len(), "hits": found.hits, "complete": complete,
            "files_searched": found.searched, "files_skipped": found.skipped,
        });
        Ok(ToolOutput::new(result, Some(if complete { share } else { share * 0.5 })))
    }
}

#[derive(Default)]
struct Found {
    hits: Vec<Value>,
    full: bool,
    searched: u64,
    skipped: u64,
}

impl Found {
    fn add(&mut self, wanted: &Params, hit: Value) {
        if self.hits.len() < wanted.max_hits.unwrap_or(usize::MAX).min(SEARCH_HITS_MAX) {
            self.hits.push(hit);
        } else {
            self.full = true;
        }
    }

    fn lines(&mut self, wanted: &Params, name: &str, content: &str, text: &str) {
        for (number, line) in content.lines().enumerate() {
            if self.full {
                return;
            }
            if folded(line, wanted.ignore_case).contains(text) {
                let text = &line[..line.floor_char_boundary(SEARCH_LINE_BYTES_MAX)];
                self.add(wanted, json!({ "path": name, "line": number + 1, "text": text }));
            }
        }
    }
}

fn folded(text: &str, ignore_case: bool) -> String {
    if ignore_case { text.to_lowercase() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn names_and_texts_are_found_with_their_lines() {
        let place = TestSpace::new();
        place.put("a.txt", "one\nZwei Häuser\nthree\n".as_bytes());
        place.put("deep/b.txt", b"zwei\n");
        place.put("deep/c.bin", b"zwei\0");
        let by_name = place.run(&Search, json!({ "path": "workspace", "glob": "**/*.txt" })).unwrap();
        assert_eq!(by_name.result["count"], 2);
        let params = json!({ "path": "workspace", "text": "ZWEI HÄU", "ignore_case": true });
        let by_text = place.run(&Search, params).unwrap().result;
        assert_eq!(by_text["hits"], json!([{ "path": "workspace/a.txt", "line": 2, "text": "Zwei Häuser" }]));
        assert_eq!((&by_text["files_searched"], &by_text["files_skipped"]), (&json!(2), &json!(1)));
        let beneath = place.run(&Search, json!({ "path": "workspace/deep", "text": "zwei" })).unwrap();
        assert_eq!(beneath.result["hits"][0]["path"], "workspace/deep/b.txt");
    }

    #[test]
    fn hits_are_bounded_and_it_says_so() {
        let place = TestSpace::new();
        place.put("x", "hit\n".repeat(SEARCH_HITS_MAX + 1).as_bytes());
        let output = place.run(&Search, json!({ "path": "workspace", "text": "hit" })).unwrap();
        assert_eq!(
            (&output.result["count"], &output.result["complete"]),
            (&json!(SEARCH_HITS_MAX), &json!(false))
        );
        assert_eq!(output.quality, Some(0.5));
    }
}
