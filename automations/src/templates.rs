//! Templates: what they may say, and how they are rendered.
//!
//! The language is that of Jinja, with `if`, `for` and `set`, and with nothing that is not listed here. Checking reads a template and
//! runs nothing. Rendering happens in a confined child only ([`answer`]): fuel bounds its instructions, and the kernel its memory and
//! time, since one instruction may double a text. No other module uses the template library.

mod filters;

use std::collections::BTreeSet;
use std::io::{self, Write};

use effectd_actors::Services;
use effectd_actors::execution::reserved;
use effectd_contracts::{Code, Failure, Phase, ToolCall, ToolOutput, ToolReply};
use minijinja::machinery::{Token, WhitespaceConfig, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value as Rendered, tests as builtin};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits::{EXPRESSION_TOKENS_MAX, RENDERED_BYTES_MAX, TEMPLATE_BYTES_MAX, TEMPLATE_FUEL};

/// The name of the reserved call that renders. No tool has it.
pub const RENDER: &str = "effectd.render";
/// All filters.
pub const FILTERS: [&str; 15] = [
    "date", "default", "first", "join", "last", "length", "lower", "replace", "reverse", "slugify", "sort",
    "tojson", "trim", "truncate", "upper",
];
/// All tests.
pub const TESTS: [&str; 7] = ["boolean", "defined", "mapping", "none", "number", "sequence", "string"];
/// All statements.
const STATEMENTS: [&str; 8] = ["if", "elif", "else", "endif", "for", "endfor", "set", "endset"];

/// What a child renders: the steps of one call, with the same names.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenderRequest {
    /// The names that templates have, with their values.
    pub context: Map<String, Value>,
    pub steps: Vec<StepTemplates>,
}

/// The templates of one step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTemplates {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    pub config: Map<String, Value>,
}

/// What came of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RenderedStep {
    /// Its configuration.
    Config(Map<String, Value>),
    /// Its condition is false.
    Skipped,
    /// A template failed: where in the step, and why.
    Failed { pointer: String, message: String },
}

/// Whether a text is a template. Any other text stays as it is.
pub fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|mark| text.contains(mark))
}

/// Whether a member of a configuration is a text whatever its template yields.
fn is_text(name: &str) -> bool {
    name == "prompt" || name.ends_with("_template")
}

/// Checks a template; returns the names that it reads and that it does not set itself.
pub(crate) fn check(source: &str) -> Result<BTreeSet<String>, String> {
    check_size(source)?;
    check_tokens(source, false)?;
    let env = environment();
    let template = env.template_from_str(source).map_err(|error| said(&error, source))?;
    Ok(template.undeclared_variables(false).into_iter().collect())
}

/// [`check`] for a condition: one expression, in braces or without.
pub(crate) fn check_condition(source: &str) -> Result<BTreeSet<String>, String> {
    check_size(source)?;
    let expression = expression_of(source);
    if is_template(expression) {
        return Err("a condition is one expression, such as {{ inputs.count > 3 }}".to_owned());
    }
    check_tokens(expression, true)?;
    let env = environment();
    let compiled = env.compile_expression(expression).map_err(|error| said(&error, expression))?;
    Ok(compiled.undeclared_variables(false).into_iter().collect())
}

fn check_size(source: &str) -> Result<(), String> {
    let (bytes, max) = (source.len(), TEMPLATE_BYTES_MAX);
    if bytes > max {
        return Err(format!("the template is {bytes} bytes long; at most {max} are allowed"));
    }
    Ok(())
}

