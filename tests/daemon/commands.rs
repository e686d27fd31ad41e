//! The command line as the daemon's client.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::approvals::{asking, held};
use crate::harness::{Place, Serving, from_stranger, program, root, until, write_note};
use crate::seeding::{self, Left};

#[test]
fn submit_wait_status_and_cancel_speak_of_one_action() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let request = write_note("s-1", "s.txt", "s").to_string();
    let accepted = place.effectd(&["submit", "-", "-o", "json"], Some(&request)).json(0);
    assert_eq!(accepted["action_id"], "s-1");
    let waited = place.effectd(&["wait", "s-1", "-o", "json"], None).json(0);
    assert_eq!(waited["outcome"], "executed");
    let status = place.effectd(&["status", "s-1", "-o", "json"], None).json(0);
    assert_eq!(status["receipt"], waited["receipt"]);
    let text = place.effectd(&["status", "s-1"], None);
    assert!(text.stdout().starts_with("done: files.write_text in shared:household"), "{}", text.stdout());
    let cancel = place.effectd(&["cancel", "s-1", "-o", "json"], None);
    assert_eq!(cancel.json(1)["code"], "already_finished");
    let refused = place.effectd(&["submit", "--wait", "-"], Some(&from_stranger("s-2").to_string()));
    assert_eq!(refused.code(), 3, "{}{}", refused.stdout(), refused.stderr());
    let unknown = place.effectd(&["wait", "nobody"], None);
    assert_eq!(unknown.code(), 2, "{}", unknown.stderr());
    for spoken in [text.stderr(), waited.to_string()] {
        assert!(!spoken.contains("no daemon answers"), "{spoken}");
    }
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_stream_is_answered_line_by_line() {
    let place = Place::seeded();
    let _daemon = place.serve(&[]);
    let mut lines: Vec<String> = (0..40)
        .map(|number| write_note(&format!("l-{number}"), &format!("l-{number}"), "l").to_string())
        .collect();
    lines.insert(7, "{ this is no request".to_owned());
    lines.insert(9, String::new());
    lines.push(from_stranger("l-x").to_string());
    let ran = place.effectd(&["submit", "--jsonl", "--wait", "-o", "jsonl", "-"], Some(&lines.join("\n")));
    let answers: Vec<Value> = ran.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 42, "{}", ran.stderr());
    assert_eq!(answers.iter().filter(|answer| answer["outcome"] == "executed").count(), 40);
    let malformed = answers.iter().find(|answer| answer["code"] == "malformed").unwrap();
    assert!(malformed["detail"].as_str().unwrap().starts_with("-:8: "), "{malformed}");
    assert_eq!(answers.iter().filter(|answer| answer["code"] == "policy_denied").count(), 1);
    assert!([2, 3].contains(&ran.code()), "{}", ran.code());
    assert!(ran.stderr().contains("0 accepted, 40 done, 2 refused"), "{}", ran.stderr());
    let array = place.effectd(&["submit", "--jsonl", "-o", "json", "-"], Some(&lines[0])).json(0);
    assert_eq!(array[0]["action_id"], "l-0");
    let table = place.effectd(&["submit", "--jsonl", "-"], Some(&lines[0]));
    assert!(table.stdout().starts_with("STATE      OUTCOME"), "{}", table.stdout());
}

#[test]
fn run_goes_through_the_daemon_if_there_is_one() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let request = write_note("r-1", "r.txt", "r").to_string();
    let done = place.effectd(&["run", "-", "-o", "json"], Some(&request)).json(0);
    assert_eq!(done["outcome"], "executed");
    let again = place.effectd(&["run", "-"], Some(&request));
    assert!(again.stdout().starts_with("already done: files.write_text"), "{}", again.stdout());
    let refused = place.effectd(&["run", "-", "-o", "json"], Some(&from_stranger("r-2").to_string()));
    assert_eq!(refused.json(3)["error"]["code"], "policy_denied");
    let conflict = place.effectd(&["run", "-"], Some(&write_note("r-1", "r.txt", "other").to_string()));
    assert_eq!(conflict.code(), 2, "{}", conflict.stderr());
    assert!(conflict.stderr().contains("action_conflict"), "{}", conflict.stderr());
    let view = daemon.get("/v1/actions/r-1").json(200);
    let mut expected = view["receipt"].clone();
    expected["result"] = view["result"].clone();
    assert_eq!(done, expected, "the receipt, with the result beside it");
}

