//! `effectd tools`: what can happen here, and trying one out.

mod switch;

use clap::builder::PossibleValue;
use effectd_actors::{Entry, Registry};
use effectd_contracts::{ActionId, ActionRequest, PolicyCtx, Qos, SpaceId, SubjectId, ToolId, ToolSpec};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::{tool_details, tool_summary};
use serde_json::{Map, Value, json};

use super::ask::{self, Asking};
use super::backend::{Trouble, client_state, socket};
use super::output::{Form, Printer, line};
use super::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::tools::registry;

/// List, show and try the tools, and switch them off and on
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd tools list\n  effectd tools show files.write_text")]
pub(super) struct ToolsCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
    Try(Box<Try>),
    Disable(switch::Disable),
    Enable(switch::Enable),
    SetCaps(switch::SetCaps),
}

/// List the tools
///
/// Those of the daemon, if one runs, and whether they are switched off; otherwise those of this program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd tools list\n  effectd tools list -o json")]
struct List {
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Show one tool: what it takes, what it does, how it is confined and recovered
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd tools show files.edit_text\n  effectd tools show diagnose_error -o json"
)]
struct Show {
    /// Which tool
    #[arg(value_name = "TOOL", value_parser = KnownTool)]
    tool: ToolId,
    /// How it is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Try a tool: one request from the command line, through every gate, with its receipt
///
/// Parameters are given as name=value, read as the tool's schema has them, or all together as JSON. The space is a
/// parameter that need not be named. A daemon carries it out if one runs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd tools try files.list path=workspace recursive=true\n  \
    effectd tools try files.write_text path=workspace/try.txt text=hello --dry-run\n  \
    effectd tools try files.stat --json '{ \"path\": \"workspace\" }' -o json"
)]
struct Try {
    /// Which tool
    #[arg(value_name = "TOOL", value_parser = KnownTool)]
    tool: ToolId,
    /// Parameters
    #[arg(value_name = "NAME=VALUE")]
    params: Vec<String>,
    /// All parameters, as one JSON object; those given by name are added to it
    #[arg(long, value_name = "OBJECT")]
    json: Option<String>,
    /// Go the whole way, but change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asking: Asking,
}

/// A tool that effectd brings. Shells complete its name; a program's own tools may be named as well.
#[derive(Debug, Clone)]
struct KnownTool;

impl clap::builder::TypedValueParser for KnownTool {
    type Value = ToolId;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<ToolId, clap::Error> {
        let parser = clap::builder::NonEmptyStringValueParser::new();
        let text = parser.parse_ref(command, argument, value)?;
        ToolId::new(text)
            .map_err(|error| clap::Error::raw(clap::error::ErrorKind::InvalidValue, format!("{error}\n")))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = effectd_adapters::all().iter().map(|tool| {
            PossibleValue::new(tool.id())
                .aliases(tool.aliases().iter().copied())
                .hide(false)
        });
        Some(Box::new(names))
    }
}

impl ToolsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            match self.command {
                Command::List(list) => list.main(common).await,
                Command::Show(show) => show.main(common).await,
                Command::Try(attempt) => attempt.main(common).await,
                Command::Disable(disable) => disable.main(common).await,
                Command::Enable(enable) => enable.main(common).await,
                Command::SetCaps(set) => set.main(common).await,
            }
        })
    }
}

/// What the daemon says of its tools, or, where none runs, what this program has. No store is needed for that.
async fn told<T: serde::de::DeserializeOwned>(
    common: &Common,
    path: &str,
    own: impl FnOnce(&Registry) -> Result<T, Exit>,
) -> Result<Result<T, Exit>, Trouble> {
    let state = client_state(common);
    let mut client = Client::new(socket(common, &state)?);
    match client.get(path).await {
        Err(ClientError::NoDaemon(_)) => {
            let registry =
                registry(crate::tools::own()).map_err(|error| Error::Internal(error.to_string()))?;
            Ok(own(&registry))
        }
        Err(ClientError::Refused(problem)) if problem.code == "tool_unknown" => {
            complain(&problem.detail);
            Ok(Err(Exit::Usage))
        }
        answer => Ok(Ok(answer?)),
    }
}

