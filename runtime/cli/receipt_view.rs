//! Renders a receipt as text.

mod effects;
mod timeline;

use std::fmt::Write;

use effectd_contracts::{
    AmendmentEntry, ApprovalVerdict, Authority, Gate, GateResult, Outcome, PreviewVerdict, Receipt,
};
use serde_json::{Map, Value};

use crate::tui::shown;

pub(super) fn receipt(receipt: &Receipt, before: bool) -> String {
    let mut text = String::new();
    let headline = match (receipt.outcome, before) {
        (Outcome::Executed, true) => "already done",
        (Outcome::Executed, false) => "done",
        (outcome, _) => words(outcome),
    };
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<9} {}", printable(value));
        }
    };
    if let Some(failure) = &receipt.error {
        line("why", &format!("{} ({})", failure.message, failure.code));
    }
    line("inputs", &fields(&receipt.inputs));
    line("redacted", &redacted(receipt));
    line("outputs", &fields(&receipt.outputs));
    for (nth, change) in effects::changes(receipt).iter().enumerate() {
        line(if nth == 0 { "changed" } else { "" }, change);
    }
    line("preview", &previewed(receipt));
    line("policy", &gates(receipt));
    line("decided", &decided(receipt));
    line("approved", &approved(receipt));
    line("sandbox", &sandbox(receipt));
    for (nth, phase) in timeline::lines(receipt).iter().enumerate() {
        line(if nth == 0 { "timeline" } else { "" }, phase);
    }
    line("cost", &cost(receipt));
    line("reward", &reward(receipt));
    line("asked by", &asked(receipt));
    line("action", &format!("{}, trace {}", receipt.action_id, receipt.trace_id));
    line("receipt", receipt.receipt_id.as_str());
    line(
        "signed",
        &receipt
            .signature
            .as_ref()
            .map(|s| format!("{} by key {}", s.algorithm, s.key_id))
            .unwrap_or_default(),
    );
    let about = format!("{headline}: {} in {} for {}", receipt.tool_id, receipt.space_id, receipt.subject_id);
    format!("{}\n{text}", printable(&about))
}

/// Amendments, a line each.
pub(super) fn amendments(all: &[AmendmentEntry]) -> String {
    let mut text = String::new();
    for amendment in all {
        let success = amendment.success.map(|success| if success { "a success" } else { "not a success" });
        let quality = amendment.quality.map(|quality| format!("quality {quality}"));
        let said = [success.map(str::to_owned), quality, amendment.note.clone()];
        let said: Vec<String> = said.into_iter().flatten().collect();
        let text_of = format!(
            "{}; by {} ({}) at {:.3}: reward {}",
            said.join(", "),
            amendment.by,
            amendment.source,
            amendment.at,
            amendment.reward.scalar
        );
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<9} {}", "amended", printable(&text_of));
    }
    text
}

/// Text from tools and planners, without terminal commands and line breaks.
fn printable(text: &str) -> String {
    shown(text, usize::MAX)
}

fn words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Executed => "done",
        Outcome::CachedHit => "already done",
        Outcome::DryRun => "dry run, nothing changed",
        Outcome::Paused => "dry run, nothing changed (effects are paused)",
        Outcome::NotStarted => "not started",
        Outcome::AwaitingApproval => "awaiting approval",
        Outcome::Approved => "approved",
        Outcome::Executing => "running",
        Outcome::DeniedPolicy => "denied",
        Outcome::Quarantined => "quarantined",
        Outcome::DeniedHuman => "denied by a person",
        Outcome::Expired => "expired",
        Outcome::Invalid => "invalid",
        Outcome::NotFound => "unknown tool",
        Outcome::Throttled => "throttled",
        Outcome::Reverted => "undone",
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed out",
        Outcome::BreakerOpen => "breaker open",
        Outcome::Indeterminate => "outcome unknown",
        Outcome::Cancelled => "cancelled",
    }
}

