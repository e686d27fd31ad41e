//! The fourth stage: do it, in a fresh sandbox, and find out what came of it.
//!
//! The order of attempt, settlement and retry can be read in [`Executor::carry_out`]. Two rules stand above all: no second
//! child starts before the first is proven dead, and an effect that may have happened is repeated only if the tool says
//! that this is safe.

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::Code;
use effectd_contracts::{
    Attempt, CallMode, Effects, Failure, Isolation, Millis, Monotonic, Outcome, Phase, ProbeVerdict, Repeat,
    ToolOutput,
};
use ractor::ActorProcessingErr;
use ractor::factory::{FactoryRef, Job, Worker, WorkerId};

use crate::action::{Action, Claimed};
use crate::attempt::{Attempted, Tried, attempt, has_changed, write_ahead};
use crate::control::breaker::{Report, counts};
use crate::control::breakers::{self, Pass};
use crate::failpoint::hit;
use crate::grip::Grip;
use crate::idempotency::Earlier;
use crate::intent::Intent;
use crate::messages::{Execute, Record};
use crate::overreach::{self, Overreach};
use crate::parts::Parts;
use crate::poise::allowed_time;
use crate::preimage::{self, Prepared};
use crate::retry::Budget;
use crate::stage::{PanicWatch, bounded, pass};
use crate::streams::KeptArtifact;

/// It ran, or was found to have run, or could not be run: in any case it is over.
#[derive(Debug)]
pub struct Finished {
    claimed: Claimed,
    ended: Ended,
    timeout: Duration,
}

/// What came of running an action.
#[derive(Debug)]
pub struct Ended {
    /// What the tool answered, or why there is no answer.
    pub result: Result<ToolOutput, Failure>,
    /// How it ended.
    pub outcome: Outcome,
    /// Each run.
    pub attempts: Vec<Attempt>,
    /// What all runs used together.
    pub used: Used,
    /// The isolation of the last run.
    pub isolation: Option<Isolation>,
    /// What is known about changes.
    pub effects: Effects,
    /// A dead letter goes with the receipt.
    pub dead_letter: bool,
    /// What the tool said at length, and is kept.
    pub artifacts: Vec<KeptArtifact>,
    /// What it may have replaced, held open.
    grip: Option<Grip>,
}

/// What all runs of an action used together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Processor time.
    pub cpu: Millis,
    /// Time in the sandbox.
    pub exec: Millis,
    /// Most memory at a time.
    pub peak_memory_bytes: u64,
    /// Bytes written to storage.
    pub bytes_written: u64,
}

impl Finished {
    /// The state before.
    pub fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    /// What came of it.
    pub fn ended(&self) -> &Ended {
        &self.ended
    }

    /// How long the tool was allowed to take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What was held open while it ran.
    pub(crate) fn take_grip(&mut self) -> Option<Grip> {
        self.ended.grip.take()
    }
}

pub(crate) struct Executor {
    pub(crate) parts: Arc<Parts>,
    pub(crate) recorder: FactoryRef<(), Record>,
}

impl Worker for Executor {
    type Key = ();
    type Message = Execute;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Execute>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Execute>,
        job: Job<(), Execute>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _watch = PanicWatch::new("executor", &self.parts);
        let Execute(action) = job.msg;
        let timeout = allowed_time(&action.request, action.state.gated());
        let stalled = action.ticket.stalled.clone();
        let limit = timeout + self.parts.lease_ttl;
        let work = Box::pin(self.execute(action, timeout));
        bounded(&self.parts, "executor", limit, &stalled, work).await;
        Ok(())
    }
}

/// The course of one action so far.
struct Course {
    attempts: Vec<Attempt>,
    used: Used,
    isolation: Option<Isolation>,
    /// Something ran that may have had its effect.
    touched: bool,
    /// What was seen to be otherwise after a run that failed.
    changed: Option<Effects>,
    /// What the last run said at length.
    artifacts: Vec<KeptArtifact>,
    /// What the last run may have replaced.
    grip: Option<Grip>,
}

