//! Tokens at the door: who holds one, what it is for, and when it ends. The routes are in this process, behind the check of tokens.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use effectd::contracts::{ManualClock, Timestamp};
use effectd::internal::Runtime;
use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, Swap};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::{Gateway, OidcSettings, Settings, SharedSettings, Stage};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Place, Running, Service, write_note};

/// `HOME` stands for the organisation. Ada decides, Ben plans. The policy gives the service and all sandboxes every role, and Eve roles in
/// another organisation than her own; they must not have them.
const PEOPLE: &str = r#"
[orgs.office]

[principals."account://HOME/ada"]
subjects = []
roles = ["look", "operate", "erase"]
orgs = { home = "admin" }

[principals."account://HOME/ben"]
subjects = ["agent://planner@deviceA"]
actors = ["alice"]
orgs = { home = "member" }

[principals."account://HOME/ci"]
subjects = ["agent://planner@deviceA"]
actors = ["alice"]
roles = ["planner", "learner", "look", "operate", "erase", "approver", "admin"]
orgs = { home = "owner" }

[principals."account://office/eve"]
subjects = ["agent://planner@deviceA"]
actors = ["alice"]
roles = ["planner", "look", "operate", "approver", "admin"]
orgs = { home = "owner", office = "owner" }

[principals."session://*"]
subjects = ["agent://planner@deviceA"]
actors = ["alice"]
roles = ["planner", "learner", "look", "operate", "erase", "approver", "admin"]
orgs = { home = "owner" }
"#;

/// The RSA key of an issuer, and a token of it for `ada` with the role `deciders`, until 2033.
const RSA: &str = "pxnLufcgzkwqWXjFuzHzbvfPhqZFvAWevBa2iAwnnKhM5MEMUGrJkOJZxIdF5z7zuuVxSe-tLrKqyEsMakAT4RZOmcA1js6WrBeO\
    hkBNg0Rc_fZEWVd_WHR_IEtzqKAUxxrQ07zUsHby3ce5yDDbrjnpuWIY5ahh0AKh8pPBfzadYJncKaswW9Y5_87WdMbcKpDODp47\
    r6JLQ9ADnBIumP4J4VgsK1waPAjjIxTVEBXUsf8ejA8M6qjpWq8VSZdPDj-X8BafdZIWsNCNVR-r9KaEXZ-teefHJY6bIudyZvtb\
    rVGBK251kIh8UKeP9L-YyuQKIEML7arscAc9wUfFWw";
const JWT: &str = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6InJzYS0xIn0.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwi\
    YXVkIjoiZWZmZWN0ZCIsInN1YiI6ImFkYSIsImV4cCI6MjAwMDAwMDAwMCwicm9sZXMiOlsiZGVjaWRlcnMiXX0.mIPW8agL2AMC\
    FFz3t82Oxaae3YzeK7CWO9bhDLkNrGjvIjjQeYxjrWwEKIuI9MPVemP6ROXFzsU4YdRdpp83ULvF8AUDBFIDirpqskuaOQ8AUoDM\
    rl6wxlmsqK0TblsTSNPx8n6a3Lc2i7Lv3TowpWFZHJj_UDrUy6hDjBbyJjkMr4jT7e9A80BktkCA4qRFvU6n68E4A0TFLha-19KP\
    YEKR0Tvb4_PuUTfdC1Az70KIR5ms1xkpYgrze-PJ2NaV8fJb9hHdslcvOUgLiiCi7KA0Lqf_8dH8oudMvNtDhJqSqSy_7A9zU7kL\
    c4UZYe9no0jCVG3kP_RMZSNmYkiLuw";

/// A place whose policy knows these people and holds every note for approval.
pub(crate) fn place() -> Place {
    let place = Place::seeded();
    policy(&place, PEOPLE);
    place
}

fn policy(place: &Place, people: &str) {
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.split("\n[orgs.office]").next().unwrap().split("[example_tools").next().unwrap();
    let text =
        text.replace("\"files.write_text\" = \"allow\"", "\"files.write_text\" = \"require_approval\"");
    std::fs::write(&file, text + &people.replace("HOME", "home")).unwrap();
}

pub(crate) struct Door {
    pub(crate) gateway: Gateway,
    operator: Client,
    runtime: Runtime,
    pub(crate) clock: Arc<ManualClock>,
    _stage: watch::Sender<Stage>,
}

impl Door {
    pub(crate) async fn open(place: &Place, settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_900_000_000).unwrap()));
        let mut config = place.config();
        config.clock = clock.clone();
        let principal = config.principal.clone();
        let runtime = Runtime::start(config).await.unwrap();
        let (_stage, open) = watch::channel(Stage::Open);
        let gateway = runtime.gateway(SharedSettings::new(settings), open).unwrap();
        let operator = gateway.client(principal, false);
        Self { gateway, operator, runtime, clock, _stage }
    }

    pub(crate) async fn close(self) {
        let Self { gateway, operator, runtime, .. } = self;
        drop((gateway, operator));
        assert!(runtime.stop().await);
    }

    /// A request with these `Authorization` headers.
    async fn send(&self, headers: &[&str], line: &str, body: &Value) -> (u16, Value) {
        ask(self.gateway.client_by(headers), line, body).await
    }

    /// A request with a token.
    pub(crate) async fn by(&self, token: &str, line: &str, body: &Value) -> (u16, Value) {
        self.send(&[&format!("Bearer {token}")], line, body).await
    }

    /// A request of an operator at the socket.
    pub(crate) async fn local(&self, line: &str, body: &Value) -> Value {
        let (status, answer) = ask(self.operator.another(), line, body).await;
        assert_eq!(status, 200, "{line}: {answer}");
        answer
    }

    /// A new token, by what it is for.
    async fn token(&self, body: Value) -> String {
        text(&self.local("POST /v1/tokens", &body).await["token"])
    }

    pub(crate) async fn account(&self, kind: &str, name: &str) -> String {
        self.token(json!({ "kind": kind, "org": "home", "name": name })).await
    }

    /// A new session with its token.
    async fn session(&self) -> (String, String) {
        let made = self.local("POST /v1/sessions", &household()).await;
        (text(&made["id"]), text(&made["token"]))
    }

    /// An approval that waits, of a note that Ben asks for.
    async fn held(&self, ben: &str, action: &str) -> String {
        let note = write_note(action, &format!("workspace/{action}"), "t");
        let (status, view) = self.by(ben, "POST /v1/actions?wait", &note).await;
        assert_eq!(status, 202, "{view}");
        text(&view["approval"]["approval_id"])
    }

    /// The body of an approval of what is shown.
    pub(crate) async fn seen(&self, approval: &str) -> Value {
        let shown = self.local(&format!("GET /v1/approvals/{approval}"), &Value::Null).await;
        json!({ "digest": shown["digest"] })
    }
}

/// The body of a new session.
fn household() -> Value {
    json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "week" })
}

/// The principal of an account.
fn account(name: &str) -> String {
    format!("account://{}/{name}", "home")
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

async fn ask(mut client: Client, line: &str, body: &Value) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let (status, answer) = client.ask(method.parse().unwrap(), path, body).await.unwrap();
    (status, serde_json::from_slice(&answer).unwrap_or_default())
}

