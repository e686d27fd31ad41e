//! Connectors: MCP servers of others, whose tools effectd offers as its own.
//!
//! A server describes its tools itself, and may describe them otherwise tomorrow. So each description is pinned: its *shape* (what may
//! be asked), its *claims* (what the server says about effects and results) and its *prose* (what people and models read). The gate
//! compares the pin of the description that will be called with the one that a person reviewed; the child, which alone talks to the
//! server, compares the pin of what the server says now with the one that the gate judged. Both use the functions of this module.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::access::Route;
use crate::canonical;
use crate::digest::Digest;
use crate::exchange::{Method, check_path};
use crate::failure::{Code, Failure, Phase};
use crate::limits::{
    CONNECTOR_ARG_BYTES_MAX, CONNECTOR_ARGS_MAX, CONNECTOR_TOOLS_MAX, REMOTE_ACTION_BYTES_MAX,
    ROUTE_BYTES_MAX, SCHEMA_BYTES_MAX, TOOL_WORDS_BYTES_MAX,
};
use crate::param_header::ParamHeader;
use crate::risk::{RiskLevel, RiskTier};

/// The sources of tools of connectors begin with this: `connector:<uuid>`.
pub const CONNECTOR_SOURCE: &str = "connector:";
/// The space of what speaks with servers: nobody's, and empty.
pub const NO_SPACE: &str = "effectd:connectors";

/// How a connection reaches an MCP server, and what its operator says about the server's tools.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Connector {
    /// How the server is reached.
    pub transport: Transport,
    /// The risk of a tool about which neither the operator nor the server says anything; `write` if left out.
    pub default_risk: Option<RiskLevel>,
    /// What the operator says about tools, by the names that the server gives them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overlay: BTreeMap<String, ToolOverlay>,
}

/// How an MCP server is reached.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Transport {
    /// By HTTP, over the connection's access.
    Http {
        /// The path that takes every message: `/mcp`.
        path: String,
    },
    /// As a confined program without network, which reads messages from its standard input.
    Stdio {
        /// The program, by an absolute path, and its arguments. `{folder}` stands for the folder.
        argv: Vec<String>,
        /// Folders of this machine that the program reads and executes, by absolute paths.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        programs: Vec<String>,
        /// The one folder of the action's space that it sees and may change: `workspace/notes`.
        folder: Option<String>,
    },
}

/// What an operator says about a tool, instead of its server or its author.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolOverlay {
    /// Its title.
    pub title: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// What it does to the world, for a tool of a server.
    pub risk: Option<RiskLevel>,
    /// The tier, which can only raise the one that follows from the risk.
    pub tier: Option<RiskTier>,
}

/// A rule that a connector breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorInvalid {
    /// The path cannot be a route.
    #[error("the path {0:?} is not one that all programs read alike; write one such as /mcp")]
    Path(String),
    /// No program, or one that depends on where effectd was started.
    #[error(
        "a connector by stdio needs a program by an absolute path, with at most {CONNECTOR_ARGS_MAX} arguments"
    )]
    Program,
    /// A folder of this machine that is not named once and for all.
    #[error("the folders of programs are absolute paths without `..`, at most {CONNECTOR_ARGS_MAX}")]
    Programs,
    /// A folder that leads out of the space.
    #[error(
        "the folder is a path in the space without `..`, such as workspace/notes, of at most {CONNECTOR_ARG_BYTES_MAX} bytes"
    )]
    Folder,
    /// The overlay is too long.
    #[error(
        "the overlay has at most {CONNECTOR_TOOLS_MAX} tools, with at most {TOOL_WORDS_BYTES_MAX} bytes of printable text each"
    )]
    Overlay,
}

