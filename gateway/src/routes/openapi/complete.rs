//! Completes the OpenAPI document with what the attributes of routes and types do not say.
//!
//! Rules that hold for all routes are here once; bounds and links are tables. A row that matches nothing fails a test.

use std::collections::BTreeSet;
use std::mem;

use effectd_actors::RegisteredTool;
use effectd_actors::limits::{
    ACCOUNT_BYTES_MAX, CONNECTION_HOSTS_MAX, CONNECTION_SECRETS_MAX, ERASURE_SUBJECTS_MAX, HOST_BYTES_MAX,
    QUARANTINE_REASON_BYTES_MAX, REASON_BYTES_MAX, SECRET_BYTES_MAX, SECRET_NAME_BYTES_MAX,
    SESSION_TITLE_BYTES_MAX,
};
use effectd_actors::operator::service::OPERATION_LETTERS_MAX;
use effectd_bus::limits::NAME_BYTES_MAX;
use effectd_contracts::Code;
use effectd_contracts::limits::{FILTER_BYTES_MAX, ID_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, ROUTE_BYTES_MAX};
use effectd_contracts::text::PRINTABLE;
use serde_json::{Map, Value, json};

use crate::limits::{INVOCATIONS_OFFSET_MAX, NOTE_BYTES_MAX};
use crate::problem::{self, Kind, Problem};
use crate::schema::SCHEMAS;

type Object = Map<String, Value>;

/// The largest integer that is exact in JSON; bodies with larger ones are refused.
const EXACT_MAX: u64 = (1 << 53) - 1;
/// A span of time.
const LASTS: &str = "^0{0,4}[1-9][0-9]{0,4}[smhd]$";
/// Routes that answer with the failure of an action.
const FAILING: [&str; 7] = [
    "actions_submit",
    "actions_wait",
    "actions_preview",
    "approvals_approve",
    "approvals_preview_edited",
    "session_approve",
    "session_invoke",
];

/// Links from an answer to the next request: operation and the beginning of its status, the next operation, and the member of
/// the answer that is its `id`.
const LINKS: [(&str, &str, &str, &str); 25] = [
    ("actions_submit", "2", "actions_show", "action_id"),
    ("actions_submit", "2", "actions_wait", "action_id"),
    ("actions_submit", "202", "actions_cancel", "action_id"),
    ("actions_submit", "202", "approvals_show", "approval/approval_id"),
    ("actions_submit", "200", "receipts_show", "receipt/receipt_id"),
    ("batches_run", "2", "batches_show", "batch_id"),
    ("batches_run", "202", "approvals_show", "approval/approval_id"),
    ("actions_show", "200", "approvals_show", "approval/approval_id"),
    ("actions_show", "200", "receipts_show", "receipt/receipt_id"),
    ("actions_wait", "202", "approvals_show", "approval/approval_id"),
    ("actions_wait", "200", "receipts_show", "receipt/receipt_id"),
    ("receipts_show", "200", "receipts_proof", "receipt_id"),
    ("receipts_show", "200", "receipts_explain", "receipt_id"),
    ("receipts_show", "200", "receipts_amendments", "receipt_id"),
    ("receipts_show", "200", "receipts_amend", "receipt_id"),
    ("approvals_show", "200", "approvals_approve", "approval_id"),
    ("approvals_show", "200", "approvals_deny", "approval_id"),
    ("approvals_show", "200", "approvals_preview_edited", "approval_id"),
    ("approvals_show", "200", "approvals_preview_always", "approval_id"),
    ("approvals_approve", "200", "receipts_show", "action/receipt/receipt_id"),
    ("approvals_deny", "200", "receipts_show", "action/receipt/receipt_id"),
    ("grants_create", "200", "grants_revoke", "grant_id"),
    ("grants_request", "200", "grants_activate", "grant_id"),
    ("grants_request", "200", "grants_revoke", "grant_id"),
    ("operations_perform", "200", "receipts_show", "receipt_id"),
];

pub(super) fn complete(document: &mut Value) {
    if let Some(Value::Object(schemas)) = document.pointer_mut(SCHEMAS) {
        extend_types(schemas);
        name_variants(schemas);
        for (of, field, bound) in bounds().iter().flat_map(each) {
            if let Some(schema) = schemas.get_mut(of).and_then(|schema| schema["properties"].get_mut(field)) {
                merge(schema, bound.clone());
            }
        }
    }
    let bodies = document.pointer(SCHEMAS).cloned().unwrap_or_default();
    if let Some(Value::Object(paths)) = document.get_mut("paths") {
        for (path, methods) in paths {
            for operation in methods.as_object_mut().into_iter().flat_map(Map::values_mut) {
                complete_operation(path, operation, &bodies);
            }
        }
    }
    // A token over TCP; at the socket the kernel says who asks.
    document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    document["security"] = json!([{ "token": [] }]);
    document["paths"]["/healthz"]["get"]["security"] = json!([]);
    walk(document, &mut |schema| {
        join_words(schema);
        bound_integer(schema);
    });
}

