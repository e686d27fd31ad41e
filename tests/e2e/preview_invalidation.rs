//! Invalidation of previews: a change between a preview and its approval asks again, and without a change exactly the previewed bytes
//! are written. For every tool that changes files, with changed files, parameters, tools and rules.

use effectd::adapters::Tool;
use effectd::contracts::{
    Code, Digest, Effects, Failure, Outcome, PathState, PreviewVerdict, ToolCall, ToolOutput, ToolSpec, Touch,
};
use effectd::internal::{Config, Runtime};
use effectd_actors::Answer;
use effectd_actors::approvals::decide::deny;
use effectd_actors::approvals::{Approve, Held, repository};
use effectd_policy::Change;
use serde_json::{Map, Value, json};

use crate::approvals::request;
use crate::harness::{Place, Running, program};
use crate::previews::{asking, held, operator, own_name, question, receipt, say_yes, shown, writing};

/// A tool with its parameters, its effect, and what may change before it.
struct Case {
    tool: &'static str,
    params: Value,
    /// Other valid parameters.
    other: Value,
    /// A change by somebody else: path and content.
    meddle: (&'static str, &'static str),
    /// The file afterwards; `None` if there is none.
    done: Vec<(&'static str, Option<&'static str>)>,
}

/// Each works in a folder of its own, `{at}`, in which there are `a`, `b` and `dir/deep/x`.
fn cases(at: &str, artifacts: [&str; 2], receipts: [&str; 2]) -> Vec<Case> {
    let path = |name: &str| format!("workspace/{at}/{name}");
    let case =
        |tool, params, other, meddle, done: &[_]| Case { tool, params, other, meddle, done: done.to_vec() };
    let patch = |line: &str| {
        format!(
            "--- a/{at}/a\n+++ b/{at}/a\n@@ -1,3 +1,3 @@\n one\n-two\n+{line}\n three\n--- /dev/null\n+++ b/{at}/n/new\n@@ -0,0 +1 @@\n+new\n"
        )
    };
    let moved = |from: &str, to: &str| json!({ "from_path": path(from), "to_path": path(to) });
    let over = json!({ "from_path": path("a"), "to_path": path("b"), "overwrite": true });
    let text = |name: &str, text: &str| json!({ "path": path(name), "text": text });
    let edit = |with: &str| json!({ "path": path("a"), "find": "two", "replace": with });
    let get = |nth: usize| json!({ "artifact_id": artifacts[nth], "to_path": path("new") });
    let a = "one\ntwo\nthree\n";
    vec![
        case(
            "files.write_text",
            text("n/new", "new\n"),
            text("n/new", "newer\n"),
            ("n/new", "x"),
            &[("n/new", Some("new\n"))],
        ),
        case(
            "files.write_text",
            text("a", "other\n"),
            text("b", "other\n"),
            ("a", "x"),
            &[("a", Some("other\n")), ("b", Some("the other"))],
        ),
        case(
            "files.append_text",
            text("a", "four\n"),
            text("a", "five\n"),
            ("a", "one\n"),
            &[("a", Some("one\ntwo\nthree\nfour\n"))],
        ),
        case("files.edit_text", edit("2"), edit("zwei"), ("a", "two"), &[("a", Some("one\n2\nthree\n"))]),
        case(
            "files.apply_patch",
            json!({ "patch": patch("2") }),
            json!({ "patch": patch("zwei") }),
            ("a", "one\ntwo\nthree\nfour\n"),
            &[("a", Some("one\n2\nthree\n")), ("n/new", Some("new\n"))],
        ),
        case(
            "files.make_dir",
            json!({ "path": path("x/y") }),
            json!({ "path": path("x/z") }),
            ("x", "a file"),
            &[("x/y/none", None)],
        ),
        case(
            "files.copy",
            moved("a", "new"),
            moved("b", "new"),
            ("a", "x"),
            &[("a", Some(a)), ("new", Some(a))],
        ),
        case(
            "files.move",
            moved("a", "new"),
            moved("a", "newer"),
            ("a", "x"),
            &[("a", None), ("new", Some(a))],
        ),
        case(
            "files.move",
            over,
            json!({ "from_path": path("b"), "to_path": path("a"), "overwrite": true }),
            ("b", "x"),
            &[("a", None), ("b", Some(a))],
        ),
        case(
            "files.move",
            moved("dir", "new"),
            moved("dir", "newer"),
            ("new", "x"),
            &[("dir/deep/x", None), ("new/deep/x", Some("x"))],
        ),
        // The folder itself is unchanged, only its content differs.
        case(
            "files.move",
            moved("dir", "new"),
            moved("dir/deep", "new"),
            ("dir/deep/x", "y"),
            &[("dir/deep/x", None), ("new/deep/x", Some("x"))],
        ),
        case(
            "files.delete",
            json!({ "path": path("a") }),
            json!({ "path": path("b") }),
            ("a", "x"),
            &[("a", None), ("b", Some("the other"))],
        ),
        case("artifact.get", get(0), get(1), ("new", "x"), &[("new", Some("kept 0\n"))]),
        case(
            "files.undo",
            json!({ "receipt_id": receipts[0] }),
            json!({ "receipt_id": receipts[1] }),
            ("undone-0", "x"),
            &[("undone-0", None), ("undone-1", Some("to be undone\n"))],
        ),
        case(
            "files.archive",
            moved("dir", "n/new.tgz"),
            moved("dir/deep", "n/new.tgz"),
            ("dir/deep/x", "y"),
            &[("dir/deep/x", Some("x"))],
        ),
        case(
            "files.extract",
            moved("packed.zip", "n/out"),
            moved("packed.zip", "n/other"),
            ("packed.zip", "x"),
            &[("n/out/deep/x", Some("x"))],
        ),
    ]
}

