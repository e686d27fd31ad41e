//! Draws `effectd top`.

use effectd_contracts::Timestamp;

use super::metrics::{Figures, Rates, StageRow, ToolRow};
use super::{HELD_SHOWN_MAX, Snapshot};
use crate::tui::ratatui::Frame;
use crate::tui::ratatui::layout::{Constraint, Layout, Rect};
use crate::tui::ratatui::style::{Modifier, Style};
use crate::tui::ratatui::text::Line;
use crate::tui::ratatui::widgets::{Block, Paragraph};
use crate::tui::shown;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Focus {
    All,
    Stages,
    Tools,
    Breakers,
    Held,
    Letters,
}

pub(super) struct View<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) focus: Focus,
    /// The index of the first line of the focused list.
    pub(super) from: usize,
    pub(super) now: Timestamp,
    /// Why the figures are old, if they are.
    pub(super) error: Option<&'a str>,
}

const KEYS: &str = "s stages  t tools  b breakers  h held  d dead letters  Esc all  Up/Down  q quit";

impl View<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, keys] =
            Layout::vertical([Constraint::Length(5), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head(head.width)), head);
        frame.render_widget(Paragraph::new(shown(KEYS, keys.width.into())), keys);
        match self.focus {
            Focus::All => {
                let [tools, breakers, held, letters] =
                    Layout::vertical([Constraint::Ratio(1, 4); 4]).areas(body);
                self.panel(frame, tools, Focus::Tools);
                self.panel(frame, breakers, Focus::Breakers);
                self.panel(frame, held, Focus::Held);
                self.panel(frame, letters, Focus::Letters);
            }
            focus @ (Focus::Stages | Focus::Tools | Focus::Breakers | Focus::Held | Focus::Letters) => {
                self.panel(frame, body, focus);
            }
        }
    }

    fn head(&self, columns: u16) -> Vec<Line<'static>> {
        let figures = &self.snapshot.figures;
        let line = |text: String| Line::raw(shown(&text, columns.into()));
        let state = self.error.map_or_else(
            || {
                let paused = if self.snapshot.paused { "  PAUSED: dry runs only" } else { "" };
                let policy =
                    if self.snapshot.policy_files_faulty { "  POLICY FILES NOT IN FORCE" } else { "" };
                let damage = if self.snapshot.store_damage.is_some() { "  STORE DAMAGED" } else { "" };
                format!("effectd top  {}{paused}{policy}{damage}", second(&self.now.to_string()))
            },
            |error| format!("OLD: {error}"),
        );
        let Rates { rate, p50, p95, p99 } = self.snapshot.rates;
        let faults = if figures.faults > 0.0 {
            format!("  {} PANICS OR STALLS", figures.faults)
        } else {
            String::new()
        };
        vec![
            Line::styled(shown(&state, columns.into()), Style::new().add_modifier(Modifier::BOLD)),
            line(format!(
                "throughput {rate:.1}/s   latency p50 {}  p95 {}  p99 {}",
                time(p50),
                time(p95),
                time(p99)
            )),
            line(format!(
                "queues: {} in flight, {} backlog; store: {} queued, {} blocks behind{faults}",
                figures.in_flight, figures.backlog, figures.queued, figures.lag
            )),
            line(format!("stages: {}", self.stages().join("  "))),
        ]
    }

    /// The waiting actions and busy workers of each stage.
    fn stages(&self) -> Vec<String> {
        let stages = self.snapshot.stages.iter();
        stages.map(|row| format!("{} {}+{}", row.stage, row.waiting, row.at_work)).collect()
    }

    fn panel(&self, frame: &mut Frame<'_>, area: Rect, focus: Focus) {
        let (title, lines) = self.list(focus);
        let from = if self.focus == focus { self.from.min(lines.len()) } else { 0 };
        let columns = usize::from(area.width.saturating_sub(2));
        let text: Vec<Line<'_>> = lines
            .iter()
            .skip(from)
            .take(area.height.into())
            .map(|line| Line::raw(shown(line, columns)))
            .collect();
        frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), area);
    }

    /// The title and the lines of a list.
    pub(super) fn list(&self, focus: Focus) -> (String, Vec<String>) {
        match focus {
            Focus::All | Focus::Tools => ("tools".to_owned(), self.snapshot.tools.iter().map(tool).collect()),
            Focus::Stages => {
                let title =
                    "stages: waiting, busy, actions per second, time per action, workers, recent restarts";
                (title.to_owned(), self.snapshot.stages.iter().map(stage).collect())
            }
            Focus::Breakers => {
                let lines = self.snapshot.breakers.iter().map(|breaker| {
                    let cause = breaker.cause.as_deref().unwrap_or("-");
                    let again = breaker.retry_after_ms.map_or_else(
                        || "until it is reset".to_owned(),
                        |ms| format!("again in {:.1} s", ms as f64 / 1_000.0),
                    );
                    let again = if breaker.state == "open" { again } else { String::new() };
                    format!(
                        "{:<10} {:<12} {:>4}/{:<5} {:<18} {}",
                        breaker.state, cause, breaker.failures, breaker.calls, again, breaker.key
                    )
                });
                let count = |is: fn(&str) -> bool| {
                    self.snapshot.breakers.iter().filter(|breaker| is(&breaker.state)).count()
                };
                let (open, other) =
                    (count(|state| state == "open"), count(|state| !["open", "closed"].contains(&state)));
                let other = if other > 0 { format!(", {other} half open") } else { String::new() };
                (format!("breakers: {open} open{other}"), lines.collect())
            }
            Focus::Held => {
                let lines = self.snapshot.held.iter().map(|held| {
                    let left = held.expires_at.as_deref().map_or_else(String::new, |end| self.left(end));
                    let about = held.prompt.as_ref().and_then(|prompt| prompt.about.as_deref());
                    let (tool, subject, about) = (&held.tool_id, &held.subject_id, about.unwrap_or_default());
                    format!("{left:<10} {tool:<20} {subject}  {}  {about}", held.approval_id)
                });
                let more = if self.snapshot.held.len() >= HELD_SHOWN_MAX { " or more" } else { "" };
                (format!("held: {}{more}", self.snapshot.held.len()), lines.collect())
            }
            Focus::Letters => {
                let lines = self.snapshot.causes.iter().map(|cause| {
                    format!(
                        "{:>7}  {}  {:<18} {:<20} {}",
                        cause.count,
                        cause.cause,
                        cause.code,
                        cause.tool_id.as_deref().unwrap_or("-"),
                        cause.sample.as_deref().unwrap_or_default()
                    )
                });
                let Figures { letters, quarantined, .. } = self.snapshot.figures;
                let apart =
                    if quarantined > 0.0 { format!(", {quarantined} in quarantine") } else { String::new() };
                (format!("dead letters: {letters}{apart}"), lines.collect())
            }
        }
    }

    /// The time left to decide about an approval.
    fn left(&self, end: &str) -> String {
        let Ok(end) = end.parse::<Timestamp>() else {
            return String::new();
        };
        let seconds = end.duration_since(self.now).as_secs().max(0);
        if seconds >= 3_600 {
            format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60)
        } else {
            format!("{}m{:02}s", seconds / 60, seconds % 60)
        }
    }
}

fn stage(row: &StageRow) -> String {
    format!(
        "{:<14} {:>6} waiting {:>5} busy {:>9.1}/s   p50 {}  p95 {}  {:>3} workers {:>3} restarts",
        row.stage,
        row.waiting,
        row.at_work,
        row.rate,
        time(row.p50),
        time(row.p95),
        row.workers,
        row.restarts
    )
}

fn tool(row: &ToolRow) -> String {
    let otherwise: Vec<_> =
        row.otherwise.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
    format!(
        "{:<24} {:>8.1}/s {:>9} ended {:>9} well  {}",
        row.tool,
        row.rate,
        row.ended,
        row.well,
        otherwise.join(", ")
    )
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1_000.0),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

fn second(time: &str) -> &str {
    time.split('.').next().unwrap_or_default()
}