/// A tool in the document: the schemas of its parameters and result, its case of `ToolCall`, and an example of a request.
pub(super) fn add_tool(document: &mut Value, tool: &RegisteredTool) {
    let id = tool.spec().tool_id.as_str();
    // The name of a component may not have a colon. Every tool's id has a dot, which no type's name has, and a hyphen before a
    // letter stands only before `params` and `result`: all names are different.
    let name = &id.replace('-', "--").replace(':', "-.");
    let (params, result) = (format!("{name}-params"), format!("{name}-result"));
    let call = json!({
        "type": "object",
        "required": ["tool_id", "params"],
        "properties": {
            "tool_id": { "type": "string", "const": id },
            "params": reference(&params),
        },
    });
    let schemas = &mut document["components"]["schemas"];
    let calls = &mut schemas["ToolCall"];
    if calls.is_null() {
        *calls = json!({
            "description": "A tool with its parameters, for the `tool_id` and `params` of an `ActionRequest`.",
            "oneOf": [],
            "discriminator": { "propertyName": "tool_id", "mapping": {} },
        });
    }
    if let Some(cases) = calls["oneOf"].as_array_mut() {
        cases.push(reference(name));
    }
    calls["discriminator"]["mapping"][id] = reference(name)["$ref"].take();
    schemas[name] = call;
    (schemas[&params], schemas[&result]) =
        tool.schemas_inside(&format!("{SCHEMAS}/{params}"), &format!("{SCHEMAS}/{result}"));
    // A plugin's tool need not have an example.
    if tool.check_params(tool.example()).is_err() {
        return;
    }
    document["paths"]["/v1/actions"]["post"]["requestBody"]["content"]["application/json"]["examples"][id] = json!({
        "value": {
            "action_id": format!("example-{id}"),
            "subject_id": "agent://planner@deviceA",
            "space_id": "shared:household",
            "tool_id": id,
            "params": tool.example(),
        },
    });
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#{SCHEMAS}/{name}") })
}

fn optional(name: &str) -> Value {
    json!({ "anyOf": [reference(name), { "type": "null" }] })
}

fn list_of(name: &str) -> Value {
    json!({ "type": "array", "items": reference(name) })
}

/// Adds a bound to a schema; a bound that is a type replaces it.
fn merge(schema: &mut Value, bound: Value) {
    match (schema, bound) {
        (Value::Object(schema), Value::Object(bound))
            if !bound.contains_key("$ref") && !bound.contains_key("anyOf") =>
        {
            schema.extend(bound);
        }
        (schema, bound) => *schema = bound,
    }
}

