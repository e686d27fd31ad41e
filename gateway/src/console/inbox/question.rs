//! One question as it is shown: what would change, why a person is asked, and what happened to equal ones before.

use effectd_actors::preview::{Change, Preview};
use effectd_contracts::text::counted;
use effectd_contracts::{Approval, PathState, Redaction, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::client::percent_encoded;
use crate::console::api::Api;
use crate::console::page::Form;
use crate::problem::{Kind, Problem};
use crate::text::shown_lines;
use crate::views::approvals::{ApprovalView, PreviewView, PromptView, StandingView};
use crate::views::grants::GrantWould;
use crate::views::receipts::ReceiptList;

/// Lines of one parameter that are shown; the diff has what matters of a longer text.
const LINES_MAX: usize = 200;
const COLUMNS_MAX: usize = 1_000;
/// Equal actions before.
const BEFORE_MAX: usize = 5;
const TRUNCATED: &str = "_truncated";
/// The parameter that the tool gets from the request.
const SPACE: &str = "space_id";
/// What the placeholders of texts that may not be shown begin with.
const REDACTED: &str = "[redacted:";

/// What the page offers beside the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    #[default]
    Look,
    Edit,
    Grant,
    Always,
}

/// A question in the queue.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) url: String,
    pub(super) tool: String,
    pub(super) about: String,
    pub(super) subject: String,
    pub(super) space: String,
    pub(super) tier: String,
    pub(super) digest: String,
    pub(super) left_s: u64,
    pub(super) left: String,
    pub(super) counts: String,
    pub(super) rationale: String,
    pub(super) current: bool,
}

impl Row {
    pub(super) fn of(view: &ApprovalView, current: &str, after: Option<&str>) -> Self {
        let prompt = view.prompt.as_ref();
        let preview = prompt.and_then(|prompt| prompt.preview.as_ref());
        let after = after.map(|after| format!("?after={}", percent_encoded(after)));
        let left_s = view.time_left_s.unwrap_or_default();
        Self {
            url: url(&view.approval_id) + &after.unwrap_or_default(),
            tool: view.tool_id.clone(),
            about: prompt.and_then(|prompt| prompt.about.clone()).unwrap_or_default(),
            subject: view.subject_id.clone(),
            space: view.space_id.clone(),
            tier: prompt.map_or_else(String::new, |prompt| prompt.tier.clone()),
            digest: view.digest.clone(),
            left_s,
            left: span(left_s),
            counts: preview.map_or_else(String::new, counts),
            rationale: prompt.and_then(rationale).unwrap_or_default(),
            current: view.approval_id == current,
            id: view.approval_id.clone(),
        }
    }
}

pub(super) struct Question {
    pub(super) id: String,
    pub(super) url: String,
    pub(super) tool: String,
    pub(super) about: String,
    pub(super) subject: String,
    pub(super) space: String,
    pub(super) principal: String,
    pub(super) digest: String,
    pub(super) state: String,
    pub(super) is_pending: bool,
    pub(super) left_s: u64,
    pub(super) left: String,
    pub(super) tier: String,
    pub(super) rule: String,
    pub(super) version: String,
    pub(super) session: String,
    pub(super) round: u32,
    pub(super) dry_run: bool,
    pub(super) grant_allowed: bool,
    pub(super) reasons: Vec<String>,
    pub(super) because: Option<String>,
    pub(super) rationale: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) preview: Option<Changes>,
    pub(super) params: Vec<Param>,
    pub(super) before: Vec<Past>,
    pub(super) facts: Vec<(&'static str, String)>,
    pub(super) decided: Option<String>,
    /// Lines that it lost (`-`) and got (`+`) since it was shown to this browser.
    pub(super) changed: Vec<(char, String)>,
    /// The question after this one.
    pub(super) next: String,
    pub(super) edit: Option<Vec<Field>>,
    pub(super) edited: Option<Edited>,
    pub(super) grant: Option<u64>,
    pub(super) always: Option<StandingView>,
    how: How,
}

