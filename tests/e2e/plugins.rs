//! Plugins: packages of scripts, by a real runtime, which runs them in the sandbox.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use effectd::contracts::{
    ActionRequest, Code, Failure, Mode, Operation, Origin, Outcome, Plan, PlanResult, PlanStatus, Principal,
    Receipt,
};
use effectd::internal::{Config, Runtime};
use effectd_actors::operator::operations::Terms;
use effectd_actors::operator::service::perform;
use effectd_actors::services::plugins::Known;
use effectd_actors::{Answer, Incoming};
use effectd_bus::StoreError;
use effectd_policy::{Change, SetMode};
use serde_json::{Value, json};

use crate::harness::{Place, Running, program, root, until};

/// A space, a policy that lets the planner call plugins, and a folder for packages.
pub(crate) struct World {
    pub(crate) place: Place,
}

/// What the packages of these tests are called.
const NAMES: [&str; 3] = ["tidy", "other", "bare"];

impl World {
    /// With these lines in the policy.
    pub(crate) fn with(more: &str) -> Self {
        let place = Place::seeded();
        let file = place.state().join("policy/policy.toml");
        let mut text = std::fs::read_to_string(&file).unwrap();
        let tools: String = NAMES.iter().map(|name| format!("\"plugin.{name}\", ")).collect();
        for (from, to) in [
            ("\"diagnose\"]", "\"diagnose\", \"plugin.run\"]".to_owned()),
            ("tools = [\n", format!("tools = [\n    {tools}\n")),
        ] {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, &to);
        }
        std::fs::write(&file, format!("{text}\n{more}\n")).unwrap();
        std::fs::create_dir_all(place.path("workspace")).unwrap();
        std::fs::create_dir_all(place.path("tools/actions")).unwrap();
        Self { place }
    }

    pub(crate) fn new() -> Self {
        Self::with("")
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = self.place.config();
        config.pipeline.plugins.root = self.place.path("tools");
        config.pipeline.plugins.allow_code_execution = true;
        config
    }

    pub(crate) async fn runtime(&self) -> Runtime {
        Runtime::start(self.config()).await.unwrap()
    }

    pub(crate) fn file(&self, package: &str, name: &str) -> PathBuf {
        self.place.path("tools/actions").join(package).join(name)
    }

    /// Writes a package.
    pub(crate) fn write(&self, manifest: &Value, scripts: &[(&str, &str)]) {
        let name = manifest["name"].as_str().unwrap();
        std::fs::create_dir_all(self.file(name, "")).unwrap();
        std::fs::write(self.file(name, "action.json"), manifest.to_string()).unwrap();
        for (file, text) in scripts {
            std::fs::write(self.file(name, file), text).unwrap();
        }
    }

    /// A package of one script that reads, as a person would add it.
    async fn reading(script: &str) -> (Self, Runtime) {
        let world = Self::new();
        world.write(&reads("tidy"), &[("execute.py", script)]);
        let runtime = world.runtime().await;
        add(&runtime, "tidy").await.unwrap();
        (world, runtime)
    }
}

/// The description of a package that only reads.
fn reads(name: &str) -> Value {
    json!({
        "name": name, "riskTier": "R1", "inputSchema": { "type": "object" }, "outputSchema": { "type": "object" },
        "permissions": { "commands": [], "filesystem": "workspace" },
        "verification": { "required": false, "commands": [] }, "rollback": { "required": false },
        "scripts": { "execute": "execute.py" },
    })
}

/// An operator adds a package as it is now.
pub(crate) async fn add(runtime: &Runtime, name: &str) -> Result<(), StoreError> {
    let services = runtime.pipeline().services();
    let Known { now, .. } = services.plugin(name)?;
    let digest = now.map_err(|why| StoreError::Invalid(why.to_string()))?.pinned.digest();
    let operation = Operation::AddPlugin { name: name.to_owned(), digest };
    let by = Principal::new("user://operator").unwrap();
    perform(services.clone(), operation, Terms::default(), by).await.map(drop)
}

pub(crate) fn call(action: &str, tool: &str, input: Value) -> ActionRequest {
    serde_json::from_value(json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": tool, "params": input, "policy_ctx": { "actor": "alice", "device": "phone1" },
    }))
    .unwrap()
}

