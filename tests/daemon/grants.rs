//! Grants, standing approvals and edited parameters, and who may decide about them.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::approvals::{asking, decide, held, killed_at};
use crate::harness::{NOBODY, Place, Ran, Serving, is_root, write_note};
use crate::operator::acts;

const SESSION: &str = "agent:agent://planner@deviceA";

fn grants(place: &Place, arguments: &[&str]) -> Ran {
    let yes: &[&str] = match arguments.first() {
        Some(&("create" | "revoke")) => &["--yes"],
        Some(_) | None => &[],
    };
    place.effectd(&[&["grants"], arguments, yes, &["-o", "json"]].concat(), None)
}

#[test]
fn a_grant_of_seven_calls_lets_seven_of_a_hundred_through() {
    let place = asking();
    let daemon = place.serve(&[]);
    let made = grants(&place, &["create", "--org", "home", "--tool", "files.write_text", "--calls", "7"]);
    let id = made.json(0)["grant_id"].as_str().unwrap().to_owned();
    let replies: Mutex<Vec<(u16, Value)>> = Mutex::default();
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let (daemon, replies) = (&daemon, &replies);
            scope.spawn(move || {
                for n in 0..5 {
                    let name = format!("g-{worker}-{n}");
                    let reply = daemon.post("/v1/actions?wait", &write_note(&name, &name, "g"));
                    let body = serde_json::from_str(&reply.body).unwrap();
                    replies.lock().unwrap().push((reply.status, body));
                }
            });
        }
    });
    let replies = replies.into_inner().unwrap();
    let count = |status: u16| replies.iter().filter(|(told, _)| *told == status).count();
    assert_eq!((count(200), count(202), count(429)), (7, 10, 83));
    for (_, view) in replies.iter().filter(|(status, _)| *status == 200) {
        let approval = &view["receipt"]["approval"];
        assert_eq!(
            (&approval["grant_id"], &approval["by"], &approval["verdict"]),
            (&id.as_str().into(), &format!("grant:{id}").into(), &"grant".into())
        );
        // The decision of the policy stays as it was.
        assert_eq!(view["receipt"]["decision"]["mode"], "require_approval");
    }
    let listed = grants(&place, &["list"]).json(0);
    assert_eq!((&listed[0]["calls_used"], &listed[0]["state"]), (&7.into(), &"used_up".into()));
    assert_eq!(std::fs::read_dir(place.path("workspace")).unwrap().count(), 7);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_action_that_is_killed_uses_one_call_of_its_grant() {
    let place = asking();
    let made = grants(&place, &["create", "--org", "home", "--tool", "*", "--calls", "9"]);
    made.json(0);
    for (nth, point) in ["idempotency.before_claim", "executor.after_child", "recorder.after_commit"]
        .into_iter()
        .enumerate()
        .map(|(before, point)| (before + 1, point))
    {
        let name = format!("u-{nth}");
        let daemon = killed_at(&place, point, |daemon| {
            daemon.post("/v1/actions?wait", &write_note(&name, &name, "u"));
        });
        // A caller without an answer asks again.
        let view = daemon.post("/v1/actions?wait", &write_note(&name, &name, "u")).json(200);
        assert_eq!(view["outcome"], "executed", "{point}");
        assert!(view["receipt"]["approval"]["grant_id"].is_string(), "{point}");
        assert_eq!(std::fs::read_to_string(place.note(&name)).unwrap(), "u");
        assert_eq!(grants(&place, &["list"]).json(0)[0]["calls_used"], nth, "{point}");
        daemon.kill();
    }
}

