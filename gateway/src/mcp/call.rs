//! Calls of tools. A call becomes an action; its result says how the action ended, or where it waits.

use std::sync::Arc;
use std::time::Duration;

use effectd_actors::batches::result_of;
use effectd_actors::effects::results;
use effectd_actors::preview::foresee;
use effectd_actors::{Done, Incoming};
use effectd_contracts::batch::is_batch;
use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{
    ActionId, ActionRequest, BATCH_TOOL, Batch, BatchItem, BatchMode, IdempotencyKey, Outcome, Plan, Qos,
    Receipt, ToolId, ToolSpec, TraceParent, UNDO_TOOL, canonical,
};
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock, ErrorData, MetaObject};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::caller::Caller;
use super::held::{self, Handle, Waiting};
use super::tools::{BATCH, PLAN, PREVIEW, RESULT, UNDO, WAIT};
use super::{Asked, give_up, value};
use crate::app::{App, Found};
use crate::headers;
use crate::limits::{MCP_REPEATS_MAX, MCP_WAIT_MAX};
use crate::problem::{Kind, Problem};
use crate::remediation::By;
use crate::routes::actions::{Reached, until_ended};
use crate::routes::{plans, receipts};
use crate::views::actions::{State, ended, unknown};
use crate::views::approvals::PreviewView;

/// The client's own key: the same key is the same action.
pub(super) const KEY: &str = "effectd/idempotencyKey";
/// The member of a result that names its receipt, beside the tool's own.
const RECEIPT: &str = "_receipt";
/// Claude Code's name for one use of a tool, which a repeat has again.
pub(super) const TOOL_USE: &str = "claudecode/toolUseId";

/// Why a call has no result of its tool.
enum Fault {
    /// The request is not a call.
    Protocol(ErrorData),
    /// What the model is told.
    Refused(Box<Problem>),
}

impl From<ErrorData> for Fault {
    fn from(error: ErrorData) -> Self {
        Self::Protocol(error)
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self::Refused(Box::new(problem))
    }
}

/// The answer to `tools/call`. What the policy denies, what is invalid and what fails is a result, so that the model reads it.
pub(super) async fn tool(mut asked: Asked) -> Result<Value, ErrorData> {
    let params = Value::Object(std::mem::take(&mut asked.params));
    // Answers to questions that the server never asked are left out: whatever they say, they approve nothing.
    let CallToolRequestParams { name, arguments, request_state, .. } = serde_json::from_value(params)
        .map_err(|error| ErrorData::invalid_params(format!("params: {error}"), None))?;
    match answered(&asked, &name, arguments.unwrap_or_default(), request_state).await {
        Ok(result) => Ok(result),
        Err(Fault::Protocol(error)) => Err(error),
        Err(Fault::Refused(problem)) => Ok(value(refused(*problem))),
    }
}

async fn answered(
    asked: &Asked,
    name: &str,
    arguments: Map<String, Value>,
    request_state: Option<String>,
) -> Result<Value, Fault> {
    let caller = Caller::of(asked)?;
    let digest = canonical::digest(&json!({ "name": name, "arguments": arguments }));
    if let Some(state) = request_state {
        // No bound counts them while the call waits.
        drop(arguments);
        let Handle { action_id, round, .. } = held::open(asked, &state, &digest)?;
        let waiting = Waiting { action_id, digest, round: round + 1, is_plain: false };
        return waited(asked, waiting, MCP_WAIT_MAX).await;
    }
    let waiting = |action_id| Waiting { action_id, digest, round: 0, is_plain: false };
    match name {
        WAIT => {
            let Wait { action_id, timeout_ms } = own(arguments)?;
            let time = timeout_ms.map_or(MCP_WAIT_MAX, Duration::from_millis).min(MCP_WAIT_MAX);
            waited(asked, Waiting { is_plain: true, ..waiting(action_id) }, time).await
        }
        RESULT => part(asked, own(arguments)?).await,
        PLAN => {
            let incoming = planned(asked, &caller, own(arguments)?)?;
            let waiting = waiting(incoming.request.action_id.clone());
            let _waiting = asked.app.wait_slot(&asked.peer)?;
            let reached = give_up::execute(&asked.app, &asked.peer, incoming, asked.bytes).await?;
            shown(asked, waiting, reached).await
        }
        PREVIEW if caller.previews => preview(asked, &caller, own(arguments)?).await,
        name => {
            let (tool, params) = if name == BATCH {
                (
                    asked.app.services().registry().get(&batch_tool()?).cloned(),
                    batch(asked, &caller, own(arguments)?)?,
                )
            } else if name == UNDO {
                let OfReceipt { receipt_id } = own(arguments)?;
                let receipt = own_receipt(asked, receipt_id)?;
                let params = [("receipt_id".to_owned(), value(&receipt.receipt_id))];
                let registry = asked.app.services().registry();
                let at_service = undo_at_service(&receipt.tool_id);
                let tool = ToolId::new(at_service.as_deref().unwrap_or(UNDO_TOOL)).ok();
                let tool = tool.and_then(|id| registry.get(&id).cloned());
                (tool, params.into_iter().collect())
            } else {
                (asked.app.catalogue().by_name(name), arguments)
            };
            let no_tool =
                || ErrorData::invalid_params("there is no tool of this name; tools/list has all names", None);
            let request = request(asked, &caller, tool.ok_or_else(no_tool)?.spec(), params)?;
            let action_id = request.action_id.clone();
            shown(asked, waiting(action_id), carried_out(asked, &caller, request).await?).await
        }
    }
}

