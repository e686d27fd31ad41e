//! Adds and removes plugins. What is added is what was shown: the files are read again, and compared.

use std::sync::Arc;

use effectd_bus::{Expect, StoreError};
use effectd_contracts::plugin::Pinned;
use effectd_contracts::{Digest, Principal};

use crate::approvals::repository::Step;
use crate::limits::PLUGINS_MAX;
use crate::services::Services;
use crate::services::plugins::{self, Added, Known, PLUGINS};

/// The package, if it can be added and is what was shown; and whether it is another one than was added before.
pub(super) fn check(
    services: &Services,
    name: &str,
    shown: &Digest,
) -> Result<(Arc<Pinned>, bool), StoreError> {
    let Known { added, now, .. } = services.plugin(name)?;
    let invalid = |why: String| StoreError::Invalid(format!("the package {name} cannot be added: {why}"));
    let pinned = Arc::new(now.map_err(|why| invalid(why.to_string()))?.pinned);
    if pinned.digest() != *shown {
        let why = format!("the package {name} is not what was shown: look at it again");
        return Err(StoreError::StateConflict(why));
    }
    plugins::check(&pinned, &services.registry(), &services.policy()).map_err(invalid)?;
    let is_full = added.is_none() && plugins::added(&*services.store)?.len() >= PLUGINS_MAX;
    if is_full {
        return Err(StoreError::StateConflict(format!("there are {PLUGINS_MAX} plugins; remove one")));
    }
    let changed = added.is_none_or(|added| added.pinned != pinned);
    Ok((pinned, changed))
}

/// Stores a package that was checked.
pub(super) async fn add(services: &Services, pinned: Arc<Pinned>, by: Principal) -> Result<(), StoreError> {
    let (name, mut step) = (pinned.manifest.name.clone(), Step::default());
    step.put(PLUGINS, &name, Expect::Any, &Added { pinned, by, at: services.clock.now() })?;
    commit(services, step).await
}

/// A plugin that was added.
pub(super) fn known(services: &Services, name: &str) -> Result<Added, StoreError> {
    services.plugin(name)?.added.ok_or(StoreError::NotFound { what: "the plugin" })
}

pub(super) async fn remove(services: &Services, name: &str) -> Result<(), StoreError> {
    known(services, name)?;
    let mut step = Step::default();
    step.delete(PLUGINS, name, Expect::Any)?;
    commit(services, step).await
}

async fn commit(services: &Services, step: Step) -> Result<(), StoreError> {
    let committed = step.commit(&*services.store).await;
    // Also after an error: the change may be written.
    services.equip();
    committed.map(drop)
}
