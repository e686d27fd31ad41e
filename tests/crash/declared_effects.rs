//! Built-in tools under the check for undeclared effects: none is ever reported, and each does what its preview
//! showed.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use effectd::adapters::limits::INSPECT_BYTES_MAX;
use effectd::contracts::{Code, Effects, Origin, PreviewVerdict, Receipt};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::Approve;
use effectd_actors::approvals::decide::{DecideError, approve, deny};
use effectd_actors::control::rates::Rules;
use effectd_actors::preview::{Preview, foresee};
use effectd_actors::{Answer, Decider};
use serde_json::{Value, json};

use crate::Test;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed};
use crate::tools::{NEVER_DECLARED, SAFE_DECLARED};
use crate::undeclared_effects::request;

pub(crate) const TESTS: &[Test] = &[
    ("built_in_tools_are_never_reported_as_undeclared", no_false_alarm),
    ("an_approved_preview_is_what_happens_and_is_not_reported", no_false_alarm_when_asked),
    ("an_effect_is_repeated_if_its_state_differs_or_it_is_safe", repeated),
];

/// A pseudo-random generator with the same sequence in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }
}

/// A random call of one of the tools. There are few paths, so calls often meet.
fn any_call(chance: &mut Chance, receipts: &[String]) -> (&'static str, Value) {
    const PATHS: [&str; 12] = [
        "workspace/a",
        "workspace/b",
        "workspace/d/a",
        "workspace/d/b",
        "workspace/d/e/a",
        "workspace/f/a",
        "workspace/f/g/h/a",
        "workspace/d",
        "workspace/f",
        "tmp/x",
        "workspace/none/../x",
        "workspace/i.zip",
    ];
    const TOOLS: [&str; 15] = [
        "files.write_text",
        "files.append_text",
        "files.edit_text",
        "files.apply_patch",
        "files.make_dir",
        "files.copy",
        "files.move",
        "files.archive",
        "files.extract",
        "files.undo",
        "files.read_text",
        "files.list",
        "files.search",
        "files.stat",
        "artifact.put",
    ];
    let (tool, path, other) = (chance.of(&TOOLS), chance.of(&PATHS), chance.of(&PATHS));
    let (text, overwrite) = (chance.of(&["one\n", "two\n", ""]), chance.below(2) == 0);
    let two = json!({ "from_path": path, "to_path": other, "overwrite": overwrite });
    let params = match tool {
        "files.write_text" | "files.append_text" => json!({ "path": path, "text": text }),
        "files.edit_text" => json!({ "path": path, "find": "one", "replace": "two" }),
        "files.apply_patch" => {
            let name = path.strip_prefix("workspace/").unwrap_or("x");
            json!({ "patch": format!("--- {name}\n+++ {name}\n@@ -1 +1 @@\n-one\n+two\n") })
        }
        "files.copy" | "files.move" => two,
        "files.archive" => json!({ "from_path": path, "to_path": "workspace/i.zip", "overwrite": overwrite }),
        "files.extract" => {
            // Often to a path that does not exist.
            let new = format!("workspace/o/{}", chance.below(10_000));
            let to = if overwrite { &new } else { other };
            json!({ "from_path": "workspace/i.zip", "to_path": to })
        }
        "files.undo" => {
            let none = "none".to_owned();
            let last = receipts.len().saturating_sub(chance.below(8) + 1);
            json!({ "receipt_id": receipts.get(last).unwrap_or(&none) })
        }
        "files.search" => json!({ "path": path, "text": "one" }),
        _ => json!({ "path": path }),
    };
    (tool, params)
}

/// Calls in all, four at a time; `EFFECTD_CALLS` sets another number.
const CALLS: usize = 1_000;

