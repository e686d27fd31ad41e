//! The operator's switches: a tool off, other required capabilities for a tool, all effects paused. They are stored, so a restart
//! changes nothing; a tool that is off for a while, and a pause for a while, end by the clock. A state restored from a backup begins with effects paused and pending decisions held back.

use std::collections::BTreeSet;

use effectd_bus::limits::PAGE_ITEMS_MAX;
use effectd_bus::{
    Change, Changed, Expect, FamilyName, KvChange, KvEntry, NewBody, OpenIntent, Store, StoreError, Swap,
    Wait,
};
use effectd_contracts::limits::SPEC_LIST_MAX;
use effectd_contracts::{
    Capability, Event, Principal, SpaceId, Timestamp, ToolId, ToolQuarantinedData, Topic,
};
use effectd_policy::Facts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::stored::{clear_event, entries, json_bytes, read_json, swap_all};

pub struct Switches<'a> {
    store: &'a dyn Store,
    /// The keys of all that are set, if they were read at once.
    set: Option<BTreeSet<String>>,
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

/// How long something is off: until a time, or until an operator switches it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Off(pub Option<Timestamp>);

impl std::fmt::Display for Off {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |until| write!(to, " until {until}"))
    }
}

/// The value of a switch that has an end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timed {
    until: Timestamp,
}

