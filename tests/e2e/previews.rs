//! What a person is shown before they decide is what happens, and what has changed since is asked about again.

use effectd::contracts::{
    ActionId, ActionRequest, Effects, Failure, Outcome, PreviewVerdict, Receipt, ToolCall, ToolOutput,
    ToolSpec,
};
use effectd::{Answer, Config, Runtime};
use effectd_actors::Decider;
use effectd_actors::held::decide::{approve, deny};
use effectd_actors::held::{Approve, Held, Hold, entries};
use effectd_actors::preview::{Preview, Shown};
use effectd_policy::Change;
use serde_json::{Map, Value, json};

use crate::harness::{Place, Running, program};
use crate::held::request;

const TOOLS: [&str; 11] = [
    "files.write_text",
    "files.append_text",
    "files.edit_text",
    "files.apply_patch",
    "files.make_dir",
    "files.copy",
    "files.move",
    "files.delete",
    "files.undo",
    "artifact.get",
    "own.note",
];

/// A place whose policy asks a person about every tool that changes files.
fn asking(rules: &str) -> Place {
    let modes = TOOLS.map(|tool| format!("{tool:?} = \"require_approval\""));
    with_modes(&modes.join(", "), rules)
}

fn with_modes(modes: &str, rules: &str) -> Place {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    // The policy's own examples speak of what this changes.
    text = text.split("[example_tools").next().unwrap().to_owned();
    text = text.replace("\"diagnose\"]", "\"diagnose\", \"files.delete\"]");
    text = text.replace("\"files.write_text\" = \"allow\"", modes);
    for tool in ["files.delete", "own.note"] {
        text += &format!(
            "\n[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"shared:household\"\npurpose = \"tool:{tool}\"\n"
        );
    }
    std::fs::write(&file, text).unwrap();
    if !rules.is_empty() {
        std::fs::write(place.state().join("policy/foresight.cedar"), rules).unwrap();
    }
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    place
}

fn operator() -> Decider {
    Decider {
        principal: Config::embedded(".").unwrap().principal,
        operator: true,
    }
}