fn fill(place: &Place, at: &str) {
    std::fs::create_dir_all(place.note(at).join("dir/deep")).unwrap();
    for (name, text) in [("a", "one\ntwo\nthree\n"), ("b", "the other"), ("dir/deep/x", "x")] {
        std::fs::write(place.note(at).join(name), text).unwrap();
    }
}

/// Everything in the space, with its content.
fn tree(place: &Place) -> Vec<(String, Vec<u8>)> {
    fn below(folder: &std::path::Path, all: &mut Vec<(String, Vec<u8>)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all.push((path.display().to_string(), Vec::new()));
                below(&path, all);
            } else {
                all.push((path.display().to_string(), std::fs::read(&path).unwrap()));
            }
        }
    }
    let mut all = Vec::new();
    below(&place.path("workspace"), &mut all);
    all.sort();
    all
}

/// Prepares one case, with something to undo and artifacts to get where needed.
async fn ground(place: &Place, runtime: &Runtime, nth: usize, at: &str) -> Case {
    fill(place, at);
    let (mut artifacts, mut receipts) = ([String::new(), String::new()], [String::new(), String::new()]);
    let tool = cases(at, [""; 2], [""; 2]).swap_remove(nth).tool;
    for one in 0..2 {
        if tool == "artifact.get" {
            let put = json!({ "text": format!("kept {one}\n") });
            let put = request(&format!("put-{at}-{one}"), "artifact.put", put);
            let done = runtime.exec(put).await;
            artifacts[one] = receipt(&done).outputs["artifact_id"].as_str().unwrap().to_owned();
        }
        if tool == "files.undo" {
            let write = json!({ "path": format!("workspace/{at}/undone-{one}"), "text": "to be undone\n" });
            let write = request(&format!("write-{at}-{one}"), "files.write_text", write);
            let action = write.action_id.clone();
            let asked = held(runtime, write).await;
            let done = say_yes(runtime, &asked, Approve::default(), &action).await;
            receipts[one] = receipt(&done).receipt_id.to_string();
        }
    }
    if tool == "files.extract" {
        let path = |name: &str| format!("workspace/{at}/{name}");
        let pack = json!({ "from_path": path("dir"), "to_path": path("packed.zip") });
        let pack = request(&format!("pack-{at}"), "files.archive", pack);
        let action = pack.action_id.clone();
        let asked = held(runtime, pack).await;
        receipt(&say_yes(runtime, &asked, Approve::default(), &action).await);
    }
    let artifacts = [artifacts[0].as_str(), artifacts[1].as_str()];
    let receipts = [receipts[0].as_str(), receipts[1].as_str()];
    cases(at, artifacts, receipts).swap_remove(nth)
}

