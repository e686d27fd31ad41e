//! What the templates of a definition yield, for its author: nothing is saved, and no action runs.

use effectd_actors::Services;
use effectd_contracts::Failure;
use serde_json::{Map, Value, json};

use crate::context::RunFacts;
use crate::definition::{Definition, Step};
use crate::templates::{RenderRequest, RenderedStep, StepTemplates, render};

/// Renders all steps with the same inputs and results of steps; those after a failure as if the first step had failed. Each step
/// by its id: a step may need a result that is not given.
pub async fn preview(
    services: &Services,
    definition: &Definition,
    run: &RunFacts,
    (inputs, outputs): (&Map<String, Value>, &Map<String, Value>),
) -> Result<Vec<(String, RenderedStep)>, Failure> {
    let first = definition.plan.first().map_or("", |step| &step.step_id);
    let error = json!({ "code": "tool_failed", "message": "an example" });
    let parts = [(&definition.plan, None), (&definition.execution.on_failure, Some((first, error)))];
    let mut all = Vec::new();
    for (steps, failure) in parts {
        let context = run.context(inputs, outputs, failure);
        let request = RenderRequest { context, steps: steps.iter().map(templates).collect() };
        let ids = steps.iter().map(|step| step.step_id.clone());
        all.extend(ids.zip(render(services, request).await?));
    }
    Ok(all)
}

fn templates(step: &Step) -> StepTemplates {
    StepTemplates { when: step.when.clone(), config: step.config.clone() }
}