fn walk(value: &mut Value, visit: &mut impl FnMut(&mut Object)) {
    match value {
        Value::Object(members) => {
            visit(members);
            members.values_mut().for_each(|member| walk(member, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Types that the attributes do not name.
fn extend_types(schemas: &mut Object) {
    let name = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$";
    let types = [
        ("Name", json!({ "type": "string", "maxLength": NAME_BYTES_MAX, "pattern": name })),
        ("ArtifactId", json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })),
        (
            "Position",
            json!({
                "description": "`start`, `end`, an offset, a time (`2026-01-01T00:00:00Z`), or an age (`2h`).",
                "anyOf": [
                    { "type": "string", "pattern": "^(start|end|[0-9]{1,8}[smhd]?)$" },
                    { "type": "string", "format": "date-time" },
                ],
            }),
        ),
    ];
    schemas.extend(types.map(|(name, schema)| (name.to_owned(), schema)));
    if let Some(problem) = schemas.get_mut("Problem") {
        problem["examples"] =
            json!([Problem::of(Kind::ReceiptUnknown, "no receipt of this id was made for you")]);
    }
    // The kind of a token says which other members it has.
    if let Some(body) = schemas.get_mut("TokenBody") {
        let cases = [
            ("sandbox", "For the agent of a session.", &["session_id"][..]),
            ("user", "For a person.", &["org", "name"]),
            ("service", "For an account without a person. It decides nothing.", &["org", "name"]),
        ];
        let cases = cases.map(|(kind, description, own)| {
            let mut case = body.clone();
            for other in ["session_id", "org", "name"].iter().filter(|other| !own.contains(other)) {
                case["properties"].as_object_mut().and_then(|members| members.remove(*other));
            }
            case["properties"]["kind"] = json!({ "type": "string", "enum": [kind] });
            (case["description"], case["required"]) = (json!(description), json!([own, &["kind"]].concat()));
            case
        });
        *body = json!({ "description": body["description"], "oneOf": cases });
    }
    // An empty amendment is refused.
    if let Some(amending) = schemas.get_mut("Amending") {
        amending["minProperties"] = json!(1);
    }
}

type Bound = (&'static str, &'static str, Value);

/// The bounds of each type that a row is about.
fn each((types, field, bound): &Bound) -> impl Iterator<Item = (&'static str, &'static str, &Value)> {
    types.split(' ').map(move |of| (of, *field, bound))
}

/// Bounds of the gateway's own types: the types, a field, and what holds for it.
fn bounds() -> Vec<Bound> {
    let name = || json!({ "minLength": 1, "maxLength": ID_BYTES_MAX, "pattern": PRINTABLE });
    let purpose = json!({ "pattern": "^(tool|pii):[^\\u0000-\\u001f\\u007f-\\u009f]{1,256}$" });
    let reason = json!({ "maxLength": REASON_BYTES_MAX, "pattern": PRINTABLE });
    let different = format!("At most {ERASURE_SUBJECTS_MAX} different ones.");
    let subjects = json!({ "minItems": 1, "items": reference("SubjectId"), "description": different });
    let host = json!({ "type": "string", "maxLength": HOST_BYTES_MAX, "pattern": "^[a-z0-9-][a-z0-9.-]*$" });
    let hosts = json!({ "maxItems": CONNECTION_HOSTS_MAX, "items": host });
    let time = || json!({ "format": "date-time" });
    let title = json!({ "minLength": 1, "maxLength": SESSION_TITLE_BYTES_MAX, "pattern": PRINTABLE });
    let account = json!({ "type": "string", "maxLength": ACCOUNT_BYTES_MAX, "pattern": "^[!-)+-.0-~]+$" });
    let words = |words: &[&str]| json!({ "enum": words });
    let grant_state = words(&["requested", "active", "revoked", "expired", "used_up"]);
    let (letters, secrets) = (
        json!({ "maxItems": OPERATION_LETTERS_MAX }),
        json!({ "maxItems": CONNECTION_SECRETS_MAX, "items": secret_name() }),
    );
    let quarantine_reason = json!({ "maxLength": QUARANTINE_REASON_BYTES_MAX });
    let codes: BTreeSet<&str> =
        Code::ALL.iter().map(|code| code.as_str()).chain(Kind::ALL.iter().map(|kind| kind.code())).collect();
    vec![
        ("ActionView", "action_id", reference("ActionId")),
        ("Amending", "note", json!({ "maxLength": NOTE_BYTES_MAX })),
        ("Amending", "quality", json!({ "minimum": 0, "maximum": 1 })),
        (
            "Amending ConnectionBody Operation_create_connection Operation_create_webhook WebhookBody",
            "source",
            name(),
        ),
        ("ApprovalView", "asked_at", time()),
        ("ApprovalView GrantView HeldView", "expires_at", time()),
        ("ApprovalView", "state", words(&["pending", "approved", "denied", "expired"])),
        ("ApproveBody GrantBody", "calls_max", json!({ "minimum": 1 })),
        ("ApproveBody DenyBody EraseBody GrantBody", "reason", reason),
        ("AvailableView", "mode", words(&["allow", "require_approval", "deny"])),
        ("AvailableView", "riskLevel", words(&["read", "write", "danger"])),
        ("AutomationView", "automation_id", reference("AutomationId")),
        ("AutomationView", "created_at", time()),
        ("AutomationView", "created_by", reference("Principal")),
        ("AutomationView", "org", reference("OrgId")),
        ("AutomationView", "space_id", reference("SpaceId")),
        ("AutomationView", "status", words(&["active", "paused", "archived"])),
        ("AutomationView", "updated_at", time()),
        ("RenderedView", "state", words(&["rendered", "skipped", "failed"])),
        ("BreakerView", "state", words(&["closed", "open", "half_open", "releasing"])),
        ("ConnectionBody Operation_create_connection", "hosts", hosts),
        ("ConnectionBody Operation_create_connection", "name", name()),
        ("ConnectionBody TokenBody_service TokenBody_user WebhookBody", "org", reference("OrgId")),
        ("ConnectionBody Operation_create_connection", "secrets", secrets),
        ("ConnectorTool", "risk", words(&["read", "write", "danger"])),
        ("ConnectorTool", "state", words(&["reviewed", "new", "renamed", "prose", "changed", "gone"])),
        ("ConnectorView", "connection_id", reference("ConnectionId")),
        ("ConnectorView", "digest", reference("Digest")),
        ("ConnectorView", "harvested_at", time()),
        ("ConnectorView", "org", reference("OrgId")),
        ("ConnectorView", "reviewed_at", time()),
        ("EraseBody Operation_erase", "subjects", subjects),
        (
            "GrantBody",
            "org",
            json!({ "minLength": 1, "maxLength": ID_BYTES_MAX - 4, "pattern": "^([^\\u0000-\\u001f\\u007f-\\u009f]*[^\\u0000-\\u0020\\u007f-\\u00a0])$" }),
        ),
        (
            "GrantBody",
            "tool",
            json!({ "maxLength": ID_BYTES_MAX, "pattern": "^(\\*|(\\*\\.)?[!-)+-~]([ -)+-~]*[!-)+-~])?|[!-)+-~][ -)+-~]*\\.\\*)$" }),
        ),
        ("GrantBody", "session", optional("ActionId")),
        ("GrantView InvocationView SessionGrantView TokenView", "created_at", time()),
        ("GrantView SessionGrantView", "state", grant_state),
        ("GrantRequest GrantTerms", "maxCalls", json!({ "minimum": 1 })),
        ("LetterNow", "letter", json!({ "maximum": u64::MAX })),
        (
            "NotificationView",
            "delivery",
            words(&["waiting", "sending", "delivered", "undelivered", "unknown"]),
        ),
        ("Operation_create_session SessionBody", "title", title),
        ("Operation_delete_secret Operation_set_secret", "name", secret_name()),
        ("Operation_drop_letters Operation_requeue_letters", "letters", letters),
        ("Operation_quarantine_artifact Operation_release_artifact", "artifact_id", reference("ArtifactId")),
        ("Operation_quarantine_artifact QuarantineBody", "reason", quarantine_reason),
        ("Operation_reset_breaker Operation_trip_breaker", "key", name()),
        ("Operation_seek_group", "group", reference("Name")),
        ("Operation_seek_group", "to", reference("Position")),
        ("Operation_seek_group", "topic", reference("Name")),
        ("OverlayBody", "risk", words(&["read", "write", "danger"])),
        ("OverlayBody", "tier", words(&["R0", "R1", "R2", "R3", "R4"])),
        ("PolicyChange_grant_consent PolicyChange_revoke_consent", "purpose", purpose),
        ("PolicyChange_grant_consent PolicyChange_revoke_consent", "space", reference("SpaceId")),
        ("PolicyChange_grant_consent PolicyChange_revoke_consent", "subject", reference("SubjectId")),
        ("PolicyChange_set_band", "band", optional("Band")),
        ("PolicyChange_set_band", "space", reference("SpaceId")),
        ("PolicyChange_set_entry", "entry", name()),
        ("PolicyChange_set_entry", "list", words(&["roles", "hosts", "commands", "cross_space"])),
        ("PolicyChange_set_entry", "subject", optional("SubjectId")),
        ("PolicyChange_set_org_mode", "mode", optional("Mode")),
        ("PolicyChange_set_org_mode", "org", name()),
        ("PolicyChange_set_org_mode", "tool", name()),
        ("PreviewView PromptView", "tier", reference("RiskTier")),
        ("PreviewView", "verdict", words(&["permit", "needs_approval", "deny", "quarantine"])),
        ("Problem", "code", json!({ "enum": codes })),
        ("Problem", "type", json!({ "pattern": format!("^{}[a-z_]+$", problem::TYPE_PREFIX) })),
        ("QuarantineView", "artifact_id", reference("ArtifactId")),
        ("QuarantineView ShadowView", "since", time()),
        ("ReviewBody", "digest", reference("Digest")),
        ("SecretBody", "value", json!({ "minLength": 1, "maxLength": SECRET_BYTES_MAX })),
        ("SessionBody", "connections", list_of("ConnectionId")),
        ("SessionBody", "space_id", reference("SpaceId")),
        ("SessionBody", "subject_id", reference("SubjectId")),
        ("ShadowFlip", "at", time()),
        ("ShadowView", "counted_since", time()),
        ("TokenBody_sandbox TokenBody_service TokenBody_user", "lasts", json!({ "pattern": LASTS })),
        ("TokenBody_sandbox TokenBody_service TokenBody_user", "not_before", time()),
        ("TokenBody_sandbox", "session_id", reference("SessionId")),
        ("TokenBody_service TokenBody_user", "name", account),
        (
            "Operation_create_webhook WebhookBody",
            "path",
            json!({ "pattern": "^/", "maxLength": ROUTE_BYTES_MAX }),
        ),
        ("Operation_create_webhook WebhookBody", "signed_by", secret_name()),
        ("Operation_create_webhook WebhookBody", "topics", json!({ "items": reference("WebhookTopic") })),
        ("WebhookBody", "slack", optional("SlackChannel")),
        ("TokenView", "kind", reference("TokenKind")),
        ("TokenView", "state", words(&["valid", "not_yet", "expired", "revoked", "ended"])),
    ]
}

/// Gives each case of a tagged union a name, and the union a discriminator: generators make one type of each.
fn name_variants(schemas: &mut Object) {
    let mut named = Object::new();
    for (name, schema) in schemas.iter_mut() {
        let Some(cases) = schema.get("oneOf").and_then(Value::as_array) else { continue };
        let Some(tag) = tag(cases) else { continue };
        let mut mapping = Object::new();
        let mut references = Vec::new();
        for case in cases {
            let word = word(case, &tag).unwrap_or_default();
            let variant = format!("{name}_{word}");
            mapping.insert(word.to_owned(), reference(&variant)["$ref"].take());
            references.push(reference(&variant));
            let mut case = case.clone();
            case["additionalProperties"] = json!(false);
            named.insert(variant, case);
        }
        schema["oneOf"] = Value::Array(references);
        schema["discriminator"] = json!({ "propertyName": tag, "mapping": mapping });
    }
    schemas.extend(named);
}

/// The property that has another constant in each case.
fn tag(cases: &[Value]) -> Option<String> {
    let properties = cases.first()?["properties"].as_object()?;
    let in_all = |name: &&String| cases.iter().all(|case| word(case, name).is_some());
    properties.keys().find(in_all).cloned()
}

fn word<'a>(case: &'a Value, tag: &str) -> Option<&'a str> {
    let property = &case["properties"][tag];
    let only = property["enum"].as_array().filter(|words| words.len() == 1).map(|words| &words[0]);
    property["const"].as_str().or_else(|| only?.as_str())
}

/// Joins cases that are single words to one enumeration.
fn join_words(schema: &mut Object) {
    let Some(Value::Array(cases)) = schema.get_mut("oneOf") else { return };
    if cases.iter().filter(|case| case["const"].is_string()).count() < 2 {
        return;
    }
    let (words, mut others): (Vec<_>, Vec<_>) =
        mem::take(cases).into_iter().partition(|case| case["const"].is_string());
    let lines = words.iter().map(|case| {
        let (word, meaning) = (&case["const"], case["description"].as_str().unwrap_or_default());
        format!("- `{}`: {meaning}", word.as_str().unwrap_or_default())
    });
    let meanings = lines.collect::<Vec<_>>().join("\n");
    let words: Vec<_> = words.iter().map(|case| &case["const"]).collect();
    if others.is_empty() {
        let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let description = format!("{description}\n\n{meanings}");
        schema.remove("oneOf");
        schema.extend([
            ("type".to_owned(), json!("string")),
            ("enum".to_owned(), json!(words)),
            ("description".to_owned(), json!(description.trim())),
        ]);
    } else {
        others.insert(0, json!({ "type": "string", "enum": words, "description": meanings }));
        schema.insert("oneOf".to_owned(), Value::Array(others));
    }
}

/// Replaces a format of integers by the largest one: generators differ about what the formats mean.
fn bound_integer(schema: &mut Object) {
    let max = match schema.get("format").and_then(Value::as_str) {
        Some("int32" | "uint32") => u32::MAX.into(),
        Some("int64" | "uint64") => EXACT_MAX,
        Some(_) | None => return,
    };
    schema.remove("format");
    schema.entry("maximum").or_insert(max.into());
}

fn complete_operation(path: &str, operation: &mut Value, schemas: &Value) {
    let id = format!(
        "{}_{}",
        operation["tags"][0].as_str().unwrap_or_default(),
        operation["operationId"].as_str().unwrap_or_default()
    );
    operation["operationId"] = json!(id);
    // What every request over TCP may meet.
    let mut statuses = BTreeSet::from([400, 401, 403, 421, 429]);
    // Whether the process is alive is always answered.
    if path != "/healthz" {
        statuses.extend([500, 503]);
    }
    let variables = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = variables.map(|name| path_parameter(path, name)).collect();
    if let Some(Value::Array(declared)) = operation.get_mut("parameters") {
        parameters.append(declared);
    }
    for parameter in &mut parameters {
        // Names of topics and groups are refused as a query is.
        statuses.insert(if parameter["in"] != "path" || path.starts_with("/v1/store/") { 400 } else { 404 });
        let name = parameter["name"].as_str().unwrap_or_default();
        if let Some(known) = parameter_schema(path, name) {
            parameter["schema"] = known;
        } else if parameter["schema"]["type"] == "integer" {
            parameter["schema"] = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
        }
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = operation.get_mut("requestBody") {
        statuses.extend([400, 408, 413]);
        let body_type = body["content"]["application/json"]["schema"]["$ref"].as_str().unwrap_or_default();
        let body_type = &schemas[body_type.rsplit('/').next().unwrap_or_default()];
        // A body in which everything is optional may be left out.
        let needed = ["required", "oneOf", "minProperties"].iter().any(|word| body_type.get(word).is_some());
        body["required"] = json!(needed);
        if let Some(example) = example(&id) {
            body["content"]["application/json"]["example"] = example;
        }
    }
    if FAILING.contains(&id.as_str()) {
        statuses.extend(problem::failure_statuses());
    }
    for status in statuses {
        let response = &mut operation["responses"][status.to_string()];
        if response.is_null() {
            *response = serde_json::to_value(problem::response(status)).unwrap_or_default();
        }
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        complete_response(&id, status, response);
    }
}

fn complete_response(id: &str, status: &str, response: &mut Value) {
    if let Some(bytes) = response.pointer_mut("/content/application~1octet-stream/schema") {
        *bytes = json!({ "type": "string", "format": "binary" });
    }
    if matches!(status, "408" | "429" | "503") {
        response["headers"]["Retry-After"] = json!({
            "description": "Seconds after which the request may be repeated",
            "schema": { "type": "integer", "minimum": 0 },
        });
    }
    if !status.starts_with('2') {
        return;
    }
    if matches!(id, "actions_submit" | "actions_show" | "actions_wait" | "receipts_show") {
        response["headers"] = json!({
            "traceparent": { "description": "The action's span", "schema": reference("TraceParent") },
            "tracestate": { "description": "As it came with the request", "schema": reference("TraceState") },
        });
    }
    if let Some(schema) = answer(id) {
        response["content"]["application/json"]["schema"] = schema;
    }
    for (_, _, next, member) in LINKS.iter().filter(|(from, of, ..)| *from == id && status.starts_with(of)) {
        let parameters = json!({ "id": format!("$response.body#/{member}") });
        response["links"][next] = json!({ "operationId": next, "parameters": parameters });
    }
}

/// A body that the operation accepts.
fn example(id: &str) -> Option<Value> {
    Some(match id {
        "actions_preview" | "policy_explain" => json!({
            "action_id": "example",
            "subject_id": "agent://planner@deviceA",
            "space_id": "shared:household",
            "tool_id": "files.write_text",
            "params": { "path": "workspace/notes/w36.txt", "text": "hello", "space_id": "shared:household" },
        }),
        "approvals_approve" => json!({ "how": "once", "reason": "as discussed" }),
        "approvals_deny" => json!({ "reason": "not this file" }),
        "approvals_preview_edited" => {
            json!({ "params": { "path": "workspace/notes/w37.txt", "space_id": "shared:household" } })
        }
        "artifacts_quarantine" => json!({ "reason": "it may hold a customer's data" }),
        "batches_run" => json!({
            "batch_id": "example",
            "subject_id": "agent://planner@deviceA",
            "space_id": "shared:household",
            "mode": "atomic",
            "items": [{
                "tool_id": "files.write_text",
                "params": { "path": "workspace/notes/w36.txt", "text": "hello", "space_id": "shared:household" },
            }],
        }),
        "plans_run" => json!({
            "actionId": "example",
            "actionType": "diagnose_error",
            "riskTier": "R1",
            "input": {},
            "rollbackPlan": null,
            "verification": { "required": true, "commands": [] },
            "spaceId": "shared:household",
            "subjectId": "agent://planner@deviceA",
        }),
        "grants_create" | "grants_request" | "grants_preview_request" => json!({
            "org": "household",
            "session": "agent:agent://planner@deviceA",
            "tool": "files.delete",
            "calls_max": 10,
            "lasts_s": 3_600,
        }),
        "operations_perform" => json!({ "do": "disable_tool", "tool_id": "notify.local" }),
        "policy_change" => json!({
            "change": "set_org_mode", "org": "household", "tool": "files.move", "mode": "require_approval",
        }),
        "policy_replay" | "policy_start_shadow" => json!({
            "files": [{ "name": "policy.toml", "text": "version = 1\n" }],
        }),
        "receipts_amend" => json!({ "success": false, "note": "the file was for another week" }),
        "session_approve" => json!({ "mode": "grant", "grant": { "scope": "session", "maxCalls": 5 } }),
        "session_deny" => json!({ "reason": "not this file" }),
        "session_invoke" => json!({
            "integration": "files",
            "action": "write_text",
            "params": { "path": "workspace/notes/w36.txt", "text": "hello" },
        }),
        "session_request_grant" => json!({ "integration": "files", "action": "write_text", "maxCalls": 5 }),
        "sessions_create" => json!({
            "space_id": "shared:household",
            "subject_id": "agent://planner@deviceA",
            "title": "Plan the week",
        }),
        "connections_create" | "connections_replace" => json!({
            "org": "household",
            "source": "linear",
            "name": "The team's tracker",
            "hosts": ["api.linear.app"],
            "secrets": ["linear-token"],
        }),
        "connectors_overlay" => json!({ "risk": "read" }),
        "connectors_review" => json!({
            "digest": "sha256:7d0c2f5b1f6e4a3d9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b9a8f7e6d",
        }),
        "automations_check" | "automations_save" | "automations_replace" => json!({
            "schema_version": "1.0",
            "name": "Note of the day",
            "plan": [{
                "step_id": "write",
                "action": "files.write_text",
                "config": { "path": "workspace/notes/today.txt", "text": "A new day" },
            }],
        }),
        "automations_render" => json!({
            "definition": {
                "schema_version": "1.0",
                "name": "Note of the day",
                "plan": [{ "step_id": "tell", "action": "notification", "config": { "message_template": "{{ run.started_at }}" } }],
            },
        }),
        "plugins_add" => json!({
            "digest": "sha256:7d0c2f5b1f6e4a3d9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b9a8f7e6d",
        }),
        "webhooks_create" => json!({
            "org": "household",
            "source": "http.hooks",
            "path": "/v1/events",
            "topics": ["ACTION_EXECUTED"],
            "signed_by": "hooks-signature",
        }),
        "secrets_set" => json!({ "value": "what the service gave you" }),
        "tokens_create" => json!({ "kind": "user", "org": "household", "name": "ada", "lasts": "90d" }),
        "store_erase" => json!({ "subjects": ["agent://planner@deviceA"], "preview": true }),
        _ => return None,
    })
}

fn secret_name() -> Value {
    json!({ "type": "string", "maxLength": SECRET_NAME_BYTES_MAX, "pattern": "^[A-Za-z0-9_.-]+$" })
}

/// Answers whose types the attributes cannot name.
fn answer(id: &str) -> Option<Value> {
    let words = || json!({ "type": "array", "items": { "type": "string" } });
    let tool = |more: Value| {
        let mut tool = json!({
            "aliases": list_of("ToolId"),
            "caps_set": list_of("Capability"),
            "disabled": { "type": "boolean" },
            "drifted": { "type": "boolean" },
            "hosts": words(),
            "quarantined": { "type": "object" },
            "source": { "type": "string", "enum": ["core", "provider", "plugin", "connector", "db"] },
            "tier": reference("RiskTier"),
        });
        merge(&mut tool, more);
        json!({ "type": "object", "properties": tool, "required": ["aliases", "disabled", "drifted", "hosts", "source", "tier"] })
    };
    Some(match id {
        "tools_list" => {
            let summary = json!({
                "tool_id": reference("ToolId"),
                "version": { "type": "string" },
                "description": { "type": "string" },
                "caps_required": list_of("Capability"),
                "side_effects": words(),
                "reversible": { "type": "boolean" },
            });
            json!({ "type": "array", "items": tool(summary) })
        }
        "tools_show" => tool(json!({
            "spec": reference("ToolSpec"),
            "definition_hash": reference("Digest"),
            "doubtful": words(),
            "example": { "type": "object" },
        })),
        "log_entries" | "log_heads" => list_of("LogLine"),
        "log_frontier" => list_of("Digest"),
        "log_keys" => list_of("KeyEntry"),
        "receipts_amendments" => list_of("AmendmentEntry"),
        "connections_list" => list_of("Connection"),
        "secrets_list" => list_of("SecretName"),
        "slack_users" => list_of("SlackUser"),
        "webhooks_list" => list_of("Webhook"),
        _ => return None,
    })
}

/// What a path is about: `receipts` of `/v1/receipts/{id}`.
fn resource(path: &str) -> Option<&str> {
    path.strip_prefix("/api").unwrap_or(path).split('/').nth(2)
}

/// A variable of a path.
fn path_parameter(path: &str, name: &str) -> Value {
    let resource = resource(path).unwrap_or_default();
    let by_default = format!("The {}'s id", resource.trim_end_matches('s'));
    let description = match (resource, name) {
        (_, "session_id") => "The session's id",
        ("actions", "id") if path.starts_with("/{") => "The invocation's id, percent-encoded",
        ("actions", "id") => "The action's id, percent-encoded",
        ("batches", "id") => "The batch's id, percent-encoded",
        ("tools", "id") => "The tool's id, or an alias",
        ("notifications", "id") => "The id of the receipt of the action that sent it",
        (_, "artifact") => "One of the receipt's `artifact_ids`",
        (_, "group") => "The group's name",
        (_, "integration") => "The source of the actions, percent-encoded",
        (_, "key") => "Its key, percent-encoded",
        (_, "letter") => "The number of the dead letter",
        ("plugins", "name") => "The name of the package",
        ("connectors", "name") => "The name by which the server knows the tool",
        (_, "name") => "The secret's name",
        (_, "org") => "The organisation, percent-encoded",
        (_, "topic") => "The topic's name",
        _ => by_default.as_str(),
    };
    let kind = if name == "letter" { "integer" } else { "string" };
    json!({ "name": name, "in": "path", "description": description, "required": true, "schema": { "type": kind } })
}

/// What a parameter must look like, by the resource of the path and its name.
fn parameter_schema(path: &str, name: &str) -> Option<Value> {
    Some(match (resource(path)?, name) {
        ("actions" | "batches", "id") => reference("ActionId"),
        ("receipts" | "notifications", "id") => reference("ReceiptId"),
        ("approvals", "id") => reference("ApprovalId"),
        ("approvals", "calls_max") => json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }),
        ("grants", "id") => reference("GrantId"),
        ("sessions", "id") | ("actions" | "batches", "session" | "session_id") => reference("SessionId"),
        ("actions" | "inbox", "status") => {
            json!({ "type": "string", "enum": ["pending", "executed", "completed", "denied", "expired", "failed"] })
        }
        ("actions" | "inbox", "view") => json!({ "type": "string", "enum": ["full", "brief"] }),
        ("actions" | "inbox", "offset") => {
            json!({ "type": "integer", "minimum": 0, "maximum": INVOCATIONS_OFFSET_MAX })
        }
        ("inbox", "org") => reference("OrgId"),
        ("connections" | "connectors", "id") => reference("ConnectionId"),
        ("connectors", "name") => json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" }),
        ("plugins", "name") => json!({ "type": "string", "pattern": "^[a-z][a-z0-9_]{0,55}$" }),
        ("webhooks", "id") => reference("WebhookId"),
        ("automations", "id") => reference("AutomationId"),
        ("automations", "space_id") => reference("SpaceId"),
        ("tokens", "id") => reference("TokenId"),
        ("secrets", "org") => reference("OrgId"),
        ("secrets", "name") => secret_name(),
        ("tools", "id") | ("receipts", "tool") => reference("ToolId"),
        ("artifacts", "id") | ("receipts", "artifact") => reference("ArtifactId"),
        ("receipts", "subject") => reference("SubjectId"),
        ("receipts", "space") => reference("SpaceId"),
        ("receipts", "status") => reference("Status"),
        ("receipts", "since" | "until") => json!({ "type": "string", "format": "date-time" }),
        ("receipts", "order") => json!({ "type": "string", "enum": ["oldest", "newest"] }),
        ("receipts", "q") => json!({ "type": "string", "maxLength": FILTER_BYTES_MAX }),
        ("store" | "dlq", "topic" | "group") => reference("Name"),
        ("dlq", "since") => json!({
            "type": "string",
            "anyOf": [{ "format": "date-time" }, { "pattern": "^[0-9]{1,5}[smhd]$" }],
        }),
        (
            "automations" | "log" | "operations" | "policy" | "sessions" | "connections" | "connectors"
            | "plugins" | "secrets" | "tokens" | "webhooks",
            "reason",
        ) => {
            json!({ "type": "string", "maxLength": REASON_BYTES_MAX, "pattern": PRINTABLE })
        }
        ("operations" | "policy", "lasts") => {
            json!({ "type": "string", "pattern": LASTS })
        }
        ("store", "from" | "to") => reference("Position"),
        ("breakers", "key") => {
            json!({ "type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX, "pattern": PRINTABLE })
        }
        ("actions", "wait") => json!({ "type": "string", "pattern": "^(true|\\+?[0-9]{1,19})?$" }),
        ("actions", "Idempotency-Key") => json!({
            "type": "string",
            "maxLength": IDEMPOTENCY_KEY_BYTES_MAX,
            // Bare, or quoted without quotes and backslashes inside.
            "pattern": "^([!#-~]([ -~]*[!-~])?|\"[!#-\\[\\]-~]([ !#-\\[\\]-~]*[!#-\\[\\]-~])?\")$",
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_actors::Registry;
    use std::collections::BTreeMap;

    /// A field that is renamed must not lose its bound.
    #[test]
    fn every_row_of_the_tables_is_about_something() {
        let document = super::super::document(&Registry::default());
        for (of, field, _) in bounds().iter().flat_map(each) {
            let field = &document["components"]["schemas"][of]["properties"][field];
            assert!(field.is_object(), "{of}: {field}");
        }
        let paths = document["paths"].as_object().unwrap().values();
        let operations: BTreeMap<_, _> = paths
            .flat_map(|methods| methods.as_object().unwrap().values())
            .map(|operation| (operation["operationId"].as_str().unwrap(), operation))
            .collect();
        for (from, of, to, member) in LINKS {
            assert!(operations.contains_key(to), "{to}");
            let responses = operations[from]["responses"].as_object().unwrap().iter();
            let mut linked = 0;
            for (status, response) in responses.filter(|(status, _)| status.starts_with(of)) {
                assert!(response["links"][to].is_object(), "{from} {status}: {to}");
                let schema = &response["content"]["application/json"]["schema"];
                let member: Vec<_> = member.split('/').collect();
                assert!(may_have(&document, schema, &member), "{from} {status}: {member:?}");
                linked += 1;
            }
            assert!(linked > 0, "{from} {of}: {to}");
        }
        for id in FAILING.into_iter().chain([
            "log_entries",
            "log_heads",
            "log_frontier",
            "log_keys",
            "receipts_amendments",
            "connections_list",
            "secrets_list",
            "slack_users",
            "tools_list",
            "tools_show",
            "webhooks_list",
        ]) {
            assert!(operations.contains_key(id), "{id}");
        }
    }

    /// Whether a value that fits the schema may have the member.
    fn may_have(document: &Value, schema: &Value, member: &[&str]) -> bool {
        let Some((first, rest)) = member.split_first() else { return true };
        let cases = ["oneOf", "anyOf"].into_iter().filter_map(|word| schema[word].as_array()).flatten();
        let target = schema["$ref"].as_str().and_then(|target| document.pointer(&target[1..]));
        cases.chain(target).any(|inner| may_have(document, inner, member))
            || schema["properties"].get(first).is_some_and(|inner| may_have(document, inner, rest))
    }
}