/// One tool, or a complaint that says what there is instead.
async fn one(common: &Common, tool: &ToolId) -> Result<Result<Value, Exit>, Trouble> {
    let path = format!("/v1/tools/{}", percent_encoded(tool.as_str()));
    told(common, &path, |registry| {
        Ok(tool_details(find(registry, tool)?, false))
    })
    .await
}

fn spec_of(details: &Value) -> Result<ToolSpec, Trouble> {
    let spec = serde_json::from_value(details["spec"].clone());
    Ok(spec.map_err(|error| ClientError::Strange(error.to_string()))?)
}

/// The tool, or a complaint that says what there is instead.
fn find<'r>(registry: &'r Registry, tool: &ToolId) -> Result<&'r Entry, Exit> {
    registry.find(tool).map(|entry| &**entry).map_err(|error| {
        complain(&error);
        Exit::Usage
    })
}

const COLUMNS: [(&str, usize); 7] = [
    ("TOOL", 20),
    ("VERSION", 7),
    ("TIER", 4),
    ("CLASS", 6),
    ("UNDO", 4),
    ("OFF", 3),
    ("WHAT IT DOES", 60),
];

impl List {
    async fn main(self, common: &Common) -> Result<Exit, Trouble> {
        let own = |registry: &Registry| Ok(registry.iter().map(|entry| tool_summary(entry, false)).collect());
        let tools: Vec<Value> = match told(common, "/v1/tools", own).await? {
            Ok(tools) => tools,
            Err(exit) => return Ok(exit),
        };
        let mut printer = Printer::new(self.output, true, &COLUMNS);
        for tool in &tools {
            let text = |name: &str| tool[name].as_str().unwrap_or_default();
            let yes = |name: &str| if tool[name] == true { "yes" } else { "" };
            let does = first_words(text("description"));
            let (class, undo, mut off) = (text("safety_class"), yes("reversible"), yes("disabled"));
            if tool["quarantined"].is_object() {
                off = "quarantined";
            }
            printer.row(
                tool,
                &[
                    text("tool_id"),
                    text("version"),
                    text("tier"),
                    class,
                    undo,
                    off,
                    does,
                ],
            );
        }
        printer.finish();
        Ok(Exit::Done)
    }
}

/// The first sentence, up to its end or a semicolon. A dot within a name is no end.
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
    async fn main(self, common: &Common) -> Result<Exit, Trouble> {
        let details = match one(common, &self.tool).await? {
            Ok(details) => details,
            Err(exit) => return Ok(exit),
        };
        match self.output {
            Form::Table => line(&page(&details)?),
            Form::Json | Form::Jsonl => {
                let mut printer = Printer::new(self.output, false, &COLUMNS);
                printer.row(&details, &[]);
                printer.finish();
            }
        }
        Ok(Exit::Done)
    }
}

/// One tool on one screen.
fn page(details: &Value) -> Result<String, Trouble> {
    let spec = &spec_of(details)?;
    let mut lines = vec![
        format!("{} {}: {}", spec.tool_id, spec.version, spec.description),
        String::new(),
    ];
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {name:<9} {value}"));
        }
    };
    let join = |words: Vec<String>| words.join(", ");
    let texts = |name: &str| {
        let texts = details[name].as_array().into_iter().flatten();
        texts
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    row("also", join(texts("aliases")));
    row(
        "needs",
        join(spec.caps_required.iter().map(ToString::to_string).collect()),
    );
    row("needs now", join(texts("caps_set")));
    row("effects", join(spec.side_effects.iter().map(word).collect()));
    row(
        "risk",
        format!(
            "tier {:?}, class {}, {}",
            spec.tier(),
            word(&spec.safety_class),
            word(&spec.risk_level)
        ),
    );
    row(
        "sandbox",
        format!("{}, at most {} ms", spec.effective_profile(), spec.timeout_ms),
    );
    row("repeat", repeat(spec).to_owned());
    row("undo", undo(spec).to_owned());
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
                "quarantined, since it did more than it declares: {reason}; look at it before you switch it on again"
            ),
        ),
        None if details["disabled"] == true => row("off", "an operator has switched it off".to_owned()),
        None => {}
    }
    Ok(lines.join("\n"))
}

