//! The validator stage: does the tool exist, and do the parameters fit its schema and rules?

use std::sync::Arc;

use effectd_contracts::batch::is_batch;
use effectd_contracts::{ActionRequest, Code, Failure, Phase};

use crate::action::{Action, Submitted, Validated};
use crate::failpoint::hit;
use crate::messages::{Record, Refusal};
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::stage::{Address, Stage, pass};

#[derive(Clone)]
pub(crate) struct Validator {
    pub(crate) services: Arc<Services>,
    pub(crate) gate: Address<Action<Validated>>,
    pub(crate) recorder: Address<Record>,
}

impl Stage for Validator {
    const NAME: &'static str = "validator";
    type Message = Action<Submitted>;

    fn services(&self) -> &Arc<Services> {
        &self.services
    }

    async fn work(&self, mut action: Action<Submitted>, _: &Address<Action<Submitted>>) {
        action.ticket.begin(&*self.services.clock);
        hit("validator.begin", &action.ticket.action_id).await;
        // A batch that has begun ends by what its items come to, whatever tools there are now.
        let begun = is_batch(&action.request.tool_id) && action.ticket.begun.is_some();
        let checked = self.check(&action.request, begun);
        hit("validator.end", &action.ticket.action_id).await;
        match checked {
            Ok(tool) => pass(&self.gate, action.advance(|_| Validated::new(tool))),
            Err((tool, failure)) => {
                let refusal = Refusal { tool, ..Refusal::new(action, failure) };
                pass(&self.recorder, refusal.into());
            }
        }
    }
}

impl Validator {
    fn check(
        &self,
        request: &ActionRequest,
        begun: bool,
    ) -> Result<Arc<RegisteredTool>, (Option<Arc<RegisteredTool>>, Failure)> {
        let registry = self.services.registry();
        let tool = registry.find(&request.tool_id).map_err(|error| {
            let failure = Failure::new(Code::UnknownTool, Phase::Validate, error.to_string());
            (None, failure)
        })?;
        if begun {
            return Ok(tool.clone());
        }
        let fits = request.check().and_then(|()| tool.check_params(&request.params));
        match fits {
            Ok(()) => Ok(tool.clone()),
            Err(failure) => Err((Some(tool.clone()), failure)),
        }
    }
}
