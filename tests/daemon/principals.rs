//! Principals: two users ask for the same in a shared space, and each has their own decision, receipt and answer.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::approvals::asking;
use crate::harness::{Daemon, NOBODY, Place, Ran, Serving, is_root, run_to_end, until, write_note};
use crate::many_users::ask;
use crate::results::{read, with_long_file};

/// Two ordinary users. The second has no name on this machine.
const FIRST: u32 = NOBODY;
const SECOND: u32 = NOBODY - 1;

struct House {
    place: Place,
    daemon: Daemon,
    socket: String,
}

impl House {
    /// A daemon that both users may connect to; `None` unless the test runs as root.
    fn new(name: &str, place: impl FnOnce() -> Place) -> Option<Self> {
        if !is_root(name) {
            return None;
        }
        let place = place();
        std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = place.path("shared.sock").to_str().unwrap().to_owned();
        let daemon = place.serve(&["--socket", &socket, "--set", "gateway.socket_mode=0660"]);
        Some(Self { place, daemon, socket })
    }

    fn run(&self, uid: u32, arguments: &[&str], stdin: Option<&Value>) -> Ran {
        self.run_plain(uid, &[arguments, &["-o", "json"]].concat(), stdin)
    }

    /// [`House::run`] for commands that have one form of output.
    fn run_plain(&self, uid: u32, arguments: &[&str], stdin: Option<&Value>) -> Ran {
        let stdin = stdin.map(Value::to_string).unwrap_or_default();
        // Of the daemon's group, so that it may connect.
        let all = [arguments, &["--socket", &self.socket]].concat();
        run_to_end(self.place.command_as(uid, 0, &all), &stdin)
    }

    /// Executes a request as this user.
    #[track_caller]
    fn exec(&self, uid: u32, request: &Value) -> Value {
        self.run(uid, &["submit", "--wait", "-"], Some(request)).json(0)
    }

    /// Submits a request as this user.
    #[track_caller]
    fn submit(&self, uid: u32, request: &Value) {
        let ran = self.run(uid, &["submit", "-"], Some(request));
        assert_eq!(ran.code(), 0, "{}{}", ran.stdout(), ran.stderr());
    }

    /// The receipt of this user's action, which is the same by every route.
    #[track_caller]
    fn resolved(&self, uid: u32, action: &str) -> Value {
        let view = self.run(uid, &["wait", action], None).json(0);
        assert_eq!(view["state"], "done", "{view}");
        assert_eq!(self.run(uid, &["status", action], None).json(0)["receipt"], view["receipt"]);
        let filter = format!("action:{action}");
        let listed = self.run(uid, &["receipts", "list", &filter], None).json(0);
        let listed: Vec<_> = listed.as_array().unwrap().iter().map(id_of).collect();
        assert_eq!(listed, [id_of(&view["receipt"])], "{action}");
        view["receipt"].clone()
    }

    /// Everything about receipts and actions that this user can read.
    fn seen(&self, uid: u32, actions: &[&str]) -> String {
        let mut seen = self.run(uid, &["receipts", "list", "--limit", "100"], None).stdout();
        for action in actions {
            for verb in ["status", "wait", "cancel"] {
                let ran = self.run(uid, &[verb, action], None);
                seen.push_str(&ran.stdout());
                seen.push_str(&ran.stderr());
            }
        }
        seen
    }
}

fn id_of(receipt: &Value) -> Value {
    receipt["receipt_id"].clone()
}

fn user(uid: u32) -> String {
    let named = nix::unistd::User::from_uid(uid.into()).unwrap();
    format!("user://{}", named.map_or(uid.to_string(), |user| user.name))
}

fn make_dir(action: &str, name: &str) -> Value {
    let mut request = write_note(action, name, "");
    request["tool_id"] = "files.make_dir".into();
    request["params"].as_object_mut().unwrap().remove("text");
    request
}

fn append(action: &str, key: &str, text: &str) -> Value {
    let mut request = write_note(action, "log", text);
    request["tool_id"] = "files.append_text".into();
    request["idempotency_key"] = key.into();
    request
}

