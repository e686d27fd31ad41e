//! `artifact.put`: stores a file of the space, or a text, as an artifact. Its id follows from its content.

use std::io::Read;

use effectd_contracts::Artifact;

use crate::limits::COPY_BYTES_MAX;
use crate::prelude::*;
use crate::workspace::Hashing;

#[derive(Debug, Clone, Copy)]
pub struct Put;

const STREAM: u8 = 0;
const PIECE_BYTES: usize = 65_536;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The file to store, such as workspace/report.pdf; otherwise give text.
    path: Option<SpacePath>,
    /// The text to store; otherwise give path.
    text: Option<String>,
}

impl TypedTool for Put {
    const ID: &'static str = "artifact.put";
    const DESCRIPTION: &'static str = "Stores a file of the space, or a text, as an artifact: sealed, within the \
        space's quota, with an id derived from its content. Use it to keep something for later.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "artifact_id": { "type": "string", "x-artifact": "content", "x-public": true },
            "bytes": count(), "sha256": { "type": "string", "pattern": params::SHA256 },
            "dry_run": flag(),
        });
        ToolSpec {
            // It changes no file, but it uses the quota of the space.
            caps_required: params::caps(["files.read", "workspace:shared:read", "workspace:shared:write"]),
            ..params::reads::<Self>(&["bytes"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt" })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        params.source().map(drop)
    }

    /// Quality is always 1: a content that is not stored whole is an error.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (bytes, digest) = match call.params.source()? {
            Source::Text(text) => {
                send(workspace, text.as_bytes())?;
                (text.len() as u64, Digest::of(text.as_bytes()))
            }
            Source::File(path) => send_file(workspace, path)?,
        };
        Ok(ToolOutput {
            artifacts: vec![Artifact { name: "content".to_owned(), stream: STREAM, must: true }],
            ..ToolOutput::new(json!({ "bytes": bytes, "sha256": digest.hex() }), Some(1.0))
        })
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let bytes = match call.params.source()? {
            Source::Text(text) => text.len() as u64,
            Source::File(path) => {
                let (_, stat) = workspace.open_file(path)?;
                FileProblem::check_size(stat.bytes, COPY_BYTES_MAX)?;
                stat.bytes
            }
        };
        Ok(params::dry(json!({ "bytes": bytes })))
    }
}

enum Source<'p> {
    File(&'p SpacePath),
    Text(&'p str),
}

impl Params {
    fn source(&self) -> Result<Source<'_>, Failure> {
        match (&self.path, &self.text) {
            (Some(path), None) => Ok(Source::File(path)),
            (None, Some(text)) => Ok(Source::Text(text)),
            (Some(_), Some(_)) => Err(params::invalid("text", "give a path or a text, not both")),
            (None, None) => Err(params::invalid("path", "give a path or a text")),
        }
    }
}

fn send(workspace: &Workspace<'_>, bytes: &[u8]) -> Result<(), Failure> {
    workspace.side_channel().send_piece(STREAM, bytes).map_err(|error| {
        let why = format!("the content could not be sent to effectd: {error}");
        Failure::new(Code::ToolFailed, Phase::Dispatch, why)
    })
}

/// Sends a file in pieces. A file that grows beyond the bound meanwhile is refused.
fn send_file(workspace: &Workspace<'_>, path: &SpacePath) -> Result<(u64, Digest), Failure> {
    let (file, stat) = workspace.open_file(path)?;
    FileProblem::check_size(stat.bytes, COPY_BYTES_MAX)?;
    // This opens the stream: an empty file has one, too.
    send(workspace, &[])?;
    let (mut reading, mut bytes) = (Hashing::new(file), 0);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = reading.read(&mut piece).map_err(FileProblem::io("read the file"))?;
        if count == 0 {
            return Ok((bytes, reading.digest()));
        }
        bytes += count as u64;
        FileProblem::check_size(bytes, COPY_BYTES_MAX)?;
        send(workspace, &piece[..count])?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn a_file_or_a_text_goes_out_whole() {
        let place = TestSpace::new();
        let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        place.put("big", &content);
        place.put("empty", b"");
        for (params, expected) in [
            (json!({ "path": "workspace/big" }), content),
            (json!({ "path": "workspace/empty" }), Vec::new()),
            (json!({ "text": "héllo" }), "héllo".as_bytes().to_vec()),
            (json!({ "text": "" }), Vec::new()),
        ] {
            place.forget();
            let output = place.run(&Put, params.clone()).unwrap();
            assert_eq!(output.result["bytes"], expected.len(), "{params}");
            assert_eq!(output.result["sha256"], Digest::of(&expected).hex(), "{params}");
            assert!(place.said(STREAM).unwrap() == expected, "{params}");
            assert!(output.artifacts[0].must);
            let dry = place.dry_run(&Put, params.clone()).unwrap();
            assert_eq!(dry.result["bytes"], expected.len(), "{params}");
        }
    }

    #[test]
    fn one_content_is_named_and_only_a_file_is_taken() {
        let place = TestSpace::new();
        place.put("dir/x", b"x");
        for params in [json!({}), json!({ "path": "workspace/x", "text": "x" })] {
            assert_eq!(place.run(&Put, params).unwrap_err().code, Code::ParamsInvalid);
        }
        for (path, code) in [("workspace/none", Code::FileNotFound), ("workspace/dir", Code::NotAFile)] {
            let params = json!({ "path": path });
            assert_eq!(place.run(&Put, params.clone()).unwrap_err().code, code);
            assert_eq!(place.dry_run(&Put, params).unwrap_err().code, code);
        }
        let giant = std::fs::File::create(place.path("giant")).unwrap();
        giant.set_len(COPY_BYTES_MAX + 1).unwrap();
        let failure = place.run(&Put, json!({ "path": "workspace/giant" })).unwrap_err();
        assert_eq!(failure.code, Code::FileLimit);
    }
}
