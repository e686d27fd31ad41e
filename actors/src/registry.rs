//! The tools the pipeline knows, each registered once, with its schemas compiled and its description looked over.
//!
//! A tool is known by one id and, where other worlds call it otherwise, by aliases. Nothing is ever replaced: of two that
//! want one name, the one of the more trusted source has it, and the other is refused by name.

mod entry;
mod lint;
mod schema;
mod views;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use effectd_contracts::{Failure, SpecInvalid, ToolId, ToolSpec, Touch};
use serde::Serialize;
use serde_json::{Map, Value};

pub use entry::Entry;
pub use lint::Lint;
pub use views::{ActionDefinition, CapabilityView, Package, Permissions, Rollback, Verification};

/// Rules for parameters beyond the schema.
pub type ParamRule = Arc<dyn Fn(&Map<String, Value>) -> Result<(), Failure> + Send + Sync>;

/// The paths that a call with these parameters may change, as requests write them.
pub type Touches = Arc<dyn Fn(&Map<String, Value>) -> Vec<Touch> + Send + Sync>;

/// The paths that a call with these parameters reads and does not change.
pub type Reads = Arc<dyn Fn(&Map<String, Value>) -> Vec<String> + Send + Sync>;

/// Where a tool comes from, the most trusted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// effectd itself.
    Core,
    /// The program that has the runtime inside.
    Provider,
    /// A package that an operator installed.
    Plugin,
    /// A connection to another system.
    Connector,
}

impl Source {
    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Core => "core",
            Source::Provider => "provider",
            Source::Plugin => "plugin",
            Source::Connector => "connector",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the receipts of things that are done to effectd itself have in the place of a tool begins so. No tool does.
pub const OWN: &str = "effectd.";

#[derive(Clone)]
pub struct Definition {
    pub spec: ToolSpec,
    pub source: Source,
    pub aliases: Vec<ToolId>,
    pub rule: ParamRule,
    pub touches: Option<Touches>,
    /// What it reads beside that, as far as its effect depends on it.
    pub reads: Option<Reads>,
    /// Parameters that fit, for people and planners who want to see some.
    pub example: Map<String, Value>,
}

impl Definition {
    /// A tool with a description and rules, and nothing else.
    pub fn new(source: Source, spec: ToolSpec, rule: ParamRule) -> Self {
        Self {
            spec,
            source,
            aliases: Vec::new(),
            rule,
            touches: None,
            reads: None,
            example: Map::new(),
        }
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition")
            .field("spec", &self.spec)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// A tool that cannot be registered, or that is not there.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("tool {tool}: {source}")]
    Spec { tool: ToolId, source: SpecInvalid },
    #[error("tool {tool}: {which} is not a JSON Schema that can be used: {why}")]
    Schema {
        tool: ToolId,
        which: &'static str,
        why: String,
    },
    /// It promises what its description cannot keep.
    #[error("tool {tool}: {what}")]
    Promise { tool: ToolId, what: &'static str },
    #[error(
        "tool {name} of {refused} is refused: the name belongs to a tool of {held_by}; choose another name"
    )]
    Duplicate {
        name: ToolId,
        held_by: Source,
        /// Who does not get it.
        refused: Source,
    },
    /// The name would look like something that effectd itself does.
    #[error(
        "tool {name} is refused: names that begin with `{OWN}` stand for what is done to effectd itself; choose another name"
    )]
    Reserved { name: ToolId },
    #[error("there is no tool {tool}; {}", match .nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => "`effectd tools list` shows what there is".to_owned(),
    })]
    Unknown {
        tool: ToolId,
        /// A name much like it.
        nearest: Option<ToolId>,
    },
}

/// All tools, by id.
#[derive(Debug, Default)]
pub struct Registry {
    tools: BTreeMap<ToolId, Arc<Entry>>,
    aliases: BTreeMap<ToolId, ToolId>,
}

impl Registry {
    /// Registers all of these. In whatever order they come, the most trusted source is served first, so that nobody can
    /// take the name of a more trusted tool by being early. What is refused is told beside what is registered.
    pub fn assemble(mut definitions: Vec<Definition>) -> (Self, Vec<RegistryError>) {
        definitions.sort_by_key(|definition| definition.source);
        let mut registry = Self::default();
        let refused = definitions
            .into_iter()
            .filter_map(|definition| registry.register(definition).err())
            .collect();
        (registry, refused)
    }

    /// Adds a tool. Nothing is ever replaced.
    pub fn register(&mut self, definition: Definition) -> Result<(), RegistryError> {
        let tool = definition.spec.tool_id.clone();
        for name in definition.aliases.iter().chain([&tool]) {
            if name.as_str().starts_with(OWN) {
                return Err(RegistryError::Reserved { name: name.clone() });
            }
            if let Ok(holder) = self.find(name) {
                return Err(RegistryError::Duplicate {
                    name: name.clone(),
                    held_by: holder.source(),
                    refused: definition.source,
                });
            }
        }
        let entry = Arc::new(Entry::new(definition)?);
        for alias in entry.aliases() {
            self.aliases.insert(alias.clone(), tool.clone());
        }
        self.tools.insert(tool, entry);
        Ok(())
    }

    /// One tool, by its id or an alias.
    pub fn get(&self, name: &ToolId) -> Option<&Arc<Entry>> {
        let id = self.aliases.get(name).unwrap_or(name);
        self.tools.get(id)
    }

    /// One tool, or an error that says what there is instead.
    pub fn find(&self, name: &ToolId) -> Result<&Arc<Entry>, RegistryError> {
        self.get(name).ok_or_else(|| RegistryError::Unknown {
            tool: name.clone(),
            nearest: self.nearest(name),
        })
    }

    /// All tools, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.tools.values()
    }

    fn nearest(&self, name: &ToolId) -> Option<ToolId> {
        let names = self.tools.keys().chain(self.aliases.keys());
        let nearest = names.min_by_key(|known| distance(known.as_str(), name.as_str()))?;
        let near = distance(nearest.as_str(), name.as_str()) <= 1 + name.as_str().len() / 4;
        near.then(|| nearest.clone())
    }
}

/// How many letters must be added, removed or exchanged to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    let mut row: Vec<_> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for (column, wanted) in other.iter().enumerate() {
            let above = row[column + 1];
            let exchanged = corner + usize::from(letter != *wanted);
            row[column + 1] = exchanged.min(above + 1).min(row[column] + 1);
            corner = above;
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests;