/// Whose receipt it is, for which action, and what it says about the files.
#[track_caller]
fn is_own(receipt: &Value, uid: u32, action: &str) {
    assert_eq!(receipt["principal"], user(uid), "{receipt}");
    assert_eq!(receipt["action_id"], action, "{receipt}");
    assert_eq!(receipt["outcome"], "executed", "{receipt}");
}

/// What only its owner may see of a receipt.
#[track_caller]
fn tells_nothing_of(seen: &str, receipt: &Value) {
    let times = ["started_at", "ended_at"].map(|time| &receipt["timing"][time]);
    let ids = ["principal", "action_id", "receipt_id", "trace_id"].map(|name| &receipt[name]);
    for secret in ids.iter().chain(&times) {
        let secret = secret.as_str().unwrap_or_else(|| panic!("{receipt}"));
        assert!(!seen.contains(&format!("\"{secret}\"")), "{secret} in {seen}");
    }
}

#[test]
fn a_result_is_for_the_asker_and_operators_see_its_beginning() {
    let name = "a_result_is_for_the_asker_and_operators_see_its_beginning";
    let Some(house) = House::new(name, || with_long_file().0) else {
        return;
    };
    let own = house.exec(FIRST, &read("own"));
    let text = std::fs::read_to_string(house.place.note("long.txt")).unwrap();
    assert_eq!(own["result"]["text"], text);
    assert_eq!(house.run(FIRST, &["wait", "own"], None).json(0)["result"], own["result"]);
    let seen = house.seen(SECOND, &["own"]);
    assert!(!seen.contains("line 0"), "{seen}");
    for verb in ["status", "wait"] {
        let safe = &house.run(0, &[verb, "own"], None).json(0)["result"];
        assert_eq!(safe["_truncated"], true, "{safe}");
        assert!(safe["text"].as_str().unwrap().starts_with("line 0") && safe.to_string().len() <= 10_240);
    }
}

#[test]
fn equal_requests_of_two_users_have_two_receipts() {
    let Some(house) = House::new("equal_requests_of_two_users_have_two_receipts", Place::seeded) else {
        return;
    };
    let requests: [fn(&str) -> Value; 2] =
        [|action| write_note(action, "same.txt", "the same"), |action| make_dir(action, "same/folder")];
    for (round, request) in requests.iter().enumerate() {
        let id = |name: &str| format!("{name}-{round}");
        let first = house.exec(FIRST, &request(&id("first")));
        is_own(&first["receipt"], FIRST, &id("first"));
        // The file already has what the second user wants: a success of their own, without a change.
        let second = house.exec(SECOND, &request(&id("second")));
        is_own(&second["receipt"], SECOND, &id("second"));
        if round == 0 {
            // The first page of one: the other user's receipt is not read on the way to the own.
            let page = ask(&house.daemon, SECOND, "GET", "/v1/receipts?limit=1", "").json(200);
            assert_eq!((&page["receipts"][0], &page["next"]), (&second["receipt"], &Value::Null));
        }
        assert_eq!(second["already_done"], false);
        assert_eq!(second["receipt"]["effects"]["observed"]["changes"], json!([]));
        // For each of them a repeat is answered with the old receipt.
        for (uid, before) in [(FIRST, &first), (SECOND, &second)] {
            let again = id(&format!("again-{uid}"));
            let view = house.exec(uid, &request(&again));
            assert_eq!(view["already_done"], true);
            assert_eq!(view["receipt"], before["receipt"]);
            assert_eq!(house.resolved(uid, &again), before["receipt"]);
            let later = id(&format!("later-{uid}"));
            house.submit(uid, &request(&later));
            assert_eq!(house.resolved(uid, &later), before["receipt"]);
        }
        let own = ["second", "again-65533", "later-65533", "first"].map(id);
        let seen = house.seen(SECOND, &own.each_ref().map(String::as_str));
        // The last of them was asked for by name, so it is named in the answer.
        let seen = seen.replace(&format!("\"{}\"", id("first")), "");
        tells_nothing_of(&seen, &first["receipt"]);
        tells_nothing_of(&second.to_string(), &first["receipt"]);
    }
}

