//! Audit: everything that people do to grants, modes and approvals has one receipt, whatever is killed.

use serde_json::{Value, json};

use crate::approvals::{asking, decide, held, killed_at};
use crate::harness::{Place, Serving, until, write_note};

/// The receipts of changes to grants: the name of the operation, and the grant.
fn acts(place: &Place) -> Vec<(String, Value)> {
    let filter = ["receipts", "list", "--limit", "1000", "-o", "json", "tool:effectd.*"];
    let all = place.effectd(&filter, None).json(0);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut acts: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|receipt| text(&receipt["tool_id"]))
        .zip(all.as_array().unwrap().iter().map(|receipt| {
            place.effectd(&["receipts", "show", &text(&receipt["receipt_id"]), "-o", "json"], None).json(0)
        }))
        .collect();
    // Other operations are ignored here.
    acts.retain(|(deed, _)| deed.contains("grant"));
    acts.sort_by(|one, other| one.0.cmp(&other.0));
    acts
}

fn grant(place: &Place, arguments: &[&str]) -> Value {
    let yes: &[&str] = if arguments == ["list"] { &[] } else { &["--yes"] };
    place.effectd(&[&["grants"], arguments, yes, &["-o", "json"]].concat(), None).json(0)
}

#[test]
fn what_is_made_taken_back_or_over_has_a_receipt_of_its_own() {
    let place = asking();
    let create = |more: &[&str]| {
        let made = grant(&place, &[&["create", "--org", "home", "--tool", "files.copy"], more].concat());
        made["grant_id"].as_str().unwrap().to_owned()
    };
    let kept = create(&["--calls", "3"]);
    let back = create(&[]);
    grant(&place, &["revoke", &back]);
    // Revoking it again is not another operation.
    grant(&place, &["revoke", &back]);
    assert_eq!(acts(&place).len(), 3);
    let daemon = place.serve(&["--set", "pipeline.sweep_every_ms=100"]);
    let over = create(&["--for", "0"]);
    let id = held(&daemon, "a-1", "a.txt", "a");
    let with_yes = decide(&daemon, &id, "approve", &json!({ "how": "grant" })).json(200);
    let with_yes = with_yes["grant"]["grant_id"].as_str().unwrap().to_owned();
    until("all of it is on record", || acts(&place).len() == 6);
    let acts = acts(&place);
    let about = |tool: &str| {
        let of = acts.iter().filter(|(deed, _)| deed == tool);
        let mut ids: Vec<_> =
            of.map(|(_, receipt)| receipt["inputs"]["grant_id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    let mut made = [kept.as_str(), &back, &over, &with_yes];
    made.sort_unstable();
    assert_eq!(about("effectd.grant"), made);
    assert_eq!(about("effectd.revoke_grant"), [back.as_str()]);
    assert_eq!(about("effectd.end_grant"), [over.as_str()]);
    for (deed, receipt) in &acts {
        let approval = &receipt["approval"];
        assert_eq!((&receipt["status"], &approval["authority"]), (&"ok".into(), &"single_user".into()));
        let by = if deed == "effectd.end_grant" { "clock" } else { receipt["principal"].as_str().unwrap() };
        assert_eq!((&approval["by"], &approval["grant_id"]), (&by.into(), &receipt["inputs"]["grant_id"]));
        assert_eq!(receipt["space_id"], "org:home");
        assert_eq!(receipt["inputs"]["tool"].as_str().unwrap().split('.').next(), Some("files"));
    }
    let ran = place.effectd(&["receipts", "audit"], None);
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert_eq!(place.effectd(&["receipts", "verify"], None).code(), 0);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn whatever_is_killed_a_grant_has_one_receipt() {
    for (point, verb, done) in [
        ("held.before_act", "create", true),
        ("recorder.before_commit", "create", true),
        ("held.after_act", "create", true),
        ("held.before_act", "revoke", true),
        ("held.before_decide", "approve", false),
        ("held.after_decide", "approve", true),
    ] {
        let place = asking();
        let mut before = 0;
        let mut work: Box<dyn FnOnce(&crate::harness::Daemon) + Send> = {
            let body = json!({ "org": "home", "tool": "files.copy" });
            Box::new(move |daemon| drop(daemon.post("/v1/grants", &body)))
        };
        if verb == "revoke" {
            let id = grant(&place, &["create", "--org", "home", "--tool", "files.copy"])["grant_id"].clone();
            before = 1;
            work = Box::new(move |daemon| {
                drop(daemon.post(&format!("/v1/grants/{}/revoke", id.as_str().unwrap()), &json!({})));
            });
        }
        if verb == "approve" {
            let daemon = place.serve(&[]);
            let id = held(&daemon, "w-1", "w.txt", "w");
            daemon.kill();
            work = Box::new(move |daemon| drop(decide(daemon, &id, "approve", &json!({ "how": "grant" }))));
        }
        let daemon = killed_at(&place, point, work);
        until("the act is on record", || acts(&place).len() == before + usize::from(done));
        // A revoked grant is removed at the next start, after its receipt is written.
        let in_force = || grant(&place, &["list"]).as_array().unwrap().len();
        let left = usize::from(done && verb != "revoke");
        until(&format!("{point} {verb}: all of it, or nothing"), || in_force() == left);
        daemon.kill();
        // The next start repeats nothing.
        let daemon = place.serve(&[]);
        assert_eq!(acts(&place).len(), before + usize::from(done), "{point} {verb}");
        drop(daemon);
    }
}

#[test]
fn a_standing_approval_is_wholly_there_or_not_at_all() {
    for (point, said) in [("held.before_decide", false), ("held.after_decide", true)] {
        let place = asking();
        let daemon = place.serve(&[]);
        let id = held(&daemon, "y-1", "y.txt", "y");
        daemon.kill();
        let daemon = killed_at(&place, point, |daemon| {
            decide(daemon, &id, "approve", &json!({ "how": "always" }));
        });
        if said {
            let view = daemon.get("/v1/actions/y-1/wait?timeout_ms=60000").json(200);
            assert_eq!(view["outcome"], "executed");
        } else {
            assert_eq!(daemon.get("/v1/approvals").json(200)["approvals"].as_array().unwrap().len(), 1);
        }
        let next = daemon.post("/v1/actions?wait", &write_note("y-2", "y2.txt", "y"));
        assert_eq!(next.status, if said { 200 } else { 202 }, "{point}");
    }
}

#[test]
fn who_withdraws_after_the_yes_withdraws_for_nobody_else() {
    let place = asking();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "j-1", "j.txt", "j");
    for action in ["j-2", "j-3"] {
        assert_eq!(held(&daemon, action, "j.txt", "j"), id);
    }
    daemon.kill();
    // The approval is on disk and not carried out yet when the first caller withdraws.
    assert_eq!(place.effectd(&["approvals", "approve", &id], None).code(), 0);
    assert_eq!(place.effectd(&["cancel", "j-1"], None).code(), 0);
    let daemon = place.serve(&[]);
    let end = |action: &str| daemon.get(&format!("/v1/actions/{action}/wait?timeout_ms=60000"));
    end("j-1").problem(409, "cancelled");
    let (two, three) = (end("j-2").json(200), end("j-3").json(200));
    assert_eq!(two["outcome"], "executed");
    assert_eq!(two["receipt"], three["receipt"]);
    assert_eq!(two["receipt"]["approval"]["approval_id"], id.as_str());
    assert_eq!(std::fs::read_to_string(place.note("j.txt")).unwrap(), "j");
    until("the question is forgotten", || {
        daemon.get("/v1/approvals").json(200)["approvals"].as_array().unwrap().is_empty()
    });
}

#[test]
fn a_rule_that_only_stands_on_another_line_is_the_same_rule() {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    // Without the examples, which this change would contradict.
    let text = text.split("[example_tools").next().unwrap();
    let with_mode =
        text.replace("\"files.write_text\" = \"allow\"", "\"files.write_text\" = \"require_approval\"");
    assert_ne!(text, with_mode);
    std::fs::write(&policy, &with_mode).unwrap();
    let daemon = place.serve(&[]);
    let id = held(&daemon, "l-1", "l.txt", "l");
    let question = daemon.get(&format!("/v1/approvals/{id}")).json(200);
    assert!(question.to_string().contains("policy.toml:"), "{question}");
    std::fs::write(&policy, format!("# A line above it.\n{with_mode}")).unwrap();
    assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    let decided = decide(&daemon, &id, "approve", &json!({})).json(200);
    assert_eq!(decided["action"]["outcome"], "executed");
}
