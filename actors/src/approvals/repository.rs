//! The repository of holds: their entries in the Store, and steps that change several entries in one block.

use effectd_bus::{
    Change, Changed, Expect, FamilyName, KvChange, KvEntry, LeaseId, NewBody, NewEvent, Store, StoreError,
    Swap, Wait,
};
use effectd_contracts::{
    ActionId, ApprovalData, ApprovalId, Digest, Event, SpaceId, Timestamp, Topic, TraceId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hold::{Hold, Past};
use crate::control::items_of;
use crate::limits::HELD_PAGE;
use crate::services::Approvals;
use crate::services::sessions::{self, is_implicit};
use crate::stored::{HELD_ACTIONS, clear_event, entries_from, json_bytes, page};

/// Holds by id, sealed.
const HOLDS: &str = "holds";
const ACTIONS: &str = HELD_ACTIONS;
/// The id of the open hold for each question, see [`ask_key`].
const ASKS: &str = "held-asks";
const SESSIONS: &str = "held-sessions";

/// The actions of each hold and when they were accepted, by the space and the hold, see [`space_key`]: who lists the holds of one
/// organisation opens none of another.
const SPACES: &str = "held-spaces";

/// Holds that have ended, without parameters.
const PAST: &str = "held-past";

/// Session ids longer than this enter the key as a digest.
const PLAIN_BYTES_MAX: usize = 256;

pub(crate) fn session_key(session: &str) -> String {
    if session.len() <= PLAIN_BYTES_MAX {
        session.to_owned()
    } else {
        format!("sha256:{}", Digest::of(session.as_bytes()).hex())
    }
}

fn space_key(space: &SpaceId, hold: &str) -> String {
    format!("{}/{hold}", Digest::of(space.as_str().as_bytes()).hex())
}

/// A stored value with its version, which a compare-and-swap expects.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned<T> {
    pub value: T,
    pub version: u64,
}

pub(crate) fn read<T: DeserializeOwned>(entry: &KvEntry) -> Result<Versioned<T>, StoreError> {
    let damaged = |what: String| StoreError::Damaged { what, advice: "run `effectd store check`" };
    let bytes = entry
        .value
        .bytes()
        .ok_or_else(|| damaged(format!("the key of entry {} was destroyed", entry.key)))?;
    let value = serde_json::from_slice(bytes)
        .map_err(|error| damaged(format!("entry {} cannot be read: {error}", entry.key)))?;
    Ok(Versioned { value, version: entry.version })
}

fn get<T: DeserializeOwned>(
    store: &dyn Store,
    family: &str,
    key: &str,
) -> Result<Option<Versioned<T>>, StoreError> {
    let entry = store.entry(&FamilyName::new(family)?, key)?;
    entry.as_ref().map(read).transpose()
}

pub fn hold(store: &dyn Store, id: &ApprovalId) -> Result<Option<Versioned<Hold>>, StoreError> {
    get(store, HOLDS, id.as_str())
}

/// The hold of this id, if it is in one of these spaces. One of another space is not opened.
pub(crate) fn hold_in<'a>(
    store: &dyn Store,
    spaces: impl IntoIterator<Item = &'a SpaceId>,
    id: &ApprovalId,
) -> Result<Option<Versioned<Hold>>, StoreError> {
    let family = FamilyName::new(SPACES)?;
    for space in spaces {
        if store.entry(&family, &space_key(space, id.as_str()))?.is_some() {
            return hold(store, id);
        }
    }
    Ok(None)
}

pub(crate) fn hold_id(store: &dyn Store, action: &ActionId) -> Result<Option<ApprovalId>, StoreError> {
    Ok(get(store, ACTIONS, action.as_str())?.map(|id| id.value))
}

pub fn hold_of(store: &dyn Store, action: &ActionId) -> Result<Option<Versioned<Hold>>, StoreError> {
    let found = hold_id(store, action)?.map_or(Ok(None), |id| hold(store, &id))?;
    Ok(found.filter(|hold| hold.value.member(action).is_some()))
}

/// Equal requests have one key and wait in one hold, unless one of them is of a session with a record. The deletion of a session denies
/// its holds, and must not decide about another session.
fn ask_key(digest: &Digest, session: &str) -> String {
    if is_implicit(session) {
        return digest.hex();
    }
    Digest::of(format!("{} {session}", digest.hex()).as_bytes()).hex()
}

/// The open hold that an equal request of this session joins.
pub(crate) fn asked(
    store: &dyn Store,
    digest: &Digest,
    session: &str,
) -> Result<Option<Versioned<Hold>>, StoreError> {
    match get::<ApprovalId>(store, ASKS, &ask_key(digest, session))? {
        Some(id) => hold(store, &id.value),
        None => Ok(None),
    }
}

/// The open holds of a session.
pub(crate) fn open_in(store: &dyn Store, session: &str) -> Result<Vec<ApprovalId>, StoreError> {
    let open = get::<Vec<ApprovalId>>(store, SESSIONS, &session_key(session))?;
    Ok(open.map_or_else(Vec::new, |open| open.value))
}