#[test]
fn a_learner_reads_all_receipts_and_events_and_no_more() {
    let learning = || {
        let place = Place::seeded();
        let path = place.state().join("policy/policy.toml");
        let role = format!("\n[principals.\"{}\"]\nsubjects = []\nroles = [\"learner\"]\n", user(SECOND));
        let policy = std::fs::read_to_string(&path).unwrap() + &role;
        std::fs::write(&path, policy).unwrap();
        place
    };
    let Some(house) = House::new("a_learner_reads_all_receipts_and_events_and_no_more", learning) else {
        return;
    };
    let done = house.exec(FIRST, &write_note("l-1", "l.txt", "text"));
    let id = done["receipt"]["receipt_id"].as_str().unwrap();
    assert_eq!(house.run(0, &["receipts", "amend", id, "--quality", "1", "--yes"], None).code(), 0);
    let listed = house.run(SECOND, &["receipts", "list"], None).json(0);
    assert_eq!(listed[0]["receipt_id"], id);
    let export = house.run_plain(SECOND, &["receipts", "export", "--format", "csv"], None);
    assert!(export.code() == 0 && export.stdout().contains(id), "{}", export.stderr());
    let group = format!("u{SECOND}.nightly");
    let tail = |uid: u32, topic: &str, group: &str| {
        house.run_plain(uid, &["bus", "tail", "--once", "--topic", topic, "--group", group], None)
    };
    for topic in ["ACTION_EXECUTED", "AMENDMENTS"] {
        let (first, second) = (tail(SECOND, topic, &group), tail(SECOND, topic, &group));
        assert_eq!((first.code(), second.code()), (0, 0), "{}{}", first.stderr(), second.stderr());
        let event: Value = serde_json::from_str(&first.stdout()).unwrap();
        assert_eq!((&event["data"]["receipt_id"], second.stdout().as_str()), (&json!(id), ""), "{event}");
    }
    let groups = house.run(SECOND, &["bus", "groups"], None).json(0);
    let groups: Vec<_> =
        groups.as_array().unwrap().iter().map(|row| (&row["topic"], &row["group"])).collect();
    let own = json!(group);
    assert_eq!(groups, [(&json!("ACTION_EXECUTED"), &own), (&json!("AMENDMENTS"), &own)]);
    // Nobody else's group, no other topic, no change, and nothing about actions themselves.
    for (ran, said) in [
        (tail(SECOND, "ACTION_EXECUTED", "root"), "groups begin with a name of its own"),
        (tail(SECOND, "ACTION_EXECUTED", &format!("u{SECOND}0")), "groups begin with a name of its own"),
        (tail(SECOND, "APPROVALS", &group), "for operators"),
        (tail(FIRST, "ACTION_EXECUTED", "nobody"), "the role `learner`"),
        (
            house.run(SECOND, &["receipts", "amend", id, "--quality", "0", "--yes"], None),
            "the role `operate`",
        ),
        (house.run(SECOND, &["status", "l-1"], None), "action_unknown"),
    ] {
        let told = ran.stdout() + &ran.stderr();
        assert!(ran.code() != 0 && told.contains(said), "{said}: {told}");
    }
    // It moves its own groups back without a receipt, and has eight for each topic.
    let receipts = || house.run(0, &["receipts", "list", "--limit", "100"], None).json(0);
    let before = receipts();
    let seek = |group: &str, to: &str| {
        let path = format!("/v1/store/topics/ACTION_EXECUTED/groups/{group}?to={to}");
        ask(&house.daemon, SECOND, "POST", &path, "")
    };
    for to in ["0", "end", "start"] {
        seek(&group, to).json(200);
    }
    assert_eq!(receipts(), before);
    for n in 2..=8 {
        seek(&format!("u{SECOND}.{n}"), "start").json(200);
    }
    let ninth = seek(&format!("u{SECOND}"), "start").json(403);
    assert!(ninth["detail"].as_str().unwrap().contains("at most 8 groups"), "{ninth}");
    // The others still move.
    seek(&group, "end").json(200);
}

