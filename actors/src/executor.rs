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
use crate::attempt::{Attempted, Tried, attempt};
use crate::idempotency::Earlier;
use crate::limits::LEASE_TTL;
use crate::messages::{Execute, Record};
use crate::parts::Parts;
use crate::retry::Budget;
use crate::stage::{PanicWatch, pass};

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
        action.hop("executor");
        let timeout = allowed_time(&action);
        let deadline = self.parts.clock.monotonic().plus(timeout);
        let _kept = action
            .ticket
            .lease()
            .map(|lease| self.parts.leases.keep(lease, deadline.plus(LEASE_TTL)));
        let ended = self.carry_out(&action, deadline).await;
        let finished = action.advance(|claimed| Finished {
            claimed,
            ended,
            timeout,
        });
        pass(&self.recorder, Record::Ran(Box::new(finished)));
        Ok(())
    }
}

/// The smallest of what the caller asks for, what the tool needs and what its class allows.
fn allowed_time(action: &Action<Claimed>) -> Duration {
    let gated = action.state.gated();
    let asked = action.request.qos.timeout_ms.unwrap_or(u64::MAX);
    let class = gated.ruling().decision.timeout_ms_max;
    Duration::from_millis(asked.min(gated.entry().spec().timeout_ms).min(class))
}

/// The course of one action so far.
struct Course {
    attempts: Vec<Attempt>,
    used: Used,
    isolation: Option<Isolation>,
    /// Something ran that may have had its effect.
    touched: bool,
}

impl Course {
    fn note(&mut self, tried: Tried) -> Attempted {
        self.attempts.push(tried.attempt);
        self.used.cpu = Millis::from_micros(self.used.cpu.micros() + tried.used.cpu.micros());
        self.used.exec = Millis::from_micros(self.used.exec.micros() + tried.used.exec.micros());
        self.used.peak_memory_bytes = self.used.peak_memory_bytes.max(tried.used.peak_memory_bytes);
        self.used.bytes_written += tried.used.bytes_written;
        self.isolation = tried.isolation.or(self.isolation.take());
        tried.came_to
    }

    fn end(self, result: Result<ToolOutput, Failure>, outcome: Outcome, dead_letter: bool) -> Ended {
        let effects = match (&result, self.touched) {
            (Ok(_), _) => Effects::Unobserved,
            (Err(_), true) => Effects::Possible,
            (Err(_), false) => Effects::None,
        };
        let Course {
            attempts,
            used,
            isolation,
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
    Unknown(&'static str),
}

impl Executor {
    async fn carry_out(&self, action: &Action<Claimed>, deadline: Monotonic) -> Ended {
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
        };
        if let Earlier::Interrupted(intent) = action.state.earlier() {
            let harmless = intent.as_ref().is_some_and(|intent| intent.dry_run);
            course.touched = !harmless;
            let repeat = intent.as_ref().map_or(Repeat::Never, |intent| intent.repeat);
            let next = if harmless {
                Next::RunAgain
            } else {
                self.settle(action, repeat, deadline).await
            };
            match next {
                Next::RunAgain => {}
                Next::WasDone => return course.end(Ok(found_done()), Outcome::Executed, false),
                Next::Unknown(why) => return course.fail(unknown(why)),
            }
        }
        let mut budget = Budget::new(action.request.qos.retries());
        loop {
            let left = deadline.since(self.parts.clock.monotonic());
            let attempted = course.note(attempt(&self.parts, action, mode, left).await);
            let (failure, ambiguous) = match attempted {
                Attempted::Done(output) => {
                    let outcome = dry_run.map_or(Outcome::Executed, |dry_run| dry_run.outcome());
                    return course.end(Ok(output), outcome, false);
                }
                Attempted::Failed(failure) => (failure, false),
                Attempted::Unclear(failure) => (failure, dry_run.is_none()),
            };
            course.touched |= ambiguous;
            let pause = match self
                .may_retry(action, &failure, ambiguous, spec.repeat, deadline)
                .await
            {
                Next::RunAgain => {
                    budget.next_pause(last_took(&course), deadline.since(self.parts.clock.monotonic()))
                }
                Next::WasDone => return course.end(Ok(found_done()), Outcome::Executed, false),
                Next::Unknown("") => None,
                Next::Unknown(why) => return course.fail(unknown(why)),
            };
            let Some(pause) = pause else {
                return course.fail(failure);
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

    /// Whether a failed run may be followed by another. `Unknown("")` means: no, and the failure stands as it is.
    async fn may_retry(
        &self,
        action: &Action<Claimed>,
        failure: &Failure,
        ambiguous: bool,
        repeat: Repeat,
        deadline: Monotonic,
    ) -> Next {
        let wanted = if failure.retryable {
            Next::RunAgain
        } else {
            Next::Unknown("")
        };
        match (ambiguous, repeat) {
            (false, _) | (true, Repeat::Safe) => wanted,
            (true, Repeat::Probe | Repeat::Never) => match self.settle(action, repeat, deadline).await {
                Next::RunAgain => wanted,
                other @ (Next::WasDone | Next::Unknown(_)) => other,
            },
        }
    }

    /// What an effect that may have happened calls for, by the tool's own declaration.
    async fn settle(&self, action: &Action<Claimed>, repeat: Repeat, deadline: Monotonic) -> Next {
        match repeat {
            Repeat::Safe => Next::RunAgain,
            Repeat::Never => {
                Next::Unknown("the tool must not be repeated, and whether it ran cannot be told")
            }
            Repeat::Probe => {
                let left = deadline.since(self.parts.clock.monotonic());
                match attempt(&self.parts, action, CallMode::Probe, left).await.probed {
                    Some(ProbeVerdict::Done) => Next::WasDone,
                    Some(ProbeVerdict::NotDone) => Next::RunAgain,
                    Some(ProbeVerdict::CannotSay) | None => {
                        Next::Unknown("the tool's probe cannot tell whether it ran")
                    }
                }
            }
        }
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
    ToolOutput {
        result: serde_json::json!({ "settled_by": "probe" }),
        quality: None,
    }
}
