//! `effectd receipts audit`: whether what was done was permitted, and stayed where it belonged.

use std::collections::BTreeMap;

use effectd_actors::OWN;
use effectd_contracts::{Gate, GateResult, Operation, Outcome, Receipt, ReceiptId, Status};
use effectd_gateway::client::Client;
use serde_json::{Value, json};

use crate::cli::backend::{Trouble, with_client};
use crate::cli::listing::{Which, each_page};
use crate::cli::operate::{self, Confirm, Doing};
use crate::cli::output::{Form, Printer};
use crate::cli::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Check that every `ok` receipt passed every gate, and find receipts that reach into another space
///
/// Each finding is a row; how many receipts were looked at stands on standard error. Exits with 1 if there is any finding.
/// Whether the receipts themselves are genuine and complete is what `receipts verify` tells.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts audit since:7d\n  effectd receipts audit 'subject:agent://planner@*' -o jsonl\n  effectd receipts audit --quarantine --yes"
)]
pub(super) struct Audit {
    #[command(flatten)]
    which: Which,
    /// Take the artifacts of receipts that reach into another space aside, so that nobody gets them any more
    #[arg(long)]
    quarantine: bool,
    #[command(flatten)]
    confirm: Confirm,
    /// How findings are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

const COLUMNS: [(&str, usize); 4] = [("KIND", 12), ("RECEIPT", 36), ("TOOL", 20), ("WHAT", 0)];

impl Audit {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let (looked, found, aside) =
            with_client(common, Depth::Store, async |client| self.all(client).await).await?;
        complain(&format!("{looked} receipts looked at, {found} findings"));
        if self.quarantine && !self.aside(common, &aside).await? {
            return Ok(Exit::Usage);
        }
        Ok(if found == 0 { Exit::Done } else { Exit::Failed })
    }

    /// Takes artifacts aside, each on record. Says whether somebody said yes.
    async fn aside(&self, common: &Common, found: &BTreeMap<String, ReceiptId>) -> Result<bool, Trouble> {
        if found.is_empty() {
            complain(&"no artifacts to take aside");
            return Ok(true);
        }
        let says: Vec<String> = found
            .iter()
            .map(|(artifact, receipt)| format!("take artifact {artifact} of receipt {receipt} aside"))
            .collect();
        if !self.confirm.given(&says) {
            return Ok(false);
        }
        for (artifact_id, receipt) in found {
            let operation = Operation::QuarantineArtifact {
                artifact_id: artifact_id.clone(),
                reason: Some(format!("cross_space: receipt {receipt}")),
            };
            operate::ask(common, &operation, Doing::ForReal).await?;
        }
        Ok(true)
    }

    /// How many were looked at, how many findings there are, and the artifacts of those that reach elsewhere.
    async fn all(&self, client: &mut Client) -> Result<(u64, u64, BTreeMap<String, ReceiptId>), Trouble> {
        let mut printer = Printer::new(self.output, true, &COLUMNS);
        let mut aside = BTreeMap::new();
        let (mut looked, mut found) = (0, 0);
        each_page(client, &self.which, None, async |_, page| {
            for receipt in page {
                looked += 1;
                for (kind, what) in findings(receipt) {
                    found += 1;
                    if kind == "cross_space" {
                        let ids = receipt.outputs.get("artifact_ids").and_then(Value::as_array);
                        let ids = ids.into_iter().flatten().filter_map(Value::as_str);
                        aside.extend(ids.map(|id| (id.to_owned(), receipt.receipt_id.clone())));
                    }
                    let value = json!({
                        "kind": kind, "receipt_id": receipt.receipt_id, "action_id": receipt.action_id,
                        "tool_id": receipt.tool_id, "space_id": receipt.space_id, "what": what,
                        "artifact_ids": receipt.outputs.get("artifact_ids"),
                    });
                    let cells = [
                        kind,
                        receipt.receipt_id.as_str(),
                        receipt.tool_id.as_str(),
                        what.as_str(),
                    ];
                    printer.row(&value, &cells);
                }
            }
            Ok(true)
        })
        .await?;
        printer.finish();
        Ok((looked, found, aside))
    }
}

/// What is not as it should be.
fn findings(receipt: &Receipt) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if receipt.status == Status::Ok {
        found.extend(not_permitted(receipt).map(|what| ("not_permitted", what)));
        if receipt.outcome == Outcome::Executed && !receipt.attempts.is_empty() && receipt.isolation.is_none()
        {
            found.push(("not_confined", "it ran, and no isolation is on record".to_owned()));
        }
    }
    let elsewhere = other_spaces(receipt);
    if !elsewhere.is_empty() && receipt.status == Status::Ok {
        let what = format!(
            "done in {}, but it names {}",
            receipt.space_id,
            elsewhere.join(", ")
        );
        found.push(("cross_space", what));
    }
    found
}

