//! A runtime in its own folder, with additional tools and a policy that permits them, and requests
//! for it.

use std::fmt::Write as _;
use std::path::Path;

use effectd::adapters::{Tool, Workspace};
use effectd::contracts::{
    ActionRequest, Failure, Outcome, ProbeVerdict, ToolCall, ToolOutput, ToolSpec, Touch,
};
use effectd::internal::{Config, Runtime};
use effectd_actors::Answer;
use effectd_actors::control::rates::Rules;
use serde_json::{Map, Value, json};

pub(crate) const TOOLS_MAX: usize = 200;
/// The built-in tool that they copy.
pub(crate) const WRITE: &str = "files.write_text";
const SUBJECT: &str = "agent://planner@deviceA";
const SPACE: &str = "shared:household";

/// `files.write_text` under another name.
struct Named {
    id: &'static str,
    like: &'static dyn Tool,
}

impl Tool for Named {
    fn id(&self) -> &'static str {
        self.id
    }

    fn spec(&self) -> ToolSpec {
        let mut spec = self.like.spec();
        spec.tool_id = self.id.parse().expect("an id");
        spec
    }

    fn example(&self) -> Value {
        self.like.example()
    }

    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        self.like.check(params)
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        self.like.touches(params)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.like.run(workspace, call)
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        self.like.dry_run(workspace, call)
    }

    fn probe(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        self.like.probe(workspace, call)
    }
}

pub(crate) fn tool_name(n: usize) -> String {
    format!("bench.write_{n:03}")
}

/// The bench's own tools, for the program and for the sandbox's child, which is the same program. They are never freed.
pub(crate) fn tools() -> &'static [&'static dyn Tool] {
    let all = effectd::adapters::all();
    let like = *all.iter().find(|tool| tool.id() == WRITE).expect("it is built in");
    let named = (0..TOOLS_MAX).map(|n| {
        let id = String::leak(tool_name(n));
        let tool: &'static dyn Tool = Box::leak(Box::new(Named { id, like }));
        tool
    });
    Vec::leak(named.collect())
}

/// A runtime with its state in this folder, under a policy that permits all the tools.
pub(crate) async fn open(state: &Path, change: impl FnOnce(&mut Config)) -> Runtime {
    let policy = state.join("policy");
    std::fs::create_dir_all(&policy).expect("a directory");
    std::fs::write(policy.join("policy.toml"), tables()).expect("a file");
    let rule = "permit (principal, action, resource in SpaceClass::\"shared\");\n";
    std::fs::write(policy.join("rules.cedar"), rule).expect("a file");
    let mut config = Config::embedded(state).expect("a configuration");
    config.store.journal = crate::journal::journal();
    config.desktop = false;
    config.pipeline.control.rates = Rules::UNLIMITED;
    change(&mut config);
    Runtime::start(config).await.expect("a runtime")
}

fn tables() -> String {
    let names: Vec<_> = std::iter::once(WRITE.to_owned()).chain((0..TOOLS_MAX).map(tool_name)).collect();
    let modes: Vec<_> = names.iter().map(|name| format!("\"{name}\" = \"allow\"")).collect();
    let mut toml = format!(
        "version = 1\n[principals.\"user://*\"]\nsubjects = [\"agent://*\"]\n\
         [roles.planner]\ncaps = [\"files.write\", \"workspace:shared:write\"]\n\
         [subjects.\"{SUBJECT}\"]\nroles = [\"planner\"]\n[devices.phone1]\nclass = \"phone\"\n\
         [orgs.home]\nmodes = {{ {} }}\n\
         [spaces.\"{SPACE}\"]\nband = \"GREEN\"\nvisible_to = [\"agent://*\"]\norg = \"home\"\n",
        modes.join(", ")
    );
    for name in names {
        let _ = writeln!(
            toml,
            "[[consents]]\nsubject = \"{SUBJECT}\"\nspace = \"{SPACE}\"\npurpose = \"tool:{name}\""
        );
    }
    toml
}

pub(crate) fn request(tool: &str, action: &str, file: &str, text: &str) -> ActionRequest {
    let asked = json!({
        "action_id": action, "subject_id": SUBJECT, "space_id": SPACE, "tool_id": tool,
        "params": { "path": format!("workspace/{file}.txt"), "text": text, "space_id": SPACE },
        "policy_ctx": { "device": "phone1" },
    });
    ActionRequest::parse(asked.to_string().as_bytes()).expect("a request")
}

/// Executes a request. An unexpected outcome ends the measurement.
pub(crate) async fn exec(runtime: &Runtime, asked: ActionRequest, expected: Outcome) {
    match runtime.exec(asked).await {
        Answer::Done(done) => assert_eq!(done.receipt.outcome, expected, "{:?}", done.receipt.error),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{failure}"),
    }
}
