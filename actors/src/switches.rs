//! What operators can switch while the runtime runs: a tool off, all effects off. Kept in the Store, so that a restart
//! changes nothing.

use effectd_bus::{Change, EntryChange, Expect, FamilyName, NewBody, Store, StoreError, Swap, Wait};
use effectd_contracts::ToolId;

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

fn tool_key(tool: &ToolId) -> String {
    format!("tool-off/{tool}")
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

    /// Switches a tool off or on again.
    pub fn set_tool_disabled(&self, tool: &ToolId, off: bool) -> Wait<effectd_bus::Changed> {
        self.set(tool_key(tool), off)
    }

    /// Pauses effects, or goes on.
    pub fn set_paused(&self, paused: bool) -> Wait<effectd_bus::Changed> {
        self.set(PAUSE.to_owned(), paused)
    }

    fn is_set(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.store.entry(&family()?, key)?.is_some())
    }

    fn set(&self, key: String, on: bool) -> Wait<effectd_bus::Changed> {
        let change = if on {
            EntryChange::Put(NewBody::Clear(b"on".to_vec()))
        } else {
            EntryChange::Delete
        };
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