/// The receipt of a call, and its result or failure.
async fn called(runtime: &Runtime, request: ActionRequest) -> (Receipt, Result<Value, Failure>) {
    match runtime.exec(request).await {
        Answer::Done(done) => {
            let result = match &done.receipt.error {
                Some(failure) => Err(failure.clone()),
                None => Ok(done.result.unwrap().as_deref().cloned().unwrap_or_default()),
            };
            ((*done.receipt).clone(), result)
        }
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

async fn code(runtime: &Runtime, action: &str) -> Code {
    called(runtime, call(action, "plugin.tidy", json!({}))).await.1.unwrap_err().code
}

/// Tries what the sandbox forbids, and says what it could do.
const ATTACK: &str = r#"
import json, os, sys
given = json.load(sys.stdin)
def tried(what, attempt):
    try:
        attempt()
    except OSError:
        return
    done.append(what)
done = []
tried("write", lambda: open("made.txt", "w"))
tried("remove", lambda: os.remove("kept.txt"))
tried("mode", lambda: os.chmod("kept.txt", 0o777))
tried("outside", lambda: open("/etc/passwd"))
tried("home", lambda: os.listdir("/root"))
tried("package", lambda: os.listdir(given["input"]["package"]))
tried("kill", lambda: os.kill(os.getppid(), 9) if os.getppid() > 1 else (_ for _ in ()).throw(OSError()))
environment = sorted(name for name in os.environ if name != "LC_CTYPE")
json.dump({"done": done, "env": environment, "kept": open("kept.txt").read(), "pid": os.getpid()}, sys.stdout)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_script_reads_the_space_and_can_do_nothing_else() {
    let (world, runtime) = World::reading(ATTACK).await;
    std::fs::write(world.place.note("kept.txt"), "kept").unwrap();
    // Beneath its own id and by its name.
    for (number, tool) in ["plugin.tidy", "tidy"].into_iter().enumerate() {
        let input = json!({ "package": world.file("tidy", "") });
        let (receipt, result) = called(&runtime, call(&format!("a-{number}"), tool, input)).await;
        let result = result.unwrap();
        assert_eq!((receipt.outcome, receipt.tool_id.as_str()), (Outcome::Executed, "plugin.tidy"));
        assert_eq!(result["done"], json!([]), "{result}");
        assert_eq!(result["env"], json!(["HOME", "LANG", "PATH", "TMPDIR"]), "{result}");
        assert_eq!(result["kept"], "kept");
        assert_ne!(result["pid"], std::process::id());
        let isolation = receipt.isolation.unwrap();
        assert_eq!(isolation.profile, "exec");
    }
    assert_eq!(std::fs::read_dir(world.place.path("workspace")).unwrap().count(), 1);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_tries_the_network_is_off() {
    let dials = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError:\n    print('{}')";
    let (_world, runtime) = World::reading(dials).await;
    let (receipt, failure) = called(&runtime, call("a", "tidy", json!({}))).await;
    assert_eq!(failure.unwrap_err().code, Code::EffectsUndeclared);
    let denied = receipt.attempts.iter().flat_map(|attempt| &attempt.denials);
    assert!(denied.into_iter().any(|denial| denial.code == Code::NetworkDenied), "{:?}", receipt.attempts);
    assert_eq!(code(&runtime, "b").await, Code::ToolDisabled);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_without_files_sees_none() {
    let world = World::new();
    let mut bare = reads("tidy");
    bare["permissions"]["filesystem"] = "none".into();
    let script = "import json, os, sys\njson.dump({'seen': os.listdir('.')}, sys.stdout)";
    world.write(&bare, &[("execute.py", script)]);
    std::fs::write(world.place.note("kept.txt"), "kept").unwrap();
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    let result = called(&runtime, call("a", "tidy", json!({}))).await.1.unwrap();
    assert_eq!(result, json!({ "seen": [] }));
    assert!(runtime.stop().await);
}

const ANSWERS: &str = "import sys\nprint('{\"is\": \"it\"}')";

#[tokio::test(flavor = "multi_thread")]
async fn no_code_of_a_plugin_runs_by_default() {
    let world = World::new();
    world.write(&reads("tidy"), &[("execute.py", ANSWERS)]);
    let mut config = world.config();
    config.pipeline.plugins.allow_code_execution = false;
    let runtime = Runtime::start(config).await.unwrap();
    add(&runtime, "tidy").await.unwrap();
    let registry = runtime.pipeline().services().registry();
    assert!(registry.get(&"plugin.tidy".parse().unwrap()).is_some(), "it is listed");
    let (receipt, _) = called(&runtime, call("a", "tidy", json!({}))).await;
    let failure = receipt.error.unwrap();
    assert_eq!((receipt.outcome, failure.code), (Outcome::DeniedPolicy, Code::PluginCodeDisabled));
    assert!(failure.change.unwrap().contains("plugins.allow_code_execution"));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_an_operator_has_added_runs() {
    let world = World::new();
    let (action, python) = (reads("tidy"), ANSWERS);
    world.write(&action, &[("execute.py", python)]);
    let runtime = world.runtime().await;
    assert_eq!(code(&runtime, "before").await, Code::UnknownTool);
    add(&runtime, "tidy").await.unwrap();
    let result = called(&runtime, call("a", "tidy", json!({}))).await.1;
    assert_eq!(result, Ok(json!({ "is": "it" })));
    // Any change of any file, one that was not there, and one that is gone.
    let mut more = action.clone();
    more["riskTier"] = "R0".into();
    let steps: [(&str, &str, Option<String>); 4] = [
        ("b", "execute.py", Some(format!("{python}\n"))),
        ("c", "action.json", Some(more.to_string())),
        ("d", "verify.js", Some(String::new())),
        ("e", "execute.py", None),
    ];
    for (id, file, text) in steps {
        let path = world.file("tidy", file);
        let before = std::fs::read(&path).ok();
        match text {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        assert_eq!(code(&runtime, id).await, Code::ToolDrifted, "{file}");
        match before {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    assert!(called(&runtime, call("f", "tidy", json!({}))).await.1.is_ok(), "it is as it was");
    // What somebody looked at is what is added.
    let services = runtime.pipeline().services().clone();
    let shown = services.plugin("tidy").unwrap().now.unwrap().pinned.digest();
    std::fs::write(world.file("tidy", "execute.py"), "raise SystemExit(1)").unwrap();
    let operation = Operation::AddPlugin { name: "tidy".to_owned(), digest: shown };
    let by = Principal::new("user://operator").unwrap();
    let refused = perform(services, operation, Terms::default(), by).await;
    assert!(matches!(refused, Err(StoreError::StateConflict(_))), "{refused:?}");
    add(&runtime, "tidy").await.unwrap();
    assert_eq!(code(&runtime, "g").await, Code::ToolFailed, "the new one runs");
    assert!(runtime.stop().await);
    // The next start knows what was added.
    let runtime = world.runtime().await;
    assert_eq!(code(&runtime, "h").await, Code::ToolFailed);
    let services = runtime.pipeline().services().clone();
    let by = Principal::new("user://operator").unwrap();
    let operation = Operation::RemovePlugin { name: "tidy".to_owned() };
    perform(services, operation, Terms::default(), by).await.unwrap();
    assert_eq!(code(&runtime, "i").await, Code::UnknownTool);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_that_are_not_what_they_say_are_refused() {
    let world = World::with("[commands.check]\nargv = [\"true\", \"*\"]");
    let runtime = world.runtime().await;
    let good = [("execute.py", ANSWERS)];
    let named = |name: &str| {
        let mut manifest = reads("other");
        manifest["name"] = name.into();
        manifest
    };
    let mut writes = reads("other");
    for (pointer, value) in [("/verification/required", json!(true)), ("/rollback/required", json!(true))] {
        *writes.pointer_mut(pointer).unwrap() = value;
    }
    let commands = |commands: Value| {
        let mut manifest = reads("other");
        manifest["permissions"]["commands"] = commands;
        manifest
    };
    let big = "#".repeat(300_000);
    let bad_schema = {
        let mut manifest = reads("other");
        manifest["inputSchema"] = json!({ "type": "object", "properties": { "x": { "typ": "string" } } });
        manifest
    };
    /// Folder, description, scripts, and why they are refused.
    type Refusal<'a> = (&'a str, Value, &'a [(&'a str, &'a str)], &'a str);
    let refusals: [Refusal<'_>; 11] = [
        ("files.write_text", named("files.write_text"), &good, "is no name of a package"),
        ("diagnose_error", named("diagnose_error"), &good, "belongs to a tool of core"),
        ("other", named("tidy"), &good, "its folder is another"),
        ("other", reads("other"), &[], "\"execute.py\": there is none"),
        ("other", writes, &good, "\"verify.js\": there is none"),
        (
            "other",
            commands(json!(["true a", "git push"])),
            &good,
            "names no command \"git push\" that only reads",
        ),
        ("other", commands(json!(["true a; rm -rf x"])), &good, "is no command"),
        ("other", reads("other"), &[("execute.py", &big)], "more than 262144 bytes"),
        ("other", reads("other"), &[("execute.py", "#!/tmp/own\n")], "names no program of the system"),
        ("other", bad_schema, &good, "that can be used"),
        ("other", json!({ "name": "other" }), &good, "action.json lacks riskTier"),
    ];
    for (folder, manifest, scripts, why) in refusals {
        let _gone = std::fs::remove_dir_all(world.file("other", ""));
        std::fs::create_dir_all(world.file(folder, "")).unwrap();
        std::fs::write(world.file(folder, "action.json"), manifest.to_string()).unwrap();
        for (file, text) in scripts {
            std::fs::write(world.file(folder, file), text).unwrap();
        }
        let error = add(&runtime, folder).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    world.write(&commands(json!(["true a"])), &good);
    add(&runtime, "other").await.unwrap();
    // The core's tool stays what it is.
    let registry = runtime.pipeline().services().registry();
    let core = registry.get(&"diagnose_error".parse().unwrap()).unwrap();
    assert_eq!(core.spec().tool_id.as_str(), "core.diagnose_error");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_link_leads_out_of_a_package() {
    let world = World::new();
    let elsewhere = world.place.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("execute.py"), ANSWERS).unwrap();
    world.write(&reads("tidy"), &[]);
    symlink(elsewhere.join("execute.py"), world.file("tidy", "execute.py")).unwrap();
    std::fs::write(elsewhere.join("action.json"), reads("other").to_string()).unwrap();
    symlink(&elsewhere, world.place.path("tools/actions/other")).unwrap();
    let runtime = world.runtime().await;
    for name in ["tidy", "other"] {
        let error = add(&runtime, name).await.unwrap_err().to_string();
        assert!(error.contains("link"), "{error}");
    }
    // One that takes the place of a file later: what it leads to is the same, and yet nothing runs.
    std::fs::remove_file(world.file("tidy", "execute.py")).unwrap();
    std::fs::write(world.file("tidy", "execute.py"), ANSWERS).unwrap();
    add(&runtime, "tidy").await.unwrap();
    assert!(called(&runtime, call("a", "tidy", json!({}))).await.1.is_ok());
    std::fs::remove_file(world.file("tidy", "execute.py")).unwrap();
    symlink(elsewhere.join("execute.py"), world.file("tidy", "execute.py")).unwrap();
    assert_eq!(code(&runtime, "b").await, Code::ToolDrifted);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interpreter_that_is_not_there_is_told() {
    let world = World::new();
    world.write(&reads("tidy"), &[("execute.py", "#!/usr/bin/env no-such-interpreter\n")]);
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    let (receipt, failure) = called(&runtime, call("a", "tidy", json!({}))).await;
    let failure = failure.unwrap_err();
    assert_eq!((receipt.outcome, failure.code), (Outcome::Failed, Code::InterpreterMissing));
    assert!(failure.message.contains("no-such-interpreter"), "{failure}");
    // Any program of the system may be one.
    world.write(&reads("tidy"), &[("execute.py", "#!/bin/sh -e\necho '{\"is\": \"sh\"}'")]);
    add(&runtime, "tidy").await.unwrap();
    assert_eq!(called(&runtime, call("b", "tidy", json!({}))).await.1, Ok(json!({ "is": "sh" })));
    assert!(runtime.stop().await);
}

/// Leaves a process behind that holds on to all that the script had, and answers.
const LEAVES: &str = r#"
import json, os, sys, time
if os.fork() == 0:
    os.setsid()
    for _ in range(600):
        time.sleep(0.1)
    os._exit(0)
json.dump({"is": "answered"}, sys.stdout)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_script_leaves_running_ends_with_its_answer() {
    let (_world, runtime) = World::reading(LEAVES).await;
    let (receipt, result) = called(&runtime, call("a", "tidy", json!({}))).await;
    assert_eq!(result, Ok(json!({ "is": "answered" })));
    let took: u64 = receipt.attempts.iter().map(|attempt| attempt.exec_ms.micros()).sum();
    assert!(took < 20_000_000, "nobody waited for it: {took} µs");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_without_an_end_or_of_another_kind_fails() {
    for (number, script) in [
        "import sys\nwhile True:\n    sys.stdout.write('x' * 65536)",
        "print('{\"a\": ' + '\"' + 'x' * 2000000 + '\"}')",
        "print('[1]')",
        "print('not json')",
        "print('{\"a\": 1, \"a\": 2}')",
        "pass",
        "import os\nos.remove('/tmp/.effectd/.stdout')",
        "import os\nos.kill(os.getpid(), 9)",
    ]
    .into_iter()
    .enumerate()
    {
        let (_world, runtime) = World::reading(script).await;
        let failure = called(&runtime, call(&format!("a-{number}"), "tidy", json!({}))).await.1.unwrap_err();
        assert_eq!(failure.code, Code::ToolFailed, "{script}: {failure}");
        assert!(runtime.stop().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_was_not_declared_fails() {
    let world = World::new();
    let mut manifest = reads("tidy");
    manifest["outputSchema"] =
        json!({ "type": "object", "properties": { "is": { "type": "integer" } }, "required": ["is"] });
    manifest["inputSchema"] = json!({
        "type": "object", "properties": { "n": { "type": "integer" } }, "additionalProperties": false,
    });
    world.write(&manifest, &[("execute.py", ANSWERS)]);
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    assert_eq!(code(&runtime, "a").await, Code::ResultInvalid);
    let bad = called(&runtime, call("b", "tidy", json!({ "n": "one" }))).await.1.unwrap_err();
    assert_eq!(bad.code, Code::ParamsInvalid);
    // A script cannot be asked what it would do, so a dry run runs none, and has no such output.
    let mut dry = call("c", "tidy", json!({}));
    dry.dry_run = true;
    let (receipt, result) = called(&runtime, dry).await;
    assert_eq!((receipt.outcome, result), (Outcome::DryRun, Ok(json!({ "dry_run": true }))));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_script_says_is_in_no_file_in_clear() {
    const SECRET: &str = "the canary of plugins sings 4711";
    let script = "import json, sys\ngiven = json.load(sys.stdin)\nsecret = given['input']['words']\n\
        if given['input']['fails']:\n    raise SystemExit(secret)\nprint(secret, file=sys.stderr)\n\
        json.dump({'token': secret, 'note': secret}, sys.stdout)";
    let (world, runtime) = World::reading(script).await;
    for fails in [false, true] {
        let input = json!({ "words": SECRET, "fails": fails });
        let (receipt, result) = called(&runtime, call(&format!("a-{fails}"), "tidy", input)).await;
        assert_eq!(result.is_err(), fails);
        assert!(!serde_json::to_string(&receipt).unwrap().contains(SECRET));
    }
    assert!(runtime.stop().await);
    for (path, bytes) in world.place.state_bytes() {
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_r3_or_r4_package_never_runs_by_itself() {
    let world = World::new();
    for (name, tier) in [("tidy", "R3"), ("other", "R4")] {
        let mut manifest = reads(name);
        manifest["riskTier"] = tier.into();
        manifest["permissions"]["filesystem"] = "none".into();
        world.write(&manifest, &[("execute.py", ANSWERS)]);
    }
    let runtime = world.runtime().await;
    for name in ["tidy", "other"] {
        add(&runtime, name).await.unwrap();
        let mode = Some(SetMode::Lasting(Mode::Allow));
        let (org, tool) = ("home".to_owned(), format!("plugin.{name}"));
        runtime.change_policy(Change::SetOrgMode { org, tool, mode }).unwrap();
        let answer = runtime.exec(call(name, &format!("plugin.{name}"), json!({}))).await;
        assert!(matches!(answer, Answer::Held(_)), "{name}: {answer:?}");
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_takes_too_long_is_killed() {
    let world = World::new();
    let mut manifest = reads("tidy");
    manifest["timeoutMs"] = json!(500);
    world.write(&manifest, &[("execute.py", "import time\ntime.sleep(600)")]);
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    assert_eq!(code(&runtime, "a").await, Code::TimedOut);
    assert!(runtime.stop().await);
}

#[test]
fn a_folder_of_plugins_in_a_space_or_the_state_is_refused() {
    let place = Place::seeded();
    for folder in ["workspace/tools", "workspace", "tools"] {
        std::fs::create_dir_all(place.path(folder)).unwrap();
    }
    let at = |folder: PathBuf| {
        let set = format!("plugins.root={}", folder.display());
        place.effectd(&["plugins", "list", "-o", "json", "--set", &set], None)
    };
    assert_eq!(at(place.path("tools")).json(0), json!([]));
    symlink(place.path("workspace/tools"), place.path("link")).unwrap();
    for folder in ["workspace/tools", "workspace", "link", ""] {
        let ran = at(place.path(folder));
        assert_eq!(ran.code(), 69, "{folder}: {}", ran.stderr());
        assert!(ran.stderr().contains("share"), "{folder}: {}", ran.stderr());
    }
    for folder in [place.state(), place.state().join("keys"), PathBuf::from("tools")] {
        let ran = at(folder);
        assert_eq!(ran.code(), 69, "{}", ran.stderr());
        assert!(ran.stderr().contains("plugins.root"), "{}", ran.stderr());
    }
}

#[test]
fn a_new_package_passes_its_check_and_its_test() {
    let place = Place::seeded();
    let new = ["plugins", "new", "sort_lines", "--language", "python", "-o", "json"];
    let folder = place.path(place.effectd(&new, None).json(0)["folder"].as_str().unwrap());
    assert_eq!(folder, place.state().join("plugins/actions/sort_lines"));
    assert_eq!(place.effectd(&new, None).code(), 1, "it is there");
    let mut test = std::process::Command::new("python3");
    let ran = test.arg(folder.join("test.py")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "ok\n", "{}", String::from_utf8_lossy(&ran.stderr));
    let check = place.effectd(&["plugins", "check", "sort_lines", "-o", "json"], None).json(0);
    assert_eq!((&check["fault"], &check["missing"]), (&Value::Null, &json!([])));
    assert_eq!(check["files"].as_object().unwrap().len(), 4, "{check}");
    // In a folder elsewhere, and for the interpreter of the other language.
    let elsewhere = place.path("mine");
    let there = ["--dir", elsewhere.to_str().unwrap()];
    let new = [&["plugins", "new", "sort_lines"][..], &there].concat();
    assert_eq!(place.effectd(&new, None).code(), 0);
    let check =
        place.effectd(&[&["plugins", "check", "sort_lines", "-o", "json"][..], &there].concat(), None);
    assert!(serde_json::from_str::<Value>(&check.stdout()).unwrap()["fault"].is_null(), "{}", check.stdout());
    std::fs::remove_file(elsewhere.join("sort_lines/verify.js")).unwrap();
    let check = place.effectd(&[&["plugins", "check", "sort_lines"][..], &there].concat(), None);
    assert_eq!(check.code(), 1);
    assert!(check.stdout().contains("\"verify.js\": there is none"), "{}", check.stdout());
    // It becomes a tool by an operator's yes, and the list says so.
    let add = place.effectd(&["plugins", "add", "sort_lines", "--yes"], None);
    assert_eq!(add.code(), 0, "{}", add.stderr());
    let listed = place.effectd(&["plugins", "list", "-o", "json"], None).json(0);
    assert_eq!((&listed[0]["state"], &listed[0]["runs"]), (&json!("added"), &json!(false)), "{listed}");
    std::fs::write(folder.join("rollback.py"), "print('{}')").unwrap();
    let listed = place.effectd(&["plugins", "list", "-o", "json"], None).json(0);
    assert_eq!(listed[0]["state"], "changed", "{listed}");
    let states: Vec<&str> =
        listed[0]["files"].as_array().unwrap().iter().filter_map(|file| file["state"].as_str()).collect();
    assert_eq!(states, ["same", "same", "changed", "same"]);
}

/// A package that writes, with a check and a rollback of its own.
fn writes(name: &str) -> Value {
    let mut manifest = reads(name);
    manifest["riskTier"] = "R2".into();
    manifest["timeoutMs"] = 5_000.into();
    manifest["verification"]["required"] = true.into();
    manifest["rollback"]["required"] = true.into();
    manifest["scripts"] =
        json!({ "execute": "execute.py", "verify": "verify.py", "rollback": "rollback.py" });
    manifest
}

/// A plan that lets the package change `a.txt` and what is in `dir`, but for one file of it.
fn plan(id: &str) -> Value {
    json!({
        "actionId": id, "actionType": "tidy", "riskTier": "R2", "input": {}, "rollbackPlan": { "restore": "all" },
        "verification": { "required": true, "commands": [] },
        "scope": { "allowedFiles": ["a.txt"], "allowedDirs": ["dir"], "forbiddenFiles": ["dir/forbidden"] },
        "spaceId": "shared:household", "subjectId": "agent://planner@deviceA",
    })
}

/// The result of a plan; `None` if a person is asked.
async fn planned_or_asked(runtime: &Runtime, plan: &Value) -> Option<PlanResult> {
    let plan = Plan::parse(plan.to_string().as_bytes()).unwrap();
    let (request, contract) = plan.compile(None, None).unwrap();
    let incoming = Incoming {
        request: Arc::new(request),
        principal: Config::embedded(".").unwrap().principal,
        origin: Origin::Plan,
        contract: Some(contract),
        interactive: false,
    };
    match runtime.pipeline().exec(incoming).await {
        Answer::Done(done) => {
            let kept = done.result.unwrap();
            Some(PlanResult::of_receipt(&done.receipt, kept.as_deref()).unwrap())
        }
        Answer::Held(_) => None,
        other @ Answer::Refused(_) => panic!("{other:?}"),
    }
}

async fn planned(runtime: &Runtime, plan: &Value) -> PlanResult {
    planned_or_asked(runtime, plan).await.expect("nobody is asked")
}

/// Every file of the space with its content, and every link.
fn files(place: &Place) -> BTreeMap<String, String> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![place.path("workspace")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(place.path("workspace")).unwrap().display().to_string();
            match std::fs::symlink_metadata(&path).unwrap().file_type() {
                kind if kind.is_dir() => folders.push(path),
                kind if kind.is_file() => drop(files.insert(name, std::fs::read_to_string(&path).unwrap())),
                _ => drop(files.insert(name, "other".to_owned())),
            }
        }
    }
    files
}

const PASSES: &str = "print('{\"checks\": [{\"name\": \"all\", \"ok\": true}]}')";
const FAILS: &str = "print('{\"checks\": [{\"name\": \"all\", \"ok\": false}]}')";
const NOTHING: &str = "print('{}')";
const WRITES: &str = "open('a.txt', 'w').write('new')\nopen('dir/made', 'w').write('made')\nprint('{}')";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_packages_leave_the_space_as_it_was() {
    let world = World::new();
    let place = &world.place;
    std::fs::create_dir_all(place.note("dir")).unwrap();
    for (name, text) in [("a.txt", "old"), ("dir/forbidden", "kept"), ("dir/b", "old"), ("secret", "kept")] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = world.runtime().await;
    let before = files(place);
    let after = |then: &str| format!("{WRITES}\n{then}");
    let package = world.file("tidy", "action.json");
    let edits = after(&format!("open({package:?}, 'w').write('{{}}')"));
    let cases: [(&str, &str, &str, &str); 15] = [
        ("writes outside of its scope", &after("open('secret', 'w').write('x')"), PASSES, NOTHING),
        ("makes a file outside of its scope", &after("open('stray', 'w').write('x')"), PASSES, NOTHING),
        ("makes a file beside a file of its scope", &after("open('a.txt.new', 'w')"), PASSES, NOTHING),
        ("removes what it may not", &after("import os\nos.remove('secret')"), PASSES, NOTHING),
        ("writes a forbidden file", &after("open('dir/forbidden', 'w').write('x')"), PASSES, NOTHING),
        (
            "replaces a forbidden file",
            &after("import os\nos.rename('dir/b', 'dir/forbidden')"),
            PASSES,
            NOTHING,
        ),
        ("edits its description", &edits, PASSES, NOTHING),
        ("fails half-way", &after("raise SystemExit(3)"), PASSES, NOTHING),
        (
            "dies half-way",
            &after("import os, sys\nsys.stdout.flush()\nos.kill(os.getpid(), 9)"),
            PASSES,
            NOTHING,
        ),
        ("writes without an end", &after("while True: print('x' * 65536)"), PASSES, NOTHING),
        ("verifies nothing, with success", WRITES, "raise SystemExit(0)", NOTHING),
        ("has a list of no checks", WRITES, "print('{\"checks\": []}')", NOTHING),
        ("says that it is right, and fails", WRITES, &format!("{PASSES}\nraise SystemExit(1)"), NOTHING),
        ("writes while it verifies", WRITES, &format!("open('a.txt', 'w').write('x')\n{PASSES}"), NOTHING),
        (
            "rolls nothing back, and destroys more",
            WRITES,
            FAILS,
            "import os\nos.remove('dir/b')\nopen('a.txt', 'w')\nprint('{}')",
        ),
    ];
    for (number, (what, execute, verify, rollback)) in cases.into_iter().enumerate() {
        world.write(
            &writes("tidy"),
            &[("execute.py", execute), ("verify.py", verify), ("rollback.py", rollback)],
        );
        let manifest = std::fs::read(&package).unwrap();
        add(&runtime, "tidy").await.unwrap();
        let result = planned(&runtime, &plan(&format!("h-{number}"))).await;
        assert_eq!(result.status, PlanStatus::Reverted, "{what}: {result:?}");
        assert_eq!((result.rollback.attempted, result.rollback.ok), (true, true), "{what}");
        assert_eq!(files(place), before, "{what}");
        assert_eq!(std::fs::read(&package).unwrap(), manifest, "{what}");
    }
    // Nothing is written through a link. effectd does not remove it, and says so.
    let links = after("import os\nos.symlink('../secret', 'dir/l')\nopen('dir/l', 'w').write('x')");
    world.write(&writes("tidy"), &[("execute.py", &links), ("verify.py", PASSES), ("rollback.py", NOTHING)]);
    add(&runtime, "tidy").await.unwrap();
    let result = planned(&runtime, &plan("h-link")).await;
    assert_eq!(result.status, PlanStatus::Failed, "{result:?}");
    assert!(result.error.unwrap().message.contains("workspace/dir/l"), "it is named");
    std::fs::remove_file(place.note("dir/l")).unwrap();
    assert_eq!(files(place), before);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_is_verified_and_repairs_itself_once() {
    let world = World::with("[commands.is-new]\nargv = [\"grep\", \"-q\", \"new\", \"*\"]");
    let place = &world.place;
    std::fs::create_dir_all(place.note("dir")).unwrap();
    std::fs::write(place.note("a.txt"), "old").unwrap();
    // Wrong at first, and right once it is told. What it leaves running writes again, and is gone before that.
    let execute = "import json, os, sys, time\ngiven = json.load(sys.stdin)\n\
        open('a.txt', 'w').write('new' if given['failedChecks'] else 'bad')\n\
        if os.fork() == 0:\n    time.sleep(2)\n    open('a.txt', 'w').write('late')\n    os._exit(0)\n\
        print(json.dumps({'told': [check['name'] for check in given['failedChecks']]}))";
    let verify = "import json, os, sys\nenvironment = sorted(n for n in os.environ if n != 'LC_CTYPE')\n\
        ok = open('a.txt').read() == 'new'\n\
        print(json.dumps({'checks': [{'name': ' '.join(environment), 'ok': ok}]}))";
    let mut manifest = writes("tidy");
    for list in ["/permissions/commands", "/verification/commands"] {
        *manifest.pointer_mut(list).unwrap() = json!(["grep -q new a.txt"]);
    }
    world.write(&manifest, &[("execute.py", execute), ("verify.py", verify), ("rollback.py", NOTHING)]);
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    let result = planned(&runtime, &plan("r-1")).await;
    assert_eq!(
        (result.status, result.repair.attempted, result.repair.ok),
        (PlanStatus::Succeeded, true, true)
    );
    let checks: Vec<(&str, bool)> =
        result.verification.checks.iter().map(|check| (check.name.as_str(), check.ok)).collect();
    assert_eq!(checks, [("HOME LANG PATH TMPDIR", true), ("grep -q new a.txt", true)]);
    assert_eq!(result.output["told"], json!(["HOME LANG PATH TMPDIR", "grep -q new a.txt"]));
    assert_eq!(std::fs::read_to_string(place.note("a.txt")).unwrap(), "new");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_that_writes_needs_evidence_and_a_contract() {
    let world = World::new();
    world.write(&writes("tidy"), &[("execute.py", WRITES), ("verify.py", PASSES), ("rollback.py", NOTHING)]);
    std::fs::write(world.place.note("a.txt"), "old").unwrap();
    std::fs::create_dir_all(world.place.note("dir")).unwrap();
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    let before = files(&world.place);
    let mut without = [plan("n-0"), plan("n-1"), plan("n-2")];
    drop(without[0].as_object_mut().unwrap().remove("scope"));
    without[1]["rollbackPlan"] = Value::Null;
    without[2]["scope"] = json!({ "allowedFiles": ["../a.txt"] });
    // Without evidence nobody is asked in vain: what is missing is said at once.
    for (plan, expected) in without.into_iter().zip([PlanStatus::Rejected; 3]) {
        let status = planned_or_asked(&runtime, &plan).await.map(|result| result.status);
        assert_eq!(status.unwrap_or(PlanStatus::Queued), expected, "{plan}");
        assert_eq!(files(&world.place), before, "{plan}");
    }
    let done = planned(&runtime, &plan("n-3")).await;
    assert_eq!(done.status, PlanStatus::Succeeded, "{done:?}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_that_changes_while_it_runs_is_rolled_back() {
    let world = World::new();
    let place = &world.place;
    std::fs::create_dir_all(place.note("dir")).unwrap();
    std::fs::write(place.note("a.txt"), "old").unwrap();
    let waits = "import os, time\nopen('a.txt', 'w').write('new')\nopen('dir/begun', 'w')\n\
        while not os.path.exists('dir/go'):\n    time.sleep(0.01)\nprint('{}')";
    let mut manifest = writes("tidy");
    manifest["timeoutMs"] = 60_000.into();
    world.write(&manifest, &[("execute.py", waits), ("verify.py", FAILS), ("rollback.py", NOTHING)]);
    let runtime = world.runtime().await;
    add(&runtime, "tidy").await.unwrap();
    let plan = plan("c-1");
    let meanwhile = async {
        let begun = place.note("dir/begun");
        tokio::task::spawn_blocking(move || until("the script runs", || begun.exists())).await.unwrap();
        std::fs::write(world.file("tidy", "verify.py"), PASSES).unwrap();
        std::fs::write(place.note("dir/go"), "").unwrap();
    };
    let (result, ()) = tokio::join!(planned(&runtime, &plan), meanwhile);
    assert_eq!(result.status, PlanStatus::Reverted, "{result:?}");
    assert_eq!(std::fs::read_to_string(place.note("a.txt")).unwrap(), "old");
    assert!(runtime.stop().await);
}

/// `docs/plugins.md`: its commands are run as written, in order.
#[test]
fn every_step_of_the_page_of_plugins_works() {
    let page = std::fs::read_to_string(root().join("docs/plugins.md")).unwrap();
    let blocks: String = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    // The rest after the policy is there, in which tests change the hours.
    let script = blocks.strip_prefix("effectd init\n").unwrap();
    let place = Place::seeded();
    std::fs::create_dir(place.path("bin")).unwrap();
    symlink(program(), place.path("bin/effectd")).unwrap();
    let ran = std::process::Command::new("sh")
        .args(["-e", "-x", "-c", script])
        .current_dir(place.path(""))
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()))
        .env("HOME", place.path(""))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let (told, words) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{words}\n{told}");
    let mut rest = &*told;
    for said in [
        "ok",
        "added",
        "succeeded",
        "sorted",
        "apples\npears\n",
        "tool_drifted",
        "refused: 3",
        "reverted",
        "not done: 1",
        "apples\npears\n",
    ] {
        let (_, after) = rest.split_once(said).unwrap_or_else(|| panic!("{said}: {told}\n{words}"));
        rest = after;
    }
}
