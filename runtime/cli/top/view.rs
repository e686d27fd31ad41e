//! Draws `effectd top`.

use effectd_actors::control::switches::Off;
use effectd_contracts::Timestamp;
use effectd_gateway::views::BreakerView;
use effectd_gateway::views::approvals::ApprovalView;
use effectd_gateway::views::dead_letters::CauseView;

use super::metrics::{Figures, Rates, StageRow, ToolRow};
use super::{Cursor, HELD_SHOWN_MAX, Snapshot};
use crate::tui::ratatui::Frame;
use crate::tui::ratatui::layout::{Constraint, Layout, Rect};
use crate::tui::ratatui::style::{Modifier, Style};
use crate::tui::ratatui::text::Line;
use crate::tui::ratatui::widgets::{Block, Paragraph, Wrap};
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
    pub(super) cursor: &'a Cursor,
    pub(super) now: Timestamp,
    /// Why the figures are old, if they are.
    pub(super) error: Option<&'a str>,
}

const KEYS: &str =
    "s stages  t tools  b breakers  h held  d dead letters  Up/Down Enter open  Esc all  q quit";
const KEYS_OPENED: &str = "r reset the breaker, or requeue the newest letter  Esc back  q quit";

impl View<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, keys] =
            Layout::vertical([Constraint::Length(5), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(self.head(head.width)), head);
        let known = if self.cursor.opened.is_some() { KEYS_OPENED } else { KEYS };
        frame.render_widget(Paragraph::new(shown(known, keys.width.into())), keys);
        if let Some(name) = &self.cursor.opened {
            return self.row(frame, body, name);
        }
        match self.cursor.focus {
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
                let pause = self.snapshot.pause.as_ref();
                let paused = pause
                    .map_or_else(String::new, |pause| format!("  PAUSED{}: dry runs only", Off(pause.until)));
                let reason = pause.and_then(|pause| pause.reason.as_ref());
                let reason = reason.map_or_else(String::new, |reason| format!("  ({reason})"));
                let policy =
                    if self.snapshot.policy_files_faulty { "  POLICY FILES NOT IN FORCE" } else { "" };
                let damage = if self.snapshot.store_damage.is_some() { "  STORE DAMAGED" } else { "" };
                format!("effectd top  {}{paused}{policy}{damage}{reason}", second(&self.now.to_string()))
            },
            |error| format!("OLD: {error}"),
        );
        let Rates { rate, p50, p95, p99 } = self.snapshot.rates;
        let faults = if figures.faults > 0.0 {
            format!("  {} PANICS OR STALLS", figures.faults)
        } else {
            String::new()
        };
        let unindexed = figures.blocks_unindexed();
        let unindexed = unindexed.map_or_else(String::new, |blocks| format!("  {blocks} BLOCKS NOT INDEXED"));
        vec![
            Line::styled(shown(&state, columns.into()), Style::new().add_modifier(Modifier::BOLD)),
            line(format!(
                "throughput {rate:.1}/s   latency p50 {}  p95 {}  p99 {}",
                time(p50),
                time(p95),
                time(p99)
            )),
            line(format!(
                "queues: {} in flight, {} backlog; store: {} queued{unindexed}{faults}",
                figures.in_flight, figures.backlog, figures.queued
            )),
            line(format!("stages: {}", self.stages().join("  "))),
            line(self.cursor.news.clone()),
        ]
    }

    /// The opened row: each of its fields on lines of its own.
    fn row(&self, frame: &mut Frame<'_>, area: Rect, name: &str) {
        let lines = self.snapshot.fields(self.cursor.focus, name).into_iter();
        let text: Vec<Line<'_>> =
            lines.map(|(field, value)| Line::raw(format!("{field:<16} {value}"))).collect();
        let title = shown(name, usize::from(area.width.saturating_sub(2)));
        let text = Paragraph::new(text).wrap(Wrap { trim: false });
        frame.render_widget(text.block(Block::bordered().title(title)), area);
    }

    /// The waiting actions and busy workers of each stage.
    fn stages(&self) -> Vec<String> {
        let stages = self.snapshot.stages.iter();
        stages.map(|row| format!("{} {}+{}", row.stage, row.waiting, row.at_work)).collect()
    }

    fn panel(&self, frame: &mut Frame<'_>, area: Rect, focus: Focus) {
        let (title, lines) = self.list(focus);
        let selected = (self.cursor.focus == focus).then_some(self.cursor.row);
        let columns = usize::from(area.width.saturating_sub(2));
        let rows = usize::from(area.height.saturating_sub(2)).max(1);
        let from = selected.map_or(0, |row| (row + 1).saturating_sub(rows));
        let text: Vec<Line<'_>> = lines
            .iter()
            .enumerate()
            .skip(from)
            .take(rows)
            .map(|(at, line)| {
                let line = Line::raw(shown(line, columns));
                if Some(at) == selected { line.style(Modifier::REVERSED) } else { line }
            })
            .collect();
        frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), area);
    }

    /// The title and the lines of a list.
    fn list(&self, focus: Focus) -> (String, Vec<String>) {
        match focus {
            Focus::All | Focus::Tools => ("tools".to_owned(), self.snapshot.tools.iter().map(tool).collect()),
            Focus::Stages => {
                let title =
                    "stages: waiting, busy, actions per second, time per action, workers, recent restarts";
                (title.to_owned(), self.snapshot.stages.iter().map(stage).collect())
            }
            Focus::Breakers => {
                let lines = self.snapshot.breakers.iter().map(breaker);
                let count = |is: fn(&str) -> bool| {
                    self.snapshot.breakers.iter().filter(|breaker| is(&breaker.state)).count()
                };
                let (open, other) =
                    (count(|state| state == "open"), count(|state| !["open", "closed"].contains(&state)));
                let other = if other > 0 { format!(", {other} half open") } else { String::new() };
                (format!("breakers: {open} open{other}"), lines.collect())
            }
            Focus::Held => {
                let lines = self.snapshot.held.iter().map(|row| held(row, self.now));
                let more = if self.snapshot.held.len() >= HELD_SHOWN_MAX { " or more" } else { "" };
                (format!("held: {}{more}", self.snapshot.held.len()), lines.collect())
            }
            Focus::Letters => {
                let Figures { letters, quarantined, .. } = self.snapshot.figures;
                let apart =
                    if quarantined > 0.0 { format!(", {quarantined} in quarantine") } else { String::new() };
                let lines = self.snapshot.causes.iter().map(cause);
                (format!("dead letters: {letters}{apart}"), lines.collect())
            }
        }
    }
}

