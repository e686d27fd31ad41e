//! The policy in force: the files of the policy directory, overlaid with the operators' changes.
//!
//! The files are only read. All changes are one entry of the store. A new change replaces this entry only if nobody else replaced
//! it meanwhile and the policy compiles with the change. Another entry has the files that were last in force, for a start while the
//! present ones have a fault, and another one the candidate policy.

use effectd_actors::Registry;
use effectd_bus::{Change as StoreChange, Expect, FamilyName, KvChange, NewBody, Store, StoreError, Swap};
use effectd_contracts::{PolicyList, Timestamp, ToolId};
use effectd_policy::{Change, Overlay, Policy, PolicyError, Source};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::State;
use crate::error::Error;

const FAMILY: &str = "policy";
const OVERLAY: &str = "overlay";
const LAST_GOOD: &str = "last-good";
const SHADOW: &str = "shadow";

/// A candidate policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) source: Source,
    pub(crate) since: Timestamp,
}

pub(crate) fn candidate(store: &dyn Store) -> Result<Option<Candidate>, Error> {
    Ok(entry(store, SHADOW)?.0)
}

/// Stores the candidate, or none.
pub(crate) fn set_candidate(store: &dyn Store, candidate: Option<&Candidate>) -> Result<(), Error> {
    let mut swap = swap(SHADOW, Expect::Any, &candidate)?;
    if candidate.is_none() {
        swap.change = KvChange::Delete;
    }
    let change = StoreChange { swaps: vec![swap], ..StoreChange::default() };
    Ok(store.change(change).wait().map(drop)?)
}

/// The operators' changes.
pub(crate) fn overlay(store: &dyn Store) -> Result<Overlay, Error> {
    Ok(entry(store, OVERLAY)?.0.unwrap_or_default())
}

/// A value, and the version of its entry.
fn entry<T: DeserializeOwned>(store: &dyn Store, key: &str) -> Result<(Option<T>, Expect), Error> {
    let Some(entry) = store.entry(&FamilyName::new(FAMILY)?, key)? else {
        return Ok((None, Expect::Absent));
    };
    let damaged =
        |why: String| Error::Internal(format!("the policy's {key} in the store cannot be read: {why}"));
    let bytes = entry.value.bytes().ok_or_else(|| damaged("its key was destroyed".to_owned()))?;
    let value = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    Ok((Some(value), Expect::Version(entry.version)))
}

fn swap(key: &str, expect: Expect, value: &impl Serialize) -> Result<Swap, Error> {
    let bytes = serde_json::to_vec(value).map_err(Error::internal)?;
    let change = KvChange::Put(NewBody::Clear(bytes));
    Ok(Swap { family: FamilyName::new(FAMILY)?, key: key.to_owned(), expect, change })
}

pub(crate) fn load(state: &State, store: &dyn Store, registry: &Registry) -> Result<Policy, Error> {
    state.load_policy(&overlay(store)?, registry)
}

/// A policy of the files with the operators' changes.
pub(crate) fn overlaid(policy: &Policy, store: &dyn Store) -> Result<Policy, Error> {
    Ok(policy.with_overlay(&overlay(store)?).map_err(Box::new)?)
}

/// The policy from the files that were last in force; `None` if none were.
pub(crate) fn last_good(state: &State, store: &dyn Store) -> Result<Option<Policy>, Error> {
    let source = entry::<Source>(store, LAST_GOOD)?.0;
    source.map(|source| state.load_policy_again(&source, &overlay(store)?)).transpose()
}

/// Keeps the files in force for [`last_good`]. A failure is only logged: it does not matter until files with a fault meet a restart.
pub(crate) fn keep_good(store: &dyn Store, source: &Source) {
    let kept = entry::<Source>(store, LAST_GOOD).and_then(|(known, expect)| {
        if known.as_ref() == Some(source) {
            return Ok(());
        }
        let change = StoreChange { swaps: vec![swap(LAST_GOOD, expect, source)?], ..StoreChange::default() };
        Ok(store.change(change).wait().map(drop)?)
    });
    if let Err(error) = kept {
        tracing::warn!(%error, "the policy in force is not kept for `serve --last-good-policy`");
    }
}

/// The store operation for a change with which the policy compiles, for a caller that writes it together with something else.
pub(crate) fn prepare(
    state: &State,
    store: &dyn Store,
    registry: &Registry,
    change: Change,
) -> Result<(Swap, Policy), Error> {
    let (known, expect) = entry::<Overlay>(store, OVERLAY)?;
    let mut changed = known.unwrap_or_default();
    changed.apply(change.clone()).map_err(Box::new)?;
    let policy = state.load_policy(&changed, registry)?;
    policy.check_change(&change).map_err(Box::new)?;
    let known = match &change {
        Change::SetOrgMode { tool, mode: Some(_), .. } => check_tool(registry, tool),
        Change::SetEntry { list: PolicyList::CrossSpace, entry, allowed: Some(_), .. } => {
            find_tool(registry, entry)
        }
        Change::SetOrgMode { .. }
        | Change::GrantConsent { .. }
        | Change::RevokeConsent { .. }
        | Change::SetBand { .. }
        | Change::SetEntry { .. }
        | Change::Clear {} => Ok(()),
    };
    known.map_err(|why| Box::new(PolicyError::Overlay(why)))?;
    Ok((swap(OVERLAY, expect, &changed)?, policy))
}

/// Refuses the mode of a tool that does not exist. The key is `<source>.<action>` or `<source>:<action>`, and a command's name may follow.
fn check_tool(registry: &Registry, key: &str) -> Result<(), String> {
    let tool = key.split(' ').next().unwrap_or(key);
    let other = |why| ToolId::from_colon(tool).map_or(Err(why), |id| find_tool(registry, &id));
    find_tool(registry, tool).or_else(other)
}

fn find_tool(registry: &Registry, name: &str) -> Result<(), String> {
    let id = ToolId::new(name).map_err(|error| error.to_string())?;
    registry.find_by_id(&id).map(drop).map_err(|error| error.to_string())
}

/// Writes a change. Refuses it while the files are not valid, or if they do not compile with it.
pub(crate) fn change(
    state: &State,
    store: &dyn Store,
    registry: &Registry,
    change: Change,
) -> Result<Policy, Error> {
    loop {
        let (swap, policy) = prepare(state, store, registry, change.clone())?;
        let swaps = vec![swap];
        let change = StoreChange { swaps, ..StoreChange::default() };
        match store.change(change).wait() {
            Ok(_) => return Ok(policy),
            // Somebody else wrote a change meanwhile: try again.
            Err(StoreError::VersionMismatch { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