fn count() -> usize {
    cases("", [""; 2], [""; 2]).len()
}

async fn say_no(runtime: &Runtime, held: &Held) {
    // The number of holds of one session is bounded.
    let services = runtime.pipeline().services();
    deny(services, &held.approval_id, &operator(), None).await.unwrap();
}

/// Approves, and expects another question.
async fn asked_again(place: &Place, runtime: &Runtime, (what, asked): (&str, &Held), action: &str) {
    let before = tree(place);
    let answer = say_yes(runtime, asked, Approve::default(), &action.parse().unwrap()).await;
    let Answer::Held(again) = answer else {
        panic!("{what} was not asked about again: {answer:?}");
    };
    assert_ne!(again.approval_id, asked.approval_id, "{what}");
    assert_eq!(tree(place), before, "{what}");
    let hold = question(runtime, &again);
    assert!(hold.because.unwrap().contains("has changed"), "{what}");
    assert!(hold.prompt.preview.is_some(), "{what}");
    say_no(runtime, &again).await;
}

#[test]
fn every_tool_that_changes_files_is_among_the_cases() {
    let cases = cases("", [""; 2], [""; 2]);
    for tool in writing() {
        let id = tool.id();
        assert!(
            cases.iter().any(|case| case.tool == id),
            "{id} changes files: add a case for it, so that what is shown of it is known to be what it does"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_shown_is_committed_byte_for_byte_by_every_file_tool() {
    let place = asking("");
    let runtime = place.runtime().await;
    for nth in 0..count() {
        let at = format!("c{nth}");
        let case = ground(&place, &runtime, nth, &at).await;
        let tool = case.tool;
        let before = tree(&place);
        let action = request(&format!("act-{nth}"), tool, case.params.clone());
        let id = action.action_id.clone();
        let asked = held(&runtime, action).await;
        let shown = shown(&question(&runtime, &asked));
        assert_eq!(tree(&place), before, "{tool}: a preview changed something");
        let done = say_yes(&runtime, &asked, Approve::default(), &id).await;
        let receipt = receipt(&done);
        assert_eq!(receipt.outcome, Outcome::Executed, "{tool}: {:?}", receipt.error);
        let record = receipt.preview.as_ref().unwrap();
        assert_eq!(record.verdict, PreviewVerdict::Matched, "{tool}: {record:?}");
        assert_eq!(record.predicted, Some(shown.predicted), "{tool}");
        let Effects::Observed(observed) = &receipt.effects else {
            panic!("{tool}: {:?}", receipt.effects);
        };
        let told: Vec<_> =
            shown.changes.iter().map(|c| (&c.path, &c.before, &c.after, &c.moved_to)).collect();
        let happened: Vec<_> =
            observed.changes.iter().map(|c| (&c.path, &c.before, &c.after, &c.moved_to)).collect();
        assert!(!told.is_empty(), "{tool}");
        assert_eq!(told, happened, "{tool}");
        let deletes = u64::from(matches!(tool, "files.delete" | "files.undo"));
        assert_eq!(shown.predicted.deletes, deletes, "{tool}: {shown:?}");
        // Read from the disk without effectd: the effect is what was previewed, and what was meant.
        let identity = &runtime.pipeline().services().identity;
        for change in &shown.changes {
            let on_disk = std::fs::read(place.path(&change.path));
            match &change.after {
                PathState::File(state) => {
                    let digest = identity.keyed(&Digest::of(&on_disk.unwrap())).hex();
                    assert_eq!(state.digest, format!("hmac-sha256:{digest}"), "{tool}");
                }
                PathState::Folder => assert!(place.path(&change.path).is_dir(), "{tool}"),
                PathState::Absent | PathState::Other => assert!(on_disk.is_err(), "{tool}"),
            }
        }
        for (name, text) in case.done {
            let on_disk = std::fs::read_to_string(place.note(&at).join(name)).ok();
            assert_eq!(on_disk.as_deref(), text, "{tool}: {name}");
        }
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_base_is_asked_about_again() {
    let place = asking("");
    let runtime = place.runtime().await;
    for nth in 0..count() {
        let at = format!("m{nth}");
        let case = ground(&place, &runtime, nth, &at).await;
        let id = format!("act-{nth}");
        let asked = held(&runtime, request(&id, case.tool, case.params.clone())).await;
        let (file, text) = case.meddle;
        let file = place.note(&at).join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        let what = format!("{} with {:?}", case.tool, case.meddle);
        asked_again(&place, &runtime, (&what, &asked), &id).await;
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_parameters_are_asked_about_by_themselves() {
    let place = asking("");
    let runtime = place.runtime().await;
    for nth in 0..count() {
        let case = ground(&place, &runtime, nth, &format!("p{nth}")).await;
        let [one, two] = ["one", "two"].map(|which| format!("{which}-{nth}"));
        let asked = held(&runtime, request(&one, case.tool, case.params.clone())).await;
        // The same id with other parameters is a conflict.
        match runtime.exec(request(&one, case.tool, case.other.clone())).await {
            Answer::Refused(failure) => assert_eq!(failure.code, Code::ActionConflict, "{}", case.tool),
            other @ (Answer::Done(_) | Answer::Held(_)) => panic!("{}: {other:?}", case.tool),
        }
        let other = held(&runtime, request(&two, case.tool, case.other.clone())).await;
        assert_ne!(asked.approval_id, other.approval_id, "{}", case.tool);
        let done = say_yes(&runtime, &asked, Approve::default(), &one.parse().unwrap()).await;
        assert_eq!(receipt(&done).outcome, Outcome::Executed, "{}", case.tool);
        // The approval covers that request only.
        let services = runtime.pipeline().services();
        let open = repository::hold(&*services.store, &other.approval_id).unwrap().unwrap();
        assert!(open.value.is_open(services.clock.now()), "{}", case.tool);
        say_no(&runtime, &other).await;
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_rule_is_asked_about_again() {
    let place = asking("");
    let runtime = place.runtime().await;
    let rules = place.state().join("policy/mutated.cedar");
    for nth in 0..count() {
        let case = ground(&place, &runtime, nth, &format!("r{nth}")).await;
        let id = format!("act-{nth}");
        let asked = held(&runtime, request(&id, case.tool, case.params.clone())).await;
        // The new rule does not forbid this, but a changed rule needs a new decision.
        let rule = format!(
            "@id(\"no-phones\")\nforbid (principal, action, resource)\nwhen {{ context.device.class == \"phone-{nth}\" }};\n"
        );
        std::fs::write(&rules, rule).unwrap();
        runtime.reload_policy().unwrap();
        asked_again(&place, &runtime, (case.tool, &asked), &id).await;
    }
    // The same rules in another file are the same rules.
    let write = json!({ "path": "workspace/same.txt", "text": "same" });
    let asked = held(&runtime, request("same", "files.write_text", write)).await;
    let text = std::fs::read_to_string(&rules).unwrap();
    std::fs::remove_file(&rules).unwrap();
    std::fs::write(place.state().join("policy/other.cedar"), format!("// Moved.\n\n{text}")).unwrap();
    runtime.reload_policy().unwrap();
    let done = say_yes(&runtime, &asked, Approve::default(), &"same".parse().unwrap()).await;
    assert_eq!(receipt(&done).outcome, Outcome::Executed);
    // A rule that forbids it now ends it, without a decision.
    let write = json!({ "path": "workspace/never.txt", "text": "never" });
    held(&runtime, request("never", "files.write_text", write)).await;
    std::fs::write(
        &rules,
        "@id(\"no-more\")\nforbid (principal, action in [Action::\"write\"], resource);\n",
    )
    .unwrap();
    runtime.reload_policy().unwrap();
    let never = "never".parse().unwrap();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), runtime.pipeline().wait(&never));
    let done = ended.await.expect("it ends").unwrap();
    assert_eq!(receipt(&done).outcome, Outcome::DeniedPolicy);
    assert!(!place.note("never.txt").exists());
    std::fs::remove_file(&rules).unwrap();
    runtime.reload_policy().unwrap();
    // The organisation's own rule about the tool, too.
    let write = json!({ "path": "workspace/mode.txt", "text": "mode" });
    let asked = held(&runtime, request("mode", "files.write_text", write)).await;
    let mode = Change::SetOrgMode {
        org: "home".to_owned(),
        tool: "files.write_text".to_owned(),
        mode: Some(effectd_policy::SetMode::Lasting(effectd::contracts::Mode::RequireApproval)),
    };
    runtime.change_policy(mode).unwrap();
    asked_again(&place, &runtime, ("a mode", &asked), "mode").await;
    assert!(runtime.stop().await);
}

/// A tool of the embedding program: a built-in one under another name, in a chosen version.
struct Own {
    like: &'static dyn Tool,
    id: &'static str,
    version: &'static str,
}

impl Tool for Own {
    fn id(&self) -> &'static str {
        self.id
    }

    fn spec(&self) -> ToolSpec {
        let mut spec = self.like.spec();
        spec.tool_id = self.id.parse().unwrap();
        spec.version = self.version.to_owned();
        spec.idempotency_key_fields = None;
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

    fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        self.like.reads(params)
    }

    fn run(&self, _: &effectd::adapters::Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        unreachable!("it is only ever asked about")
    }

    fn dry_run(&self, _: &effectd::adapters::Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        unreachable!("it is only ever asked about")
    }
}

/// All of them in this version, for as long as the test runs.
fn own_tools(version: &'static str) -> &'static [&'static dyn Tool] {
    let own = writing().into_iter().map(|like| -> &'static dyn Tool {
        let id = Box::leak(own_name(like).into_boxed_str());
        Box::leak(Box::new(Own { like, id, version }))
    });
    Box::leak(own.collect::<Vec<_>>().into_boxed_slice())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tool_is_asked_about_again() {
    let place = asking("");
    let start = async |version| {
        let mut config = Config::embedded(place.state()).unwrap();
        config.zygote_exe = program().into();
        config.tools = own_tools(version);
        config.pipeline.held_per_session_max = 100;
        Runtime::start(config).await.unwrap()
    };
    let runtime = start("1.0.0").await;
    let mut all = Vec::new();
    for nth in 0..count() {
        let at = format!("v{nth}");
        fill(&place, &at);
        let case = cases(&at, [""; 2], ["r"; 2]).swap_remove(nth);
        let like = writing().into_iter().find(|tool| tool.id() == case.tool).unwrap();
        let mut params = case.params;
        if let Some(artifact) = params.get_mut("artifact_id") {
            *artifact = "0".repeat(64).into();
        }
        let id = format!("v-{nth}");
        let asked = held(&runtime, request(&id, &own_name(like), params)).await;
        all.push((case.tool, id, asked));
    }
    assert!(runtime.stop().await);
    let runtime = start("1.0.1").await;
    for (tool, id, asked) in all {
        asked_again(&place, &runtime, (tool, &asked), &id).await;
    }
    assert!(runtime.stop().await);
}
