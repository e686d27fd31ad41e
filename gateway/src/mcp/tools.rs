//! `tools/list`: only what this caller could be allowed, with what the policy says to each, and effectd's own tools.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use effectd_actors::preview::Offers;
use effectd_contracts::limits::BATCH_ITEMS_MAX;
use effectd_contracts::{BatchMode, RiskTier, UNDO_TOOL};
use rmcp::model::ErrorData;
use serde_json::{Value, json};

use super::Asked;
use super::caller::Caller;
use crate::app::App;
use crate::limits::MCP_LIST_FRESH_MS;
use crate::problem::Problem;

pub(super) const WAIT: &str = "effectd_wait";
pub(super) const RESULT: &str = "effectd_result";
pub(super) const UNDO: &str = "effectd_undo";
pub(super) const BATCH: &str = "effectd_batch";
pub(super) const PREVIEW: &str = "effectd_preview";
pub(super) const PLAN: &str = "effectd_plan";

/// The answer to `tools/list`.
pub(super) async fn listed(id: &Value, asked: &Asked) -> Result<Response, ErrorData> {
    if asked.params.contains_key("cursor") {
        return Err(ErrorData::invalid_params("the list has one page", None));
    }
    let caller = Caller::of(asked)?;
    let listing = asked.app.blocking(move |app| {
        let tools = list(app, &caller)?;
        // Who could be allowed nothing as this subject is told nothing of it, either.
        let left = (!tools.is_empty()).then(|| app.services().control.budgets.left_of(&caller.subject));
        Ok((tools, left.flatten()))
    });
    let (tools, left) = listing.await?;
    let mut list = json!({ "resultType": "complete", "ttlMs": MCP_LIST_FRESH_MS, "cacheScope": "private" });
    if let Some(left) = left {
        list["_meta"] = json!({ "effectd/budgetLeft": left });
    }
    list["tools"] = json!([]);
    let (_, message) = asked.era.message(id, Ok(list));
    // The tools are in JSON already. No text of the message contains this: there, a quote has a backslash before it.
    let message = message.to_string();
    let (before, after) = message.split_once(r#""tools":[]"#).unwrap_or((&message, ""));
    let body = [before, r#""tools":["#, &tools, "]", after].concat();
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The tools that this caller could be allowed, in the order of their names, in JSON with commas between them. If it could be allowed
/// none, there is nothing to wait for, either.
pub(super) fn list(app: &App, caller: &Caller) -> Result<String, Problem> {
    let catalogue = app.catalogue();
    let (mut tools, mut undoes) = (Vec::<(&str, [&str; 3])>::new(), false);
    let mut offers = Offers::new(app.services(), (&caller.subject, &caller.space), caller.by())?;
    for (name, listed) in catalogue.iter() {
        let Some(mode) = offers.mode_of(&listed.tool)? else { continue };
        if listed.tool.spec().tool_id.as_str() == UNDO_TOOL {
            undoes = true;
        } else {
            tools.push((name, listed.json(mode)));
        }
    }
    let own = if tools.is_empty() { Vec::new() } else { own(undoes, caller.previews) };
    let own: Vec<_> = own.iter().map(|tool| (tool["name"].as_str(), tool.to_string())).collect();
    tools.extend(own.iter().map(|(name, json)| (name.unwrap_or_default(), [json.as_str(), "", ""])));
    tools.sort_unstable_by_key(|(name, _)| *name);
    // A list may be long, so it is put together once.
    let parts = tools.iter().enumerate().flat_map(|(nth, (_, [before, mode, after]))| {
        [if nth == 0 { "" } else { "," }, *before, *mode, *after]
    });
    Ok(parts.collect::<Vec<_>>().concat())
}

/// effectd's own tools: about actions, not actions themselves.
fn own(undoes: bool, previews: bool) -> Vec<Value> {
    let text = |about: &str| json!({ "type": "string", "minLength": 1, "description": about });
    let number = |about: &str| json!({ "type": "integer", "minimum": 0, "description": about });
    let receipt = || text("The receipt of the call: _receipt in its result");
    let mut tools = vec![
        tool(
            WAIT,
            "Wait for a call",
            "Waits until a call that needs a person's approval, or that takes long, has ended, and returns its result. Use it \
             after a result with an action_id. If it answers that the call still waits, call it again or do something else \
             meanwhile; do not repeat the call itself.",
            &["action_id"],
            json!({
                "action_id": text("The action_id of the result"),
                "timeout_ms": number("How long to wait; 50000 at most, and if left out"),
            }),
        ),
        tool(
            RESULT,
            "Read a part of a result",
            "Reads a part of the result of an earlier call. Use it when a result has _truncated: true. A text comes in parts; next is \
             where the following part begins. Example: {\"receipt_id\":\"…\",\"pointer\":\"/stdout\",\"from\":8192}",
            &["receipt_id"],
            json!({
                "receipt_id": receipt(),
                "pointer": { "type": "string", "description": "A JSON pointer into the result, such as /text; all of it if left out" },
                "from": number("The byte of a text to begin at"),
            }),
        ),
    ];
    let calls = json!({
        "type": "array", "minItems": 1, "maxItems": BATCH_ITEMS_MAX, "description": "The calls, in the order in which they happen",
        "items": {
            "type": "object", "required": ["tool", "arguments"], "additionalProperties": false,
            "properties": { "tool": text("The name of the tool"), "arguments": { "type": "object", "description": "Its arguments" } },
        },
    });
    let mode = json!({
        "type": "string", "enum": BatchMode::ALL.map(BatchMode::as_str),
        "description": "atomic, if left out: if one call fails, those before it are undone. ordered: they stay, and the rest does not start",
    });
    let mut batch = tool(
        BATCH,
        "Call several tools at once",
        "Makes up to 64 calls of other tools, all or nothing or one after another. All are judged before the first one starts, and a person \
         is asked once about the whole. Use it for changes that belong together. The result has a marker for each call.",
        &["calls"],
        json!({ "calls": calls, "mode": mode }),
    );
    // Its calls may be those of services.
    batch["annotations"] = json!({ "readOnlyHint": false, "destructiveHint": true, "openWorldHint": true });
    tools.push(batch);
    if previews {
        tools.push(tool(
            PREVIEW,
            "Preview a call",
            "Shows what a call of another tool would change, as a diff, and whether the policy would allow it, ask a person or deny it. \
             Nothing is changed. Use it before a change that you are unsure of. Example: \
             {\"tool\":\"files_write_text\",\"arguments\":{\"path\":\"workspace/a.txt\",\"text\":\"hello\"}}",
            &["tool", "arguments"],
            json!({ "tool": text("The name of the tool"), "arguments": { "type": "object", "description": "Its arguments" } }),
        ));
    }
    let list = |about: &str| json!({ "type": "array", "items": { "type": "string" }, "description": about });
    let mut plan = tool(
        PLAN,
        "Carry out a plan",
        "Runs one tool with checks: it is executed, verified by commands that the policy names, repaired once, and rolled back if it still \
         fails. Use it for a change that must be verified. The status is succeeded, reverted, rejected or failed; \
         a plan that a person must decide about is waited for like any call. Example: {\"actionType\":\"files.write_text\",\"riskTier\":\"R2\",\
         \"input\":{\"path\":\"workspace/a.json\",\"text\":\"{}\"},\"verification\":{\"required\":true,\"commands\":[\"jq . a.json\"]},\
         \"rollbackPlan\":{\"restore\":\"files\"},\"scope\":{\"allowedFiles\":[\"a.json\"]}}",
        &["actionType", "input", "verification"],
        json!({
            "actionType": text("The tool, by its id"),
            "riskTier": { "type": "string", "enum": RiskTier::ALL.map(RiskTier::as_str), "description": "It can only raise the tool's own tier; without it, the plan is at least R3" },
            "input": { "type": "object", "description": "The tool's parameters" },
            "verification": { "type": "object", "properties": {
                "required": { "type": "boolean" },
                "commands": list("Each a program and its arguments, which the policy names"),
            } },
            "rollbackPlan": { "description": "How it is undone; a write of tier R2 needs it" },
            "scope": { "type": "object", "properties": {
                "allowedFiles": list("Files that may change"),
                "allowedDirs": list("Folders in which files may change"),
                "forbiddenFiles": list("Files that may not change"),
            } },
            "confidence": { "type": "number", "minimum": 0, "maximum": 1, "description": "How sure you are" },
            "reason": text("Why, for the person who decides"),
        }),
    );
    plan["annotations"] = json!({ "readOnlyHint": false, "destructiveHint": false, "openWorldHint": false });
    tools.push(plan);
    if undoes {
        let mut undo = tool(
            UNDO,
            "Undo a call",
            "Takes back the changes of an earlier call of yours, byte for byte, if nothing has changed there since. It is a call \
             of its own and can be undone itself. Use it when a change was wrong.",
            &["receipt_id"],
            json!({ "receipt_id": receipt() }),
        );
        undo["annotations"] =
            json!({ "readOnlyHint": false, "destructiveHint": false, "openWorldHint": false });
        tools.push(undo);
    }
    tools
}

fn tool(name: &str, title: &str, description: &str, required: &[&str], fields: Value) -> Value {
    let schema = json!({
        "type": "object", "properties": fields, "required": required, "additionalProperties": false,
    });
    let hints = json!({ "readOnlyHint": true, "openWorldHint": false });
    json!({
        "name": name, "title": title, "description": description, "inputSchema": schema, "annotations": hints,
    })
}
