//! What operators can switch while the runtime runs: a tool off, what a tool asks of its callers, all effects off. Kept in the
//! Store, so that a restart changes nothing.

use effectd_bus::{Change, EntryChange, Expect, FamilyName, NewBody, Store, StoreError, Swap, Wait};
use effectd_contracts::limits::SPEC_LIST_MAX;
use effectd_contracts::{Capability, ToolId};
use effectd_policy::Facts;

/// The switches of one store.
pub struct Switches<'a> {
    store: &'a dyn Store,
}

impl std::fmt::Debug for Switches<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Switches")
    }
}

const PAUSE: &str = "pause";
/// What a call needs while nobody can tell what it needs. No role has it, so nothing passes.
const UNREADABLE: &str = "effectd.capabilities_unreadable";

fn tool_key(tool: &ToolId) -> String {
    format!("tool-off/{tool}")
}

fn caps_key(tool: &ToolId) -> String {
    format!("tool-caps/{tool}")
}

impl<'a> Switches<'a> {
    /// The switches of this store.
    pub fn new(store: &'a dyn Store) -> Self {
        Self { store }
    }

    /// Whether the tool is switched off.
    pub fn tool_disabled(&self, tool: &ToolId) -> Result<bool, StoreError> {
        self.is_set(&tool_key(tool))
    }

    /// Whether effects are paused: every action is only tried out.
    pub fn paused(&self) -> Result<bool, StoreError> {
        self.is_set(PAUSE)
    }

    /// What the tool's callers need instead of what its description asks for, if an operator has said so.
    pub fn caps(&self, tool: &ToolId) -> Result<Option<Vec<Capability>>, StoreError> {
        let Some(entry) = self.store.entry(&family()?, &caps_key(tool))? else {
            return Ok(None);
        };
        let read = entry
            .value
            .bytes()
            .and_then(|bytes| serde_json::from_slice(bytes).ok());
        let damaged = || StoreError::Damaged {
            what: format!("what {tool} asks of its callers cannot be read"),
            advice: "Set it anew with `effectd tools set-caps`.",
        };
        read.map(Some).ok_or_else(damaged)
    }

    /// Puts into the facts what operators ask of the tool's callers. Where that cannot be read, nobody passes.
    pub fn apply(&self, facts: &mut Facts) {
        match self.caps(&facts.tool.id) {
            Ok(None) => {}
            Ok(Some(caps)) => facts.tool.caps = caps,
            Err(error) => {
                tracing::error!(%error, tool_id = %facts.tool.id, "what a tool asks of its callers cannot be read");
                facts.tool.caps.extend(Capability::new(UNREADABLE));
            }
        }
    }

    /// Switches a tool off or on again.
    pub fn set_tool_disabled(&self, tool: &ToolId, off: bool) -> Wait<effectd_bus::Changed> {
        self.set(tool_key(tool), off.then(|| b"on".to_vec()))
    }

    /// Pauses effects, or goes on.
    pub fn set_paused(&self, paused: bool) -> Wait<effectd_bus::Changed> {
        self.set(PAUSE.to_owned(), paused.then(|| b"on".to_vec()))
    }

    /// Sets what a tool's callers need; `None` goes back to its description.
    pub fn set_caps(
        &self,
        tool: &ToolId,
        caps: Option<&[Capability]>,
    ) -> Result<Wait<effectd_bus::Changed>, StoreError> {
        if caps.is_some_and(|caps| caps.len() > SPEC_LIST_MAX) {
            let why = format!("a tool asks for at most {SPEC_LIST_MAX} capabilities");
            return Err(StoreError::Invalid(why));
        }
        // Plain texts, for which serde_json has no failure.
        let value = caps.map(|caps| serde_json::to_vec(caps).unwrap_or_default());
        Ok(self.set(caps_key(tool), value))
    }

    fn is_set(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.store.entry(&family()?, key)?.is_some())
    }

    fn set(&self, key: String, value: Option<Vec<u8>>) -> Wait<effectd_bus::Changed> {
        let change = value.map_or(EntryChange::Delete, |value| {
            EntryChange::Put(NewBody::Clear(value))
        });
        let swaps = match family() {
            Ok(family) => vec![Swap {
                family,
                key,
                expect: Expect::Any,
                change,
            }],
            Err(_) => Vec::new(),
        };
        self.store.change(Change {
            swaps,
            ..Change::default()
        })
    }
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("switches")
}
