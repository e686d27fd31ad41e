//! Receipts in words: what the terminal and the console both say about one.

use effectd_contracts::{
    ApprovalVerdict, Authority, EgressRecord, Outcome, PathChange, PathState, Receipt, Redaction, Timestamp,
};

/// Shorter phases are left out.
const SHORTEST_MS: f64 = 0.005;

/// Whether an ending is one that somebody hoped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Good,
    /// Not yet, or not without somebody.
    Waiting,
    Bad,
}

impl Ending {
    pub const fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Executed | Outcome::CachedHit | Outcome::DryRun | Outcome::Approved => Ending::Good,
            Outcome::Paused
            | Outcome::NotStarted
            | Outcome::AwaitingApproval
            | Outcome::Executing
            | Outcome::Quarantined
            | Outcome::Throttled
            | Outcome::BreakerOpen
            | Outcome::Cancelled => Ending::Waiting,
            Outcome::DeniedPolicy
            | Outcome::DeniedHuman
            | Outcome::Expired
            | Outcome::Invalid
            | Outcome::NotFound
            | Outcome::Reverted
            | Outcome::Failed
            | Outcome::TimedOut
            | Outcome::Indeterminate => Ending::Bad,
        }
    }
}

/// How an action ended, for people.
pub const fn words(outcome: Outcome) -> &'static str {
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

/// What redaction removes: `1 email in /text, 2 phone in /text`.
pub fn redacted(redactions: &[Redaction]) -> String {
    let entries = redactions.iter().map(|entry| {
        let field = if entry.field.is_empty() { "other fields" } else { &entry.field };
        format!("{} {} in {field}", entry.count, entry.kind.as_str())
    });
    entries.collect::<Vec<_>>().join(", ")
}

/// What went over the network in one request.
pub fn sent(record: &EgressRecord) -> String {
    let EgressRecord { host, address, method, status, fault, bytes_out, bytes_in, ms, .. } = record;
    let at = address.as_ref().map(|address| format!(" ({address})")).unwrap_or_default();
    let answer = match (status, fault) {
        (Some(status), _) => format!("answered {status}"),
        (None, Some(fault)) => format!("no answer: {}", fault.as_str().replace('_', " ")),
        (None, None) if method.is_sql() => "answered".to_owned(),
        (None, None) => "no answer".to_owned(),
    };
    let took = duration(ms.as_f64());
    format!("{} to {host}{at}, {answer}, {bytes_out} bytes out, {bytes_in} in, {took}", method.as_str())
}

/// Who approved it or refused, and when.
pub fn approved(receipt: &Receipt) -> String {
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

/// What became of a path.
pub fn change(change: &PathChange) -> String {
    match (&change.before, &change.after) {
        (PathState::Absent, now) => format!("created, {}", standing(now)),
        (_, PathState::Absent) => "deleted".to_owned(),
        (PathState::File(before), PathState::File(after)) if before.digest == after.digest => {
            format!("permissions {:o}, before {:o}", after.mode, before.mode)
        }
        (before, now) => format!("{}, before {}", standing(now), standing(before)),
    }
}

/// What is at a path.
pub(crate) fn standing(standing: &PathState) -> String {
    match standing {
        PathState::Absent => "nothing".to_owned(),
        PathState::Folder => "a folder".to_owned(),
        PathState::File(file) => format!("{} bytes", file.bytes),
        PathState::Other => "a link, pipe or device".to_owned(),
    }
}

/// One phase, in milliseconds after acceptance.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    pub name: String,
    pub from: f64,
    pub to: f64,
}

/// What an action did one after the other, from its acceptance to its receipt.
pub fn phases(receipt: &Receipt) -> Vec<Phase> {
    let timing = &receipt.timing;
    let total = timing.total_ms.as_f64();
    let at = |time: Timestamp| {
        let offset = time.duration_since(timing.started_at).as_secs_f64() * 1_000.0;
        offset.clamp(0.0, total)
    };
    let mut row = Row::default();
    let person = receipt.approval.as_ref().filter(|approval| approval.asked_at > timing.started_at);
    if let Some(approval) = person {
        // With an approval, time in queues is part of the phases before and after it.
        row.until(at(approval.asked_at), "checked");
        row.until(at(approval.at), "awaiting approval");
    } else {
        row.until(timing.queued_ms.as_f64().min(total), "queued");
    }
    for (nth, attempt) in receipt.attempts.iter().enumerate() {
        let from = at(attempt.started_at);
        row.until(from, if nth == 0 { "checked and claimed" } else { "paused" });
        let code = attempt.code.map(|code| format!(" ({code})")).unwrap_or_default();
        let end = (from + attempt.exec_ms.as_f64()).min(total);
        row.until(end, &format!("attempt {}{code}", nth + 1));
    }
    let ran = !receipt.attempts.is_empty();
    row.until(total, if ran { "compared and recorded" } else { "checked and recorded" });
    row.phases
}

#[derive(Default)]
struct Row {
    phases: Vec<Phase>,
    reached: f64,
}

impl Row {
    /// Adds a phase that ends at `to`. A phase never ends before it begins, even if the wall clock was set back.
    fn until(&mut self, to: f64, name: &str) {
        if to - self.reached < SHORTEST_MS {
            return;
        }
        self.phases.push(Phase { name: name.to_owned(), from: self.reached, to });
        self.reached = to;
    }
}

/// Milliseconds below ten seconds, larger units above.
pub fn duration(ms: f64) -> String {
    if ms < 10_000.0 {
        format!("{ms:.2} ms")
    } else if ms < 600_000.0 {
        format!("{:.1} s", ms / 1_000.0)
    } else if ms < 36_000_000.0 {
        format!("{:.1} min", ms / 60_000.0)
    } else {
        format!("{:.1} h", ms / 3_600_000.0)
    }
}

/// A number of seconds in its two largest units: `23 h 59 min`.
pub fn span(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../../../contracts/tests/golden/receipt.json")).unwrap()
    }

    #[test]
    fn a_span_has_its_two_largest_units() {
        let said = [0, 59, 60, 3_599, 3_600, 86_399, 90_000].map(span);
        assert_eq!(said, ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "23 h 59 min", "1 d 1 h"]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_make_it_strange() {
        let mut odd = receipt();
        odd.attempts[0].started_at = "2020-01-01T00:00:00Z".parse().unwrap();
        odd.attempts.push(odd.attempts[0].clone());
        let found = phases(&odd);
        assert!(found.iter().all(|phase| phase.from <= phase.to && phase.to <= 3.5));
        odd.timing.total_ms = effectd_contracts::Millis::ZERO;
        assert!(phases(&odd).is_empty());
    }

    #[test]
    fn long_times_are_told_in_hours() {
        assert_eq!(duration(0.412), "0.41 ms");
        assert_eq!(duration(90_000.0), "90.0 s");
        assert_eq!(duration(86_400_000.0), "24.0 h");
    }
}
