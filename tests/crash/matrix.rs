//! The crash matrix: at every failpoint, for a tool of each repeat class, by `exec` and by `submit`, the process is
//! killed from outside, and the next process must end the action with one true receipt.

use std::sync::OnceLock;

use effectd::contracts::{Code, Outcome, Receipt, Status};

use crate::Test;
use crate::child::Report;
use crate::harness::side_by_side;
use crate::place::{Order, PATIENCE, Place, request};
use crate::tools::{NEVER, PROBE, SAFE};

pub(crate) const TESTS: &[Test] = &[
    ("matrix_one_action_has_one_receipt_whatever_is_killed", one_receipt),
    ("matrix_intent_before_effect_and_receipt_before_answer", written_first),
    ("matrix_a_possible_effect_is_not_silently_repeated", not_repeated),
    ("matrix_every_point_was_really_visited", every_point_visited),
];

const CLASSES: [&str; 3] = [SAFE, PROBE, NEVER];

/// How far an action has got at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stood {
    /// The decision is not on disk, unless it was submitted.
    Asked,
    /// Claim and intent are on disk, the effect has not begun.
    Claimed,
    /// The effect has happened, the receipt is not on disk.
    Done,
    Recorded,
}

/// Every point, with how far an action has got there, if that is certain. Points of the tool begin with `tool.`, points of
/// the Store with `writer.`, `journal.` or `index.`.
pub(crate) const WAY: [(&str, Option<Stood>); 21] = [
    ("validator.begin:1", Some(Stood::Asked)),
    ("validator.end:1", Some(Stood::Asked)),
    ("gate.begin:1", Some(Stood::Asked)),
    ("gate.end:1", Some(Stood::Asked)),
    ("idempotency.begin:1", Some(Stood::Asked)),
    ("idempotency.before_claim:1", Some(Stood::Asked)),
    ("idempotency.after_claim:1", Some(Stood::Claimed)),
    ("executor.begin:1", Some(Stood::Claimed)),
    ("executor.after_prepare:1", Some(Stood::Claimed)),
    ("executor.before_child:1", Some(Stood::Claimed)),
    ("tool.before_effect", Some(Stood::Claimed)),
    ("tool.after_effect", Some(Stood::Done)),
    ("executor.after_child:1", Some(Stood::Done)),
    ("executor.end:1", Some(Stood::Done)),
    ("recorder.begin:1", Some(Stood::Done)),
    ("recorder.before_commit:1", Some(Stood::Done)),
    ("recorder.after_commit:1", Some(Stood::Recorded)),
    ("recorder.after_answer:1", Some(Stood::Recorded)),
    // Only on the way through the bus.
    ("door.before_publish:1", Some(Stood::Asked)),
    // From here on other threads carry the action on until the kill arrives.
    ("door.after_publish:1", None),
    ("intake.after_lease:1", Some(Stood::Asked)),
];

/// Kills during the recovery from an earlier kill: the first point, the second, and the classes that pass it.
const TWICE: [(&str, &str, &[&str]); 8] = [
    ("tool.before_effect", "idempotency.after_take_over:1", &CLASSES),
    ("tool.after_effect", "idempotency.after_take_over:1", &CLASSES),
    ("tool.before_effect", "executor.before_probe:1", &[PROBE]),
    ("tool.after_effect", "executor.before_probe:1", &[PROBE]),
    ("tool.after_effect", "executor.before_child:1", &[SAFE, PROBE]),
    ("executor.after_child:1", "recorder.before_commit:1", &CLASSES),
    ("executor.after_child:1", "recorder.after_commit:1", &CLASSES),
    ("idempotency.after_claim:1", "intake.after_lease:1", &CLASSES),
];

/// Kills inside the Store's own writes. Which write it is depends on the way in, so how far the action has got is not known.
const STORE: [&str; 6] = [
    "writer.before_append:2",
    "journal.after_flush:2",
    "writer.before_answer:2",
    "writer.before_append:3",
    "journal.after_insert:3",
    "writer.before_answer:3",
];

#[derive(Debug, Clone)]
struct Case {
    tool: &'static str,
    way: &'static str,
    kills: Vec<&'static str>,
    /// How far the action has got, if that is known.
    stood: Option<Stood>,
}

#[derive(Debug)]
struct Seen {
    case: Case,
    /// How many kills happened at their point.
    visited: usize,
    effects_at_kill: usize,
    /// The answer that the caller got before the first kill.
    told_before: Option<Receipt>,
    answer: Receipt,
    report: Report,
    effects: usize,
    runs: usize,
}