impl Connector {
    /// Refuses a connector that could not be used.
    pub fn check(&self) -> Result<(), ConnectorInvalid> {
        let is_absolute = |path: &String| {
            let fits = path.len() <= CONNECTOR_ARG_BYTES_MAX && !path.contains('\0');
            path.starts_with('/') && fits && !path.split('/').any(|part| part == "..")
        };
        let is_beneath = |path: &String| {
            let fits = (1..=CONNECTOR_ARG_BYTES_MAX).contains(&path.len()) && !path.contains('\0');
            fits && !path.starts_with('/') && !path.split('/').any(|part| part == "..")
        };
        match &self.transport {
            Transport::Http { path } => {
                let plain = path.len() <= ROUTE_BYTES_MAX && check_path(path).is_ok();
                if !plain || path.contains('{') {
                    return Err(ConnectorInvalid::Path(path.chars().take(64).collect()));
                }
            }
            Transport::Stdio { argv, programs, folder } => {
                let is_arg = |arg: &String| arg.len() <= CONNECTOR_ARG_BYTES_MAX && !arg.contains('\0');
                let is_sound = argv.first().is_some_and(is_absolute) && argv.iter().all(is_arg);
                if !is_sound || argv.len() > CONNECTOR_ARGS_MAX {
                    return Err(ConnectorInvalid::Program);
                }
                if programs.len() > CONNECTOR_ARGS_MAX || !programs.iter().all(is_absolute) {
                    return Err(ConnectorInvalid::Programs);
                }
                if !folder.iter().all(is_beneath) {
                    return Err(ConnectorInvalid::Folder);
                }
            }
        }
        let fits = |(name, said): (&String, &ToolOverlay)| is_tool_name(name) && said.is_sound();
        if self.overlay.len() > CONNECTOR_TOOLS_MAX || !self.overlay.iter().all(fits) {
            return Err(ConnectorInvalid::Overlay);
        }
        Ok(())
    }
}

impl ToolOverlay {
    /// Whether people can read all that it says, and in little time.
    pub fn is_sound(&self) -> bool {
        let words = [self.title.as_deref(), self.description.as_deref()];
        let is_short = |text: &str| text.len() <= TOOL_WORDS_BYTES_MAX && !has_hidden(text);
        words.into_iter().flatten().all(is_short)
    }
}

impl Transport {
    /// The one route of a connector by HTTP.
    pub fn route(&self) -> Option<Route> {
        match self {
            Self::Http { path } => Some(Route { method: Method::Post, path: path.clone() }),
            Self::Stdio { .. } => None,
        }
    }
}

/// Whether a tool of a server can have this name: what MCP allows, so that it is the action of a tool's id.
pub fn is_tool_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=REMOTE_ACTION_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

/// Whether a text has characters that a person does not see, or that change how others look. Line breaks and tabs are none, and
/// neither is what makes one picture of several emoji.
pub fn has_hidden(text: &str) -> bool {
    cleaned(text).len() != text.len()
}

/// A text without the characters of [`has_hidden`].
pub fn cleaned(text: &str) -> String {
    let (mut kept, mut chars) = (String::new(), text.chars().peekable());
    // Whether an emoji has just been kept, and whether its look was said.
    let (mut is_picture, mut is_styled) = (false, false);
    while let Some(c) = chars.next() {
        let next = chars.peek().copied().unwrap_or(' ');
        let keeps = match c {
            '\n' | '\r' | '\t' => true,
            '\u{fe0f}' => (is_picture && !is_styled) || next == '\u{20e3}',
            '\u{200d}' => is_picture && is_emoji(next),
            c => !crate::text::is_unprintable(c),
        };
        if keeps {
            kept.push(c);
        }
        is_styled = c == '\u{fe0f}';
        is_picture = is_emoji(c) || (is_picture && is_styled);
    }
    kept
}

/// Whether a character is a picture, roughly: by the blocks that have them.
fn is_emoji(c: char) -> bool {
    matches!(u32::from(c), 0xa9 | 0xae | 0x203c | 0x2049 | 0x2122 | 0x2139 | 0x2190..=0x21ff | 0x2300..=0x23ff
        | 0x24c2 | 0x25a0..=0x27bf | 0x2934..=0x2935 | 0x2b00..=0x2bff | 0x3030 | 0x303d | 0x3297 | 0x3299
        | 0x1f000..=0x1faff)
}

/// A tool as its server lists it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Harvested {
    /// The name by which the server knows it.
    pub name: String,
    /// Its title, for people.
    pub title: Option<String>,
    /// What it does, for people and models.
    pub description: Option<String>,
    /// JSON Schema of its parameters, in any dialect.
    pub input_schema: Value,
    /// JSON Schema of its structured results, in any dialect.
    pub output_schema: Option<Value>,
    /// What the server says about its effects. Nobody has checked it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
}

/// Why a listed tool cannot be offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedTool {
    /// The name by which the server knows it, cut and without hidden characters.
    pub name: String,
    /// The reason, for people.
    pub why: String,
}

/// What a server lists: all pages, or nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Harvest {
    /// The version of MCP that the server speaks.
    pub protocol: String,
    /// How the server calls itself, with its version.
    #[serde(default)]
    pub server: String,
    /// Its tools, in its order, each name once.
    pub tools: Vec<Harvested>,
    /// Tools that are beyond a bound. The others live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedTool>,
}

