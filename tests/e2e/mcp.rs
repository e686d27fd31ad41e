//! MCP under a clock of the test: what a client holds ends when it should. The routes are in this process, behind the check of tokens.

use std::time::Duration;

use effectd_gateway::client::StreamedAnswer;
use effectd_gateway::limits::MCP_HANDLE_KEPT;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::tokens::{Door, place, text, unlimited};

const VERSION: &str = "2026-07-28";
const INVALID_PARAMS: i64 = -32_602;

/// The answer to a request of who holds this token.
async fn ask(door: &Door, token: &str, method: &str, mut params: Value) -> StreamedAnswer {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let named = [("mcp-protocol-version", VERSION), ("mcp-method", method)];
    let named = named.into_iter().chain(params["name"].as_str().map(|name| ("mcp-name", name)));
    for (name, value) in named {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let mut client = door.gateway.client_by(&[&format!("Bearer {token}")]);
    client.post_streamed("/mcp", body.into(), headers).await.unwrap()
}

/// The answer to a call that writes a note.
async fn call(door: &Door, token: &str, note: &str, state: Option<&Value>) -> Value {
    let arguments = json!({ "path": "workspace/note", "text": note });
    let mut params = json!({ "name": "files_write_text", "arguments": arguments });
    if let Some(state) = state {
        params["requestState"] = state.clone();
    }
    let (mut answer, mut whole) = (ask(door, token, "tools/call", params).await, Vec::new());
    while let Some(piece) = answer.piece().await.unwrap() {
        whole.extend(piece);
    }
    serde_json::from_slice(&whole).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_state_ends_and_is_for_one_caller_and_one_call() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (ben, ci) = (door.account("user", "ben").await, door.account("service", "ci").await);
    let held = call(&door, &ben, "n", None).await["result"].clone();
    let state = &held["requestState"];
    assert!(state.is_string(), "{held}");
    let refused = async |token: &str, note: &str| {
        let answer = call(&door, token, note, Some(state)).await;
        let why = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(answer["error"]["code"] == INVALID_PARAMS && why.starts_with("requestState"), "{answer}");
    };
    refused(&ci, "n").await;
    refused(&ben, "other").await;
    let approval = text(&held["_meta"]["effectd/waiting"]["approval_id"]);
    let seen = door.seen(&approval).await;
    let ada = door.account("user", "ada").await;
    let line = format!("POST /v1/approvals/{approval}/approve?wait_ms=60000");
    let (status, decided) = door.by(&ada, &line, &seen).await;
    assert_eq!(status, 200, "{decided}");
    let done = call(&door, &ben, "n", Some(state)).await;
    assert_eq!(done["result"]["isError"], false, "{done}");
    let receipt = &done["result"]["_meta"]["effectd/receiptId"];
    door.clock.advance(MCP_HANDLE_KEPT);
    let again = call(&door, &ben, "n", Some(state)).await;
    assert_eq!(&again["result"]["_meta"]["effectd/receiptId"], receipt, "{again}");
    door.clock.advance(Duration::from_millis(1));
    refused(&ben, "n").await;
    door.close().await;
}
