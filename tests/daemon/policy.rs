//! Policy commands against a running daemon.

use serde_json::{Value, json};

use crate::approvals::{asking, decide, held};
use crate::harness::{Daemon, Place, Ran, Serving, until, write_note};
use crate::operator::acts;
use crate::tcp::{ask_by, listening};

const CONSENT: [&str; 6] = [
    "--subject",
    "agent://planner@deviceA",
    "--space",
    "shared:household",
    "--purpose",
    "tool:files.write_text",
];

/// A policy command, which must go through the daemon.
#[track_caller]
fn policy(place: &Place, verb: &str, arguments: &[&str]) -> Ran {
    let changes = ["grant-consent", "revoke-consent", "set-band", "set-entry", "set-mode", "reload"];
    let yes: &[&str] = if changes.contains(&verb) { &["--yes"] } else { &[] };
    let ran = place.effectd(&[&["policy", verb], arguments, yes].concat(), None);
    assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
    ran
}

#[test]
fn consents_bands_and_modes_take_effect_at_once_and_stay() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let post = |action: &str| daemon.post("/v1/actions?wait", &write_note(action, action, "x")).status;
    assert_eq!(post("p-1"), 200);
    assert_eq!(policy(&place, "revoke-consent", &CONSENT).code(), 0);
    assert_eq!(post("p-2"), 403);
    assert_eq!(policy(&place, "grant-consent", &CONSENT).code(), 0);
    assert_eq!(post("p-3"), 200);
    for (band, action, status) in [("BLACK", "p-black", 403), ("files", "p-files", 200)] {
        assert_eq!(policy(&place, "set-band", &["--space", "shared:household", band]).code(), 0);
        assert_eq!(post(action), status, "{band}");
    }
    for (word, action, status) in [("deny", "p-taken", 403), ("files", "p-given", 200)] {
        let role = ["roles", "planner", word, "--subject", "agent://planner@deviceA"];
        assert_eq!(policy(&place, "set-entry", &role).code(), 0);
        assert_eq!(post(action), status, "{word}");
    }
    for nonsense in [
        &["roles", "planner", "deny"][..],
        &["hosts", "*", "allow"],
        &["cross_space", "files.wirte_text", "deny"],
        &["folders", "a", "allow"],
    ] {
        assert_eq!(policy(&place, "set-entry", nonsense).code(), 2, "{nonsense:?}");
    }
    let mode = ["--org", "home", "--tool", "files.write_text", "deny"];
    assert_eq!(policy(&place, "set-mode", &mode).code(), 0);
    assert_eq!(post("p-4"), 403);
    let copy = |mode: &[&str]| {
        policy(&place, "set-mode", &[&["--org", "home", "--tool", "files.copy"], mode].concat())
    };
    let lasting = copy(&["require_approval"]);
    assert!(lasting.stderr().contains(" -> "), "{}", lasting.stderr());
    // Each preview of an end would have another digest.
    let ending = copy(&["deny", "--for", "2h"]);
    assert!(ending.code() == 0 && !ending.stderr().contains(" -> "), "{}", ending.stderr());
    for nonsense in [&["deny", "--for", "soon"][..], &["files", "--for", "2h"]] {
        assert_eq!(copy(nonsense).code(), 2, "{nonsense:?}");
    }
    // An answered change is on disk.
    daemon.kill();
    let daemon = place.serve(&[]);
    let changes = place.effectd(&["policy", "overlay", "list"], None).stdout();
    assert!(changes.contains("mode of files.copy in org home: deny until 2"), "{changes}");
    let denied = daemon.post("/v1/actions?wait", &write_note("p-5", "p-5", "x"));
    denied.problem(403, "policy_denied");
    for nonsense in [
        json!({ "change": "everything" }),
        json!(["set_org_mode", "home", "files.move", "deny"]),
        json!({ "change": 0, "subject": "agent://p", "space": "shared:household", "purpose": "tool:files.copy" }),
    ] {
        daemon.post("/v1/policy/changes", &nonsense).problem(400, "change_invalid");
    }
    let change = json!({ "change": "set_org_mode", "org": "home", "tool": "files.copy", "mode": null });
    for query in ["?lasts=1h&preview=true", "?lasts=1h"] {
        // Both can be read; only a mode can have an end.
        for change in [&change, &json!({ "change": "clear" })] {
            daemon.post(&format!("/v1/policy/changes{query}"), change).problem(422, "policy_invalid");
        }
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn files_are_checked_and_put_in_force_through_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let before = daemon.get("/v1/policy").json(200);
    assert_eq!(before["in_force"], true);
    let check = policy(&place, "check", &[]);
    assert!(
        check.code() == 0 && check.stdout().contains(before["digest"].as_str().unwrap()),
        "{}",
        check.stdout()
    );
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}\nnonsense = 1\n")).unwrap();
    for verb in ["check", "reload"] {
        let refused = policy(&place, verb, &[]);
        assert_eq!(refused.code(), 2, "{verb}: {}", refused.stderr());
        assert!(refused.stderr().contains("policy.toml:"), "{}", refused.stderr());
    }
    // The daemon looks at the files once a second.
    until("the fault is seen", || daemon.get("/v1/policy").json(200)["faults"].is_array());
    let mut still = daemon.get("/v1/policy").json(200);
    let faults = still.as_object_mut().unwrap().remove("faults").unwrap();
    assert_eq!((faults.as_array().unwrap().len(), &still), (1, &before));
    std::fs::write(&file, format!("{good}\n# a remark\n")).unwrap();
    assert_eq!(policy(&place, "reload", &[]).code(), 0);
    let after = daemon.get("/v1/policy").json(200);
    assert_ne!(after["digest"], before["digest"]);
    daemon.ask("POST", "/v1/policy/reload", &[], "").json(200);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_past_is_explained_and_judged_anew_through_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let mut receipt = String::new();
    for number in 0..3 {
        let name = format!("e-{number}");
        let done = daemon.post("/v1/actions?wait", &write_note(&name, &name, "x")).json(200);
        receipt = done["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    }
    let explained = policy(&place, "explain", &[&receipt]);
    assert_eq!(explained.code(), 0, "{}", explained.stderr());
    assert!(explained.stdout().contains("consent"), "{}", explained.stdout());
    std::fs::write(place.path("request.json"), write_note("e-x", "e-x", "x").to_string()).unwrap();
    let explained = policy(&place, "explain", &["request.json"]);
    assert!(explained.stdout().contains("permit"), "{}", explained.stdout());
    daemon.get("/v1/actions/e-x").problem(404, "action_unknown");
    let unknown = policy(&place, "explain", &["nothing"]);
    assert!(unknown.code() == 2 && unknown.stderr().contains("neither a file nor"), "{}", unknown.stderr());
    let replayed = policy(&place, "replay", &["--with", ".effectd/policy"]);
    assert_eq!(
        replayed.stdout().trim(),
        "3 decisions: 3 stay, 0 flip, 0 unknowable",
        "{}",
        replayed.stderr()
    );
    let some = policy(&place, "replay", &["--with", ".effectd/policy", "--since", "1h", "--limit", "2"]);
    assert!(some.stdout().starts_with("2 decisions: 2 stay"), "{}", some.stdout());
    assert_eq!(daemon.stop(), 0);
}

/// A copy of the policy's files with other text in `policy.toml`.
fn copy(place: &Place, name: &str, edit: impl Fn(String) -> String) {
    std::fs::create_dir(place.path(name)).unwrap();
    for file in std::fs::read_dir(place.state().join("policy")).unwrap() {
        let file = file.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let text = if file.file_name() == "policy.toml" { edit(text) } else { text };
        std::fs::write(place.path(name).join(file.file_name()), text).unwrap();
    }
}

#[test]
fn a_copy_of_the_policy_flips_nothing_that_commands_changed() {
    let place = asking();
    let daemon = place.serve(&[]);
    let shadow = place.effectd(&["policy", "shadow", ".effectd/policy", "--yes"], None);
    assert_eq!(shadow.code(), 0, "{}", shadow.stderr());
    for name in ["o-1", "o-2"] {
        let id = held(&daemon, name, name, "o");
        decide(&daemon, &id, "approve", &json!({})).json(200);
    }
    copy(&place, "same", |text| text);
    let replayed = policy(&place, "replay", &["--with", "same"]);
    assert_eq!(
        replayed.stdout().trim(),
        "2 decisions: 2 stay, 0 flip, 0 unknowable",
        "{}",
        replayed.stderr()
    );
    let checked = policy(&place, "check", &["same"]);
    assert!(
        checked.code() == 0 && checked.stdout().contains("1 change over the files"),
        "{}",
        checked.stdout()
    );
    assert_eq!(policy(&place, "diff", &["same"]).code(), 0);
    // Verdicts that flip alike are one line.
    copy(&place, "closed", |text| {
        text.split("[example_tools").next().unwrap().replace("band = \"GREEN\"", "band = \"BLACK\"")
    });
    let flips = policy(&place, "replay", &["--with", "closed"]).stdout();
    assert_eq!(flips.lines().count(), 2, "{flips}");
    assert!(flips.trim_start().starts_with("2  needs_approval -> deny by space"), "{flips}");
    let each = place.effectd(&["policy", "replay", "--with", "closed", "-o", "jsonl"], None).stdout();
    assert_eq!(each.lines().count(), 3, "{each}");
    let differs = policy(&place, "diff", &["closed"]);
    assert_eq!(differs.code(), 1, "{}", differs.stderr());
    assert!(differs.stdout().contains("\n-band = \"GREEN\"\n+band = \"BLACK\"\n"), "{}", differs.stdout());
    // The overlay is shown, and taken back as a whole.
    let mode = "mode of files.write_text in org home: require_approval";
    assert_eq!(policy(&place, "overlay", &["list"]).stdout().trim(), mode);
    let shown = policy(&place, "show", &[]).stdout();
    assert!(
        shown.contains(&format!("# overlay: {mode}")) && shown.contains("[spaces.\"shared:household\"]"),
        "{shown}"
    );
    let id = held(&daemon, "o-3", "o-3", "o");
    // Both were held and approved, and count once.
    let judged = || daemon.get("/v1/policy/shadow").json(200);
    until("the candidate has judged all", || judged()["decisions"].as_u64() >= Some(3));
    let judged = judged();
    assert_eq!((&judged["decisions"], &judged["same"]), (&json!(3), &json!(3)), "{judged}");
    let asked = policy(&place, "overlay", &["clear"]);
    assert_eq!(asked.code(), 2, "{}", asked.stderr());
    assert!(
        asked.stderr().contains(mode) && asked.stderr().contains("1 to start without a person"),
        "{}",
        asked.stderr()
    );
    assert_eq!(daemon.get(&format!("/v1/approvals/{id}")).json(200)["state"], "pending");
    assert_eq!(policy(&place, "overlay", &["clear", "--yes"]).code(), 0);
    let ended = daemon.get("/v1/actions/o-3/wait?timeout_ms=60000").json(200);
    assert_eq!(ended["outcome"], "executed");
    assert!(policy(&place, "overlay", &["list"]).stdout().is_empty());
    assert_eq!(acts(&place, "tool:effectd.clear_overlay").len(), 1);
}

#[test]
fn a_candidate_judges_in_the_shadow_and_decides_nothing() {
    let place = Place::seeded();
    let mut daemon = place.serve(&[]);
    let without_examples = |text: String| text.split("[example_tools").next().unwrap().to_owned();
    let allow = "\"files.write_text\" = \"allow\"";
    copy(&place, "strict", |text| without_examples(text).replace(allow, "\"files.write_text\" = \"deny\""));
    copy(&place, "looks", without_examples);
    let rule = "forbid (principal, action, resource) when { context.predicted.files > 5 };";
    std::fs::write(place.path("looks/mine.cedar"), rule).unwrap();
    copy(&place, "faulty", |text| format!("{text}\nnonsense = 1\n"));
    let run =
        |arguments: &[&str]| place.effectd(&[&["policy", "shadow"], arguments, &["--yes"]].concat(), None);
    let refused = run(&["faulty"]);
    assert!(refused.code() == 2 && refused.stderr().contains("policy.toml:"), "{}", refused.stderr());
    let rules = json!({ "name": "a.cedar", "text": "" });
    for files in
        [json!([]), json!([rules]), json!([{ "name": "policy.toml", "text": "version = 1" }, rules, rules])]
    {
        daemon.post("/v1/policy/shadow", &json!({ "files": files })).problem(422, "policy_invalid");
    }
    daemon.post("/v1/policy/shadow", &json!({ "files": 1 })).problem(400, "change_invalid");
    assert_eq!(daemon.get("/v1/policy/shadow").json(200)["on"], false);
    let started = run(&["strict", "--reason", "notes get stricter"]);
    assert_eq!(started.code(), 0, "{}", started.stderr());
    // The action happens, and the flip is on the list.
    assert_eq!(daemon.post("/v1/actions?wait", &write_note("c-1", "c-1", "x")).status, 200);
    let count = |daemon: &crate::harness::Daemon, what: &str| {
        daemon.get("/v1/policy/shadow").json(200)[what].as_u64().unwrap()
    };
    until("it is judged", || count(&daemon, "decisions") == 1);
    let before = daemon.get("/v1/policy/shadow").json(200);
    let group = json!({ "tool_id": "files.write_text", "from": "permit", "to": "deny by mode", "count": 1 });
    assert_eq!((&before["groups"], &before["last"][0]["action_id"]), (&json!([group]), &json!("c-1")));
    let shown = place.effectd(&["policy", "shadow"], None).stdout();
    assert!(shown.contains("1  permit -> deny by mode  files.write_text"), "{shown}");
    let metric = "effectd_policy_shadow_decisions_total{result=\"flip\"} 1";
    assert!(daemon.get("/metrics").body.contains(metric));
    // A change by command is laid over both: the same verdict.
    assert_eq!(policy(&place, "revoke-consent", &CONSENT).code(), 0);
    assert_eq!(daemon.post("/v1/actions?wait", &write_note("c-2", "c-2", "x")).status, 403);
    until("it is judged", || count(&daemon, "same") == 1);
    assert_eq!(policy(&place, "grant-consent", &CONSENT).code(), 0);
    // It survives a restart; its figures begin again.
    daemon.kill();
    daemon = place.serve(&[]);
    let after = daemon.get("/v1/policy/shadow").json(200);
    assert_eq!((&after["digest"], &after["since"]), (&before["digest"], &before["since"]));
    assert_eq!((&after["on"], &after["decisions"]), (&json!(true), &json!(0)));
    // What the candidate cannot know is an error, and the action does not mind.
    assert_eq!(run(&["looks"]).code(), 0);
    assert_eq!(daemon.post("/v1/actions?wait", &write_note("c-3", "c-3", "x")).status, 200);
    until("it is judged", || count(&daemon, "errors") == 1);
    assert_eq!(run(&["--off"]).code(), 0);
    assert_eq!(daemon.get("/v1/policy/shadow").json(200)["on"], false);
    daemon.kill();
    daemon = place.serve(&[]);
    assert_eq!(daemon.get("/v1/policy/shadow").json(200)["on"], false);
    let started = acts(&place, "tool:effectd.start_shadow");
    assert_eq!((started.len(), acts(&place, "tool:effectd.stop_shadow").len()), (2, 1));
    assert!(started.iter().any(|act| act["approval"]["reason"] == "notes get stricter"), "{started:?}");
}

#[test]
fn a_candidate_that_did_not_compile_can_be_started_again() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    // A folder in /tmp cannot hold programs.
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let programs = outside.path().join("tools");
    std::fs::create_dir(&programs).unwrap();
    let command = format!("\n[commands.x]\nargv = [\"true\"]\nprograms = [\"{}\"]\n", programs.display());
    copy(&place, "named", |text| format!("{text}{command}"));
    let run = || place.effectd(&["policy", "shadow", "named", "--yes"], None);
    let started = run();
    assert_eq!(started.code(), 0, "{}", started.stderr());
    std::fs::remove_dir(&programs).unwrap();
    daemon.kill();
    let daemon = place.serve(&[]);
    let seen = || daemon.get("/v1/policy/shadow").json(200);
    let fault = seen();
    assert!(fault["fault"].as_str().unwrap().contains("the programs of the command"), "{fault}");
    std::fs::create_dir(&programs).unwrap();
    let started = run();
    assert_eq!(started.code(), 0, "{}", started.stderr());
    assert!(seen().get("fault").is_none(), "{}", seen());
    assert_eq!(daemon.post("/v1/actions?wait", &write_note("d-1", "d-1", "x")).status, 200);
    until("it is judged", || seen()["same"] == 1);
    let again = run();
    assert!(again.stderr().contains("there is nothing to change"), "{}", again.stderr());
    assert_eq!(acts(&place, "tool:effectd.start_shadow").len(), 2);
}

