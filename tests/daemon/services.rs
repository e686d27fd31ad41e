//! Linear, Sentry and Slack: every action by a real daemon, its broker and a confined child, against services that have a state and count
//! what happens to them.

use serde_json::{Value, json};

use crate::approvals::decide;
use crate::backups::find;
use crate::harness::{Daemon, Place, Serving, program, root, until};
use crate::runbook::blocks;
use crate::shared::services::{self, Fake, Fault, Linear, Sentry, Slack, Vendor};
use crate::tcp::listening;

const TOKENS: [(&str, &str); 3] =
    [("linear", "lin_api_canary5e3c"), ("sentry", "sntryu_canary5e3c"), ("slack", "xoxb-canary-5e3c")];
const WRITES: [&str; 7] = [
    "linear.create_issue",
    "linear.update_issue",
    "linear.add_comment",
    "linear.undo",
    "sentry.update_issue",
    "slack.send_message",
    "slack.undo",
];

struct World {
    linear: Fake<Linear>,
    sentry: Fake<Sentry>,
    slack: Fake<Slack>,
    place: Place,
}

impl World {
    fn new() -> Self {
        let [linear, sentry, slack] = TOKENS.map(|(_, token)| token);
        let (linear, sentry, slack) = (Linear::start(linear), Sentry::start(sentry), Slack::start(slack));
        Self { linear, sentry, slack, place: Place::seeded() }
    }

    /// With a planner that may use all of it, and what a service writes needs nobody.
    fn trusting() -> Self {
        let world = Self::new();
        world.edit(|text| {
            let caps = ["linear", "sentry", "slack"].map(|name| format!("\"{name}.read\", \"{name}.write\""));
            let modes = WRITES.map(|tool| format!("\"{tool}\" = \"allow\"")).join(", ");
            let text = text.replacen("\"diagnose\"]", &format!("\"diagnose\", {}]", caps.join(", ")), 1);
            let text = text.replacen("modes = { ", &format!("modes = {{ {modes}, "), 1);
            text.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1)
        });
        world
    }

    fn edit(&self, change: impl FnOnce(String) -> String) {
        let file = self.place.state().join("policy/policy.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let with = change(text.clone());
        assert_ne!(text, with);
        std::fs::write(&file, with).unwrap();
    }

    fn port(&self, source: &str) -> u16 {
        match source {
            "linear" => self.linear.port(),
            "sentry" => self.sentry.port(),
            _ => self.slack.port(),
        }
    }

    /// Connects the organisation with a service, by its preset.
    fn connect(&self, org: &str, source: &str, token: &str) {
        let secret = format!("{source}-token");
        let set = self.place.effectd(&["secrets", "set", org, &secret, "--yes"], Some(token));
        assert_eq!(set.code(), 0, "{}", set.stderr());
        let port = self.port(source).to_string();
        let add = ["connections", "add", "--org", org, "--preset", source, "--secret", &secret, "--yes"];
        let elsewhere = ["--host", "127.0.0.1", "--port", &port, "--no-tls", "--allow", "127.0.0.0/8"];
        let added = self.place.effectd(&[&add[..], &elsewhere].concat(), None);
        assert_eq!(added.code(), 0, "{}", added.stderr());
    }

    fn connect_all(&self) {
        for (source, token) in TOKENS {
            self.connect("home", source, token);
        }
    }

    fn serve(&self) -> Daemon {
        self.place.serve(&["--set", "pipeline.lease_ttl_ms=2000"])
    }
}

fn request(action: &str, tool: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["space_id"] = "shared:household".into();
    json!({
        "action_id": action, "tool_id": tool, "space_id": "shared:household", "subject_id": "agent://planner@deviceA",
        "params": params, "policy_ctx": { "actor": "alice", "device": "phone1" }, "qos": { "max_retries": 0 },
    })
}

/// The view of an action that is carried out.
#[track_caller]
fn done(daemon: &Daemon, action: &str, tool: &str, params: &Value) -> Value {
    let view = daemon.post("/v1/actions?wait", &request(action, tool, params)).json(200);
    assert_eq!(view["receipt"]["outcome"], "executed", "{view}");
    view
}

#[track_caller]
fn failed(daemon: &Daemon, action: &str, tool: &str, params: &Value, (status, code): (u16, &str)) -> Value {
    daemon.post("/v1/actions?wait", &request(action, tool, params)).problem(status, code)
}

/// The view of an action once it has its receipt.
fn ended(daemon: &Daemon, action: &str) -> Value {
    let view = || daemon.get(&format!("/v1/actions/{action}")).json(200);
    until("there is a receipt", || view()["receipt"].is_object());
    view()
}

fn last<V: Vendor>(fake: &Fake<V>) -> (services::Request, Value) {
    let (request, _) = fake.asked().pop().unwrap();
    let body = serde_json::from_str(&request.body).unwrap_or_default();
    (request, body)
}