async fn held(runtime: &Runtime, request: ActionRequest) -> Held {
    match runtime.exec(request).await {
        Answer::Held(held) => held,
        other @ (Answer::Done(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

fn question(runtime: &Runtime, held: &Held) -> Hold {
    let parts = runtime.pipeline().parts();
    entries::hold(&*parts.store, &held.approval_id)
        .unwrap()
        .unwrap()
        .value
}

fn shown(hold: &Hold) -> Shown {
    match hold.prompt.preview.as_deref().unwrap() {
        Preview::Shown(shown) => shown.clone(),
        other @ (Preview::WouldFail(_) | Preview::Unavailable(_)) => panic!("{other:?}"),
    }
}

/// Says yes, and what comes of it: a receipt, or another question.
async fn say_yes(runtime: &Runtime, held: &Held, wish: Approve, action: &ActionId) -> Answer {
    let parts = runtime.pipeline().parts();
    approve(parts, &held.approval_id, &operator(), wish)
        .await
        .unwrap();
    let waiting = runtime.pipeline().wait_or_held(action);
    tokio::time::timeout(std::time::Duration::from_secs(60), waiting)
        .await
        .expect("it ends, or is asked again")
        .unwrap()
}

#[track_caller]
fn receipt(answer: &Answer) -> &Receipt {
    match answer {
        Answer::Done(done) => &done.receipt,
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

/// A tool, its parameters, and what somebody else does to its ground.
struct Case {
    tool: &'static str,
    params: Value,
    meddle: (&'static str, &'static str),
}

/// Each works in a folder of its own, `{at}`, in which there are `a`, `b` and `dir/deep/x`.
fn cases(at: &str, artifact: &str, undone: &str) -> Vec<Case> {
    let path = |name: &str| format!("workspace/{at}/{name}");
    let case = |tool, params, meddle| Case { tool, params, meddle };
    let patch = format!(
        "--- a/{at}/a\n+++ b/{at}/a\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n--- /dev/null\n+++ b/{at}/n/new\n@@ -0,0 +1 @@\n+new\n"
    );
    vec![
        case(
            "files.write_text",
            json!({ "path": path("n/new"), "text": "new\n" }),
            ("n/new", "x"),
        ),
        case(
            "files.write_text",
            json!({ "path": path("a"), "text": "other\n" }),
            ("a", "x"),
        ),
        case(
            "files.append_text",
            json!({ "path": path("a"), "text": "four\n" }),
            ("a", "one\n"),
        ),
        case(
            "files.edit_text",
            json!({ "path": path("a"), "find": "two", "replace": "2" }),
            ("a", "two"),
        ),
        case(
            "files.apply_patch",
            json!({ "patch": patch }),
            ("a", "one\ntwo\nthree\nfour\n"),
        ),
        case("files.make_dir", json!({ "path": path("x/y") }), ("x", "a file")),
        case(
            "files.copy",
            json!({ "from_path": path("a"), "to_path": path("new") }),
            ("a", "x"),
        ),
        case(
            "files.move",
            json!({ "from_path": path("a"), "to_path": path("new") }),
            ("a", "x"),
        ),
        case(
            "files.move",
            json!({ "from_path": path("a"), "to_path": path("b"), "overwrite": true }),
            ("b", "x"),
        ),
        case(
            "files.move",
            json!({ "from_path": path("dir"), "to_path": path("new") }),
            ("new", "x"),
        ),
        case("files.delete", json!({ "path": path("a") }), ("a", "x")),
        case(
            "artifact.get",
            json!({ "artifact_id": artifact, "to_path": path("new") }),
            ("new", "x"),
        ),
        case("files.undo", json!({ "receipt_id": undone }), ("undone", "x")),
    ]
}

fn fill(place: &Place, at: &str) {
    std::fs::create_dir_all(place.note(at).join("dir/deep")).unwrap();
    for (name, text) in [
        ("a", "one\ntwo\nthree\n"),
        ("b", "the other"),
        ("dir/deep/x", "x"),
    ] {
        std::fs::write(place.note(at).join(name), text).unwrap();
    }
}

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

/// The ground of one case, with something to undo and an artifact to get.
async fn ground(place: &Place, runtime: &Runtime, at: &str) -> Vec<Case> {
    fill(place, at);
    let put = json!({ "text": format!("kept for {at}\n") });
    let done = runtime
        .exec(request(&format!("put-{at}"), "artifact.put", put))
        .await;
    let artifact = receipt(&done).outputs["artifact_id"].as_str().unwrap().to_owned();
    let write = json!({ "path": format!("workspace/{at}/undone"), "text": "to be undone\n" });
    let write = request(&format!("write-{at}"), "files.write_text", write);
    let action = write.action_id.clone();
    let asked = held(runtime, write).await;
    let done = say_yes(runtime, &asked, Approve::default(), &action).await;
    cases(at, &artifact, receipt(&done).receipt_id.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_shown_is_committed_byte_for_byte_by_every_file_tool() {
    let place = asking("");
    let runtime = place.runtime().await;
    let count = ground(&place, &runtime, "first").await.len();
    for nth in 0..count {
        let at = format!("c{nth}");
        let case = ground(&place, &runtime, &at).await.swap_remove(nth);
        let before = tree(&place);
        let action = request(&format!("act-{nth}"), case.tool, case.params.clone());
        let id = action.action_id.clone();
        let asked = held(&runtime, action).await;
        let shown = shown(&question(&runtime, &asked));
        assert_eq!(tree(&place), before, "{}: a preview changed something", case.tool);
        let done = say_yes(&runtime, &asked, Approve::default(), &id).await;
        let receipt = receipt(&done);
        assert_eq!(
            receipt.outcome,
            Outcome::Executed,
            "{}: {:?}",
            case.tool,
            receipt.error
        );
        let record = receipt.preview.as_ref().unwrap();
        assert_eq!(
            record.verdict,
            PreviewVerdict::Matched,
            "{}: {record:?}",
            case.tool
        );
        assert_eq!(record.predicted, Some(shown.predicted), "{}", case.tool);
        let Effects::Observed(observed) = &receipt.effects else {
            panic!("{}: {:?}", case.tool, receipt.effects);
        };
        let told: Vec<_> = shown
            .changes
            .iter()
            .map(|c| (&c.path, &c.before, &c.after, &c.moved_to))
            .collect();
        let happened: Vec<_> = observed
            .changes
            .iter()
            .map(|c| (&c.path, &c.before, &c.after, &c.moved_to))
            .collect();
        assert!(!told.is_empty(), "{}", case.tool);
        assert_eq!(told, happened, "{}", case.tool);
        let deletes = u64::from(matches!(case.tool, "files.delete" | "files.undo"));
        assert_eq!(shown.predicted.deletes, deletes, "{}: {shown:?}", case.tool);
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_has_changed_since_a_preview_is_asked_about_again() {
    let place = asking("");
    let runtime = place.runtime().await;
    let count = ground(&place, &runtime, "first").await.len();
    for nth in 0..count {
        let at = format!("m{nth}");
        let case = ground(&place, &runtime, &at).await.swap_remove(nth);
        let action = request(&format!("act-{nth}"), case.tool, case.params.clone());
        let id = action.action_id.clone();
        let asked = held(&runtime, action).await;
        let (file, text) = case.meddle;
        let file = place.note(&at).join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        let before = tree(&place);
        let Answer::Held(again) = say_yes(&runtime, &asked, Approve::default(), &id).await else {
            panic!("{} with {:?} was not asked about again", case.tool, case.meddle);
        };
        assert_ne!(again.approval_id, asked.approval_id, "{}", case.tool);
        assert_eq!(tree(&place), before, "{}", case.tool);
        let hold = question(&runtime, &again);
        assert!(hold.because.unwrap().contains("has changed"), "{}", case.tool);
        assert!(hold.prompt.preview.is_some(), "{}", case.tool);
        // Only so many of one session may wait.
        let parts = runtime.pipeline().parts();
        deny(parts, &again.approval_id, &operator(), None).await.unwrap();
    }
    // Other parameters are another question.
    let note = |action: &str, text: &str| {
        let params = json!({ "path": "workspace/p.txt", "text": text });
        request(action, "files.write_text", params)
    };
    let (one, other) = (
        held(&runtime, note("p-1", "one")).await,
        held(&runtime, note("p-2", "two")).await,
    );
    assert_ne!(one.approval_id, other.approval_id);
    // Another rule asks.
    let mode = Change::SetOrgMode {
        org: "home".to_owned(),
        tool: "files.write_text".to_owned(),
        mode: Some(effectd::contracts::Mode::RequireApproval),
    };
    runtime.change_policy(mode).unwrap();
    let answer = say_yes(&runtime, &one, Approve::default(), &"p-1".parse().unwrap()).await;
    assert!(matches!(answer, Answer::Held(_)), "{answer:?}");
    // Whoever changes the parameters has not seen what they do.
    let params = note("p-2", "edited").params;
    let wish = Approve {
        params: Some(params),
        ..Approve::default()
    };
    let again = held(&runtime, note("p-3", "three")).await;
    let answer = say_yes(&runtime, &again, wish, &"p-3".parse().unwrap()).await;
    let record = receipt(&answer).preview.clone().unwrap();
    assert_eq!(record.verdict, PreviewVerdict::NotPreviewed);
    assert_eq!(std::fs::read_to_string(place.note("p.txt")).unwrap(), "edited");
    assert!(runtime.stop().await);
}

/// A tool of the embedding program, in two versions.
struct Note(&'static str);

impl effectd::adapters::Tool for Note {
    fn id(&self) -> &'static str {
        "own.note"
    }

    fn spec(&self) -> ToolSpec {
        let mut spec = effectd::adapters::files::WriteText.spec();
        spec.tool_id = self.id().parse().unwrap();
        spec.version = self.0.to_owned();
        spec.idempotency_key_fields = None;
        spec
    }

    fn example(&self) -> Value {
        effectd::adapters::files::WriteText.example()
    }

    fn check(&self, _: &Map<String, Value>) -> Result<(), Failure> {
        Ok(())
    }

    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<effectd::contracts::Touch>> {
        effectd::adapters::files::WriteText.touches(params)
    }

    fn run(&self, _: &effectd::adapters::Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        unreachable!("it is only ever asked about")
    }

    fn dry_run(&self, _: &effectd::adapters::Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        unreachable!("it is only ever asked about")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_the_tool_is_asked_about_again() {
    let place = asking("");
    let start = async |tools| {
        let mut config = Config::embedded(place.state()).unwrap();
        config.zygote_exe = program().into();
        config.tools = tools;
        Runtime::start(config).await.unwrap()
    };
    let runtime = start(&[&Note("1.0.0")]).await;
    let params = json!({ "path": "workspace/v.txt", "text": "v" });
    let asked = held(&runtime, request("v-1", "own.note", params)).await;
    // The program in the sandbox does not have this tool, and the question says that it cannot be shown.
    let hold = question(&runtime, &asked);
    assert!(matches!(
        hold.prompt.preview.as_deref(),
        Some(Preview::Unavailable(_))
    ));
    assert!(runtime.stop().await);
    let runtime = start(&[&Note("1.0.1")]).await;
    let answer = say_yes(&runtime, &asked, Approve::default(), &"v-1".parse().unwrap()).await;
    assert!(matches!(answer, Answer::Held(_)), "{answer:?}");
    assert!(!place.note("v.txt").exists());
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_can_veto_by_what_would_change() {
    let rules = "@id(\"no-deletes\")\nforbid (principal, action, resource)\nwhen { context.predicted.deletes > 0 };\n\
        @id(\"small-steps\")\nforbid (principal, action, resource)\n\
        when { !context.predicted.known || context.predicted.bytes > 10 || context.predicted.files > 2 };\n";
    let place = asking(rules);
    let runtime = place.runtime().await;
    let write = |action: &str, text: &str| {
        let params = json!({ "path": "workspace/w.txt", "text": text });
        request(action, "files.write_text", params)
    };
    // What is small is asked about, as before.
    let asked = held(&runtime, write("w-1", "small")).await;
    let done = say_yes(&runtime, &asked, Approve::default(), &"w-1".parse().unwrap()).await;
    assert_eq!(receipt(&done).outcome, Outcome::Executed);
    let undone = receipt(&done).receipt_id.to_string();
    let vetoes = [
        (write("w-2", "far too much of it"), "small-steps"),
        (
            request("w-3", "files.make_dir", json!({ "path": "workspace/a/b/c" })),
            "small-steps",
        ),
        (
            request("w-4", "files.delete", json!({ "path": "workspace/w.txt" })),
            "no-deletes",
        ),
        (
            request("w-5", "files.undo", json!({ "receipt_id": undone })),
            "no-deletes",
        ),
        (
            request("w-6", "files.read_text", json!({ "path": "workspace/w.txt" })),
            "small-steps",
        ),
    ];
    // What is too large to be tried out may be anything, so it passes no bound.
    std::fs::File::create(place.note("large"))
        .unwrap()
        .set_len(40 << 20)
        .unwrap();
    let large = request("w-7", "files.delete", json!({ "path": "workspace/large" }));
    let answer = runtime.exec(large).await;
    assert_eq!(receipt(&answer).outcome, Outcome::DeniedPolicy);
    assert!(place.note("large").exists());
    for (request, rule) in vetoes {
        let tool = request.tool_id.clone();
        let answer = runtime.exec(request).await;
        let receipt = receipt(&answer);
        assert_eq!(receipt.outcome, Outcome::DeniedPolicy, "{tool}");
        let decision = receipt.decision.as_ref().unwrap();
        let named = decision.rule.as_deref().unwrap_or_default();
        assert!(named.contains(rule), "{tool}: {named}");
        // The receipt is enough to come to the same verdict.
        let facts = effectd_policy::Facts::from_record(decision).unwrap();
        assert_eq!(
            facts.predicted.is_none(),
            tool.as_str() == "files.read_text",
            "{tool}"
        );
    }
    assert_eq!(std::fs::read_to_string(place.note("w.txt")).unwrap(), "small");
    assert!(runtime.stop().await);
}

/// Each of two is small enough by itself. Whatever is done first, the other one is not what the rule looked at.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_rule_looked_at_is_what_happens_or_nothing_does() {
    let rules = "@id(\"small-steps\")\nforbid (principal, action, resource)\nwhen { context.predicted.bytes > 10 };\n";
    let place = with_modes("\"files.append_text\" = \"allow\"", rules);
    let runtime = place.runtime().await;
    for nth in 0..5 {
        let name = format!("r{nth}.txt");
        std::fs::write(place.note(&name), "1234").unwrap();
        let append = |who: &str, text: &str| {
            let params = json!({ "path": format!("workspace/{name}"), "text": text });
            runtime.exec(request(&format!("{who}-{nth}"), "files.append_text", params))
        };
        let (one, other) = tokio::join!(append("one", "abcd"), append("other", "efgh"));
        let outcomes = [receipt(&one).outcome, receipt(&other).outcome];
        let done = outcomes.iter().filter(|outcome| **outcome == Outcome::Executed);
        assert_eq!(done.count(), 1, "{outcomes:?}");
        let length = std::fs::read(place.note(&name)).unwrap().len();
        assert_eq!(length, 8, "{outcomes:?}");
    }
    assert!(runtime.stop().await);
}

/// One file that nobody can look at does not take the conditions of the others along.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_looked_at_is_a_condition_beside_what_cannot() {
    let place = asking("");
    let runtime = place.runtime().await;
    std::fs::write(place.note("small"), "one\n").unwrap();
    let giant = std::fs::File::create(place.note("giant")).unwrap();
    giant.set_len(100_000_000).unwrap();
    let patch =
        "--- a/small\n+++ b/small\n@@ -1 +1 @@\n-one\n+two\n--- a/giant\n+++ b/giant\n@@ -1 +1 @@\n-a\n+b\n";
    let action = request("g-1", "files.apply_patch", json!({ "patch": patch }));
    let id = action.action_id.clone();
    let asked = held(&runtime, action).await;
    let hold = question(&runtime, &asked);
    let Some(Preview::Unavailable(why)) = hold.prompt.preview.as_deref() else {
        panic!("{:?}", hold.prompt.preview);
    };
    assert!(why.contains("workspace/giant cannot be looked at"), "{why}");
    std::fs::write(place.note("small"), "one\nmore\n").unwrap();
    let answer = say_yes(&runtime, &asked, Approve::default(), &id).await;
    assert!(matches!(answer, Answer::Held(_)), "{answer:?}");
    assert!(runtime.stop().await);
}

#[test]
fn a_planner_can_ask_what_would_come_of_a_request() {
    let place = asking("");
    std::fs::write(place.note("p.txt"), "old\nsame\n").unwrap();
    let ask = |tool: &str, params: Value, code: i32| {
        let mut body = serde_json::to_value(request("q-1", tool, params)).unwrap();
        body["rationale"] = json!({ "confidence": 0.8, "reason": "because" });
        place
            .effectd(&["preview", "-", "-o", "json"], Some(&body.to_string()))
            .json(code)
    };
    let write = json!({ "path": "workspace/p.txt", "text": "new\nsame\n" });
    let told = ask("files.write_text", write.clone(), 4);
    assert_eq!(told["verdict"], "needs_approval");
    let change = &told["preview"]["shown"]["changes"][0];
    assert_eq!(change["path"], "workspace/p.txt");
    assert_eq!(change["diff"]["text"], "@@ -1,2 +1,2 @@\n-old\n+new\n same\n");
    let fails = json!({ "path": "workspace/p.txt", "find": "nowhere", "replace": "x" });
    assert!(ask("files.edit_text", fails, 1)["preview"]["would_fail"].is_object());
    let denied = ask("command.run", json!({ "argv": ["true"] }), 3);
    assert!(
        denied["preview"]["unavailable"]
            .as_str()
            .unwrap()
            .contains("refuses")
    );
    let reads = ask("files.read_text", json!({ "path": "workspace/p.txt" }), 0);
    assert!(
        reads["preview"]["unavailable"]
            .as_str()
            .unwrap()
            .contains("cannot be previewed")
    );
    // Who may not read the files may still ask to write, and is not told what stands in them.
    let consent = |verb: &str| {
        let words = [
            "policy",
            verb,
            "--subject",
            "agent://planner@deviceA",
            "--space",
            "shared:household",
            "--purpose",
            "tool:files.read_text",
            "--yes",
        ];
        assert_eq!(place.effectd(&words, None).code(), 0);
    };
    consent("revoke-consent");
    let told = ask("files.write_text", write.clone(), 4);
    let change = &told["preview"]["shown"]["changes"][0];
    assert_eq!(
        (&change["path"], &change["diff"]),
        (&json!("workspace/p.txt"), &Value::Null)
    );
    let body = serde_json::to_string(&request("q-1", "files.write_text", write.clone())).unwrap();
    let text = place.effectd(&["preview", "-"], Some(&body)).stdout();
    assert!(
        text.contains("not yours to read") && !text.contains("-old"),
        "{text}"
    );
    consent("grant-consent");
    // The same for people.
    let body = serde_json::to_string(&request("q-1", "files.write_text", write)).unwrap();
    let text = place.effectd(&["preview", "-"], Some(&body)).stdout();
    assert!(
        text.contains("a person would be asked") && text.contains("    +new"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(place.note("p.txt")).unwrap(),
        "old\nsame\n"
    );
}