/// The calls of a batch, by the names that the model knows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Calls {
    calls: Vec<OneCall>,
    #[serde(default)]
    mode: BatchMode,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneCall {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

fn batch_tool() -> Result<ToolId, ErrorData> {
    ToolId::new(BATCH_TOOL).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

/// The parameters of the action that the batch is.
fn batch(
    asked: &Asked,
    caller: &Caller,
    Calls { calls, mode }: Calls,
) -> Result<Map<String, Value>, Problem> {
    let catalogue = asked.app.catalogue();
    let mut items = Vec::with_capacity(calls.len());
    for (index, OneCall { tool, arguments }) in calls.into_iter().enumerate() {
        let known = catalogue.by_name(&tool).ok_or_else(|| {
            let why = format!("calls[{index}]: there is no tool of this name; tools/list has all names");
            Problem::of(Kind::QueryInvalid, why)
        })?;
        let request = caller.request(known.spec(), arguments);
        items.push(BatchItem {
            tool_id: request.tool_id,
            params: request.params,
            qos: Qos::default(),
            idempotency_key: None,
        });
    }
    Ok(value(Batch { mode, items }).as_object().cloned().unwrap_or_default())
}

/// Waits for the end of an action, and says where it is then.
async fn waited(asked: &Asked, waiting: Waiting, time: Duration) -> Result<Value, Fault> {
    let found = until_ended(&asked.app, &asked.peer, &waiting.action_id, time).await;
    let found = found.map_err(|problem| match problem.code.as_str() {
        "action_unknown" => no_action(&waiting.action_id),
        _ => problem,
    });
    let reached = match found? {
        Found::Done(done, _share) => Reached::Done(done),
        Found::Held(held) => Reached::Held(held),
        Found::Accepted | Found::Unknown => Reached::Accepted,
    };
    shown(asked, waiting, reached).await
}

/// The arguments of one of effectd's own tools.
fn own<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, Problem> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Problem::of(Kind::QueryInvalid, format!("the arguments do not fit: {error}")))
}

/// Elsewhere, an unknown action may be submitted again by its id. A call has no such id: repeated, it is another action.
fn no_action(id: &ActionId) -> Problem {
    Problem { detail: "you have no action of this id".to_owned(), ..unknown(id) }
}

/// The caller's own receipt. A receipt of somebody else looks as if it did not exist, also to a caller that may read it elsewhere.
pub(super) fn own_receipt(asked: &Asked, id: String) -> Result<Receipt, Problem> {
    match receipts::find(&asked.app, &asked.peer, id) {
        Ok(receipt) if asked.is_own(&receipt) => Ok(receipt),
        Err(problem) if problem.code != "receipt_unknown" => Err(problem),
        Ok(_) | Err(_) => Err(Problem::of(Kind::ReceiptUnknown, "you have no receipt of this id")),
    }
}

/// The request of a call. Its id follows from the client's key, so that a repeat after a lost answer is the same action; without a key,
/// the tool's own key fields tell whether it is the same.
fn request(
    asked: &Asked,
    caller: &Caller,
    tool: &ToolSpec,
    arguments: Map<String, Value>,
) -> Result<ActionRequest, Fault> {
    let mut request = caller.request(tool, arguments);
    if let Some(key) = key(asked)? {
        request.action_id = action_of(&asked.app, caller, &key)?;
    }
    request.traceparent = asked.meta.get_traceparent().and_then(|parent| TraceParent::new(parent).ok());
    headers::apply(&asked.headers, &mut request)?;
    Ok(request)
}