#[test]
fn a_grant_is_bound_to_tool_session_and_time_and_revocable() {
    let place = asking();
    let daemon = place.serve(&["--set", "pipeline.sweep_every_ms=100"]);
    let create = |more: &[&str]| {
        let made = grants(&place, &[&["create", "--org", "home"], more].concat());
        made.json(0)["grant_id"].as_str().unwrap().to_owned()
    };
    let mut number = 0;
    let mut passes = || {
        number += 1;
        let name = format!("f-{number}");
        let reply = daemon.post("/v1/actions?wait", &write_note(&name, &name, "f"));
        if reply.status == 202 {
            daemon.ask("DELETE", &format!("/v1/actions/{name}"), &[], "").json(200);
        }
        reply.status == 200
    };
    for other in [
        &["--tool", "files.copy"][..],
        &["--tool", "core.*"],
        &["--tool", "*.write"],
        &["--tool", "files.write_text", "--session", "agent:somebody-else"],
        &["--tool", "*", "--for", "0"],
    ] {
        create(other);
        assert!(!passes(), "{other:?}");
    }
    let elsewhere = grants(&place, &["create", "--org", "work", "--tool", "*"]);
    assert_eq!(elsewhere.code(), 0);
    assert!(!passes(), "another organisation");
    for covering in [
        &["--tool", "files.write_text", "--session", SESSION][..],
        &["--tool", "files.*"],
        &["--tool", "*.write_text"],
        &["--tool", "*"],
    ] {
        let id = create(covering);
        assert!(passes() && passes(), "{covering:?}");
        assert_eq!(grants(&place, &["revoke", &id]).json(0)["state"], "revoked");
        assert!(!passes(), "{covering:?}");
    }
    let shown = grants(&place, &["create", "--org", "work", "--tool", "*.write_text"]).json(0);
    assert_eq!([&shown["integration"], &shown["action"]], ["*", "write_text"]);
    for bad in ["fil*", "*.*", "files.*x"] {
        assert_eq!(grants(&place, &["create", "--org", "home", "--tool", bad]).code(), 2, "{bad}");
    }
    // Expired grants are removed after a while.
    crate::harness::until("what is over is gone", || {
        let left = grants(&place, &["list"]).json(0);
        left.as_array().unwrap().iter().all(|grant| grant["state"] == "active")
    });
    assert_eq!(grants(&place, &["revoke", "nothing"]).code(), 1);
}

#[test]
fn no_grant_stands_in_where_a_person_is_wanted_for_each_call() {
    let place = asking();
    // Band AMBER: each call is confirmed.
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let daemon = place.serve(&[]);
    assert_eq!(grants(&place, &["create", "--org", "home", "--tool", "*"]).code(), 0);
    let passed = daemon.post("/v1/actions?wait", &write_note("b-0", "b.txt", "0"));
    assert_eq!(passed.status, 200);
    let amber = text
        .replace("band = \"GREEN\"", "band = \"AMBER\"")
        .split("[example_tools")
        .next()
        .unwrap()
        .to_owned();
    std::fs::write(&policy, amber).unwrap();
    assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    let id = held(&daemon, "b-1", "b.txt", "1");
    let question = daemon.get(&format!("/v1/approvals/{id}")).json(200);
    assert_eq!(question["prompt"]["grant_allowed"], false);
    decide(&daemon, &id, "approve", &json!({ "how": "grant" })).problem(403, "may_not_decide");
    decide(&daemon, &id, "approve", &json!({ "how": "always" })).problem(403, "may_not_decide");
    assert_eq!(decide(&daemon, &id, "approve", &json!({})).json(200)["action"]["outcome"], "executed");
}

#[test]
fn a_yes_can_cover_one_some_or_all_and_says_so_first() {
    let place = asking();
    let daemon = place.serve(&[]);
    let post = |action: &str| daemon.post("/v1/actions?wait", &write_note(action, action, "m"));
    let id = held(&daemon, "m-1", "m-1", "m");
    let body = json!({ "how": "grant", "calls_max": 2, "lasts_s": 3600 });
    let decided = decide(&daemon, &id, "approve", &body).json(200);
    let grant = decided["grant"]["grant_id"].clone();
    assert_eq!(decided["grant"]["session"], SESSION);
    assert_eq!(decided["action"]["receipt"]["approval"]["grant_id"], grant);
    // The one that lost the race makes no grant.
    decide(&daemon, &id, "approve", &body).problem(409, "already_decided");
    assert_eq!(daemon.get("/v1/grants").json(200)["grants"].as_array().unwrap().len(), 1);
    assert_eq!((post("m-2").status, post("m-3").status), (200, 200));
    let id = held(&daemon, "m-4", "m-4", "m");
    let change = daemon.get(&format!("/v1/approvals/{id}/always")).json(200);
    assert_eq!((&change["org"], &change["tool"]), (&"home".into(), &"files.write_text".into()));
    assert_eq!((&change["asked"], &change["covered"]), (&3.into(), &3.into()));
    let asked = place.effectd(&["approvals", "approve", &id, "--always"], None);
    assert!(asked.code() == 2 && asked.stderr().contains("3 of the last 3"), "{}", asked.stderr());
    let meant =
        place.effectd(&["approvals", "approve", &id, "--always", "--yes", "-o", "json"], None).json(0);
    assert_eq!(meant["action"]["receipt"]["approval"]["verdict"], "always");
    let allowed = post("m-5").json(200);
    assert!(allowed["receipt"]["approval"].is_null());
    assert_eq!(allowed["receipt"]["decision"]["mode_source"], "org_default");
}

