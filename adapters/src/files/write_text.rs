//! `files.write_text`: puts a text into a file, whole or not at all.

use std::collections::BTreeSet;

use effectd_contracts::{
    Code, Digest, Failure, Phase, Repeat, RiskLevel, SafetyClass, SandboxProfile, SideEffect, ToolCall,
    ToolOutput, ToolSpec,
};
use serde_json::{Map, Value, json};

use crate::limits::PATH_BYTES_MAX;
use crate::spacepath::SpacePath;
use crate::tool::Tool;
use crate::workspace::Workspace;

/// Writes a text file, replacing what was there. Missing folders are created.
#[derive(Debug, Clone, Copy)]
pub struct WriteText;

impl Tool for WriteText {
    fn spec(&self) -> ToolSpec {
        #[expect(clippy::expect_used, reason = "a constant; the test of all descriptions reads it")]
        serde_json::from_value(json!({
            "tool_id": "files.write_text",
            "version": "1.0.0",
            "description": "Puts a text into a file of the space, replacing what was there.",
            "caps_required": ["files.write", "workspace:shared:write"],
            "params_schema": {
                "type": "object",
                "required": ["path", "text", "space_id"],
                "properties": {
                    "path": { "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX, "x-public": true },
                    "text": { "type": "string" },
                    "space_id": { "type": "string", "minLength": 1, "x-public": true },
                },
                "additionalProperties": false,
            },
            "result_schema": {
                "type": "object",
                "required": ["bytes_written"],
                "properties": {
                    "bytes_written": { "type": "integer", "minimum": 0, "x-public": true },
                    "sha256_text": { "type": "string", "pattern": "^[0-9a-f]{64}$", "x-public": true },
                    "dry_run": { "type": "boolean", "x-public": true },
                },
                "additionalProperties": false,
            },
            "side_effects": BTreeSet::from([SideEffect::FilesystemWrite]),
            "safety_class": SafetyClass::Low,
            "risk_level": RiskLevel::Write,
            "timeout_ms": 4000,
            "idempotency_key_fields": ["path", "sha256(text)"],
            "resource": "file:{space_id}/{path}",
            "repeat": Repeat::Safe,
            "sandbox_profile": SandboxProfile::default(),
        }))
        .expect("the description is well-formed")
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        path_of(params).map(|_| ())
    }

    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = path_of(&call.params)?;
        let text = text_of(&call.params)?;
        workspace.write_atomically(&path, text.as_bytes())?;
        let on_disk = workspace.size(&path)?;
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        Ok(ToolOutput {
            result: json!({ "bytes_written": bytes, "sha256_text": Digest::of(text.as_bytes()).hex() }),
            quality: Some(if on_disk == bytes { 1.0 } else { 0.0 }),
        })
    }

    fn dry_run(&self, _: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        path_of(&call.params)?;
        text_of(&call.params)?;
        Ok(ToolOutput {
            result: json!({ "bytes_written": 0, "dry_run": true }),
            quality: None,
        })
    }
}

fn path_of(params: &Map<String, Value>) -> Result<SpacePath, Failure> {
    let text = params.get("path").and_then(Value::as_str).unwrap_or_default();
    SpacePath::parse(text)
        .map_err(|why| Failure::new(Code::ParamsInvalid, Phase::Validate, format!("/path: {why}")))
}

fn text_of(params: &Map<String, Value>) -> Result<&str, Failure> {
    let text = params.get("text").and_then(Value::as_str);
    text.ok_or_else(|| Failure::new(Code::ParamsInvalid, Phase::Validate, "/text: a string is needed"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::CallMode;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn call(mode: CallMode, path: &str, text: &str) -> ToolCall {
        ToolCall {
            tool_id: "files.write_text".parse().unwrap(),
            mode,
            space_id: "shared:household".parse().unwrap(),
            params: json!({ "path": path, "text": text, "space_id": "shared:household" })
                .as_object()
                .unwrap()
                .clone(),
            timeout_ms: 4_000,
            trace_id: "t".parse().unwrap(),
        }
    }

    #[test]
    fn it_writes_utf8_and_counts_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let output = WriteText
            .run(&workspace, &call(CallMode::Run, "workspace/a/b/x.txt", "héllo"))
            .unwrap();
        assert_eq!(output.result["bytes_written"], 6);
        assert_eq!(output.result["sha256_text"], Digest::of("héllo".as_bytes()).hex());
        assert_eq!(output.quality, Some(1.0));
        assert_eq!(
            std::fs::read(folder.path().join("a/b/x.txt")).unwrap(),
            "héllo".as_bytes()
        );
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let output = WriteText
            .dry_run(&workspace, &call(CallMode::DryRun, "workspace/a/x.txt", "hi"))
            .unwrap();
        assert_eq!(output.result, json!({ "bytes_written": 0, "dry_run": true }));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn bad_parameters_are_refused_with_their_place() {
        let bad = call(CallMode::Run, "workspace/../x", "hi");
        let failure = WriteText.check(&bad.params).unwrap_err();
        assert_eq!(failure.code, Code::ParamsInvalid);
        assert!(failure.message.starts_with("/path: "), "{}", failure.message);
    }

    #[test]
    fn results_fit_the_result_schema() {
        let validator = jsonschema::draft202012::new(&WriteText.spec().result_schema).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = File::open(folder.path()).unwrap();
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let run = WriteText
            .run(&workspace, &call(CallMode::Run, "workspace/x", "hi"))
            .unwrap();
        let dry = WriteText
            .dry_run(&workspace, &call(CallMode::DryRun, "workspace/x", "hi"))
            .unwrap();
        assert!(validator.is_valid(&run.result) && validator.is_valid(&dry.result));
        assert!(!validator.is_valid(&json!({})));
    }
}