fn calls() -> usize {
    let asked = std::env::var("EFFECTD_CALLS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(CALLS)
}

/// How many calls ended with which code, by tool.
#[derive(Default)]
struct Outcomes(BTreeMap<String, usize>);

impl Outcomes {
    fn note(&mut self, receipt: &Receipt) {
        if let Effects::Observed(observed) = &receipt.effects {
            assert_eq!(observed.undeclared, [], "{receipt:?}");
        }
        let code = receipt.error.as_ref().map_or("ok", |failure| failure.code.as_str());
        assert_ne!(code, Code::EffectsUndeclared.as_str(), "{receipt:?}");
        assert_ne!(code, Code::ToolDisabled.as_str(), "{receipt:?}");
        *self.0.entry(format!("{} {code}", receipt.tool_id)).or_default() += 1;
    }

    /// How many calls succeeded, and with how many different tools.
    fn done(&self) -> (usize, usize) {
        let done: Vec<_> = self.0.iter().filter(|(key, _)| key.ends_with(" ok")).collect();
        (done.iter().map(|(_, count)| **count).sum(), done.len())
    }
}

/// Makes this many calls of built-in tools, all of them checked for undeclared effects, and counts their codes.
fn random_calls(place: &Place, calls: usize, seed: u64) -> Outcomes {
    let mut outcomes = Outcomes::default();
    asynchronously(async {
        let runtime = Arc::new(
            place
                .runtime(|config| {
                    config.pipeline.control.session_actions_max = u32::MAX;
                    config.pipeline.control.rates = Rules::UNLIMITED;
                    config.pipeline.scan_core_entries_max = 100_000;
                })
                .await,
        );
        let (mut chance, mut receipts, mut asked) = (Chance(seed), Vec::new(), 0);
        while asked < calls {
            let mut running = tokio::task::JoinSet::new();
            for _ in 0..4.min(calls - asked) {
                let (tool, mut params) = any_call(&mut chance, &receipts);
                params["space_id"] = json!("shared:household");
                let (runtime, request) = (runtime.clone(), request(&format!("c-{asked}"), tool, &params));
                running.spawn(async move { agreed(&runtime, &request).await });
                asked += 1;
            }
            for receipt in running.join_all().await.into_iter().flatten() {
                outcomes.note(&receipt);
                receipts.push(receipt.receipt_id.to_string());
            }
        }
        let runtime = Arc::into_inner(runtime).expect("nobody else has it");
        assert!(runtime.stop().await);
    });
    outcomes
}

/// Carries out an action and approves it as often as it is held; `None` if other actions invalidate the approval each time.
async fn agreed(runtime: &Runtime, request: &Value) -> Option<Receipt> {
    let request = parsed(request);
    let id = request.action_id.clone();
    let mut answer = runtime.exec(request).await;
    let operator = Decider::local(Config::embedded(".").unwrap().principal, true);
    let services = runtime.pipeline().services();
    for _ in 0..8 {
        let held = match answer {
            Answer::Done(done) => {
                let receipt = (*done.receipt).clone();
                let record = receipt.preview.as_ref();
                let differed = record.is_some_and(|record| record.verdict == PreviewVerdict::Differed);
                assert!(!differed || receipt.error.is_some(), "{receipt:?}");
                return Some(receipt);
            }
            Answer::Held(held) => held,
            refused @ Answer::Refused(_) => panic!("{refused:?}"),
        };
        // Equal requests share one question, which another caller may have answered.
        match approve(services, &held.approval_id, &operator, Approve::default()).await {
            Ok(_) | Err(DecideError::Changed | DecideError::Already(_) | DecideError::Unknown) => {}
            Err(error) => panic!("{error}"),
        }
        let waiting = runtime.pipeline().wait_or_held(&id);
        answer = tokio::time::timeout(PATIENCE, waiting).await.expect("it ends, or is asked again").unwrap();
    }
    if let Answer::Held(held) = answer {
        // Denied to make room for the next one, unless it is decided by now.
        let _decided = deny(services, &held.approval_id, &operator, None).await;
    }
    None
}

const SEED: u64 = 7;

fn no_false_alarm() {
    let (place, calls) = (Place::new(), calls());
    place.set_policy(&[]);
    let outcomes = random_calls(&place, calls, SEED);
    let (well, kinds) = outcomes.done();
    assert!(well * 4 > calls, "most came to nothing: {:?}", outcomes.0);
    assert!(kinds >= 12, "some tools never did anything: {:?}", outcomes.0);
    println!("  {calls} calls by the seed {SEED}, {well} of them, with {kinds} tools, did something");
}

fn no_false_alarm_when_asked() {
    const ASKED: [&str; 10] = [
        "files.write_text",
        "files.append_text",
        "files.edit_text",
        "files.apply_patch",
        "files.make_dir",
        "files.copy",
        "files.move",
        "files.archive",
        "files.extract",
        "files.undo",
    ];
    let (place, calls) = (Place::new(), calls() / 2);
    place.set_policy(&[]);
    let file = place.state().join("policy/policy.toml");
    let text = fs::read_to_string(&file).unwrap();
    // The policy's own examples depend on what this changes.
    let text = text.split("[example_tools").next().unwrap();
    let modes = ASKED.map(|tool| format!("{tool:?} = \"require_approval\""));
    let text = text.replace("\"files.write_text\" = \"allow\"", &modes.join(", "));
    fs::write(&file, text).unwrap();
    let outcomes = random_calls(&place, calls, SEED + 1);
    let (well, kinds) = outcomes.done();
    assert!(well * 20 > calls, "most came to nothing: {:?}", outcomes.0);
    assert!(kinds >= 8, "some tools never did anything: {:?}", outcomes.0);
    println!("  {calls} calls by the seed {}, {well} of them, with {kinds} tools, did something", SEED + 1);
}

/// The preview and the run agree about what is already done. If nobody can tell, only a safe effect happens again.
fn repeated() {
    asynchronously(async {
        let place = Place::new();
        place.set_policy(&[SAFE_DECLARED, NEVER_DECLARED]);
        let runtime = place.runtime(|_| ()).await;
        let principal = place.config().principal;
        for (tool, is_safe) in [(NEVER_DECLARED, false), (SAFE_DECLARED, true)] {
            let call =
                |nth: usize| parsed(&request(&format!("{tool}-{nth}"), tool, &json!({ "name": tool })));
            let before = async |nth: usize| match runtime.exec(call(nth)).await {
                Answer::Done(done) => {
                    assert_eq!(done.receipt.error, None, "{tool} {nth}");
                    done.before
                }
                other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{tool} {nth}: {other:?}"),
            };
            assert!(!before(1).await, "{tool}");
            let foreseen = foresee(runtime.pipeline().services(), &call(2), (&principal, &Origin::Arbiter))
                .await
                .unwrap();
            let Preview::Unavailable(why) = foreseen.preview else { panic!("{tool}: {foreseen:?}") };
            assert!(why.starts_with("already done: receipt "), "{tool}: {why}");
            assert!(before(2).await, "{tool}");
            let beside = place.workspace().join(format!("beside-{tool}"));
            fs::write(&beside, "by an editor").unwrap();
            assert!(!before(3).await && before(4).await, "{tool}");
            // Too large to be read.
            fs::OpenOptions::new().write(true).open(&beside).unwrap().set_len(INSPECT_BYTES_MAX + 1).unwrap();
            assert_eq!(before(5).await, !is_safe, "{tool}");
            assert_eq!(place.runs(tool), 2 + usize::from(is_safe), "{tool}");
        }
        assert!(runtime.stop().await);
    });
}
