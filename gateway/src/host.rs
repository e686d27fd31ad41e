//! The daemon as the gateway sees it: its services, its policy, and how far its shutdown is.

use std::sync::Arc;

use effectd_actors::Services;
use effectd_actors::services::shadow::Report;
use effectd_bus::Swap;
use effectd_contracts::{ActionRequest, KeyEntry, Principal, Receipt, Timestamp};

use crate::problem::Problem;
use crate::views::health::JobView;
use crate::views::policy::{Explanation, PolicyChange, PolicyFile, PolicyFiles, PolicyView, ReplayView};

/// Receipts, some at a time.
pub type Receipts<'a> = &'a mut dyn FnMut(&ReplayView) -> Result<Option<Vec<Receipt>>, Problem>;

/// What the gateway needs from the daemon. The methods may block.
pub trait Host: Send + Sync + 'static {
    /// The services of the pipeline.
    fn services(&self) -> &Arc<Services>;
    /// The id of the state directory.
    fn state_id(&self) -> &str;
    /// The registry that `/metrics` shows.
    fn metrics(&self) -> &prometheus::Registry;
    /// The policy in force.
    fn policy(&self) -> PolicyView;
    /// Whether the policy's files have a fault and an earlier policy decides.
    fn policy_files_faulty(&self) -> bool;
    /// The jobs that the daemon does by itself.
    fn jobs(&self) -> Vec<JobView>;
    /// The files in force, and the changes beside them.
    fn policy_files(&self) -> Result<PolicyFiles, Problem>;
    /// Checks the policy's files with the overlay, and puts nothing in force.
    fn check_policy(&self) -> Result<PolicyView, Problem>;
    /// Puts the policy's files in force. Each space keeps its root.
    fn reload_policy(&self) -> Result<PolicyView, Problem>;
    /// Puts the policy's files in force, and accepts the present folders as the roots of the spaces.
    fn take_over_policy(&self) -> Result<PolicyView, Problem>;
    /// The policy as a change would make it; nothing is changed. Only a mode can end.
    fn try_policy(&self, change: PolicyChange, until: Option<Timestamp>) -> Result<PolicyView, Problem>;
    /// Stores a change in the overlay and puts it in force. The change is durable when this returns. Only a mode can end.
    fn change_policy(&self, change: PolicyChange, until: Option<Timestamp>) -> Result<PolicyView, Problem>;
    /// Checks a change and returns the write that stores it. The caller makes that write together with another one, and then
    /// calls [`Host::reload_policy`].
    fn prepare_policy(&self, change: PolicyChange) -> Result<Swap, Problem>;
    /// Checks the files of a candidate policy like those of a policy, and returns their digest.
    fn check_shadow(&self, files: Vec<PolicyFile>) -> Result<String, Problem>;
    /// Decides again what receipts record, under the policy that these files would be. Of the changes beside the files, modes count of
    /// this organisation alone, if one is named. `more` gets what was found so far, and has the next receipts until it ends.
    fn replay(
        &self,
        files: Vec<PolicyFile>,
        org: Option<&str>,
        more: Receipts<'_>,
    ) -> Result<ReplayView, Problem>;
    /// Lets a candidate policy judge beside the one in force, also after a restart, and returns the digest of its files; `None` if
    /// it judges already.
    fn start_shadow(&self, files: Vec<PolicyFile>) -> Result<Option<String>, Problem>;
    /// Ends the candidate policy, and returns what it has judged; `None` if there is none.
    fn stop_shadow(&self) -> Result<Option<Report>, Problem>;
    /// Creates the signing key for all signatures from now on. The key is durable when this returns.
    fn rotate_key(&self) -> Result<KeyEntry, Problem>;
    /// How the policy would decide about a request of this principal.
    fn explain_request(&self, request: &ActionRequest, principal: &Principal)
    -> Result<Explanation, Problem>;
    /// How the policy would decide now about the facts in a receipt.
    fn explain_receipt(&self, receipt: &Receipt) -> Result<Explanation, Problem>;
}

/// How far the daemon's shutdown is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Open,
    /// No new connections; requests in progress may still be answered.
    Closing,
    /// The pipeline has stopped: only responses in progress may end, within seconds.
    Closed,
}