#[track_caller]
fn nobody_has_a_token(place: &Place) {
    for copy in [
        &["backup", "copy", "--keys", "copy-keys"][..],
        &["support-bundle", "bundle.json"],
        &["receipts", "list", "--limit", "1000"],
        &["connections", "list"],
    ] {
        let copied = place.effectd(copy, None);
        assert_eq!(copied.code(), 0, "{}", copied.stderr());
        assert!(!(copied.stdout() + &copied.stderr()).contains("canary"), "{copy:?}");
    }
    for (_, token) in TOKENS {
        let found = find(&place.path(""), token.as_bytes());
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn all_eleven_actions_reach_their_service() {
    let world = World::trusting();
    let daemon = world.serve();
    for tool in ["linear.get_issue", "sentry.get_issue", "slack.send_message"] {
        failed(&daemon, tool, tool, &json!({}), (404, "unknown_tool"));
    }
    world.connect_all();
    let (team, user) = (services::TEAM, services::USER);
    // Linear: a raw token, and fixed documents with variables.
    let list = done(&daemon, "l-1", "linear.list_issues", &json!({ "first": 500, "teamId": team }));
    assert_eq!(list["result"]["issues"][0]["identifier"], "ENG-1", "{list}");
    let (asked, body) = last(&world.linear);
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", "/graphql"));
    assert_eq!((asked.header("authorization"), asked.header("user-agent")), (TOKENS[0].1, "effectd"));
    assert_eq!(
        (&body["variables"]["first"], &body["variables"]["filter"]["team"]["id"]["eq"]),
        (&json!(50), &json!(team))
    );
    let one = done(&daemon, "l-2", "linear.get_issue", &json!({ "issueId": "ENG-1" }));
    assert_eq!(one["result"]["issue"]["id"], services::ISSUE, "{one}");
    let new = json!({
        "teamId": team, "title": "Milk", "description": "Two litres", "assigneeId": user, "stateId": services::STATE_DONE,
        "priority": 1, "labelIds": [user], "projectId": services::PROJECT,
    });
    let made = done(&daemon, "l-3", "linear.create_issue", &new);
    let id = made["result"]["issue"]["id"].as_str().unwrap().to_owned();
    let (_, body) = last(&world.linear);
    let mut input = new;
    input["id"] = json!(id);
    assert_eq!(body["variables"]["input"], input);
    let changed = json!({ "issueId": id, "title": "Milk!", "priority": 2 });
    done(&daemon, "l-4", "linear.update_issue", &changed);
    done(&daemon, "l-5", "linear.add_comment", &json!({ "issueId": id, "body": "Done" }));
    {
        let inner = world.linear.inner();
        let issue = inner.vendor.issue(&id).unwrap();
        assert_eq!(
            (&issue["title"], &issue["priority"], &issue["description"]),
            (&json!("Milk!"), &json!(2), &json!("Two litres"))
        );
        assert_eq!(inner.vendor.comments()[0]["body"], "Done");
    }
    assert_eq!(world.linear.effects(), 3);
    // Sentry: a bearer token, and one path for each issue.
    let project = json!({ "organization_slug": "acme", "project_slug": "web", "query": "is:unresolved" });
    let list = done(&daemon, "s-1", "sentry.list_issues", &project);
    assert_eq!(list["result"]["issues"][0]["id"], services::GROUP, "{list}");
    let (asked, _) = last(&world.sentry);
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", "/api/0/projects/acme/web/issues/"));
    assert_eq!(asked.query.get("query").map(String::as_str), Some("is:unresolved"));
    assert_eq!(asked.header("authorization"), format!("Bearer {}", TOKENS[1].1));
    let group = json!({ "issue_id": services::GROUP });
    assert_eq!(done(&daemon, "s-2", "sentry.get_issue", &group)["result"]["issue"]["status"], "unresolved");
    let events = done(&daemon, "s-3", "sentry.list_issue_events", &group);
    assert_eq!(events["result"]["events"][0]["event_id"], services::EVENT, "{events}");
    let event = json!({ "issue_id": services::GROUP, "event_id": "latest" });
    let event = done(&daemon, "s-4", "sentry.get_event", &event);
    assert_eq!(event["result"]["event"]["entries"][0]["type"], "exception", "{event}");
    let resolve = json!({ "issue_id": services::GROUP, "status": "resolved", "assignedTo": "user:3" });
    done(&daemon, "s-5", "sentry.update_issue", &resolve);
    let (asked, body) = last(&world.sentry);
    assert_eq!((asked.method.as_str(), asked.path), ("PUT", format!("/api/0/issues/{}/", services::GROUP)));
    assert_eq!(body, json!({ "status": "resolved", "assignedTo": "user:3" }));
    assert_eq!(world.sentry.inner().vendor.issue()["status"], "resolved");
    assert_eq!(world.sentry.effects(), 1);
    // Slack, by both names.
    let text = json!({ "channel": services::CHANNEL, "text": "Hello" });
    let sent = done(&daemon, "c-1", "slack.send_message", &text);
    assert_eq!(sent["receipt"]["outputs"]["channel"], services::CHANNEL, "{sent}");
    let answer = json!({ "channel": services::CHANNEL, "text": "Again", "thread_ts": sent["result"]["ts"] });
    let sent = done(&daemon, "c-2", "slack.post_message", &answer);
    assert_eq!(sent["receipt"]["tool_id"], "slack.send_message", "{sent}");
    let (asked, body) = last(&world.slack);
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", "/api/chat.postMessage"));
    assert_eq!(asked.header("authorization"), format!("Bearer {}", TOKENS[2].1));
    assert_eq!(
        (&body["thread_ts"], &body["metadata"]["event_type"]),
        (&answer["thread_ts"], &json!("effectd_action"))
    );
    assert_eq!(world.slack.effects(), 2);
    assert_eq!(daemon.stop(), 0);
    nobody_has_a_token(&world.place);
}

/// Each write with parameters whose effect differs from call to call.
fn writes(nth: usize) -> [(&'static str, Value); 5] {
    let status = ["resolved", "ignored", "unresolved"][nth % 3];
    [
        ("linear.create_issue", json!({ "teamId": services::TEAM, "title": format!("Issue {nth}") })),
        ("linear.update_issue", json!({ "issueId": "ENG-1", "title": format!("Title {nth}") })),
        ("linear.add_comment", json!({ "issueId": "ENG-1", "body": format!("Comment {nth}") })),
        ("sentry.update_issue", json!({ "issue_id": services::GROUP, "status": status })),
        ("slack.send_message", json!({ "channel": services::CHANNEL, "text": format!("Text {nth}") })),
    ]
}

impl World {
    fn fault(&self, tool: &str, fault: Fault) {
        match tool.split('.').next() {
            Some("linear") => {
                self.linear.inner().vendor.rest();
                self.linear.fault(fault);
            }
            Some("sentry") => self.sentry.fault(fault),
            _ => self.slack.fault(fault),
        }
    }

    fn effects(&self) -> u64 {
        self.linear.effects() + self.sentry.effects() + self.slack.effects()
    }
}

#[test]
fn a_lost_answer_is_settled_and_the_effect_is_one() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    let after = [Fault::Lost, Fault::Truncated, Fault::WrongType, Fault::Broken];
    for (nth, fault) in after.into_iter().enumerate() {
        for (tool, params) in writes(nth) {
            let before = world.effects();
            world.fault(tool, fault.clone());
            let view = done(&daemon, &format!("{tool}-{nth}"), tool, &params);
            assert_eq!(view["result"], json!({ "settled_by": "probe" }), "{fault:?}: {view}");
            assert_eq!(world.effects() - before, 1, "{tool}: {fault:?}");
            // The write, and the probe.
            assert_eq!(view["receipt"]["egress"].as_array().unwrap().len(), 2, "{view}");
        }
    }
    // Nothing happened, and that is found out, too: with a retry it happens once.
    for (tool, params) in writes(7) {
        let before = world.effects();
        world.fault(tool, Fault::Dropped);
        let problem = failed(&daemon, &format!("{tool}-a"), tool, &params, (502, "egress_failed"));
        assert_eq!(problem["receipt"]["effects"], json!("none"), "{problem}");
        assert_eq!(world.effects(), before, "{tool}");
        world.fault(tool, Fault::Dropped);
        let mut again = request(&format!("{tool}-b"), tool, &params);
        again["qos"] = json!({ "max_retries": 1 });
        daemon.post("/v1/actions?wait", &again).json(200);
        assert_eq!(world.effects() - before, 1, "{tool}");
    }
    // Before anything was done: 429 is tried again, other refusals are not.
    for (tool, params) in writes(8) {
        let before = world.effects();
        world.fault(tool, Fault::Later(1));
        let mut again = request(&format!("{tool}-c"), tool, &params);
        again["qos"] = json!({ "max_retries": 1 });
        let view = daemon.post("/v1/actions?wait", &again).json(200);
        assert_eq!(view["receipt"]["attempts"].as_array().unwrap().len(), 2, "{view}");
        assert_eq!(world.effects() - before, 1, "{tool}");
        for (nth, fault) in [Fault::Status(403), Fault::Redirect].into_iter().enumerate() {
            world.fault(tool, fault);
            failed(&daemon, &format!("{tool}-d{nth}"), tool, &params_of(tool, nth), (422, "service_refused"));
        }
        assert_eq!(world.effects() - before, 1, "{tool}");
    }
    daemon.stop();
}

/// A read has no effect that could be in doubt: it fails with a word for what was wrong, and may be repeated.
#[test]
fn a_read_that_fails_says_what_was_wrong() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    let group = json!({ "issue_id": services::GROUP });
    for (tool, params) in
        [("linear.get_issue", json!({ "issueId": "ENG-1" })), ("sentry.get_issue", group.clone())]
    {
        for (nth, (fault, expected)) in [
            (Fault::Lost, (502, "egress_failed")),
            (Fault::Truncated, (502, "egress_failed")),
            (Fault::WrongType, (422, "tool_failed")),
            (Fault::Broken, (422, "tool_failed")),
            (Fault::Later(1), (502, "tool_busy")),
            (Fault::Status(503), (502, "tool_busy")),
            (Fault::Status(403), (422, "service_refused")),
            (Fault::Redirect, (422, "service_refused")),
        ]
        .into_iter()
        .enumerate()
        {
            world.fault(tool, fault.clone());
            failed(&daemon, &format!("{tool}-{nth}"), tool, &params, expected);
        }
    }
    for (tool, params) in [("linear.list_issues", json!({})), ("sentry.list_issue_events", group)] {
        world.fault(tool, Fault::Later(1));
        let mut again = request(&format!("{tool}-again"), tool, &params);
        again["qos"] = json!({ "max_retries": 1 });
        let view = daemon.post("/v1/actions?wait", &again).json(200);
        assert_eq!(view["receipt"]["attempts"].as_array().unwrap().len(), 2, "{view}");
        world.fault(tool, Fault::Slow);
        let mut slow = request(&format!("{tool}-slow"), tool, &params);
        slow["qos"]["timeout_ms"] = json!(1_000);
        let problem = daemon.post("/v1/actions?wait", &slow).problem(502, "egress_failed");
        assert_eq!(problem["detail"], "the service did not answer in time", "{problem}");
    }
    assert_eq!(world.effects(), 0);
    daemon.stop();
}

/// The first look of the probe finds nothing: it looks again.
#[test]
fn an_effect_after_its_lost_answer_is_found() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    for (tool, params) in writes(0) {
        let before = world.effects();
        world.fault(tool, Fault::Late(1_000));
        let view = done(&daemon, tool, tool, &params);
        assert_eq!(view["result"], json!({ "settled_by": "probe" }), "{view}");
        assert_eq!(world.effects() - before, 1, "{tool}");
    }
    daemon.stop();
}

