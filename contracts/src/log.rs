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
use crate::ids::{ActionId, EventId, Principal, ReceiptId, SpaceId};
use crate::receipt::{Receipt, Reward, Signature};

/// What an entry is. Receipts have no such word; they are what the log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// Something is about to happen.
    Intent,
    /// A key that signs from here on.
    Key,
    /// What was known later about a receipt.
    Amendment,
    /// What the device says about all entries before it.
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
    /// The first entry whose body is kept. Retention may have dropped the bodies before it, and no others. Later heads never
    /// say less.
    pub kept_from: u64,
    /// By the key in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// What was known later about a receipt: a file was wrong after all, a test that ran the next day failed. The receipt stays
/// as it is; learners take the last amendment's reward instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AmendmentEntry {
    /// `amendment`.
    pub entry: EntryKind,
    /// Names this amendment.
    pub amendment_id: EventId,
    /// The receipt that it is about.
    pub receipt_id: ReceiptId,
    /// When.
    pub at: Timestamp,
    /// Who says so, by the door's word.
    pub by: Principal,
    /// Who found out: `operator`, or the name of whatever checks.
    pub source: String,
    /// Whether it counts as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// How well, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What the action was worth, seen from now.
    pub reward: Reward,
    /// By the key in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// An entry with its place, as it is handed on: on a page of the log, and as a line of a bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// Its place, counted from 0.
    pub index: u64,
    /// Its hash in the tree: SHA-256 of a zero byte and the entry's canonical JSON.
    pub hash: Digest,
    /// The entry; left out if retention has dropped it, which is so only before the `kept_from` of a signed head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Value>,
}

/// The first line of a bundle: entries of a log that somebody without the store can check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BundleHead {
    /// The format: 1.
    pub bundle: u32,
    /// The place of the first entry.
    pub from: u64,
    /// The tree over the entries before the first: roots of its complete subtrees, the largest first.
    pub frontier: Vec<Digest>,
    /// All keys that the log has had.
    pub keys: Vec<KeyEntry>,
    /// What all entries up to the last are checked against.
    pub head: LogHead,
}

/// The proof that a receipt is in the log, for somebody who has a head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InclusionProof {
    /// The format: 1.
    pub proof: u32,
    /// Its place in the log.
    pub index: u64,
    /// The entry itself.
    pub entry: Value,
    /// Hashes beside the way from the entry to the root.
    pub path: Vec<Digest>,
    /// All keys that the log has had.
    pub keys: Vec<KeyEntry>,
    /// The head that it is proved under.
    pub head: LogHead,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEntry {
    /// Something is about to happen.
    Intent(IntentEntry),
    /// A key.
    Key(KeyEntry),
    /// What was known later.
    Amendment(Box<AmendmentEntry>),
    /// What the device said about the entries before.
    Head(LogHead),
    /// What happened.
    Receipt(Box<Receipt>),
}

impl LogEntry {
    /// Reads an entry.
    pub fn parse(value: &Value) -> Result<Self, serde_json::Error> {
        let Some(kind) = value.get("entry") else {
            return Receipt::deserialize(value).map(|receipt| LogEntry::Receipt(Box::new(receipt)));
        };
        match EntryKind::deserialize(kind)? {
            EntryKind::Intent => IntentEntry::deserialize(value).map(LogEntry::Intent),
            EntryKind::Key => KeyEntry::deserialize(value).map(LogEntry::Key),
            EntryKind::Amendment => {
                AmendmentEntry::deserialize(value).map(|entry| LogEntry::Amendment(Box::new(entry)))
            }
            EntryKind::Head => LogHead::deserialize(value).map(LogEntry::Head),
        }
    }

    /// The bytes that are a leaf of the tree.
    pub fn bytes(&self) -> Vec<u8> {
        // Plain data with text keys, for which serde_json has no failure.
        match self {
            LogEntry::Intent(intent) => canonical::of(intent),
            LogEntry::Key(key) => canonical::of(key),
            LogEntry::Amendment(amendment) => canonical::of(amendment),
            LogEntry::Head(head) => canonical::of(head),
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
        assert!(LogEntry::parse(&serde_json::json!({ "entry": "something" })).is_err());
    }
}
