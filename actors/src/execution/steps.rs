//! The steps of one execution: prepare, settle an interrupted run, ask the breaker, then attempt until the tool succeeds or may
//! not run again.
//!
//! [`Execution::steps`] has the order. Two rules come first: no second child starts before the first is proven dead, and an
//! effect that may have happened is repeated only if the tool declares that this is safe (`settlement.rs`).

use std::convert::Infallible;
use std::time::Duration;

use effectd_contracts::{
    BaseProfile, CallMode, Check, Code, Effects, Failure, Monotonic, Origin, Outcome, PathSnapshot, Phase,
    Preset, Repeat, ToolOutput, Undeclared,
};

use super::attempt::{Attempted, Tried, has_changed};
use super::call::has_callers_deadline;
use super::retry::Budget;
use super::settlement::unknown;
use crate::action::proofs::{DryRun, Earlier, Ended, Runs};
use crate::action::{Action, Claimed};
use crate::claims::intent::Intent;
use crate::control::breaker::{Report, counts};
use crate::control::breakers::Pass;
use crate::effects::active_calls::ActiveCalls;
use crate::effects::snapshot::{self, Prepared};
use crate::failpoint::hit;
use crate::services::Services;

/// The end of an execution; `None` if the runtime stops and the next start settles the action.
pub(crate) type Over = Option<Box<Ended>>;

/// One claimed action while it is executed.
pub(crate) struct Execution<'a> {
    pub(crate) services: &'a Services,
    pub(crate) calls: &'a ActiveCalls,
    pub(crate) action: &'a Action<Claimed>,
    pub(crate) prepared: Prepared,
    pub(crate) deadline: Monotonic,
    pub(crate) runs: Runs,
    /// Whether a run may have had its effect.
    pub(crate) may_have_effect: bool,
    /// The changes that were observed after a failed run.
    changed: Option<Effects>,
    /// The files that the plan forbids, as they were before the run.
    pub(crate) forbidden: Vec<PathSnapshot>,
    /// What the runs of a plan's tool changed without declaring it.
    pub(crate) undeclared: Vec<Undeclared>,
    /// What was observed right after the last run of a plan's tool: what is otherwise by now, somebody else has changed.
    pub(crate) seen: Option<Effects>,
    /// What a repair is told.
    pub(crate) failed_checks: Vec<Check>,
}

impl<'a> Execution<'a> {
    pub(crate) fn new(
        services: &'a Services,
        calls: &'a ActiveCalls,
        action: &'a Action<Claimed>,
        deadline: Monotonic,
    ) -> Self {
        let may_have_effect = match action.state.earlier() {
            Earlier::No => false,
            Earlier::Interrupted(intent) => {
                // The policy may have changed since: a command that only reads now may have begun as another.
                let only_reads = action.state.gated().is_reading_command();
                let is_harmless =
                    |intent: &Intent| intent.dry_run || (only_reads && intent.repeat == Repeat::Safe);
                !intent.as_ref().is_some_and(is_harmless)
            }
        };
        Self {
            services,
            calls,
            action,
            prepared: Prepared::default(),
            deadline,
            runs: Runs::default(),
            may_have_effect,
            changed: None,
            forbidden: Vec::new(),
            undeclared: Vec::new(),
            seen: None,
            failed_checks: Vec::new(),
        }
    }

    pub(crate) fn dry_run(&self) -> Option<DryRun> {
        self.action.state.gated().dry_run()
    }

    /// Whether the tool makes changes, or only says what it would do.
    pub(crate) fn mode(&self) -> CallMode {
        match self.dry_run() {
            Some(_) => CallMode::DryRun,
            None => CallMode::Run,
        }
    }