#[test]
fn a_timeout_leaves_time_to_look() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    for (tool, params) in writes(0) {
        world.fault(tool, Fault::Slow);
        let mut request = request(tool, tool, &params);
        request["qos"]["timeout_ms"] = json!(3_000);
        let view = daemon.post("/v1/actions?wait", &request).json(200);
        assert_eq!(view["result"], json!({ "settled_by": "probe" }), "{view}");
    }
    // Nothing happened, which takes two looks.
    let mut request = request("late", "slack.send_message", &writes(1)[4].1);
    request["qos"]["timeout_ms"] = json!(3_000);
    world.slack.fault(Fault::Dropped);
    let problem = daemon.post("/v1/actions?wait", &request).problem(502, "egress_failed");
    assert_eq!(problem["receipt"]["effects"], json!("none"), "{problem}");
    assert_eq!(world.effects(), 5);
    daemon.stop();
}

/// Other parameters than the last ones, so that a probe does not find their effect.
fn params_of(tool: &str, nth: usize) -> Value {
    let all = writes(100 + nth);
    let status = json!({ "issue_id": services::GROUP, "assignedTo": format!("team:{nth}") });
    if tool == "sentry.update_issue" {
        return status;
    }
    all.into_iter().find(|(known, _)| *known == tool).unwrap().1
}