#[test]
fn a_grant_and_a_mode_apply_to_what_waits_and_say_how_much() {
    let place = asking();
    let daemon = place.serve(&[]);
    let ids: Vec<String> = (0..6).map(|n| held(&daemon, &format!("w-{n}"), &format!("w-{n}"), "w")).collect();
    let pending = || daemon.get("/v1/approvals").json(200)["approvals"].as_array().unwrap().len();
    let ended = |n: usize| daemon.get(&format!("/v1/actions/w-{n}/wait?timeout_ms=60000")).json(200);
    // A grant of one call, by itself: the oldest goes.
    let create = ["grants", "create", "--org", "home", "--tool", "files.write_text", "--calls", "1"];
    let asked = place.effectd(&create, None);
    assert!(asked.code() == 2 && asked.stderr().contains("start at once: 1"), "{}", asked.stderr());
    assert_eq!(pending(), 6);
    let made = grants(&place, &create[1..]).json(0);
    assert_eq!(ended(0)["receipt"]["approval"]["grant_id"], made["grant_id"]);
    // With an approval: this one, and two more.
    let grant = ["approvals", "approve", &ids[1], "--grant", "--calls", "2"];
    let asked = place.effectd(&grant, None);
    assert!(asked.code() == 2 && asked.stderr().contains("start at once: 2"), "{}", asked.stderr());
    assert_eq!(pending(), 5);
    let decided = place.effectd(&[&grant[..], &["--yes", "-o", "json"]].concat(), None).json(0);
    assert_eq!((&decided["released"], &decided["action"]["outcome"]), (&2.into(), &"executed".into()));
    for n in [2, 3] {
        assert_eq!(ended(n)["receipt"]["approval"]["grant_id"], decided["grant"]["grant_id"]);
    }
    assert_eq!(pending(), 2);
    // A standing approval: this one, and the last. It leaves an operator's receipt.
    let before = acts(&place, "tool:effectd.set_mode").len();
    let change = daemon.get(&format!("/v1/approvals/{}/always", ids[4])).json(200);
    assert_eq!(change["released"], 1);
    decide(&daemon, &ids[4], "approve", &json!({ "how": "always" })).json(200);
    assert_eq!(ended(5)["outcome"], "executed");
    let after = acts(&place, "tool:effectd.set_mode");
    assert_eq!(after.len(), before + 1);
    let of_always = |act: &&Value| act["outputs"]["approval_id"] == ids[4].as_str();
    let act = after.iter().find(of_always).unwrap_or_else(|| panic!("{after:?}"));
    assert_eq!((&act["inputs"]["org"], &act["inputs"]["mode"]), (&"home".into(), &"allow".into()));
    assert_eq!(pending(), 0);
}

/// A place whose policy names commands that write, so that a person is asked about each call.
fn naming(names: &[&str]) -> Place {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text = text
        .split("[example_tools")
        .next()
        .unwrap()
        .replace("\"diagnose\"]", "\"diagnose\", \"command.run\"]");
    text += "[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:household\"\n\
             tools = [\"command.run\"]\n";
    std::fs::write(&file, text).unwrap();
    names.iter().for_each(|name| name_command(&place, name));
    place
}

fn name_command(place: &Place, name: &str) {
    let file = place.state().join("policy/policy.toml");
    let rule =
        format!("\n[commands.{name}]\nargv = [\"touch\", \"{name}/base\", \"*\"]\nwrites = [\"{name}\"]\n");
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + &rule).unwrap();
    std::fs::create_dir_all(place.note(name)).unwrap();
}

