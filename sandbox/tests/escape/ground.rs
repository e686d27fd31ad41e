//! Where attacks run: inside of the sandbox, or outside as a control.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use effectd_contracts::{BaseProfile, Code, SandboxProfile, ToolId, TraceId};
use effectd_sandbox::{
    Answer, Call, ChildCtx, Ending, Limits, Narrowing, Sandbox, SandboxConfig, SandboxError, SpaceRoot,
};
use serde_json::{Value, json};

/// An attack gets the workspace and its argument, and returns its result.
pub(crate) type Attack = fn(&Ground<'_>, &Value) -> Value;

/// One promise: its name and its test.
pub(crate) struct Promise {
    pub(crate) name: &'static str,
    pub(crate) keep: fn(&Scene),
}

pub(crate) struct Ground<'a> {
    pub(crate) workspace: BorrowedFd<'a>,
    pub(crate) tmp: BorrowedFd<'a>,
    /// The side channel; a control has none.
    pub(crate) side_channel: Option<&'a ChildCtx>,
}

fn attack_by_name(name: &str) -> Attack {
    let found = crate::attacks().into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no attack is called {name}")).1
}

/// Runs in the confined child.
pub(crate) fn dispatch(ctx: &ChildCtx, request: &[u8]) -> Vec<u8> {
    let request: Value = serde_json::from_slice(request).unwrap();
    let ground = Ground { workspace: ctx.workspace(), tmp: ctx.tmp(), side_channel: Some(ctx) };
    let answer = attack_by_name(request["attack"].as_str().unwrap())(&ground, &request["with"]);
    serde_json::to_vec(&answer).unwrap()
}

/// Runs in a process without any confinement: `__control <workspace> <attack> <with>`.
pub(crate) fn control_main(arguments: &[String]) {
    let workspace = OwnedFd::from(fs::File::open(&arguments[0]).unwrap());
    let tmp = tempfile::tempdir().unwrap();
    let tmp = OwnedFd::from(fs::File::open(tmp.path()).unwrap());
    std::env::set_current_dir(&arguments[0]).unwrap();
    let ground = Ground { workspace: workspace.as_fd(), tmp: tmp.as_fd(), side_channel: None };
    let answer = attack_by_name(&arguments[1])(&ground, &serde_json::from_str(&arguments[2]).unwrap());
    println!("{answer}");
}

/// The files of one test: a workspace, and files outside of it.
pub(crate) struct Scene {
    pub(crate) base: tempfile::TempDir,
    pub(crate) workspace: PathBuf,
    pub(crate) outside: PathBuf,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) sandbox: Sandbox,
}

pub(crate) const SECRET: &str = "the secret outside";

impl Scene {
    pub(crate) fn new() -> Self {
        Self::bare(Sandbox::start(SandboxConfig::this_program()).unwrap())
    }

    pub(crate) fn bare(sandbox: Sandbox) -> Self {
        let base = tempfile::tempdir().unwrap();
        let (workspace, outside) = (base.path().join("workspace"), base.path().join("outside"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), SECRET).unwrap();
        fs::write(workspace.join("inside"), "inside").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { base, workspace, outside, runtime, sandbox }
    }

    pub(crate) fn call(&self, profile: SandboxProfile, attack: &str, with: Value) -> Call {
        Call {
            tool_id: ToolId::new("test.attack").unwrap(),
            profile,
            high_isolation: false,
            space_root: SpaceRoot::open(&self.workspace).unwrap(),
            request: serde_json::to_vec(&json!({ "attack": attack, "with": with })).unwrap(),
            limits: Limits::default(),
            // Longer than a machine stalls; a test of deadlines sets its own.
            timeout: Duration::from_secs(60),
            trace_id: TraceId::new("trace-escape").unwrap(),
            narrowing: Narrowing { writable: Some(vec![PathBuf::from(".")]), ..Narrowing::default() },
            view: None,
        }
    }

