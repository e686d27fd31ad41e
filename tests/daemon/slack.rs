//! Approvals in Slack: a real daemon and its broker ask in a channel of the fake that Slack's own client accepts, and Slack answers at the
//! daemon's door on the network.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use effectd_gateway::client::percent_encoded;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::backups::find;
use crate::harness::{Daemon, Place, Ran, Reply, Serving, program, root, until, write_note};
use crate::runbook::blocks;
use crate::shared::services::{CHANNEL, Fake, Fault, Slack};
use crate::tcp::{ask_by, connect, listening, reads_to_the_end, token};

const TEAM: &str = "T0123456789";
const TOKEN: &str = "xoxb-canary-of-the-bot";
const SIGNING: &str = "canary-of-the-signing-secret";
/// Parameters that no service may read.
const CANARY: &str = "canary-of-the-planner";
const ADA: &str = "U0000000ADA";
const BOB: &str = "U0000000BOB";
const EVE: &str = "U0000000EVE";

/// Ada may approve, Bob may not, Eve acts for the planner, and the boss administers the organisation.
const PEOPLE: &str = r#"
[principals."account://home/ada"]
subjects = []
roles = ["approver"]

[principals."account://home/bob"]
subjects = []
orgs = { home = "member" }

[principals."account://home/eve"]
subjects = ["agent://planner@deviceA"]
roles = ["planner", "approver"]

[principals."account://home/boss"]
subjects = []
orgs = { home = "admin" }
"#;

struct Team {
    slack: Fake<Slack>,
    daemon: Daemon,
    address: String,
    place: Place,
}

/// A team whose daemon asks in Slack about notes, notifications and deletions.
fn team(serve: &[&str], edit: fn(String) -> String) -> Team {
    let (place, slack) = (Place::seeded(), Slack::start(TOKEN));
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let with = text.replacen("hosts = []", "hosts = [\"127.0.0.1\"]", 1);
    assert_ne!(text, with);
    std::fs::write(&policy, edit(with) + PEOPLE).unwrap();
    for tool in ["files.write_text", "files.delete", "notify.local"] {
        let mode = ["policy", "set-mode", "--org", "home", "--tool", tool, "require_approval", "--yes"];
        assert_eq!(place.effectd(&mode, None).code(), 0, "{tool}");
    }
    let (daemon, address) = listening(&place, serve);
    for (name, value) in [("token", TOKEN), ("signing", SIGNING)] {
        let value = json!({ "value": value }).to_string();
        let path = format!("/v1/secrets/{}/slack-{name}", "home");
        daemon.ask("PUT", &path, &[], &value).json(200);
    }
    let port = slack.port().to_string();
    let add =
        ["connections", "add", "--org", "home", "--preset", "slack", "--secret", "slack-token", "--yes"];
    let here = ["--host", "127.0.0.1", "--port", &port, "--no-tls", "--allow", "127.0.0.0/8"];
    let added = place.effectd(&[&add[..], &here].concat(), None);
    assert_eq!(added.code(), 0, "{}", added.stderr());
    let connected = connect_channel(&place, &[]);
    assert_eq!(connected.code(), 0, "{}", connected.stderr());
    for (user, name) in [(ADA, "ada"), (BOB, "bob"), (EVE, "eve")] {
        let mapped = place.effectd(&["slack", "map", "home", &format!("{TEAM}/{user}"), name, "--yes"], None);
        assert_eq!(mapped.code(), 0, "{}", mapped.stderr());
    }
    Team { slack, daemon, address, place }
}

/// `effectd slack connect`, with what comes last.
fn connect_channel(place: &Place, more: &[&str]) -> Ran {
    let connect = format!(
        "slack connect --org home --team {TEAM} --channel {CHANNEL} --console https://effectd.example.org --yes"
    );
    let secret = if more.contains(&"--secret") { &[][..] } else { &["--secret", "slack-signing"] };
    let words: Vec<_> = connect.split_whitespace().collect();
    place.effectd(&[&words[..], secret, more].concat(), None)
}

fn same(text: String) -> String {
    text
}