    /// Runs the steps until one of them ends the execution. Rare steps are boxed, so that the future stays small.
    pub(crate) async fn steps(&mut self) -> Result<Infallible, Over> {
        // An interrupted action is finished even if the breaker is open.
        let begun = self.may_have_effect;
        self.prepare().await?;
        if let Earlier::Interrupted(intent) = self.action.state.earlier() {
            Box::pin(self.settle_interrupted(intent.as_ref())).await?;
        }
        let request = &self.action.request;
        let breakers = &self.services.control.breakers;
        let gated = self.action.state.gated();
        let spec = gated.tool().spec();
        let blame = Blame {
            has_own_deadline: has_callers_deadline(request, gated),
            runs_programs: spec.sandbox_profile.base == BaseProfile::Exec,
            is_of_org: Preset::of(spec.tool_id.source()).is_some(),
        };
        let org = self.action.ticket.org.as_ref().filter(|_| blame.is_of_org);
        let passes = match breakers.ask(request, &spec.tool_id, org) {
            Ok(passes) => passes,
            Err(_) if begun || self.action.ticket.origin.is_undo() => Vec::new(),
            // No dead letter: an open breaker may refuse many actions, and callers can simply ask again.
            Err(failure) => return Err(self.end(Err(failure), Outcome::BreakerOpen, self.left(), false)),
        };
        let mut budget = Budget::new(request.qos.retries());
        loop {
            let tried = self.attempt().await;
            report(&passes, &tried.attempted, blame).await;
            let failure = self.judge(tried).await?;
            let took = self.runs.attempts.last().map(|attempt| attempt.exec_ms.micros());
            let took = Duration::from_micros(took.unwrap_or_default());
            let left = self.deadline.since(self.services.clock.monotonic());
            let pause = budget.next_pause(took, left, failure.retry_after_ms.map(Duration::from_millis));
            let opened = passes.iter().any(Pass::is_open);
            let Some(pause) = pause.filter(|_| !opened) else {
                return Err(self.fail(failure));
            };
            self.note_retry(&failure);
            tokio::time::sleep(pause).await;
        }
    }

    /// Observes what an item of a batch has left that failed after it may have had its effect: its child is dead, and a tool that can be
    /// undone declares all that it changes. So it is undone with the items before it.
    pub(crate) async fn observe_left(&self, over: Over) -> Over {
        let mut ended = over?;
        let is_item = matches!(self.action.ticket.origin, Origin::Batch { undo: false, .. });
        if is_item && ended.effects == Effects::Possible && self.action.state.gated().tool().spec().reversible
        {
            let left = snapshot::observe(&self.services.files, self.action, &self.prepared).await;
            if let Effects::Observed(_) | Effects::None = left {
                ended.effects = left;
            }
        }
        Some(ended)
    }

    /// Takes the snapshot before the run, and stores pre-images.
    async fn prepare(&mut self) -> Result<(), Over> {
        match snapshot::prepare(&self.services.files, self.action).await {
            Ok(prepared) => self.prepared = prepared,
            Err(_) if self.may_have_effect => {
                return Err(self.fail(unknown("the changes cannot be inspected", None)));
            }
            Err(failure) => return Err(self.fail(failure)),
        }
        // An interrupted plan is rolled back whatever it did, and must not fail before that.
        if *self.action.state.earlier() == Earlier::No {
            self.forbidden = self.forbidden_now().await.map_err(|failure| self.fail(failure))?;
        }
        self.action.step("prepared");
        hit("executor.after_prepare", &self.action.ticket.action_id).await;
        Ok(())
    }

    /// Ends the execution by the outcome of an attempt, or returns the failure after which the tool may run again.
    async fn judge(&mut self, tried: Tried) -> Result<Failure, Over> {
        let Tried { attempted, seen, undeclared } = tried;
        if let Some(undeclared) = undeclared {
            return Err(Box::pin(self.end_undeclared(attempted, seen, &undeclared)).await);
        }
        let failure = match attempted {
            Attempted::Done(output) => {
                return Err(match (self.dry_run(), seen) {
                    (Some(dry_run), _) => self.end(Ok(output), dry_run.outcome(), Effects::Unobserved, false),
                    (None, Some(seen)) => self.end(Ok(output), Outcome::Executed, seen, false),
                    (None, None) => Box::pin(self.done(output)).await,
                });
            }
            Attempted::Failed(failure) => {
                // The tool says that it had no effect; the receipt still names observed changes, since another process may have made them.
                self.changed = seen.filter(has_changed).or(self.changed.take());
                failure
            }
            Attempted::Unclear(failure) => {
                if self.dry_run().is_none() {
                    self.may_have_effect |= !self.action.state.gated().is_reading_command();
                    let settled = Box::pin(self.settle_after(&failure)).await;
                    self.go_on(settled, Some(&failure)).await?;
                }
                failure
            }
            Attempted::Abandoned => return Err(None),
        };
        // A tool that replies `done` with an invalid result has run: the receipt says so, and it is not retried.
        if failure.retryable && failure.code != Code::ResultInvalid {
            Ok(failure)
        } else {
            Err(self.fail(failure))
        }
    }

