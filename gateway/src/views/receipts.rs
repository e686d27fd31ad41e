//! Receipts in JSON: pages of them, amendments, and the signing key.

use effectd_actors::execution::history::Page;
use effectd_actors::limits::AMENDMENTS_MAX;
use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{
    AmendmentEntry, EntryKind, EventId, Judgement, KeyEntry, Principal, Receipt, Timestamp, reward,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::NOTE_BYTES_MAX;

/// A page of receipts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptList {
    /// Possibly fewer than the limit, or none, although there are more.
    #[schema(schema_with = crate::schema::receipts)]
    pub receipts: Vec<Receipt>,
    /// The `after` of the next page; left out on the last.
    pub next: Option<u64>,
    /// The `after` that follows new receipts; left out if there is no receipt yet.
    pub follow: Option<u64>,
    /// The amendments of these receipts, in the same order, if the request asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = crate::schema::amendments)]
    pub amendments: Vec<AmendmentEntry>,
}

impl From<Page> for ReceiptList {
    fn from(page: Page) -> Self {
        Self { receipts: page.receipts, next: page.next, follow: page.follow, amendments: page.amendments }
    }
}

/// An amendment to a receipt: what became known later.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Amending {
    /// Who found out: `operator` if left out, or the name of a checker.
    pub source: Option<String>,
    /// Whether the action counts as a success.
    pub success: Option<bool>,
    /// From 0 to 1.
    pub quality: Option<f64>,
    /// For people.
    pub note: Option<String>,
}

impl Amending {
    /// The log entry, which adds to the `earlier` amendments of the receipt, or why the amendment is not valid.
    pub fn entry(
        &self,
        receipt: &Receipt,
        earlier: &[AmendmentEntry],
        by: Principal,
        at: Timestamp,
    ) -> Result<AmendmentEntry, String> {
        if earlier.len() >= AMENDMENTS_MAX {
            return Err(format!("the receipt has {AMENDMENTS_MAX} amendments, which is the maximum"));
        }
        if self.success.is_none() && self.quality.is_none() {
            return Err("give at least one of success and quality".to_owned());
        }
        if self.quality.is_some_and(|quality| !(0.0..=1.0).contains(&quality)) {
            return Err("quality is from 0 to 1".to_owned());
        }
        let source = self.source.clone().unwrap_or_else(|| "operator".to_owned());
        if source.is_empty() || source.len() > ID_BYTES_MAX || source.chars().any(is_unprintable) {
            return Err(format!("source is printable text of 1 to {ID_BYTES_MAX} bytes"));
        }
        let note = self.note.clone();
        if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(format!("the note is longer than {NOTE_BYTES_MAX} bytes"));
        }
        let own = Judgement { success: self.success, quality: self.quality };
        let reward = reward::amended(receipt, Judgement::of(earlier).and(own));
        let reward = reward.map_err(|error| error.to_string())?;
        Ok(AmendmentEntry {
            entry: EntryKind::Amendment,
            amendment_id: EventId::fresh(),
            receipt_id: receipt.receipt_id.clone(),
            at,
            by,
            source,
            success: self.success,
            quality: self.quality,
            note,
            reward,
            signature: None,
        })
    }
}

/// The new signing key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RotatedView {
    /// Its entry in the log.
    #[serde(flatten)]
    pub entry: KeyEntry,
    /// The receipt that names the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
}
