//! What operators can switch while the runtime runs: a tool off, what a tool asks of its callers, all effects off. Kept in the
//! Store, so that a restart changes nothing. Also what a restore leaves switched: effects off, and nothing begun of what was open.

use effectd_bus::{
    Change, EntryChange, Expect, FamilyName, NewBody, NewEvent, OpenIntent, Store, StoreError, Swap, Wait,
};
use effectd_contracts::limits::SPEC_LIST_MAX;
use effectd_contracts::{Capability, Event, Principal, SpaceId, Timestamp, ToolId, ToolNews, Topic};
use effectd_policy::Facts;
use serde::{Deserialize, Serialize};

pub struct Switches<'a> {
    store: &'a dyn Store,
}

impl std::fmt::Debug for Switches<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Switches")
    }
}

/// How a state stands that was made from a backup. What was open then may have been done since by whoever went on with the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restored {
    pub by: Principal,
    pub at: Timestamp,
    /// When the backup was begun.
    pub backup_made_at: Timestamp,
    /// Decisions before this offset were in the backup.
    pub decisions: u64,
    /// What was begun then was held under this fence or an earlier one.
    #[serde(default)]
    pub fence: u64,
    /// Nobody has said yet that it may go on: nothing is taken from the bus.
    pub waits: bool,
}

impl Restored {
    /// Whether an intent was there when the backup was made. One that was taken over since has another fence, but not another age.
    pub fn holds(&self, intent: &OpenIntent) -> bool {
        intent.fence.0 <= self.fence || intent.since <= self.at
    }
}

const PAUSE: &str = "pause";
const RESTORED: &str = "restored";
/// What a call needs while nobody can tell what it needs. No role has it, so nothing passes.
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

    /// Whether effects are paused: every action is only tried out.
    pub fn paused(&self) -> Result<bool, StoreError> {
        self.is_set(PAUSE)
    }

    /// What a restore has left; `None` for a state that was not made from a backup.
    pub fn restored(&self) -> Result<Option<Restored>, StoreError> {
        let Some(entry) = self.store.entry(&family()?, RESTORED)? else {
            return Ok(None);
        };
        let read = entry
            .value
            .bytes()
            .and_then(|bytes| serde_json::from_slice(bytes).ok());
        let damaged = || StoreError::Damaged {
            what: "how the restore went cannot be read".to_owned(),
            advice: "Restore the backup again.",
        };
        read.map(Some).ok_or_else(damaged)
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

    pub fn set_tool_disabled(&self, tool: &ToolId, off: bool) -> Wait<effectd_bus::Changed> {
        self.set(tool_key(tool), off.then(|| b"on".to_vec()))
    }

    /// Switches a tool off since it did more than it declares, and tells so on the bus, in one step. An operator switches it on
    /// again like any other.
    pub fn quarantine(&self, news: &ToolNews, space: &SpaceId) -> Wait<effectd_bus::Changed> {
        let event = Event::tool(news.clone(), space.clone());
        let event = NewEvent {
            event_id: event.id.clone(),
            time: event.time,
            trace_id: event.traceid.clone(),
            action_id: None,
            // Plain data with text keys, for which serde_json has no failure.
            body: NewBody::Clear(serde_json::to_vec(&event).unwrap_or_default()),
        };
        let value = serde_json::to_vec(news).unwrap_or_default();
        let swap = family().map(|family| Swap {
            family,
            key: tool_key(&news.tool_id),
            expect: Expect::Any,
            change: EntryChange::Put(NewBody::Clear(value)),
        });
        self.store.change(Change {
            swaps: swap.into_iter().collect(),
            events: vec![(Topic::Tools.into(), event)],
            ..Change::default()
        })
    }

    /// Why a tool is off, if it is since it did more than it declares.
    pub fn quarantined(&self, tool: &ToolId) -> Result<Option<ToolNews>, StoreError> {
        let entry = self.store.entry(&family()?, &tool_key(tool))?;
        Ok(entry.and_then(|entry| serde_json::from_slice(entry.value.bytes()?).ok()))
    }

    pub fn pause(&self) -> Wait<effectd_bus::Changed> {
        self.set(PAUSE.to_owned(), Some(b"on".to_vec()))
    }

    /// Goes on, also with what a restore has left, and answers what it left. Both in one step: nothing that was held back meets
    /// a pause.
    pub fn resume(&self) -> Result<(Wait<effectd_bus::Changed>, Option<Restored>), StoreError> {
        let waits = self.restored()?.filter(|restored| restored.waits);
        let mut swaps = vec![swap(PAUSE.to_owned(), None)?];
        if let Some(restored) = &waits {
            let released = Restored {
                waits: false,
                ..restored.clone()
            };
            swaps.push(restore_swap(&released)?);
        }
        Ok((self.change(swaps), waits))
    }

    /// Leaves a state that was just made from a backup: effects are paused, and what is open stays open until it is resumed.
    pub fn hold_back(&self, restored: &Restored) -> Result<Wait<effectd_bus::Changed>, StoreError> {
        let pause = swap(PAUSE.to_owned(), Some(b"on".to_vec()))?;
        Ok(self.change(vec![pause, restore_swap(restored)?]))
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
        // The family's name is a constant that is one.
        self.change(swap(key, value).into_iter().collect())
    }

    fn change(&self, swaps: Vec<Swap>) -> Wait<effectd_bus::Changed> {
        self.store.change(Change {
            swaps,
            ..Change::default()
        })
    }
}

fn swap(key: String, value: Option<Vec<u8>>) -> Result<Swap, StoreError> {
    Ok(Swap {
        family: family()?,
        key,
        expect: Expect::Any,
        change: value.map_or(EntryChange::Delete, |value| {
            EntryChange::Put(NewBody::Clear(value))
        }),
    })
}

fn restore_swap(restored: &Restored) -> Result<Swap, StoreError> {
    // Plain data with text keys, for which serde_json has no failure.
    let value = serde_json::to_vec(restored).unwrap_or_default();
    swap(RESTORED.to_owned(), Some(value))
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("switches")
}
