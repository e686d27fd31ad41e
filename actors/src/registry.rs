//! The registry of tools. It checks the description of each tool and compiles its schemas once, at registration; the schemas of a
//! built-in tool, which tests compile, when they are first used.
//!
//! A tool has one id and may have aliases. If two tools have the same name, the one from the more trusted source keeps it, and the
//! other is refused.
//!
//! A registry does not change. While actions run, another one takes its place ([`CurrentRegistry`]); an action keeps the tool that
//! it was validated with.

mod batch;
mod lint;
mod overlay;
pub mod schema;
mod tool;
mod views;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use effectd_contracts::batch::is_batch;
use effectd_contracts::plugin::Pinned;
use effectd_contracts::{Exchange, Failure, SpecInvalid, ToolId, ToolSpec, Touch, Upstream, wire_enum};
use parking_lot::RwLock;
use serde_json::{Map, Value};

pub use lint::Lint;
pub use overlay::Overlaid;
pub use tool::RegisteredTool;
pub use views::{ActionDefinition, CapabilityView};

/// Rules for parameters beyond the schema.
pub type ParamRule = Arc<dyn Fn(&Map<String, Value>) -> Result<(), Failure> + Send + Sync>;

/// The paths that a call with these parameters may change, in the form that requests use.
pub type Touches = Arc<dyn Fn(&Map<String, Value>) -> Vec<Touch> + Send + Sync>;

/// The paths that a call with these parameters reads and does not change.
pub type Reads = Arc<dyn Fn(&Map<String, Value>) -> Vec<String> + Send + Sync>;

/// Whether an exchange asks for no effect, although its method is one that writes: a query in GraphQL is a `POST`.
pub type OnlyReads = Arc<dyn Fn(&Exchange) -> bool + Send + Sync>;

wire_enum! {
    /// Where a tool comes from, the most trusted first.
    pub enum Source {
        Core = "core",
        /// The program that embeds the runtime.
        Provider = "provider",
        /// A package that an operator installed.
        Plugin = "plugin",
        /// A connector to another system.
        Connector = "connector",
        /// effectd's own tool of a database.
        Db = "db",
    }
}

impl Source {
    /// Whether effectd's authors wrote the tool.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Core | Self::Db)
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
    /// Exchanges that only read, beside those whose method says so.
    pub only_reads: Option<OnlyReads>,
    /// How to use the tools of its source, in Markdown. All of them have the same.
    pub guide: Option<&'static str>,
    /// Valid parameters, as an example for people and planners.
    pub example: Map<String, Value>,
    /// The hosts that every call talks to, whatever its parameters.
    pub hosts: Vec<String>,
    /// Whether the source describes the tool otherwise than when a person reviewed it.
    pub drifted: bool,
    /// The server that is called, for a tool of a connector.
    pub upstream: Option<Arc<Upstream>>,
    /// What an operator says about the tool, unless it is a connector's.
    pub overlay: Option<Box<Overlaid>>,
    /// The package that runs, for a tool of a plugin.
    pub plugin: Option<Arc<Pinned>>,
}

impl Definition {
    pub fn new(source: Source, spec: ToolSpec, rule: ParamRule) -> Self {
        Self {
            spec,
            source,
            aliases: Vec::new(),
            rule,
            touches: None,
            reads: None,
            only_reads: None,
            guide: None,
            example: Map::new(),
            hosts: Vec::new(),
            drifted: false,
            upstream: None,
            overlay: None,
            plugin: None,
        }
    }

    /// Whether both say the same, by the same code.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        fn shared<T: ?Sized>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            match (one, other) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            }
        }
        let Self {
            spec,
            source,
            aliases,
            rule,
            touches,
            reads,
            only_reads,
            guide,
            example,
            hosts,
            drifted,
            upstream,
            overlay,
            plugin,
        } = self;
        (source, drifted, hosts, aliases) == (&other.source, &other.drifted, &other.hosts, &other.aliases)
            && shared(only_reads.as_ref(), other.only_reads.as_ref())
            && guide == &other.guide
            && (upstream, overlay, plugin) == (&other.upstream, &other.overlay, &other.plugin)
            && Arc::ptr_eq(rule, &other.rule)
            && shared(touches.as_ref(), other.touches.as_ref())
            && shared(reads.as_ref(), other.reads.as_ref())
            && (example, spec) == (&other.example, &other.spec)
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
    /// Two changes at once: the other one is in force, and this one does not know of it.
    #[error("the registry has changed meanwhile; make the change to the registry that is in force now")]
    Superseded,
}

/// The registry in force. Clones share it, so that nobody keeps an old one.
#[derive(Debug, Clone, Default)]
pub struct CurrentRegistry(Arc<RwLock<Arc<Registry>>>);