/// Why a success should not have been one, by its own record.
fn not_permitted(receipt: &Receipt) -> Option<String> {
    let Some(decision) = &receipt.decision else {
        // Who may do what to effectd itself is decided where it is done, and no tool has such a name.
        let own = receipt.tool_id.as_str().starts_with(OWN) && receipt.attempts.is_empty();
        let decided = own && receipt.approval.is_some();
        return (!decided).then(|| "the policy was never asked".to_owned());
    };
    if !["permit", "needs_approval"].contains(&decision.verdict.as_str()) {
        return Some(format!("the verdict was {}", decision.verdict));
    }
    let failed: Vec<String> = Gate::ALL
        .into_iter()
        .filter(|gate| !passed(*gate, receipt.policy.get(*gate)))
        .map(|gate| gate.as_str().to_owned())
        .collect();
    (!failed.is_empty()).then(|| format!("it did not pass {}", failed.join(", ")))
}

/// Only redaction may have had nothing to do, or something that it changed.
fn passed(gate: Gate, result: GateResult) -> bool {
    match result {
        GateResult::Ok => true,
        GateResult::Applied | GateResult::NotApplicable => gate == Gate::Redaction,
        GateResult::Deny | GateResult::Quarantine => false,
    }
}

/// Spaces that the parameters name beside the receipt's own: as the policy saw them, and as they are told.
fn other_spaces(receipt: &Receipt) -> Vec<String> {
    let facts = receipt.decision.as_ref().map(|decision| &decision.facts);
    let seen = facts
        .and_then(|facts| facts.pointer("/inspection/spaces"))
        .and_then(Value::as_array);
    let named = seen.into_iter().flatten().chain(receipt.inputs.get("space_id"));
    let mut others: Vec<String> = named
        .filter_map(Value::as_str)
        .filter(|space| *space != receipt.space_id.as_str())
        .map(str::to_owned)
        .collect();
    others.sort();
    others.dedup();
    others
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../../../contracts/tests/golden/receipt.json")).unwrap()
    }

    fn approval() -> effectd_contracts::Approval {
        serde_json::from_value(json!({
            "verdict": "grant", "by": "uid:0", "at": "2026-03-14T12:00:00Z", "asked_at": "2026-03-14T12:00:00Z",
            "digest": "hmac-sha256:00", "authority": "single_user",
        }))
        .unwrap()
    }

    fn kinds(receipt: &Receipt) -> Vec<&'static str> {
        findings(receipt).into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn each_anomaly_is_found_and_an_honest_receipt_is_not() {
        assert!(kinds(&receipt()).is_empty());
        for gate in Gate::ALL {
            let mut bad = receipt();
            bad.policy.set(gate, GateResult::Deny);
            assert_eq!(kinds(&bad), ["not_permitted"], "{gate:?}");
            bad.status = Status::Error;
            assert!(kinds(&bad).is_empty(), "a refusal is no anomaly");
        }
        let mut skipped = receipt();
        skipped.policy.consent = GateResult::NotApplicable;
        assert_eq!(kinds(&skipped), ["not_permitted"]);
        let mut unasked = receipt();
        unasked.decision = None;
        assert_eq!(kinds(&unasked), ["not_permitted"]);
        let mut named = unasked;
        named.tool_id = "effectd.grant".parse().unwrap();
        assert_eq!(kinds(&named), ["not_permitted"], "it ran, whatever it is called");
        named.attempts.clear();
        assert_eq!(kinds(&named), ["not_permitted"], "nobody decided it");
        named.approval = Some(approval());
        assert!(kinds(&named).is_empty());
        let mut denied = receipt();
        denied.decision.as_mut().unwrap().verdict = "deny".to_owned();
        assert_eq!(kinds(&denied), ["not_permitted"]);
        let mut loose = receipt();
        loose.isolation = None;
        assert_eq!(kinds(&loose), ["not_confined"]);
        let mut told = receipt();
        told.inputs.insert("space_id".to_owned(), "personal:bob".into());
        assert_eq!(kinds(&told), ["cross_space"]);
        let mut seen = receipt();
        seen.decision.as_mut().unwrap().facts =
            json!({ "inspection": { "spaces": ["shared:household", "personal:bob"] } });
        assert_eq!(kinds(&seen), ["cross_space"]);
    }
}
