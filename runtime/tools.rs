//! The tools of this program: those that effectd brings, and those of a program that has the runtime inside.
//!
//! A tool's code runs in the confined child only, which is this very program, executed again. So both sides must know the
//! same tools: the child by [`crate::init_with`], the pipeline by [`crate::Config::tools`], which begins with the same.

use std::sync::{Arc, OnceLock};

use effectd_actors::{Registry, RegistryError};
use effectd_adapters::limits::CALL_BYTES_MAX;
use effectd_adapters::{Tool, Workspace};
use effectd_contracts::{CallMode, ToolCall, ToolReply, json};
use effectd_sandbox::ChildCtx;

/// Tools of an embedding program.
pub type Tools = &'static [&'static dyn Tool];

static OWN: OnceLock<Tools> = OnceLock::new();

/// In a process that the sandbox started, runs the tools and never returns.
pub(crate) fn init(own: Tools) {
    // A second call comes too late to be in a zygote.
    let _ = OWN.set(own);
    effectd_sandbox::init(dispatch);
}

/// What [`crate::init_with`] was given.
pub(crate) fn own() -> Tools {
    OWN.get().copied().unwrap_or_default()
}

fn dispatch(context: &ChildCtx, request: &[u8]) -> Vec<u8> {
    let workspace = Workspace::new(context.workspace(), context.tmp());
    let own = own();
    if !own.is_empty()
        && let Ok(call) = json::parse::<ToolCall>(request, CALL_BYTES_MAX)
        && !is_built_in(&call)
        && let Some(tool) = own.iter().find(|tool| tool.spec().tool_id == call.tool_id)
    {
        // A reply is plain data with text keys, for which serde_json has no failure.
        return serde_json::to_vec(&answer(*tool, &workspace, &call)).unwrap_or_default();
    }
    effectd_adapters::dispatch(&workspace, request)
}

fn is_built_in(call: &ToolCall) -> bool {
    effectd_adapters::all()
        .iter()
        .any(|tool| tool.spec().tool_id == call.tool_id)
}

fn answer(tool: &dyn Tool, workspace: &Workspace<'_>, call: &ToolCall) -> ToolReply {
    let reply = match call.mode {
        CallMode::Run => tool.run(workspace, call).map(ToolReply::Done),
        CallMode::DryRun => tool.dry_run(workspace, call).map(ToolReply::Done),
        CallMode::Probe => tool.probe(workspace, call).map(ToolReply::Probed),
    };
    reply.unwrap_or_else(ToolReply::Failed)
}

/// Every tool that effectd brings and every one of the program's own, with their parameter rules. An id that is taken is
/// refused, so that nobody can put another tool in the place of a built-in one.
pub fn registry(own: Tools) -> Result<Registry, RegistryError> {
    let mut registry = Registry::default();
    for tool in effectd_adapters::all().iter().chain(own) {
        registry.register(tool.spec(), Arc::new(|params| tool.check(params)))?;
    }
    Ok(registry)
}
