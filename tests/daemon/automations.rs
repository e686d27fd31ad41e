//! Automations: definitions that are kept as they were written, by whom and for whom, and templates that no definition can abuse.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::approvals::killed_at;
use crate::backups::find;
use crate::erasure::blobs;
use crate::harness::{Daemon, Place, Serving, root};
use crate::operator::acts;
use crate::tcp::{ask_by, listening, resident, token};

const ROOT: &str = "/api/v1/automations";
const IN_SPACE: &str = "/api/v1/automations?space_id=shared:household";

fn example(name: &str) -> String {
    fs::read_to_string(root().join("examples/automations").join(name)).unwrap()
}

/// Saves a definition, and returns the automation's id.
#[track_caller]
fn saved(daemon: &Daemon, definition: &str) -> String {
    let done = daemon.ask("POST", IN_SPACE, &[], definition).json(200);
    assert!(done["receipt_id"].is_string(), "{done}");
    done["id"].as_str().unwrap().to_owned()
}

fn exported(daemon: &Daemon, id: &str) -> String {
    let reply = daemon.get(&format!("{ROOT}/{id}/definition"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.body
}

#[test]
fn a_definition_is_kept_as_it_was_written() {
    let (place, sample) = (Place::seeded(), example("digest.json"));
    let daemon = place.serve(&[]);
    let written = place.path("digest.json");
    fs::write(&written, &sample).unwrap();
    let written = written.to_str().unwrap();
    let run = |line: &[&str]| place.effectd(line, None);
    let save = ["automations", "save", written, "--space", "shared:household", "--yes", "-o", "json"];
    let done = run(&save).json(0);
    let id = done["id"].as_str().unwrap();
    let first = run(&["automations", "export", id]).stdout();
    assert_eq!(first, sample);
    // What was exported is imported, and exported again.
    fs::write(written, &first).unwrap();
    let import = ["automations", "import", written, "--space", "shared:household", "--yes", "-o", "json"];
    let other = run(&import).json(0)["id"].as_str().unwrap().to_owned();
    assert_eq!(run(&["automations", "export", &other]).stdout(), sample);
    let shown = run(&["automations", "show", &other, "-o", "json"]).json(0);
    assert_eq!((&shown["status"], &shown["version"]), (&json!("paused"), &json!(1)));
    assert_eq!((&shown["name"], &shown["org"]), (&json!("Daily competitor digest"), &json!("home")));
    // The same again is nothing new; anything else is the next version, of the same automation.
    let again = run(&["automations", "save", written, "--id", id, "--yes", "-o", "json"]).json(0);
    assert_eq!((&again["changed"], &again["receipt_id"]), (&json!(false), &Value::Null), "{again}");
    let next = sample.replace("C0123", "C0456");
    fs::write(written, &next).unwrap();
    assert_eq!(run(&["automations", "save", written, "--id", id, "--yes"]).code(), 0);
    let listed = daemon.get(ROOT).json(200);
    let versions: Vec<_> =
        listed["automations"].as_array().unwrap().iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, [2, 1]);
    assert_eq!((exported(&daemon, id), exported(&daemon, &other)), (next.clone(), sample.clone()));
    assert_eq!(blobs(&place.state(), "definitions"), 2, "the version before is gone");
    let receipts = acts(&place, "tool:effectd.save_automation");
    assert_eq!(receipts.len(), 3, "{receipts:?}");
    assert!(!receipts.iter().any(|receipt| receipt.to_string().contains("competitor")));
    assert!(find(&place.state(), b"competitor digest").is_empty(), "a definition is on disk in clear");
    // The state outlives the daemon.
    assert_eq!(daemon.stop(), 0);
    assert_eq!(run(&["automations", "export", id]).stdout(), next);
    assert_eq!(run(&["store", "check"]).code(), 0);
}

#[test]
fn a_wrong_definition_is_refused_with_every_place() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let wrong = example("weekly_note.json")
        .replace("files.write_text", "files.write_tex")
        .replace("{{ inputs.week | upper }}", "{{ input.week | shout }}")
        .replace("inputs.text != 'nothing happened'", "__import__");
    let refused = daemon.ask("POST", IN_SPACE, &[], &wrong).problem(422, "definition_invalid");
    for place in ["/plan/0/action: ", "/plan/0/config/text: ", "/plan/1/when: "] {
        assert!(refused["detail"].as_str().unwrap().contains(place), "{refused}");
    }
    let checked = daemon.ask("POST", &format!("{ROOT}/check"), &[], &wrong).json(200);
    assert_eq!(
        (&checked["valid"], checked["errors"].as_array().unwrap().len()),
        (&json!(false), 3),
        "{checked}"
    );
    let file = place.path("wrong.json");
    fs::write(&file, &wrong).unwrap();
    let ran = place.effectd(&["automations", "check", file.to_str().unwrap()], None);
    assert!(ran.code() == 1 && ran.stdout().contains("error: /plan/1/when: "), "{}", ran.stdout());
    daemon
        .ask("POST", "/api/v1/automations?space_id=private:nobody", &[], &example("weekly_note.json"))
        .problem(404, "not_found");
    assert_eq!(daemon.get(ROOT).json(200)["automations"], json!([]));
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn an_automation_belongs_to_who_saved_it() {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = fs::read_to_string(&policy).unwrap();
    let account = |name: &str, role: &str| {
        format!("\n[principals.\"account://home/{name}\"]\nsubjects = []\norgs = {{ home = \"{role}\" }}\n")
    };
    let with = text + &account("ada", "member") + &account("ben", "member") + &account("eve", "admin");
    fs::write(&policy, with).unwrap();
    let (daemon, address) = listening(&place, &[]);
    let names = ["ada", "ben", "eve", "stranger"];
    let [ada, ben, eve, stranger] = names.map(|name| token(&daemon, name));
    let ask = |by: &str, method: &str, path: &str, body: &str| ask_by(&address, by, method, path, body);
    let note = example("weekly_note.json");
    let id = ask(&ada, "POST", IN_SPACE, &note).json(200)["id"].as_str().unwrap().to_owned();
    let at = |verb: &str| format!("{ROOT}/{id}{verb}");
    let shown = ask(&ben, "GET", &at(""), "").json(200);
    assert_eq!(shown["created_by"], "account://home/ada");
    let longer = note.replace("nothing happened", "a quiet week");
    // Nobody else changes what runs as Ada, not even who may stop it.
    for other in [&ben, &eve] {
        ask(other, "PUT", &at(""), &longer).problem(409, "state_conflict");
    }
    assert_eq!(ask(&ada, "PUT", &at(""), &longer).json(200)["changed"], true);
    ask(&ben, "POST", &at("/pause"), "").problem(403, "operators_only");
    ask(&eve, "POST", &at("/pause"), "").json(200);
    ask(&ada, "POST", &at("/activate"), "").json(200);
    ask(&ada, "DELETE", &at(""), "").problem(409, "state_conflict");
    for (method, path) in
        [("GET", at("")), ("GET", at("/definition")), ("PUT", at("")), ("POST", at("/pause"))]
    {
        ask(&stranger, method, &path, &note).problem(404, "not_found");
    }
    assert_eq!(ask(&stranger, "GET", ROOT, "").json(200)["automations"], json!([]));
    ask(&stranger, "POST", IN_SPACE, &note).problem(403, "operators_only");
    // A service looks; an agent does not even that.
    let made =
        daemon.post("/v1/tokens", &json!({ "kind": "service", "org": "home", "name": "ada" })).json(200);
    let service = made["token"].as_str().unwrap();
    ask(service, "GET", &at(""), "").json(200);
    ask(service, "PUT", &at(""), &note).problem(403, "token_forbidden");
    let session =
        json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "t" });
    let agent = daemon.post("/v1/sessions", &session).json(200)["token"].as_str().unwrap().to_owned();
    ask(&agent, "GET", &at(""), "").problem(403, "token_forbidden");
    ask(&eve, "POST", &at("/archive"), "").json(200);
    ask(&eve, "DELETE", &at(""), "").json(200);
    ask(&ada, "GET", &at(""), "").problem(404, "not_found");
    assert_eq!(blobs(&place.state(), "definitions"), 0);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_save_that_is_killed_leaves_one_version_or_the_other() {
    let (note, longer) =
        (example("weekly_note.json"), example("weekly_note.json").replace("nothing", "not much"));
    for (point, is_saved) in
        [("operation.begun", false), ("automation.stored", false), ("automation.saved", true)]
    {
        let place = Place::seeded();
        let first = place.serve(&[]);
        let id = saved(&first, &note);
        first.signal(Signal::SIGKILL);
        first.wait();
        let put = |daemon: &Daemon| daemon.ask("PUT", &format!("{ROOT}/{id}"), &[], &longer);
        let daemon = killed_at(&place, point, |daemon| {
            put(daemon);
        });
        let expected = if is_saved { &longer } else { &note };
        assert_eq!(exported(&daemon, &id), *expected, "{point}");
        assert_eq!(put(&daemon).json(200)["changed"], !is_saved, "{point}");
        assert_eq!(exported(&daemon, &id), longer, "{point}");
        daemon.ask("PUT", &format!("{ROOT}/{id}"), &[], &note).json(200);
        assert_eq!(blobs(&place.state(), "definitions"), 1, "{point}: an old version is left");
        assert_eq!(daemon.stop(), 0);
    }
}