/// Refused for want of this role.
#[track_caller]
fn assert_refused(ran: &Ran, role: &str) {
    let told = ran.stdout() + &ran.stderr();
    assert!(ran.code() != 0 && told.contains(&format!("the role `{role}`")), "{role}: {told}");
}

#[test]
fn the_parts_of_an_operator_are_roles_and_nobody_needs_root() {
    const TEST: &str = "the_parts_of_an_operator_are_roles_and_nobody_needs_root";
    let roles = |place: &Place, roles: &str| {
        let path = place.state().join("policy/policy.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split("\n# The operator.").next().unwrap();
        let role = format!(
            "\n# The operator.\n[principals.\"{}\"]\nsubjects = []\nroles = [{roles}]\n",
            user(SECOND)
        );
        std::fs::write(&path, format!("{text}{role}")).unwrap();
    };
    let operated = || {
        let place = asking();
        roles(&place, "\"look\"");
        place
    };
    let Some(house) = House::new(TEST, operated) else {
        return;
    };
    let mut note = write_note("op-1", "op.txt", "private words");
    note["rationale"] = json!({ "reason": "a private reason" });
    house.submit(FIRST, &note);
    let get = |path: &str| ask(&house.daemon, SECOND, "GET", path, "");
    let become_one = |parts: &str| {
        roles(&house.place, parts);
        assert_eq!(house.run(0, &["policy", "reload", "--yes"], None).code(), 0);
    };
    let run = |arguments: &[&str]| house.run_plain(SECOND, arguments, None);
    let erase = ["store", "erase", "--subject", "agent://planner@deviceA", "--yes"];
    let mode = ["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny", "--yes"];
    // One who looks sees figures and lists, and changes nothing.
    until("a person is asked", || run(&["check", "held", "--warn", "1"]).code() == 1);
    for what in ["dlq", "lag", "breakers", "policy"] {
        assert_eq!(run(&["check", what]).code(), 0, "{what}");
    }
    assert_eq!(run(&["check", "disk", "--warn", "0", "--critical", "0"]).code(), 0);
    let top = run(&["top", "-o", "json", "--every-ms", "100"]).json(0);
    assert_eq!(top["held"].as_array().unwrap().len(), 1);
    for looks in [
        &["policy", "show"][..],
        &["policy", "shadow"],
        &["policy", "overlay", "list"],
        &["dlq", "causes"],
        &["receipts", "list"],
    ] {
        let ran = run(looks);
        assert_eq!(ran.code(), 0, "{looks:?}: {}", ran.stderr());
    }
    assert_refused(&run(&["pause", "--yes"]), "operate");
    assert_refused(&run(&["notifications", "list"]), "operate");
    assert_refused(&run(&mode), "operate");
    assert_refused(&run(&erase), "erase");
    // It sees which action waits and which failed, and nothing of their contents.
    let asked = get("/v1/approvals").json(200)["approvals"].clone();
    assert_eq!(asked[0]["prompt"]["params"]["path"], "workspace/op.txt");
    assert!(!asked.to_string().contains("private"), "{asked}");
    let key = write_note("op-2", "key.txt", "-----BEGIN OPENSSH PRIVATE KEY-----");
    assert_ne!(house.run(FIRST, &["submit", "--wait", "-"], Some(&key)).code(), 0);
    let letter = get("/v1/dlq").json(200)["letters"][0].clone();
    assert_eq!((&letter["action_id"], &letter["detail"]), (&"op-2".into(), &Value::Null));
    assert_eq!((&letter["tries"], get("/v1/dlq/causes").json(200)[0].get("sample")), (&json!([]), None));
    let question = house.run(SECOND, &["approvals", "list"], None).json(0)[0]["approval_id"].clone();
    assert_ne!(
        run(&["approvals", "approve", question.as_str().unwrap()]).code(),
        0,
        "one who looks does not decide"
    );
    // One who operates does, under its own name; what the policy requires is an administrator's.
    become_one("\"operate\"");
    let asked = get("/v1/approvals").json(200)["approvals"].clone();
    assert_eq!(asked[0]["prompt"]["params"]["text"], "private words");
    assert_eq!(asked[0]["prompt"]["rationale"]["reason"], "a private reason");
    assert!(get("/v1/dlq").json(200)["letters"][0]["detail"].is_string());
    get("/v1/store/journal").problem(403, "operators_only");
    for change in ["pause", "resume"] {
        assert_eq!(run(&[change, "--yes"]).code(), 0, "{change}");
    }
    let paused = house.run(0, &["receipts", "list", "tool:effectd.pause"], None).json(0);
    assert_eq!(paused[0]["principal"], user(SECOND));
    assert_eq!(run(&["check", "policy"]).code(), 0);
    assert_ne!(run(&mode).code(), 0);
    assert_ne!(run(&["tools", "set-caps", "files.copy", "nobody.has_this", "--yes"]).code(), 0);
    assert_refused(&run(&erase), "erase");
    assert_eq!(run(&["cancel", "op-1"]).code(), 0, "an operator withdraws for others");
    become_one("\"erase\"");
    assert_refused(&run(&["pause", "--yes"]), "operate");
    let erased = run(&erase);
    assert_eq!(erased.code(), 0, "{}{}", erased.stdout(), erased.stderr());
    become_one("\"operate\", \"admin\"");
    assert_eq!(run(&mode).code(), 0);
    // Without a role, nothing is left of it.
    become_one("\"planner\"");
    assert_refused(&run(&["check", "policy"]), "look");
}

#[test]
fn equal_submissions_of_two_users_all_resolve() {
    let Some(house) = House::new("equal_submissions_of_two_users_all_resolve", Place::seeded) else {
        return;
    };
    for (uid, action) in [(FIRST, "s-1"), (SECOND, "s-2"), (SECOND, "s-3"), (FIRST, "s-4")] {
        house.submit(uid, &write_note(action, "s.txt", "submitted"));
    }
    let first = house.resolved(FIRST, "s-1");
    is_own(&first, FIRST, "s-1");
    assert_eq!(house.resolved(FIRST, "s-4"), first);
    let second = house.resolved(SECOND, "s-2");
    is_own(&second, SECOND, "s-2");
    assert_eq!(house.resolved(SECOND, "s-3"), second);
    tells_nothing_of(&house.seen(SECOND, &["s-2", "s-3"]), &first);
    let foreign = house.run(SECOND, &["status", "s-1"], None).json(2);
    assert_eq!(foreign["code"], "action_unknown");
}

#[test]
fn a_key_is_its_askers_own_and_blocks_nobody_else() {
    let Some(house) = House::new("a_key_is_its_askers_own_and_blocks_nobody_else", Place::seeded) else {
        return;
    };
    let first = house.exec(FIRST, &append("k-1", "the-key", "taken first\n"));
    is_own(&first["receipt"], FIRST, "k-1");
    let second = house.exec(SECOND, &append("k-2", "the-key", "the owner's\n"));
    is_own(&second["receipt"], SECOND, "k-2");
    assert_eq!(second["receipt"]["idempotency_key"], "the-key");
    // For one principal, the same is done once, and something else is a conflict.
    let again = house.exec(SECOND, &append("k-3", "the-key", "the owner's\n"));
    assert_eq!(again["receipt"], second["receipt"]);
    let other = append("k-4", "the-key", "something else\n");
    let conflict = house.run(SECOND, &["submit", "--wait", "-"], Some(&other)).json(2);
    assert_eq!(conflict["code"], "idempotency_conflict");
    let log = std::fs::read_to_string(house.place.note("log")).unwrap();
    assert_eq!(log, "taken first\nthe owner's\n");
    tells_nothing_of(&house.seen(SECOND, &["k-2", "k-3", "k-4"]), &first["receipt"]);
    tells_nothing_of(&conflict.to_string(), &first["receipt"]);
}

/// An append has a new effect each time, so lines in the file are runs of the tool.
#[test]
fn of_equal_requests_at_once_one_runs_for_each_user() {
    const EACH: usize = 6;
    let Some(house) = House::new("of_equal_requests_at_once_one_runs_for_each_user", Place::seeded) else {
        return;
    };
    let asked = |uid: u32, n: usize| format!("{uid}-{n}");
    std::thread::scope(|scope| {
        for (uid, n) in (0..EACH).flat_map(|n| [(FIRST, n), (SECOND, n)]) {
            let house = &house;
            scope.spawn(move || {
                let request = append(&asked(uid, n), "at-once", "line\n");
                if n % 2 == 0 {
                    let view = house.exec(uid, &request);
                    assert_eq!(view["receipt"]["principal"], user(uid));
                } else {
                    house.submit(uid, &request);
                }
            });
        }
    });
    let mut all = BTreeSet::new();
    for uid in [FIRST, SECOND] {
        let receipts: Vec<_> = (0..EACH).map(|n| house.resolved(uid, &asked(uid, n))).collect();
        assert!(receipts.iter().all(|receipt| receipt["principal"] == user(uid)));
        let ids: BTreeSet<_> = receipts.iter().map(|receipt| id_of(receipt).to_string()).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        all.extend(ids);
    }
    assert_eq!(all.len(), 2, "{all:?}");
    let log = std::fs::read_to_string(house.place.note("log")).unwrap();
    assert_eq!(log, "line\n".repeat(2));
}

#[test]
fn equal_requests_of_two_users_are_two_questions() {
    let Some(house) = House::new("equal_requests_of_two_users_are_two_questions", asking) else {
        return;
    };
    // By `exec` and by `submit`.
    let held = |uid: u32, action: &str, ask: &[&str]| {
        let request = write_note(action, "q.txt", "asked");
        house.run(uid, ask, Some(&request));
        let mut id = String::new();
        until("a person is asked", || {
            let view = house.run(uid, &["status", action], None).stdout();
            let view: Value = serde_json::from_str(&view).unwrap_or_default();
            let handle = view["approval"]["approval_id"].as_str();
            id = handle.unwrap_or_default().to_owned();
            !id.is_empty()
        });
        id
    };
    let (exec, submit) = (&["submit", "--wait", "--timeout", "1", "-"], &["submit", "-"]);
    let (first, second) = (held(FIRST, "q-1", exec), held(SECOND, "q-2", exec));
    assert_ne!(first, second);
    // Equal requests of one principal wait for one answer.
    assert_eq!(held(FIRST, "q-3", submit), first);
    let decide = |verb: &str, id: &str| house.run(0, &["approvals", verb, id], None);
    assert_eq!(decide("deny", &second).code(), 0);
    let denied = house.run(SECOND, &["wait", "q-2"], None);
    assert!(denied.stdout().contains("denied_human"), "{}", denied.stdout());
    let waits = house.run(FIRST, &["status", "q-1"], None).stdout();
    let waits: Value = serde_json::from_str(&waits).unwrap();
    assert_eq!(waits["approval"]["approval_id"], first.as_str());
    assert_eq!(decide("approve", &first).code(), 0);
    let receipt = house.resolved(FIRST, "q-1");
    is_own(&receipt, FIRST, "q-1");
    assert_eq!(house.resolved(FIRST, "q-3"), receipt);
    // An approval for the first user is neither shown to the second nor valid for them.
    let third = held(SECOND, "q-4", submit);
    tells_nothing_of(&house.seen(SECOND, &["q-2"]), &receipt);
    assert_eq!(held(SECOND, "q-5", exec), third);
    assert_eq!(decide("approve", &third).code(), 0);
    let own = house.resolved(SECOND, "q-4");
    is_own(&own, SECOND, "q-4");
    assert_eq!(own["effects"]["observed"]["changes"], json!([]));
    assert_eq!(house.resolved(SECOND, "q-5"), own);
}

#[test]
fn what_another_user_changed_is_not_done_any_more() {
    let Some(house) = House::new("what_another_user_changed_is_not_done_any_more", Place::seeded) else {
        return;
    };
    let write = |uid: u32, action: &str, text: &str| {
        let view = house.exec(uid, &write_note(action, "aba.txt", text));
        let on_disk = std::fs::read_to_string(house.place.note("aba.txt")).unwrap();
        assert_eq!(on_disk, text, "{action}");
        view["already_done"] == true
    };
    assert!(!write(FIRST, "1", "A"));
    // It finds A there, so that A is done for two askers.
    assert!(!write(SECOND, "2", "A"));
    assert!(write(FIRST, "3", "A") && write(SECOND, "4", "A"));
    assert!(!write(SECOND, "5", "B"));
    assert!(!write(FIRST, "6", "A"));
    assert!(write(FIRST, "7", "A"));
    assert!(!write(SECOND, "8", "B"));
    assert!(!write(SECOND, "9", "A"));
    assert!(!write(FIRST, "10", "A"), "somebody else has put it there");
}

#[test]
fn an_admin_of_an_organisation_decides_and_manages_there() {
    let with_roles = || {
        let place = asking();
        let file = place.state().join("policy/policy.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.split("[example_tools").next().unwrap();
        let people = format!(
            "[principals.\"{}\"]\nsubjects = []\norgs = {{ home = \"admin\" }}\n\n\
             [principals.\"{}\"]\norgs = {{ home = \"member\" }}\n",
            user(FIRST),
            user(SECOND)
        );
        let named = text.replace("[principals.\"user://*\"]\n", &people);
        assert_ne!(named, text);
        std::fs::write(&file, named.replace("[orgs.home]", "[orgs.work]\n\n[orgs.home]")).unwrap();
        place
    };
    let Some(house) = House::new("an_admin_of_an_organisation_decides_and_manages_there", with_roles) else {
        return;
    };
    let session = ["sessions", "create", "--space", "shared:household", "--title", "week", "--yes"];
    let session = [&session[..], &["--subject", "agent://planner@deviceA"]].concat();
    let created = house.run(SECOND, &session, None).json(0);
    assert_eq!(house.run(FIRST, &session, None).code(), 3, "it may not act for the subject");
    let secret = |uid: u32, org: &str| {
        house.run(uid, &["secrets", "set", org, "token", "--yes"], Some(&json!("v"))).code()
    };
    assert_eq!([secret(FIRST, "home"), secret(FIRST, "work"), secret(SECOND, "home")], [0, 3, 3]);
    let count =
        |uid: u32, what: &str| house.run(uid, &[what, "list"], None).json(0).as_array().unwrap().len();
    let counts = |uid: u32| ["sessions", "secrets", "orgs"].map(|what| count(uid, what));
    assert_eq!([counts(FIRST), counts(SECOND), counts(0)], [[1, 1, 1], [1, 0, 1], [1, 1, 2]]);
    house.submit(SECOND, &write_note("org-1", "org.txt", "o"));
    let mut id = String::new();
    until("a person is asked", || {
        let listed = house.run(FIRST, &["approvals", "list"], None).json(0);
        listed[0]["approval_id"].as_str().unwrap_or_default().clone_into(&mut id);
        !id.is_empty()
    });
    // Where an organisation has admins, running effectd is no role.
    for (uid, code) in [(SECOND, 3), (0, 3), (FIRST, 0)] {
        let ran = house.run(uid, &["approvals", "approve", &id], None);
        assert_eq!(ran.code(), code, "{uid}: {}", ran.stderr());
    }
    let approval = &house.resolved(SECOND, "org-1")["approval"];
    assert_eq!((&approval["by"], &approval["authority"]), (&json!(user(FIRST)), &json!("separate")));
    let end = ["sessions", "end", created["id"].as_str().unwrap(), "--yes"];
    assert_eq!(house.run(FIRST, &end, None).code(), 0);
}
