//! The policy in force: the files of the policy directory, overlaid with the operators' changes.
//!
//! The files are only read. All changes are one entry of the store. A new change replaces this entry only if nobody else replaced
//! it meanwhile and the policy compiles with the change.

use effectd_bus::{Change as StoreChange, Expect, FamilyName, KvChange, NewBody, Store, StoreError, Swap};
use effectd_policy::{Change, Overlay, Policy};

use super::State;
use crate::error::Error;

const FAMILY: &str = "policy";
const OVERLAY: &str = "overlay";

/// The operators' changes, and the version of their entry.
fn overlay(store: &dyn Store) -> Result<(Overlay, Expect), Error> {
    let Some(entry) = store.entry(&FamilyName::new(FAMILY)?, OVERLAY)? else {
        return Ok((Overlay::default(), Expect::Absent));
    };
    let damaged =
        |why: String| Error::Internal(format!("the policy changes in the store cannot be read: {why}"));
    let bytes = entry.value.bytes().ok_or_else(|| damaged("their key was destroyed".to_owned()))?;
    let overlay = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    Ok((overlay, Expect::Version(entry.version)))
}

pub(crate) fn load(state: &State, store: &dyn Store) -> Result<Policy, Error> {
    state.load_policy(&overlay(store)?.0)
}

/// The store operation for a change with which the policy compiles, for a caller that writes it together with something else.
pub(crate) fn prepare(state: &State, store: &dyn Store, change: Change) -> Result<Swap, Error> {
    Ok(prepared(state, store, change)?.0)
}

/// The policy with this change; nothing is written.
pub(crate) fn tried(state: &State, store: &dyn Store, change: Change) -> Result<Policy, Error> {
    Ok(prepared(state, store, change)?.1)
}

fn prepared(state: &State, store: &dyn Store, change: Change) -> Result<(Swap, Policy), Error> {
    let (mut changed, expect) = overlay(store)?;
    changed.apply(change.clone()).map_err(Box::new)?;
    let policy = state.load_policy(&changed)?;
    policy.check_change(&change).map_err(Box::new)?;
    let bytes = serde_json::to_vec(&changed).map_err(Error::internal)?;
    let swap = Swap {
        family: FamilyName::new(FAMILY)?,
        key: OVERLAY.to_owned(),
        expect,
        change: KvChange::Put(NewBody::Clear(bytes)),
    };
    Ok((swap, policy))
}

/// Writes a change. Refuses it while the files are not valid, or if they do not compile with it.
pub(crate) fn change(state: &State, store: &dyn Store, change: Change) -> Result<Policy, Error> {
    loop {
        let (swap, policy) = prepared(state, store, change.clone())?;
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