/// How many actions of a session wait in open holds; a batch counts as its items.
pub(crate) fn open_of(store: &dyn Store, session: &str) -> Result<usize, StoreError> {
    Ok(open_in(store, session)?.len())
}

pub fn past(store: &dyn Store, id: &ApprovalId) -> Result<Option<Past>, StoreError> {
    Ok(get::<Past>(store, PAST, id.as_str())?.map(|past| past.value))
}

/// Removes past holds from before this time. Returns how many.
pub(crate) async fn sweep_past(store: &dyn Store, before: Timestamp) -> Result<usize, StoreError> {
    let (mut after, mut gone) = (None::<String>, 0);
    loop {
        let page = store.entries(&FamilyName::new(PAST)?, "", after.as_deref(), HELD_PAGE)?;
        let mut step = Step::default();
        for entry in &page.entries {
            if read::<Past>(entry).is_ok_and(|past| past.value.approval.at < before) {
                step.delete(PAST, &entry.key, Expect::Version(entry.version))?;
                gone += 1;
            }
        }
        step.commit(store).await?;
        match page.after {
            Some(next) => after = Some(next),
            None => return Ok(gone),
        }
    }
}

/// One page of the holds that can be read, the oldest first.
pub fn holds(
    store: &dyn Store,
    after: Option<&str>,
) -> Result<(Vec<Versioned<Hold>>, Option<String>), StoreError> {
    let page = store.entries(&FamilyName::new(HOLDS)?, "", after, HELD_PAGE)?;
    Ok((page.entries.iter().filter_map(readable).collect(), page.after))
}

fn readable<T: DeserializeOwned>(entry: &KvEntry) -> Option<Versioned<T>> {
    read(entry).inspect_err(|error| tracing::error!(%error, "a hold cannot be read")).ok()
}

/// One page of the holds that `sees` selects, the oldest first; if spaces are given, no hold of another is opened.
pub fn seen(
    store: &dyn Store,
    spaces: Option<&[SpaceId]>,
    after: Option<&str>,
    sees: impl Fn(&Hold) -> bool,
) -> Result<(Vec<Hold>, Option<String>), StoreError> {
    let family = FamilyName::new(HOLDS)?;
    let pick = |entry: &KvEntry| Ok(readable::<Hold>(entry).map(|hold| hold.value).filter(&sees));
    let Some(spaces) = spaces else {
        return page(entries_from(store, &family, ("", after), HELD_PAGE), HELD_PAGE, pick);
    };
    let mut ids = Vec::new();
    for space in spaces {
        ids.extend(held_in(store, space)?.into_iter().map(|(id, _)| id));
    }
    ids.retain(|id| after.is_none_or(|after| id.as_str() > after));
    ids.sort();
    page(ids.iter().filter_map(|id| store.entry(&family, id).transpose()), HELD_PAGE, pick)
}

/// The actions of a hold, and when they were accepted.
type Actions = Vec<(ActionId, Timestamp)>;

/// The holds of a space by their ids, without opening them. One entry that cannot be read does not hide the others.
pub(crate) fn held_in(store: &dyn Store, space: &SpaceId) -> Result<Vec<(String, Actions)>, StoreError> {
    let (family, prefix) = (FamilyName::new(SPACES)?, space_key(space, ""));
    let found =
        entries_from(store, &family, (prefix.as_str(), None), HELD_PAGE).filter_map(|entry| match entry {
            Ok(entry) => Some(Ok((entry.key[prefix.len()..].to_owned(), readable::<Actions>(&entry)?.value))),
            Err(error) => Some(Err(error)),
        });
    found.collect()
}

/// Lists a hold by its space, if an earlier build of this stored format wrote it and did not, or its entry cannot be read.
pub(crate) async fn list_by_space(approvals: &Approvals, at: &Versioned<Hold>) -> Result<(), StoreError> {
    let store = &*approvals.store;
    let key = space_key(&at.value.decision.request.space_id, at.value.approval_id.as_str());
    let listed = store.entry(&FamilyName::new(SPACES)?, &key)?;
    if listed.is_some_and(|entry| readable::<Actions>(&entry).is_some()) {
        return Ok(());
    }
    let _lock = approvals.changes.lock().await;
    let mut step = Step::default();
    step.hold(&at.value, Expect::Version(at.version))?;
    step.commit(store).await.map(drop)
}

/// Several changes that are written in one block.
#[derive(Default)]
pub(crate) struct Step(Change);

impl Step {
    pub(crate) fn put(
        &mut self,
        family: &str,
        key: &str,
        expect: Expect,
        value: &impl Serialize,
    ) -> Result<(), StoreError> {
        let bytes = json_bytes(value);
        let is_sealed = [HOLDS, sessions::SESSIONS].contains(&family);
        let body = if is_sealed { NewBody::Sealed(bytes) } else { NewBody::Clear(bytes) };
        self.swap(family, key, expect, KvChange::Put(body))
    }

    pub(crate) fn delete(&mut self, family: &str, key: &str, expect: Expect) -> Result<(), StoreError> {
        self.swap(family, key, expect, KvChange::Delete)
    }