impl Course {
    fn note(&mut self, tried: Tried) -> Attempted {
        self.attempts.push(tried.attempt);
        self.used.cpu = Millis::from_micros(self.used.cpu.micros() + tried.used.cpu.micros());
        self.used.exec = Millis::from_micros(self.used.exec.micros() + tried.used.exec.micros());
        self.used.peak_memory_bytes = self.used.peak_memory_bytes.max(tried.used.peak_memory_bytes);
        self.used.bytes_written += tried.used.bytes_written;
        self.isolation = tried.isolation.or(self.isolation.take());
        self.artifacts = tried.artifacts;
        self.grip = tried.grip;
        tried.came_to
    }

    fn end(self, result: Result<ToolOutput, Failure>, outcome: Outcome, dead_letter: bool) -> Ended {
        let effects = match (&result, self.touched, self.changed) {
            (Ok(_), _, _) => Effects::Unobserved,
            (Err(_), true, _) => Effects::Possible,
            (Err(_), false, Some(changed)) => changed,
            (Err(_), false, None) => Effects::None,
        };
        let Course {
            attempts,
            used,
            isolation,
            artifacts,
            grip,
            ..
        } = self;
        Ended {
            result,
            outcome,
            attempts,
            used,
            isolation,
            effects,
            dead_letter,
            artifacts,
            grip,
        }
    }

    fn done(self, output: ToolOutput, effects: Effects) -> Ended {
        Ended {
            effects,
            ..self.end(Ok(output), Outcome::Executed, false)
        }
    }

    /// It has done more than its tool declares, and ended so.
    fn overreached(self, overreach: &Overreach, seen: Effects, failure: Failure) -> Ended {
        let effects = overreach.effects(seen);
        Ended {
            effects,
            ..self.fail(failure)
        }
    }

    fn fail(self, failure: Failure) -> Ended {
        let dead_letter = failure.retryable || failure.code == Code::OutcomeUnknown;
        let outcome = failure.code.outcome();
        self.end(Err(failure), outcome, dead_letter)
    }
}

