//! The fourth stage: do it, in a fresh sandbox, and find out what came of it.
//!
//! The course of an action can be read in [`Course::steps`]: prepare, settle what an earlier run began, ask the breaker, then
//! run the tool until it has done it, or may not run again. Two rules stand above all: no second
//! child starts before the first is proven dead, and an effect that may have happened is repeated only if the tool says
//! that this is safe.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{
    Attempt, CallMode, Code, Effects, Failure, Isolation, Millis, Monotonic, Outcome, Phase, ProbeVerdict,
    Repeat, ToolOutput,
};

use crate::action::{Action, Claimed};
use crate::attempt::{Attempted, Tried, has_changed};
use crate::call::allowed_time;
use crate::control::breaker::{Report, counts};
use crate::control::breakers::{self, Pass};
use crate::failpoint::hit;
use crate::gate::DryRun;
use crate::idempotency::Earlier;
use crate::intent::Intent;
use crate::messages::{Execute, Record};
use crate::overreach::{self, Overreach};
use crate::parts::Parts;
use crate::preimage::{self, Prepared};
use crate::retry::Budget;
use crate::stage::{Address, Stage, keep, pass};
use crate::streams::KeptArtifact;

/// It ran, or was found to have run, or could not be run: in any case it is over.
#[derive(Debug)]
pub struct Finished {
    claimed: Claimed,
    ended: Box<Ended>,
    timeout: Duration,
}

#[derive(Debug)]
pub struct Ended {
    /// What the tool answered, or why there is no answer.
    pub result: Result<ToolOutput, Failure>,
    pub outcome: Outcome,
    pub effects: Effects,
    /// A dead letter goes with the receipt.
    pub dead_letter: bool,
    pub runs: Runs,
}

#[derive(Debug, Default)]
pub struct Runs {
    pub attempts: Vec<Attempt>,
    pub used: Used,
    /// The isolation of the last one.
    pub isolation: Option<Isolation>,
    /// What the last one said at length, and is kept.
    pub artifacts: Vec<KeptArtifact>,
}

/// What all runs of an action used together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub cpu: Millis,
    /// Time in the sandbox.
    pub exec: Millis,
    pub peak_memory_bytes: u64,
    pub bytes_written: u64,
}

impl Finished {
    pub fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    pub fn ended(&self) -> &Ended {
        &self.ended
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) parts: Arc<Parts>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Executor {
    const NAME: &'static str = "executor";
    type Message = Execute;

    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    fn limit(&self, action: &Execute) -> Duration {
        allowed_time(&action.request, action.state.gated()) + self.parts.lease_ttl
    }

    async fn work(&self, mut action: Execute, _: &Address<Execute>) {
        let id = action.ticket.action_id.clone();
        hit("executor.begin", &id).await;
        let timeout = allowed_time(&action.request, action.state.gated());
        let _kept = keep(&self.parts, &action.ticket, self.limit(&action));
        let work = Box::pin(async {
            // Its time begins when it has a place.
            action.step("turn");
            let deadline = self.parts.clock.monotonic().plus(timeout);
            let Err(over) = Course::new(&self.parts, &action, deadline).steps().await;
            over
        });
        let Some(ended) = self.parts.control.start(&action.request, work).await else {
            // The runtime stops. The ticket is dropped with the action, and the next start settles it by its intent.
            tracing::info!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, "handed back");
            return;
        };
        hit("executor.end", &id).await;
        let cpu = Duration::from_micros(ended.runs.used.cpu.micros());
        if !ended.runs.attempts.is_empty() {
            action.ticket.place.settle(cpu, ended.runs.attempts.len());
        }
        // Before anybody is told: whoever looks then finds no more kept than may be.
        if let Some(pinned) = action.state.take_pinned() {
            drop(tokio::task::spawn_blocking(move || drop(pinned)).await);
        }
        let finished = action.advance(|claimed| Finished {
            claimed,
            ended,
            timeout,
        });
        pass(&self.recorder, Record::Ran(Box::new(finished)));
    }
}

/// The end of a course; `None` if the runtime stops, and the next start settles the action.
type Over = Option<Box<Ended>>;

