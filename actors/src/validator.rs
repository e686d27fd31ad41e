//! The first stage: is this a request that the tool can make sense of?

use std::sync::Arc;

use effectd_contracts::{ActionRequest, Code, Failure, Phase};

use crate::action::{Action, Submitted};
use crate::failpoint::hit;
use crate::messages::{Record, Refusal};
use crate::parts::Parts;
use crate::registry::Entry;
use crate::stage::{Address, Stage, pass};

/// The tool exists, and the parameters fit its schema and its rules.
#[derive(Debug)]
pub struct Validated {
    entry: Arc<Entry>,
}

impl Validated {
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

#[derive(Clone)]
pub(crate) struct Validator {
    pub(crate) parts: Arc<Parts>,
    pub(crate) gate: Address<Action<Validated>>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Validator {
    const NAME: &'static str = "validator";
    type Message = Action<Submitted>;

    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    async fn work(&self, mut action: Action<Submitted>, _: &Address<Action<Submitted>>) {
        action.ticket.begin(&*self.parts.clock);
        hit("validator.begin", &action.ticket.action_id).await;
        let checked = self.check(&action.request);
        hit("validator.end", &action.ticket.action_id).await;
        match checked {
            Ok(entry) => pass(&self.gate, action.advance(|_| Validated { entry })),
            Err((tool, failure)) => {
                let refusal = Refusal {
                    tool,
                    ..Refusal::new(action, failure)
                };
                pass(&self.recorder, refusal.into());
            }
        }
    }
}

impl Validator {
    fn check(&self, request: &ActionRequest) -> Result<Arc<Entry>, (Option<Arc<Entry>>, Failure)> {
        let entry = self.parts.registry.find(&request.tool_id).map_err(|error| {
            let failure = Failure::new(Code::UnknownTool, Phase::Validate, error.to_string());
            (None, failure)
        })?;
        let fits = request.check().and_then(|()| entry.check_params(&request.params));
        match fits {
            Ok(()) => Ok(entry.clone()),
            Err(failure) => Err((Some(entry.clone()), failure)),
        }
    }
}
