//! `files.list`: lists a folder, or everything beneath it.

use crate::limits::LIST_ENTRIES_MAX;
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct List;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: FolderPath,
    /// Also list what is in folders beneath. Default: false.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    recursive: bool,
    /// The next_after of an earlier result that was not complete; the list goes on there.
    after: Option<FolderPath>,
}

impl TypedTool for List {
    const ID: &'static str = "files.list";
    const DESCRIPTION: &'static str = "Lists a folder of the space; with recursive, also everything beneath it. Use \
        it to find out what is there.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let kind = json!({ "enum": ["file", "folder", "link", "special"] });
        let entry = json!({ "path": text(), "kind": kind, "bytes": { "type": "integer", "minimum": 0 } });
        let result = json!({
            "entries": { "type": "array", "items": params::object(&["path", "kind"], entry) },
            "count": count(), "complete": flag(), "next_after": text(), "unnamed": count(),
        });
        params::reads::<Self>(&["entries", "count", "complete"], result)
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace", "recursive": true })
    }

    /// Pages are in the order of whole paths, so `after` continues where a page ended. Quality is the share of listed entries.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let walk = workspace.walk(&call.params.path.0, call.params.recursive)?;
        let mut all: Vec<_> =
            walk.entries.into_iter().map(|entry| (entry.path.to_string(), entry.stat)).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        let total = all.len();
        if let Some(after) = &call.params.after {
            let after = after.0.to_string();
            all.retain(|(path, _)| *path > after);
        }
        let more = all.len() > LIST_ENTRIES_MAX;
        all.truncate(LIST_ENTRIES_MAX);
        let entries: Vec<_> = all
            .iter()
            .map(|(path, stat)| json!({ "path": path, "kind": stat.kind.as_str(), "bytes": stat.bytes }))
            .collect();
        let share = if total == 0 { 1.0 } else { entries.len() as f64 / total as f64 };
        let mut result = json!({
            "count": entries.len(), "entries": entries, "complete": !more && !walk.partial, "unnamed": walk.unnamed,
        });
        if let (true, Some((last, _))) = (more, all.last()) {
            result["next_after"] = json!(last);
        }
        Ok(ToolOutput::new(result, Some(if walk.partial { share * 0.5 } else { share })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    fn paths(output: &ToolOutput) -> Vec<&str> {
        let entries = output.result["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap()).collect()
    }

    #[test]
    fn folders_are_listed_flat_or_deep_and_links_not_followed() {
        let place = TestSpace::new();
        place.put("b/c/d", b"1");
        place.put("a", b"22");
        place.put(".effectd-0.draft", b"unfinished");
        std::os::unix::fs::symlink("/etc", place.path("link")).unwrap();
        let flat = place.run(&List, json!({ "path": "workspace" })).unwrap();
        assert_eq!(paths(&flat), ["workspace/a", "workspace/b", "workspace/link"]);
        assert_eq!(flat.result["entries"][2]["kind"], "link");
        let deep = place.run(&List, json!({ "path": "workspace", "recursive": true })).unwrap();
        let wanted = ["workspace/a", "workspace/b", "workspace/b/c", "workspace/b/c/d", "workspace/link"];
        assert_eq!(paths(&deep), wanted);
        assert_eq!((deep.quality, &deep.result["complete"]), (Some(1.0), &json!(true)));
    }

    #[test]
    fn a_long_listing_comes_in_pages_without_gaps() {
        let place = TestSpace::new();
        for number in 0..LIST_ENTRIES_MAX + 7 {
            place.put(&format!("f{number:05}"), b"");
        }
        let first = place.run(&List, json!({ "path": "workspace" })).unwrap();
        assert_eq!((paths(&first).len(), &first.result["complete"]), (LIST_ENTRIES_MAX, &json!(false)));
        let after = first.result["next_after"].as_str().unwrap();
        let second = place.run(&List, json!({ "path": "workspace", "after": after })).unwrap();
        assert_eq!((paths(&second).len(), &second.result["complete"]), (7, &json!(true)));
    }
}
