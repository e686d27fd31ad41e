//! What can happen: one file a tool, each with its description, its `run` and its tests.
//!
//! A tool's code runs only inside the confined child; its description and its parameter rules are also read by the
//! pipeline, outside. The sandbox is what keeps a tool honest; the code here is merely careful.

pub mod limits;
pub mod spacepath;
pub mod tool;
pub mod workspace;

pub mod files;

pub use spacepath::{PathInvalid, SpacePath};
pub use tool::Tool;
pub use workspace::{FileProblem, Workspace};

use effectd_contracts::json;
use effectd_contracts::{CallMode, Code, Failure, Phase, ToolCall, ToolReply};

/// Every tool that effectd brings. Adding one is a file and a word here.
pub fn all() -> &'static [&'static dyn Tool] {
    &[&files::WriteText]
}

/// Runs one call inside the confined child: bytes in, bytes out. Whatever goes wrong becomes a reply.
pub fn dispatch(workspace: &Workspace<'_>, request: &[u8]) -> Vec<u8> {
    let reply = match json::parse::<ToolCall>(request, limits::CALL_BYTES_MAX) {
        Ok(call) => answer(workspace, &call),
        Err(error) => {
            let message = format!("the call cannot be read: {error}");
            ToolReply::Failed(Failure::new(Code::Internal, Phase::Dispatch, message))
        }
    };
    // A reply is plain data with text keys, for which serde_json has no failure; an empty answer is refused outside.
    serde_json::to_vec(&reply).unwrap_or_default()
}

fn answer(workspace: &Workspace<'_>, call: &ToolCall) -> ToolReply {
    let Some(tool) = all().iter().find(|tool| tool.spec().tool_id == call.tool_id) else {
        let message = format!("this binary has no tool {}", call.tool_id);
        return ToolReply::Failed(Failure::new(Code::UnknownTool, Phase::Dispatch, message));
    };
    let reply = match call.mode {
        CallMode::Run => tool.run(workspace, call).map(ToolReply::Done),
        CallMode::DryRun => tool.dry_run(workspace, call).map(ToolReply::Done),
        CallMode::Probe => tool.probe(workspace, call).map(ToolReply::Probed),
    };
    reply.unwrap_or_else(ToolReply::Failed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_description_holds_its_rules_and_no_id_is_taken_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for tool in all() {
            let spec = tool.spec();
            spec.check().unwrap();
            assert!(seen.insert(spec.tool_id.clone()), "{} twice", spec.tool_id);
            for schema in [&spec.params_schema, &spec.result_schema] {
                jsonschema::draft202012::meta::validate(schema).unwrap();
            }
        }
    }
}