pub(super) struct Param {
    pub(super) name: String,
    pub(super) line: String,
    /// A text of several lines.
    pub(super) lines: Vec<String>,
}

/// An equal action before: the same tool, subject and space.
pub(super) struct Past {
    pub(super) at: String,
    pub(super) tone: &'static str,
    pub(super) outcome: String,
    pub(super) decided: String,
}

/// What would change.
pub(super) struct Changes {
    pub(super) summary: String,
    pub(super) note: Option<String>,
    pub(super) changes: Vec<ChangedPath>,
    pub(super) cut: bool,
}

pub(super) struct ChangedPath {
    pub(super) path: String,
    pub(super) moved_to: Option<String>,
    pub(super) was: String,
    pub(super) becomes: String,
    pub(super) note: Option<String>,
    pub(super) blocks: Vec<Block>,
}

/// A part of a diff. On a wide screen, the old and the new lines of a change stand side by side.
pub(super) enum Block {
    Place(String),
    Same(u32, String),
    Changed(Vec<(char, u32, String)>),
}

/// Edited parameters and what they would change.
pub(super) struct Edited {
    pub(super) digest: String,
    /// In JSON, as the approval sends them.
    pub(super) params: String,
    pub(super) said: String,
    pub(super) preview: Changes,
}

impl Edited {
    pub(super) fn of(view: PreviewView, params: Map<String, Value>) -> Self {
        let said = format!(
            "The policy says {}, tier {}. {}",
            words(&view.verdict),
            view.tier,
            view.reasons.join("; ")
        );
        Self {
            digest: view.digest.unwrap_or_default(),
            params: Value::Object(params).to_string(),
            said,
            preview: Changes::of(&view.preview),
        }
    }
}

/// A field of the form for other parameters, made from the tool's schema.
pub(super) struct Field {
    pub(super) name: String,
    /// `line`, `lines`, `number`, `check` or `json`, which is one of lines.
    pub(super) kind: &'static str,
    pub(super) value: String,
    pub(super) rows: usize,
    pub(super) hint: String,
}

impl Question {
    pub(super) async fn load(
        api: &Api,
        view: ApprovalView,
        (how, edited): (How, Option<Edited>),
        next: String,
    ) -> Result<Self, Problem> {
        let path = format!("/v1/approvals/{}", percent_encoded(&view.approval_id));
        let prompt = view.prompt.as_ref();
        let is_pending = view.state == "pending";
        let how = if is_pending && edited.is_none() { how } else { How::Look };
        let edit = match prompt.filter(|_| how == How::Edit) {
            Some(prompt) => Some(fields(&schema(api, &view.tool_id).await?, prompt)?),
            None => None,
        };
        let grant = match how {
            How::Grant => Some(api.get::<GrantWould>(&format!("{path}/grant?calls_max=10")).await?.released),
            How::Look | How::Edit | How::Always => None,
        };
        let always = match how {
            How::Always => Some(api.get::<StandingView>(&format!("{path}/always")).await?),
            How::Look | How::Edit | How::Grant => None,
        };
        let left_s = view.time_left_s.unwrap_or_default();
        Ok(Self {
            before: before(api, &view).await.unwrap_or_default(),
            url: url(&view.approval_id),
            about: prompt.and_then(|prompt| prompt.about.clone()).unwrap_or_default(),
            is_pending,
            left_s,
            left: span(left_s),
            tier: prompt.map_or_else(String::new, |prompt| prompt.tier.clone()),
            rule: prompt.map_or_else(String::new, |prompt| prompt.rule.clone()),
            version: prompt.map_or_else(String::new, |prompt| prompt.tool_version.clone()),
            session: prompt.map_or_else(String::new, |prompt| prompt.session.clone()),
            round: prompt.map_or(1, |prompt| prompt.round),
            dry_run: prompt.is_some_and(|prompt| prompt.dry_run),
            grant_allowed: prompt.is_some_and(|prompt| prompt.grant_allowed),
            reasons: prompt.map_or_else(Vec::new, |prompt| prompt.reasons.clone()),
            because: prompt.and_then(|prompt| prompt.because.clone()),
            rationale: prompt.and_then(rationale),
            warnings: prompt.map_or_else(Vec::new, warnings),
            preview: prompt.and_then(|prompt| prompt.preview.as_ref()).map(Changes::of),
            params: prompt.map_or_else(Vec::new, |prompt| prompt.params.iter().map(Param::of).collect()),
            facts: facts(&view),
            decided: view.decided.as_ref().map(decision),
            changed: Vec::new(),
            next,
            edit,
            edited,
            grant,
            always,
            how,
            id: view.approval_id,
            tool: view.tool_id,
            subject: view.subject_id,
            space: view.space_id,
            principal: view.principal,
            digest: view.digest,
            state: view.state,
        })
    }

