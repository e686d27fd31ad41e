//! How a tool differs from the one that a person has reviewed, and what in a description is meant for a model and not for people.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::connector::{CONNECTOR_SOURCE, has_hidden};
use effectd_contracts::{Harvested, Pinned};
use serde::Serialize;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::limits::{TOOL_DIFF_TIME_MAX, TOOL_DIFF_TIMED_BYTES_MIN};

/// How a tool differs from the reviewed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Drift {
    /// It does not.
    #[serde(rename = "reviewed")]
    None,
    /// Nobody has reviewed it.
    New,
    /// It takes what a reviewed tool took that is gone, under another name.
    Renamed { from: String },
    /// Only what people read has changed, and there is nothing in it that is for models.
    Prose,
    /// More has changed.
    Changed { why: Vec<&'static str> },
    /// It was reviewed, and its server does not list it any more.
    Gone,
}

impl Drift {
    /// Whether what the server says about effects is what a person has reviewed.
    pub(super) fn is_reviewed(&self) -> bool {
        matches!(self, Self::None | Self::Prose)
    }
}

/// A tool that is listed, or was reviewed.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolState {
    pub name: String,
    pub drift: Drift,
    pub now: Option<Harvested>,
    pub reviewed: Option<Harvested>,
}

/// Whether the name of a tool is no plain word of English, which says nothing in a description.
pub(super) fn is_telling(name: &str) -> bool {
    name.contains(['_', '-', '.']) || name.chars().any(|c| c.is_ascii_uppercase())
}

/// The names of tools: those that one server lists, and the telling ones of all tools.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a>(pub(super) &'a [Harvested], pub(super) &'a BTreeSet<String>);

impl Names<'_> {
    fn has(&self, word: &str) -> bool {
        is_telling(word) && (self.1.contains(word) || self.0.iter().any(|tool| tool.name == word))
    }
}

/// All tools by name, those that are gone too.
pub(super) fn states(names: Names<'_>, reviewed: Option<&[Harvested]>) -> Vec<ToolState> {
    fn by_name(tools: &[Harvested]) -> BTreeMap<&str, &Harvested> {
        tools.iter().map(|tool| (tool.name.as_str(), tool)).collect()
    }
    let (now, old) = (by_name(names.0), by_name(reviewed.unwrap_or_default()));
    let all: BTreeSet<&str> = now.keys().chain(old.keys()).copied().collect();
    // The shapes of reviewed tools that are gone: under another name, they are no new tools.
    let gone = old.values().filter(|tool| !now.contains_key(tool.name.as_str()));
    let mut left: Vec<_> = gone.map(|tool| (Pinned::of(tool).shape, &tool.name)).collect();
    let state = |name: &str| {
        let (is, was) = (now.get(name).copied(), old.get(name).copied());
        let drift = match (is, was) {
            (Some(is), Some(was)) => compared(is, was, names),
            (Some(_), None) if left.is_empty() => Drift::New,
            (Some(is), None) => {
                let shape = Pinned::of(is).shape;
                let from = left.iter().position(|(gone, _)| *gone == shape).map(|at| left.swap_remove(at));
                from.map_or(Drift::New, |(_, from)| Drift::Renamed { from: from.clone() })
            }
            (None, _) => Drift::Gone,
        };
        ToolState { name: name.to_owned(), drift, now: is.cloned(), reviewed: was.cloned() }
    };
    all.into_iter().map(state).collect()
}

fn compared(is: &Harvested, was: &Harvested, names: Names<'_>) -> Drift {
    // The same words have the same pins, which are not computed again for each tool of each list.
    if is == was {
        return Drift::None;
    }
    let (now, old) = (Pinned::of(is), Pinned::of(was));
    if now == old {
        return Drift::None;
    }
    let mut why = Vec::new();
    if now.shape != old.shape {
        why.push("it takes other parameters");
    }
    if now.claims != old.claims {
        why.push("its server claims other effects or results");
    }
    // Words for models may have been there before, and say something else now.
    if now.prose != old.prose {
        why.extend(for_models(is, names).into_iter().filter(|what| *what != ADDRESS));
    }
    if !addresses(&words(is)).is_subset(&addresses(&words(was))) {
        why.push(ADDRESS);
    }
    if why.is_empty() { Drift::Prose } else { Drift::Changed { why } }
}

