//! `effectd tools`: list, show, try and disable tools.

use effectd_actors::{RegisteredTool, Registry};
use effectd_contracts::{Capability, Operation, Repeat, RiskLevel, ToolId, ToolOverlay, ToolSpec};
use effectd_gateway::client::{ClientError, percent_encoded};
use effectd_gateway::views::{tool_details, tool_summary};
use serde_json::{Map, Value, json};

use super::backend::daemon_client;
use super::completions::{complete, tools};
use super::mutation::{Reason, Terms};
use super::overlay::Says;
use super::request_args::{self, RequestArgs};
use super::{CliError, Common, Confirm, line, mutation, print_json, print_rows};
use crate::error::Error;
use crate::exit::Exit;
use crate::tool_registry::{self, registry};

/// List, show and try tools, disable and enable them
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:\n  effectd tools list\n  effectd tools show files.write_text")]
pub(super) enum ToolsCommand {
    List(List),
    Show(Show),
    Try(Box<Try>),
    /// Disable a tool: every call gets a receipt that says so, and nothing happens
    ///
    /// Takes effect with the next call and survives a restart.
    #[command(
        after_help = "Examples:\n  effectd tools disable files.write_text --yes\n  effectd tools disable files.write_text --for 30m --yes"
    )]
    Disable {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        terms: Terms,
    },
    /// Enable a tool again
    #[command(after_help = "Example:\n  effectd tools enable files.write_text --yes")]
    Enable {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        why: Reason,
    },
    SetCaps(SetCaps),
    Overlay(Overlay),
}

/// Require other capabilities than the tool's description does
///
/// If no role of the policy has one of them, the gate `rbac` denies every caller, from the next call on. `--reset` goes back to the
/// tool's description.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd tools set-caps files.write_text nobody.has_this --yes\n  \
    effectd tools set-caps files.write_text --reset --yes")]
pub(super) struct SetCaps {
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    why: Reason,
    /// The capabilities that callers need from now on
    #[arg(value_name = "CAPABILITY", required_unless_present = "reset", conflicts_with = "reset")]
    caps: Vec<Capability>,
    /// Require what the tool's description does
    #[arg(long)]
    reset: bool,
}

/// Say about a tool what its author says otherwise; without options, restore the author's words
///
/// What was said before and is not named stays. An empty title or description restores the author's. A tier is only raised. Who may use
/// the tool is set by `effectd policy set-mode`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  effectd tools overlay files.delete --tier R4 --description 'Deletes for good; ask first.' --yes"
)]
pub(super) struct Overlay {
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    why: Reason,
    #[command(flatten)]
    says: Says,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The tool's id
    #[arg(value_name = "TOOL", add = complete(tools))]
    tool: ToolId,
    #[command(flatten)]
    confirm: Confirm,
}

impl Change {
    async fn send(
        self,
        common: &Common,
        terms: &Terms,
        operation: impl FnOnce(ToolId) -> Operation,
    ) -> Result<Exit, CliError> {
        mutation::run_on(common, &operation(self.tool), terms, self.confirm).await
    }
}

/// List the tools
///
/// The daemon's tools, if one runs, and whether they are disabled; otherwise those of this program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd tools list\n  effectd tools list -o json")]
pub(super) struct List {}

/// Show one tool: parameters, effects, sandbox and recovery
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd tools show files.edit_text\n  effectd tools show diagnose_error -o json"
)]
pub(super) struct Show {
    /// The tool's id
    #[arg(value_name = "TOOL", add = complete(tools))]
    tool: ToolId,
}

/// Try a tool: make a request on the command line, which passes every gate and gets a receipt
///
/// Parameters are given as name=value and read by the tool's schema, or together as JSON. The parameter `space_id` may be left out. The
/// daemon carries the request out if one runs. With `--dry-run` it passes all stages and changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd tools try files.list path=workspace recursive=true\n  \
    effectd tools try files.write_text path=workspace/try.txt text=hello --dry-run\n  \
    effectd tools try files.stat --json '{ \"path\": \"workspace\" }' -o json")]
pub(super) struct Try {
    /// The tool's id
    #[arg(value_name = "TOOL", add = complete(tools))]
    tool: ToolId,
    /// Parameters
    #[arg(value_name = "NAME=VALUE")]
    params: Vec<String>,
    /// Parameters as one JSON object; those given by name are added
    #[arg(long, value_name = "OBJECT")]
    json: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    request: RequestArgs,
}

impl ToolsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List(list) => list.main(common).await,
            Self::Show(show) => show.main(common).await,
            Self::Try(attempt) => attempt.main(common).await,
            Self::Disable { change, terms } => {
                change.send(common, &terms, |tool_id| Operation::DisableTool { tool_id }).await
            }
            Self::Enable { change, why } => {
                change.send(common, &why.into(), |tool_id| Operation::EnableTool { tool_id }).await
            }
            Self::Overlay(Overlay { change, why, says }) => {
                let details = one(common, &change.tool).await?;
                let was = serde_json::from_value(details["overlay"].clone()).unwrap_or_default();
                let says = says.beside(was, None, "the author's");
                let says = (says != ToolOverlay::default()).then(|| Box::new(says));
                change.send(common, &why.into(), |tool_id| Operation::OverlayTool { tool_id, says }).await
            }
            Self::SetCaps(SetCaps { change, why, caps, reset }) => {
                let operation = |tool_id| match reset {
                    true => Operation::ResetCaps { tool_id },
                    false => Operation::SetCaps { tool_id, caps },
                };
                change.send(common, &why.into(), operation).await
            }
        }
    }
}