    /// Of what is shown: another digest, state or form is another one.
    pub(super) fn stamp(&self) -> String {
        let how = match self.how {
            How::Look => "look",
            How::Edit => "edit",
            How::Grant => "grant",
            How::Always => "always",
        };
        let edited = self.edited.as_ref().map_or("", |edited| edited.digest.as_str());
        format!("{} {} {} {how} {edited}", self.id, self.digest, self.state)
    }

    /// Finds what is different from how this browser was shown it before.
    pub(super) fn compare(&mut self, note: impl FnOnce(String) -> Option<String>) {
        let now = self.as_text();
        let Some(before) = note(now.clone()).filter(|before| *before != now && self.is_pending) else {
            return;
        };
        let only = |of: &str, other: &str, sign| -> Vec<(char, String)> {
            let lines = of.lines().filter(|line| !other.lines().any(|known| known == *line));
            lines.map(|line| (sign, line.to_owned())).collect()
        };
        self.changed = only(&before, &now, '-');
        self.changed.extend(only(&now, &before, '+'));
    }

    /// Everything that a person decides by, a line each.
    fn as_text(&self) -> String {
        let mut lines = vec![
            format!("tool {}, version {}", self.tool, self.version),
            format!("tier {}, rule {}", self.tier, self.rule),
        ];
        lines.extend(self.reasons.iter().map(|reason| format!("why: {reason}")));
        lines.extend(self.because.iter().map(|because| format!("again: {because}")));
        lines.extend(self.warnings.iter().cloned());
        lines.extend(self.params.iter().flat_map(|param| {
            let first = format!("{} = {}", param.name, param.line);
            std::iter::once(first).chain(param.lines.iter().cloned())
        }));
        for change in self.preview.iter().flat_map(|preview| &preview.changes) {
            lines.push(format!("{}: {} → {}", change.path, change.was, change.becomes));
            for block in &change.blocks {
                match block {
                    Block::Changed(changed) => {
                        lines.extend(changed.iter().map(|(sign, _, text)| format!("{sign} {text}")))
                    }
                    Block::Place(_) | Block::Same(..) => {}
                }
            }
        }
        lines.join("\n")
    }
}

fn url(id: &str) -> String {
    format!("/console/approvals/{}", percent_encoded(id))
}

/// A word of the machine, for people: `denied_human`.
pub(super) fn words(word: &str) -> String {
    word.replace('_', " ")
}

