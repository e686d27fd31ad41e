//! Puts a changed policy in force while the runtime runs, and says whether the files on disk are in force.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::Services;
use effectd_actors::approvals::rejudge;
use effectd_contracts::Digest;
use effectd_policy::PolicyDir;
use effectd_policy::dir::DirStamp;
use parking_lot::Mutex;

use super::policy_queries::plain_text;
use crate::error::{Error, chain};
use crate::state::State;
use crate::state::policy_store;
use crate::state::spaces::Roots;

/// How often the policy directory is checked; a check costs a few calls of `stat`.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Why the policy's files are not in force, if so.
#[derive(Default)]
pub(crate) struct FilesStatus(Mutex<Option<String>>);

impl FilesStatus {
    pub(crate) fn fault(&self) -> Option<String> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, fault: Option<String>) {
        *self.0.lock() = fault;
    }
}

/// Whether the policy's files are at fault, and not the store or the machine.
pub(crate) fn is_of_files(error: &Error) -> bool {
    matches!(error, Error::Policy(_) | Error::StateInSpace { .. })
}

/// Reads the policy again and puts it in force. A faulty policy is refused and the current one stays. A space whose path is
/// unchanged keeps its pinned root.
pub(crate) fn reload(
    state: &State,
    services: &Services,
    roots: &Roots,
    status: &FilesStatus,
) -> Result<Digest, Error> {
    let before = services.policy().digest();
    let policy = match policy_store::load(state, &*services.store, &services.registry()) {
        Ok(policy) => Arc::new(policy),
        Err(error) => {
            if is_of_files(&error) {
                status.set(Some(plain_text(&error, state)));
            }
            return Err(error);
        }
    };
    status.set(None);
    let digest = policy.digest();
    if digest != before {
        services.set_policy(policy.clone());
        roots.load(&policy);
        policy_store::keep_good(&*services.store, policy.source());
        tracing::info!(%before, after = %digest, "the policy was changed");
    }
    Ok(digest)
}

/// Checks the policy directory for changes since `seen` until the runtime is gone, and ends what waits for an approval and is denied now.
pub(crate) async fn watch(
    state: State,
    services: std::sync::Weak<Services>,
    roots: Arc<Roots>,
    status: Arc<FilesStatus>,
    mut seen: Option<DirStamp>,
) {
    let mut judged = None;
    let mut look = tokio::time::interval(CHECK_EVERY);
    loop {
        look.tick().await;
        let Some(services) = services.upgrade() else {
            return;
        };
        let now = stamp(state.policy_dir());
        if now != seen {
            seen = now;
            if let Err(error) = reload(&state, &services, &roots, &status) {
                tracing::error!(
                    error = chain(&error),
                    "the changed policy does not take effect; the current one stays"
                );
            }
        }
        // A policy that a command, a signal or a restart put in force counts, too.
        let policy = services.policy();
        if judged != Some(policy.digest()) {
            match rejudge::end_denied(&services, &policy).await {
                Ok(_) => judged = Some(policy.digest()),
                Err(error) => tracing::warn!(%error, "pending approvals are judged again later"),
            }
        }
    }
}

/// A fingerprint of the directory; `None` while it cannot be read, which counts as a change.
pub(super) fn stamp(path: &Path) -> Option<DirStamp> {
    PolicyDir::stamp(path).ok()
}
