//! The log of a device: intents, receipts, amendments and signing keys, in the order in which they became durable.
//!
//! Each entry is canonical JSON, and its bytes are a leaf of the tree in [`crate::merkle`]. Intents are in the log so that an
//! action without a receipt cannot be hidden.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::ids::{ActionId, EventId, Principal, ReceiptId, SpaceId};
use crate::receipt::Receipt;
use crate::reward::Reward;
use crate::signature::Signature;

/// The kind of an entry, in its field `entry`. Receipts do not have the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// An action is about to have its effect.
    Intent,
    /// A key, which signs from here on.
    Key,
    /// A later judgement about a receipt.
    Amendment,
    /// A signed statement about all entries before it.
    Head,
}

/// An action is about to have its effect. It is durable before the effect can happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentEntry {
    /// `intent`.
    pub entry: EntryKind,
    /// The action.
    pub action_id: ActionId,
    /// The keyed digest of its request, as in its receipt.
    pub request_digest: String,
    /// The space.
    pub space_id: SpaceId,
}

impl IntentEntry {
    /// The intent of an action.
    pub fn new(action_id: ActionId, request_digest: &Digest, space_id: SpaceId) -> Self {
        Self {
            entry: EntryKind::Intent,
            action_id,
            request_digest: format!("hmac-sha256:{}", request_digest.hex()),
            space_id,
        }
    }
}

/// A key, which signs from here on until the next one. It signs its own entry; so does the key before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// `key`.
    pub entry: EntryKind,
    /// When it took over.
    pub at: Timestamp,
    /// Its id in signatures.
    pub key_id: String,
    /// The public key, in hex.
    pub public_key: String,
    /// The id of the key before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The signatures of the key itself and of the key before it.
    pub signatures: Vec<Signature>,
}

/// A signed statement about the log at a moment. With a copy of it, anybody can verify later that nothing before it changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogHead {
    /// `head`.
    pub entry: EntryKind,
    /// When.
    pub at: Timestamp,
    /// The number of entries.
    pub size: u64,
    /// The root of the tree over them.
    pub root: Digest,
    /// The number of intents without a receipt yet.
    pub open: u64,
    /// The first entry whose body is kept. Retention may have dropped the bodies before it, and no others. It never decreases.
    pub kept_from: u64,
    /// The signature of the key in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// A later judgement about a receipt, for example that a test failed the next day. The receipt does not change. Amendments add
/// up field by field: of each field the last word counts, and learners use the reward of the last amendment.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AmendmentEntry {
    /// `amendment`.
    pub entry: EntryKind,
    /// The id of this amendment.
    pub amendment_id: EventId,
    /// The receipt.
    pub receipt_id: ReceiptId,
    /// When.
    pub at: Timestamp,
    /// The principal who amended it.
    pub by: Principal,
    /// Who judged: `operator`, or the name of a checker.
    pub source: String,
    /// Whether the action counts as a success.
    pub success: Option<bool>,
    /// The quality, from 0 to 1.
    pub quality: Option<f64>,
    /// Why, for people.
    pub note: Option<String>,
    /// The reward by this judgement and all earlier ones.
    pub reward: Reward,
    /// The signature of the key in force.
    pub signature: Option<Signature>,
}

/// An entry with its index: an item of a page of the log, or a line of a bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// Its index, from 0.
    pub index: u64,
    /// Its hash in the tree: SHA-256 of a zero byte and the entry's canonical JSON.
    pub hash: Digest,
    /// The entry; absent if retention has dropped it, which is allowed only before the `kept_from` of a signed head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Value>,
}

/// The first line of a bundle: entries of a log that anybody can verify without the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BundleHead {
    /// The format: 1.
    pub bundle: u32,
    /// The index of the first entry.
    pub from: u64,
    /// The tree over the entries before the first: the roots of its complete subtrees, largest first.
    pub frontier: Vec<Digest>,
    /// All keys of the log.
    pub keys: Vec<KeyEntry>,
    /// The head that the entries must match.
    pub head: LogHead,
}

/// The proof that a receipt is in the log of a signed head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InclusionProof {
    /// The format: 1.
    pub proof: u32,
    /// The index of the entry.
    pub index: u64,
    /// The entry.
    pub entry: Value,
    /// The sibling hashes from the entry to the root.
    pub path: Vec<Digest>,
    /// All keys of the log.
    pub keys: Vec<KeyEntry>,
    /// The signed head.
    pub head: LogHead,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEntry {
    /// An action is about to have its effect.
    Intent(IntentEntry),
    /// A key.
    Key(KeyEntry),
    /// A later judgement.
    Amendment(Box<AmendmentEntry>),
    /// A signed statement about the entries before it.
    Head(LogHead),
    /// A receipt.
    Receipt(Box<Receipt>),
}

impl LogEntry {
    /// Parses an entry.
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
        // Plain data with text keys, which serde_json always writes.
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