#[test]
fn a_grant_and_always_for_a_command_cover_that_command_alone() {
    let place = naming(&["one", "two"]);
    let daemon = place.serve(&[]);
    let argv =
        |name: &str, action: &str| json!(["touch", format!("{name}/base"), format!("{name}/{action}")]);
    let params =
        |name: &str, action: &str| json!({ "argv": argv(name, action), "space_id": "shared:household" });
    let run = |action: &str, name: &str| {
        let mut request = write_note(action, "none", "");
        request["tool_id"] = "command.run".into();
        request["params"] = params(name, action);
        daemon.post("/v1/actions?wait", &request)
    };
    let asked = |action: &str, name: &str| {
        let view = run(action, name).json(202);
        view["approval"]["approval_id"].as_str().unwrap().to_owned()
    };
    for (bad, why) in [
        (&["--tool", "command.run"][..], "--command NAME"),
        (&["--tool", "command.run", "--command", "three"], "no command \\\"three\\\""),
        (&["--tool", "files.copy", "--command", "one"], "leave it out"),
        (&["--tool", "*", "--command", "one"], "leave it out"),
    ] {
        let refused = grants(&place, &[&["create", "--org", "home"], bad].concat());
        assert!(refused.code() == 2 && refused.stderr().contains(why), "{bad:?}: {}", refused.stderr());
    }
    let one = ["create", "--org", "home", "--tool", "command.run", "--command", "one"];
    let made = grants(&place, &one).json(0);
    assert_eq!(made["command"], "one");
    for wide in ["command.*", "*"] {
        assert_eq!(grants(&place, &["create", "--org", "home", "--tool", wide]).code(), 0);
    }
    let done = run("c-1", "one").json(200);
    assert_eq!(done["receipt"]["approval"]["grant_id"], made["grant_id"], "{done}");
    assert!(place.note("one/c-1").exists());
    let two = asked("c-2", "two");
    assert_eq!(grants(&place, &["revoke", made["grant_id"].as_str().unwrap()]).code(), 0);

    let change = daemon.get(&format!("/v1/approvals/{two}/always")).json(200);
    assert_eq!(change["tool"], "command.run two");
    let decided = decide(&daemon, &two, "approve", &json!({ "how": "always" })).json(200);
    assert_eq!(decided["action"]["outcome"], "executed", "{decided}");
    let allowed = run("c-3", "two").json(200);
    assert!(allowed["receipt"]["approval"].is_null(), "{allowed}");
    assert_eq!(allowed["receipt"]["decision"]["mode_source"], "org_default");

    let again = asked("c-4", "one");
    let decided = decide(&daemon, &again, "approve", &json!({ "how": "grant" })).json(200);
    assert_eq!(decided["grant"]["command"], "one");
    assert_eq!(run("c-5", "one").status, 200);
    // A command that is added later has neither.
    name_command(&place, "three");
    assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    let three = asked("c-6", "three");
    let edited = json!({ "how": "grant", "params": params("one", "c-6") });
    decide(&daemon, &three, "approve", &edited).problem(403, "may_not_decide");
    assert!(!place.note("one/c-6").exists() && !place.note("three/c-6").exists());
}

#[test]
fn a_grant_covers_its_command_as_the_policy_had_it() {
    let place = naming(&["one"]);
    let daemon = place.serve(&[]);
    let run = |action: &str| {
        let mut request = write_note(action, "none", "");
        request["tool_id"] = "command.run".into();
        let argv = json!(["touch", "one/base", format!("one/{action}")]);
        request["params"] = json!({ "argv": argv, "space_id": "shared:household" });
        daemon.post("/v1/actions?wait", &request)
    };
    let made =
        grants(&place, &["create", "--org", "home", "--tool", "command.run", "--command", "one"]).json(0);
    let activate = format!("/v1/grants/{}/activate", made["grant_id"].as_str().unwrap());
    assert_eq!(run("d-1").status, 200);
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        std::fs::write(&file, text).unwrap();
        assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    };
    std::fs::create_dir(place.note("two")).unwrap();
    let wider = text.replace("writes = [\"one\"]", "writes = [\"one\", \"two\"]");
    assert_ne!(wider, text);
    reload(&wider);
    assert_eq!(run("d-2").status, 202, "the command may write more than was granted");
    let refused = daemon.post(&activate, &json!({}));
    assert!(
        refused.status == 400 && refused.body.contains("changed or removed this command"),
        "{}",
        refused.body
    );
    reload(&text);
    assert_eq!(run("d-3").status, 200);
    // No mode is set for a command that there is not.
    for tool in ["command.run two", "command.run  one"] {
        let mode = ["policy", "set-mode", "--org", "home", "--tool", tool, "deny", "--yes"];
        let refused = place.effectd(&mode, None);
        assert!(
            refused.code() != 0 && refused.stderr().contains("is no named command"),
            "{}",
            refused.stderr()
        );
    }
    assert_eq!(run("d-4").status, 200);
}

