//! `files.search`: finds files by their names and by text in them.

use effectd_contracts::{Failure, ToolCall, ToolOutput, ToolSpec};
use serde_json::{Map, Value, json};

use super::glob;
use crate::limits::{PATTERN_BYTES_MAX, SEARCH_FILE_BYTES_MAX, SEARCH_HITS_MAX, SEARCH_LINE_BYTES_MAX};
use crate::params;
use crate::tool::Tool;
use crate::workspace::{FileKind, Workspace};

/// Searches beneath a folder.
#[derive(Debug, Clone, Copy)]
pub struct Search;

impl Tool for Search {
    fn id(&self) -> &'static str {
        "files.search"
    }

    fn spec(&self) -> ToolSpec {
        params::reads(json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Finds files beneath a folder of the space by a pattern of their path (*, ?, **), by a text in them, or \
                both; a text is found line by line.",
            "params_schema": {
                "type": "object",
                "required": ["path", "space_id"],
                "properties": {
                    "path": params::path_schema(),
                    "glob": { "type": "string", "minLength": 1, "maxLength": PATTERN_BYTES_MAX.get(), "x-public": true, "x-resource": true },
                    "text": { "type": "string", "minLength": 1, "maxLength": PATTERN_BYTES_MAX.get() },
                    "ignore_case": { "type": "boolean", "x-public": true },
                    "max_hits": { "type": "integer", "minimum": 1, "maximum": SEARCH_HITS_MAX.get(), "x-public": true },
                    "space_id": params::space_schema(),
                },
                "anyOf": [{ "required": ["glob"] }, { "required": ["text"] }],
                "additionalProperties": false,
            },
            "result_schema": params::object(&["hits", "count", "complete", "files_searched", "files_skipped"], json!({
                "hits": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["path"],
                        "properties": {
                            "path": { "type": "string" },
                            "line": { "type": "integer", "minimum": 1 },
                            "text": { "type": "string" },
                        },
                        "additionalProperties": false,
                    },
                },
                "count": { "type": "integer", "minimum": 0, "x-public": true },
                "complete": { "type": "boolean", "x-public": true },
                "files_searched": { "type": "integer", "minimum": 0, "x-public": true },
                "files_skipped": { "type": "integer", "minimum": 0, "x-public": true },
            })),
        }))
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace", "glob": "*.txt", "text": "hello", "space_id": "shared:household" })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        params::folder(params, "path").map(drop)
    }

    /// Files that are not text or too large are skipped and counted. Quality is the share of files that were looked into,
    /// halved if there may be more.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::folder(&call.params, "path")?;
        let walk = workspace.walk(&path, true)?;
        let head = format!("{path}/");
        let wanted = Wanted::of(&call.params);
        let mut found = Found::default();
        for entry in walk.entries {
            let name = entry.path.to_string();
            let below = name.strip_prefix(&head).unwrap_or(&name);
            if entry.stat.kind != FileKind::File || !wanted.glob.is_none_or(|glob| glob::matches(glob, below))
            {
                continue;
            }
            let Some(text) = &wanted.text else {
                found.searched += 1;
                found.add(&wanted, json!({ "path": name }));
                continue;
            };
            let content = workspace.read(&entry.path, SEARCH_FILE_BYTES_MAX.get());
            match content.as_ref().map(|content| content.text()) {
                Ok(Ok(content)) => {
                    found.searched += 1;
                    found.lines(&wanted, &name, content, text);
                }
                Ok(Err(_)) | Err(_) => found.skipped += 1,
            }
            if found.full {
                break;
            }
        }
        let complete = !found.full && !walk.partial;
        let looked = (found.searched + found.skipped).max(1) as f64;
        let share = if found.searched + found.skipped == 0 {
            1.0
        } else {
            found.searched as f64 / looked
        };
        let result = json!({
            "count": found.hits.len(), "hits": found.hits, "complete": complete,
            "files_searched": found.searched, "files_skipped": found.skipped,
        });
        Ok(ToolOutput::new(
            result,
            Some(if complete { share } else { share * 0.5 }),
        ))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.run(workspace, call)
    }
}

struct Wanted<'p> {
    glob: Option<&'p str>,
    text: Option<String>,
    ignore_case: bool,
    hits_max: usize,
}

impl<'p> Wanted<'p> {
    fn of(params: &'p Map<String, Value>) -> Self {
        let ignore_case = params::is_set(params, "ignore_case");
        let text = params::optional_text(params, "text").map(|text| folded(text, ignore_case));
        let hits_max = params::number(params, "max_hits").and_then(|most| usize::try_from(most).ok());
        Self {
            glob: params::optional_text(params, "glob"),
            text,
            ignore_case,
            hits_max: hits_max
                .unwrap_or(SEARCH_HITS_MAX.get())
                .min(SEARCH_HITS_MAX.get()),
        }
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
    fn add(&mut self, wanted: &Wanted<'_>, hit: Value) {
        if self.hits.len() < wanted.hits_max {
            self.hits.push(hit);
        } else {
            self.full = true;
        }
    }

    fn lines(&mut self, wanted: &Wanted<'_>, name: &str, content: &str, text: &str) {
        for (number, line) in content.lines().enumerate() {
            if self.full {
                return;
            }
            if folded(line, wanted.ignore_case).contains(text) {
                let hit = json!({ "path": name, "line": number + 1, "text": beginning(line) });
                self.add(wanted, hit);
            }
        }
    }
}

fn folded(text: &str, ignore_case: bool) -> String {
    if ignore_case {
        text.to_lowercase()
    } else {
        text.to_owned()
    }
}

fn beginning(line: &str) -> &str {
    let end = (0..=SEARCH_LINE_BYTES_MAX.get().min(line.len()))
        .rev()
        .find(|at| line.is_char_boundary(*at));
    &line[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;

    #[test]
    fn names_and_texts_are_found_with_their_lines() {
        let place = Place::new();
        place.put("a.txt", "one\nZwei Häuser\nthree\n".as_bytes());
        place.put("deep/b.txt", b"zwei\n");
        place.put("deep/c.bin", b"zwei\0");
        let by_name = place
            .run(&Search, json!({ "path": "workspace", "glob": "**/*.txt" }))
            .unwrap();
        assert_eq!(by_name.result["count"], 2);
        let params = json!({ "path": "workspace", "text": "ZWEI HÄU", "ignore_case": true });
        let by_text = place.run(&Search, params).unwrap().result;
        assert_eq!(
            by_text["hits"],
            json!([{ "path": "workspace/a.txt", "line": 2, "text": "Zwei Häuser" }])
        );
        assert_eq!(
            (&by_text["files_searched"], &by_text["files_skipped"]),
            (&json!(2), &json!(1))
        );
        let beneath = place
            .run(&Search, json!({ "path": "workspace/deep", "text": "zwei" }))
            .unwrap();
        assert_eq!(beneath.result["hits"][0]["path"], "workspace/deep/b.txt");
    }

    #[test]
    fn hits_are_bounded_and_it_says_so() {
        let place = Place::new();
        place.put("x", "hit\n".repeat(SEARCH_HITS_MAX.get() + 1).as_bytes());
        let output = place
            .run(&Search, json!({ "path": "workspace", "text": "hit" }))
            .unwrap();
        assert_eq!(
            (&output.result["count"], &output.result["complete"]),
            (&json!(SEARCH_HITS_MAX.get()), &json!(false))
        );
        assert_eq!(output.quality, Some(0.5));
    }
}
