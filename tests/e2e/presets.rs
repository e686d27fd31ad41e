//! Presets: after `init`, one action is done, one refused, and about one a person is asked.

use serde_json::{Value, json};

use crate::harness::{Place, Ran, Running};

/// A state with this preset, whose rules hold at every hour and on slow machines.
fn of(preset: &str) -> Place {
    let place = Place::new();
    let made = place.effectd(&["init", "--preset", preset], None);
    assert_eq!(made.code(), 0, "{}", made.stderr());
    assert_eq!(made.stderr().contains("nobody is named as approver"), preset == "locked");
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace(
        "night_from = \"22:00\"\nnight_until = \"06:00\"",
        "night_from = \"00:00\"\nnight_until = \"00:00\"",
    );
    let times = "\n[timeouts]\nlow_ms = 60000\nmedium_ms = 59000\nhigh_ms = 59000\n";
    std::fs::write(file, text + times).unwrap();
    std::fs::create_dir(place.path("workspace")).unwrap();
    std::fs::write(place.note("old.txt"), "old\n").unwrap();
    place
}

fn act(place: &Place, space: &str, action: &str, tool: &str, params: Value) -> Ran {
    let mut request = json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": space, "tool_id": tool,
        "params": params,
    });
    request["params"]["space_id"] = space.into();
    place.run(&request)
}

const SCRIPT: &str = "#!/bin/sh\necho hello\n";

fn write(name: &str, text: &str) -> Value {
    json!({ "path": format!("workspace/{name}"), "text": text })
}

/// The pending approval of an action that was held.
fn held(ran: &Ran) -> String {
    ran.json(4)["held"]["approval_id"].as_str().unwrap().to_owned()
}

#[test]
fn coding_writes_scripts_and_asks_before_it_deletes_or_runs() {
    let place = of("coding");
    let run = |action: &str, tool: &str, params| act(&place, "shared:code", action, tool, params);
    run("c-1", "files.write_text", write("build.sh", SCRIPT)).json(0);
    assert_eq!(std::fs::read_to_string(place.note("build.sh")).unwrap(), SCRIPT);
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0IGtleQ\n-----END OPENSSH PRIVATE KEY-----\n";
    run("c-2", "files.write_text", write("key", key)).json(5);
    let config = "[user]\n\temail = alice@example.org\n";
    run("c-6", "files.write_text", write("config", config)).json(0);
    assert_eq!(std::fs::read_to_string(place.note("config")).unwrap(), config, "byte for byte");
    // Whether git runs depends on the machine; that no person is asked does not.
    let status = run("c-7", "command.run", json!({ "argv": ["git", "status", "--short"] }));
    let decision = &serde_json::from_str::<Value>(&status.stdout()).unwrap()["decision"];
    assert_eq!((&decision["verdict"], &decision["tier"]), (&json!("permit"), &json!("R1")), "{decision}");
    run("c-3", "notify.local", json!({ "title": "done" })).json(3);
    held(&run("c-4", "command.run", json!({ "argv": ["rm", "old.txt"] })));
    let approval = held(&run("c-5", "files.delete", json!({ "path": "workspace/old.txt" })));
    assert!(place.note("old.txt").exists());
    let approved = place.effectd(&["approvals", "approve", &approval, "--wait", "0"], None);
    assert_eq!(approved.code(), 0, "{}", approved.stderr());
    let waited = place.effectd(&["wait", "c-5"], None);
    assert!(waited.code() == 0 && waited.stdout().starts_with("done: files.delete"), "{}", waited.stdout());
    assert!(!place.note("old.txt").exists());
}

#[test]
fn coding_leaves_git_as_it_is() {
    let place = of("coding");
    let file = place.state().join("policy/policy.toml");
    let commit = "\n[commands.hook]\nargv = [\"touch\", \".git/hooks/new\"]\nwrites = [\".git/hooks\"]\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + commit).unwrap();
    std::fs::create_dir_all(place.note(".git/hooks")).unwrap();
    std::fs::write(place.note(".git/config"), "[core]\n").unwrap();
    let run = |action: &str, tool: &str, params| act(&place, "shared:code", action, tool, params);
    let two = |from: &str, to: &str| json!({ "from_path": format!("workspace/{from}"), "to_path": format!("workspace/{to}") });
    let patch = "--- a/.git/config\n+++ b/.git/config\n@@ -1 +1,2 @@\n [core]\n+\tpager = evil\n";
    for (number, (tool, params)) in [
        ("files.write_text", write(".git/hooks/new", SCRIPT)),
        ("files.write_text", write("deep/in/.GIT/config", SCRIPT)),
        ("files.append_text", write("./.git//config", "x")),
        ("files.apply_patch", json!({ "patch": patch })),
        ("files.copy", two("old.txt", ".git/hooks/new")),
        ("files.move", two("old.txt", ".git/hooks/new")),
        ("files.move", two(".git", "elsewhere")),
        ("files.make_dir", json!({ "path": "workspace/deep/.git" })),
        ("command.run", json!({ "argv": ["touch", ".git/hooks/new"] })),
    ]
    .into_iter()
    .enumerate()
    {
        let receipt = run(&format!("g-{number}"), tool, params).json(1);
        assert_eq!(receipt["error"]["code"], "path_denied", "{receipt}");
        assert!(
            receipt["error"]["message"].as_str().unwrap().contains(".git, which is protected"),
            "{receipt}"
        );
    }
    assert_eq!(std::fs::read_dir(place.note(".git/hooks")).unwrap().count(), 0);
    assert_eq!(std::fs::read_to_string(place.note(".git/config")).unwrap(), "[core]\n");
    assert!(!place.note("deep").exists() && place.note("old.txt").exists());
    // It may be read, and its neighbours may be written.
    run("g-r", "files.read_text", json!({ "path": "workspace/.git/config" })).json(0);
    run("g-w", "files.write_text", write(".gitignore", "target\n")).json(0);
    let asked = json!({
        "action_id": "g-p", "subject_id": "agent://planner@deviceA", "space_id": "shared:code",
        "tool_id": "files.write_text",
        "params": { "path": "workspace/.git/config", "text": "x", "space_id": "shared:code" },
    });
    let told = place.effectd(&["preview", "-", "-o", "json"], Some(&asked.to_string())).stdout();
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["verdict"], "deny", "{told}");
}