fn fields(fields: &Map<String, Value>) -> String {
    let shown =
        fields.iter().filter(|(_, value)| **value != Value::Array(Vec::new())).map(|(name, value)| {
            let text =
                value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string());
            let short: String = text.chars().take(48).collect();
            let dots = if short.len() < text.len() { "…" } else { "" };
            format!("{name} {short}{dots}")
        });
    shown.collect::<Vec<_>>().join(", ")
}

fn redacted(receipt: &Receipt) -> String {
    let entries = receipt.redacted.iter().map(|entry| {
        let field = if entry.field.is_empty() { "other fields" } else { &entry.field };
        format!("{} {} in {field}", entry.count, entry.kind.as_str())
    });
    entries.collect::<Vec<_>>().join(", ")
}

fn gates(receipt: &Receipt) -> String {
    let word = |result| match result {
        GateResult::Ok => "ok",
        GateResult::Deny => "DENY",
        GateResult::Quarantine => "QUARANTINE",
        GateResult::Applied => "applied",
        GateResult::NotApplicable => "n/a",
    };
    Gate::ALL.map(|gate| format!("{} {}", gate.as_str(), word(receipt.policy.get(gate)))).join(", ")
}

fn decided(receipt: &Receipt) -> String {
    let Some(decision) = &receipt.decision else {
        return String::new();
    };
    let rule = decision.rule.as_ref().map(|rule| format!(" by {rule}")).unwrap_or_default();
    format!(
        "{}{rule}, tier {:?}, policy {}",
        decision.verdict,
        decision.tier,
        &decision.policy_digest.hex()[..12]
    )
}

fn approved(receipt: &Receipt) -> String {
    let Some(approval) = &receipt.approval else {
        return String::new();
    };
    let word = match approval.verdict {
        ApprovalVerdict::Once | ApprovalVerdict::Grant | ApprovalVerdict::Always => "",
        ApprovalVerdict::Denied => "no, ",
        ApprovalVerdict::Revoked => "taken back, ",
        ApprovalVerdict::Expired => "by nobody in time, ",
    };
    let authority = match approval.authority {
        Authority::Separate => "",
        Authority::SingleUser => " (single user)",
    };
    let edited = if approval.edited_request_digest.is_some() { ", with other parameters" } else { "" };
    format!("{word}by {}{authority} at {}{edited}", approval.by, approval.at)
}

fn previewed(receipt: &Receipt) -> String {
    let Some(preview) = &receipt.preview else {
        return String::new();
    };
    let verdict = match preview.verdict {
        PreviewVerdict::Matched => "the changes match the preview",
        PreviewVerdict::Differed => "DIFFERED",
        PreviewVerdict::NotPreviewed => "none",
    };
    match &preview.why {
        Some(why) => format!("{verdict}: {why}"),
        None => verdict.to_owned(),
    }
}

fn sandbox(receipt: &Receipt) -> String {
    let Some(isolation) = &receipt.isolation else {
        return String::new();
    };
    let mechanisms: Vec<_> = isolation.mechanisms.keys().map(String::as_str).collect();
    format!("{}: {}", isolation.profile, mechanisms.join(", "))
}

fn cost(receipt: &Receipt) -> String {
    let cost = &receipt.cost;
    if receipt.attempts.is_empty() {
        return String::new();
    }
    let mut parts = vec![format!("{} of processor time", cost.cpu_ms), format!("{:.4} mWh", cost.energy_mwh)];
    parts.extend(cost.peak_memory_bytes.map(|bytes| format!("{:.1} MB of memory", bytes as f64 / 1e6)));
    parts.extend(cost.bytes_written.map(|bytes| format!("{bytes} bytes written")));
    parts.join(", ")
}

fn asked(receipt: &Receipt) -> String {
    let (from, to) = (receipt.timing.started_at, receipt.timing.ended_at);
    format!("{} at {from:.3}, ended {to:.3}", receipt.principal)
}

fn reward(receipt: &Receipt) -> String {
    let parts = &receipt.reward.components;
    format!(
        "{} (success {}, quality {}, cost {}, latency {})",
        receipt.reward.scalar, parts.success, parts.quality, parts.cost, parts.latency
    )
}
