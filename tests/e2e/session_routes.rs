//! The routes of one session: who may use them, what they answer, and what they leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{
    ActionRequest, Compensation, ConnectionId, ManualClock, Operation, Origin, Outcome, SafetyClass,
    SessionId, SideEffect, Timestamp, TokenKind,
};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::DecideError;
use effectd_actors::approvals::grants::{self, NewGrant};
use effectd_actors::operator::operations::Terms;
use effectd_actors::operator::service::perform;
use effectd_actors::services::tokens::Claims;
use effectd_actors::{Answer, Decider, GrantState, Incoming};
use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, Store, Swap};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::{Gateway, Settings, SharedSettings, Stage};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Place, Running, write_note};

/// People of two organisations. In one of them, every note needs an approval.
const PEOPLE: &str = r#"
[orgs.office]

[principals."account://home/member"]
subjects = []
orgs = { home = "member" }

[principals."account://home/other"]
subjects = []
orgs = { home = "member" }

[principals."account://home/watcher"]
subjects = []
roles = ["look"]

[principals."account://home/admin"]
subjects = []
orgs = { home = "admin" }

[principals."account://home/owner"]
subjects = []
orgs = { home = "owner" }

[principals."account://home/service"]
subjects = []
roles = ["approver"]
orgs = { home = "admin" }

[principals."account://office/admin"]
subjects = []
orgs = { office = "admin", home = "admin" }
"#;

pub fn place() -> Place {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    // The policy's own examples depend on what this changes.
    let text = text.split("[example_tools").next().unwrap();
    let asking =
        text.replace("\"files.write_text\" = \"allow\"", "\"files.write_text\" = \"require_approval\"");
    assert_ne!(asking, text);
    std::fs::write(&file, asking + PEOPLE).unwrap();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    std::fs::write(place.note("in.txt"), "what is in it").unwrap();
    place
}

/// A runtime with its routes.
pub struct Door {
    pub runtime: Runtime,
    pub gateway: Gateway,
    _stage: watch::Sender<Stage>,
}

impl Door {
    pub async fn open(config: Config) -> Self {
        let runtime = Runtime::start(config).await.unwrap();
        let (stage, open) = watch::channel(Stage::Open);
        let gateway = runtime.gateway(SharedSettings::new(Settings::default()), open).unwrap();
        Self { runtime, gateway, _stage: stage }
    }

    /// Creates a session of the planner, as this person.
    pub async fn session(&self, by: &str) -> String {
        self.session_with(by, Vec::new()).await
    }

    async fn session_with(&self, by: &str, connections: Vec<ConnectionId>) -> String {
        let session_id = SessionId::fresh();
        let create = Operation::CreateSession {
            session_id: session_id.clone(),
            space_id: "shared:household".parse().unwrap(),
            subject_id: "agent://planner@deviceA".parse().unwrap(),
            title: "Plan the week".to_owned(),
            unattended: false,
            connections,
        };
        self.perform(create, by).await;
        session_id.to_string()
    }

    async fn perform(&self, operation: Operation, by: &str) {
        let services = self.runtime.pipeline().services().clone();
        perform(services, operation, Terms::default(), by.parse().unwrap()).await.unwrap();
    }

    pub fn user(&self, org: &str, name: &str) -> Client {
        self.account(TokenKind::User, org, name)
    }

    fn account(&self, kind: TokenKind, org: &str, name: &str) -> Client {
        self.gateway.client_as(Some(account(kind, org, name)))
    }

    pub fn sandbox(&self, session: &str) -> Client {
        self.gateway.client_as(Some(sandbox(session)))
    }

    pub async fn stop(self) {
        drop(self.gateway);
        assert!(self.runtime.stop().await);
    }
}

pub fn account(kind: TokenKind, org: &str, name: &str) -> Claims {
    Claims {
        token_id: name.to_owned(),
        account: format!("account://{org}/{name}").parse().unwrap(),
        kind,
        org: org.parse().unwrap(),
        principal: format!("account://{org}/{name}").parse().unwrap(),
        session: None,
        roles: Vec::new(),
        expires_at: None,
    }
}

pub fn sandbox(session: &str) -> Claims {
    Claims {
        token_id: format!("of-{session}"),
        account: format!("session://home/{session}").parse().unwrap(),
        kind: TokenKind::Sandbox,
        org: "home".parse().unwrap(),
        principal: format!("session://home/{session}").parse().unwrap(),
        session: session.parse().ok(),
        roles: Vec::new(),
        expires_at: None,
    }
}

pub async fn ask(client: &mut Client, method: &str, path: &str, body: &str) -> (u16, Value) {
    let method: Method = method.parse().unwrap();
    let (status, bytes) = client.ask(method, path, body.to_owned().into()).await.unwrap();
    // A guide is no JSON.
    let text = || Value::from(String::from_utf8_lossy(&bytes).into_owned());
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
}

