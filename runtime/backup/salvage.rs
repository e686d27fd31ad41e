//! Salvages a damaged state into a new one that opens.
//!
//! What is lost may be the end of an action. So a salvaged state carries out nothing by itself, as a restored one.

use std::path::Path;
use std::sync::Arc;

use effectd_bus::embedded::{EmbeddedConfig, journal_of};
use effectd_bus::salvage::{self, Salvaged};
use effectd_bus::{Progress, offline};
use effectd_contracts::{Clock, Principal};

use super::restore::{Cleared, Open, clear_addresses, open_store, pause, signs_with_other_key};
use super::{Draft, refused, resolved};
use crate::error::Error;
use crate::state::id;

pub(crate) struct SalvagedState {
    pub(crate) found: Salvaged,
    pub(crate) open: Open,
    pub(crate) cleared: Vec<Cleared>,
}

/// Checks that the new state can be written there. Changes nothing.
pub(crate) fn check_salvage(from: &Path, into: &Path) -> Result<(), Error> {
    if into.exists() {
        return Err(refused(format!("{} already exists; choose a new directory", into.display())));
    }
    if resolved(into)?.starts_with(resolved(from)?) {
        let why = "is inside the damaged state directory; choose another directory";
        return Err(refused(format!("{} {why}", into.display())));
    }
    Ok(())
}

/// Makes a state of what is readable in another one: checks it, pauses it, and then renames it to `into`. Does not change `from`.
pub(crate) fn salvage(
    from: &Path,
    into: &Path,
    clock: &Arc<dyn Clock>,
    by: &Principal,
    progress: &Progress,
) -> Result<SalvagedState, Error> {
    check_salvage(from, into)?;
    let mut draft = Draft::begin(from, into, progress)?;
    let config = EmbeddedConfig { progress: progress.clone(), ..EmbeddedConfig::new(from) };
    let mut found = salvage::salvage(&config, &draft.path)?;
    for tree in ["keys", "blobs", "policy"] {
        draft.tree(tree)?;
    }
    draft.file("config.toml")?;
    let cleared = clear_addresses(&draft.path.join("config.toml"))?;
    id::ensure(&draft.path)?;
    let config = EmbeddedConfig { state: draft.path.clone(), ..config };
    if let Ok(journal) = journal_of(from) {
        offline::migrate(&config, journal)?;
    }
    offline::rebuild(&config, &**clock)?;
    if let Some(problem) = offline::check(&config, &**clock)?.problems.first() {
        return Err(refused(format!(
            "what is readable is not a whole store: {problem}; restore the last backup"
        )));
    }
    let store = open_store(&draft.path, clock)?;
    if signs_with_other_key(&draft.path, &store)? {
        let what = "the entry of the signing key is lost: `receipts verify` does not know that key, and reports what it signed";
        found.trouble.push(what.to_owned());
    }
    let open = pause(&store, clock.now(), clock, by)?;
    draft.put_in_place(into)?;
    Ok(SalvagedState { found, open, cleared })
}