pub(crate) struct Course<'a> {
    pub(crate) parts: &'a Arc<Parts>,
    pub(crate) action: &'a Action<Claimed>,
    pub(crate) prepared: Prepared,
    pub(crate) deadline: Monotonic,
    pub(crate) runs: Runs,
    /// Something ran that may have had its effect.
    pub(crate) touched: bool,
    /// What was seen to be otherwise after a run that failed.
    changed: Option<Effects>,
}

/// What is known of an effect that may have happened.
enum Settled {
    /// The tool may run again: it is safe to repeat, or says that it was not done.
    MayRun,
    Done,
    /// A person must find out.
    Unknown(&'static str),
    Abandoned,
}

impl<'a> Course<'a> {
    fn new(parts: &'a Arc<Parts>, action: &'a Action<Claimed>, deadline: Monotonic) -> Self {
        let touched = match action.state.earlier() {
            Earlier::No => false,
            Earlier::Interrupted(intent) => !intent.as_ref().is_some_and(|intent| intent.dry_run),
        };
        Self {
            parts,
            action,
            prepared: Prepared::default(),
            deadline,
            runs: Runs::default(),
            touched,
            changed: None,
        }
    }

    fn dry_run(&self) -> Option<DryRun> {
        self.action.state.gated().dry_run()
    }

    /// Whether the tool changes something, or only says what it would do.
    pub(crate) fn mode(&self) -> CallMode {
        match self.dry_run() {
            Some(_) => CallMode::DryRun,
            None => CallMode::Run,
        }
    }

    /// The steps of an action, in their order, until one of them ends it. Those that are rare stand in a box: the others need
    /// no room for them.
    async fn steps(&mut self) -> Result<Infallible, Over> {
        // What was begun before is brought to its end, whatever the breaker says.
        let begun = self.touched;
        self.prepare().await?;
        if let Earlier::Interrupted(intent) = self.action.state.earlier() {
            Box::pin(self.settle_interrupted(intent.as_ref())).await?;
        }
        let pass = match self.breaker() {
            Ok(pass) => Some(pass),
            Err(_) if begun => None,
            // No dead letter: what an open breaker refuses may be much, and all of it may simply be asked for again.
            Err(failure) => return Err(self.end(Err(failure), Outcome::BreakerOpen, self.left(), false)),
        };
        let mut budget = Budget::new(self.action.request.qos.retries());
        loop {
            let tried = self.attempt().await;
            report(pass.as_ref(), &tried.attempted).await;
            let failure = self.judge(tried).await?;
            let took = self.runs.attempts.last().map(|attempt| attempt.exec_ms.micros());
            let took = Duration::from_micros(took.unwrap_or_default());
            let pause = budget.next_pause(took, self.deadline.since(self.parts.clock.monotonic()));
            let opened = pass.as_ref().is_some_and(Pass::is_open);
            let Some(pause) = pause.filter(|_| !opened) else {
                return Err(self.fail(failure));
            };
            self.note_retry(&failure);
            tokio::time::sleep(pause).await;
        }
    }

    /// Sees and keeps what the action is going to replace.
    async fn prepare(&mut self) -> Result<(), Over> {
        match preimage::prepare(self.parts, self.action).await {
            Ok(prepared) => self.prepared = prepared,
            Err(_) if self.touched => {
                return Err(self.fail(unknown("what it has changed cannot be looked at")));
            }
            Err(failure) => return Err(self.fail(failure)),
        }
        self.action.step("prepared");
        hit("executor.after_prepare", &self.action.ticket.action_id).await;
        Ok(())
    }