fn own_registry() -> Result<Registry, CliError> {
    Ok(registry(tool_registry::own()).map_err(Error::internal)?)
}

/// What the daemon says about its tools. If none runs, the tools of this program, without opening a store.
async fn fetch<T: serde::de::DeserializeOwned>(
    common: &Common,
    path: &str,
    own: impl FnOnce(&Registry) -> Result<T, CliError>,
) -> Result<T, CliError> {
    match daemon_client(common)?.get(path).await {
        Err(ClientError::NoDaemon(_)) => own(&own_registry()?),
        Err(ClientError::Refused(problem)) if problem.code == "tool_unknown" => {
            Err(CliError::request(problem.detail))
        }
        answer => Ok(answer?),
    }
}

/// The description of one tool. If its id is unknown, the message names similar ones.
async fn one(common: &Common, tool: &ToolId) -> Result<Value, CliError> {
    let path = format!("/v1/tools/{}", percent_encoded(tool.as_str()));
    fetch(common, &path, |registry| Ok(tool_details(find(registry, tool)?, false))).await
}

fn spec_of(details: &Value) -> Result<ToolSpec, CliError> {
    let spec = serde_json::from_value(details["spec"].clone());
    Ok(spec.map_err(|error| ClientError::Strange(error.to_string()))?)
}

fn find<'r>(registry: &'r Registry, tool: &ToolId) -> Result<&'r RegisteredTool, CliError> {
    registry.find(tool).map(|entry| &**entry).map_err(|error| CliError::request(error.to_string()))
}

const COLUMNS: [(&str, usize); 7] =
    [("TOOL", 20), ("VERSION", 7), ("TIER", 4), ("CLASS", 6), ("UNDO", 4), ("OFF", 3), ("WHAT IT DOES", 60)];

pub(super) async fn summaries(common: &Common) -> Result<Vec<Value>, CliError> {
    fetch(common, "/v1/tools", |registry| Ok(summaries_of(registry))).await
}

/// The tools of this program.
pub(super) fn own_summaries() -> Result<Vec<Value>, CliError> {
    Ok(summaries_of(&own_registry()?))
}

fn summaries_of(registry: &Registry) -> Vec<Value> {
    registry.iter().map(|entry| tool_summary(entry, false)).collect()
}

impl List {
    async fn main(self, common: &Common) -> Result<Exit, CliError> {
        Ok(print_rows(common.output, &COLUMNS, &summaries(common).await?, cells))
    }
}

fn cells(tool: &Value) -> [String; 7] {
    let text = |name: &str| tool[name].as_str().unwrap_or_default();
    let yes = |name: &str| if tool[name] == true { "yes" } else { "" };
    let off = if tool["quarantined"].is_object() { "quarantined" } else { yes("disabled") };
    let drifted = if tool["drifted"] == true { "drifted: " } else { "" };
    [
        text("tool_id"),
        text("version"),
        text("tier"),
        text("safety_class"),
        yes("reversible"),
        off,
        &format!("{drifted}{}", first_words(text("description"))),
    ]
    .map(str::to_owned)
}

/// The first sentence or clause. A dot within a name does not end it.
fn first_words(text: &str) -> &str {
    let ends = |(at, c): (usize, char)| {
        let after = text[at + c.len_utf8()..].chars().next();
        (c == ';' || (c == '.' && after.is_none_or(char::is_whitespace))).then_some(at)
    };
    let end = text.char_indices().find_map(ends);
    &text[..end.unwrap_or(text.len())]
}

fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

impl Show {
    async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let details = one(common, &self.tool).await?;
        if !print_json(common.output, &details) {
            line(&page(&details)?);
        }
        Ok(Exit::Done)
    }
}

