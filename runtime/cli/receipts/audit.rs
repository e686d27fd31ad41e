//! `effectd receipts audit`: check that every success was permitted and stayed in its space.

use std::collections::BTreeMap;

use effectd_actors::OWN;
use effectd_actors::effects::artifacts::put_out;
use effectd_contracts::text::counted;
use effectd_contracts::{Gate, GateResult, Operation, Outcome, Receipt, ReceiptId, Status};
use effectd_gateway::client::Client;
use serde_json::{Value, json};

use crate::cli::mutation::{self, RunMode, Terms};
use crate::cli::progress::Bar;
use crate::cli::receipt_filter::{PageQuery, ReceiptFilter, each_page};
use crate::cli::{CliError, Common, Confirm, Depth, Form, Printer, eprint_line, with_client};
use crate::exit::Exit;

/// Check that every `ok` receipt passed every gate, and find receipts that reach into another space
///
/// Each finding is a row; the number of checked receipts goes to standard error. Exits with 1 if there is any finding.
/// `receipts verify` checks whether the receipts themselves are genuine and complete.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts audit since:7d\n  effectd receipts audit 'subject:agent://planner@*' -o jsonl\n  effectd receipts audit --quarantine --yes"
)]
pub(in crate::cli) struct Audit {
    #[command(flatten)]
    which: ReceiptFilter,
    /// Quarantine the artifacts of receipts that reach into another space
    #[arg(long)]
    quarantine: bool,
    #[command(flatten)]
    confirm: Confirm,
}

const COLUMNS: [(&str, usize); 4] = [("KIND", 12), ("RECEIPT", 36), ("TOOL", 20), ("WHAT", 0)];

impl Audit {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let (looked, found, artifacts) =
            with_client(common, Depth::Store, async |client| self.all(client, common.output).await).await?;
        eprint_line(&format!("{} inspected, {}", counted(looked, "receipt"), counted(found, "finding")));
        if self.quarantine && !self.quarantine(common, &artifacts).await? {
            return Ok(Exit::Usage);
        }
        Ok(if found == 0 { Exit::Done } else { Exit::Failed })
    }

    /// Quarantines artifacts, each with a receipt. Returns `false` if the person did not confirm that.
    async fn quarantine(
        &self,
        common: &Common,
        found: &BTreeMap<String, ReceiptId>,
    ) -> Result<bool, CliError> {
        if found.is_empty() {
            eprint_line(&"no artifacts to quarantine");
            return Ok(true);
        }
        let says: Vec<String> = found
            .iter()
            .map(|(artifact, receipt)| format!("quarantine artifact {artifact} of receipt {receipt}"))
            .collect();
        if self.confirm.dry_run {
            // The findings are the result of this command.
            says.iter().for_each(|says| eprint_line(says));
            return Ok(true);
        }
        if !self.confirm.confirmed(&says) {
            return Ok(false);
        }
        for (artifact_id, receipt) in found {
            let operation = Operation::QuarantineArtifact {
                artifact_id: artifact_id.clone(),
                reason: Some(format!("cross_space: receipt {receipt}")),
            };
            mutation::send_on(common, &operation, &Terms::default(), RunMode::Execute).await?;
        }
        Ok(true)
    }

    /// Returns the numbers of checked receipts and of findings, and the artifacts of receipts that reach into another space.
    async fn all(
        &self,
        client: &mut Client,
        form: Form,
    ) -> Result<(u64, u64, BTreeMap<String, ReceiptId>), CliError> {
        let mut printer = Printer::new(form, true, &COLUMNS);
        let mut artifacts = BTreeMap::new();
        let (mut looked, mut found) = (0, 0);
        let bar = Bar::beside_output("looking through receipts");
        each_page(client, &self.which, PageQuery::OLDEST, &bar, |page| {
            for receipt in &page.receipts {
                looked += 1;
                for (kind, what) in findings(receipt) {
                    found += 1;
                    if kind == "cross_space" {
                        let ids = put_out(receipt).into_iter();
                        artifacts.extend(ids.map(|id| (id.to_owned(), receipt.receipt_id.clone())));
                    }
                    let value = json!({
                        "kind": kind, "receipt_id": receipt.receipt_id, "action_id": receipt.action_id,
                        "tool_id": receipt.tool_id, "space_id": receipt.space_id, "what": what,
                        "artifact_ids": receipt.outputs.get("artifact_ids"),
                    });
                    let cells = [kind, receipt.receipt_id.as_str(), receipt.tool_id.as_str(), what.as_str()];
                    printer.row(&value, &cells);
                }
            }
            Ok(true)
        })
        .await?;
        drop(bar);
        printer.finish();
        Ok((looked, found, artifacts))
    }
}

fn findings(receipt: &Receipt) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if receipt.status == Status::Ok {
        found.extend(not_permitted(receipt).map(|what| ("not_permitted", what)));
        if receipt.outcome == Outcome::Executed && !receipt.attempts.is_empty() && receipt.isolation.is_none()
        {
            found.push(("not_confined", "it ran without a record of its isolation".to_owned()));
        }
    }
    let elsewhere = other_spaces(receipt);
    if !elsewhere.is_empty() && receipt.status == Status::Ok && !is_operation(receipt) {
        let what =
            format!("it ran in {}, but its parameters name {}", receipt.space_id, elsewhere.join(", "));
        found.push(("cross_space", what));
    }
    found
}

/// Whether it is an operation on effectd itself, which belongs to no space. No tool has an id that begins like theirs.
fn is_operation(receipt: &Receipt) -> bool {
    receipt.tool_id.as_str().starts_with(OWN) && receipt.attempts.is_empty()
}

/// Why a successful action was not permitted, according to its receipt.
fn not_permitted(receipt: &Receipt) -> Option<String> {
    let Some(decision) = &receipt.decision else {
        // The policy does not decide about operations on effectd itself.
        let decided = is_operation(receipt) && receipt.approval.is_some();
        return (!decided).then(|| "it ran without a policy decision".to_owned());
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

/// Whether a gate was passed. Only redaction may be `n/a` or `applied`.
fn passed(gate: Gate, result: GateResult) -> bool {
    match result {
        GateResult::Ok => true,
        GateResult::Applied | GateResult::NotApplicable => gate == Gate::Redaction,
        GateResult::Deny | GateResult::Quarantine => false,
    }
}

/// Spaces other than the receipt's own that its parameters name: in the facts of the decision, or in the inputs.
fn other_spaces(receipt: &Receipt) -> Vec<String> {
    let facts = receipt.decision.as_ref().map(|decision| &decision.facts);
    let seen = facts.and_then(|facts| facts.pointer("/inspection/spaces")).and_then(Value::as_array);
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
        let mut input = receipt();
        input.inputs.insert("space_id".to_owned(), "personal:bob".into());
        assert_eq!(kinds(&input), ["cross_space"]);
        let mut seen = receipt();
        seen.decision.as_mut().unwrap().facts =
            json!({ "inspection": { "spaces": ["shared:household", "personal:bob"] } });
        assert_eq!(kinds(&seen), ["cross_space"]);
    }
}
