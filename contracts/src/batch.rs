//! Batches: up to [`BATCH_ITEMS_MAX`] actions of one subject in one space, all or nothing or one after another.
//!
//! A batch is itself an action, of the tool [`BATCH_TOOL`], and its parameters are a [`Batch`]. Each item is an action of its own, with its
//! own receipt, under the id `<batch_id>/<index>`; what undoes it, under `<batch_id>/<index>/undo`.

use std::collections::{BTreeMap, BTreeSet};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::effects::Touch;
use crate::failure::{Code, Failure, Phase};
use crate::ids::{ActionId, IdempotencyKey, ReceiptId, SessionId, SpaceId, SubjectId, ToolId};
use crate::json::{self, JsonInvalid};
use crate::limits::{BATCH_ID_BYTES_MAX, BATCH_ITEMS_MAX, REQUEST_BYTES_MAX, TIMEOUT_MS_MAX};
use crate::outcome::Outcome;
use crate::request::{ActionRequest, Origin, Qos, Rationale};
use crate::risk::RiskLevel;
use crate::tool::{Compensation, Repeat, SafetyClass, SandboxProfile, SideEffect, ToolSpec};

/// The tool of a batch. No other tool may have an id of effectd's own.
pub const BATCH_TOOL: &str = "effectd.batch";

/// Whether this is the tool of a batch.
pub fn is_batch(tool: &ToolId) -> bool {
    tool.as_str() == BATCH_TOOL
}

crate::wire_enum! {
    /// What a failure of one item means for the others.
    #[derive(Default)]
    pub enum BatchMode {
        /// All or nothing: the items before it are undone, in reverse.
        #[default]
        Atomic = "atomic",
        /// The items before it stay, and those after it do not start.
        Ordered = "ordered",
    }
}

/// Several actions, as a planner asks for them.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The id of the batch, for ever, as an action has one.
    #[schemars(extend("maxLength" = BATCH_ID_BYTES_MAX))]
    pub batch_id: ActionId,
    /// The subject that the planner acts for.
    pub subject_id: SubjectId,
    /// The space.
    pub space_id: SpaceId,
    /// What a failure means.
    #[serde(default)]
    pub mode: BatchMode,
    /// The actions, in the order in which they happen.
    #[schemars(length(min = 1, max = BATCH_ITEMS_MAX))]
    pub items: Vec<BatchItem>,
    /// How long all items together may take: no item starts later.
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub timeout_ms: Option<u64>,
    /// Judge and preview everything, start nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Why the planner wants this, for the approver.
    pub rationale: Option<Rationale>,
}

/// One action of a batch.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchItem {
    /// The tool. A batch holds no batch.
    #[schemars(extend("not" = { "const": BATCH_TOOL }))]
    pub tool_id: ToolId,
    /// The tool's parameters, by its schema.
    #[serde(default, deserialize_with = "json::object")]
    pub params: Map<String, Value>,
    /// Timeout, retries and circuit breaker; each may be left out.
    #[serde(default, skip_serializing_if = "Qos::is_empty")]
    pub qos: Qos,
    /// The caller's own idempotency key.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// The parameters of the action that a batch is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// What a failure means.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    pub mode: BatchMode,
    /// The actions, in order.
    #[schemars(length(min = 1, max = BATCH_ITEMS_MAX))]
    pub items: Vec<BatchItem>,
}

crate::wire_enum! {
    /// What has become of an item.
    pub enum Marker {
        /// It is done, by this batch or before.
        Committed = "committed",
        /// Nothing is left of it.
        RolledBack = "rolled_back",
        /// It could not be undone, or not whole.
        RollbackFailed = "rollback_failed",
        /// It had no effect, since it did not start.
        NotStarted = "not_started",
    }
}

/// What the receipt of a batch says about an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemMark {
    /// What has become of it.
    pub marker: Marker,
    /// Why, unless it is simply done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The paths that are not as they were before the batch, if it could not be undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// How many more there are, for which the receipt has no room; those of the item and of its undo have them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paths_left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The result of a batch.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchResult {
    /// The batch.
    pub batch_id: ActionId,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether something could not be undone.
    pub partial: bool,
    /// The items, in order.
    pub items: Vec<ItemResult>,
    /// Its receipt.
    pub receipt_id: ReceiptId,
    /// Why it is not done, if it is not.
    pub error: Option<Failure>,
}

/// What has become of an item, with its receipts.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ItemResult {
    /// The item's action.
    pub action_id: ActionId,
    /// The tool; left out if the item has no receipt.
    pub tool_id: Option<ToolId>,
    /// What has become of it.
    pub marker: Marker,
    /// Why, unless it is simply done.
    pub reason: Option<String>,
    /// The paths that are not as they were before the batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// How many more there are; the receipts of the item and of its undo have them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paths_left_out: u64,
    /// Its receipt; an earlier one, if it was done before.
    pub receipt_id: Option<ReceiptId>,
    /// The receipt of what undid it.
    pub undo_receipt_id: Option<ReceiptId>,
}

fn malformed(message: impl Into<String>) -> Failure {
    Failure::new(Code::Malformed, Phase::Accept, message)
}