fn notification(action: &str) -> Value {
    json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": "notify.local",
        "params": { "title": format!("{CANARY} {action}"), "body": CANARY, "urgency": "low", "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
        "rationale": { "reason": CANARY },
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn signature(timestamp: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SIGNING.as_bytes()).unwrap();
    mac.update(format!("v0:{timestamp}:{body}").as_bytes());
    format!("v0={}", hex(&mac.finalize().into_bytes()))
}

/// What Slack sends for a click.
fn payload(message: &Value, action: &str, user: &str) -> Value {
    json!({
        "type": "block_actions", "user": { "id": user, "team_id": TEAM }, "team": { "id": TEAM }, "channel": { "id": CHANNEL },
        "message": { "ts": message["ts"] }, "actions": [{ "action_id": action, "value": value(message) }],
        "response_url": "https://hooks.slack.example/never-asked",
    })
}

fn form(payload: &Value) -> String {
    format!("payload={}", percent_encoded(&payload.to_string()))
}

/// The value of the buttons that decide.
fn value(message: &Value) -> String {
    let deny = buttons(message).into_iter().find(|button| button["action_id"] == "deny");
    deny.unwrap_or_else(|| panic!("{message}"))["value"].as_str().unwrap().to_owned()
}

fn buttons(message: &Value) -> Vec<Value> {
    let blocks = message["blocks"].as_array().unwrap().iter();
    blocks.filter_map(|block| block["elements"].as_array()).flatten().cloned().collect()
}

fn actions(message: &Value) -> Vec<String> {
    let ids =
        buttons(message).into_iter().filter_map(|button| button["action_id"].as_str().map(str::to_owned));
    ids.collect()
}

impl Team {
    #[track_caller]
    fn holds(&self, request: &Value) -> String {
        let view = self.daemon.post("/v1/actions?wait", request).json(202);
        view["approval"]["approval_id"].as_str().unwrap_or_else(|| panic!("{view}")).to_owned()
    }

    fn messages(&self) -> Vec<Value> {
        self.slack.inner().vendor.messages().into_iter().cloned().collect()
    }

    /// The message about this approval, once it is there and the daemon knows it.
    fn message(&self, approval: &str) -> Value {
        let about = |message: &Value| message["metadata"]["event_payload"]["approval_id"] == approval;
        let find = || self.messages().into_iter().find(about);
        until("it is asked in Slack", || find().is_some());
        let behind = || {
            let groups = self.daemon.get("/v1/store/topics/APPROVALS/groups").json(200);
            groups.as_array().unwrap().iter().any(|group| group["behind"] != 0)
        };
        until("the daemon knows the message", || !behind());
        find().unwrap()
    }

    #[track_caller]
    fn becomes(&self, message: &Value, outcome: &str) {
        let now = || self.messages().into_iter().find(|known| known["ts"] == message["ts"]).unwrap();
        until(outcome, || now()["text"].as_str().unwrap().contains(outcome));
        assert_eq!(actions(&now()), ["open"], "{}", now());
    }

    fn send(&self, org: &str, (timestamp, signature): (&str, &str), body: &str) -> Reply {
        let mut stream = connect(&self.address);
        let whole = format!(
            "POST /slack/interactions/{org} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/x-www-form-urlencoded\r\nx-slack-request-timestamp: {timestamp}\r\n\
             x-slack-signature: {signature}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.write_all(whole.as_bytes());
        Reply::of(&reads_to_the_end(stream))
    }

    fn sends(&self, payload: &Value) -> Reply {
        // No two clicks are the same.
        let mut payload = payload.clone();
        payload["trigger_id"] = effectd_contracts::TraceId::fresh().to_string().into();
        let (timestamp, body) = (now().to_string(), form(&payload));
        self.send("home", (&timestamp, &signature(&timestamp, &body)), &body)
    }

    #[track_caller]
    fn clicks(&self, message: &Value, action: &str, user: &str) {
        let reply = self.sends(&payload(message, action, user));
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// What this user alone was told last, once that is so much.
    #[track_caller]
    fn hears(&self, user: &str, count: usize) -> String {
        let heard = || {
            let inner = self.slack.inner();
            let own = inner.vendor.whispers.iter().filter(|(to, _)| to == user);
            own.map(|(_, text)| text.clone()).collect::<Vec<_>>()
        };
        until("the person is told", || heard().len() >= count);
        assert_eq!(heard().len(), count, "{:?}", heard());
        heard().pop().unwrap()
    }

    fn receipt(&self, action: &str) -> Value {
        self.daemon.get(&format!("/v1/actions/{action}/wait?timeout_ms=60000"));
        self.place.effectd(&["receipts", "show", action, "-o", "json"], None).json(0)
    }

    fn is_open(&self, approval: &str) -> bool {
        self.daemon.get(&format!("/v1/approvals/{approval}")).json(200)["state"] == "pending"
    }
}

#[test]
fn a_question_is_asked_and_approved_in_slack() {
    let team = team(&[], same);
    let approval = team.holds(&notification("n-1"));
    let message = team.message(&approval);
    let text = message.to_string();
    for shown in ["notify.local", "shared:household", "R1", "agent://planner@deviceA", "urgency\\nlow"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert!(!text.contains(CANARY), "{text}");
    let url = format!("https://effectd.example.org/console/approvals/{approval}");
    assert_eq!(buttons(&message)[2]["url"], url.as_str());
    assert_eq!(actions(&message), ["approve", "deny", "open"]);
    assert_eq!(message["metadata"]["event_payload"]["action_id"], "n-1");
    team.clicks(&message, "approve", ADA);
    let receipt = team.receipt("n-1");
    assert_eq!(receipt["outcome"], "executed", "{receipt}");
    assert_eq!(receipt["approval"]["by"], "account://home/ada");
    assert_eq!(receipt["approval"]["reason"], format!("in Slack, as {ADA} of {TEAM}"));
    team.becomes(&message, "approved by");
    // A click on a button that leads elsewhere is nothing to decide.
    let mut open = payload(&message, "open", ADA);
    open["actions"][0]["action_id"] = "open".into();
    assert_eq!(team.sends(&open).status, 200);
    // The ways to see who is who, and no way to see a secret.
    let listed = team.place.effectd(&["slack", "list", "-o", "json"], None).json(0);
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    assert_eq!(listed[0]["account"], "account://home/ada");
    let log = team.place.log();
    assert!(!log.contains(TOKEN) && !log.contains(SIGNING) && !log.contains(CANARY));
    assert!(!team.messages().iter().any(|message| message.to_string().contains(CANARY)));
    assert_eq!(team.slack.inner().effects, 2);
    let Team { daemon, place, .. } = team;
    assert_eq!(daemon.stop(), 0);
    for secret in [TOKEN, SIGNING] {
        let found = find(&place.path(""), secret.as_bytes());
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn what_others_decide_is_shown_in_slack() {
    let team = team(&[], same);
    let [denied, elsewhere, withdrawn] =
        ["n-1", "n-2", "n-3"].map(|action| team.holds(&notification(action)));
    let [first, second, third] = [&denied, &elsewhere, &withdrawn].map(|approval| team.message(approval));
    team.clicks(&first, "deny", ADA);
    team.becomes(&first, "denied by account://home/ada");
    assert_eq!(team.receipt("n-1")["outcome"], "denied_human");
    let digest = team.daemon.get(&format!("/v1/approvals/{elsewhere}")).json(200)["digest"].clone();
    let (ada, path) = (token(&team.daemon, "ada"), format!("/v1/approvals/{elsewhere}/approve"));
    let body = json!({ "digest": digest }).to_string();
    let reply = ask_by(&team.address, &ada, "POST", &path, &body);
    assert!([200, 202].contains(&reply.status), "{reply:?}");
    team.becomes(&second, "approved by account://home/ada");
    // A late click decides nothing, and the message says what was decided.
    team.clicks(&second, "deny", ADA);
    team.becomes(&second, "approved by account://home/ada");
    assert_eq!(team.receipt("n-2")["outcome"], "executed");
    assert_eq!(team.daemon.ask("DELETE", "/v1/actions/n-3", &[], "").status, 200);
    team.becomes(&third, "withdrawn");
    team.clicks(&third, "approve", ADA);
    team.becomes(&third, "does not wait any more");
    assert_eq!(team.receipt("n-3")["outcome"], "cancelled");
}

#[test]
fn an_expiry_is_shown_in_slack() {
    let times = ["approvals.unattended_ms_max=8000", "approvals.interactive_ms_max=8000"];
    let team = team(&["--set", times[0], "--set", times[1]], same);
    let approval = team.holds(&notification("n-1"));
    let message = team.message(&approval);
    team.daemon.get("/v1/actions/n-1/wait?timeout_ms=60000").problem(410, "approval_expired");
    team.becomes(&message, "expired");
    team.clicks(&message, "approve", ADA);
    assert_eq!(team.receipt("n-1")["outcome"], "expired");
}

#[test]
fn only_what_slack_signs_now_and_once_is_taken() {
    let team = team(&[], same);
    let approval = team.holds(&notification("n-1"));
    let message = team.message(&approval);
    // The secret by which Slack signs is not for those who reach the daemon over the network, whatever they administer.
    let boss = token(&team.daemon, "boss");
    let hook = json!({
        "org": "home", "source": "slack", "path": "/api/chat.postMessage", "topics": [], "signed_by": "slack-token",
        "slack": { "team": TEAM, "channel": CHANNEL, "console": "https://effectd.example.org" },
    });
    let map = json!({ "do": "map_slack_user", "org": "home", "team": TEAM, "user": BOB, "account": "ada" });
    let secret = json!({ "value": "known" });
    for (method, path, body) in [
        ("PUT", concat!("/v1/secrets/", "home/slack-signing"), &secret),
        ("POST", "/v1/webhooks", &hook),
        ("POST", "/v1/operations", &map),
    ] {
        let reply = ask_by(&team.address, &boss, method, path, &body.to_string());
        assert_eq!(reply.status, 403, "{path}: {reply:?}");
    }
    let body = form(&payload(&message, "approve", ADA));
    let at = |seconds: i64| (now() + seconds).to_string();
    let signed = |timestamp: String| (signature(&timestamp, &body), timestamp);
    let ((good, timestamp), (before, old), (after, new)) = (signed(at(0)), signed(at(-400)), signed(at(400)));
    let forged = format!("v0={}", "0".repeat(64));
    for (org, timestamp, signature, body) in [
        ("home", &timestamp, &forged, &body),
        ("home", &timestamp, &String::new(), &body),
        ("home", &timestamp, &good["v0=".len()..].to_owned(), &body),
        ("home", &at(1), &good, &body),
        ("home", &timestamp, &good, &body.replace("approve", "deny")),
        ("office", &timestamp, &good, &body),
        ("home", &old, &before, &body),
        ("home", &new, &after, &body),
        ("home", &"soon".to_owned(), &signature("soon", &body), &body),
    ] {
        let reply = team.send(org, (timestamp, signature), body);
        reply.problem(401, "unauthenticated");
    }
    let large = format!("payload={}", "x".repeat(300_000));
    team.send("home", (&timestamp, &signature(&timestamp, &large)), &large).problem(401, "unauthenticated");
    let empty = team.send("home", (&timestamp, &signature(&timestamp, "payload=1")), "payload=1");
    assert_eq!(empty.status, 400, "{empty:?}");
    // Another workspace or channel, with the same app.
    for (member, other) in [("team", "T0000000002"), ("channel", "C0000000002")] {
        let mut elsewhere = payload(&message, "approve", ADA);
        elsewhere[member]["id"] = other.into();
        assert_eq!(team.sends(&elsewhere).status, 404, "{member}");
    }
    // Nothing came of all this; what is refused once is refused again, and so is what was taken.
    assert!(team.is_open(&approval));
    let mut unmapped = payload(&message, "approve", "U0000000002");
    unmapped["user"]["team_id"] = "T0000000002".into();
    let unmapped = form(&unmapped);
    let (timestamp, body) = (at(0), unmapped);
    let once = signature(&timestamp, &body);
    assert_eq!(team.send("home", (&timestamp, &once), &body).status, 200);
    for again in [once.clone(), once.to_uppercase().replacen("V0", "v0", 1)] {
        team.send("home", (&timestamp, &again), &body).problem(401, "unauthenticated");
    }
    assert!(team.hears("U0000000002", 1).contains("slack map home T0000000002/U0000000002"));
    assert!(team.is_open(&approval));
    // Nor does a restart forget it.
    let Team { slack, daemon, place, .. } = team;
    daemon.kill();
    let (daemon, address) = listening(&place, &[]);
    let team = Team { slack, daemon, address, place };
    team.send("home", (&timestamp, &once), &body).problem(401, "unauthenticated");
    team.clicks(&message, "deny", ADA);
    team.becomes(&message, "denied by");
}

#[test]
fn who_may_not_decide_is_told_alone() {
    let team = team(&[], same);
    let approval = team.holds(&notification("n-1"));
    let message = team.message(&approval);
    for (user, why) in
        [("U0000000002", "no account of home"), (BOB, "no approver"), (EVE, "their own requests")]
    {
        for (count, action) in ["approve", "deny"].into_iter().enumerate() {
            team.clicks(&message, action, user);
            let heard = team.hears(user, count + 1);
            assert!(heard.contains(why), "{user}: {heard}");
        }
    }
    // A message that looks like the question, as whoever may post as the app could make it.
    let lookalike = json!({ "ts": "1.000009", "blocks": message["blocks"] });
    team.clicks(&lookalike, "approve", ADA);
    assert!(team.hears(ADA, 1).contains("not the one that asks"));
    // The question, if somebody has changed what it says.
    let mut changed = payload(&message, "approve", ADA);
    changed["message"]["edited"] = json!({ "user": "U0123456789", "ts": "1.000010" });
    assert_eq!(team.sends(&changed).status, 200);
    assert!(team.hears(ADA, 2).contains("was changed since"));
    // Another question than the one that was shown.
    let mut older = payload(&message, "approve", ADA);
    let digest = value(&message).replace("hmac-sha256:", "hmac-sha256:0");
    older["actions"][0]["value"] = digest[..digest.len() - 1].into();
    assert_eq!(team.sends(&older).status, 200);
    team.becomes(&message, "has changed");
    assert!(team.is_open(&approval));
    // A role that is taken away counts at once.
    let policy = team.place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, text.replacen("roles = [\"approver\"]", "roles = []", 1)).unwrap();
    assert_eq!(team.place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    team.clicks(&message, "approve", ADA);
    assert!(team.hears(ADA, 3).contains("no approver"));
    assert!(team.is_open(&approval));
    // Nor does who is nobody any more.
    let unmap = ["slack", "unmap", "home", &format!("{TEAM}/{ADA}"), "--yes"];
    assert_eq!(team.place.effectd(&unmap, None).code(), 0);
    team.clicks(&message, "approve", ADA);
    assert!(team.hears(ADA, 4).contains("no account of home"));
    assert!(team.is_open(&approval));
}

#[test]
fn diffs_and_severe_risks_are_approved_in_the_console() {
    let team = team(&[], same);
    std::fs::create_dir_all(team.place.path("workspace")).unwrap();
    std::fs::write(team.place.note("old.txt"), CANARY).unwrap();
    let name = "<!channel> <@U0000000ADA> <https:evil.example|here> & *b*.txt";
    let write = team.holds(&write_note("w-1", name, CANARY));
    let mut delete = write_note("d-1", "old.txt", "");
    delete["tool_id"] = "files.delete".into();
    delete["params"] = json!({ "path": "workspace/old.txt", "space_id": "shared:household" });
    let delete = team.holds(&delete);
    for (approval, action) in [(&write, "w-1"), (&delete, "d-1")] {
        let message = team.message(approval);
        assert_eq!(actions(&message), ["deny", "open"], "{message}");
        let text = message.to_string();
        assert!(!text.contains(CANARY), "{text}");
        assert!(text.contains("to change") && text.contains("Approve in the console"), "{text}");
        // No text is markup: the blocks are plain, and what is left of the name cannot mention anybody.
        assert!(
            !text.contains("mrkdwn")
                && !text.contains("<!")
                && !text.contains("<@")
                && !text.contains("<http"),
            "{text}"
        );
        assert_eq!(text.contains("&lt;!channel&gt;"), action == "w-1", "{text}");
        // A button that was not shown decides nothing.
        team.clicks(&message, "approve", ADA);
        until("it is refused", || !team.slack.inner().vendor.whispers.is_empty());
        assert!(team.is_open(approval));
        team.slack.inner().vendor.whispers.clear();
        team.clicks(&message, "deny", ADA);
        team.becomes(&message, "denied by");
        assert_eq!(team.receipt(action)["outcome"], "denied_human");
    }
}

#[test]
fn a_space_may_let_its_diffs_leave() {
    let leaves =
        |text: String| text.replacen("band = \"GREEN\"", "band = \"GREEN\"\ncontents_may_leave = true", 1);
    let team = team(&[], leaves);
    let approval = team.holds(&write_note("w-1", "a.txt", "a <new> line\n"));
    let message = team.message(&approval);
    assert_eq!(actions(&message), ["approve", "deny", "open"], "{message}");
    let text = message.to_string();
    assert!(text.contains("+a &lt;new&gt; line") && text.contains("workspace/a.txt"), "{text}");
    team.clicks(&message, "approve", ADA);
    assert_eq!(team.receipt("w-1")["outcome"], "executed");
    assert_eq!(std::fs::read_to_string(team.place.note("a.txt")).unwrap(), "a <new> line\n");
    // So is what a tool without files gets.
    let told = team.message(&team.holds(&notification("n-1")));
    assert_eq!(actions(&told), ["approve", "deny", "open"], "{told}");
    assert!(told.to_string().contains(CANARY), "{told}");
    // More than fits is approved in the console.
    let long = team.holds(&write_note("w-2", "b.txt", &"a line of the note\n".repeat(4_000)));
    assert_eq!(actions(&team.message(&long)), ["deny", "open"]);
}

#[test]
fn slack_that_is_down_is_asked_again() {
    let team = team(&[], same);
    for fault in [Fault::Refused("internal_error".to_owned()), Fault::Status(503), Fault::Later(0)] {
        team.slack.fault(fault);
    }
    let approval = team.holds(&notification("n-1"));
    let message = team.message(&approval);
    team.slack.fault(Fault::Later(0));
    team.clicks(&message, "deny", ADA);
    team.becomes(&message, "denied by");
    assert_eq!(team.messages().len(), 1);
    let log = team.place.log();
    assert!(
        log.contains("Slack answered internal_error") && log.contains("the service answered 503"),
        "{log}"
    );
}

#[test]
fn a_kill_after_a_message_posts_no_other() {
    let team = team(&[], same);
    team.slack.fault(Fault::Slow);
    let approval = team.holds(&notification("n-1"));
    until("it is posted", || team.messages().len() == 1);
    let Team { slack, daemon, place, .. } = team;
    daemon.kill();
    let (daemon, address) = listening(&place, &[]);
    let team = Team { slack, daemon, address, place };
    let message = team.message(&approval);
    team.clicks(&message, "approve", ADA);
    assert_eq!(team.receipt("n-1")["outcome"], "executed");
    team.becomes(&message, "approved by");
    assert_eq!(team.messages().len(), 1);
    // Who may not look into the channel asks again: a question too many is better than none.
    team.slack.inner().vendor.scopes.retain(|scope| *scope == "chat:write");
    team.slack.fault(Fault::Lost);
    let approval = team.holds(&notification("n-2"));
    let message = {
        until("it is posted again", || team.messages().len() == 3);
        team.message(&approval);
        team.messages().pop().unwrap()
    };
    team.clicks(&message, "approve", ADA);
    assert_eq!(team.receipt("n-2")["outcome"], "executed");
}

#[test]
fn a_channel_needs_a_connection_and_a_secret_of_its_own() {
    let team = team(&[], same);
    // Planners would have http.slack.request, with all of its routes.
    let body = json!({
        "org": "home", "source": "http.slack", "name": "Slack", "hosts": ["127.0.0.1"], "secrets": ["slack-token"],
        "access": {
            "scheme": "http", "port": team.slack.port(), "allow": ["127.0.0.0/8"],
            "credential": { "header": "authorization", "prefix": "Bearer ", "secret": "slack-token" },
            "routes": ["POST /api/chat.postMessage", "POST /api/chat.update", "POST /api/chat.postEphemeral"],
        },
    });
    team.daemon.post("/v1/connections", &body).json(200);
    // A secret that somebody has set over the network, who then knows it.
    let boss = token(&team.daemon, "boss");
    let path = concat!("/v1/secrets/", "home/known");
    assert_eq!(ask_by(&team.address, &boss, "PUT", path, r#"{"value":"known"}"#).status, 200);
    for (more, why) in
        [(["--source", "http.slack"], "--preset slack"), (["--secret", "known"], "set it again")]
    {
        let refused = connect_channel(&team.place, &more);
        assert!(refused.code() != 0 && refused.stderr().contains(why), "{}", refused.stderr());
    }
}

#[test]
fn public_parameters_that_do_not_fit_are_seen_elsewhere() {
    let team = team(&[], same);
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.stat", "require_approval", "--yes"];
    assert_eq!(team.place.effectd(&mode, None).code(), 0);
    let long = ["workspace/", &"a".repeat(100), "/", &"b".repeat(100), "/", &"c".repeat(100)].concat();
    for (path, shown) in [("workspace/a.txt", &["approve", "deny", "open"][..]), (&long, &["deny", "open"])] {
        let mut look = write_note(&format!("s-{}", path.len()), "a.txt", "x");
        look["tool_id"] = "files.stat".into();
        look["params"] = json!({ "path": path, "space_id": "shared:household" });
        let message = team.message(&team.holds(&look));
        assert_eq!(actions(&message), shown, "{message}");
    }
}

/// `docs/slack-approvals.md`: its commands are run as written, in order, and then somebody clicks.
#[test]
fn every_step_of_the_page_of_approvals_works() {
    const PAGE: &str = "docs/slack-approvals.md";
    let (place, slack) = (Place::seeded(), Slack::start(TOKEN));
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let account = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, format!("{text}\n{account}")).unwrap();
    std::fs::create_dir(place.path("bin")).unwrap();
    std::os::unix::fs::symlink(program(), place.path("bin/effectd")).unwrap();
    let (daemon, address) = listening(&place, &[]);
    let mut script: String = blocks(PAGE).into_iter().map(|(_, block)| block).collect();
    let here =
        format!("--host 127.0.0.1 --port {} --no-tls --allow 127.0.0.0/8 --preset slack", slack.port());
    for (from, to) in [
        ("pass show slack/bot", format!("printf %s {TOKEN}")),
        ("pass show slack/signing", format!("printf %s {SIGNING}")),
        ("hosts slack.com", "hosts 127.0.0.1".to_owned()),
        ("--preset slack", here),
        ("T024BE7LD", TEAM.to_owned()),
        ("C024BE91L", CHANNEL.to_owned()),
        ("U024BE7LH", ADA.to_owned()),
    ] {
        assert!(script.contains(from), "{from}: {script}");
        script = script.replace(from, &to);
    }
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
    assert!(ran.status.success(), "{words}\n{told}");
    let team = Team { slack, daemon, address, place };
    until("it is asked in Slack", || !team.messages().is_empty());
    let asked = team.messages().remove(0);
    let message = team.message(asked["metadata"]["event_payload"]["approval_id"].as_str().unwrap());
    team.clicks(&message, "approve", ADA);
    team.becomes(&message, "approved by account://home/ada");
}
