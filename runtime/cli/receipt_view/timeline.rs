//! Renders the phases of an action as a timeline.

use effectd_contracts::{Receipt, Timestamp};

/// One phase, in milliseconds after acceptance.
struct Phase {
    name: String,
    from: f64,
    to: f64,
}

/// The width of a full bar, in characters.
const BAR: f64 = 40.0;
/// Shorter phases are left out.
const SHORTEST_MS: f64 = 0.005;

/// A line for each phase: start, name, duration and a bar.
pub(super) fn lines(receipt: &Receipt) -> Vec<String> {
    let total = receipt.timing.total_ms.as_f64();
    let mut lines: Vec<String> = phases(receipt)
        .iter()
        .map(|phase| {
            let took = phase.to - phase.from;
            let bar = bar(phase.from, phase.to, total);
            format!("{:>10}  {:<21} {:>10}  {bar}", human(phase.from), phase.name, human(took))
                .trim_end()
                .to_owned()
        })
        .collect();
    lines.push(format!("{:>10}  receipt", human(total)));
    lines
}

fn phases(receipt: &Receipt) -> Vec<Phase> {
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

fn bar(from: f64, to: f64, total: f64) -> String {
    let total = total.max(SHORTEST_MS);
    let place = |time: f64| ((time / total).clamp(0.0, 1.0) * BAR).round() as usize;
    let begin = place(from).min(BAR as usize - 1);
    let length = place(to).saturating_sub(begin).max(1);
    format!("{}{}", " ".repeat(begin), "█".repeat(length))
}

/// Milliseconds below ten seconds, larger units above.
fn human(ms: f64) -> String {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../../../contracts/tests/golden/receipt.json")).unwrap()
    }

    #[test]
    fn phases_follow_each_other_and_make_up_the_whole() {
        let rendered = lines(&receipt());
        let names: Vec<&str> = rendered.iter().map(|line| line[12..].split("  ").next().unwrap()).collect();
        let expected = ["queued", "checked and claimed", "attempt 1", "compared and recorded", "receipt"];
        assert_eq!(names, expected, "{rendered:#?}");
        let found = phases(&receipt());
        assert_eq!((found[0].from, found.last().unwrap().to), (0.0, 3.5));
        for pair in found.windows(2) {
            assert_eq!(pair[0].to, pair[1].from);
        }
        assert_eq!(rendered.iter().map(|line| line.matches('█').count()).max(), Some(23), "{rendered:#?}");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_make_it_strange() {
        let mut odd = receipt();
        odd.attempts[0].started_at = "2020-01-01T00:00:00Z".parse().unwrap();
        odd.attempts.push(odd.attempts[0].clone());
        let found = phases(&odd);
        assert!(found.iter().all(|phase| phase.from <= phase.to && phase.to <= 3.5));
        odd.timing.total_ms = effectd_contracts::Millis::ZERO;
        assert_eq!(lines(&odd).len(), 1);
    }

    #[test]
    fn long_times_are_told_in_hours() {
        assert_eq!(human(0.412), "0.41 ms");
        assert_eq!(human(90_000.0), "90.0 s");
        assert_eq!(human(86_400_000.0), "24.0 h");
    }
}