/// A time left: `23 h 59 min`.
fn span(seconds: u64) -> String {
    match (seconds / 3_600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// `2026-11-18 12:00`.
fn minute(at: &Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M").to_string()
}

fn rationale(prompt: &PromptView) -> Option<String> {
    let said = prompt.rationale.as_ref()?;
    let sure = said.confidence.map(|sure| format!("{:.0} % sure", sure * 100.0));
    let said: Vec<String> = [sure, said.reason.clone()].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join(": "))
}

fn listed(redactions: &[Redaction]) -> String {
    let one = |entry: &Redaction| {
        let field = if entry.field.is_empty() { "other fields" } else { &entry.field };
        format!("{} {} in {field}", entry.count, entry.kind.as_str())
    };
    redactions.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What a person must not overlook.
fn warnings(prompt: &PromptView) -> Vec<String> {
    let mut found = Vec::new();
    if !prompt.redactions.is_empty() {
        found.push(format!("Redacted: {}. The tool gets placeholders.", listed(&prompt.redactions)));
    }
    if !prompt.hidden.is_empty() {
        found.push(format!("Not shown here: {}. The tool gets it.", listed(&prompt.hidden)));
    }
    if prompt.params.contains_key(TRUNCATED) {
        found.push("The parameters are too long to be shown whole. The tool gets all of them.".to_owned());
    }
    found
}

fn facts(view: &ApprovalView) -> Vec<(&'static str, String)> {
    let mut facts = vec![("Asked at", view.asked_at.clone())];
    facts.extend(view.expires_at.clone().map(|at| ("Expires at", at)));
    facts.push(("Actions", view.action_ids.join(", ")));
    if let Some(prompt) = &view.prompt {
        facts.push(("Session", prompt.session.clone()));
        facts.extend(prompt.connection.as_ref().map(|used| {
            let name = used.name.as_deref().unwrap_or("a deleted connection");
            ("Connection", format!("{name}, version {}, {}", used.version, used.connection_id))
        }));
        facts.extend(prompt.contract.as_ref().map(|contract| ("Contract", contract.to_string())));
        facts.extend(prompt.stands.iter().map(|stands| ("There is now", stands.clone())));
    }
    facts.push(("Approval", view.approval_id.clone()));
    facts.push(("Digest", view.digest.clone()));
    facts
}

fn decision(decided: &Approval) -> String {
    let verdict = serde_json::to_value(decided.verdict).ok();
    let verdict = verdict.as_ref().and_then(Value::as_str).unwrap_or_default();
    let reason = decided.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("Decided: {}, by {} at {}{reason}", words(verdict), decided.by, minute(&decided.at))
}

/// What happened to the same tool, for the same subject in the same space, the newest first.
async fn before(api: &Api, view: &ApprovalView) -> Result<Vec<Past>, Problem> {
    let query = [("tool", &view.tool_id), ("subject", &view.subject_id), ("space", &view.space_id)];
    let query: Vec<String> =
        query.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
    let path = format!("/v1/receipts?{}&order=newest&limit={BEFORE_MAX}", query.join("&"));
    let list: ReceiptList = api.get(&path).await?;
    let past = list.receipts.into_iter().map(|receipt| Past {
        at: minute(&receipt.timing.ended_at),
        tone: if receipt.error.is_some() { "bad" } else { "good" },
        outcome: words(receipt.outcome.as_str()),
        decided: receipt.approval.as_ref().map_or_else(
            || "nobody was asked".to_owned(),
            |decided| {
                let reason = decided.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!("by {}{reason}", decided.by)
            },
        ),
    });
    Ok(past.collect())
}

impl Param {
    fn of((name, value): (&String, &Value)) -> Self {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_long = text.contains('\n') || text.chars().count() > 120;
        let lines = if is_long { shown_lines(&text, COLUMNS_MAX, LINES_MAX) } else { Vec::new() };
        Self { name: name.clone(), line: text, lines }
    }
}

fn counts(preview: &Preview) -> String {
    match preview {
        Preview::Unavailable(_) => "no preview".to_owned(),
        Preview::WouldFail(_) => "would fail".to_owned(),
        Preview::Shown(shown) => {
            let predicted = &shown.predicted;
            let deletes = match predicted.deletes {
                0 => String::new(),
                deletes => format!(", {} deleted", counted(deletes, "path")),
            };
            format!("{} changed{deletes}", counted(predicted.files, "path"))
        }
    }
}

impl Changes {
    fn of(preview: &Preview) -> Self {
        let (note, changes, cut) = match preview {
            Preview::Unavailable(why) => (Some(format!("There is no preview: {why}")), Vec::new(), false),
            Preview::WouldFail(failure) => {
                let why = format!(
                    "The tool would fail, and nothing would change: {} ({})",
                    failure.message, failure.code
                );
                (Some(why), Vec::new(), false)
            }
            Preview::Shown(shown) => (None, shown.changes.iter().map(ChangedPath::of).collect(), shown.cut),
        };
        let summary = if note.is_some() { String::new() } else { counts(preview) };
        Self { summary, note, changes, cut }
    }
}

impl ChangedPath {
    fn of(change: &Change) -> Self {
        let diff = change.diff.as_ref();
        let mut notes = Vec::new();
        notes.extend(change.left_out.map(|why| format!("Not compared: {}.", why.as_str())));
        if diff.is_some_and(|diff| diff.cut) {
            notes.push("The text is cut.".to_owned());
        }
        if diff.is_some_and(|diff| diff.redacted) {
            notes.push("Secrets and personal data are not shown.".to_owned());
        }
        Self {
            path: change.path.clone(),
            moved_to: change.moved_to.clone(),
            was: standing(&change.before),
            becomes: standing(&change.after),
            note: (!notes.is_empty()).then(|| notes.join(" ")),
            blocks: diff.map_or_else(Vec::new, |diff| blocks(&diff.text)),
        }
    }
}

fn standing(state: &PathState) -> String {
    match state {
        PathState::Absent => "nothing".to_owned(),
        PathState::Folder => "a folder".to_owned(),
        PathState::Other => "a link, pipe or device".to_owned(),
        PathState::File(file) => format!("{} bytes", file.bytes),
    }
}

/// A diff in parts, each line with its number: in the old text if it goes, otherwise in the new one.
fn blocks(diff: &str) -> Vec<Block> {
    let (mut old, mut new) = (1, 1);
    let mut blocks: Vec<Block> = Vec::new();
    for line in diff.trim_end_matches('\n').split('\n') {
        let (sign, text) = (line.chars().next().unwrap_or(' '), line.get(1..).unwrap_or_default());
        match sign {
            '@' => {
                let start = |mark: char| {
                    let at = line.split_whitespace().find_map(|part| part.strip_prefix(mark))?;
                    at.split(',').next()?.parse::<u32>().ok()
                };
                (old, new) = (start('-').unwrap_or(old), start('+').unwrap_or(new));
                blocks.push(Block::Place(line.to_owned()));
            }
            '+' | '-' => {
                let counter = if sign == '-' { &mut old } else { &mut new };
                let entry = (sign, *counter, text.to_owned());
                *counter = counter.saturating_add(1);
                match blocks.last_mut() {
                    Some(Block::Changed(lines)) => lines.push(entry),
                    Some(Block::Place(_) | Block::Same(..)) | None => {
                        blocks.push(Block::Changed(vec![entry]))
                    }
                }
            }
            _ => {
                blocks.push(Block::Same(new, text.to_owned()));
                (old, new) = (old.saturating_add(1), new.saturating_add(1));
            }
        }
    }
    blocks
}

/// The properties of a tool's parameters, as its schema has them.
async fn schema(api: &Api, tool: &str) -> Result<Map<String, Value>, Problem> {
    let details: Value = api.get(&format!("/v1/tools/{}", percent_encoded(tool))).await?;
    let properties = details.pointer("/spec/params_schema/properties").and_then(Value::as_object);
    Ok(properties.cloned().unwrap_or_default())
}

fn kind(schema: &Value, value: Option<&Value>) -> &'static str {
    let named = &schema["type"];
    let mut kinds = named.as_array().into_iter().flatten().filter_map(Value::as_str);
    let declared = named.as_str().or_else(|| kinds.find(|kind| *kind != "null"));
    match declared {
        Some("boolean") => "check",
        Some("integer" | "number") => "number",
        Some("string") => {
            let is_long =
                value.and_then(Value::as_str).is_some_and(|text| text.contains('\n') || text.len() > 80);
            if is_long { "lines" } else { "line" }
        }
        Some(_) | None => "json",
    }
}

/// A field for each parameter that the tool declares. What may not be shown is empty, and to be typed again.
fn fields(schema: &Map<String, Value>, prompt: &PromptView) -> Result<Vec<Field>, Problem> {
    if prompt.params.contains_key(TRUNCATED) {
        let why = "the parameters are too long for a form; use `effectd approvals approve --edit FILE`";
        return Err(Problem::of(Kind::DecisionInvalid, why));
    }
    let hidden = |name: &str| {
        let mut all = prompt.hidden.iter().chain(&prompt.redactions);
        all.any(|entry| entry.field.is_empty() || entry.field.split('/').nth(1) == Some(name))
    };
    let field = |(name, schema): (&String, &Value)| {
        // A placeholder would be written as the value.
        let is_redacted = |value: &Value| value.to_string().contains(REDACTED);
        let is_hidden = hidden(name) || prompt.params.get(name).is_some_and(is_redacted);
        let value = prompt.params.get(name).filter(|_| !is_hidden);
        let kind = kind(schema, value);
        let text = match value {
            None => String::new(),
            Some(Value::String(text)) if kind != "json" => text.clone(),
            Some(value) => value.to_string(),
        };
        let hint = if is_hidden {
            "Not shown: type it whole."
        } else {
            schema["description"].as_str().unwrap_or_default()
        };
        Field {
            name: name.clone(),
            kind: if kind == "json" { "lines" } else { kind },
            rows: text.lines().count().clamp(2, 16),
            value: text,
            hint: hint.to_owned(),
        }
    };
    Ok(schema.iter().filter(|(name, _)| *name != SPACE).map(field).collect())
}

/// The parameters of a form, by the tool's schema. An empty field is left out, unless it is a text that the request has.
pub(super) async fn edited_params(
    api: &Api,
    view: &ApprovalView,
    form: &Form,
) -> Result<Map<String, Value>, Problem> {
    let schema = schema(api, &view.tool_id).await?;
    let asked = view.prompt.as_ref().map(|prompt| prompt.params.clone()).unwrap_or_default();
    let mut params: Map<String, Value> =
        asked.get(SPACE).map(|space| (SPACE.to_owned(), space.clone())).into_iter().collect();
    for (name, text) in form.below("p.") {
        let Some(declared) = schema.get(name) else { continue };
        // Browsers send line breaks as two characters.
        let text = text.replace("\r\n", "\n");
        let kind = kind(declared, asked.get(name));
        let is_text = matches!(kind, "line" | "lines");
        if text.is_empty() && !(is_text && asked.get(name).is_some_and(Value::is_string)) {
            continue;
        }
        if text.is_empty() && asked.get(name).is_some_and(|value| value.to_string().contains(REDACTED)) {
            let why = format!("the parameter {name} was not shown: type it whole");
            return Err(Problem::of(Kind::DecisionInvalid, why));
        }
        let value = if is_text {
            Value::String(text)
        } else {
            serde_json::from_str(&text).map_err(|error| {
                Problem::of(Kind::DecisionInvalid, format!("the parameter {name} is no {kind}: {error}"))
            })?
        };
        params.insert(name.to_owned(), value);
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_change_are_numbered_and_stand_together() {
        let blocks = blocks("@@ -3,2 +3,3 @@\n same\n-old\n+new\n+more\n end\n");
        let told: Vec<String> = blocks
            .iter()
            .map(|block| match block {
                Block::Place(text) => text.clone(),
                Block::Same(n, text) => format!("{n} {text}"),
                Block::Changed(lines) => {
                    lines.iter().map(|(sign, n, text)| format!("{sign}{n} {text};")).collect()
                }
            })
            .collect();
        assert_eq!(told, ["@@ -3,2 +3,3 @@", "3 same", "-4 old;+4 new;+5 more;", "6 end"]);
    }

    #[test]
    fn a_time_left_has_two_units() {
        let said = [0, 59, 60, 3_599, 3_600, 86_400].map(span);
        assert_eq!(said, ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "24 h 0 min"]);
    }
}
