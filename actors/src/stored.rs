//! Values in the form that the Store takes.

use effectd_bus::{
    Change, Changed, Expect, FamilyName, KvChange, KvEntry, NewBody, NewEvent, Store, StoreError, Swap, Wait,
};
use effectd_contracts::{ActionId, Event};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The holds of actions, by the ids of the actions.
pub(crate) const HELD_ACTIONS: &str = "held-actions";

/// Initial capacity for a JSON body: most are shorter.
const BODY_BYTES: usize = 1 << 10;

/// A value as JSON. It is plain data with text keys, so serde_json cannot fail.
pub(crate) fn json_bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BODY_BYTES);
    match serde_json::to_writer(&mut bytes, value) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

/// The value of an entry; `None` if its JSON cannot be parsed.
pub(crate) fn read_json<T: DeserializeOwned>(entry: &KvEntry) -> Option<T> {
    serde_json::from_slice(entry.value.bytes()?).ok()
}

/// All entries of a family, read page by page.
pub(crate) fn entries(
    store: &dyn Store,
    family: &FamilyName,
    page: usize,
) -> impl Iterator<Item = Result<KvEntry, StoreError>> {
    entries_from(store, family, ("", None), page)
}

/// [`entries`] whose keys begin with a prefix, and come after a key.
pub(crate) fn entries_from(
    store: &dyn Store,
    family: &FamilyName,
    (prefix, after): (&str, Option<&str>),
    page: usize,
) -> impl Iterator<Item = Result<KvEntry, StoreError>> {
    let (mut next, mut read) = (Some(after.map(str::to_owned)), Vec::new().into_iter());
    std::iter::from_fn(move || {
        loop {
            if let Some(entry) = read.next() {
                return Some(Ok(entry));
            }
            let after = next.take()?;
            match store.entries(family, prefix, after.as_deref(), page) {
                Ok(found) => (next, read) = (found.after.map(Some), found.entries.into_iter()),
                Err(error) => return Some(Err(error)),
            }
        }
    })
}

/// A page of what `pick` takes from entries, and the key after which the next page begins. It picks before it counts, so that who sees
/// little gets whole pages of that, and the key of nothing else.
pub(crate) fn page<T>(
    entries: impl Iterator<Item = Result<KvEntry, StoreError>>,
    max: usize,
    pick: impl Fn(&KvEntry) -> Result<Option<T>, StoreError>,
) -> Result<(Vec<T>, Option<String>), StoreError> {
    let (mut picked, mut last) = (Vec::new(), None);
    for entry in entries {
        let entry = entry?;
        let Some(value) = pick(&entry)? else { continue };
        if picked.len() == max {
            return Ok((picked, last));
        }
        picked.push(value);
        last = Some(entry.key);
    }
    Ok((picked, None))
}

/// An event in clear. The Store groups it with the events of the action `about`.
pub(crate) fn clear_event<T: Serialize>(event: &Event<T>, about: Option<&ActionId>) -> NewEvent {
    new_event(event, about, NewBody::Clear)
}

/// An event whose body is sealed; its key is destroyed after its action has ended.
pub(crate) fn sealed_event<T: Serialize>(event: &Event<T>, about: &ActionId) -> NewEvent {
    new_event(event, Some(about), NewBody::Sealed)
}

fn new_event<T: Serialize>(
    event: &Event<T>,
    about: Option<&ActionId>,
    body: fn(Vec<u8>) -> NewBody,
) -> NewEvent {
    NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: about.cloned(),
        body: body(json_bytes(event)),
    }
}

pub(crate) fn put(
    family: FamilyName,
    key: impl Into<String>,
    expect: Expect,
    value: &impl Serialize,
) -> Swap {
    Swap { family, key: key.into(), expect, change: KvChange::Put(NewBody::Clear(json_bytes(value))) }
}

pub(crate) fn delete(family: FamilyName, key: impl Into<String>, expect: Expect) -> Swap {
    Swap { family, key: key.into(), expect, change: KvChange::Delete }
}

/// Changes several entries in one block.
pub(crate) fn swap_all(store: &dyn Store, swaps: Vec<Swap>) -> Wait<Changed> {
    store.change(Change { swaps, ..Change::default() })
}