#[test]
fn a_refusal_with_success_is_one_and_quotes_nothing() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    let told = |problem: &Value, text: &str| {
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(text) && !detail.contains("canary"), "{problem}");
    };
    let unknown = json!({ "channel": "C-nowhere", "text": "canary" });
    let problem = failed(&daemon, "r-1", "slack.send_message", &unknown, (422, "service_refused"));
    told(&problem, "Slack API Error: channel_not_found");
    // It needs no look into the channel: the service has said so.
    assert_eq!(problem["receipt"]["egress"].as_array().unwrap().len(), 1, "{problem}");
    let nobody = json!({ "teamId": "nowhere", "title": "canary" });
    let problem = failed(&daemon, "r-2", "linear.create_issue", &nobody, (422, "service_refused"));
    told(&problem, "Linear API Error: INPUT_ERROR");
    world.linear.fault(Fault::Refused("FORBIDDEN".to_owned()));
    let issue = json!({ "issueId": "ENG-1" });
    let problem = failed(&daemon, "r-3", "linear.get_issue", &issue, (422, "service_refused"));
    told(&problem, "Linear API Error: FORBIDDEN");
    let problem =
        failed(&daemon, "r-4", "sentry.get_issue", &json!({ "issue_id": "a/b?c" }), (422, "service_refused"));
    told(&problem, "Sentry API Error: Not Found");
    assert_eq!(last(&world.sentry).0.path, "/api/0/issues/a%2Fb%3Fc/");
    // A token without a scope.
    world.slack.inner().vendor.scopes.clear();
    let text = json!({ "channel": services::CHANNEL, "text": "canary" });
    let problem = failed(&daemon, "r-5", "slack.send_message", &text, (422, "service_refused"));
    told(&problem, "Slack API Error: missing_scope");
    assert_eq!(world.effects(), 0);
    // What no service would take is not sent at all.
    let asked = || world.linear.asked().len() + world.sentry.asked().len() + world.slack.asked().len();
    let before = asked();
    for (nth, (tool, params)) in [
        ("sentry.update_issue", json!({ "issue_id": services::GROUP, "status": "closed" })),
        ("sentry.update_issue", json!({ "issue_id": services::GROUP })),
        ("sentry.get_issue", json!({ "issue_id": ".." })),
        ("linear.create_issue", json!({ "title": "no team" })),
        ("linear.update_issue", json!({ "issueId": "ENG-1" })),
        ("linear.create_issue", json!({ "teamId": services::TEAM, "title": "x", "priority": 9 })),
        ("slack.send_message", json!({ "channel": services::CHANNEL, "text": "" })),
        ("slack.send_message", json!({ "channel": services::CHANNEL, "text": "x", "thread_ts": "now" })),
    ]
    .into_iter()
    .enumerate()
    {
        failed(&daemon, &format!("bad-{nth}"), tool, &params, (400, "params_invalid"));
    }
    assert_eq!(asked(), before);
    // Its history is closed to the token: whether the message was sent stays open.
    world.slack.inner().vendor.scopes = vec!["chat:write"];
    world.slack.fault(Fault::Lost);
    daemon.post("/v1/actions?wait", &request("open-1", "slack.send_message", &text));
    let view = ended(&daemon, "open-1");
    assert_eq!(view["receipt"]["error"]["code"], "outcome_unknown", "{view}");
    assert_eq!(world.effects(), 1);
    // Without a connection there is no tool, and nothing is sent.
    let all = daemon.get("/v1/connections").json(200);
    for known in all.as_array().unwrap() {
        let id = known["connection_id"].as_str().unwrap();
        daemon.post(&format!("/v1/connections/{id}/disable"), &json!({})).json(200);
    }
    let before = asked();
    failed(&daemon, "gone-1", "linear.get_issue", &issue, (404, "unknown_tool"));
    assert_eq!(asked(), before);
    assert_eq!(daemon.stop(), 0);
    nobody_has_a_token(&world.place);
}