const ADDRESS: &str = "its words have an address";

/// Phrases by which a text speaks to a model: small letters, with single blanks.
const INSTRUCTIONS: [&str; 30] = [
    "<important>",
    "<system>",
    "[inst]",
    "<|im_start|>",
    "ignore all",
    "ignore any",
    "ignore previous",
    "ignore the above",
    "disregard all",
    "disregard previous",
    "disregard the",
    "override previous",
    "forget previous",
    "do not tell",
    "don't tell",
    "do not mention",
    "don't mention",
    "do not inform",
    "without telling",
    "without informing",
    "without asking",
    "without the user",
    "the user must not",
    "system prompt",
    "before using this tool",
    "before calling",
    "you must first",
    "you must always",
    "always call",
    "instead of this tool",
];
/// Words that only one who wants keys asks for.
const KEYS: [&str; 9] = [
    "id_rsa",
    "id_ed25519",
    ".ssh/",
    "private key",
    ".env",
    "mcp.json",
    "authorized_keys",
    "api key",
    "credentials file",
];

/// What in the words of a tool is not for people.
pub(super) fn for_models(tool: &Harvested, names: Names<'_>) -> Vec<&'static str> {
    let said = words(tool);
    let plain = said.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let names_other = || {
        if said.contains(CONNECTOR_SOURCE) {
            return true;
        }
        let mut words = said.split(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c)));
        words.any(|word| {
            let word = word.trim_matches('.');
            word != tool.name && (names.has(word) || word.starts_with("effectd_"))
        })
    };
    let found = [
        (
            has_hidden(&said),
            "its words have characters that nobody sees, or that turn around how others look",
        ),
        (INSTRUCTIONS.iter().any(|phrase| plain.contains(phrase)), "its words speak to a model"),
        (KEYS.iter().any(|key| plain.contains(key)), "its words name keys or secret files"),
        (!addresses(&said).is_empty(), ADDRESS),
        (names_other(), "its words name another tool"),
    ];
    found.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect()
}

