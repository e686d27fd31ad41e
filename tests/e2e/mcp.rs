//! MCP under a clock of the test: what a client holds ends when it should. The routes are in this process, behind the check of tokens.

use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{ManualClock, Timestamp};
use effectd::internal::Runtime;
use effectd_gateway::client::{Client, StreamedAnswer};
use effectd_gateway::limits::MCP_HANDLE_KEPT;
use effectd_gateway::{SharedSettings, Socket, Stage};
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{LONG, Place, Running};
use crate::tokens::{Door, place, text, unlimited};

const VERSION: &str = "2026-07-28";
const INVALID_PARAMS: i64 = -32_602;

/// The answer to a request.
async fn ask(mut client: Client, method: &str, mut params: Value) -> StreamedAnswer {
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
    client.post_streamed("/mcp", body.into(), headers).await.unwrap()
}

/// The whole answer.
async fn whole(mut answer: StreamedAnswer) -> Value {
    let mut whole = Vec::new();
    while let Some(piece) = answer.piece().await.unwrap() {
        whole.extend(piece);
    }
    serde_json::from_slice(&whole).unwrap()
}

/// The answer to a call that writes a note.
async fn call(door: &Door, token: &str, note: &str, state: Option<&Value>) -> Value {
    let arguments = json!({ "path": "workspace/note", "text": note });
    let mut params = json!({ "name": "files_write_text", "arguments": arguments });
    if let Some(state) = state {
        params["requestState"] = state.clone();
    }
    whole(ask(door.gateway.client_by(&[&format!("Bearer {token}")]), "tools/call", params).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_state_ends_and_is_for_one_caller_and_one_call() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (ben, ci) = (door.account("user", "ben").await, door.account("service", "ci").await);
    let held = call(&door, &ben, "n", None).await["result"].clone();
    let state = &held["requestState"];
    assert!(state.is_string(), "{held}");
    // All that was asked for or done.
    let known = async || {
        let receipts = door.local("GET /v1/receipts", &Value::Null).await;
        (receipts, door.local("GET /v1/approvals", &Value::Null).await)
    };
    let refused = async |token: &str, note: &str, state: &Value| {
        let before = known().await;
        let answer = call(&door, token, note, Some(state)).await;
        let why = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(answer["error"]["code"] == INVALID_PARAMS && why.starts_with("requestState"), "{answer}");
        assert_eq!(known().await, before, "nothing runs, and nobody is asked");
    };
    let mut forged = text(state);
    let last = if forged.pop() == Some('0') { '1' } else { '0' };
    forged.push(last);
    for forged in [forged.as_str(), "", "00", &"0".repeat(300)] {
        refused(&ben, "n", &forged.into()).await;
    }
    refused(&ci, "n", state).await;
    refused(&ben, "other", state).await;
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
    refused(&ben, "n", state).await;
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_clock_ends_is_told_to_who_listens() {
    const BRIEFLY: Duration = Duration::from_secs(60);
    let begins = Timestamp::from_second(1_900_000_000).unwrap();
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let policy = std::fs::read_to_string(&file).unwrap();
    let lasting = policy.replace("\"notify.local\", ", "");
    assert_ne!(lasting, policy);
    let until = begins.checked_add(BRIEFLY).unwrap();
    let brief = format!(
        "\n[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:household\"\ntools = [\"notify.local\"]\n\
         until = \"{until}\"\n"
    );
    std::fs::write(&file, lasting + &brief).unwrap();
    let (clock, mut config) = (Arc::new(ManualClock::at(begins)), place.config());
    config.clock = clock.clone();
    config.pipeline.sweep_every = Duration::from_millis(20);
    let principal = config.principal.clone();
    let runtime = Runtime::start(config).await.unwrap();
    let (stage, open) = watch::channel(Stage::Open);
    let gateway = runtime.gateway(SharedSettings::new(unlimited()), open).unwrap();
    let here = gateway.client(principal, false);
    let client = || here.another();
    // Only a gateway that serves has streams: its first step opens them.
    let socket = Socket::bind(&place.path("here.sock"), 0o600).unwrap();
    let mut served = Box::pin(gateway.serve(socket, None, None));
    tokio::select! {
        biased;
        () = &mut served => panic!("it serves until its stage ends"),
        () = std::future::ready(()) => {}
    }
    let served = tokio::spawn(served);
    let lists = async |tool: &str| {
        let list = whole(ask(client(), "tools/list", json!({})).await).await;
        list["result"]["tools"].as_array().unwrap().iter().any(|listed| listed["name"] == tool)
    };
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut stream = ask(client(), "subscriptions/listen", wanted).await;
    let mut next = async || loop {
        let piece = tokio::time::timeout(LONG, stream.piece()).await.expect("a message").unwrap().unwrap();
        let event = String::from_utf8(piece.to_vec()).unwrap();
        // Others are signs of life.
        if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
            return text(&serde_json::from_str::<Value>(data).unwrap()["method"]);
        }
    };
    assert_eq!(next().await, "notifications/subscriptions/acknowledged");
    // The consent of the files.
    assert!(lists("notify_local").await);
    clock.advance(BRIEFLY);
    assert_eq!(next().await, "notifications/tools/list_changed");
    assert!(!lists("notify_local").await);
    // What a person sets for a while.
    let disabled = json!({ "do": "disable_tool", "tool_id": "files.move" });
    let denied = json!({ "change": "set_org_mode", "org": "home", "tool": "files.copy", "mode": "deny" });
    for (route, change, tool) in
        [("/v1/operations", disabled, "files_move"), ("/v1/policy/changes", denied, "files_copy")]
    {
        let (path, body) = (format!("{route}?lasts=60s"), change.to_string());
        let (status, answer) = client().ask(Method::POST, &path, body.into()).await.unwrap();
        assert_eq!(status, 200, "{answer:?}");
        assert_eq!(next().await, "notifications/tools/list_changed");
        clock.advance(BRIEFLY - Duration::from_millis(1));
        assert!(!lists(tool).await);
        clock.advance(Duration::from_millis(1));
        assert_eq!(next().await, "notifications/tools/list_changed");
        assert!(lists(tool).await);
    }
    drop((here, stream));
    stage.send(Stage::Closed).unwrap();
    served.await.unwrap();
    assert!(runtime.stop().await);
}