#[test]
fn a_kill_after_the_effect_leaves_one_issue() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    for (tool, params) in writes(0) {
        let before = world.effects();
        world.fault(tool, Fault::Slow);
        let action = format!("kill-{tool}");
        daemon.post("/v1/actions", &request(&action, tool, &params)).json(202);
        until("it happened", || world.effects() == before + 1);
    }
    daemon.kill();
    let daemon = world.serve();
    for (tool, _) in writes(0) {
        let view = ended(&daemon, &format!("kill-{tool}"));
        assert_eq!(view["receipt"]["outcome"], "executed", "{view}");
    }
    assert_eq!((world.linear.effects(), world.sentry.effects(), world.slack.effects()), (3, 1, 1));
    let inner = world.linear.inner();
    assert_eq!((inner.vendor.issues().len(), inner.vendor.comments().len()), (2, 1));
}

/// An issue and messages are taken back when a later item fails, also if the daemon dies while it does.
#[test]
fn a_batch_that_fails_takes_back_what_it_sent() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    let batch = |id: &str, nth: usize, messages: usize| {
        let item = |tool: &str, mut params: Value| {
            params["space_id"] = "shared:household".into();
            json!({ "tool_id": tool, "params": params })
        };
        let message = |n: usize| json!({ "channel": services::CHANNEL, "text": format!("{id} {n}") });
        let mut items = vec![item("linear.create_issue", params_of("linear.create_issue", nth))];
        items.extend((0..messages).map(|n| item("slack.send_message", message(n))));
        items.push(item("slack.send_message", json!({ "channel": "C-nowhere", "text": "x" })));
        json!({ "batch_id": id, "subject_id": "agent://planner@deviceA", "space_id": "shared:household", "items": items })
    };
    let rolled_back = |result: &Value| {
        assert_eq!((&result["outcome"], &result["partial"]), (&json!("reverted"), &json!(false)), "{result}");
        let items = result["items"].as_array().unwrap();
        for item in &items[..items.len() - 1] {
            assert_eq!(item["marker"], "rolled_back", "{item}");
            let undo = item["undo_receipt_id"].as_str().unwrap();
            let undo = daemon_receipt(&world.place, undo);
            assert_eq!(
                (&undo["outcome"], &undo["origin"]["undo"]),
                (&json!("executed"), &json!(true)),
                "{undo}"
            );
            assert_eq!(undo["inputs"]["receipt_id"], item["receipt_id"], "{undo}");
            assert!(undo["tool_id"].as_str().unwrap().ends_with(".undo"), "{undo}");
        }
    };
    let view = daemon.post("/v1/batches", &batch("failed", 1, 1)).json(200);
    rolled_back(&view["result"]);
    assert!(world.slack.inner().vendor.messages().is_empty());
    assert_eq!(world.linear.effects(), 2, "made and archived");
    // The answer to the last undo does not come, and the daemon dies.
    daemon.post("/v1/batches?wait_ms=0", &batch("killed", 2, 5)).json(202);
    until("there is an issue", || world.linear.effects() == 3);
    world.linear.fault(Fault::Slow);
    until("it is archived", || world.linear.effects() == 4);
    daemon.kill();
    let daemon = world.serve();
    let ended = || daemon.get("/v1/batches/killed").json(200);
    until("it has ended", || ended()["result"].is_object());
    rolled_back(&ended()["result"]);
    assert!(world.slack.inner().vendor.messages().is_empty());
    assert_eq!(world.linear.effects(), 4, "archived once");
    daemon.stop();
}