#[test]
fn files_that_are_not_in_force_are_seen_and_survived() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let file = place.state().join("policy/policy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let bad = good.replace("band = \"GREEN\"", "band = \"GREN\"").replace("[safety]", "[safety]\nwrods = 1");
    std::fs::write(&file, &bad).unwrap();
    let faulty = |daemon: &crate::harness::Daemon| {
        daemon.get("/readyz").json(200)["policy_files_faulty"].as_bool().unwrap()
    };
    until("the fault is seen", || faulty(&daemon));
    let seen = |daemon: &crate::harness::Daemon| {
        assert!(daemon.get("/metrics").body.contains("\neffectd_policy_files_in_force 0\n"));
        let checked = place.effectd(&["check", "policy"], None);
        assert_eq!(checked.code(), 2, "{}", checked.stderr());
        for fault in ["2 faults", "unknown variant `GREN`", "unknown field `wrods`"] {
            assert!(checked.stdout().contains(fault), "{fault}: {}", checked.stdout());
        }
        let top = place.effectd(&["top", "-o", "json", "--every-ms", "100"], None).json(0);
        assert_eq!(top["policy_files_faulty"], true);
        assert!(place.effectd(&["policy", "show"], None).stderr().contains("are not in force"));
        assert_eq!(daemon.post("/v1/actions?wait", &write_note("l-1", "l-1", "x")).status, 200);
    };
    seen(&daemon);
    assert_eq!(daemon.stop(), 0);
    let refused = place.effectd(&["serve", "--state", ".effectd"], None);
    assert_eq!(refused.code(), 69, "{}", refused.stderr());
    for fault in ["unknown variant `GREN`", "unknown field `wrods`"] {
        assert!(refused.stderr().contains(fault), "{fault}: {}", refused.stderr());
    }
    let daemon = place.serve(&["--last-good-policy"]);
    assert!(faulty(&daemon));
    seen(&daemon);
    std::fs::write(&file, &good).unwrap();
    until("the mended files are in force", || !faulty(&daemon));
    assert!(daemon.get("/metrics").body.contains("\neffectd_policy_files_in_force 1\n"));
    assert_eq!(place.effectd(&["check", "policy"], None).code(), 0);
}