impl CurrentRegistry {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self(Arc::new(RwLock::new(registry)))
    }

    pub fn get(&self) -> Arc<Registry> {
        self.0.read().clone()
    }

    /// Puts a registry in force that was built from `base`. Refused unless `base` is still in force: the other change would be lost.
    pub fn swap(&self, base: &Arc<Registry>, next: Arc<Registry>) -> Result<(), RegistryError> {
        let mut current = self.0.write();
        if !Arc::ptr_eq(&current, base) {
            return Err(RegistryError::Superseded);
        }
        // The caller holds `base`, so readers do not wait until it is dropped.
        *current = next;
        Ok(())
    }
}

#[derive(Debug, Default)]
pub struct Registry {
    tools: BTreeMap<ToolId, Arc<RegisteredTool>>,
    aliases: BTreeMap<ToolId, ToolId>,
    /// The tool of batches of these tools, made when it is first needed. It is not listed among them.
    batch: OnceLock<Option<Arc<RegisteredTool>>>,
}

impl Registry {
    /// Registers these tools, the most trusted source first, so that no tool takes the name of a more trusted one. Also returns
    /// why others were refused.
    pub fn assemble(definitions: Vec<Definition>) -> (Self, Vec<RegistryError>) {
        Self::default().replace(|_| false, &definitions)
    }

    /// A registry with these tools instead of those that `goes` selects. A tool whose definition is the same is not compiled again,
    /// and its definition is not copied.
    pub fn replace(
        &self,
        goes: impl Fn(&RegisteredTool) -> bool,
        definitions: &[Definition],
    ) -> (Self, Vec<RegistryError>) {
        enum Candidate<'d> {
            Stays(Arc<RegisteredTool>),
            New(&'d Definition),
        }
        let stays = self.iter().filter(|tool| !goes(tool)).map(|tool| Candidate::Stays(tool.clone()));
        let comes = definitions.iter().map(|definition| match self.tools.get(&definition.spec.tool_id) {
            Some(tool) if tool.definition().is_same(definition) => Candidate::Stays(tool.clone()),
            Some(_) | None => Candidate::New(definition),
        });
        let mut candidates: Vec<_> = stays.chain(comes).collect();
        candidates.sort_by_key(|candidate| match candidate {
            Candidate::Stays(tool) => tool.source(),
            Candidate::New(definition) => definition.source,
        });
        let mut next = Self::default();
        let added = candidates.into_iter().map(|candidate| match candidate {
            Candidate::Stays(tool) => next.check_names(tool.definition()).map(|()| next.insert(tool)),
            Candidate::New(definition) => next.register(definition.clone()),
        });
        let refused = added.filter_map(Result::err).collect();
        (next, refused)
    }

    /// Adds a tool, unless one of its names is taken.
    pub fn register(&mut self, definition: Definition) -> Result<(), RegistryError> {
        self.check_names(&definition)?;
        self.insert(Arc::new(RegisteredTool::new(definition)?));
        Ok(())
    }

    fn check_names(&self, definition: &Definition) -> Result<(), RegistryError> {
        for name in definition.aliases.iter().chain([&definition.spec.tool_id]) {
            if name.as_str().starts_with(OWN) {
                return Err(RegistryError::Reserved { name: name.clone() });
            }
            let kind = name.source().split_once(':').map(|(kind, _)| kind);
            if kind.is_some_and(|kind| kind != definition.source.as_str()) {
                let what = "has the id of a connector or a database, but comes from elsewhere";
                return Err(RegistryError::Promise { tool: name.clone(), what });
            }
            if let Some(holder) = self.get(name) {
                return Err(RegistryError::Duplicate {
                    name: name.clone(),
                    held_by: holder.source(),
                    refused: definition.source,
                });
            }
        }
        Ok(())
    }

    fn insert(&mut self, tool: Arc<RegisteredTool>) {
        let id = &tool.spec().tool_id;
        for alias in tool.aliases() {
            self.aliases.insert(alias.clone(), id.clone());
        }
        self.tools.insert(id.clone(), tool);
    }

    /// One tool, by its id or an alias.
    pub fn get(&self, name: &ToolId) -> Option<&Arc<RegisteredTool>> {
        if is_batch(name) {
            return self.batch.get_or_init(|| batch::tool(&self.tools, &self.aliases)).as_ref();
        }
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
    let (far_max, length) = (1 + name.len() / 4, name.chars().count());
    let far = |known: &str| distance(&known.to_lowercase(), &name.to_lowercase());
    let similar = known.filter(|known| known.chars().count().abs_diff(length) <= far_max);
    let nearest = similar.min_by_key(|known| far(known))?;
    (far(nearest) <= far_max).then_some(nearest)
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