fn key(asked: &Asked) -> Result<Option<String>, ErrorData> {
    for name in [KEY, TOOL_USE] {
        let Some(given) = asked.meta.get(name) else { continue };
        // As long as any other idempotency key.
        let key = given.as_str().and_then(|key| IdempotencyKey::new(key).ok());
        let wrong =
            || ErrorData::invalid_params(format!("_meta[{name:?}] must be a short printable text"), None);
        return Ok(Some(format!("{name}\n{}", key.ok_or_else(wrong)?)));
    }
    Ok(None)
}

/// The action of a key. If it was withdrawn when its client went away, the client has come back for the next one.
fn action_of(app: &App, caller: &Caller, key: &str) -> Result<ActionId, Problem> {
    let mut action = caller.action_of(app, key, 0);
    for turn in 1..=MCP_REPEATS_MAX {
        let ended = app.receipt_of(&action)?;
        if ended.is_none_or(|done| done.receipt.outcome != Outcome::Cancelled) {
            break;
        }
        action = caller.action_of(app, key, turn);
    }
    Ok(action)
}

/// The action of a plan.
fn planned(asked: &Asked, caller: &Caller, mut plan: Plan) -> Result<Incoming, Fault> {
    if let Some(key) = key(asked)? {
        plan.action_id = Some(action_of(&asked.app, caller, &key)?);
    }
    let id = plan.action_id.take().unwrap_or_else(ActionId::fresh);
    plan.action_id = Some(caller.named(id.as_str()));
    // Who acts where is not for the model to say.
    plan.subject_id = Some(caller.subject.clone());
    plan.space_id = Some(caller.space.clone());
    let by = (caller.origin.clone(), None);
    Ok(plans::incoming(&asked.app, &asked.peer, &asked.headers, &plan, by)?)
}

async fn carried_out(asked: &Asked, caller: &Caller, request: ActionRequest) -> Result<Reached, Problem> {
    let Asked { app, peer, bytes, .. } = asked;
    let _waiting = app.wait_slot(peer)?;
    let incoming = Incoming {
        request: Arc::new(request),
        principal: peer.principal.clone(),
        origin: caller.origin.clone(),
        contract: None,
        interactive: caller.interactive,
    };
    give_up::execute(app, peer, incoming, *bytes).await
}

async fn shown(asked: &Asked, waiting: Waiting, reached: Reached) -> Result<Value, Fault> {
    match reached {
        Reached::Done(done) if !asked.is_own(&done.receipt) => Err(no_action(&waiting.action_id).into()),
        Reached::Done(done) => {
            let (done, _share) = asked.app.with_result(done, &asked.peer).await?;
            Ok(value(result(&asked.app, waiting.action_id, done)?))
        }
        Reached::Held(held) => Ok(held::answer(asked, &waiting, Some(&held))?),
        Reached::Accepted => Ok(held::answer(asked, &waiting, None)?),
    }
}