impl Harvest {
    /// Moves tools beyond a bound to the refused ones. Both sides do it: the child since it must stay small, the daemon since it does
    /// not believe the child.
    pub fn bound(&mut self) {
        let mut names = std::collections::BTreeSet::new();
        let mut refused = Vec::new();
        self.tools.retain(|tool| {
            match tool.unfit().or_else(|| {
                let is_new = names.insert(tool.name.clone());
                (!is_new).then(|| "another tool has this name".to_owned())
            }) {
                Some(why) => {
                    refused.push(RefusedTool { name: printable(&tool.name), why });
                    false
                }
                None => true,
            }
        });
        self.refused.extend(refused);
        for tool in &mut self.refused {
            (tool.name, tool.why) = (printable(&tool.name), printable(&tool.why));
        }
        self.protocol = printable(&self.protocol);
        self.server = printable(&self.server);
    }
}

/// What people may be shown of a text of others, in one line.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !crate::text::is_unprintable(*c)).take(REMOTE_ACTION_BYTES_MAX).collect()
}

impl Harvested {
    /// Why this tool cannot be offered, as far as its size and name tell.
    fn unfit(&self) -> Option<String> {
        let Self { name, title, description, input_schema, output_schema, annotations } = self;
        let words = [title, description].into_iter().flatten().map(String::len).max().unwrap_or_default();
        let size = |schema: &Value| schema.to_string().len();
        let schemas = [Some(input_schema), output_schema.as_ref()].into_iter().flatten().map(size).max();
        let said = Value::Object(annotations.clone()).to_string().len();
        if !is_tool_name(name) {
            return Some(format!(
                "its name is not 1 to {REMOTE_ACTION_BYTES_MAX} letters, digits, _, - or ."
            ));
        }
        if words > TOOL_WORDS_BYTES_MAX || said > TOOL_WORDS_BYTES_MAX {
            return Some(format!(
                "its title, description or annotations are longer than {TOOL_WORDS_BYTES_MAX} bytes"
            ));
        }
        if schemas.is_some_and(|bytes| bytes > SCHEMA_BYTES_MAX) {
            return Some(format!("a schema is larger than {SCHEMA_BYTES_MAX} bytes"));
        }
        (!input_schema.is_object()).then(|| "its input schema is no object".to_owned())
    }

    /// A hint of MCP, if the server gives it.
    pub fn hint(&self, name: &str) -> Option<bool> {
        self.annotations.get(name).and_then(Value::as_bool)
    }
}

/// The description of a tool, as digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    /// What may be asked: [`shape_of`] the input schema.
    pub shape: String,
    /// What the server says about effects and results: its hints, and the shape of the output schema.
    pub claims: Digest,
    /// What people and models read.
    pub prose: Digest,
}

impl Pinned {
    /// The pin of a description.
    pub fn of(tool: &Harvested) -> Self {
        Self { shape: shape_of(&tool.input_schema), claims: claims_of(tool), prose: prose_of(tool) }
    }
}

/// The hints of MCP by which a server says what a tool does to the world.
pub const HINTS: [&str; 4] = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];

fn claims_of(tool: &Harvested) -> Digest {
    let hints: Map<_, _> = HINTS
        .iter()
        .filter_map(|hint| Some(((*hint).to_owned(), tool.annotations.get(*hint)?.clone())))
        .collect();
    canonical::digest(&json!({ "hints": hints, "output": tool.output_schema.as_ref().map(shape_of) }))
}

/// What is no shape, wherever a schema stands: what is read by people, and values that may be chosen or left out.
const PROSE: [&str; 3] = ["description", "default", "enum"];
/// Keywords whose value is a schema, or an array of schemas.
const INNER: [&str; 19] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "extends",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "disallow",
    "type",
];
/// Keywords whose value is an object of schemas.
const NAMED: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// The shape of a schema: the SHA-256 of its canonical JSON without the keywords `description`, `default` and `enum`. Properties of
/// those names stay. The version in front changes if ever this function does: all pins are then reviewed anew.
pub fn shape_of(schema: &Value) -> String {
    let mut prose = BTreeMap::new();
    let mut shape = schema.clone();
    strip(&mut shape, String::new(), &mut prose);
    format!("v1:{}", canonical::digest(&shape).hex())
}