fn repeat(spec: &ToolSpec) -> &'static str {
    match spec.repeat {
        effectd_contracts::Repeat::Safe => "safe: after a crash it is run again",
        effectd_contracts::Repeat::Probe => "probe: after a crash it looks whether it was done",
        effectd_contracts::Repeat::Never => "never: after a crash a person looks whether it was done",
    }
}

fn undo(spec: &ToolSpec) -> &'static str {
    match (spec.reversible, spec.risk_level) {
        (true, _) => "yes: effectd undo <receipt>",
        (false, effectd_contracts::RiskLevel::Read) => "",
        (false, effectd_contracts::RiskLevel::Write | effectd_contracts::RiskLevel::Danger) => {
            "not promised; the receipt says whether it is possible"
        }
    }
}

/// The names of an object schema's fields, those that may be left out in brackets.
fn fields(schema: &Value) -> String {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |name: &String| required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)));
    let fields = schema.get("properties").and_then(Value::as_object);
    let names = fields.into_iter().flat_map(Map::keys);
    let told = names.map(|name| {
        if is_required(name) {
            name.clone()
        } else {
            format!("[{name}]")
        }
    });
    told.collect::<Vec<_>>().join(", ")
}

impl Try {
    async fn main(self, common: &Common) -> Result<Exit, Trouble> {
        let details = match one(common, &self.tool).await? {
            Ok(details) => details,
            Err(exit) => return Ok(exit),
        };
        let spec = spec_of(&details)?;
        let params = match self.read(&spec) {
            Ok(params) => params,
            Err(why) => {
                complain(&why);
                return Ok(Exit::Usage);
            }
        };
        let request = request(&self.asking, spec.tool_id.clone(), params, self.dry_run);
        ask::have_done(common, request, self.asking.output).await
    }

    /// The parameters, each as its schema has it.
    fn read(&self, spec: &ToolSpec) -> Result<Map<String, Value>, String> {
        let mut params = match &self.json {
            None => Map::new(),
            Some(text) => {
                serde_json::from_str(text).map_err(|error| format!("--json is no JSON object: {error}"))?
            }
        };
        for given in &self.params {
            let (name, text) = given
                .split_once('=')
                .ok_or_else(|| format!("{given:?} is no parameter; write name=value"))?;
            params.insert(name.to_owned(), typed(spec, name, text)?);
        }
        let takes_space = spec.params_schema.pointer("/properties/space_id").is_some();
        if takes_space && !params.contains_key("space_id") {
            params.insert("space_id".to_owned(), json!(self.asking.space));
        }
        Ok(params)
    }
}

/// A value as its schema has it; what the schema does not know stays a text, and the tool says what it thinks of it.
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

/// A request made on the command line, under an id of its own.
pub(super) fn request(
    asking: &Asking,
    tool_id: ToolId,
    params: Map<String, Value>,
    dry_run: bool,
) -> ActionRequest {
    let (subject_id, space_id): (SubjectId, SpaceId) = (asking.subject.clone(), asking.space.clone());
    ActionRequest {
        action_id: ActionId::fresh(),
        subject_id,
        space_id,
        tool_id,
        params,
        qos: Qos::default(),
        policy_ctx: PolicyCtx::default(),
        idempotency_key: None,
        candidates: Vec::new(),
        propensity: None,
        rationale: None,
        dry_run,
        trace_id: None,
        traceparent: None,
        tracestate: None,
    }
}

#[cfg(test)]
mod tests {
    use super::first_words;

    #[test]
    fn a_sentence_ends_at_a_dot_that_ends_it() {
        for (text, first) in [
            (
                "Packs it into a .tar.gz file. Then more.",
                "Packs it into a .tar.gz file",
            ),
            ("Reads a file; never writes.", "Reads a file"),
            ("Waits.", "Waits"),
            ("No end", "No end"),
            ("", ""),
        ] {
            assert_eq!(first_words(text), first);
        }
    }
}
