//! One question as it is shown: what would change, why a person is asked, and what happened to equal ones before.

use std::collections::HashSet;

use effectd_actors::preview::{Change, Diff, Preview, RequestShown};
use effectd_contracts::Approval;
use effectd_contracts::text::counted;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Access;
use crate::client::percent_encoded;
use crate::console::actions::{about, class};
use crate::console::api::Api;
use crate::console::page::{Form, moment, plain_breaks};
use crate::problem::{Kind, Problem};
use crate::text::{shown, shown_lines};
use crate::views::approvals::{ApprovalView, PreviewView, PromptView, StandingView};
use crate::views::grants::GrantWould;
use crate::views::receipt_text::{self, Ending, span};
use crate::views::receipts::ReceiptList;

/// Equal tools before.
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
    pub(super) view: ApprovalView,
    pub(super) url: String,
    pub(super) left: String,
    pub(super) may_decide: bool,
    pub(super) current: bool,
}

impl Row {
    pub(super) fn of(view: ApprovalView, access: &Access, current: &str, query: &str) -> Self {
        Self {
            url: url(&view.approval_id) + query,
            left: span(left_s(&view)),
            may_decide: access.may_decide(&view),
            current: view.approval_id == current,
            view,
        }
    }

    pub(super) fn tier(&self) -> &str {
        self.view.prompt.as_ref().map_or("", |prompt| &prompt.tier)
    }

    pub(super) fn about(&self) -> &str {
        self.view.prompt.as_ref().and_then(|prompt| prompt.about.as_deref()).unwrap_or_default()
    }

    pub(super) fn left_s(&self) -> u64 {
        left_s(&self.view)
    }

    pub(super) fn counts(&self) -> String {
        let preview = self.view.prompt.as_ref().and_then(|prompt| prompt.preview.as_ref());
        preview.map_or_else(String::new, counts)
    }

    pub(super) fn rationale(&self) -> String {
        self.view.prompt.as_ref().and_then(rationale).unwrap_or_default()
    }
}

pub(super) struct Question {
    pub(super) view: ApprovalView,
    pub(super) url: String,
    /// The page of the queue beside it, for links and forms.
    pub(super) query: String,
    pub(super) is_pending: bool,
    pub(super) left: String,
    pub(super) may_decide: bool,
    /// Whether this person may also change whether anybody is asked.
    pub(super) may_administer: bool,
    pub(super) preview: Option<Changes>,
    pub(super) params: Vec<Param>,
    pub(super) before: Result<Vec<Past>, String>,
    /// Lines that it lost (`-`) and got (`+`) since it was shown to this browser.
    pub(super) changed: Vec<(char, String)>,
    /// The question after this one.
    pub(super) next: String,
    pub(super) edit: Option<Vec<Field>>,
    pub(super) edited: Option<Edited>,
    pub(super) grant: Option<Released>,
    pub(super) always: Option<StandingView>,
    pub(super) how: How,
}

pub(super) struct Param {
    pub(super) name: String,
    pub(super) line: String,
    /// A text of several lines, or a long one. The page shows all of it, so that nobody approves what was cut off.
    pub(super) lines: Vec<String>,
}

/// What the same tool did before, for the same subject in the same space.
pub(super) struct Past {
    pub(super) at: String,
    pub(super) class: &'static str,
    pub(super) about: String,
    pub(super) outcome: &'static str,
    pub(super) decided: String,
}

/// Other questions that a grant would release: of the session, and of the whole organisation for who may grant that.
pub(super) struct Released {
    pub(super) session: u64,
    pub(super) org: Option<u64>,
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
            view.verdict.replace('_', " "),
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
    /// `line`, `lines`, `number` or `check`.
    pub(super) kind: &'static str,
    /// Whether the value is a JSON text, of a parameter that has no field of its own kind.
    pub(super) is_json: bool,
    /// What was asked and may not be shown.
    pub(super) is_hidden: bool,
    pub(super) value: String,
    pub(super) hint: String,
}

