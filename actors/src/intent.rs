//! What is written down before an effect, so that whoever finds it after a crash knows what to do.

use effectd_contracts::digest::{hex, unhex};
use effectd_contracts::{Repeat, Seen, SpaceId, ToolId};
use serde::{Deserialize, Serialize};

use crate::parts::Parts;
use crate::preimage;
use crate::stage::body;

/// The intent of one action. It carries the tool's declaration of then: after an upgrade, an interrupted action is settled
/// by the promise under which it was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    pub tool_id: ToolId,
    pub tool_version: String,
    /// What may be done when it is not known whether it ran.
    pub repeat: Repeat,
    /// Nothing was to be changed.
    pub dry_run: bool,
    /// What stood at the paths that it may change, if the tool says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<Seen>>,
    /// What was in files that will be gone, if it is small. It is stored elsewhere as well, which may not have come to the disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Content>,
}

/// What was in a file, and the name of its blob: as text where it is some, in hex where it is not.
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
        // In JSON, each of the others takes six.
        let plain = |byte: &u8| *byte >= b' ' || b"\n\r\t".contains(byte);
        let text = std::str::from_utf8(content)
            .ok()
            .filter(|_| content.iter().all(plain));
        Self {
            name,
            text: text.map(str::to_owned),
            hex: text.is_none().then(|| hex(content)),
        }
    }

    /// The name of the blob, and what is to be in it; `None` if another version has written it in another way.
    fn bytes(&self) -> Option<(String, Vec<u8>)> {
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
        body(self)
    }

    /// Stores the contents, of which it is not known whether they came to the disk before the run was interrupted. What cannot be
    /// stored cannot be undone, which the receipt will say.
    pub(crate) async fn keep_again(&self, parts: &Parts, space: &SpaceId) {
        let contents = self.contents.iter().filter_map(Content::bytes).collect();
        if let Err(failure) = preimage::put(parts, space.clone(), contents).await {
            tracing::warn!(%failure, "what an interrupted action has replaced is not kept");
        }
    }

    /// Reads stored bytes; `None` if another version wrote something else, which is then a person's business.
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
