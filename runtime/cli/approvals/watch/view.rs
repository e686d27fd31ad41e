//! Draws the inbox.

use effectd_actors::preview::Preview;
use effectd_gateway::views::approvals::ApprovalView;
use effectd_gateway::views::receipt_text::span;

use super::{Inbox, Input};
use crate::cli::approval_view::{self, Row, Tone};
use crate::tui::ratatui::Frame;
use crate::tui::ratatui::layout::{Constraint, Layout, Rect};
use crate::tui::ratatui::style::{Color, Modifier, Style};
use crate::tui::ratatui::text::Line;
use crate::tui::ratatui::widgets::{Block, Borders, Paragraph, Wrap};
use crate::tui::shown;

/// Rows of the list of approvals, which scrolls with the selection.
const LISTED_MAX: u16 = 8;

/// Rows for the result of the last key and for typed text.
const NEWS_ROWS: u16 = 2;

const KEYS: &str =
    " a approve once  g grant  A always  d deny  m mark  ↑↓ choose  Enter open  PgUp/PgDn  q quit";
/// Shown while keys do nothing.
const RESTING: &str = " keys work again when none has been pressed for a moment";

pub(super) fn draw(frame: &mut Frame<'_>, inbox: &mut Inbox) {
    let listed = u16::try_from(inbox.waiting.len()).unwrap_or(LISTED_MAX).clamp(1, LISTED_MAX);
    // An opened approval has the rows of the list, too.
    let listed = if inbox.opened && inbox.chosen().is_some() { 1 } else { listed };
    let [head, list, detail, news, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(listed),
        Constraint::Min(3),
        Constraint::Length(NEWS_ROWS),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let title = format!(" effectd: {} waiting for approval", inbox.waiting.len());
    frame.render_widget(bar(&title, head), head);
    frame.render_widget(Paragraph::new(lines_of_list(inbox, list)), list);
    draw_detail(frame, inbox, detail);
    let text = shown(&news_of(inbox), width(news) * usize::from(NEWS_ROWS));
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), news);
    frame.render_widget(bar(if inbox.resting { RESTING } else { KEYS }, keys), keys);
}

fn width(area: Rect) -> usize {
    usize::from(area.width)
}

fn bar(text: &str, area: Rect) -> Line<'static> {
    let text = shown(text, width(area));
    Line::styled(
        format!("{text:<width$}", width = width(area)),
        Style::new().add_modifier(Modifier::REVERSED),
    )
}

fn news_of(inbox: &Inbox) -> String {
    match &inbox.input {
        Input::Browsing => inbox.news.clone(),
        Input::Denying(_, reason) => format!("reason? (Enter denies, Esc cancels) {reason}_"),
        Input::Confirming(_, what) => what.clone(),
    }
}

fn lines_of_list(inbox: &Inbox, area: Rect) -> Vec<Line<'static>> {
    if inbox.waiting.is_empty() {
        return vec![Line::raw("  nothing waits")];
    }
    let is_chosen = |view: &ApprovalView| Some(&view.approval_id) == inbox.chosen.as_ref();
    let at = inbox.waiting.iter().position(is_chosen).unwrap_or(0);
    let rows = usize::from(area.height).max(1);
    let first = (at + 1).saturating_sub(rows);
    let lines = inbox.waiting.iter().skip(first).take(rows).map(|view| {
        let chosen = is_chosen(view);
        let style = if chosen { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
        let marked = inbox.marked.iter().any(|(id, _)| id.as_str() == view.approval_id);
        Line::styled(shown(&line_of(view, chosen, marked), width(area)), style)
    });
    lines.collect()
}

fn line_of(view: &ApprovalView, chosen: bool, marked: bool) -> String {
    let (point, mark) = (if chosen { '>' } else { ' ' }, if marked { '*' } else { ' ' });
    let left = view.time_left_s.map(span).unwrap_or_default();
    let prompt = view.prompt.as_ref();
    let tier = prompt.map(|prompt| prompt.tier.as_str()).unwrap_or_default();
    let would = match prompt.and_then(|prompt| prompt.preview.as_ref()) {
        Some(Preview::Shown(shown)) if shown.predicted.deletes > 0 => "deletes",
        Some(Preview::Shown(_)) => "changes",
        Some(Preview::Request(_)) => "sends",
        Some(Preview::WouldFail(_)) => "fails",
        Some(Preview::Unavailable(_)) | None => "?",
    };
    let about = prompt.and_then(|prompt| prompt.about.as_deref()).unwrap_or_default();
    let (tool, about) = (shown(&view.tool_id, 20), shown(about, 24));
    let (subject, space) = (&view.subject_id, &view.space_id);
    format!("{point}{mark}{left:<12} {tier:<3} {tool:<20} {would:<8} {about:<24} {subject} in {space}")
}

fn draw_detail(frame: &mut Frame<'_>, inbox: &mut Inbox, area: Rect) {
    let block = Block::new().borders(Borders::TOP);
    let Some(view) = inbox.chosen() else {
        inbox.drawn = None;
        let hint = if inbox.waiting.is_empty() {
            "  pending approvals appear here"
        } else {
            "  choose one with the arrow keys"
        };
        frame.render_widget(Paragraph::new(hint).block(block), area);
        return;
    };
    let drawn = Some((view.approval_id.clone(), view.digest.clone()));
    let rows = approval_view::of_approval(view);
    let lines: Vec<Line<'static>> = rows.iter().map(colored).collect();
    // Do not scroll past the end.
    let columns = width(area).max(1);
    let high: usize = lines.iter().map(|line| line.width().div_ceil(columns).max(1)).sum();
    let most = high.saturating_sub(usize::from(area.height).saturating_sub(1));
    inbox.drawn = drawn;
    inbox.scroll = inbox.scroll.min(u16::try_from(most).unwrap_or(u16::MAX));
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((inbox.scroll, 0)).block(block);
    frame.render_widget(text, area);
}

fn colored(row: &Row) -> Line<'static> {
    let style = match row.tone {
        Tone::Plain => Style::new(),
        Tone::Head => Style::new().add_modifier(Modifier::BOLD),
        Tone::Warning => Style::new().fg(Color::Yellow),
        Tone::Path => Style::new().add_modifier(Modifier::UNDERLINED),
        Tone::Place => Style::new().fg(Color::Cyan),
        Tone::Added => Style::new().fg(Color::Green),
        Tone::Removed => Style::new().fg(Color::Red),
    };
    Line::styled(row.text.clone(), style)
}
