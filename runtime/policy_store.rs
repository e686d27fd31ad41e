//! The policy in force: the files of the policy directory, with the operators' changes laid over them.
//!
//! The files are only read. Changes made on the command line are one entry of the Store, swapped only if nobody else
//! changed it meanwhile and only if the policy still compiles with them.

use effectd_bus::{Change as StoreChange, EntryChange, Expect, FamilyName, NewBody, Store, StoreError, Swap};
use effectd_policy::{Change, Overlay, Policy};

use crate::error::Error;
use crate::state::State;

const FAMILY: &str = "policy";
const OVERLAY: &str = "overlay";

/// The changes in force, and the version they are at.
fn overlay(store: &dyn Store) -> Result<(Overlay, Expect), Error> {
    let Some(entry) = store.entry(&FamilyName::new(FAMILY)?, OVERLAY)? else {
        return Ok((Overlay::default(), Expect::Absent));
    };
    let damaged =
        |why: String| Error::Internal(format!("the policy changes in the store cannot be read: {why}"));
    let bytes = entry
        .value
        .bytes()
        .ok_or_else(|| damaged("they are shredded".to_owned()))?;
    let overlay = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    Ok((overlay, Expect::Version(entry.version)))
}

/// The policy as it stands now.
pub fn load(state: &State, store: &dyn Store) -> Result<Policy, Error> {
    state.load_policy(&overlay(store)?.0)
}

/// A change of the policy that somebody else writes, in one step with something of their own. Whether the policy compiles
/// with it has been tried.
pub fn prepare(state: &State, store: &dyn Store, change: Change) -> Result<Swap, Error> {
    Ok(prepared(state, store, change)?.0)
}

/// The policy as a change would make it; nothing is changed.
pub fn tried(state: &State, store: &dyn Store, change: Change) -> Result<Policy, Error> {
    Ok(prepared(state, store, change)?.1)
}

fn prepared(state: &State, store: &dyn Store, change: Change) -> Result<(Swap, Policy), Error> {
    let (mut changed, expect) = overlay(store)?;
    changed.apply(change).map_err(Box::new)?;
    let policy = state.load_policy(&changed)?;
    let bytes = serde_json::to_vec(&changed).map_err(|error| Error::Internal(error.to_string()))?;
    let swap = Swap {
        family: FamilyName::new(FAMILY)?,
        key: OVERLAY.to_owned(),
        expect,
        change: EntryChange::Put(NewBody::Clear(bytes)),
    };
    Ok((swap, policy))
}

/// Makes a change and answers the policy with it. A change under which the policy does not compile, or fails one of its own
/// examples, is refused, and everything stays as it was.
pub fn change(state: &State, store: &dyn Store, change: Change) -> Result<Policy, Error> {
    loop {
        let (swap, policy) = prepared(state, store, change.clone())?;
        match store
            .change(StoreChange {
                swaps: vec![swap],
                ..StoreChange::default()
            })
            .wait()
        {
            Ok(_) => return Ok(policy),
            // Somebody else was faster: look again.
            Err(StoreError::VersionMismatch { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