/// The files in force, with another text in `policy.toml`.
fn files_with(daemon: &Daemon, edit: impl Fn(&str) -> String) -> Value {
    let mut files = daemon.get("/v1/policy/files").json(200)["files"].clone();
    let text = files[0]["text"].as_str().unwrap().split("[example_tools").next().unwrap();
    files[0]["text"] = edit(text).into();
    json!({ "files": files })
}

#[test]
fn a_replay_shows_each_flip_page_by_page_and_changes_nothing() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let before = daemon.get("/v1/policy").json(200);
    for name in ["r-1", "r-2", "r-3"] {
        daemon.post("/v1/actions?wait", &write_note(name, name, "x")).json(200);
    }
    let closed = files_with(&daemon, |text| text.replace("band = \"GREEN\"", "band = \"BLACK\""));
    let replay = |query: &str| daemon.post(&format!("/v1/policy/replay?{query}"), &closed).json(200);
    let all = replay("");
    let figures =
        |view: &Value| ["total", "same", "flips", "unknowable"].map(|name| view[name].as_u64().unwrap());
    assert_eq!((figures(&all), &all["next"]), ([3, 0, 3, 0], &Value::Null), "{all}");
    let receipt = daemon.get("/v1/actions/r-1").json(200)["receipt"]["receipt_id"].clone();
    let first = &all["changes"][0];
    assert_eq!((&first["action_id"], &first["receipt_id"]), (&json!("r-1"), &receipt));
    assert_eq!((&first["from"], &first["to"]), (&json!("permit"), &json!("deny by space")));
    assert!(first["rule"].as_str().unwrap().starts_with("policy.toml:") && first["why"] != "", "{first}");
    let newest = replay("order=newest&limit=2");
    assert_eq!((figures(&newest), &newest["changes"][0]["action_id"]), ([2, 0, 2, 0], &json!("r-3")));
    let rest = replay(&format!("order=newest&limit=2&after={}", newest["next"]));
    assert_eq!((figures(&rest), &rest["changes"][0]["action_id"]), ([1, 0, 1, 0], &json!("r-1")), "{rest}");
    assert_eq!(figures(&replay("q=action:r-2")), [1, 0, 1, 0]);
    let same = daemon.post("/v1/policy/replay", &files_with(&daemon, str::to_owned)).json(200);
    assert_eq!(same, json!({ "total": 3, "same": 3, "flips": 0, "unknowable": 0, "changes": [] }));
    assert_eq!(daemon.get("/v1/policy").json(200), before);
    daemon.ask("POST", "/v1/policy/replay?order=odd", &[], "").problem(400, "query_invalid");
    daemon.ask("POST", "/v1/policy/replay", &[], "[").problem(400, "change_invalid");
}