/// The result of an action that has ended.
pub(super) fn result(app: &App, action_id: ActionId, done: Done) -> Result<CallToolResult, Problem> {
    let receipt_id = done.receipt.receipt_id.clone();
    let of_its_own = |has_failed: bool, shown: Value| match has_failed {
        true => CallToolResult::structured_error(shown),
        false => CallToolResult::structured(shown),
    };
    if is_batch(&done.receipt.tool_id) {
        // What has become of each call, also if one failed. It is made of receipts, so nothing in it is secret, and no id may be cut.
        let found = result_of(app.store(), &done.receipt)?;
        return Ok(of_its_own(found.error.is_some(), value(found)));
    }
    if done.receipt.plan.is_some()
        && let Ok(planned) = plans::result(&action_id, &done)
    {
        return Ok(of_its_own(planned.error.is_some(), results::safe(&value(planned))));
    }
    let view = match ended(action_id, done) {
        Ok(view) => view,
        Err(problem) => return Ok(refused(*problem)),
    };
    let about = json!({
        "effectd/actionId": view.action_id, "effectd/receiptId": receipt_id, "effectd/outcome": view.outcome,
        "effectd/alreadyDone": view.already_done,
    });
    let safe = view.result.as_ref().map(results::safe);
    let mut result = match (view.state, view.result_error) {
        (State::Done, None) => {
            let mut shown = safe.unwrap_or_else(|| json!({}));
            // Clients show a model this part alone, and without the id it can undo nothing.
            if let Some(members) = shown.as_object_mut() {
                members.insert(RECEIPT.to_owned(), value(&receipt_id));
            }
            // The server of a connector has answered that its tool failed.
            let failed = shown["isError"] == true && shown.get("content").is_some();
            if failed { CallToolResult::structured_error(shown) } else { CallToolResult::structured(shown) }
        }
        (State::Done, Some(gone)) => text_result(format!("It was done. {}", gone.message), false),
        (State::Accepted | State::Held | State::Ended, _) => {
            let outcome = view.outcome.map(value).unwrap_or_default();
            let why = format!("Nothing was done ({}).", outcome.as_str().unwrap_or("no outcome"));
            text_result(why, true)
        }
    };
    let is_cut = result.structured_content.as_ref().is_some_and(|safe| safe["_truncated"] == true);
    if is_cut {
        let rest = format!("The result is cut. {RESULT} with receipt_id {receipt_id} reads parts of it.");
        result.content.push(ContentBlock::text(rest));
    }
    result.meta = about.as_object().cloned().map(MetaObject);
    Ok(result)
}

pub(super) fn text_result(text: String, is_error: bool) -> CallToolResult {
    let content = vec![ContentBlock::text(text)];
    if is_error { CallToolResult::error(content) } else { CallToolResult::success(content) }
}

/// The result of a call that was refused or failed: why, and what has to change.
fn refused(problem: Problem) -> CallToolResult {
    let mut text = format!("{} ({})", problem.detail, problem.code);
    if let Some(change) = &problem.change {
        let by = match change.by {
            By::Planner => "caller",
            By::Operator => "operator",
            By::Time => "passing of time",
        };
        text = format!("{text}. What has to change, by the {by}: {}.", change.what);
    }
    let mut result = text_result(text, true);
    let about = [
        ("effectd/actionId", value(&problem.action_id)),
        ("effectd/receiptId", value(problem.receipt.as_ref().map(|receipt| &receipt.receipt_id))),
    ];
    let about = about.into_iter().filter(|(_, id)| !id.is_null());
    result.meta = Some(MetaObject(about.map(|(name, id)| (name.to_owned(), id)).collect()));
    let mut structured = value(Problem { receipt: None, ..problem });
    if let Some(members) = structured.as_object_mut() {
        members.retain(|name, _| !["type", "title", "status", "action_id"].contains(&name.as_str()));
    }
    result.structured_content = Some(structured);
    result
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    action_id: ActionId,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfReceipt {
    receipt_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    receipt_id: String,
    #[serde(default)]
    pointer: String,
    #[serde(default)]
    from: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Foreseen {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// A part of an earlier result of the caller's own.
async fn part(asked: &Asked, Part { receipt_id, pointer, from }: Part) -> Result<Value, Fault> {
    let receipt = own_receipt(asked, receipt_id)?;
    let (done, _share) = asked.app.with_result(Done::before(Arc::new(receipt)), &asked.peer).await?;
    let nothing = || Problem::of(Kind::NotFound, "the result has nothing at this pointer");
    let whole = done.result.map_err(Problem::from)?.ok_or_else(nothing)?;
    let (part, next) = results::part(&whole, &pointer, from).ok_or_else(nothing)?;
    let mut shown = json!({ "part": part });
    if let Some(next) = next {
        shown["next"] = next.into();
    }
    Ok(value(CallToolResult::structured(shown)))
}

/// What a call would change.
async fn preview(
    asked: &Asked,
    caller: &Caller,
    Foreseen { tool, arguments }: Foreseen,
) -> Result<Value, Fault> {
    let found = asked.app.catalogue().by_name(&tool);
    let found = found.ok_or_else(|| Problem::of(Kind::ToolUnknown, "there is no tool of this name"))?;
    let request = caller.request(found.spec(), arguments);
    let _permit = asked.app.preview_permit()?;
    let foresight = foresee(asked.app.services(), &request, caller.by()).await.map_err(Problem::from)?;
    let view = results::safe(&value(PreviewView::of(&request, foresight)));
    Ok(value(CallToolResult::structured(view)))
}