/// The digest of what [`shape_of`] leaves out, with name, title, description and annotations.
pub fn prose_of(tool: &Harvested) -> Digest {
    let Harvested { name, title, description, input_schema, output_schema, annotations } = tool;
    let mut prose = BTreeMap::new();
    for (at, schema) in [("in", Some(input_schema)), ("out", output_schema.as_ref())] {
        if let Some(schema) = schema {
            strip(&mut schema.clone(), at.to_owned(), &mut prose);
        }
    }
    canonical::digest(&json!({
        "name": name, "title": title, "description": description, "annotations": annotations, "schemas": prose,
    }))
}

/// Moves the words of a schema to `prose`, by their place. It walks by position: what is a property's name in one place is a keyword
/// in another. The depth of parsed JSON is bounded.
fn strip(schema: &mut Value, at: String, prose: &mut BTreeMap<String, Value>) {
    if let Value::Array(items) = schema {
        for (index, item) in items.iter_mut().enumerate() {
            strip(item, format!("{at}/{index}"), prose);
        }
    }
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    for keyword in PROSE {
        if let Some(said) = members.remove(keyword) {
            prose.insert(format!("{at}/{keyword}"), said);
        }
    }
    for (keyword, inner) in members.iter_mut() {
        if INNER.contains(&keyword.as_str()) {
            strip(inner, format!("{at}/{keyword}"), prose);
        } else if NAMED.contains(&keyword.as_str())
            && let Some(named) = inner.as_object_mut()
        {
            for (name, inner) in named {
                strip(inner, format!("{at}/{keyword}/{name}"), prose);
            }
        }
    }
}

/// What the child is told about a server, beside the parameters of the call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// How the server is reached.
    pub transport: Transport,
    /// What is asked of it.
    pub ask: Ask,
    /// The version of MCP that it spoke when it was last listed, so that a call need not find it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The parameters that the server wants in headers, too, if it is reached by HTTP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ParamHeader>,
}

/// What is asked of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// To list its tools. The result is a [`Harvest`].
    Harvest {},
    /// To call a tool, unless it is another one by now.
    Call {
        /// The description that the gate judged.
        pinned: Pinned,
    },
}

