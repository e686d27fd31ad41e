//! Renders approvals and previews as rows, for `approvals show`, the inbox and `preview`.
//!
//! Most of the text comes from planners and tools. Every row is made safe for the terminal here.

use effectd_actors::preview::{Change, Diff, Preview, RequestShown};
use effectd_contracts::text::counted;
use effectd_contracts::{PathState, Redaction};
use effectd_gateway::views::approvals::{ApprovalView, PreviewView, PromptView, UsedConnection};
use effectd_gateway::views::receipt_text::span;
use serde_json::Value;

use super::output::line;
use super::receipt_view::redacted;
use crate::tui::shown;

/// The longest row in columns; longer ones are cut.
const COLUMNS_MAX: usize = 1_024;
/// The number of characters of a digest that are shown.
const DIGEST_CHARS: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Head,
    Plain,
    Warning,
    Path,
    /// The position of a hunk in a diff.
    Place,
    Added,
    Removed,
}

/// One row, safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) tone: Tone,
    pub(super) text: String,
}

#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, tone: Tone, text: &str) {
        let text = shown(text, COLUMNS_MAX);
        self.0.push(Row { tone, text });
    }

    fn named(&mut self, name: &str, text: &str) {
        self.add(Tone::Plain, &format!("  {name:<9} {text}"));
    }

    fn warning(&mut self, name: &str, text: &str) {
        self.add(Tone::Warning, &format!("  {name:<9} {text}"));
    }

    fn redactions(&mut self, redactions: &[Redaction], might_run: bool) {
        if !redactions.is_empty() {
            let then = if might_run { ": the tool gets placeholders" } else { "" };
            self.warning("redacted", &format!("{}{then}", redacted(redactions)));
        }
    }
}

pub(super) fn print(rows: &[Row]) {
    for row in rows {
        line(&row.text);
    }
}

pub(super) fn of_approval(view: &ApprovalView) -> Vec<Row> {
    let mut rows = Rows::default();
    rows.add(Tone::Head, &format!("{}: {} in {}", view.state, view.tool_id, view.space_id));
    if let Some(prompt) = &view.prompt {
        rows.redactions(&prompt.redactions, true);
    }
    rows.named("asked by", &format!("{}, for {}", view.principal, view.subject_id));
    if let Some(prompt) = &view.prompt {
        asked(&mut rows, prompt);
    }
    if let Some(decided) = &view.decided {
        rows.named("decided", &format!("by {} at {}", decided.by, decided.at));
        if let Some(reason) = &decided.reason {
            rows.named("because", reason);
        }
    }
    if let Some(expires) = &view.expires_at {
        let left = view.time_left_s.map(|left| format!(", {} left", span(left)));
        rows.named("until", &format!("{expires}{}", left.unwrap_or_default()));
    }
    rows.named("actions", &view.action_ids.join(", "));
    rows.named("digest", &view.digest);
    if let Some(preview) = view.prompt.as_ref().and_then(|prompt| prompt.preview.as_ref()) {
        of_preview(&mut rows, preview);
    }
    rows.0
}

fn asked(rows: &mut Rows, prompt: &PromptView) {
    for reason in &prompt.reasons {
        rows.named("why", reason);
    }
    if let Some(because) = &prompt.because {
        rows.warning("again", because);
    }
    if let Some(rationale) = &prompt.rationale {
        let sure = rationale.confidence.map(|sure| format!("{:.0} % sure", sure * 100.0));
        let said = [sure, rationale.reason.clone()];
        let said: Vec<String> = said.into_iter().flatten().collect();
        rows.named("planner", &said.join(": "));
    }
    rows.named("risk", &format!("{}, by {}, tool version {}", prompt.tier, prompt.rule, prompt.tool_version));
    if let Some(UsedConnection { connection_id, name, version }) = &prompt.connection {
        let name = name.as_deref().unwrap_or("a deleted connection");
        rows.named("over", &format!("{name}, version {version}, connection {connection_id}"));
    }
    for (name, value) in prompt.contract.iter().filter_map(Value::as_object).flatten() {
        rows.named("contract", &format!("{name} = {value}"));
    }
    for (name, value) in &prompt.named_params() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        rows.named("with", &format!("{name} = {text}"));
    }
    if !prompt.hidden.is_empty() {
        rows.warning("hidden", &format!("{}: the tool gets it", redacted(&prompt.hidden)));
    }
    for stands in &prompt.stands {
        rows.named("there is", stands);
    }
    if prompt.dry_run {
        rows.named("only", "dry run: nothing would change");
    }
}