    fn swap(&mut self, family: &str, key: &str, expect: Expect, change: KvChange) -> Result<(), StoreError> {
        self.0.swaps.push(Swap { family: FamilyName::new(family)?, key: key.to_owned(), expect, change });
        Ok(())
    }

    pub(crate) fn lease(&mut self, lease: Option<LeaseId>) {
        self.0.leases.extend(lease);
    }

    /// Adds another change to the same step.
    pub(crate) fn with(&mut self, swap: Option<Swap>) {
        self.0.swaps.extend(swap);
    }

    pub(crate) fn event(&mut self, topic: Topic, event: NewEvent) {
        self.0.events.push((topic.into(), event));
    }

    /// Adds the event of a change that belongs to no action.
    pub(crate) fn announce(
        &mut self,
        topic: Topic,
        data: impl Serialize,
        about: String,
        (space, at): (SpaceId, Timestamp),
    ) -> Result<(), StoreError> {
        let event = Event::of_change(topic, data, ActionId::new(about)?, space, at);
        self.event(topic, clear_event(&event, None));
        Ok(())
    }

    pub(crate) fn news(
        &mut self,
        data: ApprovalData,
        about: &ActionId,
        space: &SpaceId,
        at: (&TraceId, Timestamp),
    ) {
        let event = Event::approval(data, about.clone(), space.clone(), at.0.clone(), at.1);
        self.event(Topic::Approvals, clear_event(&event, None));
    }

    pub(crate) fn hold(&mut self, hold: &Hold, expect: Expect) -> Result<(), StoreError> {
        let actions: Vec<_> = hold.members.iter().map(|one| (&one.action_id, one.accepted_at)).collect();
        let key = space_key(&hold.decision.request.space_id, hold.approval_id.as_str());
        self.put(SPACES, &key, Expect::Any, &actions)?;
        self.put(HOLDS, hold.approval_id.as_str(), expect, hold)
    }

    pub(crate) fn add_member(
        &mut self,
        action: &ActionId,
        hold: &Hold,
        expect: Expect,
    ) -> Result<(), StoreError> {
        self.put(ACTIONS, action.as_str(), expect, &hold.approval_id)
    }

    pub(crate) fn remove_member(&mut self, action: &ActionId) -> Result<(), StoreError> {
        self.delete(ACTIONS, action.as_str(), Expect::Any)
    }

    /// Opens a hold: equal requests can join it, and it counts against the session.
    pub(crate) fn open(&mut self, store: &dyn Store, hold: &Hold) -> Result<(), StoreError> {
        self.put(ASKS, &ask_key(&hold.digest, &hold.session), Expect::Any, &hold.approval_id)?;
        let actions = items_of(&hold.decision.request) as usize;
        self.session(store, hold, |open| open.extend(std::iter::repeat_n(hold.approval_id.clone(), actions)))
    }

    /// Closes a hold: no request can join it, and it no longer counts against the session.
    pub(crate) fn close(&mut self, store: &dyn Store, hold: &Hold) -> Result<(), StoreError> {
        let key = ask_key(&hold.digest, &hold.session);
        if let Some(known) = get::<ApprovalId>(store, ASKS, &key)?
            && known.value == hold.approval_id
        {
            self.delete(ASKS, &key, Expect::Version(known.version))?;
        }
        self.session(store, hold, |open| open.retain(|id| *id != hold.approval_id))
    }

    pub(crate) fn remove(&mut self, at: &Versioned<Hold>) -> Result<(), StoreError> {
        let id = at.value.approval_id.as_str();
        self.delete(SPACES, &space_key(&at.value.decision.request.space_id, id), Expect::Any)?;
        self.delete(HOLDS, id, Expect::Version(at.version))
    }

    pub(crate) fn past(&mut self, hold: &Hold) -> Result<(), StoreError> {
        let Some(approval) = hold.decided() else {
            return Ok(());
        };
        let request = &hold.decision.request;
        let past = Past {
            approval: approval.clone(),
            action_ids: hold.members.iter().map(|member| member.action_id.clone()).collect(),
            tool_id: request.tool_id.clone(),
            subject_id: request.subject_id.clone(),
            space_id: request.space_id.clone(),
            principal: hold.decision.principal.clone(),
        };
        self.put(PAST, hold.approval_id.as_str(), Expect::Any, &past)
    }

    fn session(
        &mut self,
        store: &dyn Store,
        hold: &Hold,
        edit: impl FnOnce(&mut Vec<ApprovalId>),
    ) -> Result<(), StoreError> {
        let key = session_key(&hold.session);
        let known = get::<Vec<ApprovalId>>(store, SESSIONS, &key)?;
        let expect = known.as_ref().map_or(Expect::Absent, |known| Expect::Version(known.version));
        let before = known.map_or_else(Vec::new, |known| known.value);
        let mut open = before.clone();
        edit(&mut open);
        match (open == before, open.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => self.delete(SESSIONS, &key, expect),
            (false, false) => self.put(SESSIONS, &key, expect, &open),
        }
    }

    pub(crate) fn commit(self, store: &dyn Store) -> Wait<Changed> {
        store.change(self.0)
    }
}
