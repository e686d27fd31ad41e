//! `effectd top --once`: one page of text, what is not normal first.

use effectd_actors::control::switches::Off;
use effectd_contracts::Timestamp;
use effectd_contracts::text::counted;
use serde::Serialize;
use serde_json::Value;

use super::metrics::{Rates, whole};
use super::view::{self, Focus, time, tool};
use super::{Pause, Snapshot};
use crate::tui::shown;

/// The number of rows of each list.
const ROWS_MAX: usize = 10;
/// The length of a row, so that text from a tool does not fill the page.
const COLUMNS_MAX: usize = 160;

pub(super) struct Page {
    pub(super) head: String,
    pub(super) is_normal: bool,
    pub(super) lines: Vec<String>,
}

impl Snapshot {
    pub(super) fn page(&self, now: Timestamp) -> Page {
        let mut lines = Vec::new();
        let mut faults = 0;
        for (what, rows) in self.abnormal(now) {
            faults += 1;
            lines.push(format!("! {what}"));
            lines.extend(bounded(rows));
        }
        let head = match faults {
            0 => "everything is normal".to_owned(),
            1 => "1 thing is not normal".to_owned(),
            faults => format!("{faults} things are not normal"),
        };
        let Rates { rate, p50, p95, p99 } = self.rates;
        let figures = &self.figures;
        lines.push(format!(
            "throughput  {rate:.1}/s; latency p50 {}, p95 {}, p99 {}",
            time(p50),
            time(p95),
            time(p99)
        ));
        lines.push(format!(
            "queues      {} in flight, {} backlog; store: {} queued",
            figures.in_flight, figures.backlog, figures.queued
        ));
        if !self.tools.is_empty() {
            lines.push("tools".to_owned());
            lines.extend(bounded(self.tools.iter().map(tool).collect()));
        }
        Page { head, is_normal: faults == 0, lines }
    }

    /// What is not normal, each with what to do and its rows.
    fn abnormal(&self, now: Timestamp) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        if let Some(Pause { until, reason }) = &self.pause {
            let until = Off(*until);
            let what = format!("effects are paused{until}, and every action is a dry run: `effectd resume`");
            found.push((what, reason.iter().map(|reason| format!("reason: {reason}")).collect()));
        }
        if let Some(damage) = &self.store_damage {
            found.push(("the store is damaged: `effectd store check`".to_owned(), vec![damage.clone()]));
        }
        if self.policy_files_faulty {
            let what = "the policy's files have a fault and are not in force: `effectd check policy`";
            found.push((what.to_owned(), Vec::new()));
        }
        if !self.failed_jobs.is_empty() {
            found.push(("scheduled jobs failed: `effectd check jobs`".to_owned(), self.failed_jobs.clone()));
        }
        if let Some(blocks) = self.figures.blocks_unindexed() {
            let what = format!("the disk is too slow for the store: {blocks} blocks wait for the index");
            found.push((what, Vec::new()));
        }
        if self.figures.faults > 0.0 {
            let count = counted(whole(self.figures.faults), "fault");
            found.push((
                format!("{count} of workers (panics, stalls) since the start: see the log"),
                Vec::new(),
            ));
        }
        let restarted = self.stages.iter().filter(|row| row.restarts > 0);
        let restarted: Vec<String> =
            restarted.map(|row| format!("{}: {}", row.stage, counted(row.restarts, "restart"))).collect();
        if !restarted.is_empty() {
            found.push(("stages were restarted: see the log".to_owned(), restarted));
        }
        let open: Vec<String> =
            self.breakers.iter().filter(|row| row.state != "closed").map(view::breaker).collect();
        if !open.is_empty() {
            let what =
                format!("{} not closed: `effectd breaker reset KEY`", counted(open.len() as u64, "breaker"));
            found.push((what, open));
        }
        let letters = whole(self.figures.letters);
        if letters > 0 {
            let what =
                format!("{}, by cause: `effectd dlq requeue --cause CAUSE`", counted(letters, "dead letter"));
            let causes = self.causes.iter().filter(|cause| !cause.is_quarantined());
            found.push((what, causes.map(view::cause).collect()));
        }
        let quarantined = whole(self.figures.quarantined);
        if quarantined > 0 {
            let count = counted(quarantined, "action");
            found.push((format!("{count} in quarantine: `effectd quarantine list`"), Vec::new()));
        }
        if !self.held.is_empty() {
            let count = counted(self.held.len() as u64, "question");
            let rows = self.held.iter().map(|row| view::held(row, now)).collect();
            found.push((format!("{count} for a person: `effectd approvals watch`"), rows));
        }
        found
    }

    /// The fields of one row, safe to show.
    pub(super) fn fields(&self, focus: Focus, name: &str) -> Vec<(String, String)> {
        fn of(row: Option<&impl Serialize>) -> Vec<(String, String)> {
            let Some(Value::Object(fields)) = row.and_then(|row| serde_json::to_value(row).ok()) else {
                return Vec::new();
            };
            let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            fields.into_iter().map(|(field, value)| (field, shown(&text(value), usize::MAX))).collect()
        }
        match focus {
            Focus::Stages => of(self.stages.iter().find(|row| row.stage == name)),
            Focus::Tools => of(self.tools.iter().find(|row| row.tool == name)),
            Focus::Breakers => of(self.breakers.iter().find(|row| row.key == name)),
            Focus::Letters => of(self.causes.iter().find(|row| row.cause == name)),
            Focus::All | Focus::Held => Vec::new(),
        }
    }
}

/// The first rows, cut; the last one says how many more there are.
fn bounded(rows: Vec<String>) -> Vec<String> {
    let all = rows.len();
    let mut lines: Vec<String> =
        rows.into_iter().take(ROWS_MAX).map(|row| shown(&format!("  {row}"), COLUMNS_MAX)).collect();
    if all > ROWS_MAX {
        lines.push(format!("  … and {} more", all - ROWS_MAX));
    }
    lines
}

#[cfg(test)]
mod tests {
    use effectd_bus::stats::INDEX_LAG_BLOCKS;

    use super::super::metrics::Figures;
    use super::*;

    #[test]
    fn blocks_of_a_memtable_that_is_not_due_are_normal() {
        let page = |lag: u32| {
            let figures = Figures::read(&format!("{INDEX_LAG_BLOCKS} {lag}\n"));
            Snapshot { figures, ..Snapshot::default() }.page(Timestamp::default())
        };
        let normal = page(8_192);
        assert!(normal.is_normal && !normal.lines.concat().contains("index"), "{:?}", normal.lines);
        let behind = page(8_193);
        assert!(!behind.is_normal);
        assert!(behind.lines[0].ends_with("8193 blocks wait for the index"), "{:?}", behind.lines);
    }
}
