//! The intent: what is on disk before an effect, so that the next start can settle an interrupted action.

use effectd_contracts::digest::{hex, unhex};
use effectd_contracts::{Digest, PathSnapshot, Repeat, ToolId};
use serde::{Deserialize, Serialize};

use crate::stored::json_bytes;

/// The intent of one action. It records the tool's declaration: an interrupted action is settled by the declaration under which
/// it began, even after an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    pub tool_id: ToolId,
    pub tool_version: String,
    pub repeat: Repeat,
    pub dry_run: bool,
    /// Whether the action is rolled back if it is interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transaction: bool,
    /// The snapshot of the paths that the action may change, if the tool declares them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<PathSnapshot>>,
    /// Small pre-images. If the process dies, their blobs may not be on disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Content>,
    /// For a batch: what was judged of each item, see `preview/batch.rs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Digest>,
}

/// A pre-image and the name of its blob: as text if it is printable, otherwise in hex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl Content {
    pub(crate) fn new(name: String, content: &[u8]) -> Self {
        // JSON escapes every other control character in six bytes.
        let plain = |byte: &u8| *byte >= b' ' || b"\n\r\t".contains(byte);
        let text = std::str::from_utf8(content).ok().filter(|_| content.iter().all(plain));
        Self { name, text: text.map(str::to_owned), hex: text.is_none().then(|| hex(content)) }
    }

    /// The name of the blob and its content; `None` if another version wrote an unknown form.
    pub(crate) fn bytes(&self) -> Option<(String, Vec<u8>)> {
        let bytes = match (&self.text, &self.hex) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(digits)) => unhex(digits)?,
            (None, None) => return None,
        };
        Some((self.name.clone(), bytes))
    }
}

impl Intent {
    pub fn to_bytes(&self) -> Vec<u8> {
        json_bytes(self)
    }

    /// `None` if another version wrote an unknown form; then a person settles the action.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits::INTENT_CONTENTS_BYTES_MAX;

    #[test]
    fn contents_come_back_as_they_were_whether_text_or_not() {
        let most = INTENT_CONTENTS_BYTES_MAX;
        let hard = [vec![0; most], vec![b'"'; most], vec![0xff; most]];
        let easy = [b"a \"word\"\r\n\t".to_vec(), (0..=255).collect(), Vec::new()];
        for content in hard.into_iter().chain(easy) {
            let kept = Content::new("name".to_owned(), &content);
            let json = serde_json::to_string(&kept).unwrap();
            assert!(json.len() <= 2 * most + 100, "{}", json.len());
            let read: Content = serde_json::from_str(&json).unwrap();
            assert_eq!(read.bytes(), Some(("name".to_owned(), content)), "{json}");
        }
    }

    #[test]
    fn an_intent_without_contents_is_that_of_an_older_version() {
        let older = br#"{"tool_id":"files.write_text","tool_version":"1","repeat":"never","dry_run":false}"#;
        let intent = Intent::from_bytes(older).unwrap();
        assert_eq!(intent.contents, []);
        assert_eq!(Intent::from_bytes(&intent.to_bytes()), Some(intent));
    }
}