fn daemon_receipt(place: &Place, id: &str) -> Value {
    place.effectd(&["receipts", "show", id, "-o", "json"], None).json(0)
}

#[test]
fn an_undo_archives_or_deletes_and_says_who_may_have_read() {
    let world = World::trusting();
    let daemon = world.serve();
    world.connect_all();
    let undo = |receipt: &str| world.place.effectd(&["undo", receipt, "--yes", "-o", "json"], None);
    for lost in [false, true] {
        for (tool, params) in writes(usize::from(lost)) {
            if lost {
                world.fault(tool, Fault::Lost);
            }
            let view = done(&daemon, &format!("undo-{lost}-{tool}"), tool, &params);
            let receipt = view["receipt"]["receipt_id"].as_str().unwrap();
            let undone = undo(receipt);
            if tool.ends_with("update_issue") {
                assert_eq!(undone.code(), 1, "{}", undone.stdout());
                assert_eq!(undone.json(1)["receipt"]["error"]["code"], "undo_gone");
                continue;
            }
            let undone = undone.json(0)["receipt"].clone();
            assert_eq!(undone["inputs"]["receipt_id"], receipt, "{undone}");
            assert_eq!(undone["outputs"]["undone"], tool, "{undone}");
            assert_eq!(undone["outputs"]["may_have_been_read"], true, "{undone}");
            assert!(undone["tool_id"].as_str().unwrap().ends_with(".undo"), "{undone}");
            // Twice is once. An issue that is archived is archived again.
            let again = undo(receipt).json(0)["receipt"].clone();
            let is_deleted = tool != "linear.create_issue";
            assert_eq!(again["outputs"]["already_gone"], is_deleted, "{again}");
        }
    }
    {
        let inner = world.linear.inner();
        let is_gone = |issue: &&Value| issue["id"] != services::ISSUE && issue["archivedAt"].is_string();
        assert_eq!(inner.vendor.issues().into_iter().filter(is_gone).count(), 2);
        assert!(inner.vendor.comments().is_empty());
    }
    assert!(world.slack.inner().vendor.messages().is_empty());
    let all = daemon.get("/v1/receipts?limit=1000").json(200);
    assert!(all.to_string().contains("slack.undo"), "{all}");
    // What read something, or belongs to another service, is not undone.
    let view = done(&daemon, "read-1", "linear.get_issue", &json!({ "issueId": "ENG-1" }));
    let receipt = view["receipt"]["receipt_id"].as_str().unwrap();
    assert_eq!(undo(receipt).json(1)["receipt"]["error"]["code"], "undo_gone");
    let other = json!({ "receipt_id": receipt });
    failed(&daemon, "cross-1", "slack.undo", &other, (410, "undo_gone"));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_person_approves_the_request_with_its_id() {
    let world = World::trusting();
    world.edit(|text| text.replacen("\"linear.create_issue\" = \"allow\", ", "", 1));
    let daemon = world.serve();
    world.connect_all();
    let params = json!({ "teamId": services::TEAM, "title": "Milk" });
    let view = daemon.post("/v1/actions?wait", &request("ask-1", "linear.create_issue", &params)).json(202);
    let approval = view["approval"]["approval_id"].as_str().unwrap();
    let asked = daemon.get(&format!("/v1/approvals/{approval}")).json(200);
    assert!(asked.to_string().contains("\"R2\""), "{asked}");
    let shown = &asked["prompt"]["preview"]["request"];
    assert_eq!(shown["url"], format!("http://127.0.0.1:{}/graphql", world.linear.port()), "{asked}");
    let text = shown["body"]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("Milk") && world.linear.asked().is_empty(), "{asked}");
    // The answer is lost, and the approval still covers this one request.
    world.linear.fault(Fault::Lost);
    decide(&daemon, approval, "approve", &json!({})).json(200);
    let view = ended(&daemon, "ask-1");
    assert_eq!(view["receipt"]["preview"]["verdict"], "matched", "{view}");
    {
        let inner = world.linear.inner();
        let made = inner.vendor.issues().into_iter().find(|issue| issue["title"] == "Milk").unwrap();
        assert!(text.contains(made["id"].as_str().unwrap()), "{text}");
    }
    // In a batch, too: each request is shown, and no other leaves.
    let note = json!({ "tool_id": "files.write_text", "params": { "path": "workspace/n", "text": "n", "space_id": "shared:household" } });
    let issue = json!({ "teamId": services::TEAM, "title": "Eggs", "space_id": "shared:household" });
    let items = [note, json!({ "tool_id": "linear.create_issue", "params": issue })];
    let batch = json!({ "batch_id": "ask-b", "subject_id": "agent://planner@deviceA", "space_id": "shared:household", "items": items });
    let view = daemon.post("/v1/batches", &batch).json(202);
    let approval = view["approval"]["approval_id"].as_str().unwrap();
    let asked = daemon.get(&format!("/v1/approvals/{approval}")).json(200);
    let shown = &asked["prompt"]["preview"]["shown"];
    assert_eq!(
        (&shown["changes"][0]["path"], &shown["requests"][0]["item"]),
        (&json!("workspace/n"), &json!(1)),
        "{asked}"
    );
    let text = shown["requests"][0]["request"]["body"]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("Eggs"), "{text}");
    let command = world.place.effectd(&["approvals", "show", approval], None).stdout();
    assert!(command.contains("items[1]") && command.contains("/graphql"), "{command}");
    decide(&daemon, approval, "approve", &json!({})).json(200);
    assert_eq!(ended(&daemon, "ask-b")["receipt"]["preview"]["verdict"], "matched");
    assert_eq!(ended(&daemon, "ask-b%2F1")["receipt"]["preview"]["verdict"], "matched");
    {
        let inner = world.linear.inner();
        let made = inner.vendor.issues().into_iter().find(|issue| issue["title"] == "Eggs").unwrap();
        assert!(text.contains(made["id"].as_str().unwrap()), "{text}");
    }
    // Without its connection there is no tool, so what was approved is not carried out.
    let params = json!({ "teamId": services::TEAM, "title": "Bread" });
    let view = daemon.post("/v1/actions?wait", &request("ask-2", "linear.create_issue", &params)).json(202);
    let all = daemon.get("/v1/connections").json(200);
    let id = all.as_array().unwrap().iter().find(|known| known["source"] == "linear").unwrap();
    let id = id["connection_id"].as_str().unwrap();
    daemon.post(&format!("/v1/connections/{id}/disable"), &json!({})).json(200);
    let before = world.linear.asked().len();
    decide(&daemon, view["approval"]["approval_id"].as_str().unwrap(), "approve", &json!({})).json(200);
    let view = ended(&daemon, "ask-2");
    assert_eq!(view["receipt"]["error"]["code"], "unknown_tool", "{view}");
    assert_eq!(world.linear.asked().len(), before);
}

