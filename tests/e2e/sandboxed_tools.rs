//! Tools that the demo policy denies, called in the sandbox directly: what they can do there, and what not.

use std::path::Path;
use std::time::Duration;

use effectd::contracts::{CallMode, Code, Failure, RiskLevel, ToolCall, ToolOutput, ToolReply, ToolSpec};
use effectd_sandbox::{
    Call, Ending, Limits, Narrowing, Outward, Sandbox, SandboxConfig, SideChannel, SpaceRoot,
};
use serde_json::{Value, json};

use crate::harness::program;

#[derive(Debug)]
enum Came {
    /// Done, with this many bytes of long output.
    Done(ToolOutput, u64),
    Failed(Failure),
    Killed(Code),
}

impl Came {
    #[track_caller]
    fn done(self) -> ToolOutput {
        match self {
            Came::Done(output, _) => output,
            other @ (Came::Failed(_) | Came::Killed(_)) => panic!("{other:?}"),
        }
    }
}

fn spec(tool: &str) -> ToolSpec {
    let tools = effectd::adapters::all();
    tools.iter().find(|known| known.id() == tool).unwrap().spec()
}

/// Calls tools one after another, each in a new child.
fn calls(root: &Path, work: impl FnOnce(&dyn Fn(&str, Value, u64) -> Came)) {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _inside = threads.enter();
    let sandbox = Sandbox::start(SandboxConfig::new(program())).unwrap();
    work(&|tool, params, timeout_ms| threads.block_on(call(&sandbox, root, tool, params, timeout_ms)));
}

async fn call(sandbox: &Sandbox, root: &Path, tool: &str, mut params: Value, timeout_ms: u64) -> Came {
    let spec = spec(tool);
    params["space_id"] = json!("shared:household");
    let request = ToolCall {
        tool_id: spec.tool_id.clone(),
        mode: CallMode::Run,
        space_id: "shared:household".parse().unwrap(),
        params: params.as_object().unwrap().clone(),
        timeout_ms,
        trace_id: "trace".parse().unwrap(),
        before: None,
        restore: Vec::new(),
        expect: Vec::new(),
        mark: None,
        undoes: None,
        upstream: None,
        failed_checks: Vec::new(),
    };
    let narrowing = match spec.level() {
        RiskLevel::Danger | RiskLevel::Write if tool != "command.run" => {
            Narrowing { writable: Some(vec!["inside".into()]), ..Narrowing::default() }
        }
        RiskLevel::Read | RiskLevel::Write | RiskLevel::Danger => Narrowing::default(),
    };
    // Long outputs are taken, and only counted here.
    let (to, mut pieces) = tokio::sync::mpsc::channel(4);
    let beside = SideChannel { inward: None, outward: Some(Outward { to, bytes_max: 64 << 20 }) };
    let taking = tokio::spawn(async move {
        let mut bytes = 0;
        while let Some(piece) = pieces.recv().await {
            bytes += piece.bytes.len() as u64;
        }
        bytes
    });
    let call = Call {
        tool_id: spec.tool_id.clone(),
        profile: spec.effective_profile(),
        high_isolation: false,
        space_root: SpaceRoot::open(root).unwrap(),
        request: serde_json::to_vec(&request).unwrap(),
        limits: Limits::default(),
        timeout: Duration::from_millis(timeout_ms),
        trace_id: "trace".parse().unwrap(),
        narrowing,
        view: None,
    };
    let answer = sandbox.ask_with(call, beside).await.unwrap().reap().await;
    let taken = taking.await.unwrap();
    match answer.ending {
        Ending::Replied(bytes) => match serde_json::from_slice(&bytes).unwrap() {
            ToolReply::Done(output) => Came::Done(output, taken),
            ToolReply::Failed(failure) => Came::Failed(failure),
            other @ (ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) => {
                panic!("{other:?}")
            }
        },
        Ending::Killed { code, .. } => Came::Killed(code),
    }
}

fn space() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