/// All texts of a tool that a model reads, wherever they stand.
fn words(tool: &Harvested) -> String {
    fn add(value: &Value, all: &mut String) {
        match value {
            Value::String(text) => {
                all.push_str(text);
                all.push('\n');
            }
            Value::Array(items) => items.iter().for_each(|item| add(item, all)),
            Value::Object(members) => {
                for (name, member) in members {
                    // They name a dialect, and lead nowhere.
                    if !["$schema", "$id", "$ref", "format", "type"].contains(&name.as_str()) {
                        all.push_str(name);
                        all.push('\n');
                        add(member, all);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let Harvested { name: _, title, description, input_schema, output_schema, annotations } = tool;
    let mut all = String::new();
    for text in [title, description].into_iter().flatten() {
        all.push_str(text);
        all.push('\n');
    }
    add(input_schema, &mut all);
    annotations.values().chain(output_schema).for_each(|value| add(value, &mut all));
    all
}

/// The addresses in a text: their hosts, so that another page of the same host is no other address.
fn addresses(text: &str) -> BTreeSet<String> {
    let lower = text.to_lowercase();
    let schemes = ["://", "www.", "mailto:"];
    let found =
        schemes.iter().flat_map(|scheme| lower.match_indices(scheme).map(|(at, found)| at + found.len()));
    let host = |at: usize| {
        let is_part = |c: &char| c.is_alphanumeric() || "-._@:[]".contains(*c);
        lower[at..].chars().take_while(is_part).collect::<String>()
    };
    let is_named = |at: usize| lower[..at].ends_with(char::is_alphanumeric);
    let mails = lower.match_indices('@').filter(|(at, _)| is_named(*at)).map(|(at, _)| host(at + 1));
    let mails = mails.filter(|host| host.trim_matches('.').contains('.'));
    let all = found.map(host).chain(mails).map(|host| host.trim_end_matches('.').to_owned());
    all.filter(|host| !host.is_empty()).collect()
}

/// Whether a name says that the tool destroys something: a server that says nothing else about it is not asked.
pub(super) fn sounds_destructive(name: &str) -> bool {
    let (mut spaced, mut before) = (String::new(), ' ');
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        // `removeItem`, `DBDrop` and `DELETE_ALL` have two words each.
        let ends_upper = chars.peek().is_some_and(char::is_ascii_lowercase);
        if c.is_ascii_uppercase() && (!before.is_ascii_uppercase() || ends_upper) {
            spaced.push(' ');
        }
        before = c;
        spaced.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    let destroys = ["delete", "remove", "drop", "destroy", "purge", "erase", "wipe", "truncate"];
    spaced.split(' ').any(|word| destroys.contains(&word))
}

/// A line of a difference: `+`, `-` or a blank, and its text.
pub type Line = (char, String);

/// What has changed in a tool, for people; all of it if nobody has reviewed it. What nobody would see is written as its number.
pub fn diff(state: &ToolState) -> Vec<Line> {
    let lines = |tool: Option<&Harvested>| tool.map(readable).unwrap_or_default();
    let (old, new) = (lines(state.reviewed.as_ref()), lines(state.now.as_ref()));
    let mut differ = TextDiff::configure();
    if old.len() + new.len() >= TOOL_DIFF_TIMED_BYTES_MIN {
        differ.timeout(TOOL_DIFF_TIME_MAX);
    }
    let diff = differ.diff_lines(&old, &new);
    let mut shown: Vec<Line> = Vec::new();
    for group in diff.grouped_ops(2) {
        if !shown.is_empty() {
            shown.push((' ', "…".to_owned()));
        }
        let changes = group.iter().flat_map(|op| diff.iter_changes(op));
        shown.extend(changes.map(|change| {
            let sign = match change.tag() {
                ChangeTag::Insert => '+',
                ChangeTag::Delete => '-',
                ChangeTag::Equal => ' ',
            };
            (sign, change.value().trim_end_matches('\n').to_owned())
        }));
    }
    shown
}

/// A description as lines.
fn readable(tool: &Harvested) -> String {
    let Harvested { name: _, title, description, input_schema, output_schema, annotations } = tool;
    let mut text = String::new();
    for (what, words) in [("title", title), ("description", description)] {
        for line in words.iter().flat_map(|words| words.lines()) {
            text.push_str(&format!("{what}: {line}\n"));
        }
    }
    let annotations = (!annotations.is_empty()).then(|| Value::Object(annotations.clone()));
    for (what, value) in [
        ("annotations", annotations.as_ref()),
        ("parameters", Some(input_schema)),
        ("results", output_schema.as_ref()),
    ] {
        for line in value
            .and_then(|value| serde_json::to_string_pretty(value).ok())
            .iter()
            .flat_map(|json| json.lines())
        {
            text.push_str(&format!("{what}: {line}\n"));
        }
    }
    let visible = |c: char| {
        if c != '\n' && effectd_contracts::text::is_unprintable(c) {
            format!("<U+{:04X}>", u32::from(c))
        } else {
            c.to_string()
        }
    };
    let text: String = text.chars().map(visible).collect();
    text.lines().map(wrapped).collect()
}

/// Most characters of a line: what shows it need not cut it.
const LINE_CHARS_MAX: usize = 160;

/// A line in pieces; each but the first one is indented.
fn wrapped(line: &str) -> String {
    let mut wrapped = String::new();
    for (at, c) in line.chars().enumerate() {
        if at > 0 && at % LINE_CHARS_MAX == 0 {
            wrapped.push_str("\n    ");
        }
        wrapped.push(c);
    }
    wrapped + "\n"
}