const ACTION: &str = "a";

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in ["exec", "submit"] {
        for tool in CLASSES {
            for (point, stood) in WAY {
                let through_bus = point.starts_with("door.") || point.starts_with("intake.");
                if way == "submit" || !through_bus {
                    cases.push(Case { tool, way, kills: vec![point], stood });
                }
            }
        }
    }
    for (first, second, classes) in TWICE {
        for tool in classes {
            cases.push(Case {
                tool,
                way: "exec",
                kills: vec![first, second],
                stood: WAY.iter().find(|(point, _)| *point == first).and_then(|(_, stood)| *stood),
            });
        }
    }
    for (point, way) in STORE.into_iter().flat_map(|point| [(point, "exec"), (point, "submit")]) {
        cases.push(Case { tool: NEVER, way, kills: vec![point], stood: None });
    }
    cases
}

fn seen() -> &'static [Seen] {
    static SEEN: OnceLock<Vec<Seen>> = OnceLock::new();
    SEEN.get_or_init(|| side_by_side(&cases(), run))
}

fn run(case: &Case) -> Seen {
    let place = Place::new();
    let asked = request(ACTION, case.tool);
    let mut seen = (0, 0, None);
    let mut mode = case.way;
    for (nth, point) in case.kills.iter().enumerate() {
        let (visited, said) = kill_at(&place, mode, point, &asked);
        seen.0 += usize::from(visited);
        if nth == 0 {
            seen.1 = place.effects(ACTION);
            seen.2 = said
                .iter()
                .find_map(|line| line.strip_prefix("answer "))
                .map(|text| serde_json::from_str(text).unwrap());
        }
        mode = again(case, &said);
    }
    let mut ended = place.run(mode, std::slice::from_ref(&asked));
    let answer = serde_json::from_value(ended.answers.remove(0)).unwrap();
    Seen {
        case: case.clone(),
        visited: seen.0,
        effects_at_kill: seen.1,
        told_before: seen.2,
        answer,
        report: ended.report,
        effects: place.effects(ACTION),
        runs: place.runs(ACTION),
    }
}

/// A caller asks again only if its decision was neither accepted nor claimed.
fn again(case: &Case, said: &[String]) -> &'static str {
    let accepted = said.iter().any(|line| line.starts_with("accepted"));
    let claimed = case.stood.is_some_and(|stood| stood >= Stood::Claimed);
    let published = case.way == "submit"
        && case.kills.first().is_some_and(|first| {
            WAY.iter().any(|(point, _)| point == first) && *first != "door.before_publish:1"
        });
    if accepted || claimed || published { "wait" } else { case.way }
}

/// Runs until the point and kills there. Returns whether the point was reached, and what the process printed.
pub(crate) fn kill_at(
    place: &Place,
    mode: &'static str,
    point: &str,
    request: &serde_json::Value,
) -> (bool, Vec<String>) {
    let mut order = Order { mode, requests: vec![request.clone()], stop_at: None };
    let mut said = Vec::new();
    if let Some(inside) = point.strip_prefix("tool.") {
        place.stop_tools(Some(inside));
        let marker = place.marker();
        let process = place.start(&order);
        let visited = marker.recv_timeout(PATIENCE).is_ok_and(|line| line == "stopped");
        said.extend(process.kill());
        place.stop_tools(None);
        return (visited, said);
    }
    order.stop_at = Some(point.to_owned());
    let process = place.start(&order);
    let visited = process.stopped(&mut said);
    if point.starts_with("recorder.after_answer") {
        // The caller has its answer, and may not have printed it yet.
        while !said.iter().any(|line| line.starts_with("answer ")) {
            said.push(process.line().expect("an answer"));
        }
    }
    said.extend(process.kill());
    (visited, said)
}

/// Invariant 1.
fn one_receipt() {
    for seen in seen() {
        let of = &seen.case;
        let receipt = seen.report.the_receipt(ACTION);
        assert_eq!(seen.report.receipts.len(), 1, "{of:?}");
        assert_eq!(receipt.receipt_id, seen.answer.receipt_id, "{of:?}");
        seen.report.all_settled();
        let expected = expected(seen);
        let got = (receipt.outcome, receipt.error.as_ref().map(|failure| failure.code));
        assert_eq!(got, expected, "{of:?} does not tell the truth: {receipt:#?}");
        assert_eq!(receipt.status == Status::Ok, expected.1.is_none(), "{of:?}");
        let letters = seen.report.letters_of(ACTION);
        if expected.1.is_some() {
            assert_eq!(letters.len(), 1, "{of:?}: a person must hear of it");
            assert_eq!(letters[0].code, "outcome_unknown", "{of:?}");
            assert_eq!(letters[0].receipt_id.as_deref(), Some(receipt.receipt_id.as_str()));
        } else {
            assert!(letters.is_empty(), "{of:?}: {letters:?}");
        }
    }
}

