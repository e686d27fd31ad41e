//! Connects the gateway's routes with an open state.

use std::sync::Arc;

use effectd_actors::Services;
use effectd_actors::approvals::rejudge::{self, Under};
use effectd_actors::services::shadow::Report;
use effectd_bus::{StoreError, Swap};
use effectd_contracts::{ActionRequest, KeyEntry, Principal, Receipt, Timestamp};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::health::JobView;
use effectd_gateway::views::{Explanation, PolicyChange, PolicyFile, PolicyFiles, PolicyView, ReplayView};
use effectd_gateway::{Host, Receipts};
use effectd_policy::{Policy, Source, SourceFile};

use super::policy_queries;
use super::runtime::OpenState;
use crate::error::Error;
use crate::state::policy_store;
use crate::tool_registry;

impl OpenState {
    fn problem(&self, error: Error) -> Problem {
        policy_queries::problem(&error, &self.state)
    }

    #[expect(
        clippy::result_large_err,
        reason = "a problem is made once for a refused request, and is its answer"
    )]
    fn prepared(&self, change: PolicyChange, until: Option<Timestamp>) -> Result<(Swap, Policy), Problem> {
        let (store, registry) = (&*self.services.store, &self.services.registry());
        let change = policy_queries::change(change, until)?;
        policy_store::prepare(&self.state, store, registry, change).map_err(|error| self.problem(error))
    }
}

fn source(files: Vec<PolicyFile>) -> Result<Source, Error> {
    let files = files.into_iter().map(|PolicyFile { name, text }| SourceFile { name, text });
    Ok(Source::of_files(files.collect()).map_err(Box::new)?)
}

impl Host for OpenState {
    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    fn state_id(&self) -> &str {
        &self.state_id
    }

    fn metrics(&self) -> &prometheus::Registry {
        &self.metrics
    }

    fn policy(&self) -> PolicyView {
        let faults = self.files_status.fault().unwrap_or_default();
        let faults = faults.lines().map(str::to_owned).collect();
        PolicyView { faults, ..policy_queries::view(&self.services.policy(), true) }
    }

    fn policy_files_faulty(&self) -> bool {
        self.files_status.fault().is_some()
    }

    fn jobs(&self) -> Vec<JobView> {
        self.jobs.views(self.services.clock.now())
    }

    fn policy_files(&self) -> Result<PolicyFiles, Problem> {
        let policy = self.services.policy();
        policy_queries::files(&policy).map_err(|error| self.problem(error))
    }

    fn check_policy(&self) -> Result<PolicyView, Problem> {
        let policy = policy_store::load(&self.state, &*self.services.store, &self.services.registry())
            .map_err(|error| self.problem(error))?;
        let in_force = policy.digest() == self.services.policy().digest();
        let found = self.roots.survey(&policy, &self.roots.pins());
        Ok(policy_queries::with_roots(policy_queries::view(&policy, in_force), found))
    }

    fn reload_policy(&self) -> Result<PolicyView, Problem> {
        OpenState::reload_policy(self).map_err(|error| self.problem(error))?;
        Ok(Host::policy(self))
    }

    fn take_over_policy(&self) -> Result<PolicyView, Problem> {
        let before = self.roots.pins();
        Host::reload_policy(self)?;
        let found = self.roots.repin(&self.services.policy(), &before);
        let found = found.map_err(|error| self.problem(error))?;
        Ok(policy_queries::with_roots(Host::policy(self), found))
    }

    fn try_policy(&self, change: PolicyChange, until: Option<Timestamp>) -> Result<PolicyView, Problem> {
        let (_, policy) = self.prepared(change, until)?;
        let now = self.services.policy();
        let mut view = policy_queries::view(&policy, policy.digest() == now.digest());
        view.warnings.extend(policy.laxer_bands(&now));
        let before = rejudge::without_command(&now, &policy);
        let under = Under::policy(&before, &policy);
        let count = rejudge::count(&*self.services.store, self.services.clock.now(), under)
            .map_err(|error| self.problem(error.into()))?;
        Ok(PolicyView { released: count.released, ended: count.ended, ..view })
    }

    fn change_policy(&self, change: PolicyChange, until: Option<Timestamp>) -> Result<PolicyView, Problem> {
        let change = policy_queries::change(change, until)?;
        OpenState::change_policy(self, change).map_err(|error| self.problem(error))?;
        Ok(Host::policy(self))
    }

    fn prepare_policy(&self, change: PolicyChange) -> Result<Swap, Problem> {
        Ok(self.prepared(change, None)?.0)
    }

    fn check_shadow(&self, files: Vec<PolicyFile>) -> Result<String, Problem> {
        let source = source(files).map_err(|error| self.problem(error))?;
        self.compile_candidate(&source).map_err(|error| self.problem(error))?;
        Ok(source.digest().to_string())
    }

    fn replay(
        &self,
        files: Vec<PolicyFile>,
        org: Option<&str>,
        more: Receipts<'_>,
    ) -> Result<ReplayView, Problem> {
        let mut overlay = self.services.policy().overlay().clone();
        // The files choose the organisation of a space: who is of one does not learn another one's modes.
        overlay.org_modes.retain(|of, _| org.is_none_or(|org| org == of));
        let source = source(files).map_err(|error| self.problem(error))?;
        let policy = tool_registry::compile_policy(&source, &overlay, &self.services.registry());
        let policy = policy.map_err(|error| self.problem(Box::new(error).into()))?;
        policy_queries::replay(&policy, more)
    }

    fn start_shadow(&self, files: Vec<PolicyFile>) -> Result<Option<String>, Problem> {
        let started = source(files).and_then(|source| self.start_candidate(source));
        Ok(started.map_err(|error| self.problem(error))?.map(|digest| digest.to_string()))
    }

    fn stop_shadow(&self) -> Result<Option<Report>, Problem> {
        self.stop_candidate().map_err(|error| self.problem(error))
    }

    fn rotate_key(&self) -> Result<KeyEntry, Problem> {
        let rotated = tokio::runtime::Handle::current().block_on(OpenState::rotate_key(self));
        rotated.map_err(|error| {
            if let Error::Store(StoreError::Invalid(why)) = error {
                Problem::of(Kind::NoMoreKeys, why)
            } else {
                self.problem(error)
            }
        })
    }

    fn explain_request(
        &self,
        request: &ActionRequest,
        principal: &Principal,
    ) -> Result<Explanation, Problem> {
        policy_queries::request(&self.services, request, principal)
            .map_err(|failure| Problem::failed(&failure))
    }

    fn explain_receipt(&self, receipt: &Receipt) -> Result<Explanation, Problem> {
        policy_queries::receipt(receipt, &self.services.policy())
    }
}