impl Ask {
    /// Refuses a call of a tool that is not the one that was judged. `now` is what the server lists under the tool's name.
    pub fn check(&self, now: Option<&Harvested>) -> Result<(), Failure> {
        let Self::Call { pinned } = self else {
            return Ok(());
        };
        let drifted = |what: &str| {
            let why = format!(
                "the server has changed the tool since effectd listed it: {what}; nothing was called"
            );
            Err(Failure::new(Code::ToolDrifted, Phase::Dispatch, why))
        };
        let Some(now) = now.map(Pinned::of) else {
            return drifted("it is gone");
        };
        match (pinned.shape == now.shape, pinned.claims == now.claims, pinned.prose == now.prose) {
            (true, true, true) => Ok(()),
            (false, _, _) => drifted("it takes other parameters"),
            (_, false, _) => drifted("it claims other effects or results"),
            (_, _, false) => drifted("its description"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn search() -> Value {
        json!({
            "type": "object", "description": "Searches.", "required": ["query"],
            "properties": {
                "query": { "type": "string", "description": "What to look for.", "default": "" },
                "default": { "type": "string", "enum": ["a", "b"] },
                "page": { "$ref": "#/$defs/page" },
            },
            "$defs": { "page": { "type": "integer", "minimum": 1, "default": 1 } },
        })
    }

    fn tool() -> Harvested {
        Harvested {
            name: "search".to_owned(),
            title: None,
            description: Some("Searches.".to_owned()),
            input_schema: search(),
            output_schema: None,
            annotations: json!({ "readOnlyHint": true }).as_object().unwrap().clone(),
        }
    }

    /// What is stored and reviewed is known by this. Another value means that every tool of every connector asks again: then the
    /// version in front changes, too.
    #[test]
    fn the_shape_of_a_schema_is_pinned() {
        let stripped = json!({
            "type": "object", "required": ["query"],
            "properties": { "query": { "type": "string" }, "default": { "type": "string" }, "page": { "$ref": "#/$defs/page" } },
            "$defs": { "page": { "type": "integer", "minimum": 1 } },
        });
        assert_eq!(shape_of(&search()), format!("v1:{}", canonical::digest(&stripped).hex()));
        let text = r##"{"$defs":{"page":{"minimum":1,"type":"integer"}},"properties":{"default":{"type":"string"},"page":{"$ref":"#/$defs/page"},"query":{"type":"string"}},"required":["query"],"type":"object"}"##;
        assert_eq!(shape_of(&search()), format!("v1:{}", Digest::of(text.as_bytes()).hex()));
    }

    #[test]
    fn words_are_no_shape_and_properties_are_no_words() {
        let shape = shape_of(&search());
        let changed = |pointer: &str, value: Value| {
            let mut schema = search();
            *schema.pointer_mut(pointer).unwrap() = value;
            schema
        };
        for (pointer, value) in [
            ("/description", json!("Finds.")),
            ("/properties/query/description", json!("Anything.")),
            ("/properties/query/default", json!("x")),
            ("/properties/default/enum", json!(["c"])),
            ("/$defs/page/default", json!(7)),
        ] {
            assert_eq!(shape_of(&changed(pointer, value)), shape, "{pointer}");
        }
        for (pointer, value) in [
            ("/properties/query/type", json!("number")),
            ("/properties/default", json!({ "type": "number" })),
            ("/$defs/page/minimum", json!(0)),
            ("/required", json!(["query", "page"])),
        ] {
            assert_ne!(shape_of(&changed(pointer, value)), shape, "{pointer}");
        }
        let mut without = search();
        without["properties"].as_object_mut().unwrap().remove("default");
        assert_ne!(shape_of(&without), shape, "a property of that name is part of the shape");
        // What a constant holds is compared, whatever its members are called.
        let constant = |word: &str| shape_of(&json!({ "const": { "description": word } }));
        assert_ne!(constant("a"), constant("b"));
    }

    #[test]
    fn each_part_of_a_description_has_its_pin() {
        let pin = Pinned::of(&tool());
        let with = |change: fn(&mut Harvested)| {
            let mut other = tool();
            change(&mut other);
            let other = Pinned::of(&other);
            (other.shape == pin.shape, other.claims == pin.claims, other.prose == pin.prose)
        };
        assert_eq!(with(|_| ()), (true, true, true));
        assert_eq!(with(|tool| tool.description = None), (true, true, false));
        assert_eq!(
            with(|tool| tool.input_schema["properties"]["query"]["default"] = json!(1)),
            (true, true, false)
        );
        assert_eq!(
            with(|tool| drop(tool.annotations.insert("title".into(), json!("x")))),
            (true, true, false)
        );
        assert_eq!(with(|tool| tool.annotations.clear()), (true, false, false));
        assert_eq!(with(|tool| tool.output_schema = Some(json!({ "type": "object" }))), (true, false, true));
        assert_eq!(with(|tool| tool.input_schema["required"] = json!([])), (false, true, true));
    }

    #[test]
    fn a_call_is_refused_unless_its_tool_is_the_judged_one() {
        let ask = Ask::Call { pinned: Pinned::of(&tool()) };
        let said = |now: Option<&Harvested>| ask.check(now).map_err(|failure| failure.code);
        assert_eq!(said(Some(&tool())), Ok(()));
        assert_eq!(said(None), Err(Code::ToolDrifted));
        assert_eq!(said(Some(&Harvested { description: None, ..tool() })), Err(Code::ToolDrifted));
        assert_eq!(said(Some(&Harvested { annotations: Map::new(), ..tool() })), Err(Code::ToolDrifted));
    }

    #[test]
    fn a_list_is_cut_to_its_bounds_tool_by_tool() {
        let named = |name: &str| Harvested { name: name.to_owned(), ..tool() };
        let long = "x".repeat(TOOL_WORDS_BYTES_MAX + 1);
        let large = json!({ "type": "object", "title": "x".repeat(SCHEMA_BYTES_MAX) });
        let tools = vec![
            named("a"),
            named("a"),
            named("ns:b"),
            named(""),
            Harvested { description: Some(long), ..named("c") },
            Harvested { input_schema: large, ..named("d") },
            Harvested { input_schema: json!(true), ..named("e") },
            named("f"),
        ];
        let mut harvest = Harvest { server: "a\u{202e}b".to_owned(), tools, ..Harvest::default() };
        harvest.bound();
        let names: Vec<_> = harvest.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((names, harvest.refused.len(), harvest.server.as_str()), (vec!["a", "f"], 6, "ab"));
    }

    #[test]
    fn a_connector_that_could_not_be_used_is_refused() {
        let stdio = |argv: &[&str], programs: &[&str]| {
            let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            Transport::Stdio { argv: all(argv), programs: all(programs), folder: None }
        };
        let check = |transport| Connector { transport, default_risk: None, overlay: BTreeMap::new() }.check();
        assert_eq!(check(Transport::Http { path: "/mcp".to_owned() }), Ok(()));
        assert_eq!(check(stdio(&["/usr/bin/node", "x"], &["/opt/mcp"])), Ok(()));
        for path in ["mcp", "/{id}", "/../x", "/mcp?x=1", ""] {
            assert!(check(Transport::Http { path: path.to_owned() }).is_err(), "{path}");
        }
        for (argv, programs) in
            [(&["node"][..], &[][..]), (&[], &[]), (&["/bin/../x"], &[]), (&["/bin/x"], &["opt"])]
        {
            assert!(check(stdio(argv, programs)).is_err(), "{argv:?} {programs:?}");
        }
        for (folder, is_sound) in [
            ("workspace/notes", true),
            ("workspacenotes", true),
            ("/etc", false),
            ("workspace/../x", false),
            ("", false),
        ] {
            let mut transport = stdio(&["/bin/x"], &[]);
            if let Transport::Stdio { folder: named, .. } = &mut transport {
                *named = Some(folder.to_owned());
            }
            assert_eq!(check(transport).is_ok(), is_sound, "{folder:?}");
        }
        let overlay = BTreeMap::from([(
            "a".to_owned(),
            ToolOverlay { title: Some("a\u{200b}".to_owned()), ..ToolOverlay::default() },
        )]);
        let transport = Transport::Http { path: "/mcp".to_owned() };
        assert!(
            Connector { transport, default_risk: None, overlay }.check().is_err(),
            "nobody sees what it says"
        );
    }

    /// A schema with inner schemas at all positions.
    fn schemas() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!({ "type": "string" })),
            Just(json!({ "type": "integer", "default": 1 })),
            Just(json!({ "enum": ["a"], "description": "b" })),
            Just(json!(true)),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let name = prop_oneof![
                Just("default"),
                Just("description"),
                Just("enum"),
                Just("a"),
                Just("properties")
            ];
            prop_oneof![
                prop::collection::btree_map(name, inner.clone(), 0..4)
                    .prop_map(|named| json!({ "type": "object", "properties": named })),
                inner.clone().prop_map(|inner| json!({ "type": "array", "items": inner })),
                prop::collection::vec(inner.clone(), 1..3).prop_map(|all| json!({ "anyOf": all })),
                inner.prop_map(
                    |inner| json!({ "$defs": { "enum": inner }, "not": { "$ref": "#/$defs/enum" } })
                ),
            ]
        })
    }

    /// The pointers of all objects with properties, by position.
    fn with_properties(schema: &Value, at: String, found: &mut Vec<String>) {
        let Some(members) = schema.as_object() else { return };
        for (keyword, inner) in members {
            match keyword.as_str() {
                "properties" => {
                    found.push(at.clone());
                    for (name, inner) in inner.as_object().unwrap() {
                        with_properties(inner, format!("{at}/properties/{name}"), found);
                    }
                }
                "items" => with_properties(inner, format!("{at}/items"), found),
                "anyOf" => {
                    for (index, inner) in inner.as_array().unwrap().iter().enumerate() {
                        with_properties(inner, format!("{at}/anyOf/{index}"), found);
                    }
                }
                "$defs" => with_properties(&inner["enum"], format!("{at}/$defs/enum"), found),
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn a_new_required_property_always_changes_the_shape(schema in schemas(), name in "[a-z]{1,12}") {
            let schema = json!({ "type": "object", "properties": { "x": schema } });
            let mut places = Vec::new();
            with_properties(&schema, String::new(), &mut places);
            for place in places {
                let mut other = schema.clone();
                let object = other.pointer_mut(&place).unwrap();
                object["properties"][format!("new_{name}")] = json!({ "type": "string" });
                object["required"] = json!([format!("new_{name}")]);
                prop_assert_ne!(shape_of(&other), shape_of(&schema), "{}", place);
            }
        }

        #[test]
        fn the_order_of_names_is_no_shape(schema in schemas()) {
            fn reversed(value: &Value) -> Value {
                match value {
                    Value::Object(members) => members.iter().rev().map(|(name, inner)| (name.clone(), reversed(inner))).collect(),
                    Value::Array(items) => items.iter().map(reversed).collect(),
                    plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain.clone(),
                }
            }
            prop_assert_eq!(shape_of(&reversed(&schema)), shape_of(&schema));
        }
    }
}