    fn note_retry(&self, failure: &Failure) {
        let (ticket, retry) = (&self.action.ticket, self.runs.attempts.len());
        let tool = &self.action.state.gated().tool().spec().tool_id;
        let retries = &self.services.metrics.retries;
        retries.with_label_values(&[tool.as_str()]).inc();
        tracing::debug!(parent: &ticket.span, code = %failure.code, retry, "retry");
        ticket.span.record("retry", retry);
    }

    /// Ends the execution of an action whose effect happened; observes the changes first.
    pub(crate) async fn done(&mut self, output: ToolOutput) -> Over {
        let effects = snapshot::observe(&self.services.files, self.action, &self.prepared).await;
        self.end(Ok(output), Outcome::Executed, effects, false)
    }

    pub(crate) fn fail(&mut self, failure: Failure) -> Over {
        let left = self.left();
        self.fail_with(failure, left)
    }

    pub(crate) fn fail_with(&mut self, failure: Failure, effects: Effects) -> Over {
        // Whoever sent the batch sends it again, whole.
        let is_item = matches!(self.action.ticket.origin, Origin::Batch { .. });
        let dead_letter = failure.retryable && !is_item || failure.code == Code::OutcomeUnknown;
        let outcome = failure.code.outcome();
        self.end(Err(failure), outcome, effects, dead_letter)
    }

    pub(crate) fn end(
        &mut self,
        result: Result<ToolOutput, Failure>,
        outcome: Outcome,
        effects: Effects,
        dead_letter: bool,
    ) -> Over {
        let (result, outcome) = match (self.protected_change(&effects), result) {
            (None, result) => (result, outcome),
            (Some(why), Ok(_)) => {
                let failure = Failure::new(Code::PathDenied, Phase::Capture, why);
                let outcome = failure.code.outcome();
                (Err(failure), outcome)
            }
            (Some(why), Err(mut failure)) => {
                failure.message.push_str("; ");
                failure.message.push_str(&why);
                (Err(failure), outcome)
            }
        };
        Some(Box::new(Ended {
            result,
            outcome,
            effects,
            dead_letter,
            runs: std::mem::take(&mut self.runs),
            marks: None,
        }))
    }

    /// Why the changes are a failure: the run has changed a protected path that it did not declare, or may have.
    pub(crate) fn protected_change(&self, effects: &Effects) -> Option<String> {
        let Effects::Observed(observed) = effects else {
            return None;
        };
        let gated = self.action.state.gated();
        let (decision, space) = (&gated.ruling().decision, &self.action.request.space_id);
        let changed = observed.changes.iter().map(|change| change.path.as_str());
        if let Some(path) = decision.first_protected(changed) {
            return Some(format!(
                "it changed {path:?}, which is protected in {space}; a person must look at it and restore it"
            ));
        }
        (observed.incomplete && gated.command().is_some() && !decision.protected.is_empty()).then(|| {
            format!(
                "it changed more than a receipt lists, so a path that is protected in {space} may be changed"
            )
        })
    }

    fn left(&self) -> Effects {
        left_by_failure(self.may_have_effect, self.changed.as_ref())
    }
}

/// The effects in the receipt of an action that fails.
fn left_by_failure(may_have_effect: bool, changed: Option<&Effects>) -> Effects {
    match (may_have_effect, changed) {
        (true, _) => Effects::Possible,
        (false, Some(changed)) => changed.clone(),
        (false, None) => Effects::None,
    }
}