#[test]
fn templates_are_rendered_for_their_author() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let note = root().join("examples/automations/weekly_note.json");
    let render = |more: &[&str]| {
        let line = [&["automations", "render", note.to_str().unwrap(), "-o", "json"][..], more].concat();
        place.effectd(&line, None)
    };
    let shown = render(&["--inputs", "{\"week\": \"w36\"}"]).json(0);
    let path = "workspace/notes/w36.txt";
    assert_eq!(shown[0]["config"], json!({ "path": path, "text": "W36: nothing happened\n" }), "{shown}");
    assert_eq!(shown[1]["state"], "skipped", "{shown}");
    let shown = render(&["--inputs", "{\"week\": \"w36\", \"text\": \"rain\"}"]).json(0);
    assert_eq!(shown[1]["config"]["message_template"], "The note of w36 is written", "{shown}");
    let refused = render(&["--inputs", "{\"week\": \"36\"}"]);
    assert!(refused.code() == 2 && refused.stderr().contains("/inputs/week: "), "{}", refused.stderr());
    // Without a daemon, too.
    assert_eq!(daemon.stop(), 0);
    assert_eq!(render(&["--inputs", "{\"week\": \"w36\"}"]).json(0)[1]["state"], "skipped");
}

#[test]
fn no_template_takes_memory_or_time_from_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let render = |text: &str| {
        let step =
            json!({ "step_id": "a", "action": "notification", "config": { "message_template": text } });
        let inputs = json!({ "list": vec!["x"; 10_000], "text": "x".repeat(100_000) });
        let schema = json!({ "type": "object" });
        let definition = json!({ "schema_version": "1.0", "name": "bomb", "inputs": { "schema": schema }, "plan": [step] });
        daemon.post(&format!("{ROOT}/render"), &json!({ "definition": definition, "inputs": inputs }))
    };
    assert_eq!(
        render("{{ inputs.list | length }}").json(200)["steps"][0]["config"]["message_template"],
        "10000"
    );
    let before = resident(&daemon);
    let doubled = |steps: &str| format!("{{% set a = 'xxxxxxxxxxxxxxxx' %}}{steps}{{{{ a | length }}}}");
    let bombs = [
        doubled(&"{% set a = a ~ a %}".repeat(30)),
        doubled(&"{% set a = a + a %}".repeat(30)),
        "{{ ('x' * 100000000) | length }}".to_owned(),
        "{{ ('x' * 100000000 * 100) | length }}".to_owned(),
        "{{ inputs.text | replace('x', inputs.text) | length }}".to_owned(),
        "{{ inputs.list | join(inputs.text) | length }}".to_owned(),
        doubled(&"{% set a = [a, a] | tojson %}".repeat(25)),
        "{% for a in inputs.list %}{{ inputs.text }}{% endfor %}".to_owned(),
        "{% for a in inputs.list %}{% for b in inputs.list %}{% for c in inputs.list %}{% endfor %}{% endfor %}{% endfor %}"
            .to_owned(),
        format!("{{{{ run{} }}}}", ".a".repeat(4_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(4_000), ")".repeat(4_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(8_000)),
    ];
    for bomb in &bombs {
        let reply = render(bomb);
        let is_refused =
            reply.status == 422 || reply.status == 400 || reply.status == 502 || reply.status == 403;
        let has_failed = reply.status == 200 && reply.json(200)["steps"][0]["state"] == "failed";
        assert!(is_refused || has_failed, "{}: {reply:?}", &bomb[..bomb.len().min(80)]);
    }
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 24 << 20, "the daemon has grown by {grown} bytes");
    assert_eq!(render("{{ inputs.list | length }}").json(200)["steps"][0]["state"], "rendered");
    assert_eq!(daemon.stop(), 0);
}
