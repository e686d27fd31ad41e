//! What every tool must satisfy.
#![allow(clippy::unwrap_used)]

mod agreed;
mod aside;
mod bad_input;
mod denied;
mod disk;
mod page;
mod previews;
mod recovery;
mod services;
pub(crate) mod space;

use std::collections::BTreeSet;

use effectd_contracts::{CallMode, Code, RiskLevel, ToolReply, ToolSpec};
use serde_json::{Value, json};

use super::*;
use crate::tests::space::TestSpace;

#[test]
fn every_description_holds_its_rules_and_no_name_is_taken_twice() {
    let mut seen = BTreeSet::new();
    for tool in all() {
        let spec = tool.spec();
        spec.check().unwrap();
        assert_eq!(spec.tool_id.as_str(), tool.id());
        for name in tool.aliases().iter().chain([&tool.id()]) {
            assert!(seen.insert(*name), "{name} twice");
        }
        for schema in [&spec.params_schema, &spec.result_schema] {
            jsonschema::draft202012::meta::validate(schema).unwrap();
            assert_eq!(schema["additionalProperties"], false, "{}", tool.id());
        }
        assert!(spec.description.contains("Use it") && spec.description.ends_with('.'), "{}", tool.id());
        for (name, field) in spec.params_schema["properties"].as_object().unwrap() {
            let about = field["description"].as_str().unwrap_or_default();
            let is_short = (5..=120).contains(&about.len()) && about.ends_with('.');
            assert!(is_short || name == "space_id", "{}: {name}: {about:?}", tool.id());
        }
    }
}

/// The published descriptions, one tool a line. `EFFECTD_BLESS=1` writes the file again: review the difference.
#[test]
fn every_description_is_the_one_on_record() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/descriptions.jsonl");
    let sorted = |mut spec: ToolSpec| {
        if let Some(required) = spec.params_schema["required"].as_array_mut() {
            required.sort_by_key(Value::to_string);
        }
        spec
    };
    let specs: Vec<_> = all().iter().map(|tool| sorted(tool.spec())).collect();
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        let lines = specs.iter().map(|spec| serde_json::to_string(spec).unwrap() + "\n");
        std::fs::write(path, lines.collect::<String>()).unwrap();
    }
    let recorded = std::fs::read_to_string(path).unwrap();
    for (spec, line) in specs.iter().zip(recorded.lines()) {
        let recorded: ToolSpec = serde_json::from_str(line).unwrap();
        assert_eq!(*spec, sorted(recorded), "{}", spec.tool_id);
    }
    assert_eq!(specs.len(), recorded.lines().count());
}

#[test]
fn every_example_fits_and_names_what_may_change() {
    for tool in all() {
        let (spec, example) = (tool.spec(), tool.example());
        let schema = jsonschema::draft202012::new(&spec.params_schema).unwrap();
        assert!(schema.is_valid(&example), "{}: {example}", tool.id());
        let params = example.as_object().unwrap();
        tool.check(params).unwrap();
        let touches = tool.touches(params);
        assert_eq!(touches.is_some(), spec.reversible || tool.id() == "files.delete", "{}", tool.id());
        if spec.level() == RiskLevel::Read {
            assert!(touches.is_none(), "{}", tool.id());
        }
        for touch in touches.unwrap_or_default() {
            assert_eq!(SpacePath::parse(&touch.path).unwrap().to_string(), touch.path);
        }
    }
}

