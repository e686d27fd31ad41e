//! Puts a changed policy in force while the runtime runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::Services;
use effectd_contracts::Digest;
use effectd_policy::PolicyDir;
use effectd_policy::dir::DirStamp;

use crate::error::{Error, chain};
use crate::state::State;
use crate::state::policy_store;
use crate::state::spaces::Roots;

/// How often the policy directory is checked; a check costs a few calls of `stat`.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Reads the policy again and puts it in force. A faulty policy is refused and the current one stays. A space whose path is
/// unchanged keeps its pinned root.
pub(crate) fn reload(state: &State, services: &Services, roots: &Roots) -> Result<Digest, Error> {
    let before = services.policy().digest();
    let policy = policy_store::load(state, &*services.store)?;
    let digest = policy.digest();
    if digest != before {
        services.set_policy(Arc::new(policy));
        roots.load(&services.policy());
        tracing::info!(%before, after = %digest, "the policy was changed");
    }
    Ok(digest)
}

/// Checks the policy directory for changes until the runtime is gone.
pub(crate) async fn watch(state: State, services: std::sync::Weak<Services>, roots: Arc<Roots>) {
    let mut seen = stamp(state.policy_dir());
    let mut look = tokio::time::interval(CHECK_EVERY);
    loop {
        look.tick().await;
        let Some(services) = services.upgrade() else {
            return;
        };
        let now = stamp(state.policy_dir());
        if now == seen {
            continue;
        }
        seen = now;
        if let Err(error) = reload(&state, &services, &roots) {
            tracing::error!(
                error = chain(&error),
                "the changed policy does not take effect; the current one stays"
            );
        }
    }
}

/// A fingerprint of the directory; `None` while it cannot be read, which counts as a change.
fn stamp(path: &Path) -> Option<DirStamp> {
    PolicyDir::stamp(path).ok()
}