/// The description of a tool, as text.
fn page(details: &Value) -> Result<String, CliError> {
    let spec = &spec_of(details)?;
    let mut lines = vec![format!("{} {}: {}", spec.tool_id, spec.version, spec.description), String::new()];
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {name:<9} {value}"));
        }
    };
    let join = |words: Vec<String>| words.join(", ");
    let texts = |name: &str| {
        let texts = details[name].as_array().into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    row("also", join(texts("aliases")));
    row("needs", join(spec.caps_required.iter().map(ToString::to_string).collect()));
    row("needs now", join(texts("caps_set")));
    row("effects", join(spec.side_effects.iter().map(word).collect()));
    row(
        "risk",
        format!("tier {:?}, class {}, {}", spec.tier(), word(&spec.safety_class), word(&spec.level())),
    );
    row("sandbox", format!("{}, at most {} ms", spec.effective_profile(), spec.timeout_ms));
    row("repeat", repeat(spec).to_owned());
    row("undo", undo(spec).to_owned());
    row("hosts", join(texts("hosts")));
    if details["drifted"] == true {
        row(
            "drifted",
            "its description has changed since a person reviewed it: each call needs an approval".to_owned(),
        );
    }
    row("takes", fields(&spec.params_schema));
    row("answers", fields(&spec.result_schema));
    row("example", details["example"].to_string());
    for doubt in texts("doubtful") {
        row("doubtful", doubt);
    }
    match details["quarantined"]["reason"].as_str() {
        Some(reason) => row(
            "off",
            format!(
                "disabled, because it did more than it declares: {reason}; review it before you enable it again"
            ),
        ),
        None if details["disabled"] == true => row("off", "an operator has disabled it".to_owned()),
        None => {}
    }
    Ok(lines.join("\n"))
}

fn repeat(spec: &ToolSpec) -> &'static str {
    match spec.repeat {
        Repeat::Safe => "safe: after a crash it is run again",
        Repeat::Probe => "probe: after a crash it checks whether it was done",
        Repeat::Never => "never: after a crash a person checks whether it was done",
    }
}

fn undo(spec: &ToolSpec) -> &'static str {
    match (spec.reversible, spec.level()) {
        (true, _) => "yes: effectd undo <receipt>",
        (false, RiskLevel::Read) => "",
        (false, RiskLevel::Write | RiskLevel::Danger) => {
            "not promised; the receipt says whether it is possible"
        }
    }
}

/// The fields of an object schema, optional ones in brackets.
fn fields(schema: &Value) -> String {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |name: &String| required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)));
    let fields = schema.get("properties").and_then(Value::as_object);
    let names = fields.into_iter().flat_map(Map::keys);
    let fields = names.map(|name| if is_required(name) { name.clone() } else { format!("[{name}]") });
    fields.collect::<Vec<_>>().join(", ")
}

impl Try {
    async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let spec = spec_of(&one(common, &self.tool).await?)?;
        let params = self.read(&spec).map_err(CliError::request)?;
        let request = self.request.request(spec.tool_id, params, self.confirm.dry_run);
        request_args::execute_and_print(common, request).await
    }

    /// The parameters, with types by the tool's schema.
    fn read(&self, spec: &ToolSpec) -> Result<Map<String, Value>, String> {
        let mut params = match &self.json {
            None => Map::new(),
            Some(text) => {
                serde_json::from_str(text).map_err(|error| format!("--json is not a JSON object: {error}"))?
            }
        };
        for given in &self.params {
            let (name, text) = given
                .split_once('=')
                .ok_or_else(|| format!("{given:?} is not a parameter; write name=value"))?;
            params.insert(name.to_owned(), typed(spec, name, text)?);
        }
        let takes_space = spec.params_schema.pointer("/properties/space_id").is_some();
        if takes_space && !params.contains_key("space_id") {
            params.insert("space_id".to_owned(), json!(self.request.space));
        }
        Ok(params)
    }
}

/// A value, with its type by the schema. A parameter that the schema does not have stays text, and the tool checks it.
fn typed(spec: &ToolSpec, name: &str, text: &str) -> Result<Value, String> {
    let kind = spec.params_schema.pointer(&format!("/properties/{name}/type"));
    match kind.and_then(Value::as_str) {
        Some("integer" | "number" | "boolean" | "array" | "object") => {
            let wanted = kind.and_then(Value::as_str).unwrap_or_default();
            serde_json::from_str(text).map_err(|_| format!("{name} is of type {wanted}; {text:?} is not"))
        }
        Some(_) | None => Ok(Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_tool_that_drifted_says_so_in_list_and_page() {
        let id = "files.write_text".parse().unwrap();
        let mut definition = registry(&[]).unwrap().get(&id).unwrap().definition().clone();
        for drifted in [false, true] {
            definition.drifted = drifted;
            definition.hosts = vec!["api.example.org".to_owned()];
            let (registry, refused) = Registry::assemble(vec![definition.clone()]);
            assert!(refused.is_empty(), "{refused:?}");
            let entry = registry.get(&id).unwrap();
            assert_eq!(cells(&tool_summary(entry, false))[6].starts_with("drifted: "), drifted);
            let page = page(&tool_details(entry, false)).unwrap();
            assert_eq!(page.contains("has changed since a person reviewed it"), drifted, "{page}");
            assert!(page.contains("api.example.org"), "{page}");
        }
    }

    #[test]
    fn a_sentence_ends_at_a_dot_that_ends_it() {
        for (text, first) in [
            ("Packs it into a .tar.gz file. Then more.", "Packs it into a .tar.gz file"),
            ("Reads a file; never writes.", "Reads a file"),
            ("Waits.", "Waits"),
            ("No end", "No end"),
            ("", ""),
        ] {
            assert_eq!(first_words(text), first);
        }
    }
}