impl BatchRequest {
    /// Parses and checks a request from outside.
    pub fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let request: Self = json::parse(bytes, REQUEST_BYTES_MAX)
            .map_err(|error: JsonInvalid| malformed(error.to_string()))?;
        check_bounds(&request.batch_id, &request.items)?;
        Ok(request)
    }

    /// The action that the batch is.
    pub fn into_action(self) -> ActionRequest {
        let batch = Batch { mode: self.mode, items: self.items };
        // Plain data with text keys, for which serde_json has no failure.
        let params = match serde_json::to_value(&batch) {
            Ok(Value::Object(params)) => params,
            Ok(_) | Err(_) => Map::new(),
        };
        let call = (own_tool(), params);
        let mut request = ActionRequest::new(self.batch_id, (self.subject_id, self.space_id), call);
        request.qos.timeout_ms = self.timeout_ms;
        request.dry_run = self.dry_run;
        request.rationale = self.rationale;
        request
    }
}

#[expect(clippy::expect_used, reason = "the constant is an id, which a test proves")]
fn own_tool() -> ToolId {
    ToolId::new(BATCH_TOOL).expect("the constant is an id")
}

fn check_bounds(batch_id: &ActionId, items: &[BatchItem]) -> Result<(), Failure> {
    if items.is_empty() || items.len() > BATCH_ITEMS_MAX {
        let count = items.len();
        return Err(malformed(format!("a batch has 1 to {BATCH_ITEMS_MAX} items, and this one has {count}")));
    }
    if let Some(nested) = items.iter().position(|item| is_batch(&item.tool_id)) {
        return Err(malformed(format!("items[{nested}] is a batch; put its items into this one")));
    }
    if batch_id.as_str().len() > BATCH_ID_BYTES_MAX {
        return Err(malformed(format!("batch_id has at most {BATCH_ID_BYTES_MAX} bytes")));
    }
    Ok(())
}

impl Batch {
    /// Reads the batch from the parameters of its action.
    pub fn of(params: &Map<String, Value>) -> Result<Self, Failure> {
        let batch: Self = serde_json::from_value(Value::Object(params.clone()))
            .map_err(|_| malformed("the parameters are not those of a batch"))?;
        Ok(batch)
    }

    /// The batch of an action, within its bounds.
    pub fn of_action(request: &ActionRequest) -> Result<Self, Failure> {
        let batch = Self::of(&request.params)?;
        check_bounds(&request.action_id, &batch.items)?;
        Ok(batch)
    }

    /// The request of an item: exactly what was asked for, for the subject and in the space of the batch.
    pub fn item(&self, batch: &ActionRequest, index: usize) -> Option<ActionRequest> {
        let item = self.items.get(index)?;
        let id = item_id(&batch.action_id, index)?;
        let place = (batch.subject_id.clone(), batch.space_id.clone());
        let mut request = ActionRequest::new(id, place, (item.tool_id.clone(), item.params.clone()));
        request.qos = item.qos.clone();
        request.policy_ctx = batch.policy_ctx.clone();
        request.idempotency_key.clone_from(&item.idempotency_key);
        request.dry_run = batch.dry_run;
        request.trace_id.clone_from(&batch.trace_id);
        Some(request)
    }

    /// The requests of all items, in order.
    pub fn requests(&self, batch: &ActionRequest) -> Vec<ActionRequest> {
        (0..self.items.len()).filter_map(|index| self.item(batch, index)).collect()
    }
}

/// The schemas of parameters and result.
fn schemas() -> (Value, Value) {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let schema =
        |of: fn(&mut SchemaGenerator) -> Schema| of(&mut settings.clone().into_generator()).to_value();
    let marks = schema(|generator| generator.root_schema_for::<Vec<ItemMark>>());
    let mut result = json!({
        "type": "object", "required": ["items", "partial"], "additionalProperties": false,
        "properties": { "items": marks, "partial": { "type": "boolean", "x-public": true } },
    });
    result["properties"]["items"]["x-public"] = json!(true);
    (schema(|generator| generator.root_schema_for::<Batch>()), result)
}

/// What effectd declares about [`BATCH_TOOL`]. The policy judges the items, never the batch by itself.
pub fn spec() -> ToolSpec {
    let (params_schema, result_schema) = schemas();
    ToolSpec {
        tool_id: own_tool(),
        version: "1.0.0".to_owned(),
        description: "Runs up to 64 actions, all or nothing or one after another. All of them are judged before the first one runs, and a \
            person is asked once about the whole."
            .to_owned(),
        caps_required: Vec::new(),
        params_schema,
        result_schema,
        side_effects: BTreeSet::from([SideEffect::FilesystemWrite]),
        safety_class: SafetyClass::Low,
        risk_level: Some(RiskLevel::Write),
        risk_tier: None,
        reversible: false,
        compensation: Compensation::None,
        timeout_ms: TIMEOUT_MS_MAX,
        price_micros: 0,
        idempotency_key_fields: None,
        resource: None,
        repeat: Repeat::Safe,
        sandbox_profile: SandboxProfile::default(),
        package: None,
    }
}

