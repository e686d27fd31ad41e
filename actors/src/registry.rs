//! The registry of tools. It compiles the schemas of each tool and checks its description once, at registration.
//!
//! A tool has one id and may have aliases. No tool is ever replaced: if two tools have the same name, the one from the more
//! trusted source keeps it, and the other is refused.

mod lint;
mod schema;
mod tool;
mod views;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use effectd_contracts::{Failure, SpecInvalid, ToolId, ToolSpec, Touch};
use serde::Serialize;
use serde_json::{Map, Value};

pub use lint::Lint;
pub use tool::RegisteredTool;
pub use views::{ActionDefinition, CapabilityView, Package, Permissions, Rollback, Verification};

/// Rules for parameters beyond the schema.
pub type ParamRule = Arc<dyn Fn(&Map<String, Value>) -> Result<(), Failure> + Send + Sync>;

/// The paths that a call with these parameters may change, in the form that requests use.
pub type Touches = Arc<dyn Fn(&Map<String, Value>) -> Vec<Touch> + Send + Sync>;

/// The paths that a call with these parameters reads and does not change.
pub type Reads = Arc<dyn Fn(&Map<String, Value>) -> Vec<String> + Send + Sync>;

/// Where a tool comes from, the most trusted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Core,
    /// The program that embeds the runtime.
    Provider,
    /// A package that an operator installed.
    Plugin,
    /// A connector to another system.
    Connector,
}

impl Source {
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

/// The prefix of the tool ids in receipts of operations on effectd itself. No tool may have it.
pub const OWN: &str = "effectd.";

#[derive(Clone)]
pub struct Definition {
    pub spec: ToolSpec,
    pub source: Source,
    pub aliases: Vec<ToolId>,
    pub rule: ParamRule,
    pub touches: Option<Touches>,
    /// Paths that the tool reads and its effect depends on.
    pub reads: Option<Reads>,
    /// Valid parameters, as an example for people and planners.
    pub example: Map<String, Value>,
}

impl Definition {
    pub fn new(source: Source, spec: ToolSpec, rule: ParamRule) -> Self {
        Self { spec, source, aliases: Vec::new(), rule, touches: None, reads: None, example: Map::new() }
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

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("tool {tool}: {source}")]
    Spec { tool: ToolId, source: SpecInvalid },
    #[error("tool {tool}: {which} is not a JSON Schema that can be used: {why}")]
    Schema { tool: ToolId, which: &'static str, why: String },
    /// The tool's description contradicts itself.
    #[error("tool {tool}: {what}")]
    Promise { tool: ToolId, what: &'static str },
    #[error(
        "tool {name} of {refused} is refused: the name belongs to a tool of {held_by}; choose another name"
    )]
    Duplicate { name: ToolId, held_by: Source, refused: Source },
    /// The name is reserved for effectd itself.
    #[error(
        "tool {name} is refused: names that begin with `{OWN}` are reserved for operations on effectd; choose another name"
    )]
    Reserved { name: ToolId },
    #[error("there is no tool {tool}; {}", match .nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => "`effectd tools list` shows all tools".to_owned(),
    })]
    Unknown { tool: ToolId, nearest: Option<ToolId> },
}

#[derive(Debug, Default)]
pub struct Registry {
    tools: BTreeMap<ToolId, Arc<RegisteredTool>>,
    aliases: BTreeMap<ToolId, ToolId>,
}

impl Registry {
    /// Registers these tools, the most trusted source first, so that no tool takes the name of a more trusted one. Also returns
    /// why others were refused.
    pub fn assemble(mut definitions: Vec<Definition>) -> (Self, Vec<RegistryError>) {
        definitions.sort_by_key(|definition| definition.source);
        let mut registry = Self::default();
        let refused =
            definitions.into_iter().filter_map(|definition| registry.register(definition).err()).collect();
        (registry, refused)
    }

    /// Adds a tool, unless one of its names is taken.
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
        let entry = Arc::new(RegisteredTool::new(definition)?);
        for alias in entry.aliases() {
            self.aliases.insert(alias.clone(), tool.clone());
        }
        self.tools.insert(tool, entry);
        Ok(())
    }

    /// One tool, by its id or an alias.
    pub fn get(&self, name: &ToolId) -> Option<&Arc<RegisteredTool>> {
        let id = self.aliases.get(name).unwrap_or(name);
        self.tools.get(id)
    }

    /// One tool, or an error that names the most similar tool.
    pub fn find(&self, name: &ToolId) -> Result<&Arc<RegisteredTool>, RegistryError> {
        self.get(name)
            .ok_or_else(|| RegistryError::Unknown { tool: name.clone(), nearest: self.nearest(name) })
    }

    /// [`Registry::find`] without aliases: modes and breakers go by the tool's own id, so one under an alias would stop nothing.
    pub fn find_by_id(&self, id: &ToolId) -> Result<&Arc<RegisteredTool>, RegistryError> {
        match self.aliases.get(id) {
            Some(own) => Err(RegistryError::Unknown { tool: id.clone(), nearest: Some(own.clone()) }),
            None => self.find(id),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        self.tools.values()
    }

    fn nearest(&self, name: &ToolId) -> Option<ToolId> {
        let names = self.tools.keys().chain(self.aliases.keys());
        nearest(name.as_str(), names.map(ToolId::as_str))?.parse().ok()
    }
}

/// The known word that a misspelt one probably means, whatever its case.
pub(crate) fn nearest<'w>(name: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let far = |known: &str| distance(&known.to_lowercase(), &name.to_lowercase());
    let nearest = known.min_by_key(|known| far(known))?;
    (far(nearest) <= 1 + name.len() / 4).then_some(nearest)
}

/// The edit distance of two words.
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