impl Question {
    pub(super) async fn load(
        api: &Api,
        access: &Access<'_>,
        view: ApprovalView,
        (how, edited): (How, Option<Edited>),
        typed: Option<&Form>,
        (next, query): (String, String),
    ) -> Result<Self, Problem> {
        let path = format!("/v1/approvals/{}", percent_encoded(&view.approval_id));
        let prompt = view.prompt.as_ref();
        let is_pending = view.state == "pending";
        let may_decide = is_pending && access.may_decide(&view);
        let may_administer = access.may_administer(&view);
        let how = if may_decide && edited.is_none() { how } else { How::Look };
        let edit = match prompt.filter(|_| how == How::Edit) {
            Some(prompt) => {
                let mut fields = fields(&schema(api, &view.tool_id).await?, prompt)?;
                for field in &mut fields {
                    let key = field.key();
                    let typed = typed.and_then(|form| form.get(&key));
                    field.value = typed.map_or_else(|| field.value.clone(), plain_breaks);
                }
                Some(fields)
            }
            None => None,
        };
        let grant = match how {
            How::Grant => {
                let would = format!("{path}/grant?calls_max=10");
                let session: GrantWould = api.get(&would).await?;
                let org = match may_administer {
                    true => Some(api.get::<GrantWould>(&format!("{would}&org=true")).await?.released),
                    false => None,
                };
                Some(Released { session: session.released, org })
            }
            How::Look | How::Edit | How::Always => None,
        };
        let always = match how {
            How::Always => Some(api.get::<StandingView>(&format!("{path}/always")).await?),
            How::Look | How::Edit | How::Grant => None,
        };
        Ok(Self {
            before: before(api, &view).await.map_err(|problem| problem.detail),
            url: url(&view.approval_id),
            query,
            is_pending,
            left: span(left_s(&view)),
            may_decide,
            may_administer,
            preview: prompt.and_then(|prompt| prompt.preview.as_ref()).map(Changes::of),
            params: prompt
                .map_or_else(Vec::new, |prompt| prompt.named_params().into_iter().map(Param::of).collect()),
            changed: Vec::new(),
            next,
            edit,
            edited,
            grant,
            always,
            how,
            view,
        })
    }

    /// The address of this question with the form that it is edited, granted or always allowed by.
    pub(super) fn with(&self, how: &str) -> String {
        let more = if self.query.is_empty() { String::new() } else { format!("&{}", &self.query[1..]) };
        format!("{}?how={how}{more}", self.url)
    }

    /// Where its forms and links lead: the page of the queue stays.
    pub(super) fn here(&self) -> String {
        format!("{}{}", self.url, self.query)
    }

    pub(super) fn left_s(&self) -> u64 {
        left_s(&self.view)
    }

    pub(super) fn about(&self) -> &str {
        self.view.prompt.as_ref().and_then(|prompt| prompt.about.as_deref()).unwrap_or_default()
    }

    pub(super) fn tier(&self) -> &str {
        self.view.prompt.as_ref().map_or("", |prompt| &prompt.tier)
    }

    pub(super) fn rationale(&self) -> Option<String> {
        self.view.prompt.as_ref().and_then(rationale)
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        self.view.prompt.as_ref().map_or_else(Vec::new, warnings)
    }

    pub(super) fn decided(&self) -> Option<String> {
        self.view.decided.as_ref().map(decision)
    }

    /// Whether a form of its own is shown: a yes beside it would be for what was asked, not for what is typed.
    pub(super) fn has_form(&self) -> bool {
        self.edit.is_some() || self.grant.is_some() || self.always.is_some()
    }

    pub(super) fn grant_allowed(&self) -> bool {
        self.view.prompt.as_ref().is_some_and(|prompt| prompt.grant_allowed)
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
        let ApprovalView { approval_id, digest, state, .. } = &self.view;
        format!("{approval_id} {digest} {state} {how} {edited}")
    }