/// Which failures say nothing about the tool, and so do not count for the breaker that all callers share.
#[derive(Debug, Clone, Copy)]
struct Blame {
    /// The caller chose a deadline below the tool's own.
    has_own_deadline: bool,
    /// The tool runs a program that the planner chose, so the program decides how the run ends.
    runs_programs: bool,
    /// Each organisation reaches a service of its own by the tool, and has a breaker of its own before it.
    is_of_org: bool,
}

impl Blame {
    fn is_callers(self, attempted: &Attempted) -> bool {
        match attempted {
            _ if self.is_of_org => true,
            // The time was over before the tool ran, or a file is busy, which a planner's program may hold.
            Attempted::Failed(failure) => matches!(failure.code, Code::TimedOut | Code::ToolBusy),
            // The tool writes its reply, whatever program it runs.
            Attempted::Unclear(failure) if failure.code == Code::ResultInvalid => false,
            Attempted::Unclear(failure) => {
                let over_time = matches!(failure.code, Code::TimedOut | Code::ProcessLimit);
                self.runs_programs || self.has_own_deadline && over_time
            }
            Attempted::Done(_) | Attempted::Abandoned => false,
        }
    }
}

/// Reports the outcome of an attempt to the breakers. If that opens or closes one, this waits until the change is on disk.
async fn report(passes: &[Pass], attempted: &Attempted, blame: Blame) {
    for pass in passes {
        let report = match attempted {
            Attempted::Done(_) => Report::Good,
            Attempted::Failed(failure) | Attempted::Unclear(failure)
                if counts(failure.code) && !(pass.is_shared() && blame.is_callers(attempted)) =>
            {
                Report::Bad
            }
            Attempted::Failed(_) | Attempted::Unclear(_) | Attempted::Abandoned => Report::Silent,
        };
        if let Some(written) = pass.report(report)
            && let Err(error) = written.await
        {
            tracing::warn!(%error, "a breaker's change could not be stored; it is lost at the next restart");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use effectd_contracts::{Observed, PathChange, PathState};

    #[test]
    fn a_shared_breaker_counts_only_faults_of_the_tool() {
        let failed = |code| Attempted::Failed(Failure::new(code, Phase::Dispatch, "as asked"));
        let unclear = |code| Attempted::Unclear(Failure::new(code, Phase::Dispatch, "as asked"));
        let runs_programs = Blame { has_own_deadline: false, runs_programs: true, is_of_org: false };
        let runs_none = Blame { runs_programs: false, ..runs_programs };
        assert!(runs_programs.is_callers(&unclear(Code::SandboxFailed)));
        assert!(!runs_programs.is_callers(&unclear(Code::ResultInvalid)));
        assert!(!runs_none.is_callers(&unclear(Code::SandboxFailed)));
        assert!(!runs_none.is_callers(&unclear(Code::TimedOut)));
        assert!(runs_none.is_callers(&failed(Code::ToolBusy)));
        assert!(!runs_none.is_callers(&failed(Code::SandboxFailed)));
        let is_of_org = Blame { is_of_org: true, ..runs_none };
        assert!(is_of_org.is_callers(&failed(Code::EgressFailed)));
    }

    #[test]
    fn what_was_seen_to_change_is_told_of_a_run_that_failed() {
        let half = Effects::Observed(Observed {
            changes: vec![PathChange {
                path: "workspace/a".to_owned(),
                before: PathState::Absent,
                after: PathState::Folder,
                moved_to: None,
                inside: None,
            }],
            undoable: true,
            undeclared: Vec::new(),
            unchanged: Vec::new(),
            incomplete: false,
        });
        assert!(has_changed(&half) && !has_changed(&Effects::None));
        assert_eq!(left_by_failure(false, Some(&half)), half);
        assert_eq!(left_by_failure(false, None), Effects::None);
        assert_eq!(left_by_failure(true, Some(&half)), Effects::Possible);
    }
}