/// Each command of the guides that the tools bring along, by an agent with the token of a session.
#[test]
fn an_agent_runs_the_commands_of_the_guides() {
    let world = World::trusting();
    let (daemon, address) = listening(&world.place, &[]);
    world.connect_all();
    let add = [
        "connections",
        "add",
        "--org",
        "home",
        "--name",
        "Shop",
        "--host",
        "db.example.org",
        "--postgres",
        "shop",
    ];
    let more = ["--user", "reader", "--secret", "slack-token", "--yes"];
    assert_eq!(world.place.effectd(&[&add[..], &more].concat(), None).code(), 0);
    let known = daemon.get("/v1/connections").json(200);
    let known = known.as_array().unwrap();
    let session = json!({
        "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "x",
        "connections": known.iter().map(|one| &one["connection_id"]).collect::<Vec<_>>(),
    });
    let session = daemon.post("/v1/sessions", &session).json(200);
    let guide_of = |source: &str| {
        let guide = daemon.get(&format!("/{}/actions/guide/{source}", session["id"].as_str().unwrap()));
        assert!(guide.head.contains("content-type: text/markdown"), "{guide:?}");
        guide.body
    };
    let database =
        known.iter().find_map(|one| one["source"].as_str().filter(|source| source.starts_with("db:")));
    assert!(guide_of(database.unwrap()).contains(effectd_adapters::postgres::GUIDE));
    std::fs::create_dir(world.place.path("bin")).unwrap();
    std::os::unix::fs::symlink(program(), world.place.path("bin/effectd")).unwrap();
    let mut ran = Vec::new();
    for service in effectd_adapters::services() {
        let source = service.source;
        let guide = guide_of(source);
        assert!(guide.contains(service.guide), "{guide}");
        let starts = format!("effectd actions run --integration {source} ");
        for command in service.guide.lines().filter(|line| line.starts_with(&starts)) {
            let all = daemon.get("/v1/receipts?limit=1000").json(200);
            let is_made = |one: &&Value| {
                let tool = one["tool_id"].as_str().unwrap();
                tool == "slack.send_message" && source == "slack"
                    || tool == "linear.create_issue" && source == "linear"
            };
            let made = all["receipts"].as_array().unwrap().iter().find(is_made);
            let receipt = made.map_or("", |made| made["receipt_id"].as_str().unwrap());
            let command = command.replace("<uuid>", services::TEAM).replace("ENG-123", "ENG-1");
            let command = command.replace("<receipt>", receipt);
            let mut shell = std::process::Command::new("sh");
            shell.args(["-ec", &command]).current_dir(world.place.path("")).env_clear();
            shell.env("PATH", format!("{}:/usr/bin:/bin", world.place.path("bin").display()));
            shell.env("HOME", world.place.path("")).env("EFFECTD_URL", format!("http://{address}"));
            shell.env("EFFECTD_TOKEN", session["token"].as_str().unwrap());
            let out = shell.stdin(std::process::Stdio::null()).output().unwrap();
            assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
            let action = command.split(' ').nth(6).unwrap().to_owned();
            ran.push(format!("{source}.{action}"));
        }
    }
    let all = effectd_adapters::services().iter().flat_map(|service| service.tools);
    assert_eq!(ran, all.map(|tool| tool.id()).collect::<Vec<_>>());
    assert_eq!((world.linear.effects(), world.sentry.effects(), world.slack.effects()), (4, 1, 2));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn each_organisation_has_its_own_token_and_no_other() {
    let world = World::trusting();
    world.edit(|text| {
        let office = "[orgs.office]\n\n[spaces.\"shared:office\"]\nroot = \"./office\"\nband = \"GREEN\"\nvisible_to = [\"role:planner\"]\norg = \"office\"\n\n";
        text.replacen("[spaces.\"shared:household\"]", &format!("{office}[spaces.\"shared:household\"]"), 1)
    });
    std::fs::create_dir(world.place.path("office")).unwrap();
    let daemon = world.serve();
    world.connect("home", "linear", TOKENS[0].1);
    let issue = json!({ "issueId": "ENG-1" });
    done(&daemon, "home-1", "linear.get_issue", &issue);
    let of_office = |action: &str| {
        let mut request = request(action, "linear.get_issue", &issue);
        (request["space_id"], request["params"]["space_id"]) =
            (json!("shared:office"), json!("shared:office"));
        request
    };
    let before = world.linear.asked().len();
    let refused = daemon.post("/v1/actions?wait", &of_office("office-1"));
    assert!(refused.status == 403 || refused.status == 202, "{}", refused.body);
    assert_eq!(world.linear.asked().len(), before, "nothing leaves with the other's token");
    world.connect("office", "linear", "lin_api_office");
    daemon.post("/v1/actions?wait", &of_office("office-2")).problem(422, "service_refused");
    assert_eq!(last(&world.linear).0.header("authorization"), "lin_api_office");
    done(&daemon, "home-2", "linear.get_issue", &issue);
    assert_eq!(last(&world.linear).0.header("authorization"), TOKENS[0].1);
    // One organisation's dead service shuts the tool for no other.
    for nth in 0..8 {
        world.linear.fault(Fault::Dropped);
        daemon.post("/v1/actions?wait", &of_office(&format!("office-dead-{nth}")));
    }
    let shut = daemon.post("/v1/actions?wait", &of_office("office-shut"));
    shut.problem(502, "breaker_open");
    world.linear.inner().forget_faults();
    done(&daemon, "home-3", "linear.get_issue", &issue);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn every_step_of_the_pages_works() {
    for (source, token) in TOKENS {
        let world = World::new();
        let place = &world.place;
        std::fs::create_dir(place.path("bin")).unwrap();
        std::os::unix::fs::symlink(program(), place.path("bin/effectd")).unwrap();
        let page = format!("docs/{source}.md");
        let steps: Vec<String> = blocks(&page).into_iter().map(|(_, block)| block).collect();
        assert_eq!(steps.len(), 4, "{page}");
        let host = effectd::contracts::Preset::of(source).unwrap().host;
        let elsewhere =
            format!(" --host 127.0.0.1 --port {} --no-tls --allow 127.0.0.0/8 --yes\n", world.port(source));
        let script = steps.concat().replace(&format!("pass show {source}"), &format!("printf %s {token}"));
        let script = script.replace(
            &format!("--secret {source}-token --yes\n"),
            &format!("--secret {source}-token{elsewhere}"),
        );
        let script = script.replace(&format!("hosts {host}"), "hosts 127.0.0.1");
        assert!(script.contains("127.0.0.0/8") && script.contains("hosts 127.0.0.1"), "{script}");
        let ran = std::process::Command::new("sh")
            .args(["-e", "-x", "-c", &script])
            .current_dir(place.path(""))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()))
            .env("HOME", place.path(""))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let (told, words) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{page}: {words}\n{told}");
        let text = std::fs::read_to_string(root().join(&page)).unwrap();
        let of_source = |tool: &&&str| tool.starts_with(source);
        for tool in WRITES.iter().filter(of_source) {
            assert!(text.contains(tool), "{page}: {tool}");
        }
        match source {
            "linear" => assert_eq!(world.linear.asked().len(), 1, "{words}\n{told}"),
            "sentry" => assert_eq!(world.sentry.asked().len(), 1, "{words}\n{told}"),
            _ => assert!(
                world.slack.asked().is_empty() && words.contains("a person must decide"),
                "{words}\n{told}"
            ),
        }
    }
}
