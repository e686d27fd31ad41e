//! The executor stage: runs a claimed action in a fresh sandbox, and passes its outcome to the recorder.

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::Code;

use crate::action::Finished;
use crate::effects::active_calls::ActiveCalls;
use crate::execution::call::allowed_time;
use crate::execution::steps::Execution;
use crate::failpoint::hit;
use crate::messages::{Execute, Record};
use crate::operator::connectors;
use crate::services::Services;
use crate::stage::{Address, Stage, extend_lease, pass};

#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) services: Arc<Services>,
    pub(crate) calls: Arc<ActiveCalls>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Executor {
    const NAME: &'static str = "executor";
    type Message = Execute;

    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    fn limit(&self, action: &Execute) -> Duration {
        allowed_time(&action.request, action.state.gated()) + self.services.in_flight.leases.ttl
    }

    async fn work(&self, mut action: Execute, _: &Address<Execute>) {
        let id = action.ticket.action_id.clone();
        hit("executor.begin", &id).await;
        let timeout = allowed_time(&action.request, action.state.gated());
        let _extended = extend_lease(&self.services.in_flight.leases, &action.ticket, self.limit(&action));
        let work = Box::pin(async {
            // The action's time begins when it gets its start slot.
            action.step("turn");
            let deadline = self.services.clock.monotonic().plus(timeout);
            let mut execution = Execution::new(&self.services, &self.calls, &action, deadline);
            let Err(over) = execution.steps().await;
            over
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
