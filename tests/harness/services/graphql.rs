//! As much of GraphQL as clients of one service send: operations with variables, fields with arguments and aliases, fragments.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) alias: String,
    pub(super) name: String,
    arguments: Vec<(String, Argument)>,
    pub(super) selected: Vec<Selection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    Field(Field),
    Spread(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Argument {
    Variable(String),
    Value(Value),
    Object(Vec<(String, Argument)>),
}

type Operation = (String, Vec<(String, String)>, Vec<Selection>);

pub(super) struct Document {
    /// `query` or `mutation`, the declared variables with their types, and what is selected.
    pub(super) operations: Vec<Operation>,
    fragments: BTreeMap<String, Vec<Selection>>,
}

type Parsed<T> = Result<T, String>;

struct Tokens(Vec<String>, usize);

impl Tokens {
    fn read(text: &str) -> Parsed<Self> {
        let (mut found, mut left) = (Vec::new(), text);
        while let Some(first) = left.chars().next() {
            let length = match first {
                ' ' | '\n' | '\r' | '\t' | ',' => {
                    left = &left[1..];
                    continue;
                }
                '#' => {
                    left = left.find('\n').map_or("", |end| &left[end..]);
                    continue;
                }
                '"' => left[1..].find('"').ok_or("a text does not end")? + 2,
                '.' if left.starts_with("...") => 3,
                _ if first.is_ascii_alphanumeric() || first == '_' || first == '-' => left
                    .find(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c)))
                    .unwrap_or(left.len()),
                '{' | '}' | '(' | ')' | '[' | ']' | ':' | '$' | '!' | '=' => 1,
                _ => return Err(format!("Syntax Error: Unexpected character: {first:?}.")),
            };
            found.push(left[..length].to_owned());
            left = &left[length..];
        }
        Ok(Self(found, 0))
    }

    fn peek(&self) -> &str {
        self.0.get(self.1).map_or("", String::as_str)
    }

    fn next(&mut self) -> Parsed<String> {
        let token = self.0.get(self.1).cloned().ok_or("Syntax Error: Unexpected <EOF>.")?;
        self.1 += 1;
        Ok(token)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_there = self.peek() == wanted;
        self.1 += usize::from(is_there);
        is_there
    }

    fn need(&mut self, wanted: &str) -> Parsed<()> {
        let found = self.next()?;
        (found == wanted).then_some(()).ok_or(format!("Syntax Error: Expected {wanted}, found {found}."))
    }
}

impl Document {
    pub(super) fn parse(text: &str) -> Parsed<Self> {
        let mut tokens = Tokens::read(text)?;
        let mut document = Self { operations: Vec::new(), fragments: BTreeMap::new() };
        while !tokens.peek().is_empty() {
            let kind = tokens.next()?;
            match kind.as_str() {
                "query" | "mutation" => {
                    if tokens.peek() != "(" && tokens.peek() != "{" {
                        tokens.next()?;
                    }
                    let variables = variables(&mut tokens)?;
                    let selected = selections(&mut tokens)?;
                    document.operations.push((kind, variables, selected));
                }
                "fragment" => {
                    let name = tokens.next()?;
                    tokens.need("on")?;
                    tokens.next()?;
                    let selected = selections(&mut tokens)?;
                    document.fragments.insert(name, selected);
                }
                _ => return Err(format!("Syntax Error: Unexpected {kind}.")),
            }
        }
        Ok(document)
    }

    /// The fields of a selection, with those of its fragments.
    pub(super) fn fields<'d>(&'d self, selected: &'d [Selection]) -> Parsed<Vec<&'d Field>> {
        let mut found = Vec::new();
        for one in selected {
            match one {
                Selection::Field(field) => found.push(field),
                Selection::Spread(name) => {
                    let fragment = self.fragments.get(name).ok_or(format!("Unknown fragment \"{name}\"."))?;
                    found.extend(self.fields(fragment)?);
                }
            }
        }
        Ok(found)
    }
}

fn variables(tokens: &mut Tokens) -> Parsed<Vec<(String, String)>> {
    let mut found = Vec::new();
    if tokens.take("(") {
        while !tokens.take(")") {
            tokens.need("$")?;
            let name = tokens.next()?;
            tokens.need(":")?;
            let mut kind = String::new();
            while tokens.peek() != "$" && tokens.peek() != ")" {
                kind += &tokens.next()?;
            }
            found.push((name, kind));
        }
    }
    Ok(found)
}

fn selections(tokens: &mut Tokens) -> Parsed<Vec<Selection>> {
    let mut found = Vec::new();
    tokens.need("{")?;
    while !tokens.take("}") {
        if tokens.take("...") {
            found.push(Selection::Spread(tokens.next()?));
            continue;
        }
        let first = tokens.next()?;
        let name = if tokens.take(":") { tokens.next()? } else { first.clone() };
        let arguments = if tokens.take("(") { arguments(tokens, ")")? } else { Vec::new() };
        let selected = if tokens.peek() == "{" { selections(tokens)? } else { Vec::new() };
        found.push(Selection::Field(Field { alias: first, name, arguments, selected }));
    }
    Ok(found)
}

fn arguments(tokens: &mut Tokens, end: &str) -> Parsed<Vec<(String, Argument)>> {
    let mut found = Vec::new();
    while !tokens.take(end) {
        let name = tokens.next()?;
        tokens.need(":")?;
        let value = if tokens.take("$") {
            Argument::Variable(tokens.next()?)
        } else if tokens.take("{") {
            Argument::Object(arguments(tokens, "}")?)
        } else {
            let word = tokens.next()?;
            Argument::Value(serde_json::from_str(&word).unwrap_or(Value::String(word)))
        };
        found.push((name, value));
    }
    Ok(found)
}

impl Field {
    /// The values of its arguments. One whose variable has none is left out.
    pub(super) fn arguments(&self, variables: &Map<String, Value>) -> Value {
        resolve(&self.arguments, variables)
    }
}

fn resolve(arguments: &[(String, Argument)], variables: &Map<String, Value>) -> Value {
    let mut found = Map::new();
    for (name, argument) in arguments {
        let value = match argument {
            Argument::Variable(variable) => match variables.get(variable) {
                Some(value) => value.clone(),
                None => continue,
            },
            Argument::Value(value) => value.clone(),
            Argument::Object(fields) => resolve(fields, variables),
        };
        found.insert(name.clone(), value);
    }
    Value::Object(found)
}