/// What an interrupted or ambiguous run calls for.
enum Next {
    RunAgain,
    WasDone,
    /// A person must find out.
    Unknown(&'static str),
    /// Nothing: the failure stands as it is.
    Stands,
    /// The runtime stops; the next one settles it.
    Abandon,
}

impl Executor {
    async fn execute(&self, action: Action<Claimed>, timeout: Duration) {
        let id = action.ticket.action_id.clone();
        action.hop("executor");
        hit("executor.begin", &id).await;
        let _kept = action.ticket.lease().map(|lease| {
            let until = self.parts.clock.monotonic().plus(timeout + self.parts.lease_ttl);
            self.parts.leases.keep(lease, until)
        });
        let work = Box::pin(async {
            // Its time begins when it is its turn.
            action.step("turn");
            let deadline = self.parts.clock.monotonic().plus(timeout);
            self.carry_out(&action, deadline).await
        });
        let turn = action.state.take_turn();
        let ended = self.parts.control.in_turn(&action.request, turn, work).await;
        // Whatever has kept it from being called.
        drop(action.state.take_poised());
        let Some(ended) = ended else {
            // The runtime stops. The ticket is dropped with the action, and the next start settles it by its intent.
            tracing::info!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, "handed back");
            return;
        };
        hit("executor.end", &id).await;
        let mut action = action;
        let cpu = Duration::from_micros(ended.used.cpu.micros());
        if !ended.attempts.is_empty() {
            action.ticket.place.settle(cpu, ended.attempts.len());
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

    /// Runs the action to its end; `None` if the runtime stops before that.
    async fn carry_out(&self, action: &Action<Claimed>, deadline: Monotonic) -> Option<Ended> {
        let spec = action.state.gated().entry().spec();
        let dry_run = action.state.gated().dry_run();
        let mode = if dry_run.is_some() {
            CallMode::DryRun
        } else {
            CallMode::Run
        };
        let mut course = Course {
            attempts: Vec::new(),
            used: Used::default(),
            isolation: None,
            touched: false,
            changed: None,
            artifacts: Vec::new(),
            grip: None,
        };
        if let Earlier::Interrupted(intent) = action.state.earlier() {
            course.touched = !intent.as_ref().is_some_and(|intent| intent.dry_run);
        }
        let prepared = match preimage::prepare(&self.parts, action).await {
            Ok(prepared) => prepared,
            Err(_) if course.touched => {
                return Some(course.fail(unknown("what it has changed cannot be looked at")));
            }
            Err(failure) => return Some(course.fail(failure)),
        };
        action.step("prepared");
        hit("executor.after_prepare", &action.ticket.action_id).await;
        if let Earlier::Interrupted(intent) = action.state.earlier() {
            // What the interrupted run has set aside is put back before anybody looks how far it has come. Nobody else is blamed
            // for that.
            let _turn = overreach::at_work(&self.parts, action, &prepared);
            Box::pin(preimage::remove_drafts(&self.parts, action, &prepared)).await;
            let settling = self.settle_interrupted(action, &prepared, intent.as_ref(), deadline);
            // In a box, as whatever is rare here: those that it does not happen to need no room for it.
            match Box::pin(settling).await {
                Next::RunAgain => {}
                Next::WasDone => return Some(Box::pin(self.was_done(course, action, &prepared)).await),
                Next::Unknown(why) => return Some(course.fail(unknown(why))),
                Next::Stands => {}
                Next::Abandon => return None,
            }
        }
        // What was begun before is brought to its end, whatever the breaker says.
        let begun = course.touched;
        let pass = match self.breaker(action) {
            Ok(pass) => Some(pass),
            Err(_) if begun => None,
            // No dead letter: what an open breaker refuses may be much, and all of it may simply be asked for again.
            Err(failure) => return Some(course.end(Err(failure), Outcome::BreakerOpen, false)),
        };
        let mut budget = Budget::new(action.request.qos.retries(), &self.parts.settings);
        loop {
            let left = deadline.since(self.parts.clock.monotonic());
            let trying = attempt(&self.parts, action, &prepared, (mode, !course.touched), left);
            let (mut tried, ()) = tokio::join!(biased; trying, write_ahead(&self.parts, action));
            let (seen, overreach) = (tried.effects.take(), tried.overreach.take());
            let attempted = course.note(tried);
            tell(pass.as_ref(), &attempted).await;
            if let Some(overreach) = overreach {
                Box::pin(overreach::quarantine(&self.parts, action, &overreach)).await;
                let failure = match attempted {
                    Attempted::Done(_) => overreach.failure(),
                    Attempted::Failed(failure) => overreach.beside(failure),
                    Attempted::Unclear(failure) => {
                        match Box::pin(self.may_retry(action, &prepared, &failure, true, deadline)).await {
                            Next::Unknown(why) => overreach.beside(unknown(why)),
                            Next::WasDone => overreach.failure(),
                            // It is not run again.
                            Next::RunAgain | Next::Stands => overreach.beside(failure),
                            Next::Abandon => return None,
                        }
                    }
                    Attempted::Abandoned => return None,
                };
                let seen = match seen {
                    Some(seen) => seen,
                    None => Box::pin(preimage::observe(&self.parts, action, &prepared)).await,
                };
                return Some(course.overreached(&overreach, seen, failure));
            }
            let (failure, ambiguous) = match attempted {
                Attempted::Done(output) => {
                    return Some(match (dry_run, seen) {
                        (Some(dry_run), _) => course.end(Ok(output), dry_run.outcome(), false),
                        (None, Some(effects)) => course.done(output, effects),
                        (None, None) => Box::pin(self.look_and_end(course, output, action, &prepared)).await,
                    });
                }
                Attempted::Failed(failure) => {
                    // It says that it had no effect; what is otherwise all the same is told, whoever has done it.
                    course.changed = seen.filter(has_changed).or(course.changed);
                    (failure, false)
                }
                Attempted::Unclear(failure) => (failure, dry_run.is_none()),
                Attempted::Abandoned => return None,
            };
            course.touched |= ambiguous;
            let retry = self.may_retry(action, &prepared, &failure, ambiguous, deadline);
            let pause = match Box::pin(retry).await {
                Next::RunAgain => {
                    budget.next_pause(last_took(&course), deadline.since(self.parts.clock.monotonic()))
                }
                Next::WasDone => return Some(Box::pin(self.was_done(course, action, &prepared)).await),
                Next::Stands => None,
                Next::Unknown(why) => return Some(course.fail(unknown(why))),
                Next::Abandon => return None,
            };
            let opened = pass.as_ref().is_some_and(Pass::is_open);
            let Some(pause) = pause.filter(|_| !opened) else {
                return Some(course.fail(failure));
            };
            self.parts
                .metrics
                .retries
                .with_label_values(&[spec.tool_id.as_str()])
                .inc();
            tracing::info!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, code = %failure.code,
                retry = course.attempts.len(), "retry");
            action.ticket.span.record("retry", course.attempts.len());
            tokio::time::sleep(pause).await;
        }
    }

