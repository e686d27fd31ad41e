//! The tool of batches, described by what it is made of: its rule, its paths and what it reads are those of the items.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use effectd_bus::limits::RESOURCES_MAX;
use effectd_contracts::batch::{self, Batch, BatchItem, merged};
use effectd_contracts::{Code, Failure, Phase, ToolId, Touch};
use serde_json::{Map, Value, json};

use super::{Definition, RegisteredTool, Source};

/// The tools that an item may have, also by their aliases.
#[derive(Clone)]
struct Tools(Arc<BTreeMap<ToolId, Arc<RegisteredTool>>>);

impl Tools {
    fn items(params: &Map<String, Value>) -> Vec<BatchItem> {
        Batch::of(params).map(|batch| batch.items).unwrap_or_default()
    }

    /// Each item must be a valid call by itself.
    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        for (index, item) in Batch::of(params)?.items.iter().enumerate() {
            let tool = self.0.get(&item.tool_id).ok_or_else(|| {
                let why = format!("/items/{index}/tool_id: there is no tool {}", item.tool_id);
                Failure::new(Code::UnknownTool, Phase::Validate, why)
            })?;
            tool.check_params(&item.params).map_err(|failure| {
                let message = format!("/items/{index} ({}): {}", item.tool_id, failure.message);
                Failure { message, ..failure }
            })?;
        }
        let paths = self.touches(params).len();
        if paths > RESOURCES_MAX {
            let why =
                format!("/items: they change {paths} paths; a batch may change at most {RESOURCES_MAX}");
            return Err(Failure::new(Code::ParamsInvalid, Phase::Validate, why));
        }
        Ok(())
    }

    fn touches(&self, params: &Map<String, Value>) -> Vec<Touch> {
        let items = Self::items(params).into_iter();
        merged(items.flat_map(|item| {
            self.0.get(&item.tool_id).and_then(|tool| tool.touches(&item.params)).unwrap_or_default()
        }))
    }

    fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        let items = Self::items(params).into_iter();
        let read = items.flat_map(|item| {
            self.0.get(&item.tool_id).map(|tool| tool.reads(&item.params)).unwrap_or_default()
        });
        read.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// `None` never happens: a test makes it.
pub(super) fn tool(
    tools: &BTreeMap<ToolId, Arc<RegisteredTool>>,
    aliases: &BTreeMap<ToolId, ToolId>,
) -> Option<Arc<RegisteredTool>> {
    let by_alias = aliases.iter().filter_map(|(alias, id)| Some((alias.clone(), tools.get(id)?.clone())));
    let known = tools.iter().map(|(id, tool)| (id.clone(), tool.clone())).chain(by_alias);
    let tools = Tools(Arc::new(known.collect()));
    let (of_touches, of_reads) = (tools.clone(), tools.clone());
    let definition = Definition {
        touches: Some(Arc::new(move |params| of_touches.touches(params))),
        reads: Some(Arc::new(move |params| of_reads.reads(params))),
        example: example(),
        ..Definition::new(Source::Core, batch::spec(), Arc::new(move |params| tools.check(params)))
    };
    RegisteredTool::new(definition)
        .inspect_err(|error| tracing::error!(%error, "batches cannot be described"))
        .ok()
        .map(Arc::new)
}

fn example() -> Map<String, Value> {
    let write = |path: &str, text: &str| {
        let params = json!({ "path": path, "text": text, "space_id": "shared:code" });
        json!({ "tool_id": "files.write_text", "params": params })
    };
    let items = [write("workspace/a.txt", "a"), write("workspace/b.txt", "b")];
    let example = json!({ "mode": "atomic", "items": items });
    example.as_object().cloned().unwrap_or_default()
}