/// The id of an item's action.
pub fn item_id(batch_id: &ActionId, index: usize) -> Option<ActionId> {
    ActionId::new(format!("{batch_id}/{index}")).ok()
}

/// The id of the action that undoes an item.
pub fn undo_id(batch_id: &ActionId, index: usize) -> Option<ActionId> {
    ActionId::new(format!("{batch_id}/{index}/undo")).ok()
}

/// Whether this may be the id of what undoes an item. Nobody else may take one: an undo must not fail because of it.
pub fn is_undo_id(id: &ActionId) -> bool {
    let index = id.as_str().strip_suffix("/undo").and_then(|item| item.rsplit_once('/'));
    index.is_some_and(|(_, index)| !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The origin of an item, or of what undoes it.
pub fn origin(batch: &ActionRequest, parent: &Origin, index: usize, undo: bool) -> Origin {
    Origin::Batch {
        batch_id: batch.action_id.to_string(),
        index: u32::try_from(index).unwrap_or(u32::MAX),
        session_id: parent.of_session().cloned(),
        automation_id: parent.automation().map(str::to_owned),
        undo,
    }
}

/// The paths that several calls may change, each once, in order. A path that more than one of them changes is replaced, wherever its
/// content goes.
pub fn merged(touches: impl IntoIterator<Item = Touch>) -> Vec<Touch> {
    let (mut all, mut places) = (Vec::<Touch>::new(), BTreeMap::new());
    for touch in touches {
        match places.get(&touch.path) {
            Some(&place) => {
                let known: &mut Touch = &mut all[place];
                known.filled |= touch.filled;
                known.goes_to = None;
            }
            None => {
                places.insert(touch.path.clone(), all.len());
                all.push(touch);
            }
        }
    }
    all
}

impl Origin {
    /// The session with a record that the request belongs to, also as an item of a batch.
    pub fn of_session(&self) -> Option<&SessionId> {
        match self {
            Self::Session { session_id } => Some(session_id),
            Self::Batch { session_id, .. } => session_id.as_ref(),
            Self::Arbiter | Self::Plan | Self::Run { .. } => None,
        }
    }

    /// The batch that the request is an item of, and which one.
    pub fn item(&self) -> Option<(&str, u32)> {
        match self {
            Self::Batch { batch_id, index, undo: false, .. } => Some((batch_id, *index)),
            Self::Batch { undo: true, .. }
            | Self::Arbiter
            | Self::Plan
            | Self::Session { .. }
            | Self::Run { .. } => None,
        }
    }

    /// Whether effectd itself asks, to undo an item of a batch that was permitted.
    pub fn is_undo(&self) -> bool {
        matches!(self, Self::Batch { undo: true, .. })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn batch(items: usize) -> Value {
        let item = json!({ "tool_id": "files.write_text", "params": { "path": "workspace/a", "text": "x" } });
        json!({ "batch_id": "b", "subject_id": "agent://a", "space_id": "shared:s", "items": vec![item; items] })
    }

    fn parse(request: &Value) -> Result<BatchRequest, Failure> {
        BatchRequest::parse(request.to_string().as_bytes())
    }

    #[test]
    fn a_batch_has_bounds_and_holds_no_batch() {
        assert!(parse(&batch(1)).is_ok() && parse(&batch(BATCH_ITEMS_MAX)).is_ok());
        assert!(parse(&batch(0)).is_err() && parse(&batch(BATCH_ITEMS_MAX + 1)).is_err());
        let mut nested = batch(2);
        nested["items"][1]["tool_id"] = json!(BATCH_TOOL);
        assert!(parse(&nested).unwrap_err().message.contains("items[1]"));
        let mut long = batch(1);
        long["batch_id"] = json!("b".repeat(BATCH_ID_BYTES_MAX + 1));
        assert!(parse(&long).is_err());
        let mut misspelt = batch(1);
        misspelt["mod"] = json!("ordered");
        assert!(parse(&misspelt).is_err());
    }

    #[test]
    fn an_item_is_exactly_what_was_asked_for() {
        let mut asked = batch(2);
        asked["batch_id"] = json!("b".repeat(BATCH_ID_BYTES_MAX));
        asked["items"][1]["idempotency_key"] = json!("mine");
        let action = parse(&asked).unwrap().into_action();
        let batch = Batch::of_action(&action).unwrap();
        assert_eq!(batch.mode, BatchMode::Atomic);
        let item = batch.item(&action, 1).unwrap();
        assert_eq!(json!(item.params), asked["items"][1]["params"]);
        assert_eq!((item.tool_id.as_str(), item.subject_id), ("files.write_text", action.subject_id.clone()));
        assert_eq!(item.idempotency_key.unwrap().as_str(), "mine");
        assert!(
            undo_id(&action.action_id, BATCH_ITEMS_MAX - 1).is_some(),
            "the longest id has room for its items"
        );
    }

    #[test]
    fn a_path_of_several_calls_is_listed_once() {
        let touches = [Touch::replaced("a"), Touch::moved("a", "b"), Touch::filled("c")];
        assert_eq!(merged(touches), [Touch::replaced("a"), Touch::filled("c")]);
    }
}