#[test]
fn settings_show_their_origin_and_typos_the_nearest_key() {
    let place = Place::seeded();
    std::fs::write(place.state().join("config.toml"), "[gateway]\nconnections_max = 99\n").unwrap();
    let show = |more: &[&str]| {
        let mut arguments = vec!["config", "show", "--origin", "-o", "json", "--state", ".effectd"];
        arguments.extend(more);
        let ran = place.effectd(&arguments, None);
        let all: Value = ran.json(0);
        all.as_array().unwrap().clone()
    };
    let find = |all: &[Value], key: &str| all.iter().find(|entry| entry["key"] == key).unwrap().clone();
    let all = show(&["--set", "gateway.backlog_max=5"]);
    let file = find(&all, "gateway.connections_max");
    assert_eq!(file["value"], "99");
    assert!(file["origin"].as_str().unwrap().starts_with("file "), "{file}");
    assert_eq!(find(&all, "gateway.backlog_max")["origin"], "flag");
    assert_eq!(find(&all, "gateway.socket_mode")["origin"], "default");
    let unknown =
        place.effectd(&["config", "show", "--state", ".effectd", "--set", "gateway.sockett=x"], None);
    assert_eq!(unknown.code(), 2);
    assert!(unknown.stderr().contains("did you mean `gateway.socket`?"), "{}", unknown.stderr());
    let misfit = place.effectd(&["config", "show", "--set", "gateway.connections_max=0"], None);
    assert_eq!(misfit.code(), 2);
    assert!(
        misfit
            .stderr()
            .contains("`gateway.connections_max` is \"0\"; it must be a number from 1 to 1000000000"),
        "{}",
        misfit.stderr()
    );
    let variable = place
        .command(&["config", "show", "--state", ".effectd"])
        .env("EFFECTD_GATEWAY_SOCKETT_MODE", "0600")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&variable.stderr);
    assert_eq!(variable.status.code(), Some(2), "{told}");
    assert!(told.contains("did you mean EFFECTD_GATEWAY_SOCKET_MODE?"), "{told}");
    std::fs::write(place.state().join("config.toml"), "[gateway]\nconections_max = 99\n").unwrap();
    let served = place.effectd(&["serve", "--state", ".effectd"], None);
    assert_eq!(served.code(), 2);
    assert!(served.stderr().contains("did you mean `gateway.connections_max`?"), "{}", served.stderr());
}

#[test]
fn shells_and_manuals_know_every_command() {
    let place = Place::seeded();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.effectd(&["completions", shell], None);
        assert_eq!(script.code(), 0);
        assert!(script.stdout().contains("_EFFECTD_COMPLETE"), "{shell}: {}", script.stdout());
    }
    for command in ["submit", "serve", "cancel"] {
        assert_eq!(completed(&place, &[&command[..3]]), [command]);
    }
    assert!(place.effectd(&["man"], None).stdout().contains(".SH NAME"));
    assert_eq!(place.effectd(&["man", "--into", "man1"], None).code(), 0);
    assert!(place.path("man1/effectd-submit.1").is_file());
}

