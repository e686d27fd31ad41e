//! `files.write_text`: puts a text into a file, whole or not at all.

use effectd_contracts::{Digest, Failure, ToolCall, ToolOutput, ToolSpec, Touch};
use serde_json::{Map, Value, json};

use crate::params;
use crate::tool::Tool;
use crate::workspace::{Existing, Workspace};

/// Writes a text file, replacing what was there. Missing folders are created.
#[derive(Debug, Clone, Copy)]
pub struct WriteText;

impl Tool for WriteText {
    fn id(&self) -> &'static str {
        "files.write_text"
    }

    fn spec(&self) -> ToolSpec {
        params::writes(json!({
            "tool_id": self.id(),
            "version": "1.0.0",
            "description": "Puts a text into a file of the space, replacing what was there.",
            "params_schema": params::object(&["path", "text", "space_id"], json!({
                "path": params::path_schema(),
                "text": { "type": "string" },
                "space_id": params::space_schema(),
            })),
            "result_schema": params::object(&["bytes_written"], json!({
                "bytes_written": { "type": "integer", "minimum": 0, "x-public": true },
                "sha256_text": params::sha256_schema(),
                "dry_run": { "type": "boolean", "x-public": true },
            })),
            "idempotency_key_fields": ["path", "sha256(text)"],
            "resource": "file:{space_id}/{path}",
            "repeat": "safe",
        }))
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt", "text": "hello", "space_id": "shared:household" })
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        params::file(params, "path").map(drop)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        let path = params::file(params, "path").ok()?;
        Some(params::touch(&path).into_iter().collect())
    }

    fn begins_unseen(&self) -> bool {
        true
    }

    /// Quality is whether the file on disk has as many bytes as the text.
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let path = params::file(&call.params, "path")?;
        let text = params::text(&call.params, "text")?;
        workspace.write_atomically(&path, text.as_bytes(), Existing::Replace, call.trace_id.as_str())?;
        let on_disk = workspace.stat(&path)?.map(|stat| stat.bytes);
        let bytes = text.len() as u64;
        let result = json!({ "bytes_written": bytes, "sha256_text": Digest::of(text.as_bytes()).hex() });
        let quality = if on_disk == Some(bytes) { 1.0 } else { 0.0 };
        Ok(ToolOutput::new(result, Some(quality)))
    }

    fn dry_run(&self, _: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        params::file(&call.params, "path")?;
        params::text(&call.params, "text")?;
        Ok(ToolOutput::new(
            json!({ "bytes_written": 0, "dry_run": true }),
            None,
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::beside::Beside;
    use crate::testing::Place;
    use effectd_contracts::CallMode;
    use std::io;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    /// Holds a call back until it has waited, and does something just before it may be carried out.
    struct Held<F>(Mutex<Option<F>>);

    impl<F: FnOnce() + Send> Held<F> {
        fn new(then: F) -> Self {
            Self(Mutex::new(Some(then)))
        }

        fn run(&self, place: &Place, path: &str) -> Result<ToolOutput, Failure> {
            let params = json!({ "path": path, "text": "new" });
            let call = place.call(&WriteText, CallMode::Run, params);
            WriteText.run(&place.workspace().with_beside(self), &call)
        }
    }

    impl<F> std::fmt::Debug for Held<F> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Held")
        }
    }

    impl<F: FnOnce() + Send> Beside for Held<F> {
        fn say(&self, _: u8, _: &[u8]) -> io::Result<()> {
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }

        fn hear(&self) -> io::Result<Vec<u8>> {
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }

        fn wait_for_go(&self) {
            let then = self.0.lock().unwrap().take();
            then.into_iter().for_each(|then| then());
        }

        fn is_waiting(&self) -> bool {
            self.0.lock().unwrap().is_some()
        }
    }

    /// It begins before it may be carried out, in each of the cases in which it can and cannot be begun unseen.
    #[test]
    fn nothing_is_seen_of_it_before_it_may_be_carried_out() {
        type Files = &'static [(&'static str, &'static [u8])];
        let cases: [(&str, Files); 4] = [
            ("workspace/x.txt", &[]),
            ("workspace/x.txt", &[("x.txt", b"old")]),
            ("workspace/new/folder/x.txt", &[("other", b"")]),
            (
                "workspace/there/x.txt",
                &[("there/x.txt", b"old"), ("there/y", b"")],
            ),
        ];
        for (path, before) in cases {
            let place = Place::new();
            for (name, content) in before {
                place.put(name, content);
            }
            let names = place.names();
            let held = Held::new(|| {
                assert_eq!(place.names(), names, "{path}");
                for (name, content) in before {
                    assert_eq!(place.get(name).as_deref(), Some(*content), "{path}");
                }
            });
            held.run(&place, path).unwrap();
            assert!(!held.is_waiting(), "{path}");
            let name = path.strip_prefix("workspace/").unwrap();
            assert_eq!(place.get(name), Some(b"new".to_vec()));
            let mut after: Vec<_> = before.iter().map(|(name, _)| (*name).to_owned()).collect();
            after.push(name.to_owned());
            after.sort();
            after.dedup();
            let mut files = place.names();
            files.retain(|name| place.path(name).is_file());
            files.sort();
            assert_eq!(files, after, "{path}");
        }
    }

    #[test]
    fn what_was_begun_unseen_keeps_permissions_and_meets_what_an_interrupted_run_left() {
        let place = Place::new();
        place.put("x", b"old");
        let file = place.path("x");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let draft = crate::spacepath::draft_name("trace\nworkspace/x");
        let held = Held::new(|| place.put(&draft, b"left"));
        held.run(&place, "workspace/x").unwrap();
        assert_eq!(place.get("x"), Some(b"new".to_vec()));
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        // A folder that has come to stand there meanwhile is not replaced.
        let held = Held::new(|| {
            std::fs::remove_file(place.path("x")).unwrap();
            std::fs::create_dir(place.path("x")).unwrap();
        });
        assert!(held.run(&place, "workspace/x").is_err());
        assert_eq!(place.names(), ["x"]);
    }

    #[test]
    fn it_writes_utf8_and_counts_bytes() {
        let place = Place::new();
        let output = place
            .run(
                &WriteText,
                json!({ "path": "workspace/a/b/x.txt", "text": "héllo" }),
            )
            .unwrap();
        assert_eq!(output.result["bytes_written"], 6);
        assert_eq!(output.result["sha256_text"], Digest::of("héllo".as_bytes()).hex());
        assert_eq!(output.quality, Some(1.0));
        assert_eq!(place.get("a/b/x.txt"), Some("héllo".as_bytes().to_vec()));
    }

    #[test]
    fn a_dry_run_says_exactly_what_it_must_and_changes_nothing() {
        let place = Place::new();
        let output = place
            .dry_run(&WriteText, json!({ "path": "workspace/a/x.txt", "text": "hi" }))
            .unwrap();
        assert_eq!(output.result, json!({ "bytes_written": 0, "dry_run": true }));
        assert!(place.names().is_empty());
    }

    #[test]
    fn a_private_file_stays_private_and_an_executable_one_executable() {
        let place = Place::new();
        for mode in [0o600, 0o755, 0o444] {
            place.put("x", b"old");
            let file = place.path("x");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            place
                .run(&WriteText, json!({ "path": "workspace/x", "text": "new" }))
                .unwrap();
            assert_eq!(place.get("x"), Some(b"new".to_vec()));
            assert_eq!(
                std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
                mode
            );
            std::fs::remove_file(file).unwrap();
        }
        assert!(place.names().is_empty());
    }
}