#[test]
fn a_replay_under_a_faulty_policy_names_each_place() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let faulty =
        files_with(&daemon, |text| format!("{text}\n[clok]\n").replace("band = \"GREEN", "band = \"GREN"));
    let lines: Vec<_> = faulty["files"][0]["text"].as_str().unwrap().lines().collect();
    let line_of = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap() + 1;
    let band = lines[line_of("band = \"GREN") - 1].find("\"GREN").unwrap() + 1;
    let problem = daemon.post("/v1/policy/replay", &faulty).problem(422, "policy_invalid");
    let places: Vec<_> = problem["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| {
            (fault["file"].as_str().unwrap(), fault["line"].as_u64().unwrap(), fault["column"].as_u64())
        })
        .collect();
    let expected = ("policy.toml", line_of("band = \"GREN") as u64, Some(band as u64));
    assert!(places.contains(&expected), "{expected:?}: {problem}");
    let mut rule = files_with(&daemon, str::to_owned);
    rule["files"].as_array_mut().unwrap().push(json!({ "name": "mine.cedar", "text": "// mine\npermit (principal, action, resource) when { oops };" }));
    let problem = daemon.post("/v1/policy/replay", &rule).problem(422, "policy_invalid");
    let fault = &problem["faults"][0];
    assert_eq!((&fault["file"], &fault["line"]), (&json!("mine.cedar"), &json!(2)), "{problem}");
    assert!(fault["column"].as_u64().unwrap() > 1, "{problem}");
    daemon.ask("POST", "/v1/policy/replay", &[], "").problem(422, "policy_invalid");
}