    /// It was done, and what has changed is still to be looked at.
    async fn look_and_end(
        &self,
        course: Course,
        output: ToolOutput,
        action: &Action<Claimed>,
        prepared: &Prepared,
    ) -> Ended {
        let effects = preimage::observe(&self.parts, action, prepared).await;
        course.done(output, effects)
    }

    /// It was found to be done.
    async fn was_done(&self, course: Course, action: &Action<Claimed>, prepared: &Prepared) -> Ended {
        self.look_and_end(course, found_done(), action, prepared).await
    }

    /// Asks the breaker of this call.
    fn breaker(&self, action: &Action<Claimed>) -> Result<Pass, Failure> {
        let key = breakers::key_of(&action.request);
        self.parts.control.breakers.ask(key, &action.request.tool_id)
    }

    /// What an intent that was found calls for. It is settled by the declaration under which it was begun. If the tool has
    /// changed since, and declares something else now, neither promise covers what would run: a person must look.
    async fn settle_interrupted(
        &self,
        action: &Action<Claimed>,
        prepared: &Prepared,
        intent: Option<&Intent>,
        deadline: Monotonic,
    ) -> Next {
        let gated = action.state.gated();
        let spec = gated.entry().spec();
        let Some(intent) = intent else {
            return Next::Unknown("what was begun cannot be read any more");
        };
        if intent.dry_run {
            return Next::RunAgain;
        }
        if intent.tool_version != spec.version && intent.repeat != spec.repeat {
            return Next::Unknown("the tool was replaced by one that must be treated otherwise");
        }
        match (
            self.settle(action, prepared, intent.repeat, deadline).await,
            intent.repeat,
        ) {
            // Trying it out now would say that nothing changed, which is not known.
            (Next::RunAgain, Repeat::Safe | Repeat::Never) if gated.dry_run().is_some() => {
                Next::Unknown("it was begun before effects were paused")
            }
            (next, Repeat::Safe | Repeat::Probe | Repeat::Never) => next,
        }
    }