/// Refuses statements, filters, tests and names that templates do not have.
fn check_tokens(source: &str, is_expression: bool) -> Result<(), String> {
    let unknown = |what: &str, name: &str, known: &[&str]| {
        Err(format!("there is no {what} {name:?}; there are {}", known.join(", ")))
    };
    let tokens = tokenize(source, is_expression, SyntaxConfig, WhitespaceConfig::default());
    let (mut before, mut last, mut length) = (None, None, 0);
    for token in tokens {
        let (token, _) = token.map_err(|error| said(&error, source))?;
        let is_start = matches!(token, Token::VariableStart | Token::BlockStart);
        length = if is_start { 0 } else { length + 1 };
        if length > EXPRESSION_TOKENS_MAX {
            return Err(format!("an expression has more than {EXPRESSION_TOKENS_MAX} words and signs"));
        }
        match (&last, &token) {
            (_, Token::Ident(name)) if name.starts_with('_') => return Err(underscore(name)),
            (Some(Token::BracketOpen), Token::Str(name)) if name.starts_with('_') => {
                return Err(underscore(name));
            }
            (Some(Token::BracketOpen), Token::String(name)) if name.starts_with('_') => {
                return Err(underscore(name));
            }
            (Some(Token::BlockStart), Token::Ident(name)) if !STATEMENTS.contains(name) => {
                return unknown("statement", name, &STATEMENTS);
            }
            (last, Token::Ident("recursive")) if !matches!(last, Some(Token::Dot)) => {
                return Err("a loop cannot be recursive".to_owned());
            }
            (Some(Token::Pipe), Token::Ident(name)) if !FILTERS.contains(name) => {
                return unknown("filter", name, &FILTERS);
            }
            (Some(Token::Ident("is")), Token::Ident(name)) if *name != "not" && !TESTS.contains(name) => {
                return unknown("test", name, &TESTS);
            }
            (Some(Token::Ident("not")), Token::Ident(name))
                if matches!(before, Some(Token::Ident("is"))) && !TESTS.contains(name) =>
            {
                return unknown("test", name, &TESTS);
            }
            _ => {}
        }
        before = last.replace(token);
    }
    Ok(())
}

fn underscore(name: &str) -> String {
    format!("{name:?} begins with an underscore: templates do not read such names")
}

/// The expression of a condition, without the braces that it may have.
fn expression_of(source: &str) -> &str {
    let source = source.trim();
    let inner = source.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
    inner.map_or(source, |inner| inner.trim_matches('-').trim())
}

/// The expression of a text that is one expression and nothing else: its value keeps its type.
fn only_expression(source: &str) -> Option<&str> {
    if !source.starts_with("{{") || !source.ends_with("}}") {
        return None;
    }
    let tokens = tokenize(source, false, SyntaxConfig, WhitespaceConfig::default());
    let mut starts = 0;
    for token in tokens {
        let token = token.ok()?.0;
        if matches!(token, Token::TemplateData(_) | Token::BlockStart) {
            return None;
        }
        starts += usize::from(matches!(token, Token::VariableStart));
    }
    (starts == 1).then(|| expression_of(source))
}

/// The environment of all templates: empty but for what is listed here.
fn environment<'s>() -> Environment<'s> {
    let mut env = Environment::empty();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_keep_trailing_newline(true);
    env.set_fuel(Some(TEMPLATE_FUEL));
    env.set_formatter(|out, _, value| {
        let written = match (value.is_none(), value.as_str()) {
            (true, _) => Ok(()),
            (false, Some(text)) => out.write_str(text),
            (false, None) => out.write_str(&filters::tojson(value)?),
        };
        Ok(written?)
    });
    filters::add(&mut env);
    env.add_test("boolean", builtin::is_boolean);
    env.add_test("defined", builtin::is_defined);
    env.add_test("mapping", builtin::is_mapping);
    env.add_test("none", builtin::is_none);
    env.add_test("number", builtin::is_number);
    env.add_test("sequence", builtin::is_sequence);
    env.add_test("string", builtin::is_string);
    env
}

/// The answer of a child to a reserved call.
pub fn answer(call: ToolCall) -> ToolReply {
    let request = serde_json::from_value::<RenderRequest>(Value::Object(call.params));
    let result = request.and_then(|request| serde_json::to_value(here(&request)));
    match result {
        Ok(result) => ToolReply::Done(ToolOutput { result, quality: None, artifacts: Vec::new() }),
        Err(error) => ToolReply::Failed(Failure::new(Code::Internal, Phase::Dispatch, error.to_string())),
    }
}

/// Renders in this process, which is a confined child.
fn here(request: &RenderRequest) -> Vec<RenderedStep> {
    let (env, context) = (environment(), Rendered::from_serialize(readable(&request.context)));
    request.steps.iter().map(|step| rendered(&env, &context, step)).collect()
}