    /// Finds out what an intent that was found calls for. It is settled by the declaration under which it was begun. If the
    /// tool has changed since, and declares something else now, neither promise covers what would run: a person must look.
    async fn settle_interrupted(&mut self, intent: Option<&Intent>) -> Result<(), Over> {
        let (parts, action) = (self.parts, self.action);
        let spec = action.state.gated().entry().spec();
        // What the interrupted run has set aside is put back before anybody looks how far it has come. Nobody else is blamed
        // for that.
        let _turn = overreach::at_work(parts, action, &self.prepared);
        preimage::remove_drafts(parts, action, &self.prepared).await;
        let settled = match intent {
            None => Settled::Unknown("what was begun cannot be read any more"),
            Some(intent) if intent.dry_run => Settled::MayRun,
            Some(intent) if intent.tool_version != spec.version && intent.repeat != spec.repeat => {
                Settled::Unknown("the tool was replaced by one that must be treated otherwise")
            }
            Some(intent) => match (self.settle(intent.repeat).await, intent.repeat) {
                // Trying it out now would say that nothing changed, which is not known.
                (Settled::MayRun, Repeat::Safe | Repeat::Never) if self.dry_run().is_some() => {
                    Settled::Unknown("it was begun before effects were paused")
                }
                (settled, Repeat::Safe | Repeat::Probe | Repeat::Never) => settled,
            },
        };
        self.go_on(settled).await
    }

    fn breaker(&self) -> Result<Pass, Failure> {
        let request = &self.action.request;
        let key = breakers::key_of(request);
        self.parts.control.breakers.ask(key, &request.tool_id)
    }

    /// Ends the course by what a run came to, or answers the failure after which the tool may run again.
    async fn judge(&mut self, tried: Tried) -> Result<Failure, Over> {
        let Tried {
            attempted,
            seen,
            overreach,
        } = tried;
        if let Some(overreach) = overreach {
            return Err(Box::pin(self.overreached(attempted, seen, &overreach)).await);
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
                // It says that it had no effect; what is otherwise all the same is told, whoever has done it.
                self.changed = seen.filter(has_changed).or(self.changed.take());
                failure
            }
            Attempted::Unclear(failure) => {
                if self.dry_run().is_none() {
                    self.touched = true;
                    let settled = Box::pin(self.settle_after(&failure)).await;
                    self.go_on(settled).await?;
                }
                failure
            }
            Attempted::Abandoned => return Err(None),
        };
        // A tool that says it is done, in words that cannot be read, has run: that is known, and the receipt says so.
        if failure.retryable && failure.code != Code::ResultInvalid {
            Ok(failure)
        } else {
            Err(self.fail(failure))
        }
    }

    /// The tool has done more than it declares. It is switched off, and is not run again.
    async fn overreached(
        &mut self,
        attempted: Attempted,
        seen: Option<Effects>,
        overreach: &Overreach,
    ) -> Over {
        overreach::quarantine(self.parts, self.action, overreach).await;
        let failure = match attempted {
            Attempted::Done(_) => overreach.failure(),
            Attempted::Failed(failure) => overreach.beside(failure),
            Attempted::Unclear(failure) => match self.settle_after(&failure).await {
                Settled::Unknown(why) => overreach.beside(unknown(why)),
                Settled::Done => overreach.failure(),
                Settled::MayRun => overreach.beside(failure),
                Settled::Abandoned => return None,
            },
            Attempted::Abandoned => return None,
        };
        let seen = match seen {
            Some(seen) => seen,
            None => preimage::observe(self.parts, self.action, &self.prepared).await,
        };
        self.fail_with(failure, overreach.effects(seen))
    }

    /// Settles a run of now, unless its answer says that it has run.
    async fn settle_after(&self, failure: &Failure) -> Settled {
        if failure.code == Code::ResultInvalid {
            return Settled::MayRun;
        }
        self.settle(self.action.state.gated().entry().spec().repeat).await
    }

    /// Settles an effect that may have happened, by the tool's own declaration.
    async fn settle(&self, repeat: Repeat) -> Settled {
        match repeat {
            Repeat::Safe => Settled::MayRun,
            Repeat::Never => {
                Settled::Unknown("the tool must not be repeated, and whether it ran cannot be told")
            }
            Repeat::Probe => {
                hit("executor.before_probe", &self.action.ticket.action_id).await;
                match self.probe().await {
                    Some(ProbeVerdict::Done) => Settled::Done,
                    Some(ProbeVerdict::NotDone) => Settled::MayRun,
                    Some(ProbeVerdict::CannotSay) => {
                        Settled::Unknown("the tool's probe cannot tell whether it ran")
                    }
                    None => Settled::Abandoned,
                }
            }
        }
    }