/// How the action must end. After a kill inside the Store, this depends on what was on disk.
fn expected(seen: &Seen) -> (Outcome, Option<Code>) {
    let unknown = (Outcome::Indeterminate, Some(Code::OutcomeUnknown));
    let done = (Outcome::Executed, None);
    match seen.case.stood {
        Some(Stood::Asked | Stood::Recorded) => done,
        Some(Stood::Claimed | Stood::Done) if seen.case.tool == NEVER => unknown,
        Some(Stood::Claimed | Stood::Done) => done,
        None if seen.answer.status == Status::Ok => done,
        None => unknown,
    }
}

/// Invariant 2.
fn written_first() {
    for seen in seen() {
        let of = &seen.case;
        match of.stood {
            Some(Stood::Asked | Stood::Claimed) => assert_eq!(seen.effects_at_kill, 0, "{of:?}"),
            Some(Stood::Done | Stood::Recorded) => assert_eq!(seen.effects_at_kill, 1, "{of:?}"),
            None => assert!(seen.effects_at_kill <= 1, "{of:?}"),
        }
        if let Some(told) = &seen.told_before {
            let receipt = seen.report.the_receipt(ACTION);
            assert_eq!(told, receipt, "{of:?}: something was told that is not on disk");
            assert!(of.stood.is_none_or(|stood| stood == Stood::Recorded), "{of:?}");
        }
    }
    let told = seen().iter().filter(|seen| seen.told_before.is_some()).count();
    assert!(told > 0, "nobody was ever told, so nothing was shown");
}

/// Invariant 3.
fn not_repeated() {
    for seen in seen() {
        let of = &seen.case;
        let unknown = seen.answer.outcome == Outcome::Indeterminate;
        match of.tool {
            // Repeating is harmless, at most once for each kill.
            SAFE => {
                assert!((1..=1 + of.kills.len()).contains(&seen.effects), "{of:?}: {} effects", seen.effects)
            }
            PROBE => {
                assert_eq!(seen.effects, 1, "{of:?}");
                let by_probe = seen.answer.outputs.contains_key("settled_by");
                let expected = of.stood.map(|stood| stood == Stood::Done);
                assert!(expected.is_none_or(|expected| by_probe == expected), "{of:?}: {:#?}", seen.answer);
            }
            NEVER => {
                assert!(seen.runs <= 1, "{of:?}: it ran {} times", seen.runs);
                let happened = match of.stood {
                    Some(Stood::Claimed) => Some(0),
                    Some(Stood::Asked | Stood::Done | Stood::Recorded) => Some(1),
                    None => None,
                };
                assert!(happened.is_none_or(|happened| happened == seen.effects), "{of:?}");
                assert!(unknown || seen.effects == 1, "{of:?}: ok without an effect");
            }
            other => panic!("no class {other}"),
        }
    }
    // The control: where repeating is allowed, it really happens, and the witness sees it.
    let repeatable =
        seen().iter().filter(|seen| seen.case.tool == SAFE && seen.case.stood == Some(Stood::Done));
    for seen in repeatable {
        assert!(seen.effects >= 2, "{:?}: the witness missed a repetition", seen.case);
    }
}

/// A point that is never reached proves nothing.
fn every_point_visited() {
    let mut missed = Vec::new();
    for seen in seen() {
        if seen.visited < seen.case.kills.len() {
            missed.push(format!("{:?}", seen.case));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    let named: Vec<_> = WAY.iter().map(|(point, _)| *point).collect();
    for point in effectd_actors::failpoint::POINTS {
        // The tests of the daemon kill at the points of approvals, operations, sessions and automations, those of batches and plans at theirs.
        let elsewhere = ["batch.", "plan.", "held.", "operation.", "session.", "automation."]
            .iter()
            .any(|group| point.starts_with(group));
        let idle = ["intake.before_lease", "sweeper.begin"].contains(&point) || elsewhere;
        let visited = named
            .iter()
            .chain(TWICE.iter().flat_map(|(first, second, _)| [first, second]))
            .any(|name| name.split(':').next() == Some(point));
        assert!(visited || idle, "{point} is not in the matrix");
    }
    println!("     {} ways of dying", seen().len());
}
