//! Renders a receipt as text.

mod effects;
mod timeline;

use std::fmt::Write;

use effectd_contracts::{AmendmentEntry, Gate, GateResult, Outcome, PreviewVerdict, Receipt};
pub(super) use effectd_gateway::views::receipt_text::redacted;
use effectd_gateway::views::receipt_text::{Ending, approved, sent, words};
use serde_json::{Map, Value};

use super::output::{Tone, headed};
use crate::tui::shown;

/// How much of a receipt is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// What was done, why, what changed and how to undo it.
    Short,
    Full,
}

/// Prints a receipt. `before`: it existed before the request.
pub(super) fn print(it: &Receipt, before: bool, detail: Detail) {
    let text = match detail {
        Detail::Short => short(it, before),
        Detail::Full => receipt(it, before),
    };
    headed(&text, tone(it.outcome));
}

fn tone(outcome: Outcome) -> Tone {
    match Ending::of(outcome) {
        Ending::Good => Tone::Good,
        Ending::Waiting => Tone::Waiting,
        Ending::Bad => Tone::Bad,
    }
}

/// Adds a line; nothing if it has no value.
fn add(text: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<9} {}", printable(value));
    }
}

/// The first line: what was asked, and how it ended.
fn headline(receipt: &Receipt, before: bool) -> String {
    let undone = receipt.outputs.get("already_undone") == Some(&Value::Bool(true));
    let ended = match (receipt.outcome, before) {
        (Outcome::Executed, _) if undone => "already undone",
        (Outcome::Executed, true) => "already done",
        (Outcome::Executed, false) => "done",
        (outcome, _) => words(outcome),
    };
    let about = format!("{ended}: {} in {} for {}", receipt.tool_id, receipt.space_id, receipt.subject_id);
    format!("{}\n", printable(&about))
}

fn failure(receipt: &Receipt) -> Option<String> {
    receipt.error.as_ref().map(|failure| format!("{} ({})", failure.message, failure.code))
}

/// What was done, why, what changed, and how to undo it.
fn short(receipt: &Receipt, before: bool) -> String {
    let mut text = headline(receipt, before);
    let mut line = |name: &str, value: &str| add(&mut text, name, value);
    line("redacted", &redacted(&receipt.redactions));
    let public = receipt.inputs.iter().filter(|(name, _)| !name.starts_with(DIGEST));
    line("with", &fields(&public.map(|(name, value)| (name.clone(), value.clone())).collect()));
    let rule = |rule: &String| format!("permitted by {rule}");
    let permitted = receipt.decision.as_ref().and_then(|decision| decision.rule.as_ref()).map(rule);
    line("why", &failure(receipt).or(permitted).unwrap_or_default());
    line("approved", &approved(receipt));
    for (nth, change) in effects::changes(receipt).iter().enumerate() {
        line(if nth == 0 { "changed" } else { "" }, change);
    }
    for (nth, request) in receipt.egress.iter().enumerate() {
        line(if nth == 0 { "sent" } else { "" }, &sent(request));
    }
    line("undo", &effects::undo(receipt).unwrap_or_default());
    line("receipt", receipt.receipt_id.as_str());
    text
}

/// Inputs that are not public are in a receipt as digests with this prefix.
const DIGEST: &str = "hmac_sha256_";

/// All of a receipt.
fn receipt(receipt: &Receipt, before: bool) -> String {
    let mut text = headline(receipt, before);
    let mut line = |name: &str, value: &str| add(&mut text, name, value);
    line("redacted", &redacted(&receipt.redactions));
    line("why", &failure(receipt).unwrap_or_default());
    line("inputs", &fields(&receipt.inputs));
    line("outputs", &fields(&receipt.outputs));
    for (nth, change) in effects::changes(receipt).iter().enumerate() {
        line(if nth == 0 { "changed" } else { "" }, change);
    }
    for (nth, request) in receipt.egress.iter().enumerate() {
        line(if nth == 0 { "sent" } else { "" }, &sent(request));
    }
    line("undo", &effects::undo(receipt).unwrap_or_default());
    line("cleaned", &receipt.cleaned_up.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
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
    text
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
