//! A receipt as a person likes to read it.

use std::fmt::Write;

use effectd_contracts::{ApprovalVerdict, Authority, Gate, GateResult, Millis, Outcome, Receipt, Timestamp};
use serde_json::{Map, Value};

/// The receipt in a few lines.
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
            let _ = writeln!(text, "  {name:<9} {value}");
        }
    };
    if let Some(failure) = &receipt.error {
        line("why", &format!("{} ({})", failure.message, failure.code));
    }
    line("inputs", &fields(&receipt.inputs));
    line("outputs", &fields(&receipt.outputs));
    line("policy", &gates(receipt));
    line("decided", &decided(receipt));
    line("approved", &approved(receipt));
    line("sandbox", &sandbox(receipt));
    line("took", &took(receipt));
    for (nth, phase) in timeline(receipt).iter().enumerate() {
        line(if nth == 0 { "timeline" } else { "" }, phase);
    }
    line("reward", &reward(receipt));
    line("receipt", receipt.receipt_id.as_str());
    line(
        "signed",
        &receipt
            .signature
            .as_ref()
            .map(|s| format!("{} by key {}", s.algorithm, s.key_id))
            .unwrap_or_default(),
    );
    format!(
        "{headline}: {} in {} for {}\n{text}",
        receipt.tool_id, receipt.space_id, receipt.subject_id
    )
}

fn words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Executed => "done",
        Outcome::CachedHit => "already done",
        Outcome::DryRun => "tried out, nothing changed",
        Outcome::Paused => "tried out, nothing changed (effects are paused)",
        Outcome::NotStarted => "not started",
        Outcome::AwaitingApproval => "waiting for a person",
        Outcome::Approved => "approved",
        Outcome::Executing => "running",
        Outcome::DeniedPolicy => "denied",
        Outcome::Quarantined => "quarantined",
        Outcome::DeniedHuman => "denied by a person",
        Outcome::Expired => "expired",
        Outcome::Invalid => "invalid",
        Outcome::NotFound => "unknown tool",
        Outcome::Throttled => "not now",
        Outcome::Reverted => "undone",
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed out",
        Outcome::BreakerOpen => "breaker open",
        Outcome::Indeterminate => "outcome unknown",
        Outcome::Cancelled => "cancelled",
    }
}

fn fields(fields: &Map<String, Value>) -> String {
    let shown = fields
        .iter()
        .filter(|(_, value)| **value != Value::Array(Vec::new()))
        .map(|(name, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), |text| text.escape_debug().to_string());
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
    Gate::ALL
        .map(|gate| format!("{} {}", gate.as_str(), word(receipt.policy.get(gate))))
        .join(", ")
}

fn decided(receipt: &Receipt) -> String {
    let Some(decision) = &receipt.decision else {
        return String::new();
    };
    let rule = decision
        .rule
        .as_ref()
        .map(|rule| format!(" by {rule}"))
        .unwrap_or_default();
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
    let edited = if approval.edited_request_digest.is_some() {
        ", with other parameters"
    } else {
        ""
    };
    format!("{word}by {}{authority} at {}{edited}", approval.by, approval.at)
}

fn sandbox(receipt: &Receipt) -> String {
    let Some(isolation) = &receipt.isolation else {
        return String::new();
    };
    let mechanisms: Vec<_> = isolation.mechanisms.keys().map(String::as_str).collect();
    format!("{}: {}", isolation.profile, mechanisms.join(", "))
}

fn took(receipt: &Receipt) -> String {
    let (timing, cost) = (&receipt.timing, &receipt.cost);
    format!(
        "{} in all; {} queued, {} in the sandbox, {} of processor time",
        timing.total_ms, timing.queued_ms, timing.exec_ms, cost.cpu_ms
    )
}

/// The phases, each at its time after acceptance, with a bar as long as its share.
fn timeline(receipt: &Receipt) -> Vec<String> {
    let timing = &receipt.timing;
    let total = timing.total_ms.as_f64();
    let at = |time: Timestamp| {
        let offset = time.duration_since(timing.started_at).as_secs_f64() * 1_000.0;
        offset.clamp(0.0, total)
    };
    let mut phases = vec![phase(0.0, "accepted", None, total)];
    if timing.queued_ms > Millis::ZERO {
        phases.push(phase(0.0, "queued", Some(timing.queued_ms), total));
    }
    phases.push(phase(timing.queued_ms.as_f64(), "taken up", None, total));
    for (nth, attempt) in receipt.attempts.iter().enumerate() {
        let code = attempt.code.map(|code| format!(" ({code})")).unwrap_or_default();
        let name = format!("attempt {}{code}", nth + 1);
        phases.push(phase(at(attempt.started_at), &name, Some(attempt.exec_ms), total));
    }
    phases.push(phase(total, "receipt", None, total));
    phases
}

/// How wide the whole time is drawn.
const BAR: f64 = 32.0;

fn phase(at_ms: f64, name: &str, took: Option<Millis>, total_ms: f64) -> String {
    let Some(took) = took else {
        return format!("{at_ms:>9.2} ms  {name}");
    };
    let share = if total_ms > 0.0 {
        took.as_f64() / total_ms
    } else {
        0.0
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of the width is small and not negative"
    )]
    let length = (share.clamp(0.0, 1.0) * BAR).round().max(1.0) as usize;
    format!(
        "{at_ms:>9.2} ms  {name:<12} {:>9.2} ms  {}",
        took.as_f64(),
        "█".repeat(length)
    )
}

fn reward(receipt: &Receipt) -> String {
    let parts = &receipt.reward.components;
    format!(
        "{} (success {}, quality {}, cost {}, latency {})",
        receipt.reward.scalar, parts.success, parts.quality, parts.cost, parts.latency
    )
}
