//! Connects the gateway's routes with an open state.

use std::sync::Arc;

use effectd_actors::Services;
use effectd_bus::{StoreError, Swap};
use effectd_contracts::{ActionRequest, KeyEntry, Principal, Receipt};
use effectd_gateway::Host;
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::{Explanation, PolicyChange, PolicyView};

use super::policy_queries;
use super::runtime::OpenState;
use crate::error::Error;
use crate::state::policy_store;

impl OpenState {
    fn problem(&self, error: Error) -> Problem {
        policy_queries::problem(&error, &self.state)
    }
}

impl Host for OpenState {
    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    fn metrics(&self) -> &prometheus::Registry {
        &self.metrics
    }

    fn policy(&self) -> PolicyView {
        policy_queries::view(&self.services.policy(), true)
    }

    fn check_policy(&self) -> Result<PolicyView, Problem> {
        let policy =
            policy_store::load(&self.state, &*self.services.store).map_err(|error| self.problem(error))?;
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

    fn try_policy(&self, change: PolicyChange) -> Result<PolicyView, Problem> {
        let tried = policy_store::tried(&self.state, &*self.services.store, policy_queries::change(change));
        let policy = tried.map_err(|error| self.problem(error))?;
        let in_force = policy.digest() == self.services.policy().digest();
        Ok(policy_queries::view(&policy, in_force))
    }

    fn change_policy(&self, change: PolicyChange) -> Result<PolicyView, Problem> {
        OpenState::change_policy(self, policy_queries::change(change))
            .map_err(|error| self.problem(error))?;
        Ok(Host::policy(self))
    }

    fn prepare_policy(&self, change: PolicyChange) -> Result<Swap, Problem> {
        policy_store::prepare(&self.state, &*self.services.store, policy_queries::change(change))
            .map_err(|error| self.problem(error))
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
        let services = &self.services;
        policy_queries::request(
            request,
            &services.registry,
            &services.policy(),
            principal,
            (services.clock.now(), &*services.store),
        )
        .map_err(|failure| Problem::failed(&failure))
    }

    fn explain_receipt(&self, receipt: &Receipt) -> Result<Explanation, Problem> {
        policy_queries::receipt(receipt, &self.services.policy())
    }
}