/// Renders the templates of steps in a child. Without a template there is nothing to render.
pub async fn render(services: &Services, request: RenderRequest) -> Result<Vec<RenderedStep>, Failure> {
    let is_plain = |step: &StepTemplates| step.when.is_none() && !has_template(&step.config);
    if request.steps.iter().all(is_plain) {
        return Ok(request.steps.into_iter().map(|step| RenderedStep::Config(step.config)).collect());
    }
    let broken = |error: serde_json::Error| Failure::new(Code::Internal, Phase::Validate, error.to_string());
    let params = match serde_json::to_value(request).map_err(broken)? {
        Value::Object(params) => params,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    serde_json::from_value(reserved::call(services, RENDER, params).await?).map_err(broken)
}

/// Whether a text in this configuration is a template.
pub(crate) fn has_template(config: &Map<String, Value>) -> bool {
    fn is(value: &Value) -> bool {
        match value {
            Value::String(text) => is_template(text),
            Value::Array(items) => items.iter().any(is),
            Value::Object(members) => members.values().any(is),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
    config.values().any(is)
}

/// The values without members whose names begin with an underscore, however a template asks for them.
fn readable(values: &Map<String, Value>) -> Map<String, Value> {
    fn value(of: &Value) -> Value {
        match of {
            Value::Object(members) => Value::Object(readable(members)),
            Value::Array(items) => items.iter().map(value).collect(),
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain.clone(),
        }
    }
    let public = values.iter().filter(|(name, _)| !name.starts_with('_'));
    public.map(|(name, of)| (name.clone(), value(of))).collect()
}

fn rendered(env: &Environment<'_>, context: &Rendered, step: &StepTemplates) -> RenderedStep {
    let failed = |pointer: String, message: String| RenderedStep::Failed { pointer, message };
    if let Some(when) = &step.when {
        let expression = expression_of(when);
        match evaluate(env, context, expression) {
            Ok(value) if value.is_true() => {}
            Ok(_) => return RenderedStep::Skipped,
            Err(error) => return failed("/when".to_owned(), said(&error, expression)),
        }
    }
    let mut config = Map::new();
    for (name, value) in &step.config {
        let at = format!("/config/{}", name.replace('~', "~0").replace('/', "~1"));
        match render_value(env, context, (value, is_text(name)), at) {
            Ok(value) => drop(config.insert(name.clone(), value)),
            Err((pointer, message)) => return failed(pointer, message),
        }
    }
    RenderedStep::Config(config)
}

fn render_value(
    env: &Environment<'_>,
    context: &Rendered,
    (value, is_text): (&Value, bool),
    at: String,
) -> Result<Value, (String, String)> {
    match value {
        Value::String(text) if !is_template(text) => Ok(value.clone()),
        Value::String(text) => {
            let native = if is_text { None } else { only_expression(text) };
            let (rendered, source) = match native {
                Some(source) => (evaluate(env, context, source).and_then(|value| to_json(&value)), source),
                None => (to_text(env, context, text).map(Value::String), text.as_str()),
            };
            rendered.map_err(|error| (at, said(&error, source)))
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| render_value(env, context, (item, is_text), format!("{at}/{index}")))
                .collect()
        }
        Value::Object(members) => {
            let members = members.iter().map(|(name, member)| {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                Ok((name.clone(), render_value(env, context, (member, is_text), at)?))
            });
            Ok(Value::Object(members.collect::<Result<_, (String, String)>>()?))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
    }
}

fn evaluate(env: &Environment<'_>, context: &Rendered, expression: &str) -> Result<Rendered, Error> {
    let value = env.compile_expression(expression)?.eval(context)?;
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, format!("{expression} has no value")));
    }
    Ok(value)
}

fn to_json(value: &Rendered) -> Result<Value, Error> {
    let mut bytes = Bounded(Vec::new());
    serde_json::to_writer(&mut bytes, value).map_err(too_long)?;
    serde_json::from_slice(&bytes.0).map_err(too_long)
}

fn to_text(env: &Environment<'_>, context: &Rendered, source: &str) -> Result<String, Error> {
    let mut bytes = Bounded(Vec::new());
    env.template_from_str(source)?.render_captured_to(context, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes.0).into_owned())
}

fn too_long(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::WriteFailure, error.to_string())
}

/// Takes no more than a rendered text may have.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > RENDERED_BYTES_MAX {
            return Err(io::Error::other(format!("more than {RENDERED_BYTES_MAX} bytes are rendered")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error in one line, with the part of the source that it is about.
fn said(error: &Error, source: &str) -> String {
    let mut text = if error.kind() == ErrorKind::OutOfFuel {
        "it takes more than a template may".to_owned()
    } else {
        error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
    };
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    match error.range().and_then(|range| source.get(range)).filter(|part| !part.is_empty()) {
        Some(part) => text.push_str(&format!(", at {part:?}")),
        None => text.extend(error.line().map(|line| format!(", in line {line}"))),
    }
    text
}

#[cfg(test)]
mod tests;