    /// Whether a failed run may be followed by another.
    async fn may_retry(
        &self,
        action: &Action<Claimed>,
        prepared: &Prepared,
        failure: &Failure,
        ambiguous: bool,
        deadline: Monotonic,
    ) -> Next {
        let repeat = action.state.gated().entry().spec().repeat;
        let wanted = if failure.retryable {
            Next::RunAgain
        } else {
            Next::Stands
        };
        // A tool that says it is done, in words that cannot be read, has run: that is known, and the receipt says so.
        if failure.code == Code::ResultInvalid {
            return Next::Stands;
        }
        match (ambiguous, repeat) {
            (false, _) | (true, Repeat::Safe) => wanted,
            (true, Repeat::Probe | Repeat::Never) => {
                match self.settle(action, prepared, repeat, deadline).await {
                    Next::RunAgain => wanted,
                    other @ (Next::WasDone | Next::Unknown(_) | Next::Stands | Next::Abandon) => other,
                }
            }
        }
    }

    /// What an effect that may have happened calls for, by the tool's own declaration.
    async fn settle(
        &self,
        action: &Action<Claimed>,
        prepared: &Prepared,
        repeat: Repeat,
        deadline: Monotonic,
    ) -> Next {
        match repeat {
            Repeat::Safe => Next::RunAgain,
            Repeat::Never => {
                Next::Unknown("the tool must not be repeated, and whether it ran cannot be told")
            }
            Repeat::Probe => {
                hit("executor.before_probe", &action.ticket.action_id).await;
                // A run that used up its time must not leave its probe without any.
                let left = deadline
                    .since(self.parts.clock.monotonic())
                    .max(self.parts.settings.probe_time_min);
                let tried = attempt(&self.parts, action, prepared, (CallMode::Probe, false), left).await;
                match (tried.probed, tried.came_to) {
                    (Some(ProbeVerdict::Done), _) => Next::WasDone,
                    (Some(ProbeVerdict::NotDone), _) => Next::RunAgain,
                    (None, Attempted::Abandoned) => Next::Abandon,
                    (Some(ProbeVerdict::CannotSay) | None, _) => {
                        Next::Unknown("the tool's probe cannot tell whether it ran")
                    }
                }
            }
        }
    }
}

/// Tells the breaker what one run came to. If it opens or closes by that, it is worth a moment to have it on disk.
async fn tell(pass: Option<&Pass>, attempted: &Attempted) {
    let report = match attempted {
        Attempted::Done(_) => Report::Good,
        Attempted::Failed(failure) | Attempted::Unclear(failure) if counts(failure.code) => Report::Bad,
        Attempted::Failed(_) | Attempted::Unclear(_) | Attempted::Abandoned => Report::Silent,
    };
    if let Some(Err(error)) = match pass.and_then(|pass| pass.report(report)) {
        Some(written) => Some(written.await),
        None => None,
    } {
        tracing::warn!(%error, "a breaker's change is not on disk; a restart will not know of it");
    }
}

fn last_took(course: &Course) -> Duration {
    course.attempts.last().map_or(Duration::ZERO, |attempt| {
        Duration::from_micros(attempt.exec_ms.micros())
    })
}

fn unknown(why: &str) -> Failure {
    Failure::new(Code::OutcomeUnknown, Phase::Settle, why)
}

/// The effect is there, but the answer of the run that made it is lost.
fn found_done() -> ToolOutput {
    ToolOutput::new(serde_json::json!({ "settled_by": "probe" }), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use effectd_contracts::{Observed, PathChange, Standing};

    #[test]
    fn what_was_seen_to_change_is_told_of_a_run_that_failed() {
        let course = |touched, changed| Course {
            attempts: Vec::new(),
            used: Used::default(),
            isolation: None,
            touched,
            changed,
            artifacts: Vec::new(),
            grip: None,
        };
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
        let failure = || Failure::new(Code::StateChanged, Phase::Dispatch, "otherwise");
        assert!(has_changed(&half) && !has_changed(&Effects::None));
        assert_eq!(course(false, Some(half.clone())).fail(failure()).effects, half);
        assert_eq!(course(false, None).fail(failure()).effects, Effects::None);
        assert_eq!(
            course(true, Some(half)).fail(failure()).effects,
            Effects::Possible
        );
    }
}
