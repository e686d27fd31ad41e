//! The log of a device: every intent and every receipt in the order in which they became durable, and the keys that signed.
//!
//! Each entry is canonical JSON, and its bytes are a leaf of the tree in [`crate::merkle`]. Intents stand in it beside
//! receipts, so that it can be shown that nothing was begun of which there is no account.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::ids::{ActionId, SpaceId};
use crate::receipt::{Receipt, Signature};

/// What an entry is. Receipts have no such word; they are what the log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// Something is about to happen.
    Intent,
    /// A key that signs from here on.
    Key,
    /// Not an entry, but what is signed about all of them.
    Head,
}

/// Something is about to happen: written before the effect can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentEntry {
    /// `intent`.
    pub entry: EntryKind,
    /// Which action.
    pub action_id: ActionId,
    /// The digest of its request under the device's key, as in its receipt.
    pub request_digest: String,
    /// Where.
    pub space_id: SpaceId,
}

impl IntentEntry {
    /// The entry of an action.
    pub fn new(action_id: ActionId, request_digest: &Digest, space_id: SpaceId) -> Self {
        Self {
            entry: EntryKind::Intent,
            action_id,
            request_digest: format!("hmac-sha256:{}", request_digest.hex()),
            space_id,
        }
    }
}

/// A key that signs from here on, until the next one. The first signs itself; every other one is signed by the key before
/// it, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// `key`.
    pub entry: EntryKind,
    /// Since when.
    pub at: Timestamp,
    /// What signatures name it by.
    pub key_id: String,
    /// The public key, in hex.
    pub public_key: String,
    /// The key before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// By the key itself, and by the one before it.
    pub signatures: Vec<Signature>,
}

/// What the device says about its log at a moment. Who keeps one can later tell whether anything before it was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogHead {
    /// `head`.
    pub entry: EntryKind,
    /// When.
    pub at: Timestamp,
    /// How many entries there are.
    pub size: u64,
    /// The root of the tree over them.
    pub root: Digest,
    /// How many intents have no receipt yet.
    pub open: u64,
    /// By the key in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEntry {
    /// Something is about to happen.
    Intent(IntentEntry),
    /// A key.
    Key(KeyEntry),
    /// What happened.
    Receipt(Box<Receipt>),
}

impl LogEntry {
    /// Reads an entry.
    pub fn parse(value: &Value) -> Result<Self, serde_json::Error> {
        use serde::de::Error as _;
        let Some(kind) = value.get("entry") else {
            return Receipt::deserialize(value).map(|receipt| LogEntry::Receipt(Box::new(receipt)));
        };
        match EntryKind::deserialize(kind)? {
            EntryKind::Intent => IntentEntry::deserialize(value).map(LogEntry::Intent),
            EntryKind::Key => KeyEntry::deserialize(value).map(LogEntry::Key),
            EntryKind::Head => Err(serde_json::Error::custom("a head is no entry")),
        }
    }

    /// The bytes that are a leaf of the tree.
    pub fn bytes(&self) -> Vec<u8> {
        // Plain data with text keys, for which serde_json has no failure.
        match self {
            LogEntry::Intent(intent) => canonical::of(intent),
            LogEntry::Key(key) => canonical::of(key),
            LogEntry::Receipt(receipt) => canonical::of(receipt),
        }
        .unwrap_or_default()
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn entries_are_told_apart_by_one_word() {
        let intent = IntentEntry::new(
            ActionId::new("a-1").unwrap(),
            &Digest::of(b"request"),
            SpaceId::new("shared:h").unwrap(),
        );
        let bytes = LogEntry::Intent(intent.clone()).bytes();
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["entry"], "intent");
        assert_eq!(LogEntry::parse(&value).unwrap(), LogEntry::Intent(intent));
        let golden = include_str!("../tests/golden/receipt.json");
        let receipt: Value = serde_json::from_str(golden).unwrap();
        assert!(matches!(LogEntry::parse(&receipt), Ok(LogEntry::Receipt(_))));
        let mut posing = receipt;
        posing["entry"] = "intent".into();
        assert!(LogEntry::parse(&posing).is_err());
        assert!(LogEntry::parse(&serde_json::json!({ "entry": "head" })).is_err());
    }
}