    /// Finds what is different from how this browser was shown it before.
    pub(super) fn compare(&mut self, note: impl FnOnce(String) -> Option<String>) {
        let now = self.as_text();
        let Some(before) = note(now.clone()).filter(|before| *before != now && self.is_pending) else {
            return;
        };
        let only = |of: &str, other: &str, sign| -> Vec<(char, String)> {
            let known: HashSet<&str> = other.lines().collect();
            let lines = of.lines().filter(|line| !known.contains(line));
            lines.map(|line| (sign, line.to_owned())).collect()
        };
        self.changed = only(&before, &now, '-');
        self.changed.extend(only(&now, &before, '+'));
    }

    /// Everything that a person decides by, a line each.
    fn as_text(&self) -> String {
        let mut lines = vec![format!("tool {}, tier {}", self.view.tool_id, self.tier())];
        if let Some(prompt) = &self.view.prompt {
            lines.push(format!("version {}, rule {}", prompt.tool_version, prompt.rule));
            lines.extend(prompt.reasons.iter().map(|reason| format!("why: {reason}")));
            lines.extend(prompt.because.iter().map(|because| format!("again: {because}")));
        }
        lines.extend(self.warnings());
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

fn left_s(view: &ApprovalView) -> u64 {
    view.time_left_s.unwrap_or_default()
}

fn rationale(prompt: &PromptView) -> Option<String> {
    let said = prompt.rationale.as_ref()?;
    let sure = said.confidence.map(|sure| format!("{:.0} % sure", sure * 100.0));
    let said: Vec<String> = [sure, said.reason.clone()].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join(": "))
}

/// What a person must not overlook.
fn warnings(prompt: &PromptView) -> Vec<String> {
    let mut found = Vec::new();
    if !prompt.redactions.is_empty() {
        found.push(format!(
            "Redacted: {}. The tool gets placeholders.",
            receipt_text::redacted(&prompt.redactions)
        ));
    }
    if !prompt.hidden.is_empty() {
        found.push(format!("Not shown here: {}. The tool gets it.", receipt_text::redacted(&prompt.hidden)));
    }
    if prompt.params.contains_key(TRUNCATED) {
        found.push("The parameters are too long to be shown whole. The tool gets all of them.".to_owned());
    }
    found
}

fn decision(decided: &Approval) -> String {
    let verdict = serde_json::to_value(decided.verdict).ok();
    let verdict = verdict.as_ref().and_then(Value::as_str).unwrap_or_default().replace('_', " ");
    let reason = decided.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("Decided: {verdict}, by {} at {}{reason}", decided.by, moment(&decided.at.to_string()))
}

/// What the same tool did for the same subject in the same space, the newest first.
async fn before(api: &Api, view: &ApprovalView) -> Result<Vec<Past>, Problem> {
    let query = [("tool", &view.tool_id), ("subject", &view.subject_id), ("space", &view.space_id)];
    let query: Vec<String> =
        query.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
    let path = format!("/v1/receipts?{}&order=newest&limit={BEFORE_MAX}", query.join("&"));
    let list: ReceiptList = api.get(&path).await?;
    let past = list.receipts.into_iter().map(|receipt| Past {
        at: moment(&receipt.timing.ended_at.to_string()),
        class: class(Ending::of(receipt.outcome)),
        about: about(&receipt),
        outcome: receipt_text::words(receipt.outcome),
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
    fn of((name, value): (String, Value)) -> Self {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_long = text.contains('\n') || text.chars().count() > 120;
        let lines = if is_long { shown_lines(&text, usize::MAX, usize::MAX) } else { Vec::new() };
        Self { name, line: shown(text.lines().next().unwrap_or_default(), 120), lines }
    }
}

fn counts(preview: &Preview) -> String {
    match preview {
        Preview::Unavailable(_) => "no preview".to_owned(),
        Preview::WouldFail(_) => "would fail".to_owned(),
        Preview::Request(_) => "1 request".to_owned(),
        Preview::Shown(shown) => {
            let predicted = &shown.predicted;
            let deletes = match predicted.deletes {
                0 => String::new(),
                deletes => format!(", {} deleted", counted(deletes, "path")),
            };
            let sent = match shown.requests.len() {
                0 => String::new(),
                sent => format!(", {}", counted(sent as u64, "request")),
            };
            format!("{} changed{deletes}{sent}", counted(predicted.files, "path"))
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
            Preview::Request(request) => (None, vec![ChangedPath::of_request(request)], false),
            Preview::Shown(shown) => {
                let sent = shown.requests.iter().map(|asked| ChangedPath::of_request(&asked.request));
                (None, shown.changes.iter().map(ChangedPath::of).chain(sent).collect(), shown.cut)
            }
        };
        let summary = if note.is_some() { String::new() } else { counts(preview) };
        Self { summary, note, changes, cut }
    }
}

/// What a diff does not show.
fn notes(diff: Option<&Diff>) -> Vec<String> {
    let mut notes = Vec::new();
    if diff.is_some_and(|diff| diff.cut) {
        notes.push("The text is cut.".to_owned());
    }
    if diff.is_some_and(|diff| diff.redacted) {
        notes.push("Secrets and personal data are not shown.".to_owned());
    }
    notes
}

impl ChangedPath {
    /// A request: its headers and its body are what is new.
    fn of_request(request: &RequestShown) -> Self {
        let mut notes = notes(request.body.as_ref());
        if request.body.is_none() && request.body_bytes > 0 {
            notes.push("The body is not text.".to_owned());
        }
        let headers = request.headers.iter().map(|(name, value)| format!("+{name}: {value}\n"));
        let body = request.body.as_ref().map_or("", |diff| &diff.text);
        let text: String = headers.chain([body.to_owned()]).collect();
        Self {
            path: format!("{} {}", request.method.as_str(), request.url),
            moved_to: None,
            was: "not sent".to_owned(),
            becomes: format!("sent once, with a body of {} bytes", request.body_bytes),
            note: (!notes.is_empty()).then(|| notes.join(" ")),
            blocks: if text.is_empty() { Vec::new() } else { blocks(&text) },
        }
    }

    fn of(change: &Change) -> Self {
        let diff = change.diff.as_ref();
        let mut notes = notes(diff);
        notes.extend(change.left_out.map(|why| format!("Not compared: {}.", why.as_str())));
        Self {
            path: change.path.clone(),
            moved_to: change.moved_to.clone(),
            was: receipt_text::standing(&change.before),
            becomes: receipt_text::standing(&change.after),
            note: (!notes.is_empty()).then(|| notes.join(" ")),
            blocks: diff.map_or_else(Vec::new, |diff| blocks(&diff.text)),
        }
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

/// The kind of a parameter's field, and whether its value is JSON: so is what may be of several types.
fn kind(schema: &Value, value: Option<&Value>) -> (&'static str, bool) {
    match schema["type"].as_str() {
        Some("boolean") => ("check", true),
        Some("integer" | "number") => ("number", true),
        Some("string") => {
            let is_long =
                value.and_then(Value::as_str).is_some_and(|text| text.contains('\n') || text.len() > 80);
            (if is_long { "lines" } else { "line" }, false)
        }
        Some(_) | None => ("lines", true),
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
    let declared = schema.iter().filter(|(name, _)| *name != SPACE);
    let field = |(name, schema): (&String, &Value)| {
        let asked = prompt.params.get(name);
        Field::of(name, schema, asked, asked.is_some_and(|asked| is_redacted(asked) || hidden(name)))
    };
    Ok(declared.map(field).collect())
}

/// A placeholder would be written as the value.
fn is_redacted(value: &Value) -> bool {
    value.to_string().contains(REDACTED)
}

impl Field {
    fn of(name: &str, schema: &Value, asked: Option<&Value>, is_hidden: bool) -> Self {
        let value = asked.filter(|_| !is_hidden);
        let (kind, is_json) = kind(schema, value);
        let text = match value {
            None => String::new(),
            Some(Value::String(text)) if !is_json => plain_breaks(text),
            Some(value) => value.to_string(),
        };
        let hint = if is_hidden {
            "Not shown: type it whole."
        } else {
            schema["description"].as_str().unwrap_or_default()
        };
        Self { name: name.to_owned(), kind, is_json, is_hidden, value: text, hint: hint.to_owned() }
    }

    pub(super) fn rows(&self) -> usize {
        self.value.lines().count().clamp(2, 16)
    }

    pub(super) fn key(&self) -> String {
        format!("p.{}", self.name)
    }

    /// Puts what was typed into the parameters. An unchanged field keeps the value of the request. An empty field removes its
    /// parameter, unless the parameter is a text.
    fn apply(&self, typed: &str, params: &mut Map<String, Value>) -> Result<(), Problem> {
        let typed = plain_breaks(typed);
        if typed == self.value && !(self.is_hidden && typed.is_empty()) {
            return Ok(());
        }
        let invalid = |why: String| Problem::of(Kind::DecisionInvalid, why);
        if self.is_hidden && typed.is_empty() {
            return Err(invalid(format!("the parameter {} was not shown: type it whole", self.name)));
        }
        if typed.is_empty() && self.is_json {
            params.remove(&self.name);
            return Ok(());
        }
        let value = if self.is_json {
            let parsed = serde_json::from_str(&typed);
            parsed.map_err(|error| invalid(format!("the parameter {} is no JSON: {error}", self.name)))?
        } else {
            Value::String(typed)
        };
        params.insert(self.name.clone(), value);
        Ok(())
    }
}

/// The parameters of a form: those that were asked, with what was typed over them.
pub(super) async fn edited_params(
    api: &Api,
    view: &ApprovalView,
    form: &Form,
) -> Result<Map<String, Value>, Problem> {
    let Some(prompt) = &view.prompt else {
        return Err(Problem::of(Kind::AlreadyDecided, "somebody has decided meanwhile"));
    };
    let mut params = prompt.params.clone();
    for field in fields(&schema(api, &view.tool_id).await?, prompt)? {
        if let Some(typed) = form.get(&field.key()) {
            field.apply(typed, &mut params)?;
        }
    }
    match params.iter().find(|(_, value)| is_redacted(value)) {
        None => Ok(params),
        Some((name, _)) => {
            let why = format!("the parameter {name} was not shown: type it whole");
            Err(Problem::of(Kind::DecisionInvalid, why))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_nobody_touched_changes_nothing() {
        let asked = json!({ "a": "one\r\ntwo", "n": null, "list": [1, 2], "more": "kept" });
        let mut params = asked.as_object().unwrap().clone();
        let schema = json!({
            "a": { "type": "string" }, "n": { "type": ["string", "null"] }, "list": { "type": "array" },
            "optional": { "type": "string" }
        });
        let fields: Vec<Field> = schema
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, schema)| Field::of(name, schema, params.get(name), false))
            .collect();
        for field in &fields {
            field.apply(&field.value.replace('\n', "\r\n"), &mut params).unwrap();
        }
        assert_eq!(Value::Object(params.clone()), asked);
        let named = |name: &str| fields.iter().find(|field| field.name == name).unwrap();
        named("n").apply("\"null\"", &mut params).unwrap();
        named("list").apply("", &mut params).unwrap();
        named("a").apply("", &mut params).unwrap();
        assert_eq!(Value::Object(params), json!({ "a": "", "n": "null", "more": "kept" }));
        assert!(named("list").apply("[1", &mut Map::new()).is_err());
    }

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
}