#[test]
fn an_edited_approval_leaves_both_digests_in_the_receipt() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "p-1", "p.txt", "as the planner has it");
    let params =
        |path: &str, text: &str| json!({ "path": path, "text": text, "space_id": "shared:household" });
    decide(&daemon, &id, "approve", &json!({ "params": { "path": 7 } })).problem(400, "params_invalid");
    let elsewhere = json!({ "path": "workspace/p.txt", "text": "x", "space_id": "private:bob" });
    decide(&daemon, &id, "approve", &json!({ "params": elsewhere })).problem(403, "policy_denied");
    std::fs::write(place.path("edited.json"), params("workspace/q.txt", "as the person has it").to_string())
        .unwrap();
    let edited = place
        .effectd(&["approvals", "approve", &id, "--edit", "edited.json", "--yes", "-o", "json"], None)
        .json(0);
    let receipt = &edited["action"]["receipt"];
    assert_eq!(receipt["outcome"], "executed");
    assert_eq!(receipt["preview"]["verdict"], "matched");
    let digest = &receipt["approval"]["edited_request_digest"];
    assert!(digest.as_str().unwrap().starts_with("hmac-sha256:") && *digest != receipt["request_digest"]);
    assert_eq!(std::fs::read_to_string(place.note("q.txt")).unwrap(), "as the person has it");
    assert!(!place.note("p.txt").exists());
    // The id still means the planner's own request.
    let again =
        daemon.post("/v1/actions?wait", &write_note("p-1", "p.txt", "as the planner has it")).json(200);
    assert_eq!((&again["receipt"], &again["already_done"]), (receipt, &true.into()));
    daemon
        .post("/v1/actions?wait", &write_note("p-1", "q.txt", "as the person has it"))
        .problem(409, "action_conflict");
}