const PAUSE: &str = "pause";
/// When the last pause began.
const PAUSED_SINCE: &str = "paused-since";
/// The operator's reason for the last pause.
const PAUSE_REASON: &str = "pause-reason";
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
        Self { store, set: None }
    }

    /// The same, for who asks about many tools: most of them have no switch, and are not looked up.
    pub(crate) fn read_at_once(store: &'a dyn Store) -> Result<Self, StoreError> {
        let family = family()?;
        let keys = entries(store, &family, PAGE_ITEMS_MAX).map(|entry| entry.map(|entry| entry.key));
        Ok(Self { store, set: Some(keys.collect::<Result<_, _>>()?) })
    }

    /// Whether a tool is disabled now, and how long.
    pub fn tool_off(&self, tool: &ToolId, now: Timestamp) -> Result<Option<Off>, StoreError> {
        self.off(&tool_key(tool), now)
    }

    /// Whether something was off until a moment in this time.
    pub(crate) fn has_ended(&self, since: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
        for entry in entries(self.store, &family()?, PAGE_ITEMS_MAX) {
            if read_json::<Timed>(&entry?).is_some_and(|timed| since < timed.until && timed.until <= now) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether effects are paused now, and how long: every action is a dry run.
    pub fn paused(&self, now: Timestamp) -> Result<Option<Off>, StoreError> {
        self.off(PAUSE, now)
    }

    /// The mark of a restored state; `None` if this state was not restored.
    pub fn restored(&self) -> Result<Option<Restored>, StoreError> {
        self.read(RESTORED, || StoreError::Damaged {
            what: "the state of the restore cannot be read".to_owned(),
            advice: "restore the backup again",
        })
    }

    /// The capabilities that an operator requires instead of those in the tool's description.
    pub fn caps(&self, tool: &ToolId) -> Result<Option<Vec<Capability>>, StoreError> {
        self.read(&caps_key(tool), || StoreError::Damaged {
            what: format!("the capabilities that {tool} requires cannot be read"),
            advice: "set them again with `effectd tools set-caps`",
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

    /// Since when effects are paused.
    pub fn paused_since(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        if self.paused(now)?.is_none() {
            return Ok(None);
        }
        Ok(self.store.entry(&family()?, PAUSED_SINCE)?.as_ref().and_then(read_json))
    }

    /// Why the last pause was made, if its operator gave a reason.
    pub fn pause_reason(&self) -> Result<Option<String>, StoreError> {
        Ok(self.store.entry(&family()?, PAUSE_REASON)?.as_ref().and_then(read_json))
    }

    pub fn disable_tool(&self, tool: &ToolId, off: Off) -> Result<Wait<Changed>, StoreError> {
        Ok(swap_all(self.store, vec![self.turned_off(tool_key(tool), off)?]))
    }

    pub fn enable_tool(&self, tool: &ToolId) -> Wait<Changed> {
        self.set(tool_key(tool), None)
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

    /// Pauses effects. If they are already paused, they stay paused since then.
    pub fn pause(&self, off: Off, reason: Option<&str>, now: Timestamp) -> Result<Wait<Changed>, StoreError> {
        let since = self.paused_since(now)?.unwrap_or(now);
        let pause = self.turned_off(PAUSE.to_owned(), off)?;
        Ok(swap_all(self.store, vec![pause, since_swap(since)?, reason_swap(reason)?]))
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
        let swaps = vec![pause, since_swap(restored.at)?, reason_swap(None)?, restore_swap(restored)?];
        Ok(swap_all(self.store, swaps))
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

    fn off(&self, key: &str, now: Timestamp) -> Result<Option<Off>, StoreError> {
        let entry = self.entry(key)?;
        let off = entry.map(|entry| Off(read_json::<Timed>(&entry).map(|timed| timed.until)));
        Ok(off.filter(|off| off.0.is_none_or(|until| now < until)))
    }

    /// The change that switches something off. An end is refused if it is already off without one, or is quarantined.
    fn turned_off(&self, key: String, Off(until): Off) -> Result<Swap, StoreError> {
        let Some(until) = until else {
            return swap(key, Some(b"on".to_vec()));
        };
        let known = self.store.entry(&family()?, &key)?;
        if known.as_ref().is_some_and(|entry| read_json::<Timed>(entry).is_none()) {
            let why = "it is already off without an end; switch it on first, then off for a while";
            return Err(StoreError::Invalid(why.to_owned()));
        }
        let expect = known.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
        let timed = swap(key, Some(json_bytes(&Timed { until })))?;
        Ok(Swap { expect, ..timed })
    }

    fn set(&self, key: String, value: Option<Vec<u8>>) -> Wait<Changed> {
        // The family's name is a valid constant.
        swap_all(self.store, swap(key, value).into_iter().collect())
    }

    fn entry(&self, key: &str) -> Result<Option<KvEntry>, StoreError> {
        if self.set.as_ref().is_some_and(|set| !set.contains(key)) {
            return Ok(None);
        }
        self.store.entry(&family()?, key)
    }

    fn read<T: DeserializeOwned>(
        &self,
        key: &str,
        damaged: impl FnOnce() -> StoreError,
    ) -> Result<Option<T>, StoreError> {
        match self.entry(key)? {
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

fn since_swap(since: Timestamp) -> Result<Swap, StoreError> {
    swap(PAUSED_SINCE.to_owned(), Some(json_bytes(&since)))
}

fn reason_swap(reason: Option<&str>) -> Result<Swap, StoreError> {
    swap(PAUSE_REASON.to_owned(), reason.map(|reason| json_bytes(&reason)))
}

fn restore_swap(restored: &Restored) -> Result<Swap, StoreError> {
    swap(RESTORED.to_owned(), Some(json_bytes(restored)))
}

fn family() -> Result<FamilyName, StoreError> {
    FamilyName::new("switches")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use effectd_contracts::{ActionId, ManualClock};

    use super::*;

    #[test]
    fn what_is_off_for_a_while_ends_and_a_quarantine_does_not() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let store = effectd_bus::memory::open(Arc::new(ManualClock::at(at(1_000)))).unwrap();
        let (switches, hour) = (Switches::new(&store), Off(Some(at(4_600))));
        switches.pause(hour, Some("a move"), at(1_000)).unwrap().wait().unwrap();
        assert_eq!(switches.paused(at(4_599)), Ok(Some(hour)));
        assert_eq!(switches.pause_reason(), Ok(Some("a move".to_owned())));
        // A pause that is made longer has begun when it first did.
        switches.pause(Off(Some(at(4_610))), None, at(1_010)).unwrap().wait().unwrap();
        assert_eq!(switches.pause_reason(), Ok(None), "the last pause counts");
        assert_eq!(switches.paused_since(at(4_609)), Ok(Some(at(1_000))));
        assert_eq!((switches.paused(at(4_610)), switches.paused_since(at(4_610))), (Ok(None), Ok(None)));
        switches.pause(Off(None), None, at(5_000)).unwrap().wait().unwrap();
        assert_eq!(switches.paused_since(at(5_001)), Ok(Some(at(5_000))));
        let tool: ToolId = "t.x".parse().unwrap();
        switches.disable_tool(&tool, hour).unwrap().wait().unwrap();
        let news = ToolQuarantinedData {
            tool_id: tool.clone(),
            action_id: ActionId::new("a").unwrap(),
            reason: "it wrote elsewhere".to_owned(),
            since: at(1_000),
        };
        switches.quarantine(&news, &SpaceId::new("shared:s").unwrap()).wait().unwrap();
        assert_eq!(switches.tool_off(&tool, at(5_000)), Ok(Some(Off(None))), "a quarantine has no end");
        let at_once = Switches::read_at_once(&store).unwrap();
        assert_eq!(at_once.tool_off(&tool, at(5_000)), Ok(Some(Off(None))));
        assert_eq!(at_once.tool_off(&"t.y".parse().unwrap(), at(5_000)), Ok(None));
        assert!(matches!(switches.disable_tool(&tool, hour), Err(StoreError::Invalid(_))));
        switches.enable_tool(&tool).wait().unwrap();
        assert_eq!(switches.tool_off(&tool, at(1_000)), Ok(None));
    }
}
