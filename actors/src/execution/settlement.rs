//! Settlement: finding out whether an effect that may have happened did happen, as the tool declares.
//!
//! `safe` runs the tool again, `probe` asks the tool, `never` leaves it to a person.

use effectd_contracts::{Code, Effects, Failure, Phase, ProbeVerdict, Repeat, ToolOutput};

use super::attempt::Attempted;
use super::steps::{Execution, Over};
use crate::claims::intent::Intent;
use crate::effects::snapshot;
use crate::effects::undeclared::{self, UndeclaredEffects};
use crate::failpoint::hit;

/// The result of a settlement.
pub(crate) enum Settled {
    /// The tool may run again: repeating is safe, or the tool says that the effect did not happen.
    MayRun,
    Done,
    /// A person must find out.
    Unknown(&'static str),
    /// The runtime stops.
    Abandoned,
}

impl Execution<'_> {
    /// Settles an interrupted action by the declaration under which it was begun. If the tool was replaced and now declares
    /// otherwise, neither declaration covers a further run: a person must look.
    pub(crate) async fn settle_interrupted(&mut self, intent: Option<&Intent>) -> Result<(), Over> {
        let (services, action) = (self.services, self.action);
        let repeat = action.state.gated().repeat();
        // Puts back what the interrupted run had set aside before the probe looks; no other tool is blamed for that.
        let _call = undeclared::enter(services, self.calls, action, &self.prepared);
        let cleaned = snapshot::remove_drafts(&services.files, action, &self.prepared).await;
        self.runs.cleaned_up.extend(cleaned);
        if intent.is_some_and(|intent| intent.transaction) && self.prepared.before.is_some() {
            return Err(Box::pin(self.settle_transaction()).await);
        }
        let settled = match intent {
            None => Settled::Unknown("the stored intent can no longer be read"),
            Some(intent) if intent.dry_run => Settled::MayRun,
            // The same version has other rules if the policy has changed what a named command may write.
            Some(intent) if intent.repeat != repeat => {
                Settled::Unknown("the tool was replaced by one with other rules for recovery")
            }
            Some(intent) => match (self.settle(intent.repeat).await, intent.repeat) {
                // A dry run now would report that nothing changed, which is not known.
                (Settled::MayRun, Repeat::Safe | Repeat::Never) if self.dry_run().is_some() => {
                    Settled::Unknown("the action began before effects were paused")
                }
                (settled, Repeat::Safe | Repeat::Probe | Repeat::Never) => settled,
            },
        };
        self.go_on(settled, None).await
    }

    /// Settles a failed attempt of this execution. One with an invalid result has run, and needs no settlement.
    pub(crate) async fn settle_after(&mut self, failure: &Failure) -> Settled {
        if failure.code == Code::ResultInvalid {
            return Settled::MayRun;
        }
        self.settle(self.action.state.gated().repeat()).await
    }

    async fn settle(&mut self, repeat: Repeat) -> Settled {
        match repeat {
            Repeat::Safe => Settled::MayRun,
            Repeat::Never => {
                Settled::Unknown("the tool must not be repeated, and effectd cannot tell whether it ran")
            }
            Repeat::Probe => {
                hit("executor.before_probe", &self.action.ticket.action_id).await;
                match self.probe().await {
                    Some(ProbeVerdict::Done) => Settled::Done,
                    Some(ProbeVerdict::NotDone) => {
                        // The service has said so; of files, others may have changed them meanwhile.
                        self.may_have_effect &= !self.is_wired();
                        Settled::MayRun
                    }
                    Some(ProbeVerdict::CannotSay) => {
                        Settled::Unknown("the tool's probe cannot tell whether it ran")
                    }
                    None => Settled::Abandoned,
                }
            }
        }
    }

    /// Continues if the tool may run again; otherwise ends the execution. `after` is the failure of the attempt.
    pub(crate) async fn go_on(&mut self, settled: Settled, after: Option<&Failure>) -> Result<(), Over> {
        match settled {
            Settled::MayRun => Ok(()),
            // The effect happened, but the reply of that run is lost.
            Settled::Done => {
                let found = ToolOutput::new(serde_json::json!({ "settled_by": "probe" }), None);
                Err(Box::pin(self.done(found)).await)
            }
            Settled::Unknown(why) => Err(self.end_unknown(unknown(why, after)).await),
            Settled::Abandoned => Err(None),
        }
    }

    /// Ends an execution of unknown outcome. A named command changes only the paths that it declares, and has ended: what it changed
    /// there is known, and can be undone, whatever it declares now.
    async fn end_unknown(&mut self, failure: Failure) -> Over {
        if !self.action.state.gated().is_confined_to_paths() || self.prepared.before.is_none() {
            return self.fail(failure);
        }
        let left = snapshot::observe(&self.services.files, self.action, &self.prepared).await;
        self.fail_with(failure, left)
    }

    /// Switches a tool off that had undeclared effects.
    pub(crate) async fn quarantine(&self, undeclared: &UndeclaredEffects) {
        let services = self.services;
        services.metrics.quarantined_tools.inc();
        undeclared.quarantine(&*services.store, services.clock.now(), self.action).await;
        services.tools_changed.send_replace(());
    }

    /// Ends the execution of a tool that had undeclared effects. The tool is disabled, and does not run again.
    pub(crate) async fn end_undeclared(
        &mut self,
        attempted: Attempted,
        seen: Option<Effects>,
        undeclared: &UndeclaredEffects,
    ) -> Over {
        let services = self.services;
        self.quarantine(undeclared).await;
        let failure = match attempted {
            Attempted::Done(_) => undeclared.failure(),
            Attempted::Failed(failure) => undeclared.added_to(failure),
            Attempted::Unclear(failure) => match self.settle_after(&failure).await {
                Settled::Unknown(why) => undeclared.added_to(unknown(why, Some(&failure))),
                Settled::Done => undeclared.failure(),
                Settled::MayRun => undeclared.added_to(failure),
                Settled::Abandoned => return None,
            },
            Attempted::Abandoned => return None,
        };
        let seen = match seen {
            Some(seen) => seen,
            None => snapshot::observe(&services.files, self.action, &self.prepared).await,
        };
        self.fail_with(failure, undeclared.effects(seen))
    }
}

pub(crate) fn unknown(why: &str, after: Option<&Failure>) -> Failure {
    let ended = after.map(|failure| format!("; it ended with {failure}")).unwrap_or_default();
    Failure::new(Code::OutcomeUnknown, Phase::Settle, format!("{why}{ended}"))
}