/// What a shell completes the last word of a line to.
fn completed(place: &Place, words: &[&str]) -> Vec<String> {
    let ran = place.effectd_on(&[&["--", "effectd"], words].concat(), None, |command| {
        command.env("_EFFECTD_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    });
    assert_eq!((ran.code(), ran.stderr().as_str()), (0, ""), "{words:?}");
    ran.stdout().lines().map(str::to_owned).collect()
}

#[test]
fn shells_complete_tools_approvals_and_causes() {
    let place = asking();
    let left = Left {
        request: write_note("left", "left.txt", "x"),
        code: "tool_busy".to_owned(),
        detail: "the printer is on fire".to_owned(),
    };
    seeding::leave(&place, [left].into_iter());
    // The tools of the program are known without a daemon; nothing else is, and nobody complains.
    assert_eq!(completed(&place, &["tools", "show", "files.apply"]), ["files.apply_patch"]);
    // Also for a user who may not read the settings, or where they have a fault.
    std::fs::create_dir(place.path("faulty")).unwrap();
    std::fs::write(place.path("faulty/config.toml"), "no settings").unwrap();
    let faulty = ["--state", "faulty", "tools", "show", "files.apply"];
    assert_eq!(completed(&place, &faulty), ["files.apply_patch"]);
    assert!(completed(&place, &["approvals", "approve", ""]).iter().all(|word| word.starts_with('-')));
    let daemon = place.serve(&[]);
    let approval = held(&daemon, "held", "held.txt", "x");
    let approval = approval.as_str();
    let cause = daemon.get("/v1/dlq/causes").json(200)[0]["cause"].as_str().unwrap().to_owned();
    for (words, found) in [
        (&["approvals", "approve", &approval[..4]][..], approval),
        (&["approvals", "deny", ""], approval),
        (&["approvals", "show", ""], approval),
        (&["dlq", "requeue", "--cause", ""], &cause),
        (&["--state", ".effectd", "dlq", "drop", "--cause", ""], &cause),
        (&["dlq", "list", "--tool", "files.wri"], "files.write_text"),
    ] {
        // A busy daemon may miss the deadline of a completion.
        until(&format!("{words:?}"), || completed(&place, words).iter().any(|word| word == found));
    }
}

/// All commands, as the help itself lists them.
pub fn commands(place: &Place, above: &[String]) -> Vec<Vec<String>> {
    let mut arguments: Vec<&str> = above.iter().map(String::as_str).collect();
    arguments.push("--help");
    let help = place.effectd(&arguments, None);
    assert_eq!(help.code(), 0, "{above:?}");
    let mut all = vec![above.to_vec()];
    let help = help.stdout();
    // The program lists its commands in groups.
    let listed = match above {
        [] => help.split_once("\n\nAct:\n").and_then(|(_, rest)| rest.split_once("\nGlobal options:\n")),
        _ => help.split_once("\nCommands:\n").map(|(_, rest)| (rest.split("\n\n").next().unwrap(), "")),
    };
    let listed = listed.map_or("", |(listed, _)| listed);
    for line in listed.lines().filter(|line| line.starts_with("  ")) {
        // Deeper lines go on with the description of the command before.
        let Some(name) = line[2..].split(' ').next().filter(|name| !name.is_empty()) else {
            continue;
        };
        let mut command = above.to_vec();
        command.push(name.to_owned());
        all.extend(commands(place, &command));
    }
    all
}

#[test]
fn every_example_of_the_help_works() {
    let place = Place::seeded();
    std::fs::create_dir(place.path("bin")).unwrap();
    for folder in ["examples", "examples/batches", "examples/plans"] {
        copy(&root().join(folder), &place.path(folder));
    }
    std::os::unix::fs::symlink(program(), place.path("bin/effectd")).unwrap();
    std::os::unix::fs::symlink("/bin/true", place.path("bin/notify-send")).unwrap();
    let planner = format!("#!/bin/sh\ncat <<'E'\n{}\nE\n", write_note("planned", "planned.txt", "p"));
    std::fs::write(place.path("bin/planner"), planner).unwrap();
    std::fs::set_permissions(place.path("bin/planner"), std::fs::Permissions::from_mode(0o755)).unwrap();
    copy(&place.state().join("policy"), &place.path("policy.new"));
    std::fs::write(place.path("token.txt"), "a-token\n").unwrap();
    let done = place.effectd(&["run", "examples/write_note.json", "-o", "json"], None).json(0);
    let receipt = done["receipt_id"].as_str().unwrap();
    let mut seen: Vec<String> = Vec::new();
    for command in commands(&place, &[]) {
        let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        arguments.push("--help");
        let help = place.effectd(&arguments, None).stdout();
        let examples = help.split_once("\nExample").map_or("", |(_, rest)| rest);
        for line in examples.lines().skip(1).take_while(|line| !line.is_empty()) {
            let line = line.trim();
            let begins = ["effectd ", "planner "].iter().any(|program| line.starts_with(program));
            match seen.last_mut().filter(|_| !begins) {
                // Long ones are wrapped.
                Some(example) => *example = format!("{example} {line}"),
                None => seen.push(line.to_owned()),
            }
        }
    }
    assert!(seen.len() >= 25, "only {} examples were found", seen.len());
    // Before the examples that revoke consents.
    seen.sort_by_key(|example| !example.starts_with("effectd tools try"));
    for example in seen {
        // The one id that cannot be known beforehand.
        run_example(&place, &example.replace("0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12", receipt));
    }
}

pub fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// An example may succeed or be refused, but is never a usage error.
fn run_example(place: &Place, example: &str) {
    // Commands that wait or follow need a daemon; everything else works without one.
    let tells = example.contains("--exec");
    let watches = tells || example.starts_with("effectd check") || example.starts_with("effectd top");
    let listens: &[&str] =
        if example.starts_with("effectd console") { &["--listen", "127.0.0.1:0"] } else { &[] };
    let needs_one = watches || !listens.is_empty() || example.contains("--patience");
    let _daemon = needs_one.then(|| place.serve(listens));
    // Full-screen commands are tested in a terminal, elsewhere.
    // A daemon that stays would keep the state from the others.
    if example.starts_with("effectd approvals watch") || example.starts_with("effectd mcp try") {
        return;
    }
    let line = if tells || example.starts_with("effectd serve") {
        format!("timeout -s TERM 3 {example}; code=$?; [ $code -eq 124 ] && exit 0; exit $code")
    } else {
        example.to_owned()
    };
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]).current_dir(place.path("")).env_clear();
    // Only there: other commands would use the state that `mcp install` makes, which is not in the project.
    let elsewhere = tempfile::tempdir().unwrap();
    if example.starts_with("effectd mcp") {
        shell.env("XDG_STATE_HOME", elsewhere.path());
    }
    let ran = shell
        .env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()))
        .env("XDG_CONFIG_HOME", place.path("config"))
        .output()
        .unwrap();
    let code = ran.status.code().unwrap_or(-1);
    let told = String::from_utf8_lossy(&ran.stderr);
    // `cancel` of an ended action, `init` over a policy and unknown ids are refused.
    let may_say_no = [
        "effectd cancel",
        "effectd init",
        "effectd dlq show",
        "effectd dlq requeue 0",
        "effectd dlq drop 0",
        "effectd dlq settle 0",
        "effectd quarantine",
        "effectd check",
        "effectd artifacts get",
        "effectd artifacts release",
        "effectd notifications show",
        "effectd approvals show",
        "effectd approvals approve",
        "effectd approvals deny",
        "effectd grants create --from",
        "effectd grants revoke",
        "effectd plan show",
        "effectd batch show",
        "effectd automations save note.json --id",
        "effectd automations show",
        "effectd automations pause",
        "effectd automations activate",
        "effectd automations archive",
        "effectd automations delete",
        "effectd automations export",
        // Its interpreter may not be there.
        "effectd plugins check",
        "effectd plugins add",
        "effectd plugins remove",
        "effectd sessions show",
        "effectd sessions end",
        "effectd sessions delete",
        // Their secrets and connections are not there.
        "effectd connections add --org home --source http.",
        "effectd connections add --org home --name Shop",
        "effectd connectors add",
        "effectd connectors enable",
        "effectd connectors disable",
        "effectd connectors remove",
        "effectd connectors harvest",
        "effectd connectors review",
        "effectd connectors overlay",
        "effectd webhooks add",
        "effectd webhooks enable",
        "effectd webhooks disable",
        "effectd webhooks delete",
        "effectd slack connect",
        "effectd connections enable",
        "effectd connections disable",
        "effectd connections delete",
        "effectd secrets delete",
        "effectd tokens create --kind sandbox",
        "effectd tokens revoke",
        "effectd tokens rotate",
    ]
    .iter()
    .any(|command| example.starts_with(command));
    // Only agents invoke actions, and their sessions are unknown here.
    let is_of_agents = example.starts_with("effectd actions") && [1, 3].contains(&code);
    // They are about a connection that nobody has.
    let of_connections =
        ["effectd connections test", "effectd connectors", "effectd webhooks", "effectd slack connect"];
    let is_of_nobody = of_connections.iter().any(|command| example.starts_with(command)) && code == 2;
    assert!(
        code == 0 || (code == 1 && may_say_no) || is_of_agents || is_of_nobody,
        "{example}: {code}\n{told}"
    );
}