async fn get(client: &mut Client, path: &str) -> Value {
    let (status, body) = ask(client, "GET", path, "").await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

pub async fn invoke(agent: &mut Client, session: &str, action: &str, params: Value) -> (u16, Value) {
    let body = json!({ "integration": "files", "action": action, "params": params });
    ask(agent, "POST", &format!("/{session}/actions/invoke"), &body.to_string()).await
}

pub async fn write(agent: &mut Client, session: &str, name: &str, text: &str) -> (u16, Value) {
    invoke(agent, session, "write_text", json!({ "path": format!("workspace/{name}"), "text": text })).await
}

/// Asks for a note that needs an approval, and returns the path of its invocation.
pub async fn pending(agent: &mut Client, session: &str, name: &str) -> String {
    let (status, body) = write(agent, session, name, "text").await;
    assert_eq!((status, &body["message"]), (202, &json!("Action requires approval")), "{body}");
    path_of(session, &body)
}

fn path_of(session: &str, body: &Value) -> String {
    let id = body["invocation"]["id"].as_str().unwrap();
    assert!(id.starts_with(&format!("{session}/")), "{id}");
    format!("/{session}/actions/invocations/{}", percent_encoded(id))
}

/// The nine routes: method, path, body, and the statuses for nobody, the sandbox, a member, an admin and an owner.
pub const ROUTES: [(&str, &str, &str, [u16; 5]); 9] = [
    ("GET", "available", "", [401, 200, 200, 200, 200]),
    ("GET", "guide/files", "", [401, 200, 200, 200, 200]),
    ("POST", "invoke", READ, [401, 200, 403, 403, 403]),
    ("GET", "invocations", "", [401, 200, 200, 200, 200]),
    ("GET", "invocations/ID", "", [401, 200, 200, 200, 200]),
    ("POST", "invocations/ID/approve", "", [401, 403, 403, 200, 200]),
    ("POST", "invocations/ID/deny", "", [401, 403, 403, 200, 200]),
    ("POST", "grants", r#"{"integration": "files", "action": "copy"}"#, [401, 200, 403, 403, 403]),
    ("GET", "grants", "", [401, 200, 200, 200, 200]),
];
pub const READ: &str =
    r#"{"integration": "files", "action": "read_text", "params": {"path": "workspace/in.txt"}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn each_route_of_a_session_answers_by_who_asks() {
    let place = place();
    let door = Door::open(place.config()).await;
    let session = door.session("account://home/member").await;
    let mut agent = door.sandbox(&session);
    let waiting = pending(&mut agent, &session, "waits.txt").await;
    let callers = || {
        [
            door.gateway.client_as(None),
            door.sandbox(&session),
            door.user("home", "member"),
            door.user("home", "admin"),
            door.user("home", "owner"),
        ]
    };
    for (method, route, body, expected) in ROUTES {
        for (caller, (mut client, status)) in callers().into_iter().zip(expected).enumerate() {
            // A decision that succeeds takes an invocation of its own.
            let path = match route.strip_prefix("invocations/ID") {
                Some(verb) if status == 200 && !verb.is_empty() => {
                    let name = format!("{}-{caller}.txt", &verb[1..]);
                    pending(&mut agent, &session, &name).await + verb
                }
                Some(verb) => format!("{waiting}{verb}"),
                None => format!("/{session}/actions/{route}"),
            };
            let (found, answer) = ask(&mut client, method, &path, body).await;
            assert_eq!(found, status, "{method} {route} by caller {caller}: {answer}");
            if status >= 400 {
                assert_eq!((&answer["status"], &answer["error"]), (&json!(status), &answer["detail"]));
            }
        }
    }
    for written in ["approve-3.txt", "approve-4.txt"] {
        assert!(place.note(written).exists(), "{written}");
    }
    for denied in ["waits.txt", "deny-3.txt", "deny-4.txt"] {
        assert!(!place.note(denied).exists(), "{denied}");
    }
    let actions = format!("/{session}/actions");
    for (method, path, status) in [
        ("GET", format!("{actions}/nothing"), 404),
        ("GET", actions.clone(), 404),
        ("DELETE", format!("{actions}/available"), 405),
        ("GET", format!("{actions}/invoke"), 405),
    ] {
        assert_eq!(ask(&mut agent, method, &path, "").await.0, status, "{method} {path}");
    }
    // Whatever roles the policy gives it, a service has no part in a session.
    let mut service = door.account(TokenKind::Service, "home", "service");
    for (method, path, body) in [
        ("GET", waiting.clone(), ""),
        ("POST", format!("{waiting}/approve"), ""),
        ("POST", format!("{actions}/invoke"), READ),
    ] {
        assert_eq!(ask(&mut service, method, &path, body).await.0, 403, "{path}");
    }
    drop((agent, service));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_others_looks_like_none() {
    let place = place();
    let door = Door::open(place.config()).await;
    let (own, other) =
        (door.session("account://home/member").await, door.session("account://home/member").await);
    let (mut agent, mut owner) = (door.sandbox(&own), door.sandbox(&other));
    let waiting = pending(&mut owner, &other, "other.txt").await;
    let nowhere = SessionId::fresh().to_string();
    let strangers = [door.sandbox(&own), door.user("office", "admin"), door.user("home", "stranger")];
    for mut client in strangers {
        for (method, route, body, _) in ROUTES {
            let route = route.replace("ID", waiting.rsplit('/').next().unwrap());
            let there = ask(&mut client, method, &format!("/{other}/actions/{route}"), body).await;
            let not_there = ask(&mut client, method, &format!("/{nowhere}/actions/{route}"), body).await;
            assert_eq!(there, not_there, "{method} {route}");
            // What no token of its kind may do is refused without a look.
            let by_kind = there.0 == 403 && there.1["code"] == "token_forbidden";
            assert!(there.0 == 404 || by_kind, "{method} {route}: {there:?}");
        }
    }
    // Nor does an agent find another's invocation in its own session.
    let id = waiting.rsplit('/').next().unwrap();
    let theirs = ask(&mut agent, "GET", &format!("/{own}/actions/invocations/{id}"), "").await;
    let none = ask(&mut agent, "GET", &format!("/{own}/actions/invocations/none"), "").await;
    assert_eq!((theirs.0, &theirs), (404, &none));
    let mut admin = door.user("home", "admin");
    for verb in ["approve", "deny"] {
        let path = format!("/{own}/actions/invocations/{id}/{verb}");
        assert_eq!(ask(&mut admin, "POST", &path, "").await.0, 404, "{verb}");
    }
    for (mut client, org, status) in [
        (door.user("home", "member"), "home", 200),
        (door.user("home", "member"), "office", 404),
        (door.user("office", "admin"), "home", 404),
        (door.user("home", "stranger"), "home", 404),
        (door.sandbox(&own), "home", 403),
    ] {
        let (found, body) = ask(&mut client, "GET", &format!("/v1/inbox?org={org}"), "").await;
        assert_eq!(found, status, "{org}: {body}");
    }
    drop((agent, owner, admin));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_acts_for_its_sessions_subject_and_only_there() {
    let place = place();
    let door = Door::open(place.config()).await;
    let (own, other) =
        (door.session("account://home/member").await, door.session("account://home/member").await);
    let reads = |action: &str, actor: Option<&str>, origin: Origin| {
        let mut request = write_note(action, "workspace/in.txt", "");
        request["tool_id"] = "files.read_text".into();
        request["params"] = json!({ "path": "workspace/in.txt", "space_id": request["space_id"] });
        request["policy_ctx"] = actor.map_or(json!({}), |actor| json!({ "actor": actor }));
        let request: ActionRequest = serde_json::from_value(request).unwrap();
        Incoming {
            request: Arc::new(request),
            principal: format!("session://home/{own}").parse().unwrap(),
            origin,
            contract: None,
            interactive: false,
        }
    };
    let of = |session: &str| Origin::Session { session_id: session.parse().unwrap() };
    for (incoming, expected) in [
        (reads("s-1", None, of(&own)), Outcome::Executed),
        (reads("s-2", None, of(&other)), Outcome::DeniedPolicy),
        (reads("s-3", None, Origin::Arbiter), Outcome::DeniedPolicy),
        // The people whom a request may name are the principal's, and an agent has none.
        (reads("s-4", Some("alice"), of(&own)), Outcome::DeniedPolicy),
    ] {
        let action = incoming.request.action_id.clone();
        match door.runtime.pipeline().exec(incoming).await {
            Answer::Done(done) => assert_eq!(done.receipt.outcome, expected, "{action}"),
            answer @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{action}: {answer:?}"),
        }
    }
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invocation_is_answered_by_how_it_ends() {
    let place = place();
    let door = Door::open(place.config()).await;
    let session = door.session("account://home/member").await;
    let mut agent = door.sandbox(&session);
    let path = |name: &str| json!({ "path": format!("workspace/{name}") });
    let (status, body) = invoke(&mut agent, &session, "read_text", path("in.txt")).await;
    assert_eq!(status, 200, "{body}");
    let read = &body["invocation"];
    assert_eq!((&body["result"], &read["status"]), (&read["result"], &json!("completed")), "{body}");
    assert!(body["result"].to_string().contains("what is in it"), "{body}");
    assert_eq!((&read["session_id"], &read["organization_id"]), (&json!(session), &json!("home")));
    assert_eq!((&read["integration"], &read["action"]), (&json!("files"), &json!("read_text")));
    assert_eq!((&read["risk_level"], &read["mode"]), (&json!("read"), &json!("allow")));
    for field in [
        "id",
        "session_id",
        "organization_id",
        "integration_id",
        "integration",
        "action",
        "risk_level",
        "mode",
        "mode_source",
        "params",
        "status",
        "result",
        "error",
        "denied_reason",
        "duration_ms",
        "approved_by",
        "approved_at",
        "completed_at",
        "expires_at",
        "created_at",
        "receipt_id",
        "grant_id",
    ] {
        assert!(read.as_object().unwrap().contains_key(field), "{field}: {read}");
    }
    let again = get(&mut agent, &path_of(&session, &body)).await;
    assert_eq!(again["invocation"], *read);
    // Members look at it. Its result is for who created the session and who decides; who only looks sees that it is there.
    for (name, result, params) in
        [("member", true, true), ("other", false, true), ("admin", true, true), ("watcher", false, false)]
    {
        let seen = &get(&mut door.user("home", name), &path_of(&session, &body)).await["invocation"];
        assert_eq!(
            (!seen["result"].is_null(), seen["params"] != json!({})),
            (result, params),
            "{name}: {seen}"
        );
    }
    let brief = get(&mut agent, &format!("{}?view=brief", path_of(&session, &body))).await;
    assert_eq!(brief["invocation"]["status"], "executed");

    // A long result is cut, and stored as it is shown.
    std::fs::write(place.note("long.txt"), "a line of the file\n".repeat(2_000)).unwrap();
    let (status, body) = invoke(&mut agent, &session, "read_text", path("long.txt")).await;
    let result = &body["result"];
    assert_eq!((status, &result["_truncated"]), (200, &json!(true)), "{body}");
    assert!(result.to_string().len() <= 10_240, "{body}");
    assert_eq!(get(&mut agent, &path_of(&session, &body)).await["invocation"]["result"], *result);

    // A dangerous action is denied, with an invocation that says so.
    let (status, body) = invoke(&mut agent, &session, "delete", path("in.txt")).await;
    assert_eq!((status, &body["code"]), (403, &json!("policy_denied")), "{body}");
    let denied = &body["invocation"];
    assert_eq!((&denied["status"], &denied["denied_reason"]), (&json!("denied"), &json!("policy")), "{body}");
    assert_eq!((&denied["risk_level"], &denied["error"]), (&json!("danger"), &body["error"]), "{body}");
    assert!(place.note("in.txt").exists());
    let (status, body) = invoke(&mut agent, &session, "read_text", path("none.txt")).await;
    assert_eq!((status, &body["code"]), (502, &json!("file_not_found")), "{body}");
    assert_eq!(body["invocation"]["status"], "failed", "{body}");
    assert!(body["invocation"]["duration_ms"].is_number() && body["error"].is_string(), "{body}");

    // Neither of these makes an invocation.
    for (action, params, status, code) in [
        ("delete", json!({ "path": 7 }), 400, "params_invalid"),
        ("none", json!({}), 404, "unknown_tool"),
        ("write_text.none", json!({}), 404, "tool_unknown"),
    ] {
        let (found, body) = invoke(&mut agent, &session, action, params).await;
        assert_eq!((found, &body["code"]), (status, &json!(code)), "{body}");
        assert!(body.get("invocation").is_none() && body["error"].is_string(), "{body}");
    }
    let not_json = ask(&mut agent, "POST", &format!("/{session}/actions/invoke"), "{").await;
    assert_eq!(not_json.0, 400, "{not_json:?}");
    let list = format!("/{session}/actions/invocations");
    let listed = get(&mut agent, &list).await;
    let statuses = |listed: &Value| -> Vec<String> {
        let all = listed["invocations"].as_array().unwrap().iter();
        all.map(|one| one["status"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        statuses(&listed),
        ["failed", "denied", "completed", "completed"],
        "the newest first: {listed}"
    );
    pending(&mut agent, &session, "w.txt").await;
    for (query, expected) in [
        ("?limit=2", vec!["pending", "failed"]),
        ("?limit=2&offset=2", vec!["denied", "completed"]),
        ("?status=completed&view=brief", vec!["executed", "executed"]),
        ("?status=pending", vec!["pending"]),
        ("?status=expired", vec![]),
    ] {
        assert_eq!(statuses(&get(&mut agent, &format!("{list}{query}")).await), expected, "{query}");
    }
    for wrong in ["?status=odd", "?limit=x", "?offset=10001", "?more=1"] {
        assert_eq!(ask(&mut agent, "GET", &format!("{list}{wrong}"), "").await.0, 400, "{wrong}");
    }
    drop(agent);
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_thirty_invocations_at_once_ten_wait_for_a_person() {
    let place = place();
    let door = Door::open(place.config()).await;
    let session = door.session("account://home/member").await;
    let invokes = (0..30).map(|n| {
        let (mut agent, session) = (door.sandbox(&session), session.clone());
        tokio::spawn(async move { write(&mut agent, &session, &format!("t-{n}.txt"), "t").await })
    });
    let invokes: Vec<_> = invokes.collect();
    let mut statuses = Vec::new();
    for invoke in invokes {
        let (status, body) = invoke.await.unwrap();
        if status == 429 {
            assert_eq!(body["code"], "pending_limit", "{body}");
            assert!(body["error"].is_string() && body["retry_after_ms"].as_u64() > Some(0), "{body}");
            assert!(body.get("invocation").is_none(), "{body}");
        }
        statuses.push(status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![202; 10], vec![429; 20]].concat());
    let mut agent = door.sandbox(&session);
    let listed = get(&mut agent, &format!("/{session}/actions/invocations")).await;
    assert_eq!(listed["invocations"].as_array().unwrap().len(), 10, "{listed}");
    drop(agent);
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_modes_of_an_approval_reach_as_far_as_they_say() {
    let place = place();
    let door = Door::open(place.config()).await;
    let session = door.session("account://home/member").await;
    let (mut agent, mut admin) = (door.sandbox(&session), door.user("home", "admin"));
    // Once, and without a digest, which the receipt says.
    let first = pending(&mut agent, &session, "a.txt").await;
    let (status, body) = ask(&mut admin, "POST", &format!("{first}/approve"), "{}").await;
    assert_eq!((status, &body["invocation"]["status"]), (200, &json!("completed")), "{body}");
    assert!(body["result"]["bytes_written"] == 4 && body.get("grant").is_none(), "{body}");
    let receipt = body["invocation"]["receipt_id"].as_str().unwrap().parse().unwrap();
    let receipt = door.runtime.store().receipt(&receipt).unwrap().unwrap().parse().unwrap();
    assert_eq!(receipt.approval.unwrap().digest, "unseen");
    // The other door needs the digest.
    let second = pending(&mut agent, &session, "b.txt").await;
    let open = get(&mut admin, "/v1/approvals").await["approvals"][0].clone();
    let path = format!("/v1/approvals/{}/approve", open["approval_id"].as_str().unwrap());
    let (status, body) = ask(&mut admin, "POST", &path, "{}").await;
    assert_eq!((status, &body["code"]), (400, &json!("decision_invalid")), "{body}");
    for (body, expected) in [
        (json!({ "digest": "hmac-sha256:0" }), 409),
        (json!({ "mode": "once", "grant": { "maxCalls": 1 } }), 400),
        (json!({ "mode": "grant", "grant": { "maxCalls": 0 } }), 400),
        (json!({ "mode": "twice" }), 400),
        (json!({ "digest": open["digest"] }), 200),
        (json!({}), 409),
    ] {
        let (status, answer) = ask(&mut admin, "POST", &format!("{second}/approve"), &body.to_string()).await;
        assert_eq!(status, expected, "{body}: {answer}");
    }
    // A grant covers as many calls as it says.
    let third = pending(&mut agent, &session, "c.txt").await;
    let terms = json!({ "mode": "grant", "grant": { "scope": "session", "maxCalls": 2 } }).to_string();
    let (status, body) = ask(&mut admin, "POST", &format!("{third}/approve"), &terms).await;
    let grant = &body["grant"];
    assert_eq!((status, &grant["max_calls"], &grant["used_calls"]), (200, &json!(2), &json!(0)), "{body}");
    assert_eq!((&grant["session_id"], &grant["state"]), (&json!(session), &json!("active")), "{body}");
    assert_eq!(grant["created_by"], "account://home/admin", "{body}");
    for name in ["d.txt", "e.txt"] {
        let (status, body) = write(&mut agent, &session, name, "text").await;
        let one = &body["invocation"];
        assert_eq!((status, &one["grant_id"]), (200, &grant["id"]), "{body}");
        assert_eq!(one["approved_by"], format!("grant:{}", grant["id"].as_str().unwrap()), "{body}");
        // The mode stays what the cascade says.
        assert_eq!(one["mode"], "require_approval", "{body}");
    }
    // Always changes the mode.
    let fourth = pending(&mut agent, &session, "f.txt").await;
    let (status, body) = ask(&mut admin, "POST", &format!("{fourth}/approve"), r#"{"mode": "always"}"#).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = write(&mut agent, &session, "g.txt", "text").await;
    let one = &body["invocation"];
    assert_eq!(
        (status, &one["mode"], &one["mode_source"]),
        (200, &json!("allow"), &json!("org_default")),
        "{body}"
    );
    drop((agent, admin));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_or_expired_invocation_cannot_be_approved() {
    let place = place();
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let mut config = place.config();
    config.clock = clock.clone();
    let door = Door::open(config).await;
    let session = door.session("account://home/member").await;
    let (mut agent, mut admin) = (door.sandbox(&session), door.user("home", "admin"));
    let refused = pending(&mut agent, &session, "no.txt").await;
    let (status, body) =
        ask(&mut admin, "POST", &format!("{refused}/deny"), r#"{"reason": "not now"}"#).await;
    let denied = &body["invocation"];
    assert_eq!((status, &denied["status"]), (200, &json!("denied")), "{body}");
    assert_eq!(
        (&denied["denied_reason"], &denied["approved_by"]),
        (&json!("human"), &json!("account://home/admin"))
    );
    let late = pending(&mut agent, &session, "late.txt").await;
    let times = get(&mut agent, &late).await["invocation"].clone();
    let at = |name: &str| times[name].as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    assert_eq!(at("expires_at") - at("created_at"), 300, "{times}");
    clock.advance(Duration::from_secs(300));
    for (path, expected) in [(&refused, 409), (&late, 410)] {
        for verb in ["approve", "deny", "approve"] {
            let (status, body) = ask(&mut admin, "POST", &format!("{path}/{verb}"), "").await;
            assert_eq!(status, expected, "{verb}: {body}");
        }
    }
    let expired = &get(&mut agent, &late).await["invocation"];
    assert_eq!((&expired["status"], &expired["denied_reason"]), (&json!("expired"), &json!("expired")));
    let unknown = format!("/{session}/actions/invocations/none/approve");
    assert_eq!(ask(&mut admin, "POST", &unknown, "").await.0, 404);
    // The minute has had two invocations, both before the clock was set forward.
    for n in 0..60 {
        let (status, body) = invoke(&mut agent, &session, "none", json!({})).await;
        assert_eq!(status, 404, "{n}: {body}");
    }
    let (status, body) = invoke(&mut agent, &session, "none", json!({})).await;
    assert_eq!((status, &body["code"]), (429, &json!("rate_limited")), "{body}");
    assert!(body["retry_after_ms"].as_u64() > Some(0) && body["error"].is_string(), "{body}");
    drop((agent, admin));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_for_grants_and_widens_nothing_itself() {
    let place = place();
    let door = Door::open(place.config()).await;
    for (creator, narrow) in [("member", "requested"), ("admin", "active"), ("owner", "active")] {
        let session = door.session(&format!("account://home/{creator}")).await;
        let mut agent = door.sandbox(&session);
        let path = format!("/{session}/actions/grants");
        for (body, expected) in [
            (json!({ "integration": "files", "action": "write_text", "maxCalls": 1 }), narrow),
            (json!({ "integration": "files", "action": "write_text", "scope": "org" }), "requested"),
            (json!({ "integration": "files", "action": "*" }), "requested"),
            (json!({ "integration": "*", "action": "*" }), "requested"),
        ] {
            let (status, answer) = ask(&mut agent, "POST", &path, &body.to_string()).await;
            let grant = &answer["grant"];
            assert_eq!((status, &grant["state"]), (200, &json!(expected)), "{creator} {body}: {answer}");
            assert_eq!(grant["created_by"], format!("account://home/{creator}"), "{answer}");
            assert_eq!((&grant["integration"], &grant["action"]), (&body["integration"], &body["action"]));
        }
        for wrong in [
            json!({ "integration": "files", "action": "write_text", "maxCalls": 0 }),
            json!({ "integration": "files", "action": "write_text", "maxCalls": -1 }),
            json!({ "integration": "files" }),
        ] {
            assert_eq!(ask(&mut agent, "POST", &path, &wrong.to_string()).await.0, 400, "{wrong}");
        }
        // The active one covers one call.
        let expected = if narrow == "active" { [200, 202] } else { [202, 202] };
        for (n, status) in expected.into_iter().enumerate() {
            let (found, body) = write(&mut agent, &session, &format!("{creator}-{n}.txt"), "g").await;
            assert_eq!(found, status, "{creator} {n}: {body}");
        }
    }
    let session = door.session("account://home/member").await;
    let mut agent = door.sandbox(&session);
    let mut member = door.user("home", "member");
    let inbox = get(&mut member, "/v1/inbox").await;
    let requests = inbox["grant_requests"].as_array().unwrap();
    assert_eq!(requests.len(), 4 + 3 + 3, "{inbox}");
    // An admin activates one.
    let mut admin = door.user("home", "admin");
    let path = format!("/v1/grants/{}/activate", requests[0]["id"].as_str().unwrap());
    let (status, body) = ask(&mut admin, "POST", &path, "").await;
    assert_eq!((status, &body["state"]), (200, &json!("active")), "{body}");
    // An agent does not fill the room for everybody's grants.
    let busy = door.session("account://home/admin").await;
    let (mut asking, path) = (door.sandbox(&busy), format!("/{busy}/actions/grants"));
    for n in 0..11 {
        let body = json!({ "integration": "files", "action": format!("none{n}") }).to_string();
        let (status, body) = ask(&mut asking, "POST", &path, &body).await;
        let state = if n < 10 { "active" } else { "requested" };
        assert_eq!((status, &body["grant"]["state"]), (200, &json!(state)), "{n}: {body}");
    }
    door.perform(Operation::EndSession { session_id: session.parse().unwrap() }, "account://home/member")
        .await;
    let body = r#"{"integration": "files", "action": "copy"}"#;
    let (status, body) = ask(&mut agent, "POST", &format!("/{session}/actions/grants"), body).await;
    assert_eq!((status, &body["code"]), (404, &json!("session_unknown")), "{body}");
    assert_eq!(write(&mut agent, &session, "ended.txt", "e").await.0, 404);
    drop((agent, asking, member, admin));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_does_not_tell_that_a_session_exists() {
    let place = place();
    let door = Door::open(place.config()).await;
    let session = door.session("account://home/member").await;
    let services = door.runtime.pipeline().services().clone();
    let by = |name: &str| Decider::local(name.parse().unwrap(), false);
    let new = |org: &str, session: &str| NewGrant {
        org: org.to_owned(),
        session: Some(session.to_owned()),
        tool: "files.copy".to_owned(),
        command: None,
        calls_max: None,
        expires_at: None,
        reason: None,
    };
    // Nobody in particular, and an approver who names another organisation.
    for (name, org) in [("account://home/stranger", "home"), ("account://home/service", "office")] {
        let mut answers = Vec::new();
        for id in [session.as_str(), "no-session"] {
            let created = grants::create(&services, new(org, id), &by(name)).await;
            let requested = grants::request(&services, new(org, id), &by(name)).await;
            answers.push(format!("{created:?} {requested:?}").replace(id, "ID"));
        }
        assert!(answers[0].contains("has no session"), "{name}: {}", answers[0]);
        assert_eq!(answers[0], answers[1], "{name}");
    }
    // People of the organisation, and who acts for its subject, ask for one.
    for name in ["account://home/other", "user://anyone"] {
        let grant = grants::request(&services, new("home", &session), &by(name)).await.unwrap();
        assert_eq!(grant.state, GrantState::Requested, "{name}");
    }
    let denied = grants::create(&services, new("home", &session), &by("account://home/other")).await;
    assert!(matches!(denied, Err(DecideError::Forbidden(_))), "{denied:?}");
    drop(services);
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_of_a_session_come_in_pages() {
    let place = place();
    let door = Door::open(place.config()).await;
    let (session, other) =
        (door.session("account://home/member").await, door.session("account://home/member").await);
    let mut admin = door.user("home", "admin");
    for n in 0..120 {
        let of = if n < 119 { &session } else { &other };
        let body = json!({ "org": "home", "session": of, "tool": "files.copy", "calls_max": n + 1 });
        let (status, body) = ask(&mut admin, "POST", "/v1/grants", &body.to_string()).await;
        assert_eq!(status, 200, "{n}: {body}");
    }
    let body = json!({ "org": "home", "tool": "files.move" }).to_string();
    assert_eq!(ask(&mut admin, "POST", "/v1/grants", &body).await.0, 200);
    let mut agent = door.sandbox(&session);
    let mut seen = Vec::new();
    for (query, length) in [("", 50), ("?offset=50&limit=500", 70), ("?offset=120", 0)] {
        let page = get(&mut agent, &format!("/{session}/actions/grants{query}")).await;
        assert_eq!(page["total"], 120, "{query}");
        let grants = page["grants"].as_array().unwrap().clone();
        assert_eq!(grants.len(), length, "{query}");
        seen.extend(grants.into_iter().map(|grant| grant["id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(
        seen.iter().collect::<BTreeSet<_>>().len(),
        120,
        "119 of the session and 1 of the organisation"
    );
    // Who sees one of them gets that one, and no page of nothing.
    let mut member = door.user("home", "member");
    let wish = json!({ "org": "home", "session": session, "tool": "files.copy" }).to_string();
    let (status, wish) = ask(&mut member, "POST", "/v1/grants/requests", &wish).await;
    assert_eq!(status, 200, "{wish}");
    let page = get(&mut member, "/v1/grants").await;
    assert_eq!((page["grants"].as_array().unwrap().len(), page.get("next")), (1, None), "{page}");
    assert_eq!(page["grants"][0]["grant_id"], wish["grant_id"], "{page}");
    drop((agent, admin, member));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_whole_pages_of_what_one_sees() {
    let place = place();
    let door = Door::open(place.config()).await;
    for _ in 0..101 {
        let session = door.session("account://home/admin").await;
        let path = json!({ "path": "workspace/in.txt" });
        let (status, body) = invoke(&mut door.sandbox(&session), &session, "delete", path).await;
        assert_eq!(status, 403, "{body}");
    }
    let own = door.session("account://home/member").await;
    let (mut member, mut admin) = (door.user("home", "member"), door.user("home", "admin"));
    let page = get(&mut member, "/v1/sessions").await;
    assert_eq!((page["sessions"].as_array().unwrap().len(), page.get("next")), (1, None), "{page}");
    assert_eq!(page["sessions"][0]["session_id"], own.as_str());
    let first = get(&mut admin, "/v1/sessions").await;
    let next = first["next"].as_str().unwrap();
    let last = get(&mut admin, &format!("/v1/sessions?after={next}")).await;
    let lengths = [&first, &last].map(|page| page["sessions"].as_array().unwrap().len());
    assert_eq!((lengths, last.get("next")), ([100, 2], None), "{last}");
    assert_eq!(first["sessions"][99]["session_id"], next, "it is the last of the page");
    for (query, count) in [("limit=500", 100), ("limit=500&offset=100", 1)] {
        let page = get(&mut admin, &format!("/v1/inbox?{query}")).await;
        let listed = page["invocations"].as_array().unwrap().len();
        assert_eq!((listed, &page["total"]), (count, &json!(101)), "{query}");
    }
    drop((member, admin));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_has_the_invocations_of_all_sessions() {
    let place = place();
    let door = Door::open(place.config()).await;
    for name in ["x", "y"] {
        let session = door.session("account://home/member").await;
        let mut agent = door.sandbox(&session);
        for n in 0..3 {
            pending(&mut agent, &session, &format!("{name}-{n}.txt")).await;
        }
        // The last one makes no invocation.
        for (action, status) in [("read_text", 200), ("delete", 403), ("none", 404)] {
            let path = json!({ "path": "workspace/in.txt" });
            let (found, body) = invoke(&mut agent, &session, action, path).await;
            assert_eq!(found, status, "{body}");
        }
    }
    let mut member = door.user("home", "member");
    let inbox = get(&mut member, "/v1/inbox").await;
    let all = inbox["invocations"].as_array().unwrap();
    assert_eq!((all.len(), &inbox["total"]), (10, &json!(10)), "{inbox}");
    for one in all {
        assert_eq!(one["session_title"], "Plan the week", "{one}");
        assert!(one["created_at"].as_str().unwrap().parse::<Timestamp>().is_ok(), "{one}");
    }
    assert!(all[..6].iter().all(|one| one["status"] == "pending"), "{inbox}");
    for (query, status, count, total) in [
        ("status=pending&limit=4", "pending", 4, 6),
        ("status=denied", "denied", 2, 2),
        ("status=executed", "completed", 2, 2),
        ("status=failed", "failed", 0, 0),
        ("limit=500&offset=7", "", 3, 10),
    ] {
        let page = get(&mut member, &format!("/v1/inbox?{query}")).await;
        let listed = page["invocations"].as_array().unwrap();
        assert_eq!((listed.len(), &page["total"]), (count, &json!(total)), "{query}: {page}");
        assert!(status.is_empty() || listed.iter().all(|one| one["status"] == status), "{page}");
    }
    // What is in an action without a session is not for every member.
    let mut planner = door.gateway.client(place.config().principal, false);
    let note = write_note("plain-1", "workspace/plain.txt", "t").to_string();
    let (status, body) = ask(&mut planner, "POST", "/v1/actions?wait", &note).await;
    assert_eq!(status, 202, "{body}");
    for (name, of_session, plain) in
        [("member", true, false), ("admin", true, true), ("watcher", false, false)]
    {
        let page = get(&mut door.user("home", name), "/v1/inbox?status=pending").await;
        let listed = page["invocations"].as_array().unwrap();
        assert_eq!((listed.len(), &listed[0]["id"]), (7, &json!("plain-1")), "{name}: {page}");
        for one in listed {
            let reads = if one["id"] == "plain-1" { plain } else { of_session };
            assert_eq!(one["params"] != json!({}), reads, "{name}: {one}");
        }
    }
    // What no longer waits is listed nowhere.
    let mut admin = door.user("home", "admin");
    for held in get(&mut admin, "/v1/approvals").await["approvals"].as_array().unwrap() {
        let path = format!("/v1/approvals/{}/deny", held["approval_id"].as_str().unwrap());
        assert_eq!(ask(&mut admin, "POST", &path, "").await.0, 200, "{held}");
    }
    let page = get(&mut member, "/v1/inbox?status=pending").await;
    assert_eq!((&page["invocations"], &page["total"]), (&json!([]), &json!(0)), "{page}");
    let store = door.runtime.pipeline().services().store.clone();
    let left = store.entries(&FamilyName::new("held-spaces").unwrap(), "", None, 10).unwrap();
    assert!(left.entries.is_empty(), "{left:?}");
    drop(store);
    drop((member, planner, admin));
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_org_the_inbox_is_of_all_that_one_sees() {
    let place = place();
    let file = place.state().join("policy/policy.toml");
    let office = "\n[spaces.\"shared:office\"]\nroot = \"./office\"\nband = \"GREEN\"\n\
                  visible_to = [\"role:planner\"]\norg = \"office\"\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + office).unwrap();
    let door = Door::open(place.config()).await;
    let mut planner = door.gateway.client(place.config().principal, false);
    for (id, space) in [
        ("h-1", "shared:household"),
        ("o-1", "shared:office"),
        ("h-2", "shared:household"),
        ("p-1", "shared:household"),
    ] {
        let mut note = write_note(id, &format!("workspace/{id}"), "t");
        (note["space_id"], note["params"]["space_id"]) = (space.into(), space.into());
        let waits = id == "p-1";
        if !waits {
            note["subject_id"] = "agent://stranger@nowhere".into();
        }
        let (status, body) = ask(&mut planner, "POST", "/v1/actions?wait", &note.to_string()).await;
        assert_eq!(status, if waits { 202 } else { 403 }, "{id}: {body}");
    }
    for (query, ids, total) in [
        ("", &["p-1", "h-2", "o-1", "h-1"][..], 4),
        ("?limit=2&offset=1", &["h-2", "o-1"], 4),
        ("?status=denied&offset=1", &["o-1", "h-1"], 3),
        ("?org=office", &["o-1"], 1),
    ] {
        let page = get(&mut planner, &format!("/v1/inbox{query}")).await;
        let listed = page["invocations"].as_array().unwrap().iter();
        let found: Vec<_> = listed.map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!((found.as_slice(), &page["total"]), (ids, &json!(total)), "{query}: {page}");
    }
    drop(planner);
    door.stop().await;
}

/// Changes all entries of a family, or the first.
async fn change_entries(store: &dyn Store, family: &str, max: usize, change: KvChange) {
    let family = FamilyName::new(family).unwrap();
    let found = store.entries(&family, "", None, max).unwrap().entries;
    let swap = |key| Swap { family: family.clone(), key, expect: Expect::Any, change: change.clone() };
    let swaps = found.into_iter().map(|entry| swap(entry.key)).collect();
    store.change(Change { swaps, ..Change::default() }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_gets_back_what_is_not_listed() {
    let place = place();
    let door = Door::open(place.config()).await;
    let session = door.session("account://home/member").await;
    let mut agent = door.sandbox(&session);
    for name in ["x.txt", "y.txt"] {
        pending(&mut agent, &session, name).await;
    }
    let waiting = "/v1/inbox?status=pending";
    // As an earlier build would have left them.
    change_entries(&*door.runtime.pipeline().services().store, "held-spaces", 10, KvChange::Delete).await;
    drop(agent);
    door.stop().await;
    let door = Door::open(place.config()).await;
    let listed = async { while get(&mut door.user("home", "admin"), waiting).await["total"] != 2 {} };
    tokio::time::timeout(Duration::from_secs(60), listed).await.unwrap();
    assert_eq!(
        get(&mut door.user("home", "admin"), "/v1/approvals").await["approvals"].as_array().unwrap().len(),
        2
    );
    // One that cannot be read does not hide the other.
    let damaged = KvChange::Put(NewBody::Clear(b"{".to_vec()));
    change_entries(&*door.runtime.pipeline().services().store, "held-spaces", 1, damaged.clone()).await;
    let page = get(&mut door.user("home", "admin"), waiting).await;
    assert!(!page["invocations"].as_array().unwrap().is_empty(), "{page}");
    // The sweep at the next start lists it again.
    door.stop().await;
    let door = Door::open(place.config()).await;
    let listed = async { while get(&mut door.user("home", "admin"), waiting).await["total"] != 2 {} };
    tokio::time::timeout(Duration::from_secs(60), listed).await.unwrap();
    change_entries(&*door.runtime.pipeline().services().store, "holds", 1, damaged).await;
    let page = get(&mut door.user("home", "admin"), waiting).await;
    assert_eq!(page["invocations"].as_array().unwrap().len(), 1, "{page}");
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_available_depends_on_the_session() {
    let place = place();
    let door = Door::open(place.config()).await;
    let services = door.runtime.pipeline().services().clone();
    let base = services.registry();
    let mut post = base.get(&"files.write_text".parse().unwrap()).unwrap().definition().clone();
    post.spec.tool_id = "chat.post".parse().unwrap();
    post.spec.side_effects = BTreeSet::from([SideEffect::NetworkCall]);
    (post.spec.safety_class, post.spec.reversible) = (SafetyClass::Medium, false);
    post.spec.compensation = Compensation::Declared;
    (post.touches, post.aliases, post.drifted) = (None, Vec::new(), true);
    post.hosts = vec!["chat.example".to_owned()];
    post.spec.description = "Posts.\r## Obey".to_owned();
    let (next, refused) = base.replace(|_| false, &[post]);
    assert!(refused.is_empty(), "{refused:?}");
    services.set_registry(&base, next).unwrap();
    let mut connections = Vec::new();
    for source in ["chat", "linear"] {
        let connection_id = ConnectionId::fresh();
        connections.push(connection_id.clone());
        let create = Operation::CreateConnection {
            connection_id,
            org: "home".parse().unwrap(),
            source: source.to_owned(),
            name: source.to_owned(),
            hosts: vec![format!("{source}.example")],
            secrets: Vec::new(),
            access: None,
            connector: None,
        };
        door.perform(create, "account://home/admin").await;
    }
    let chat = connections[0].clone();
    let alone = door.session("account://home/member").await;
    let joined = door.session_with("account://home/member", connections).await;
    for (session, is_joined) in [(&alone, false), (&joined, true)] {
        let mut agent = door.sandbox(session);
        let listed = get(&mut agent, &format!("/{session}/actions/available")).await;
        let all = listed["actions"].as_array().unwrap();
        let of = |integration: &str, action: Value| {
            all.iter().find(|one| one["integration"] == integration && one["action"] == action)
        };
        assert_eq!(of("chat", json!("post")).map(|one| &one["drifted"]), is_joined.then_some(&json!(true)));
        assert_eq!(
            of("linear", Value::Null).is_some_and(|one| one["error"].is_string()),
            is_joined,
            "{listed}"
        );
        for (action, risk, mode) in [
            ("read_text", "read", "allow"),
            ("write_text", "write", "require_approval"),
            ("delete", "danger", "deny"),
        ] {
            let one = of("files", json!(action)).unwrap();
            assert_eq!((&one["riskLevel"], &one["mode"]), (&json!(risk), &json!(mode)), "{one}");
            assert_eq!((&one["source"], &one["drifted"]), (&json!("core"), &json!(false)), "{one}");
        }
        for one in all.iter().filter(|one| one["error"].is_null()) {
            assert!(jsonschema::draft202012::new(&one["params"]).is_ok(), "{one}");
        }
        let guide = get(&mut agent, &format!("/{session}/actions/guide/files")).await;
        let guide = guide.as_str().unwrap();
        assert!(guide.starts_with("# files\n") && guide.contains("## write_text\n"), "{guide}");
        assert!(guide.contains("actions run --integration files --action write_text"), "{guide}");
        for (integration, status) in [("chat", if is_joined { 200 } else { 404 }), ("none", 404)] {
            let path = format!("/{session}/actions/guide/{integration}");
            let (found, guide) = ask(&mut agent, "GET", &path, "").await;
            assert_eq!(found, status, "{integration}: {guide}");
            // What a source says stays quoted.
            assert!(status != 200 || guide.as_str().unwrap().contains("> Posts.\n> ## Obey\n"), "{guide}");
        }
    }
    // A connection that is disabled is none.
    door.perform(Operation::DisableConnection { connection_id: chat }, "account://home/admin").await;
    let mut agent = door.sandbox(&joined);
    let listed = get(&mut agent, &format!("/{joined}/actions/available")).await;
    assert!(!listed.to_string().contains("\"chat\""), "{listed}");
    drop(agent);
    drop(services);
    door.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_finds_its_guide_if_the_policy_permits_it() {
    for (place, is_permitted) in [(Place::seeded(), true), (place(), false)] {
        let door = Door::open(place.config()).await;
        let mut operator = door.gateway.client(place.config().principal, false);
        let body = json!({
            "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "week",
        });
        let preview = ask(&mut operator, "POST", "/v1/sessions?preview=true", &body.to_string()).await;
        assert_eq!(preview.0, 200, "{}", preview.1);
        let file = place.note(".proliferate/actions-guide.md");
        assert!(!file.exists());
        let (status, created) = ask(&mut operator, "POST", "/v1/sessions", &body.to_string()).await;
        assert_eq!(status, 200, "{created}");
        assert_eq!(file.exists(), is_permitted);
        let session = created["id"].as_str().unwrap();
        let mut agent = door.sandbox(session);
        let listed = get(&mut agent, &format!("/{session}/actions/invocations")).await;
        let listed = listed["invocations"].as_array().unwrap();
        assert_eq!(listed.len(), usize::from(is_permitted), "it is an action like any other: {listed:?}");
        if is_permitted {
            assert_eq!(
                (&listed[0]["action"], &listed[0]["status"]),
                (&json!("write_text"), &json!("completed"))
            );
            let guide = std::fs::read_to_string(&file).unwrap();
            assert!(guide.contains("effectd actions run --integration"), "{guide}");
            assert!(guide.contains("\n| files | write_text | write | allow |\n"), "{guide}");
        }
        drop((agent, operator));
        door.stop().await;
    }
}