    /// Every profile that this host can enforce: all of them, where whole process trees can be bounded.
    pub(crate) fn profiles(&self) -> Vec<SandboxProfile> {
        let all = [DEFAULT, HIGH, EXEC, EXEC_HIGH];
        let trees = self.sandbox.tree_memory().is_some();
        all.into_iter().filter(|profile| trees || *profile != EXEC_HIGH).collect()
    }

    pub(crate) fn try_run(&self, call: Call) -> Result<Answer, SandboxError> {
        self.runtime.block_on(self.sandbox.call(call))
    }

    pub(crate) fn run(&self, call: Call) -> Answer {
        self.try_run(call).unwrap()
    }

    pub(crate) fn attack(&self, profile: SandboxProfile, attack: &str, with: Value) -> Answer {
        self.run(self.call(profile, attack, with))
    }

    /// The same attack without a sandbox.
    pub(crate) fn control(&self, attack: &str, with: Value) -> Value {
        let output = self.control_command(attack, &with).stdout(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "the control of {attack} itself failed: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn control_command(&self, attack: &str, with: &Value) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("__control").arg(&self.workspace).arg(attack).arg(with.to_string()).stdin(Stdio::null());
        command
    }

    /// Everything outside of the workspace, with contents, modes and times.
    pub(crate) fn outside_state(&self) -> Vec<String> {
        use std::os::unix::fs::MetadataExt;
        let mut state: Vec<_> = fs::read_dir(&self.outside)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let m = fs::symlink_metadata(&path).unwrap();
                let content = fs::read_to_string(&path).unwrap_or_default();
                format!(
                    "{} {content:?} {:o} {} {} {}",
                    path.display(),
                    m.mode(),
                    m.nlink(),
                    m.mtime_nsec(),
                    m.uid()
                )
            })
            .collect();
        state.sort();
        state
    }
}

/// Drives all futures in one task.
pub(crate) async fn all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for slot in &mut futures {
            let ended = |future: &mut std::pin::Pin<Box<F>>| future.as_mut().poll(context).is_ready();
            if slot.as_mut().is_some_and(ended) {
                *slot = None;
            }
        }
        match futures.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

pub(crate) const DEFAULT: SandboxProfile =
    SandboxProfile { base: BaseProfile::Default, high_isolation: false };
pub(crate) const EXEC: SandboxProfile = SandboxProfile { base: BaseProfile::Exec, high_isolation: false };
pub(crate) const HIGH: SandboxProfile = SandboxProfile { base: BaseProfile::Default, high_isolation: true };
pub(crate) const EXEC_HIGH: SandboxProfile = SandboxProfile { base: BaseProfile::Exec, high_isolation: true };

/// The attack failed: the sandbox ended the call, or each of its system calls failed with one of these errnos.
pub(crate) fn assert_foiled(answer: &Answer, errnos: &[i32], what: &str) {
    match &answer.ending {
        Ending::Killed { code, .. } => {
            let codes = [Code::SyscallDenied, Code::NetworkDenied];
            assert!(codes.contains(code), "{what}: {answer:?}");
        }
        Ending::Replied(_) => {
            let got = replied(answer);
            let all = got.as_array().cloned().unwrap_or_else(|| vec![got]);
            for errno in all {
                let errno = errno.as_i64().unwrap() as i32;
                assert!(errnos.contains(&errno), "{what}: errno {errno}, {answer:?}");
            }
        }
    }
}

/// The child's answer, which must have come.
pub(crate) fn replied(answer: &Answer) -> Value {
    match &answer.ending {
        Ending::Replied(bytes) => serde_json::from_slice(bytes).unwrap(),
        Ending::Killed { .. } => panic!("no reply: {answer:?}"),
    }
}

/// The code with which the call was ended, which it must have been.
pub(crate) fn killed(answer: &Answer) -> Code {
    match &answer.ending {
        Ending::Killed { code, .. } => *code,
        Ending::Replied(bytes) => panic!("a reply: {}", String::from_utf8_lossy(bytes)),
    }
}