    /// Goes on if the tool may run again.
    async fn go_on(&mut self, settled: Settled) -> Result<(), Over> {
        match settled {
            Settled::MayRun => Ok(()),
            // The effect is there, but the answer of the run that made it is lost.
            Settled::Done => {
                let found = ToolOutput::new(serde_json::json!({ "settled_by": "probe" }), None);
                Err(Box::pin(self.done(found)).await)
            }
            Settled::Unknown(why) => Err(self.fail(unknown(why))),
            Settled::Abandoned => Err(None),
        }
    }

    fn note_retry(&self, failure: &Failure) {
        let (ticket, retry) = (&self.action.ticket, self.runs.attempts.len());
        let tool = &self.action.state.gated().entry().spec().tool_id;
        let retries = &self.parts.metrics.retries;
        retries.with_label_values(&[tool.as_str()]).inc();
        tracing::info!(parent: &ticket.span, trace_id = %ticket.trace_id, code = %failure.code, retry, "retry");
        ticket.span.record("retry", retry);
    }

    /// It was done, and what has changed is still to be looked at.
    async fn done(&mut self, output: ToolOutput) -> Over {
        let effects = preimage::observe(self.parts, self.action, &self.prepared).await;
        self.end(Ok(output), Outcome::Executed, effects, false)
    }

    fn fail(&mut self, failure: Failure) -> Over {
        let left = self.left();
        self.fail_with(failure, left)
    }

    fn fail_with(&mut self, failure: Failure, effects: Effects) -> Over {
        let dead_letter = failure.retryable || failure.code == Code::OutcomeUnknown;
        let outcome = failure.code.outcome();
        self.end(Err(failure), outcome, effects, dead_letter)
    }

    fn end(
        &mut self,
        result: Result<ToolOutput, Failure>,
        outcome: Outcome,
        effects: Effects,
        dead_letter: bool,
    ) -> Over {
        Some(Box::new(Ended {
            result,
            outcome,
            effects,
            dead_letter,
            runs: std::mem::take(&mut self.runs),
        }))
    }

    fn left(&self) -> Effects {
        left_by_failure(self.touched, self.changed.as_ref())
    }
}

/// What is known about changes when an action fails.
fn left_by_failure(touched: bool, changed: Option<&Effects>) -> Effects {
    match (touched, changed) {
        (true, _) => Effects::Possible,
        (false, Some(changed)) => changed.clone(),
        (false, None) => Effects::None,
    }
}

/// Tells the breaker what one run came to. If it opens or closes by that, it is worth a moment to have it on disk.
async fn report(pass: Option<&Pass>, attempted: &Attempted) {
    let report = match attempted {
        Attempted::Done(_) => Report::Good,
        Attempted::Failed(failure) | Attempted::Unclear(failure) if counts(failure.code) => Report::Bad,
        Attempted::Failed(_) | Attempted::Unclear(_) | Attempted::Abandoned => Report::Silent,
    };
    if let Some(written) = pass.and_then(|pass| pass.report(report))
        && let Err(error) = written.await
    {
        tracing::warn!(%error, "a breaker's change is not on disk; a restart will not know of it");
    }
}

fn unknown(why: &str) -> Failure {
    Failure::new(Code::OutcomeUnknown, Phase::Settle, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use effectd_contracts::{Observed, PathChange, Standing};

    #[test]
    fn what_was_seen_to_change_is_told_of_a_run_that_failed() {
        let half = Effects::Observed(Observed {
            changes: vec![PathChange {
                path: "workspace/a".to_owned(),
                before: Standing::Absent,
                after: Standing::Folder,
                moved_to: None,
                inside: None,
            }],
            undoable: true,
            undeclared: Vec::new(),
        });
        assert!(has_changed(&half) && !has_changed(&Effects::None));
        assert_eq!(left_by_failure(false, Some(&half)), half);
        assert_eq!(left_by_failure(false, None), Effects::None);
        assert_eq!(left_by_failure(true, Some(&half)), Effects::Possible);
    }
}
