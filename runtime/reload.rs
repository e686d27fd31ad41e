//! Takes a changed policy over while the runtime runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::Parts;
use effectd_contracts::Digest;
use effectd_policy::PolicyDir;
use effectd_policy::dir::DirStamp;

use crate::error::Error;
use crate::policy_store;
use crate::spaces::Roots;
use crate::state::State;

/// How often the policy directory is looked at. A look is a few calls of `stat`.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads the policy anew and puts it in force. If it is faulty, the one in force stays. Each space keeps its root.
pub(crate) fn reload(state: &State, parts: &Parts, roots: &Roots) -> Result<Digest, Error> {
    let before = parts.policy().digest();
    let policy = policy_store::load(state, &*parts.store)?;
    let digest = policy.digest();
    if digest != before {
        parts.set_policy(Arc::new(policy));
        roots.load(&parts.policy());
        tracing::info!(%before, after = %digest, "the policy was changed");
    }
    Ok(digest)
}

/// Watches the policy directory until the runtime is gone.
pub(crate) async fn watch(state: State, parts: std::sync::Weak<Parts>, roots: Arc<Roots>) {
    let mut seen = stamp(state.policy_dir());
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        look.tick().await;
        let Some(parts) = parts.upgrade() else { return };
        let now = stamp(state.policy_dir());
        if now == seen {
            continue;
        }
        seen = now;
        if let Err(error) = reload(&state, &parts, &roots) {
            tracing::error!(%error, "the changed policy is not taken over; the one in force stays");
        }
    }
}

/// What the directory looks like; `None` while it cannot be read, which is a change like any other.
fn stamp(path: PathBuf) -> Option<DirStamp> {
    PolicyDir::stamp(path).ok()
}