pub(super) fn breaker(row: &BreakerView) -> String {
    let again = match (row.state.as_str(), row.retry_after_ms) {
        ("open", Some(ms)) => format!("again in {:.1} s", ms as f64 / 1_000.0),
        ("open", None) => "until it is reset".to_owned(),
        _ => String::new(),
    };
    let cause = row.cause.as_deref().unwrap_or("-");
    format!("{:<10} {cause:<12} {:>4}/{:<5} {again:<18} {}", row.state, row.failures, row.calls, row.key)
}

pub(super) fn held(row: &ApprovalView, now: Timestamp) -> String {
    let left = row.expires_at.as_deref().map_or_else(String::new, |end| left(end, now));
    let about = row.prompt.as_ref().and_then(|prompt| prompt.about.as_deref());
    let (tool, subject, about) = (&row.tool_id, &row.subject_id, about.unwrap_or_default());
    format!("{left:<10} {tool:<20} {subject}  {}  {about}", row.approval_id)
}

pub(super) fn cause(row: &CauseView) -> String {
    let (tool, sample) = (row.tool_id.as_deref().unwrap_or("-"), row.sample.as_deref().unwrap_or_default());
    format!("{:>7}  {}  {:<18} {tool:<20} {sample}", row.count, row.cause, row.code)
}

/// The time left to decide about an approval.
fn left(end: &str, now: Timestamp) -> String {
    let Ok(end) = end.parse::<Timestamp>() else {
        return String::new();
    };
    let seconds = end.duration_since(now).as_secs().max(0);
    if seconds >= 3_600 {
        format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60)
    } else {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
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

pub(super) fn tool(row: &ToolRow) -> String {
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

pub(super) fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1_000.0),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

fn second(time: &str) -> &str {
    time.split('.').next().unwrap_or_default()
}