/// Parameters for each writing tool, in a space that `prepare` made.
pub(crate) fn samples() -> Vec<(&'static dyn Tool, Value)> {
    let patch = "--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n--- /dev/null\n+++ b/new/deep/file\n@@ -0,0 +1 @@\n+new\n";
    vec![
        (&files::WriteText, json!({ "path": "workspace/text", "text": "other" })),
        (&files::WriteText, json!({ "path": "workspace/new/deep/file", "text": "other" })),
        (&files::AppendText, json!({ "path": "workspace/text", "text": "more\n" })),
        (&files::AppendText, json!({ "path": "workspace/new/file", "text": "more\n" })),
        (&files::EditText, json!({ "path": "workspace/text", "find": "two", "replace": "2" })),
        (&files::EditText, json!({ "path": "workspace/text", "find": "e\n", "replace": "E\n", "count": 2 })),
        (&files::ApplyPatch, json!({ "patch": patch })),
        (&files::MakeDir, json!({ "path": "workspace/new/deep" })),
        (&files::Copy, json!({ "from_path": "workspace/text", "to_path": "workspace/new/copy" })),
        (
            &files::Copy,
            json!({ "from_path": "workspace/text", "to_path": "workspace/private", "overwrite": true }),
        ),
        (&files::Move, json!({ "from_path": "workspace/text", "to_path": "workspace/new/place" })),
        (
            &files::Move,
            json!({ "from_path": "workspace/text", "to_path": "workspace/private", "overwrite": true }),
        ),
        (&files::Move, json!({ "from_path": "workspace/folder", "to_path": "workspace/new/house" })),
        (&files::Delete, json!({ "path": "workspace/text" })),
        (
            &files::Archive,
            json!({ "from_path": "workspace/folder", "to_path": "workspace/new/packed", "format": "tar.gz" }),
        ),
        (
            &files::Archive,
            json!({ "from_path": "workspace/text", "to_path": "workspace/private", "format": "zip", "overwrite": true }),
        ),
        (
            &files::Extract,
            json!({ "from_path": "workspace/packed.zip", "to_path": "workspace/new/unpacked" }),
        ),
    ]
}

/// A space with a text, a private binary file and a folder.
pub(crate) fn prepare(place: &TestSpace) {
    use std::os::unix::fs::PermissionsExt;
    place.put("text", b"one\ntwo\nthree\n");
    place.put("private", b"\xff\0binary");
    std::fs::set_permissions(place.path("private"), std::fs::Permissions::from_mode(0o600)).unwrap();
    place.put("folder/inside", b"inside");
    place.put("packed.zip", &crate::archive::tests::sample());
}

#[test]
fn a_dry_run_changes_nothing_and_fails_where_the_run_would() {
    for (tool, params) in samples() {
        let place = TestSpace::new();
        prepare(&place);
        let before = recovery::snapshot(&place);
        let output = place.dry_run(tool, params.clone()).unwrap();
        assert_eq!(output.result["dry_run"], true, "{}", tool.id());
        assert_eq!(recovery::snapshot(&place), before, "{}", tool.id());
        place.run(tool, params.clone()).unwrap();
        assert_ne!(recovery::snapshot(&place), before, "{}", tool.id());
        if matches!(
            tool.id(),
            "files.edit_text" | "files.apply_patch" | "files.move" | "files.delete" | "files.extract"
        ) {
            let (run, dry) = (place.run(tool, params.clone()), place.dry_run(tool, params));
            assert_eq!(run.unwrap_err().code, dry.unwrap_err().code, "{}", tool.id());
        }
    }
}

#[test]
fn bytes_go_in_and_bytes_come_out_whatever_they_are() {
    let place = TestSpace::new();
    let answer =
        |bytes: &[u8]| serde_json::from_slice::<ToolReply>(&dispatch(&place.workspace(), bytes)).unwrap();
    let mut call = place.call(&files::Stat, CallMode::Run, json!({ "path": "workspace" }));
    assert!(matches!(answer(&serde_json::to_vec(&call).unwrap()), ToolReply::Done(_)));
    call.tool_id = "files.none".parse().unwrap();
    let ToolReply::Failed(failure) = answer(&serde_json::to_vec(&call).unwrap()) else {
        panic!("an unknown tool answered");
    };
    assert_eq!(failure.code, Code::UnknownTool);
    assert!(matches!(answer(b"\xff garbage"), ToolReply::Failed(_)));
}
