//! Renders the phases of an action as a timeline.

use effectd_contracts::Receipt;
use effectd_gateway::views::receipt_text::{duration, phases};

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
            format!("{:>10}  {:<21} {:>10}  {bar}", duration(phase.from), phase.name, duration(took))
                .trim_end()
                .to_owned()
        })
        .collect();
    lines.push(format!("{:>10}  receipt", duration(total)));
    lines
}

fn bar(from: f64, to: f64, total: f64) -> String {
    let total = total.max(SHORTEST_MS);
    let place = |time: f64| ((time / total).clamp(0.0, 1.0) * BAR).round() as usize;
    let begin = place(from).min(BAR as usize - 1);
    let length = place(to).saturating_sub(begin).max(1);
    format!("{}{}", " ".repeat(begin), "█".repeat(length))
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
}
