//! `files.read_text`: reads a text file, or a part of it.

use crate::limits::READ_BYTES_MAX;
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct ReadText;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    /// The byte to begin at, such as next_byte of an earlier result. Default: 0.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    from_byte: u64,
    /// Bytes to read at most. Default: the largest piece.
    #[schemars(range(min = 1, max = READ_BYTES_MAX), extend("x-public" = true))]
    max_bytes: Option<u64>,
}

impl TypedTool for ReadText {
    const ID: &'static str = "files.read_text";
    const DESCRIPTION: &'static str = "Reads the text of a file of the space, or a piece of it. Use it before you \
        change a file; next_byte is where the next piece begins.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "text": text(), "bytes": count(), "file_bytes": count(), "next_byte": count(),
            "sha256_text": sha256(),
        });
        params::reads::<Self>(&["text", "bytes", "file_bytes", "sha256_text"], result)
    }

    fn example(&self) -> Value {
        json!({ "path": "workspace/notes/w36.txt" })
    }

    /// A part ends at a whole character. Quality is the share of the file that is returned.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let from = call.params.from_byte;
        let most = call.params.max_bytes.unwrap_or(u64::MAX).min(READ_BYTES_MAX);
        let content = workspace.read_piece(&call.params.path, from, most)?;
        let (file_bytes, read) = (content.stat.bytes, content.bytes.len() as u64);
        let text = whole_characters(&content.bytes, from + read < file_bytes)?;
        let (bytes, end) = (text.len() as u64, from + text.len() as u64);
        let mut result = json!({
            "text": text, "bytes": bytes, "file_bytes": file_bytes, "sha256_text": Digest::of(text.as_bytes()).hex(),
        });
        if end < file_bytes {
            result["next_byte"] = json!(end);
        }
        let share = if file_bytes == 0 { 1.0 } else { bytes as f64 / file_bytes as f64 };
        Ok(ToolOutput::new(result, Some(share.min(1.0))))
    }
}

/// The text, without the first bytes of a character that the read cut in two.
fn whole_characters(bytes: &[u8], more_follows: bool) -> Result<&str, FileProblem> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if more_follows && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).map_err(|_| FileProblem::NotText)?
        }
        Err(_) => return Err(FileProblem::NotText),
    };
    if text.contains('\0') {
        return Err(FileProblem::NotText);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use effectd_contracts::Code;

    #[test]
    fn a_file_is_read_whole_or_in_pieces_that_fit_together() {
        let place = TestSpace::new();
        place.put("a.txt", "häuser\n".repeat(5).as_bytes());
        let whole = place.run(&ReadText, json!({ "path": "workspace/a.txt" })).unwrap();
        assert_eq!(whole.result["text"], "häuser\n".repeat(5));
        assert_eq!((whole.quality, whole.result.get("next_byte")), (Some(1.0), None));
        let (mut text, mut from) = (String::new(), 0);
        loop {
            let params = json!({ "path": "workspace/a.txt", "from_byte": from, "max_bytes": 10 });
            let piece = place.run(&ReadText, params).unwrap().result;
            text.push_str(piece["text"].as_str().unwrap());
            match piece.get("next_byte").and_then(Value::as_u64) {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(text, "häuser\n".repeat(5));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let place = TestSpace::new();
        place.put("latin", b"h\xe4user");
        place.put("binary", b"a\0b");
        for name in ["workspace/latin", "workspace/binary"] {
            let failure = place.run(&ReadText, json!({ "path": name })).unwrap_err();
            assert_eq!(failure.code, Code::NotText, "{name}");
        }
    }
}
