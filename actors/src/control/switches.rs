//! The operator's switches: a tool off, other required capabilities for a tool, all effects paused. They are stored, so a restart
//! changes nothing. A state restored from a backup begins with effects paused and pending decisions held back.

use effectd_bus::{
    Change, Changed, Expect, FamilyName, KvChange, NewBody, OpenIntent, Store, StoreError, Swap, Wait,
};
use effectd_contracts::limits::SPEC_LIST_MAX;
use effectd_contracts::{
    Capability, Event, Principal, SpaceId, Timestamp, ToolId, ToolQuarantinedData, Topic,
};
use effectd_policy::Facts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::stored::{clear_event, json_bytes, read_json, swap_all};

pub struct Switches<'a> {
    store: &'a dyn Store,
}

/// The mark of a state that was restored from a backup. The original system may since have done what was pending in the backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    pub by: Principal,
    pub at: Timestamp,
    /// When the backup was begun.
    pub backup_made_at: Timestamp,
    /// Decisions before this offset were in the backup.
    pub decisions: u64,
    /// Intents in the backup have this fence or an earlier one.
    #[serde(default)]
    pub fence: u64,
    /// Whether the operator has not resumed yet: nothing is leased from the bus.
    pub waits: bool,
}

impl Restored {
    /// Whether an intent was in the backup. A takeover changes its fence, but not its age.
    pub fn holds(&self, intent: &OpenIntent) -> bool {
        intent.fence.0 <= self.fence || intent.since <= self.at
    }
}

const PAUSE: &str = "pause";
const RESTORED: &str = "restored";
/// The capability required while a tool's capabilities cannot be read. No role has it, so every call is refused.
const UNREADABLE: &str = "effectd.capabilities_unreadable";

fn tool_key(tool: &ToolId) -> String {
    format!("tool-off/{tool}")
}

fn caps_key(tool: &ToolId) -> String {
    format!("tool-caps/{tool}")
}

impl<'a> Switches<'a> {
    pub fn new(store: &'a dyn Store) -> Self {
        Self { store }
    }

    pub fn tool_disabled(&self, tool: &ToolId) -> Result<bool, StoreError> {
        self.is_set(&tool_key(tool))
    }

    /// Whether effects are paused: every action is a dry run.
    pub fn paused(&self) -> Result<bool, StoreError> {
        self.is_set(PAUSE)
    }

    /// The mark of a restored state; `None` if this state was not restored.
    pub fn restored(&self) -> Result<Option<Restored>, StoreError> {
        self.read(RESTORED, || StoreError::Damaged {
            what: "the state of the restore cannot be read".to_owned(),
            advice: "Restore the backup again.",
        })
    }

    /// The capabilities that an operator requires instead of those in the tool's description.
    pub fn caps(&self, tool: &ToolId) -> Result<Option<Vec<Capability>>, StoreError> {
        self.read(&caps_key(tool), || StoreError::Damaged {
            what: format!("the capabilities that {tool} requires cannot be read"),
            advice: "Set them again with `effectd tools set-caps`.",
        })
    }

    /// Puts the operator's capabilities into the facts. If they cannot be read, every call is refused.
    pub fn apply(&self, facts: &mut Facts) {
        match self.caps(&facts.tool.id) {
            Ok(None) => {}
            Ok(Some(caps)) => facts.tool.caps = caps,
            Err(error) => {
                tracing::error!(%error, tool_id = %facts.tool.id, "the capabilities that a tool requires cannot be read");
                facts.tool.caps.extend(Capability::new(UNREADABLE));
            }
        }
    }

    pub fn set_tool_disabled(&self, tool: &ToolId, off: bool) -> Wait<Changed> {
        self.set(tool_key(tool), off.then(|| b"on".to_vec()))
    }

    /// Switches off a tool with undeclared effects, and publishes that, in one step. An operator switches it on again like any
    /// other tool.
    pub fn quarantine(&self, news: &ToolQuarantinedData, space: &SpaceId) -> Wait<Changed> {
        let event = Event::tool(news.clone(), space.clone());
        let swap = swap(tool_key(&news.tool_id), Some(json_bytes(news)));
        self.store.change(Change {
            swaps: swap.into_iter().collect(),
            events: vec![(Topic::Tools.into(), clear_event(&event, None))],
            ..Change::default()
        })
    }

    /// Why a tool is quarantined; `None` if it is not.
    pub fn quarantined(&self, tool: &ToolId) -> Result<Option<ToolQuarantinedData>, StoreError> {
        let entry = self.store.entry(&family()?, &tool_key(tool))?;
        Ok(entry.as_ref().and_then(read_json))
    }

    pub fn pause(&self) -> Wait<Changed> {
        self.set(PAUSE.to_owned(), Some(b"on".to_vec()))
    }

    /// Resumes effects, and releases the decisions of a restored state; returns its mark. Both in one step: no released decision
    /// finds effects still paused.
    pub fn resume(&self) -> Result<(Wait<Changed>, Option<Restored>), StoreError> {
        let waits = self.restored()?.filter(|restored| restored.waits);
        let mut swaps = vec![swap(PAUSE.to_owned(), None)?];
        if let Some(restored) = &waits {
            let released = Restored { waits: false, ..restored.clone() };
            swaps.push(restore_swap(&released)?);
        }
        Ok((swap_all(self.store, swaps), waits))
    }

    /// Marks a state that was just restored: effects are paused, and pending decisions are held back until the operator resumes.
    pub fn hold_back(&self, restored: &Restored) -> Result<Wait<Changed>, StoreError> {
        let pause = swap(PAUSE.to_owned(), Some(b"on".to_vec()))?;
        Ok(swap_all(self.store, vec![pause, restore_swap(restored)?]))
    }

    /// Sets the capabilities that a tool requires; `None` restores those of its description.
    pub fn set_caps(&self, tool: &ToolId, caps: Option<&[Capability]>) -> Result<Wait<Changed>, StoreError> {
        if caps.is_some_and(|caps| caps.len() > SPEC_LIST_MAX) {
            let why = format!("a tool may require at most {SPEC_LIST_MAX} capabilities");
            return Err(StoreError::Invalid(why));
        }
        let value = caps.map(|caps| json_bytes(&caps));
        Ok(self.set(caps_key(tool), value))
    }

    fn is_set(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.store.entry(&family()?, key)?.is_some())
    }

    fn set(&self, key: String, value: Option<Vec<u8>>) -> Wait<Changed> {
        // The family's name is a valid constant.
        swap_all(self.store, swap(key, value).into_iter().collect())
    }

    fn read<T: DeserializeOwned>(
        &self,
        key: &str,
        damaged: impl FnOnce() -> StoreError,
    ) -> Result<Option<T>, StoreError> {
        match self.store.entry(&family()?, key)? {
            Some(entry) => read_json(&entry).map(Some).ok_or_else(damaged),
            None => Ok(None),
        }
    }
}

fn swap(key: String, value: Option<Vec<u8>>) -> Result<Swap, StoreError> {
    Ok(Swap {
        family: family()?,
        key,
        expect: Expect::Any,
        change: value.map_or(KvChange::Delete, |value| KvChange::Put(NewBody::Clear(value))),
    })
}

fn restore_swap(restored: &Restored) -> Result<Swap, StoreError> {
    swap(RESTORED.to_owned(), Some(json_bytes(restored)))
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("switches")
}