#[test]
fn coding_finds_git_in_folders_archives_and_after_commands() {
    let place = of("coding");
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let modes = "modes = { \"command.run touch\" = \"allow\", \"command.run mkdir\" = \"allow\",";
    let with = text.replace("modes = {", modes);
    assert_ne!(with, text, "the preset has no modes");
    let commands = "\n[commands.touch]\nargv = [\"touch\", \"*\"]\nwrites = [\"src\"]\n\
                    [commands.mkdir]\nargv = [\"mkdir\", \"*\"]\nwrites = [\"src\"]\n";
    std::fs::write(&file, with + commands).unwrap();
    for folder in ["src/.git", "pack/deep/.git", "docs"] {
        std::fs::create_dir_all(place.note(folder)).unwrap();
    }
    for config in ["src/.git/config", "pack/deep/.git/config"] {
        std::fs::write(place.note(config), "[core]\n").unwrap();
    }
    let run = |action: &str, tool: &str, params| act(&place, "shared:code", action, tool, params);
    let two = |from: &str, to: &str| json!({ "from_path": format!("workspace/{from}"), "to_path": format!("workspace/{to}") });
    let command = |program: &str, path: &str| json!({ "argv": [program, path] });
    let denied = |ran: Ran, path: &str| {
        let receipt = ran.json(1);
        assert_eq!(receipt["error"]["code"], "path_denied", "{receipt}");
        let message = receipt["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("{path:?}")) && message.contains("protected"), "{message}");
        receipt
    };
    denied(run("f-1", "command.run", command("touch", "src/new")), "workspace/src/.git");
    assert!(!place.note("src/new").exists());
    denied(run("f-2", "files.move", two("pack", "moved")), "workspace/pack/deep/.git");
    assert!(place.note("pack").exists() && !place.note("moved").exists());
    run("f-3", "files.move", two("docs", "manual")).json(0);

    // What only the run makes is found after it, and stays.
    std::fs::remove_dir_all(place.note("src/.git")).unwrap();
    run("f-4", "command.run", command("touch", "src/new")).json(0);
    let made = denied(run("f-5", "command.run", command("mkdir", "src/.git")), "workspace/src/.git");
    assert_eq!(made["effects"]["observed"]["changes"][0]["path"], "workspace/src/.git", "{made}");
    assert!(place.note("src/.git").exists());
    run("f-6", "files.archive", two("pack", "pack.zip")).json(0);
    denied(run("f-7", "files.extract", two("pack.zip", "out")), "workspace/out/deep/.git");
}

#[test]
fn household_writes_notes_and_asks_before_it_deletes() {
    let place = of("household");
    let run = |action: &str, tool: &str, params| act(&place, "shared:household", action, tool, params);
    run("h-1", "files.write_text", write("note.txt", "water the tomatoes\n")).json(0);
    run("h-5", "files.write_text", write("mail.txt", "to alice@example.org\n")).json(0);
    assert_eq!(std::fs::read_to_string(place.note("mail.txt")).unwrap(), "to [redacted:email]\n");
    run("h-2", "files.write_text", write("run.sh", SCRIPT)).json(5);
    run("h-3", "command.run", json!({ "argv": ["rm", "old.txt"] })).json(3);
    held(&run("h-4", "files.delete", json!({ "path": "workspace/old.txt" })));
    assert!(
        place.note("note.txt").exists() && place.note("old.txt").exists() && !place.note("run.sh").exists()
    );
}

#[test]
fn locked_reads_and_asks_before_each_write() {
    let place = of("locked");
    let run = |action: &str, tool: &str, params| act(&place, "shared:household", action, tool, params);
    run("l-1", "files.read_text", json!({ "path": "workspace/old.txt" })).json(0);
    run("l-2", "files.delete", json!({ "path": "workspace/old.txt" })).json(3);
    run("l-3", "notify.local", json!({ "title": "done" })).json(3);
    held(&run("l-4", "files.write_text", write("note.txt", "n")));
    assert!(place.note("old.txt").exists() && !place.note("note.txt").exists());
}

#[test]
fn an_unknown_preset_is_refused_with_the_known_ones() {
    let place = Place::new();
    let refused = place.effectd(&["init", "--preset", "office"], None);
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr().contains("coding, household, locked"), "{}", refused.stderr());
    assert!(!place.state().exists());
}