#[test]
fn a_replay_tells_nothing_of_another_organisation() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let office = r#"
[orgs.office]

[principals."account://office/eve"]
subjects = ["agent://planner@deviceA"]
roles = ["planner", "look"]

[principals."account://office/pat"]
subjects = []

[spaces."shared:office"]
root = "./office"
band = "GREEN"
visible_to = ["role:planner"]
org = "office"

[[consents]]
subject = "agent://planner@deviceA"
space = "shared:office"
tools = ["files.list"]
"#;
    std::fs::write(&file, text.split("[example_tools").next().unwrap().to_owned() + office).unwrap();
    let (daemon, address) = listening(&place, &[]);
    let mode = ["--org", "home", "--tool", "files.list", "deny"];
    assert_eq!(policy(&place, "set-mode", &mode).code(), 0);
    let token = |name: &str| {
        let made = daemon.post("/v1/tokens", &json!({ "kind": "user", "org": "office", "name": name }));
        made.json(200)["token"].as_str().unwrap().to_owned()
    };
    let mut listing = write_note("l-1", "", "");
    listing["tool_id"] = "files.list".into();
    listing["space_id"] = "shared:office".into();
    listing["params"] = json!({ "path": "workspace", "space_id": "shared:office" });
    listing["policy_ctx"] = json!({});
    ask_by(&address, &token("eve"), "POST", "/v1/actions?wait", &listing.to_string()).json(200);
    daemon.post("/v1/actions?wait", &write_note("l-2", "l-2", "x")).json(200);
    // These files give her space to the other organisation, whose mode denies the call.
    let files = files_with(&daemon, |text| text.replace("org = \"office\"", "org = \"home\"")).to_string();
    let hers = ask_by(&address, &token("eve"), "POST", "/v1/policy/replay", &files).json(200);
    assert_eq!((&hers["total"], &hers["same"]), (&json!(1), &json!(1)), "{hers}");
    let all = daemon.ask("POST", "/v1/policy/replay", &[], &files).json(200);
    assert_eq!((&all["total"], &all["flips"]), (&json!(2), &json!(1)), "{all}");
    ask_by(&address, &token("pat"), "POST", "/v1/policy/replay", &files).problem(403, "operators_only");
}

