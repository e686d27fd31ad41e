//! The preview of a batch: all its items run one after another on one copy, so that an item sees what those before it do.
//!
//! Only a preview runs a batch in one child. Otherwise each item is an action, in a child of its own.

use std::collections::BTreeSet;

use effectd_contracts::batch::{self, BATCH_TOOL, Batch, merged};
use effectd_contracts::{
    ARTIFACT_GET_TOOL, Code, Failure, PathSnapshot, Phase, PreviewedItem, ToolCall, ToolId, ToolOutput,
    ToolSpec, Touch,
};
use serde_json::{Map, Value};

use crate::preview::{filled, standing};
use crate::tool::Tool;
use crate::workspace::Workspace;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole;

/// An item's place, its tool, and its call.
type Item = (usize, &'static dyn Tool, (ToolId, Map<String, Value>));

/// The items that change files by what they declare; a preview leaves the others out.
fn items(params: &Map<String, Value>) -> Vec<Item> {
    let items = Batch::of(params).map(|batch| batch.items).unwrap_or_default();
    let known = items.into_iter().enumerate().filter_map(|(index, item)| {
        let tool = crate::find(&item.tool_id)?;
        let is_shown = item.tool_id.as_str() != ARTIFACT_GET_TOOL && tool.touches(&item.params).is_some();
        is_shown.then_some((index, tool, (item.tool_id, item.params)))
    });
    known.collect()
}

/// Runs the items one after another on a copy, and notes what each of them changed, until one fails.
pub(crate) fn preview(
    copy: &Workspace<'_>,
    call: &ToolCall,
    done: &mut Vec<PreviewedItem>,
) -> Result<(), Failure> {
    let mut call = call.clone();
    for (index, tool, item) in items(&std::mem::take(&mut call.params)) {
        (call.tool_id, call.params) = item;
        let touches = tool.touches(&call.params).unwrap_or_default();
        let states = || {
            let state =
                |touch: &Touch| Ok(PathSnapshot::new(touch.path.clone(), standing(copy, &touch.path, 0)?.0));
            touches.iter().map(state).collect::<Result<Vec<_>, Failure>>()
        };
        let before = states()?;
        tool.run(copy, &call).map_err(|failure| {
            let why = format!("items[{index}] ({}): {}", call.tool_id, failure.message);
            Failure { message: why, ..failure }
        })?;
        let mut after = states()?;
        for (at, touch) in touches.iter().enumerate().filter(|(_, touch)| touch.filled) {
            after.extend(filled(copy, touch, after.get(at).map(|now| &now.standing))?);
        }
        done.push(PreviewedItem { index, before, after });
    }
    Ok(())
}

fn only_previewed() -> Failure {
    Failure::new(Code::Internal, Phase::Dispatch, "a batch as a whole is only previewed")
}

impl Tool for Whole {
    fn id(&self) -> &'static str {
        BATCH_TOOL
    }

    fn spec(&self) -> ToolSpec {
        batch::spec()
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        Batch::of(params).map(drop)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        let items = items(params).into_iter();
        Some(merged(items.flat_map(|(_, tool, (_, params))| tool.touches(&params).unwrap_or_default())))
    }

    fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        let items = items(params);
        let reads: BTreeSet<_> = items.iter().flat_map(|(_, tool, (_, params))| tool.reads(params)).collect();
        reads.into_iter().collect()
    }

    fn run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Err(only_previewed())
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Err(only_previewed())
    }
}