#[test]
fn a_command_works_in_the_space_and_nowhere_else() {
    let space = space();
    let told = |output: ToolOutput| output.result["stdout"].as_str().unwrap().to_owned();
    calls(space.path(), |call| {
        let run = |argv: Value| call("command.run", json!({ "argv": argv }), 60_000);
        assert_eq!(told(run(json!(["pwd"])).done()), "/workspace\n");
        run(json!(["touch", "made"])).done();
        assert!(space.path().join("made").exists());
        let piped = call("command.run", json!({ "argv": ["tr", "a-z", "A-Z"], "stdin": "loud" }), 60_000);
        assert_eq!(told(piped.done()), "LOUD");
        let environment = told(run(json!(["env"])).done());
        assert!(
            environment.lines().all(|line| ["PATH=", "HOME=", "TMPDIR=", "LANG="]
                .iter()
                .any(|known| line.starts_with(known))),
            "{environment}"
        );
        // Files outside are invisible, and files inside are not executed.
        for argv in [json!(["cat", "/etc/passwd"]), json!(["ls", "/home"]), json!(["touch", "/usr/x"])] {
            let output = run(argv.clone()).done();
            assert_ne!(output.result["exit_code"], 0, "{argv}: {}", output.result);
        }
        std::fs::copy("/bin/true", space.path().join("own")).unwrap();
        let output = run(json!(["env", "./own"])).done();
        assert_ne!(output.result["exit_code"], 0, "{}", output.result);
        let Came::Failed(failure) = run(json!(["no-such-program"])) else { panic!("it ran") };
        assert_eq!(failure.code, Code::FileNotFound);
    });
}

#[test]
fn a_command_that_says_much_or_takes_long_is_bounded() {
    let space = space();
    calls(space.path(), |call| {
        let ran = call("command.run", json!({ "argv": ["seq", "1", "1000000"] }), 60_000);
        let Came::Done(output, beside) = ran else { panic!("{ran:?}") };
        assert!(output.result["stdout_bytes"].as_u64().unwrap() > 6_000_000);
        assert_eq!(output.result["stdout_bytes"], beside);
        assert_eq!((output.artifacts.len(), output.artifacts[0].name.as_str()), (1, "stdout"));
        let late = call("command.run", json!({ "argv": ["sleep", "60"] }), 700);
        assert!(matches!(late, Came::Killed(Code::TimedOut)), "{late:?}");
    });
}

#[test]
fn deleting_reaches_only_what_the_call_was_narrowed_to() {
    let space = space();
    for name in ["inside", "outside"] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir(space.path().join(name)).unwrap();
        std::fs::set_permissions(space.path().join(name), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(space.path().join(name).join("x"), "x").unwrap();
    }
    calls(space.path(), |call| {
        call("files.delete", json!({ "path": "workspace/inside/x" }), 60_000).done();
        let Came::Failed(failure) = call("files.delete", json!({ "path": "workspace/outside/x" }), 60_000)
        else {
            panic!("it was deleted");
        };
        assert_eq!(failure.code, Code::PermissionDenied);
    });
    assert!(!space.path().join("inside/x").exists() && space.path().join("outside/x").exists());
}

/// Every tool that writes, inside and outside its paths; the kernel refuses, regardless of the files' owner.
#[test]
fn no_tool_writes_beyond_what_its_call_was_narrowed_to() {
    use std::os::unix::fs::PermissionsExt;
    let cases = |at: &str| {
        let path = |name: &str| format!("workspace/{at}/{name}");
        let patch = format!("--- {at}/patched\n+++ {at}/patched\n@@ -1 +1 @@\n-one\n+two\n");
        [
            ("files.write_text", json!({ "path": path("written"), "text": "x" })),
            ("files.append_text", json!({ "path": path("appended"), "text": "x" })),
            ("files.edit_text", json!({ "path": path("edited"), "find": "one", "replace": "x" })),
            ("files.apply_patch", json!({ "patch": patch })),
            ("files.make_dir", json!({ "path": path("made") })),
            ("files.copy", json!({ "from_path": "workspace/source", "to_path": path("copied") })),
            ("files.move", json!({ "from_path": path("moved"), "to_path": path("there") })),
            ("files.delete", json!({ "path": path("deleted") })),
        ]
    };
    let space = space();
    std::fs::write(space.path().join("source"), "one\n").unwrap();
    for folder in ["inside", "outside"] {
        let folder = space.path().join(folder);
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        for name in ["appended", "edited", "patched", "moved", "deleted"] {
            std::fs::write(folder.join(name), "one\n").unwrap();
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o666)).unwrap();
        }
    }
    let all = |folder: &str| {
        let entries = std::fs::read_dir(space.path().join(folder)).unwrap().map(Result::unwrap);
        let mut all: Vec<_> =
            entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).ok())).collect();
        all.sort();
        all
    };
    let before = all("outside");
    calls(space.path(), |call| {
        for (tool, params) in cases("inside") {
            call(tool, params, 60_000).done();
        }
        for (tool, params) in cases("outside") {
            let came = call(tool, params, 60_000);
            let Came::Failed(failure) = came else {
                panic!("{tool}: {came:?}");
            };
            assert_eq!(failure.code, Code::PermissionDenied, "{tool}: {failure}");
            assert_eq!(all("outside"), before, "{tool}");
        }
    });
}
