//! The executor stage: runs a claimed action in a fresh sandbox, and passes its outcome to the recorder.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::limits::LEASE_TTL_MAX;
use effectd_contracts::batch::is_batch;
use effectd_contracts::{ActionId, Code, Failure, Origin, Phase};
use tracing::Instrument;

use crate::action::proofs::Earlier;
use crate::action::{Action, Finished, Submitted};
use crate::batches::{self, not_started};
use crate::control::batch_turns::Turn;
use crate::effects::active_calls::ActiveCalls;
use crate::execution::call::allowed_time;
use crate::execution::steps::Execution;
use crate::failpoint::hit;
use crate::limits::{BATCH_UNDO_TIME_MIN, ROLLBACK_TIME_MIN};
use crate::messages::{Execute, Record, Refusal};
use crate::operator::connectors;
use crate::services::Services;
use crate::stage::{Address, Stage, extend_lease, pass};

#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) services: Arc<Services>,
    pub(crate) calls: Arc<ActiveCalls>,
    pub(crate) validator: Address<Action<Submitted>>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Executor {
    const NAME: &'static str = "executor";
    type Message = Execute;

    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    fn limit(&self, action: &Execute) -> Duration {
        let planned = action.state.gated().terms().is_some();
        let rollback = if planned { 4 * ROLLBACK_TIME_MIN } else { Duration::ZERO };
        time_of(action) + rollback + self.services.in_flight.leases.ttl
    }

    async fn work(&self, action: Execute, this: &Address<Execute>) {
        if is_batch(&action.request.tool_id) {
            // No worker waits for it: its items need workers.
            let (stage, span) = (self.clone(), action.ticket.span.clone());
            drop(tokio::spawn(async move { stage.batch(action).await }.instrument(span)));
            return;
        }
        let Some(mut action) = self.in_turn(action, this) else { return };
        let id = action.ticket.action_id.clone();
        hit("executor.begin", &id).await;
        let timeout = time_of(&action);
        let _extended = extend_lease(&self.services.in_flight.leases, &action.ticket, self.limit(&action));
        let work = Box::pin(async {
            // The action's time begins when it gets its start slot.
            action.step("turn");
            let deadline = self.services.clock.monotonic().plus(timeout);
            let mut execution = Execution::new(&self.services, &self.calls, &action, deadline);
            let Err(over) = execution.steps().await;
            let over = match (over, action.state.gated().terms()) {
                (Some(ended), Some(terms)) if ended.runs.plan.is_none() => {
                    Box::pin(execution.complete(terms, ended)).await
                }
                (over, _) => over,
            };
            execution.observe_left(over).await
        });
        let Some(ended) = self.services.control.start(&action.request, work).await else {
            // The runtime stops. The ticket is dropped with the action, and the next start settles the action by its intent.
            tracing::debug!(parent: &action.ticket.span, "handed back");
            return;
        };
        hit("executor.end", &id).await;
        let cpu = Duration::from_micros(ended.runs.used.cpu.micros());
        if !ended.runs.attempts.is_empty() {
            action.ticket.slot.charge(cpu, ended.runs.attempts.len());
        }
        if matches!(&ended.result, Err(failure) if failure.code == Code::ToolDrifted)
            && let Some(connection) = action.state.gated().ruling().facts.connection_id.clone()
        {
            // What the server says now is for the gate to judge, before the next call.
            tokio::spawn(connectors::again(self.services.clone(), connection));
        }
        // Before the answer, so that a caller who then looks at the quota finds it within its bound.
        if let Some(pinned) = action.state.take_pinned() {
            drop(tokio::task::spawn_blocking(move || drop(pinned)).await);
        }
        let finished = action.advance(|claimed| Finished::new(claimed, ended, timeout));
        pass(&self.recorder, Record::Ran(Box::new(finished)));
    }
}

/// What undoes an item has minutes for all its tries.
fn time_of(action: &Execute) -> Duration {
    let allowed = allowed_time(&action.request, action.state.gated());
    if action.ticket.origin.is_undo() { allowed.max(BATCH_UNDO_TIME_MIN) } else { allowed }
}

impl Executor {
    async fn batch(&self, mut action: Execute) {
        let timeout = allowed_time(&action.request, action.state.gated());
        let _extended = extend_lease(&self.services.in_flight.leases, &action.ticket, LEASE_TTL_MAX);
        let Some(ended) = batches::run(&self.services, &self.validator, &mut action, timeout).await else {
            tracing::debug!(parent: &action.ticket.span, "handed back");
            return;
        };
        hit("executor.end", &action.ticket.action_id).await;
        let finished = action.advance(|claimed| Finished::new(claimed, ended, timeout));
        pass(&self.recorder, Record::Ran(Box::new(finished)));
    }

    /// The action, unless it is an item of a batch whose turn has not come: that one comes again, or never runs.
    fn in_turn(&self, action: Execute, this: &Address<Execute>) -> Option<Execute> {
        let Origin::Batch { batch_id, index, undo, .. } = &action.ticket.origin else { return Some(action) };
        let (index, undo) = (*index, *undo);
        let mut allowed = self.services.control.batches.watch(batch_id);
        let now = *allowed.borrow_and_update();
        let (mut turn, mut failure) = (now.turn(index, undo), not_started());
        // A batch that has ended opens no turn any more.
        if turn == Turn::Wait
            && let Ok(Some(_)) =
                ActionId::new(batch_id.as_str()).map_or(Ok(None), |id| self.services.store.receipt_of(&id))
        {
            self.services.control.batches.end(batch_id);
            turn = Turn::Stop;
            if *action.state.earlier() != Earlier::No {
                let why = "it was begun, and its batch has ended without it";
                failure = Failure::new(Code::OutcomeUnknown, Phase::Settle, why);
            }
        }
        match turn {
            Turn::Go => Some(action),
            Turn::Stop => {
                let gated = action.state.gated();
                let (tool, ruling, fence) =
                    (gated.tool().clone(), gated.ruling().clone(), action.state.fence());
                let (tool, ruling, fence) = (Some(tool), Some(ruling), Some(fence));
                let dead_letter = failure.code == Code::OutcomeUnknown;
                let refusal = Refusal::new(action, failure);
                pass(&self.recorder, Refusal { tool, ruling, fence, dead_letter, ..refusal }.into());
                None
            }
            Turn::Wait => {
                let extended = extend_lease(&self.services.in_flight.leases, &action.ticket, LEASE_TTL_MAX);
                let (again, mut halt) = (this.clone(), self.services.children.halt.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        _ = halt.wait_for(|halted| *halted) => {}
                        // If the batch died, its next copy opens the turns again.
                        _ = allowed.wait_for(|allowed| allowed.turn(index, undo) != Turn::Wait) => {
                            drop(extended);
                            pass(&again, action);
                        }
                    }
                });
                None
            }
        }
    }
}
