//! The first stage: is this a request that the tool can make sense of?

use std::sync::Arc;

use effectd_contracts::{Code, Failure, Phase};
use ractor::ActorProcessingErr;
use ractor::factory::{FactoryRef, Job, Worker, WorkerId};

use crate::action::{Action, Submitted};
use crate::failpoint::hit;
use crate::messages::{Judge, Record, Refusal, Validate};
use crate::parts::Parts;
use crate::registry::Entry;
use crate::stage::{PanicWatch, bounded, pass};

/// The tool exists, and the parameters fit its schema and its rules.
#[derive(Debug)]
pub struct Validated {
    entry: Arc<Entry>,
}

impl Validated {
    /// The tool.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

pub(crate) struct Validator {
    pub(crate) parts: Arc<Parts>,
    pub(crate) gate: FactoryRef<(), Judge>,
    pub(crate) recorder: FactoryRef<(), Record>,
}

impl Worker for Validator {
    type Key = ();
    type Message = Validate;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Validate>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Validate>,
        job: Job<(), Validate>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _watch = PanicWatch::new("validator", &self.parts);
        let Validate(action) = job.msg;
        let stalled = action.ticket.stalled.clone();
        let limit = self.parts.lease_ttl;
        let work = Box::pin(self.validate(action));
        bounded(&self.parts, "validator", limit, &stalled, work).await;
        Ok(())
    }
}

impl Validator {
    async fn validate(&self, mut action: Action<Submitted>) {
        action.ticket.begin(&*self.parts.clock);
        action.hop("validator");
        hit("validator.begin", &action.ticket.action_id).await;
        let checked = self.check(&action);
        hit("validator.end", &action.ticket.action_id).await;
        match checked {
            Ok(entry) => pass(&self.gate, Judge(action.advance(|_| Validated { entry }))),
            Err((tool, failure)) => {
                let outcome = failure.code.outcome();
                let refusal = Refusal {
                    action: action.advance(|_| ()),
                    tool,
                    ruling: None,
                    failure,
                    outcome,
                    fence: None,
                    dead_letter: false,
                };
                pass(&self.recorder, Record::Refused(Box::new(refusal)));
            }
        }
    }

    fn check(&self, action: &Action<Submitted>) -> Result<Arc<Entry>, (Option<Arc<Entry>>, Failure)> {
        let tool = &action.request.tool_id;
        let entry = self.parts.registry.find(tool).map_err(|error| {
            let failure = Failure::new(Code::UnknownTool, Phase::Validate, error.to_string());
            (None, failure)
        })?;
        action
            .request
            .check()
            .map_err(|failure| (Some(entry.clone()), failure))?;
        entry
            .check_params(&action.request.params)
            .map_err(|failure| (Some(entry.clone()), failure))?;
        Ok(entry.clone())
    }
}
