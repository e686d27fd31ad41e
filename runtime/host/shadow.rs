//! Starts, resumes and ends the candidate policy that judges beside the one in force.

use effectd_actors::services::shadow::Report;
use effectd_contracts::Digest;
use effectd_policy::{Policy, Source};

use super::policy_queries::plain_text;
use super::runtime::OpenState;
use crate::error::{Error, chain};
use crate::state::policy_store::{self, Candidate};

impl OpenState {
    /// Checks a candidate like a policy that is to be put in force.
    pub(super) fn compile_candidate(&self, source: &Source) -> Result<Policy, Error> {
        let overlay = self.services.policy().overlay().clone();
        self.state.compile_policy(source, &overlay, &self.services.registry())
    }

    /// Starts a candidate, which is durable when this returns. `None` if it judges already; one that could not be compiled at a restart
    /// does not.
    pub(super) fn start_candidate(&self, source: Source) -> Result<Option<Digest>, Error> {
        let (services, digest) = (&self.services, source.digest());
        let policy = self.compile_candidate(&source)?;
        let _changing = self.candidate_changes.lock();
        let judges = |report: Report| report.digest == digest && report.fault.is_none();
        if services.shadow.report().is_some_and(judges) {
            return Ok(None);
        }
        let since = services.clock.now();
        policy_store::set_candidate(&*services.store, Some(&Candidate { source, since }))?;
        services.shadow.start(Ok(policy), digest, since, since);
        services.shadow.lay_over(|| services.policy());
        Ok(Some(digest))
    }

    /// Ends the candidate, and returns what it has judged. `None` if there is none.
    pub(super) fn stop_candidate(&self) -> Result<Option<Report>, Error> {
        let _changing = self.candidate_changes.lock();
        if self.services.shadow.report().is_none() {
            return Ok(None);
        }
        policy_store::set_candidate(&*self.services.store, None)?;
        Ok(self.services.shadow.stop())
    }

    /// Lets the stored candidate judge after a restart, if there is one. Its examples are not tried again. It never prevents a start.
    pub(super) fn resume_candidate(&self) {
        let services = &self.services;
        match policy_store::candidate(&*services.store) {
            Ok(None) => {}
            Ok(Some(Candidate { source, since })) => {
                let policy = self.state.load_policy_again(&source, services.policy().overlay());
                let policy = policy.map_err(|error| plain_text(&error, &self.state));
                services.shadow.start(policy, source.digest(), since, services.clock.now());
            }
            Err(error) => tracing::error!(
                error = chain(&error),
                "the candidate policy cannot be read, and judges nothing; start it again"
            ),
        }
    }
}