#[test]
fn nobody_approves_their_own_requests_or_grants_themselves() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root("nobody_approves_their_own_requests_or_grants_themselves") {
        return;
    }
    let place = asking();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let name = nix::unistd::User::from_uid(NOBODY.into()).unwrap().unwrap().name;
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let roles = |root: &str| {
        let people = format!(
            "[principals.\"user://{name}\"]\nsubjects = [\"agent://planner@deviceA\"]\nactors = [\"alice\"]\n\n\
             [principals.\"user://root\"]\n{root}\n\n[roles.planner]"
        );
        let begin = text.find("[principals").unwrap();
        let end = text.find("[roles.planner]").unwrap();
        let rest = text[end + "[roles.planner]".len()..].split("[example_tools").next().unwrap().to_owned();
        std::fs::write(&policy, format!("{}{people}{rest}", &text[..begin])).unwrap();
    };
    roles("subjects = []\nroles = [\"approver\"]");
    let socket = place.path("shared.sock");
    let socket = socket.to_str().unwrap();
    let _daemon = place.serve(&["--socket", socket, "--set", "gateway.socket_mode=0660"]);
    let run = |uid: u32, arguments: &[&str], input: &str| {
        // Of the daemon's group, so that it may connect.
        let mut command = match uid {
            0 => place.command(arguments),
            uid => place.command_as(uid, 0, arguments),
        };
        command.args(["--socket", socket]);
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        Ran(child.wait_with_output().unwrap())
    };
    let note = |action: &str| write_note(action, action, "r").to_string();
    // An approver is not a planner.
    let own = run(0, &["run", "-", "-o", "json"], &note("r-0"));
    assert_eq!(own.json(3)["error"]["gate"], "rbac", "{}", own.stderr());
    let asked = run(NOBODY, &["submit", "--jsonl", "-o", "jsonl", "-"], &note("r-1"));
    assert_eq!(asked.code(), 0, "{}", asked.stderr());
    let mut id = String::new();
    crate::harness::until("a person is asked", || {
        let listed = run(NOBODY, &["approvals", "list", "-o", "json"], "").json(0);
        id = listed[0]["approval_id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    let denied = run(NOBODY, &["approvals", "approve", &id], "");
    assert!(denied.code() == 3 && denied.stderr().contains("is no approver"), "{}", denied.stderr());
    // An approver who may act on behalf of the subject does not decide, either.
    roles("subjects = [\"agent://*\"]\nroles = [\"planner\", \"approver\"]");
    assert_eq!(run(0, &["policy", "reload", "--yes"], "").code(), 0);
    let denied = run(0, &["approvals", "approve", &id], "");
    assert!(denied.code() == 3 && denied.stderr().contains("may act on behalf of"), "{}", denied.stderr());
    roles("subjects = []\nroles = [\"approver\"]");
    assert_eq!(run(0, &["policy", "reload", "--yes"], "").code(), 0);
    // A planner can only ask for a grant, and an approver grants no more than a session.
    let wish = ["--org", "home", "--tool", "files.write_text", "-o", "json"];
    let made = run(NOBODY, &[&["grants", "create", "--yes"][..], &wish].concat(), "");
    assert_eq!(made.code(), 3, "{}", made.stderr());
    let asked = run(NOBODY, &[&["grants", "request"][..], &wish].concat(), "").json(0);
    let grant = asked["grant_id"].as_str().unwrap();
    assert_eq!(asked["state"], "requested");
    assert_eq!(run(0, &["grants", "create", "--from", grant, "--yes"], "").code(), 3);
    let wide = run(0, &["approvals", "approve", &id, "--grant", "--org"], "");
    assert_eq!(wide.code(), 3, "{}", wide.stderr());
    let decided = run(0, &["approvals", "approve", &id, "--grant", "--calls", "1", "-o", "json"], "").json(0);
    let approval = &decided["action"]["receipt"]["approval"];
    assert_eq!((&approval["authority"], &approval["by"]), (&"separate".into(), &"user://root".into()));
    // An administrator may.
    roles("subjects = []\nroles = [\"admin\"]");
    assert_eq!(run(0, &["policy", "reload", "--yes"], "").code(), 0);
    let active = run(0, &["grants", "create", "--from", grant, "--yes", "-o", "json"], "").json(0);
    assert_eq!((&active["state"], &active["activated_by"]), (&"active".into(), &"user://root".into()));
    let done = run(NOBODY, &["submit", "--wait", "-o", "json", "-"], &note("r-2"));
    assert_eq!(done.json(0)["outcome"], "executed");
}

#[test]
fn a_grant_is_activated_twice_and_not_after_its_end() {
    let place = asking();
    let daemon = place.serve(&[]);
    let made = daemon.post("/v1/grants", &json!({ "org": "home", "tool": "files.copy" })).json(200);
    let ask = |verb: &str| {
        daemon.post(&format!("/v1/grants/{}/{verb}", made["grant_id"].as_str().unwrap()), &json!({}))
    };
    assert_eq!(ask("activate").json(200), made);
    assert_eq!(ask("revoke").status, 200);
    ask("activate").problem(410, "grant_ended");
    let over = json!({ "org": "home", "tool": "files.copy", "lasts_s": 0 });
    let over = daemon.post("/v1/grants", &over).json(200)["grant_id"].as_str().unwrap().to_owned();
    daemon.post(&format!("/v1/grants/{over}/activate"), &json!({})).problem(410, "grant_ended");
}

#[test]
fn a_list_has_grants_of_one_state_in_whole_pages() {
    let place = asking();
    let daemon = place.serve(&[]);
    let body = json!({ "org": "home", "tool": "files.copy" });
    // More than a page has, and one of another state.
    let made: Vec<_> =
        (0..101).map(|_| daemon.post("/v1/grants", &body).json(200)["grant_id"].clone()).collect();
    let last = made[100].as_str().unwrap();
    assert_eq!(daemon.post(&format!("/v1/grants/{last}/revoke"), &json!({})).status, 200);
    let ids = |query: &str| {
        let page = daemon.get(&format!("/v1/grants?{query}")).json(200);
        let ids: Vec<_> =
            page["grants"].as_array().unwrap().iter().map(|grant| grant["grant_id"].clone()).collect();
        (ids, page["next"].clone())
    };
    assert_eq!(ids("state=active"), (made[..100].to_vec(), json!(null)));
    assert_eq!(ids("state=revoked"), (made[100..].to_vec(), json!(null)));
    assert_eq!(ids("state=requested"), (Vec::new(), json!(null)));
    assert_eq!(ids("").0.len(), 100);
    daemon.get("/v1/grants?state=over").problem(400, "query_invalid");
}

#[test]
fn an_organisation_that_is_no_name_is_the_callers_mistake() {
    let place = asking();
    let daemon = place.serve(&[]);
    let body = json!({ "org": "\u{c}\u{90}", "tool": "files.copy" });
    let problem = daemon.post("/v1/grants", &body).problem(400, "malformed");
    assert!(problem["detail"].as_str().unwrap().contains("the organisation: "), "{problem}");
    // A preview refuses what the request would.
    for body in [json!({ "org": "", "tool": "files.copy" }), json!({ "org": "home", "tool": "" })] {
        for route in ["/v1/grants", "/v1/grants/requests", "/v1/grants/requests/preview"] {
            daemon.post(route, &body).problem(400, "malformed");
        }
    }
}