pub(super) fn of_request(view: &PreviewView) -> Vec<Row> {
    let mut rows = Rows::default();
    let headline = match view.verdict.as_str() {
        "permit" => "would be done",
        "needs_approval" => "a person would be asked",
        "quarantine" => "would be quarantined",
        _ => "would be denied",
    };
    rows.add(Tone::Head, &format!("{headline}: {} in {}", view.tool_id, view.space_id));
    rows.redactions(&view.redactions, matches!(view.verdict.as_str(), "permit" | "needs_approval"));
    for reason in &view.reasons {
        rows.named("why", reason);
    }
    rows.named("risk", &format!("{}, by {}", view.tier, view.rule));
    of_preview(&mut rows, &view.preview);
    rows.0
}

fn of_preview(rows: &mut Rows, preview: &Preview) {
    match preview {
        Preview::Unavailable(why) => rows.warning("preview", why),
        Preview::WouldFail(failure) => {
            let text = format!(
                "the tool would fail, and nothing would change: {} ({})",
                failure.message, failure.code
            );
            rows.warning("preview", &text);
        }
        Preview::Request(request) => sent(rows, request),
        Preview::Shown(shown) => {
            let predicted = &shown.predicted;
            let text = format!(
                "{} to change, {} to delete, {} bytes new",
                counted(predicted.files, "path"),
                counted(predicted.deletes, "path"),
                predicted.bytes
            );
            if predicted.deletes > 0 {
                rows.warning("preview", &text);
            } else {
                rows.named("preview", &text);
            }
            for change in &shown.changes {
                of_change(rows, change);
            }
            if shown.cut {
                rows.warning("more", "more changes follow that are not listed");
            }
            for asked in &shown.requests {
                rows.named("sends", &format!("items[{}]", asked.item));
                sent(rows, &asked.request);
            }
        }
    }
}

fn sent(rows: &mut Rows, request: &RequestShown) {
    rows.named("request", &format!("{} {}", request.method.as_str(), request.url));
    for (name, value) in &request.headers {
        rows.named(name, value);
    }
    match &request.body {
        Some(diff) => of_diff(rows, diff),
        None if request.body_bytes > 0 => {
            rows.warning("body", &format!("{} bytes that are not text", request.body_bytes));
        }
        None => {}
    }
}

fn of_change(rows: &mut Rows, change: &Change) {
    let moved = change.moved_to.as_ref().map(|to| format!(", moved to {to}"));
    rows.add(Tone::Path, &format!("{}{}", change.path, moved.unwrap_or_default()));
    rows.named("before", &standing(&change.before));
    rows.named("after", &standing(&change.after));
    let Some(diff) = &change.diff else {
        if let Some(why) = change.left_out {
            rows.warning("not shown", &format!("not compared: {}", why.as_str()));
        }
        return;
    };
    of_diff(rows, diff);
}

fn of_diff(rows: &mut Rows, diff: &Diff) {
    // Split only at real line breaks; other control characters are shown as text.
    for text in diff.text.trim_end_matches('\n').split('\n') {
        let tone = match text.as_bytes().first() {
            Some(b'+') => Tone::Added,
            Some(b'-') => Tone::Removed,
            Some(b'@') => Tone::Place,
            Some(_) | None => Tone::Plain,
        };
        rows.add(tone, &format!("    {text}"));
    }
    if diff.cut {
        rows.warning("more", "the text is truncated");
    }
    if diff.redacted {
        rows.warning("hidden", "secrets and personal data are not shown");
    }
}

fn standing(standing: &PathState) -> String {
    match standing {
        PathState::Absent => "nothing".to_owned(),
        PathState::Folder => "a folder".to_owned(),
        PathState::Other => "a link, pipe or device".to_owned(),
        PathState::File(state) => {
            let digest = state.digest.rsplit(':').next().unwrap_or_default();
            let digest: String = digest.chars().take(DIGEST_CHARS).collect();
            format!("file, {} bytes, mode {:03o}, {digest}…", state.bytes, state.mode)
        }
    }
}
