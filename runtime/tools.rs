//! The tools of this program: those that effectd brings, and those of a program that has the runtime inside.
//!
//! A tool's code runs in the confined child only, which is this very program, executed again. So both sides must know the
//! same tools: the child by [`crate::init_with`], the pipeline by [`crate::Config::tools`], which begins with the same.

use std::io;
use std::sync::{Arc, OnceLock};

use effectd_actors::{Definition, Registry, RegistryError, Source};
use effectd_adapters::limits::CALL_BYTES_MAX;
use effectd_adapters::{Beside, Tool, Workspace, answer};
use effectd_contracts::{ToolCall, ToolId, json};
use effectd_sandbox::ChildCtx;

/// Tools of an embedding program.
pub type Tools = &'static [&'static dyn Tool];

static OWN: OnceLock<Tools> = OnceLock::new();

/// In a process that the sandbox started, runs the tools and never returns.
pub(crate) fn init(own: Tools) {
    // A second call comes too late to be in a zygote.
    let _ = OWN.set(own);
    effectd_sandbox::init_with_warm_up(dispatch, Some(WARM_UP));
}

/// A small call of the most common kind, which changes nothing and looks at nothing.
const WARM_UP: &[u8] = br#"{
    "tool_id": "files.write_text", "mode": "dry_run", "space_id": "private:nobody",
    "params": { "path": "tmp/nothing", "text": "", "space_id": "private:nobody" },
    "timeout_ms": 1, "trace_id": "00000000000000000000000000000001"
}"#;

/// What [`crate::init_with`] was given.
pub(crate) fn own() -> Tools {
    OWN.get().copied().unwrap_or_default()
}

fn dispatch(context: &ChildCtx, request: &[u8]) -> Vec<u8> {
    let root = context.workspace_path().to_str().unwrap_or(".");
    let line = Line(context);
    let workspace = Workspace::new(context.workspace(), context.tmp());
    let workspace = workspace.named(root).with_beside(&line);
    let own = own();
    if !own.is_empty()
        && let Ok(call) = json::parse::<ToolCall>(request, CALL_BYTES_MAX)
        && !is_built_in(&call)
        && let Some(tool) = own.iter().find(|tool| tool.id() == call.tool_id.as_str())
    {
        // A reply is plain data with text keys, for which serde_json has no failure.
        return serde_json::to_vec(&answer(*tool, &workspace, &call)).unwrap_or_default();
    }
    effectd_adapters::dispatch(&workspace, request)
}

/// What goes beside a call, through the child's channel.
#[derive(Debug)]
struct Line<'a>(&'a ChildCtx);

impl Beside for Line<'_> {
    fn say(&self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        self.0.say(stream, bytes)
    }

    fn hear(&self) -> io::Result<Vec<u8>> {
        self.0.hear()
    }
}

fn is_built_in(call: &ToolCall) -> bool {
    effectd_adapters::all()
        .iter()
        .any(|tool| tool.id() == call.tool_id.as_str())
}

/// Every tool that effectd brings and every one of the program's own, with their parameter rules. An id that is taken is
/// refused, so that nobody can put another tool in the place of a built-in one.
pub fn registry(own: Tools) -> Result<Registry, RegistryError> {
    let built_in = effectd_adapters::all().iter().map(|tool| (Source::Core, *tool));
    let own = own.iter().map(|tool| (Source::Provider, *tool));
    let definitions = built_in.chain(own).map(|(source, tool)| definition(source, tool));
    let (registry, mut refused) = Registry::assemble(definitions.collect());
    match refused.pop() {
        Some(error) => Err(error),
        None => Ok(registry),
    }
}

/// All that the pipeline may know of a tool.
fn definition(source: Source, tool: &'static dyn Tool) -> Definition {
    let spec = tool.spec();
    let example = tool.example();
    let example = example.as_object().cloned().unwrap_or_default();
    let aliases = tool.aliases().iter().filter_map(|alias| ToolId::new(*alias).ok());
    let says_what_it_touches = tool.touches(&example).is_some();
    let mut definition = Definition::new(source, spec, Arc::new(|params| tool.check(params)));
    definition.aliases = aliases.collect();
    definition.reads = Some(Arc::new(|params| tool.reads(params)));
    definition.example = example;
    if says_what_it_touches {
        definition.touches = Some(Arc::new(|params| tool.touches(params).unwrap_or_default()));
    }
    definition
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::AsFd;

    use effectd_contracts::ToolReply;

    use super::*;

    #[test]
    fn what_warms_up_is_a_call_that_changes_nothing() {
        let space = tempfile::tempdir().unwrap();
        let root = File::open(space.path()).unwrap();
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let reply = effectd_adapters::dispatch(&workspace, WARM_UP);
        let reply: ToolReply = serde_json::from_slice(&reply).unwrap();
        assert!(
            matches!(&reply, ToolReply::Done(output) if output.result["dry_run"] == true),
            "{reply:?}"
        );
        assert_eq!(space.path().read_dir().unwrap().count(), 0);
    }
}