/// Settings without a rate: the clock of these tests stands still.
pub(crate) fn unlimited() -> Settings {
    Settings { token_rate_max: None, ..Settings::default() }
}

/// A text with the checksum that a token has, made as any scanner would.
pub fn with_checksum(text: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut crc = u32::MAX;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let (mut rest, mut digits) = (!crc, ['0'; 6]);
    for digit in digits.iter_mut().rev() {
        *digit = char::from(DIGITS[(rest % 62) as usize]);
        rest /= 62;
    }
    format!("{text}{}", digits.iter().collect::<String>())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_wrong_in_any_way_is_nobodys() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (ada, other) = (door.account("user", "ada").await, door.account("user", "ada").await);
    assert_eq!(door.by(&ada, "GET /v1/orgs", &Value::Null).await.0, 200);
    let (before, _) = ada.split_at(ada.len() - 6);
    assert_eq!(with_checksum(before), ada);
    let secret = |token: &str| token[token.len() - 49..token.len() - 6].to_owned();
    let [of_ada, of_other] = [&ada, &other].map(|token| secret(token));
    let bearer = |token: &str| vec![format!("Bearer {token}")];
    let mut flipped = ada.clone();
    flipped.replace_range(ada.len() - 1.., if ada.ends_with('0') { "1" } else { "0" });
    let refused = [
        ("no header", vec![]),
        ("wrong checksum", bearer(&flipped)),
        ("wrong secret, right id", bearer(&with_checksum(&before.replace(&of_ada, &of_other)))),
        ("unknown id", bearer(&with_checksum(&before.replace(&ada[9..41], &"0".repeat(32))))),
        ("truncated", bearer(&ada[..ada.len() - 1])),
        ("without its checksum", bearer(before)),
        ("another kind's prefix", bearer(&with_checksum(&before.replace("_user_", "_service_")))),
        ("no kind's prefix", bearer(&with_checksum(&before.replace("_user_", "_root_")))),
        ("the secret alone", bearer(&of_ada)),
        ("the id alone", bearer(&ada[9..41])),
        ("Basic", vec![format!("Basic {ada}")]),
        ("no scheme", vec![ada.clone()]),
        ("two headers", [bearer(&ada), bearer(&ada)].concat()),
        ("a JWT without an issuer", bearer(JWT)),
        ("empty", bearer("")),
    ];
    for (what, headers) in refused {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let (status, problem) = door.send(&headers, "GET /v1/orgs", &Value::Null).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{what}: {problem}");
        assert!(!problem.to_string().contains(&of_ada), "{what}: {problem}");
    }
    // A token in the query is in logs and histories.
    for query in ["access_token", "token", "authorization"] {
        let (status, _) = door.send(&[], &format!("GET /v1/orgs?{query}={ada}"), &Value::Null).await;
        assert_eq!(status, 401, "{query}");
    }
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_when_it_says_or_somebody_does() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let works = async |token: &str| match door.by(token, "GET /v1/orgs", &Value::Null).await.0 {
        200 => true,
        401 => false,
        other => panic!("{other}"),
    };
    let begins = "2030-03-17T17:47:40Z";
    let later = json!({ "kind": "user", "org": "home", "name": "ada", "not_before": begins, "lasts": "1h" });
    let (short, later) = (
        door.token(json!({ "kind": "user", "org": "home", "name": "ada", "lasts": "60s" })).await,
        door.token(later).await,
    );
    assert!(works(&short).await && !works(&later).await);
    door.clock.advance(Duration::from_secs(59));
    assert!(works(&short).await && !works(&later).await);
    door.clock.advance(Duration::from_secs(1));
    assert!(!works(&short).await && works(&later).await);
    door.clock.advance(Duration::from_secs(3_599));
    assert!(works(&later).await);
    // Rotated: the old one dies, and the new one has the same end.
    let id = &later[9..41];
    let rotated = door.local(&format!("POST /v1/tokens/{id}/rotate"), &Value::Null).await;
    let next = text(&rotated["token"]);
    assert!(next != later && next.contains(rotated["id"].as_str().unwrap()), "{}", rotated["id"]);
    assert!(!works(&later).await && works(&next).await);
    door.clock.advance(Duration::from_secs(1));
    assert!(!works(&next).await);
    // Revoked: no request is answered any more, and a repeat is harmless.
    let forever = door.account("user", "ada").await;
    assert!(works(&forever).await);
    let revoke = format!("POST /v1/tokens/{}/revoke", &forever[9..41]);
    assert_eq!(door.local(&revoke, &Value::Null).await["changed"], true);
    assert_eq!(door.local(&revoke, &Value::Null).await["changed"], false);
    assert!(!works(&forever).await);
    let listed = door.local("GET /v1/tokens", &Value::Null).await;
    let states: Vec<_> = listed["tokens"].as_array().unwrap().iter().map(|token| &token["state"]).collect();
    assert_eq!(states, ["revoked"], "{listed}");
    assert_eq!(listed["tokens"][0]["last_used"], "2030-03-17", "{listed}");
    for (id, status, code) in [(id, 404, "not_found"), (&forever[9..41], 409, "state_conflict")] {
        let rotate = format!("POST /v1/tokens/{id}/rotate");
        let (found, problem) = ask(door.operator.another(), &rotate, &Value::Null).await;
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{problem}");
    }
    // Ended tokens are forgotten when another is created.
    door.account("user", "ada").await;
    let listed = door.local("GET /v1/tokens", &Value::Null).await;
    let states: Vec<_> = listed["tokens"].as_array().unwrap().iter().map(|token| &token["state"]).collect();
    assert_eq!(states, ["valid"], "{listed}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_token_is_refused() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (id, first) = door.session().await;
    for (body, status) in [
        (json!({ "kind": "user", "org": "home" }), 400),
        (json!({ "kind": "user", "name": "ada" }), 400),
        (json!({ "kind": "user", "org": "nowhere", "name": "ada" }), 404),
        (json!({ "kind": "user", "org": "home", "name": "a/b" }), 400),
        (json!({ "kind": "user", "org": "home", "name": "x".repeat(129) }), 400),
        (json!({ "kind": "user", "org": "home", "name": "ada", "lasts": "0s" }), 400),
        (json!({ "kind": "user", "org": "home", "name": "ada", "lasts": "soon" }), 400),
        (json!({ "kind": "user", "session_id": id }), 400),
        (json!({ "kind": "sandbox", "org": "home", "name": "ada" }), 400),
        (json!({ "kind": "sandbox", "session_id": id, "org": "home" }), 400),
        (json!({ "kind": "sandbox", "session_id": "nobody" }), 404),
        (json!({ "kind": "root", "org": "home", "name": "ada" }), 400),
        (json!({ "kind": 1, "org": "home", "name": "ada" }), 400),
        (
            json!({ "kind": "user", "org": "home", "name": "ada", "not_before": "2001-01-01T00:00:00Z", "lasts": "1d" }),
            409,
        ),
    ] {
        let (found, problem) = ask(door.operator.another(), "POST /v1/tokens", &body).await;
        assert_eq!(found, status, "{body}: {problem}");
    }
    // A session has a few at most. Its first one came with it.
    let more = json!({ "kind": "sandbox", "session_id": id });
    for _ in 0..3 {
        door.token(more.clone()).await;
    }
    let (status, problem) = ask(door.operator.another(), "POST /v1/tokens", &more).await;
    assert_eq!((status, &problem["code"]), (409, &json!("state_conflict")), "{problem}");
    // Where no more fit, one can be replaced.
    door.local(&format!("POST /v1/tokens/{}/rotate", &first[12..44]), &Value::Null).await;
    // The operation itself has no place for the value, so that its own route alone creates one.
    let create = json!({ "do": "rotate_token", "id": "a", "next": "b" });
    let (status, problem) = ask(door.operator.another(), "POST /v1/operations", &create).await;
    assert_eq!(status, 400, "{problem}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_token_may_use_what_it_is_for() {
    const LOCAL: [&str; 21] = [
        "DELETE /v1/plugins/x",
        "DELETE /v1/policy/shadow",
        "GET /v1/log/entries",
        "GET /v1/plugins",
        "GET /v1/plugins/x",
        "GET /v1/policy/files",
        "GET /v1/policy/shadow",
        "GET /v1/slack/users",
        "GET /v1/store/journal",
        "GET /v1/tokens",
        "POST /v1/console/link",
        "POST /v1/log/keys",
        "POST /v1/plugins/x/add",
        "POST /v1/policy/check",
        "POST /v1/policy/reload",
        "POST /v1/policy/shadow",
        "POST /v1/store/erase",
        "POST /v1/store/retain",
        "POST /v1/tokens",
        "POST /v1/tokens/x/revoke",
        "POST /v1/tokens/x/rotate",
    ];
    // Beside what it may get, a service submits, asks beforehand, and moves its own consumer groups.
    const SERVICE: [&str; 10] = [
        "DELETE /v1/actions/x",
        "POST /api/v1/automations/check",
        "POST /api/v1/automations/render",
        "POST /v1/actions",
        "POST /v1/batches",
        "POST /v1/plans",
        "POST /v1/policy/explain",
        "POST /v1/policy/replay",
        "POST /v1/preview",
        "POST /v1/store/topics/x/groups/x",
    ];
    // A sandbox has its own actions and their receipts, and what is public.
    const SANDBOX: [&str; 9] = [
        "/v1/actions",
        "/v1/batches",
        "/v1/plans",
        "/v1/receipts",
        "/v1/tools",
        "/v1/log",
        "/v1/whoami",
        "/x/actions",
        "/openapi.json",
    ];
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (user, service) = (door.account("user", "ada").await, door.account("service", "ci").await);
    let (_, sandbox) = door.session().await;
    let document = door.local("GET /openapi.json", &Value::Null).await;
    let mut forbidden = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    let mut allowed = forbidden.clone();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let part = |part: &str| if part.starts_with('{') { "x".to_owned() } else { part.to_owned() };
        let path = path.split('/').map(part).collect::<Vec<_>>().join("/");
        // The answer of a stream has no end.
        let methods = methods.as_object().unwrap().keys().filter(|_| path != "/v1/stream");
        for method in methods {
            let line = format!("{} {path}", method.to_uppercase());
            let body = if method == "get" { Value::Null } else { json!({}) };
            for (at, token) in [&user, &service, &sandbox].into_iter().enumerate() {
                let (status, answer) = door.by(token, &line, &body).await;
                assert_ne!(status, 401, "{line}: {answer}");
                let is_kind = status == 403 && answer["code"] == "token_forbidden";
                (if is_kind { &mut forbidden } else { &mut allowed })[at].insert(line.clone());
            }
        }
    }
    assert!(allowed[0].len() > 60, "{allowed:?}");
    assert_eq!(
        forbidden[0].iter().map(String::as_str).filter(|line| line.contains("/v1/")).collect::<Vec<_>>(),
        LOCAL
    );
    for line in &allowed[1] {
        let fits = (line.starts_with("GET ") && !line.starts_with("GET /v1/secrets"))
            || SERVICE.contains(&line.as_str());
        assert!(fits, "a service: {line}");
    }
    for line in SERVICE {
        assert!(allowed[1].contains(line), "a service: {line}");
    }
    for line in &allowed[2] {
        let (method, path) = line.split_once(' ').unwrap();
        let public = ["/healthz", "/readyz"].contains(&path);
        let fits = public || (SANDBOX.iter().any(|mine| path.starts_with(mine)) && path != "/v1/log/entries");
        let changes = ["POST /v1/actions", "POST /v1/batches", "POST /v1/plans", "DELETE /v1/actions/x"];
        let changes = changes.contains(&line.as_str());
        assert!(fits && (method == "GET" || changes || path.starts_with("/x/actions")), "a sandbox: {line}");
    }
    // Who may get a thing may ask for its head, and each kind speaks MCP.
    for token in [&user, &service, &sandbox] {
        assert_eq!(door.by(token, "HEAD /v1/tools", &Value::Null).await.0, 200);
        assert_ne!(door.by(token, "POST /mcp", &json!({})).await.1["code"], "token_forbidden");
    }
    assert_eq!(door.by(&sandbox, "HEAD /v1/tree", &Value::Null).await.0, 403);
    // What no token may do is no operation of another route, either.
    for operation in [
        json!({ "do": "rotate_device_key" }),
        json!({ "do": "retain" }),
        json!({ "do": "revoke_token", "id": &user[9..41] }),
    ] {
        let (status, problem) = door.by(&user, "POST /v1/operations", &operation).await;
        assert_eq!((status, &problem["code"]), (403, &json!("token_forbidden")), "{problem}");
    }
    // Nor is it a tool.
    for tool in ["effectd.erase", "effectd.rotate_key", "effectd.create_token"] {
        let mut asked = write_note(tool, "workspace/x", "t");
        asked["tool_id"] = tool.into();
        let (status, problem) = door.by(&service, "POST /v1/actions?wait", &asked).await;
        assert_eq!((status, &problem["code"]), (404, &json!("unknown_tool")), "{problem}");
    }
    // The roles count where the kind does not refuse.
    let (status, paused) = door.by(&user, "POST /v1/operations", &json!({ "do": "pause" })).await;
    assert_eq!((status, &paused["changed"]), (200, &json!(true)), "{paused}");
    let ben = door.account("user", "ben").await;
    let (status, problem) = door.by(&ben, "POST /v1/operations", &json!({ "do": "resume" })).await;
    assert_eq!((status, &problem["code"]), (403, &json!("operators_only")), "{problem}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_person_with_the_role_decides() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (ada, ben) = (door.account("user", "ada").await, door.account("user", "ben").await);
    let service = door.account("service", "ci").await;
    let (session, sandbox) = door.session().await;
    // An account of another organisation with the same name is somebody else.
    let stranger = door.token(json!({ "kind": "user", "org": "office", "name": "ada" })).await;
    let approval = door.held(&ben, "d-1").await;
    let seen = door.seen(&approval).await;
    let grant = json!({ "org": "home", "session": session, "tool": "files.copy" });
    for (token, code) in
        [(&service, "token_forbidden"), (&sandbox, "token_forbidden"), (&ben, "may_not_decide")]
    {
        for verb in ["approve", "deny"] {
            let line = format!("POST /v1/approvals/{approval}/{verb}");
            let body = if verb == "approve" { &seen } else { &json!({}) };
            let (status, problem) = door.by(token, &line, body).await;
            assert_eq!((status, &problem["code"]), (403, &json!(code)), "{verb}: {problem}");
        }
        let (status, problem) = door.by(token, "POST /v1/grants", &grant).await;
        assert_eq!(status, 403, "{problem}");
    }
    let (status, problem) =
        door.by(&stranger, &format!("POST /v1/approvals/{approval}/approve"), &seen).await;
    assert_eq!((status, &problem["code"]), (404, &json!("approval_unknown")), "{problem}");
    // To an account of elsewhere, a space and a session are as if they were not there; nothing is recorded.
    let mut nowhere = write_note("x-1", "workspace/x", "t");
    let there = nowhere.clone();
    nowhere["space_id"] = "shared:nowhere".into();
    for line in ["POST /v1/actions?wait", "POST /v1/preview", "POST /v1/policy/explain"] {
        let answer = door.by(&stranger, line, &there).await;
        assert_eq!((answer.0, &answer), (404, &door.by(&stranger, line, &nowhere).await), "{line}");
    }
    for id in ["account://office/ada/x-1", "x-1"].map(percent_encoded) {
        let (status, view) =
            ask(door.operator.another(), &format!("GET /v1/actions/{id}"), &Value::Null).await;
        assert_eq!(status, 404, "{view}");
    }
    let mut unknown = grant.clone();
    unknown["session"] = "no-session".into();
    let answer = door.by(&stranger, "POST /v1/grants/requests", &grant).await;
    assert_eq!((answer.0, &answer), (400, &door.by(&stranger, "POST /v1/grants/requests", &unknown).await));
    // A service looks by its role, and operates by none.
    assert_eq!(door.by(&service, "GET /v1/tree", &Value::Null).await.0, 200);
    for line in ["GET /v1/tree", "GET /metrics"] {
        assert_eq!(door.by(&ben, line, &Value::Null).await.0, 403, "{line}");
    }
    assert_eq!(door.by(&service, "GET /metrics", &Value::Null).await.0, 200);
    let whole = percent_encoded(&format!("{}/d-1", account("ben")));
    assert_eq!(
        door.by(&service, &format!("DELETE /v1/actions/{whole}"), &Value::Null).await.0,
        404,
        "it is Ben's"
    );
    // A role that the policy takes away is gone with the next request, and one that it gives is there.
    let line = format!("POST /v1/approvals/{approval}/approve");
    policy(&place, &PEOPLE.replacen("home = \"admin\"", "home = \"member\"", 1));
    door.local("POST /v1/policy/reload", &Value::Null).await;
    assert_eq!(door.by(&ada, &line, &seen).await.0, 403);
    policy(&place, PEOPLE);
    door.local("POST /v1/policy/reload", &Value::Null).await;
    let (status, problem) = door.by(&ada, &line, &json!({})).await;
    assert_eq!(
        (status, &problem["code"]),
        (400, &json!("decision_invalid")),
        "what was shown is missing: {problem}"
    );
    let (status, decided) = door.by(&ada, &format!("{line}?wait_ms=60000"), &seen).await;
    assert_eq!(status, 200, "{decided}");
    let receipt = &decided["action"]["receipt"];
    assert_eq!(receipt["principal"], account("ben"), "{receipt}");
    assert_eq!(
        (&receipt["approval"]["by"], &receipt["approval"]["authority"]),
        (&json!(account("ada")), &json!("separate"))
    );
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_acts_in_its_own_organisation_only() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let ben = door.account("user", "ben").await;
    let (session, _) = door.session().await;
    let approval = door.held(&ben, "o-1").await;
    let seen = door.seen(&approval).await;
    let wish = json!({ "org": "home", "session": session, "tool": "files.copy" });
    let (status, grant) = door.by(&ben, "POST /v1/grants/requests", &wish).await;
    assert_eq!((status, &grant["state"]), (200, &json!("requested")), "{grant}");
    let grant = text(&grant["grant_id"]);
    let secret_of = |org: &str| format!("PUT /v1/secrets/{org}/linear");
    let tracker =
        json!({ "org": "home", "source": "linear", "name": "Tracker", "hosts": ["api.linear.app"] });
    let connection = text(&door.local("POST /v1/connections", &tracker).await["id"]);
    let (status, problem) = ask(door.operator.another(), "POST /v1/connections", &tracker).await;
    assert_eq!((status, &problem["code"]), (409, &json!("state_conflict")), "{problem}");
    door.local(&secret_of("home"), &json!({ "value": "v" })).await;
    let eve = door.token(json!({ "kind": "user", "org": "office", "name": "eve" })).await;
    for list in ["approvals", "grants", "sessions"] {
        let (status, page) = door.by(&eve, &format!("GET /v1/{list}"), &Value::Null).await;
        assert_eq!((status, &page), (200, &json!({ list: [] })), "{list}");
    }
    for list in ["connections", "secrets"] {
        assert_eq!(door.by(&eve, &format!("GET /v1/{list}"), &Value::Null).await, (200, json!([])), "{list}");
    }
    let (_, orgs) = door.by(&eve, "GET /v1/orgs", &Value::Null).await;
    assert_eq!((orgs.as_array().map(Vec::len), &orgs[0]["org"]), (Some(1), &json!("office")), "{orgs}");
    // What is not hers looks as if it were not there.
    let (empty, edit) = (json!({}), json!({ "params": {} }));
    for (line, id, body) in [
        ("GET /v1/approvals/ID", &approval, &Value::Null),
        ("POST /v1/approvals/ID/approve", &approval, &seen),
        ("POST /v1/approvals/ID/approve?preview=true", &approval, &seen),
        ("POST /v1/approvals/ID/deny", &approval, &empty),
        ("POST /v1/approvals/ID/preview", &approval, &edit),
        ("GET /v1/approvals/ID/always", &approval, &Value::Null),
        ("GET /v1/approvals/ID/grant", &approval, &Value::Null),
        ("POST /v1/grants/ID/activate", &grant, &Value::Null),
        ("POST /v1/grants/ID/revoke", &grant, &Value::Null),
        ("GET /v1/sessions/ID", &session, &Value::Null),
        ("POST /v1/sessions/ID/end", &session, &Value::Null),
        ("DELETE /v1/sessions/ID", &session, &Value::Null),
        ("POST /v1/connections/ID/disable", &connection, &Value::Null),
        ("DELETE /v1/connections/ID", &connection, &Value::Null),
    ] {
        let there = door.by(&eve, &line.replace("ID", id), body).await;
        let not_there =
            door.by(&eve, &line.replace("ID", "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50"), body).await;
        assert_eq!((there.0, &there), (404, &not_there), "{line}");
    }
    let whole = percent_encoded(&format!("{}/o-1", account("ben")));
    assert_eq!(door.by(&eve, &format!("DELETE /v1/actions/{whole}"), &Value::Null).await.0, 404);
    let [mut no_session, mut no_space] = [wish.clone(), household()];
    no_session["session"] = "no-session".into();
    no_space["space_id"] = "shared:nowhere".into();
    for (line, there, not_there, status) in [
        ("POST /v1/grants", &wish, &no_session, 400),
        ("POST /v1/grants/requests", &wish, &no_session, 400),
        ("POST /v1/sessions", &household(), &no_space, 403),
    ] {
        let there = door.by(&eve, line, there).await;
        assert_eq!((there.0, &there), (status, &door.by(&eve, line, not_there).await), "{line}");
    }
    let end = json!({ "do": "end_session", "session_id": session });
    assert_eq!(door.by(&eve, "POST /v1/operations", &end).await.0, 400);
    let secret = json!({ "value": "v" });
    let theirs = door.by(&eve, &secret_of("home"), &secret).await;
    assert_eq!((theirs.0, &theirs), (403, &door.by(&eve, &secret_of("nobody"), &secret).await));
    // By the same roles, a token of the organisation does it.
    let ada = door.account("user", "ada").await;
    let (status, listed) = door.by(&ada, "GET /v1/approvals", &Value::Null).await;
    assert_eq!((status, &listed["approvals"][0]["approval_id"]), (200, &json!(approval)), "{listed}");
    assert_eq!(door.by(&ada, &format!("POST /v1/grants/{grant}/activate"), &Value::Null).await.0, 200);
    assert_eq!(door.by(&ada, &format!("DELETE /v1/actions/{whole}"), &Value::Null).await.0, 200);
    let (_, listed) = door.by(&ada, "GET /v1/approvals", &Value::Null).await;
    assert_eq!(listed, json!({ "approvals": [] }), "it was withdrawn");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_of_a_token_end_at_its_organisation() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (ada, ben) = (door.account("user", "ada").await, door.account("user", "ben").await);
    let eve = door.token(json!({ "kind": "user", "org": "office", "name": "eve" })).await;
    // It leaves a receipt, an event, a dead letter and, after Ada's judgement, an amendment.
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n";
    let note = write_note("q-1", "workspace/q", key);
    let (_, problem) = door.by(&ben, "POST /v1/actions?wait", &note).await;
    assert_eq!(problem["code"], "safety_quarantined", "{problem}");
    let receipt = text(&problem["receipt"]["receipt_id"]);
    let (amend, judged) =
        (format!("POST /v1/receipts/{receipt}/amendments"), json!({ "success": false, "note": "a key" }));
    let (status, amended) = door.by(&ada, &amend, &judged).await;
    assert_eq!(status, 200, "{amended}");
    for (line, list) in [
        ("GET /v1/receipts", "receipts"),
        ("GET /v1/store/topics/ACTION_EXECUTED", "events"),
        ("GET /v1/store/topics/AMENDMENTS", "events"),
        ("GET /v1/dlq", "letters"),
    ] {
        let (status, own) = door.by(&ada, line, &Value::Null).await;
        assert_eq!((status, own[list].as_array().map(Vec::len)), (200, Some(1)), "{line}: {own}");
        let (status, none) = door.by(&eve, line, &Value::Null).await;
        assert_eq!((status, &none[list]), (200, &json!([])), "{line}: {none}");
        let all = door.local(line, &Value::Null).await;
        assert!(!all[list].as_array().unwrap().is_empty(), "{line}: {all}");
    }
    assert_eq!(door.by(&eve, "GET /v1/dlq/causes", &Value::Null).await, (200, json!([])));
    let files = json!({ "files": door.local("GET /v1/policy/files", &Value::Null).await["files"] });
    for (token, total) in [(&ada, 1), (&eve, 0)] {
        let (status, replayed) = door.by(token, "POST /v1/policy/replay", &files).await;
        assert_eq!((status, &replayed["total"]), (200, &json!(total)), "{replayed}");
    }
    // No query names another organisation, or gets the own one for it.
    assert_eq!(door.by(&ada, "GET /v1/dlq?org=office", &Value::Null).await.0, 400);
    let (status, problem) = door.by(&ada, "GET /v1/store/topics/ACTION_DECISION", &Value::Null).await;
    assert_eq!((status, &problem["code"]), (403, &json!("operators_only")), "{problem}");
    // What is named looks as if it were not there, and stays.
    let letters = door.by(&ada, "GET /v1/dlq", &Value::Null).await.1;
    let letter = letters["letters"][0]["letter"].to_string();
    for (line, id, none, body) in [
        ("GET /v1/receipts/ID", &receipt, "no-such-receipt", &Value::Null),
        ("GET /v1/receipts/ID/explanation", &receipt, "no-such-receipt", &Value::Null),
        ("GET /v1/receipts/ID/proof", &receipt, "no-such-receipt", &Value::Null),
        ("GET /v1/receipts/ID/amendments", &receipt, "no-such-receipt", &Value::Null),
        ("POST /v1/receipts/ID/amendments", &receipt, "no-such-receipt", &judged),
        ("GET /v1/dlq/ID", &letter, "99", &Value::Null),
        ("GET /v1/quarantine/ID", &letter, "99", &Value::Null),
        ("POST /v1/dlq/ID/requeue", &letter, "99", &Value::Null),
        ("POST /v1/dlq/ID/purge", &letter, "99", &Value::Null),
    ] {
        let there = door.by(&eve, &line.replace("ID", id), body).await;
        let not_there = door.by(&eve, &line.replace("ID", none), body).await;
        assert_eq!((there.0, &there), (404, &not_there), "{line}");
    }
    for operation in [
        r#"{ "do": "requeue_letters", "letters": [ID] }"#,
        r#"{ "do": "drop_letters", "letters": [ID] }"#,
        r#"{ "do": "settle_letter", "letter": ID, "done": true }"#,
    ] {
        let on = |letter: &str| serde_json::from_str::<Value>(&operation.replace("ID", letter)).unwrap();
        let there = door.by(&eve, "POST /v1/operations", &on(&letter)).await;
        let not_there = door.by(&eve, "POST /v1/operations", &on("99")).await;
        assert_eq!((there.0, &there), (404, &not_there), "{operation}");
    }
    // Modes, bands and consents of others cannot be changed, nor tried.
    let consent = json!({ "subject": "agent://planner@deviceA", "space": "shared:household", "purpose": "tool:files.copy" });
    for change in ["set_org_mode", "set_band", "grant_consent", "revoke_consent"] {
        let of = |org: &str, space: &str| {
            let mut body = match change {
                "set_org_mode" => json!({ "org": org, "tool": "files.copy", "mode": "deny" }),
                "set_band" => json!({ "space": space, "band": "BLACK" }),
                _ => consent.clone(),
            };
            if change.ends_with("consent") {
                body["space"] = space.into();
            }
            body["change"] = change.into();
            body
        };
        for line in ["POST /v1/policy/changes?preview=true", "POST /v1/policy/changes"] {
            let there = door.by(&eve, line, &of("home", "shared:household")).await;
            let not_there = door.by(&eve, line, &of("nowhere", "shared:nowhere")).await;
            assert_eq!((there.0, &there), (404, &not_there), "{change}");
        }
    }
    // What counts for all organisations stays with the users of this machine.
    let entry = json!({ "change": "set_entry", "list": "hosts", "entry": "mail.example", "allowed": true });
    for change in [entry, json!({ "change": "clear" })] {
        for line in ["POST /v1/policy/changes?preview=true", "POST /v1/policy/changes"] {
            let (status, problem) = door.by(&eve, line, &change).await;
            assert_eq!((status, &problem["code"]), (403, &json!("token_forbidden")), "{problem}");
        }
    }
    let own = json!({ "change": "set_org_mode", "org": "office", "tool": "files.copy", "mode": "deny" });
    assert_eq!(door.by(&eve, "POST /v1/policy/changes", &own).await.0, 200);
    // More than one operation takes are refused, and not looked for.
    let mut letters = vec![letter.parse::<u64>().unwrap(); 500];
    letters.push(99);
    let drop_letters = json!({ "do": "drop_letters", "letters": letters });
    let (status, problem) = door.by(&ada, "POST /v1/operations", &drop_letters).await;
    assert_eq!((status, &problem["code"]), (400, &json!("query_invalid")), "{problem}");
    let (status, view) = door.by(&ada, &format!("GET /v1/dlq/{letter}"), &Value::Null).await;
    assert_eq!((status, &view["action_id"]), (200, &json!(format!("{}/q-1", account("ben")))), "{view}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ids_that_a_token_chooses_are_its_own() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let (ada, ben) = (door.account("user", "ada").await, door.account("user", "ben").await);
    let ci = door.account("service", "ci").await;
    let submit = "POST /v1/actions?wait";
    let of = |name: &str, id: &str| json!(format!("{}/{id}", account(name)));
    // The same id of three principals is three actions, and nobody learns of the others'.
    let (status, first) = door.by(&ben, submit, &write_note("i-1", "workspace/ben", "t")).await;
    assert_eq!((status, &first["action_id"]), (202, &of("ben", "i-1")), "{first}");
    let (status, view) = door.by(&ci, submit, &write_note("i-1", "workspace/ci", "t")).await;
    assert_eq!((status, &view["action_id"]), (202, &of("ci", "i-1")), "{view}");
    let note = write_note("i-1", "workspace/local", "t");
    let (status, view) = ask(door.operator.another(), submit, &note).await;
    assert_eq!((status, &view["action_id"]), (202, &json!("i-1")), "{view}");
    // Nor does it help to name another's id whole.
    let theirs = account("ci") + "/i-1";
    let (status, view) = door.by(&ben, submit, &write_note(&theirs, "workspace/taken", "t")).await;
    assert_eq!((status, &view["action_id"]), (202, &of("ben", &theirs)), "{view}");
    // One's own id is known short and whole, by every route.
    let whole = account("ben") + "/i-1";
    let mut again = write_note("i-1", "workspace/ben", "t");
    again["action_id"] = whole.as_str().into();
    let (status, view) = door.by(&ben, submit, &again).await;
    let asked = |view: &Value| text(&view["approval"]["approval_id"]);
    assert_eq!((status, asked(&view)), (202, asked(&first)), "{view}");
    let whole = percent_encoded(&whole);
    for id in ["i-1", &whole] {
        let (status, view) = door.by(&ben, &format!("GET /v1/actions/{id}"), &Value::Null).await;
        assert_eq!((status, &view["action_id"]), (200, &of("ben", "i-1")), "{id}: {view}");
    }
    let (status, view) = door.by(&ben, "GET /v1/actions/i-1/wait?timeout_ms=1", &Value::Null).await;
    assert_eq!((status, &view["action_id"]), (202, &of("ben", "i-1")), "{view}");
    assert_eq!(door.by(&ci, &format!("GET /v1/actions/{whole}"), &Value::Null).await.0, 404);
    assert_eq!(door.by(&ci, &format!("DELETE /v1/actions/{whole}"), &Value::Null).await.0, 404);
    let (status, view) = door.by(&ben, "DELETE /v1/actions/i-1", &Value::Null).await;
    assert_eq!((status, &view["action_id"]), (200, &of("ben", "i-1")), "{view}");
    // Who may look at an action finds it by its whole id.
    assert_eq!(door.by(&ada, &format!("GET /v1/actions/{whole}"), &Value::Null).await.0, 200);
    assert_eq!(door.by(&ada, "GET /v1/actions/i-1", &Value::Null).await.0, 404);
    assert_eq!(door.local("GET /v1/actions/i-1", &Value::Null).await["state"], "held");
    // The same idempotency key is another one for each of them.
    for (caller, token) in [Some(&ben), Some(&ci), None].into_iter().enumerate() {
        let mut append = write_note(&format!("key-{caller}"), "workspace/log", &format!("{caller}\n"));
        append["tool_id"] = "files.append_text".into();
        append["idempotency_key"] = "k".into();
        let answer = match token {
            Some(token) => door.by(token, submit, &append).await,
            None => ask(door.operator.another(), submit, &append).await,
        };
        assert_eq!((answer.0, &answer.1["already_done"]), (200, &json!(false)), "{}", answer.1);
    }
    assert_eq!(std::fs::read_to_string(place.note("log")).unwrap(), "0\n1\n2\n");
    let long = "x".repeat(250);
    let (status, problem) = door.by(&ben, submit, &write_note(&long, "workspace/long", "t")).await;
    assert_eq!((status, &problem["code"]), (400, &json!("malformed")), "{problem}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_speaks_in_its_own_session_alone() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let ((one, sandbox), (other, second)) = (door.session().await, door.session().await);
    let note = |action: &str| write_note(action, &format!("workspace/{action}"), "t");
    for (action, path) in
        [("s-1", "POST /v1/actions?wait".to_owned()), ("s-2", format!("POST /v1/actions?wait&session={one}"))]
    {
        let (status, view) = door.by(&sandbox, &path, &note(action)).await;
        assert_eq!((status, &view["action_id"]), (202, &json!(format!("{one}/{action}"))), "{view}");
        let approval = view["approval"]["approval_id"].as_str().unwrap();
        let asked = door.local(&format!("GET /v1/approvals/{approval}"), &Value::Null).await;
        assert_eq!(asked["prompt"]["session"], one.as_str(), "{asked}");
    }
    let mut elsewhere = note("s-4");
    elsewhere["space_id"] = "private:alice".into();
    let mut stranger = note("s-5");
    stranger["subject_id"] = "agent://stranger@nowhere".into();
    for (path, request) in [
        (format!("POST /v1/actions?wait&session={other}"), note("s-3")),
        ("POST /v1/actions?wait&session=nobody".to_owned(), note("s-3")),
        ("POST /v1/actions".to_owned(), elsewhere),
        ("POST /v1/actions?wait".to_owned(), stranger),
    ] {
        let (status, problem) = door.by(&sandbox, &path, &request).await;
        assert_eq!((status, &problem["code"]), (404, &json!("session_unknown")), "{path}: {problem}");
    }
    // Another session's action is not there.
    let [first, none] = ["s-1", "s-9"].map(|id| percent_encoded(&format!("{one}/{id}")));
    let seen = door.by(&second, &format!("GET /v1/actions/{first}"), &Value::Null).await;
    let missing = door.by(&second, &format!("GET /v1/actions/{none}"), &Value::Null).await;
    assert_eq!((seen.0, &seen.1["code"], &seen.1["title"]), (404, &missing.1["code"], &missing.1["title"]));
    assert_eq!(door.by(&sandbox, "GET /v1/actions/s-1", &Value::Null).await.0, 200);
    assert_eq!(door.by(&second, &format!("DELETE /v1/actions/{first}"), &Value::Null).await.0, 404);
    // A record that cannot be read stops no other token.
    let unreadable = Swap {
        family: FamilyName::new("tokens").unwrap(),
        key: "unreadable".to_owned(),
        expect: Expect::Absent,
        change: KvChange::Put(NewBody::Clear(b"{".to_vec())),
    };
    let change = Change { swaps: vec![unreadable], ..Change::default() };
    door.runtime.pipeline().services().store.change(change).await.unwrap();
    // A session that ends or goes takes its tokens with it, at once.
    let rotate = format!("POST /v1/tokens/{}/rotate", &second[12..44]);
    door.local(&format!("POST /v1/sessions/{one}/end"), &Value::Null).await;
    assert_eq!(door.by(&sandbox, "GET /v1/tools", &Value::Null).await.0, 401);
    assert_eq!(door.by(&second, "GET /v1/tools", &Value::Null).await.0, 200);
    let next = text(&door.local(&rotate, &Value::Null).await["token"]);
    assert_eq!(door.by(&second, "GET /v1/tools", &Value::Null).await.0, 401);
    assert_eq!(door.by(&next, "GET /v1/tools", &Value::Null).await.0, 200);
    door.local(&format!("DELETE /v1/sessions/{other}"), &Value::Null).await;
    assert_eq!(door.by(&next, "GET /v1/tools", &Value::Null).await.0, 401);
    let listed = door.local("GET /v1/tokens", &Value::Null).await;
    let left: Vec<_> = listed["tokens"].as_array().unwrap().iter().map(|token| &token["state"]).collect();
    assert_eq!(left, ["ended"], "{listed}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_answers_with_its_token_once() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let preview = door.local("POST /v1/sessions?preview=true", &household()).await;
    assert!(preview.get("token").is_none(), "{preview}");
    let ben = door.account("user", "ben").await;
    let (status, made) = door.by(&ben, "POST /v1/sessions", &household()).await;
    assert_eq!(status, 200, "{made}");
    assert!(text(&made["token"]).starts_with("efd_sandbox_"), "{made}");
    // Ada operates, but does not act for the subject: the session's token is not hers.
    let ada = door.account("user", "ada").await;
    let (status, made) = door.by(&ada, "POST /v1/sessions", &household()).await;
    assert_eq!((status, made.get("token")), (200, None), "{made}");
    let operation = json!({
        "do": "create_session", "session_id": "by-operation", "space_id": "shared:household",
        "subject_id": "agent://planner@deviceA", "title": "week", "unattended": false,
    });
    let (status, made) = door.by(&ada, "POST /v1/operations", &operation).await;
    assert_eq!(
        (status, made.get("token")),
        (400, None),
        "its own route keeps a token to its organisation: {made}"
    );
    let listed = door.local("GET /v1/tokens", &Value::Null).await;
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 4, "{listed}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_keeps_its_groups_when_its_token_is_replaced() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let service = door.account("service", "ci").await;
    let seek = |group: &str| format!("POST /v1/store/topics/ACTION_EXECUTED/groups/{group}?to=0");
    let (status, problem) = door.by(&service, &seek("mine"), &Value::Null).await;
    assert_eq!((status, &problem["code"]), (403, &json!("operators_only")), "{problem}");
    let name = text(&problem["detail"]).split('`').nth(1).unwrap().to_owned();
    let rotate = format!("POST /v1/tokens/{}/rotate", &service[12..44]);
    let next = text(&door.local(&rotate, &Value::Null).await["token"]);
    let (status, moved) = door.by(&next, &seek(&name), &Value::Null).await;
    assert_eq!((status, &moved["offset"]), (200, &json!(0)), "{moved}");
    door.close().await;
}

/// What is on the other topics need not be of the token's organisation.
#[tokio::test(flavor = "multi_thread")]
async fn an_operators_token_moves_groups_of_learners_topics_only() {
    let place = place();
    let door = Door::open(&place, unlimited()).await;
    let ada = door.account("user", "ada").await;
    let seek = |topic: &str| json!({ "do": "seek_group", "topic": topic, "group": "g", "to": "start" });
    for topic in ["ACTION_DECISION", "APPROVALS", "SESSIONS", "nothing"] {
        for line in ["POST /v1/operations", "POST /v1/operations?preview=true"] {
            let (status, problem) = door.by(&ada, line, &seek(topic)).await;
            assert_eq!((status, &problem["code"]), (403, &json!("operators_only")), "{topic}: {problem}");
        }
        let own_route = format!("POST /v1/store/topics/{topic}/groups/g?to=start");
        let (status, problem) = door.by(&ada, &own_route, &Value::Null).await;
        assert_eq!((status, &problem["code"]), (403, &json!("operators_only")), "{topic}: {problem}");
    }
    let groups = door.local("GET /v1/store/topics/APPROVALS/groups", &Value::Null).await;
    assert!(groups.as_array().unwrap().iter().all(|group| group["group"] != "g"), "{groups}");
    let (status, moved) = door.by(&ada, "POST /v1/operations", &seek("ACTION_EXECUTED")).await;
    assert_eq!(status, 200, "{moved}");
    // The socket's operator moves every group.
    door.local("POST /v1/operations", &seek("APPROVALS")).await;
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_token_has_its_rate_and_only_its_holder_spends_it() {
    let place = place();
    let settings = Settings { token_rate_max: NonZeroU32::new(2), ..Settings::default() };
    let door = Door::open(&place, settings).await;
    let (ada, ben) = (door.account("user", "ada").await, door.account("user", "ben").await);
    let forged = with_checksum(&ada[..ada.len() - 6].replace("_user_", "_service_"));
    for _ in 0..20 {
        assert_eq!(door.by(&forged, "GET /v1/tools", &Value::Null).await.0, 401);
    }
    let status = async |token: &str| door.by(token, "GET /v1/tools", &Value::Null).await.0;
    assert_eq!([status(&ada).await, status(&ada).await], [200, 200]);
    let (refused, problem) = door.by(&ada, "GET /v1/tools", &Value::Null).await;
    assert_eq!((refused, &problem["code"]), (429, &json!("rate_limited")), "{problem}");
    assert_eq!(problem["retry_after_ms"], 500, "{problem}");
    assert_eq!(status(&ben).await, 200);
    door.clock.advance(Duration::from_millis(500));
    assert_eq!([status(&ada).await, status(&ada).await], [200, 429]);
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_one_token_that_wait_are_bounded() {
    let place = place();
    let door = Door::open(&place, Settings { connections_per_user_max: 1, ..unlimited() }).await;
    let ben = door.account("user", "ben").await;
    door.held(&ben, "w-1").await;
    let (wait, none) = ("GET /v1/actions/w-1/wait?timeout_ms=3000", Value::Null);
    let (one, other) = tokio::join!(door.by(&ben, wait, &none), door.by(&ben, wait, &none));
    let mut statuses = [one.0, other.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 503], "{one:?} {other:?}");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jwt_has_the_roles_that_the_policy_gives_its_claims() {
    let place = place();
    // The account of the JWT has roles by its claims alone.
    let people = PEOPLE.replace("HOME/ada", "HOME/other");
    policy(&place, &people);
    let keys = json!({ "keys": [{ "kty": "RSA", "kid": "rsa-1", "n": RSA, "e": "AQAB" }] });
    std::fs::write(place.path("jwks.json"), keys.to_string()).unwrap();
    let oidc = OidcSettings {
        issuer: "https://issuer.example".to_owned(),
        audience: "effectd".to_owned(),
        jwks_file: place.path("jwks.json").to_str().unwrap().to_owned(),
        org: "home".to_owned(),
        ..OidcSettings::default()
    };
    let door = Door::open(&place, Settings { oidc, ..unlimited() }).await;
    let ben = door.account("user", "ben").await;
    let approval = door.held(&ben, "j-1").await;
    let (line, seen) =
        (format!("POST /v1/approvals/{approval}/approve?wait_ms=60000"), door.seen(&approval).await);
    // The policy does not know the value of the claim, and gives nothing for it.
    assert_eq!(door.by(JWT, "GET /v1/orgs", &Value::Null).await, (200, json!([])));
    let (status, problem) = door.by(JWT, &line, &seen).await;
    assert_eq!((status, &problem["code"]), (404, &json!("approval_unknown")), "{problem}");
    policy(&place, &format!("{people}\n[claims.others]\norgs = {{ home = \"admin\" }}\n"));
    door.local("POST /v1/policy/reload", &Value::Null).await;
    assert_eq!(door.by(JWT, "GET /v1/orgs", &Value::Null).await, (200, json!([])));
    policy(
        &place,
        &format!("{people}\n[claims.deciders]\nroles = [\"look\"]\norgs = {{ home = \"admin\" }}\n"),
    );
    door.local("POST /v1/policy/reload", &Value::Null).await;
    assert_eq!(door.by(JWT, "GET /v1/tree", &Value::Null).await.0, 200);
    assert_eq!(door.by(JWT, "POST /v1/operations", &json!({ "do": "pause" })).await.0, 403);
    let (status, decided) = door.by(JWT, &line, &seen).await;
    assert_eq!(status, 200, "{decided}");
    assert_eq!(decided["action"]["receipt"]["approval"]["by"], account("ada"));
    // Its time is over.
    door.clock.jump_to(Timestamp::from_second(2_000_000_059).unwrap());
    assert_eq!(door.by(JWT, "GET /v1/tree", &Value::Null).await.0, 200);
    door.clock.jump_to(Timestamp::from_second(2_000_000_060).unwrap());
    assert_eq!(door.by(JWT, "GET /v1/tree", &Value::Null).await.0, 401);
    door.close().await;
}

/// A place whose policy lists this machine.
fn place_with_a_way_out() -> Place {
    let place = place();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let with = text.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1);
    assert_ne!(text, with);
    std::fs::write(&file, with).unwrap();
    place
}

async fn connect(door: &Door, service: &Service, source: &str, more: Value) -> String {
    let mut body = json!({
        "org": "home", "source": source, "name": source, "hosts": ["127.0.0.1"],
        "access": { "scheme": "http", "port": service.port, "allow": ["127.0.0.0/8"], "routes": ["GET /keys", "POST /token"] },
    });
    for (name, value) in more.as_object().unwrap() {
        if name == "secrets" { body[name] = value.clone() } else { body["access"][name] = value.clone() }
    }
    text(&door.local("POST /v1/connections", &body).await["id"])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_gives_its_keys_over_a_connection() {
    let place = place_with_a_way_out();
    let text = std::fs::read_to_string(place.state().join("policy/policy.toml")).unwrap();
    let claims = "\n[claims.deciders]\nroles = [\"look\"]\norgs = { home = \"admin\" }\n";
    std::fs::write(place.state().join("policy/policy.toml"), text + claims).unwrap();
    let key = |id: &str| json!({ "keys": [{ "kty": "RSA", "kid": id, "n": RSA, "e": "AQAB" }] }).to_string();
    let answer = Arc::new(Mutex::new(Some(key("rsa-0"))));
    let served = answer.clone();
    let issuer = Service::new(move |_, _, _| Some((200, served.lock().unwrap().clone()?)));
    let oidc = OidcSettings {
        issuer: "https://issuer.example".to_owned(),
        audience: "effectd".to_owned(),
        jwks_source: "http.idp".to_owned(),
        org: "home".to_owned(),
        ..OidcSettings::default()
    };
    let door = Door::open(&place, Settings { oidc, ..unlimited() }).await;
    let status = async || door.by(JWT, "GET /v1/tree", &Value::Null).await.0;
    assert_eq!(status().await, 401, "there is no connection");
    connect(&door, &issuer, "http.idp", json!({})).await;
    for _ in 0..20 {
        assert_eq!(status().await, 401, "the issuer is asked once a minute");
    }
    assert_eq!(issuer.asked("GET /keys").len(), 0);
    door.clock.advance(Duration::from_secs(60));
    assert_eq!(status().await, 401, "it does not have this key");
    *answer.lock().unwrap() = Some(key("rsa-1"));
    door.clock.advance(Duration::from_secs(60));
    assert_eq!([status().await, status().await], [200, 200]);
    assert_eq!(issuer.asked("GET /keys").len(), 2);
    // It is down, and then takes the key away.
    *answer.lock().unwrap() = None;
    door.clock.advance(Duration::from_secs(3_599));
    assert_eq!(status().await, 200);
    *answer.lock().unwrap() = Some(key("rsa-2"));
    door.clock.advance(Duration::from_secs(60));
    assert_eq!(status().await, 401);
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_token_is_replaced_before_it_ends() {
    let place = place_with_a_way_out();
    let service = Service::new(move |line, _, _| match line {
        "POST /token" => {
            Some((200, json!({ "access_token": "canary-access", "expires_in": 3_600 }).to_string()))
        }
        _ => Some((200, "{}".to_owned())),
    });
    let door = Door::open(&place, unlimited()).await;
    door.local(concat!("PUT /v1/secrets/", "home/client"), &json!({ "value": "canary-client" })).await;
    connect(&door, &service, "http.idp", json!({})).await;
    let oauth = json!({ "token_source": "http.idp", "client_id": "effectd" });
    let credential =
        json!({ "header": "authorization", "prefix": "Bearer ", "secret": "client", "oauth": oauth });
    let more = json!({ "secrets": ["client"], "credential": credential });
    let id = connect(&door, &service, "http.mail", more).await;
    let test = format!("POST /v1/connections/{id}/test");
    for (after, asked) in [(0, 1), (3_539, 1), (1, 2), (0, 2), (7_200, 3)] {
        door.clock.advance(Duration::from_secs(after));
        assert_eq!(door.local(&test, &json!({})).await["status"], 200);
        assert_eq!(service.asked("POST /token").len(), asked, "after {after} s");
    }
    let gets = service.asked("GET /keys");
    assert!(
        gets.iter().all(|(head, _)| head.contains("authorization: Bearer canary-access\r\n")),
        "{gets:?}"
    );
    door.close().await;
}