#[test]
fn a_saved_file_ends_what_it_denies_and_starts_nothing() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    // Without the examples, which these changes would contradict.
    let text = text.split("[example_tools").next().unwrap();
    let modes = |notes: &str, folders: &str| {
        let modes = format!("\"files.write_text\" = \"{notes}\", \"files.make_dir\" = \"{folders}\"");
        std::fs::write(&file, text.replace("\"files.write_text\" = \"allow\"", &modes)).unwrap();
    };
    modes("require_approval", "require_approval");
    let daemon = place.serve(&[]);
    let stays = |id: &str, name: &str| {
        assert_eq!(daemon.get(&format!("/v1/approvals/{id}")).json(200)["state"], "pending");
        assert!(!place.note(name).exists());
    };
    // The note is asked for first, so that it is judged before the folder.
    let id = held(&daemon, "s-1", "s-1", "s");
    let mut folder = write_note("s-2", "s-2", "");
    folder["tool_id"] = "files.make_dir".into();
    folder["params"].as_object_mut().unwrap().remove("text");
    assert_eq!(daemon.post("/v1/actions?wait", &folder).json(202)["state"], "held");
    // One save without a command denies the folder, which ends, and allows the note, which goes on waiting.
    modes("allow", "deny");
    daemon.get("/v1/actions/s-2/wait?timeout_ms=60000").problem(403, "policy_denied");
    stays(&id, "s-1");
    let denied = place.effectd(&["receipts", "show", "s-2", "-o", "json"], None).json(0);
    assert_eq!((&denied["outcome"], &denied["approval"]["by"]), (&"denied_policy".into(), &"policy".into()));
    assert_eq!(denied["decision"]["verdict"], "deny");
    assert!(!place.note("s-2").exists());
    // What is new runs.
    assert_eq!(daemon.post("/v1/actions?wait", &write_note("s-3", "s-3", "s")).status, 200);
    let mut asked = place.effectd(&["approvals", "rejudge"], None);
    assert_eq!(asked.code(), 2, "{}", asked.stderr());
    assert!(asked.stderr().contains("1 to start, 0 to be denied, 0 for a person"), "{}", asked.stderr());
    stays(&id, "s-1");
    asked = place.effectd(&["approvals", "rejudge", "--reason", "the files permit it", "--yes"], None);
    assert_eq!(asked.code(), 0, "{}", asked.stderr());
    let ended = daemon.get("/v1/actions/s-1/wait?timeout_ms=60000").json(200);
    assert_eq!(ended["outcome"], "executed");
    assert!(ended["receipt"]["approval"].is_null(), "no person decided: {ended}");
    let judged = acts(&place, "tool:effectd.rejudge");
    assert_eq!((judged.len(), &judged[0]["approval"]["reason"]), (1, &json!("the files permit it")));
    assert!(daemon.get("/v1/approvals").json(200)["approvals"].as_array().unwrap().is_empty());
    // A command about another tool puts a saved file in force, and does not start what the file allows.
    modes("require_approval", "deny");
    assert_eq!(policy(&place, "reload", &[]).code(), 0);
    let id = held(&daemon, "s-4", "s-4", "s");
    modes("allow", "deny");
    let change = json!({ "change": "set_org_mode", "org": "home", "tool": "files.copy", "mode": "deny" });
    for query in ["?preview=true", ""] {
        let view = daemon.post(&format!("/v1/policy/changes{query}"), &change).json(200);
        assert_eq!(view["released"].as_u64().unwrap_or(0), 0, "{view}");
        stays(&id, "s-4");
    }
    assert_eq!(daemon.post("/v1/actions?wait", &write_note("s-5", "s-5", "s")).status, 200);
}
