//! What stands behind the door.

use std::sync::Arc;

use effectd_actors::{Parts, Swap};
use effectd_bus::StoreError;
use effectd_contracts::{ActionRequest, KeyEntry, Principal, Receipt};
use effectd_gateway::Host;
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::{Explanation, PolicyChange, PolicyView};

use crate::error::Error;
use crate::judge;
use crate::policy_store;
use crate::runtime::Opened;

impl Host for Opened {
    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    fn metrics(&self) -> &prometheus::Registry {
        &self.metrics
    }

    fn policy(&self) -> PolicyView {
        judge::view(&self.parts.policy(), true)
    }

    fn check_policy(&self) -> Result<PolicyView, Problem> {
        let policy = policy_store::load(&self.state, &*self.parts.store)
            .map_err(|error| judge::problem(&error, &self.state))?;
        let in_force = policy.digest() == self.parts.policy().digest();
        let found = self.roots.survey(&policy, &self.roots.pins());
        Ok(judge::with_roots(judge::view(&policy, in_force), found))
    }

    fn reload_policy(&self) -> Result<PolicyView, Problem> {
        Opened::reload_policy(self).map_err(|error| judge::problem(&error, &self.state))?;
        Ok(Host::policy(self))
    }

    fn take_over_policy(&self) -> Result<PolicyView, Problem> {
        let before = self.roots.pins();
        Host::reload_policy(self)?;
        let found = self.roots.repin(&self.parts.policy(), &before);
        let found = found.map_err(|error| judge::problem(&error, &self.state))?;
        Ok(judge::with_roots(Host::policy(self), found))
    }

    fn try_policy(&self, change: PolicyChange) -> Result<PolicyView, Problem> {
        let tried = policy_store::tried(&self.state, &*self.parts.store, judge::change(change));
        let policy = tried.map_err(|error| judge::problem(&error, &self.state))?;
        let in_force = policy.digest() == self.parts.policy().digest();
        Ok(judge::view(&policy, in_force))
    }

    fn change_policy(&self, change: PolicyChange) -> Result<PolicyView, Problem> {
        Opened::change_policy(self, judge::change(change))
            .map_err(|error| judge::problem(&error, &self.state))?;
        Ok(Host::policy(self))
    }

    fn prepare_policy(&self, change: PolicyChange) -> Result<Swap, Problem> {
        policy_store::prepare(&self.state, &*self.parts.store, judge::change(change))
            .map_err(|error| judge::problem(&error, &self.state))
    }

    fn rotate_key(&self) -> Result<KeyEntry, Problem> {
        let rotated = tokio::runtime::Handle::current().block_on(Opened::rotate_key(self));
        rotated.map_err(|error| {
            if let Error::Store(StoreError::Invalid(why)) = error {
                Problem::of(Kind::NoMoreKeys, why)
            } else {
                judge::problem(&error, &self.state)
            }
        })
    }

    fn explain_request(
        &self,
        request: &ActionRequest,
        principal: &Principal,
    ) -> Result<Explanation, Problem> {
        let parts = &self.parts;
        judge::request(
            request,
            &parts.registry,
            &parts.policy(),
            principal,
            (parts.clock.now(), &*parts.store),
        )
        .map_err(|failure| Problem::failed(&failure))
    }

    fn explain_receipt(&self, receipt: &Receipt) -> Result<Explanation, Problem> {
        judge::receipt(receipt, &self.parts.policy())
    }
}
