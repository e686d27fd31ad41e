//! Too much at once: bounded memory, typed refusals, nothing lost; and one subject's flood is not another's wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use effectd::contracts::{ActionRequest, Code};
use effectd::{Answer, Runtime};
use serde_json::json;

use crate::Test;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed, request};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    (
        "a_flood_is_answered_with_receipts_or_overloaded_and_memory_stays_flat",
        flood,
    ),
    ("a_flooding_subject_does_not_hold_up_another", fairness),
];

/// Decisions of the flood, unless the environment asks for more.
const DECISIONS: usize = 4_000;
const DECISIONS_VARIABLE: &str = "EFFECTD_TEST_FLOOD";
const CALLERS: usize = 1_000;
/// By how much memory may grow between the first quarter of the flood and its end: the store's caches are filled meanwhile.
const GROWTH_BYTES_MAX: usize = 96 << 20;

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn decisions() -> usize {
    let asked = std::env::var(DECISIONS_VARIABLE).ok();
    asked.map_or(DECISIONS, |asked| asked.parse().expect("a number"))
}

#[derive(Default)]
struct Tally {
    next: AtomicUsize,
    done: AtomicUsize,
    overloaded: AtomicUsize,
    submitted: AtomicUsize,
    quarter_bytes: AtomicUsize,
}

/// One caller: every eighth decision is submitted, the others are waited for.
async fn call(runtime: Arc<Runtime>, tally: Arc<Tally>, all: usize) {
    loop {
        let n = tally.next.fetch_add(1, Ordering::Relaxed);
        if n >= all {
            return;
        }
        if n == all / 4 {
            tally.quarter_bytes.store(resident_bytes(), Ordering::Relaxed);
        }
        let asked = parsed(&request(&format!("a{n}"), SAFE));
        let refused = if n.is_multiple_of(8) {
            match runtime.submit(asked).await {
                Ok(_) => {
                    tally.submitted.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(failure) => failure,
            }
        } else {
            match runtime.exec(asked).await {
                Answer::Done(_) => {
                    tally.done.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Answer::Held(held) => panic!("{held:?}"),
                Answer::Refused(failure) => failure,
            }
        };
        assert_eq!(refused.code, Code::Overloaded, "{refused}");
        assert!(refused.retry_after_ms.is_some());
        tally.overloaded.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

fn flood() {
    asynchronously(async {
        let (all, begun) = (decisions(), Instant::now());
        let place = Place::new();
        let runtime = Arc::new(place.runtime(|_| ()).await);
        let tally = Arc::new(Tally::default());
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| tokio::spawn(call(runtime.clone(), tally.clone(), all)))
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let growth = resident_bytes().saturating_sub(count(&tally.quarter_bytes));
        println!(
            "flood of {all}: {} done, {} submitted, {} overloaded, {:.1} s, memory grew by {} KiB after the first quarter",
            count(&tally.done),
            count(&tally.submitted),
            count(&tally.overloaded),
            begun.elapsed().as_secs_f64(),
            growth >> 10,
        );
        assert_eq!(
            count(&tally.done) + count(&tally.submitted) + count(&tally.overloaded),
            all
        );
        assert!(count(&tally.overloaded) > 0, "it was a flood");
        assert!(growth <= GROWTH_BYTES_MAX, "{growth}");
        // Stopped in the middle of what was submitted; the next one finishes it.
        let runtime = Arc::try_unwrap(runtime).expect("all callers are back");
        runtime.stop().await;
        let runtime = place.runtime(|_| ()).await;
        for n in (0..all).step_by(8) {
            let id = format!("a{n}").parse().unwrap();
            let answer = tokio::time::timeout(PATIENCE, runtime.pipeline().wait(&id)).await;
            let answer = answer.unwrap_or_else(|_| panic!("a{n} was acknowledged and has no receipt"));
            assert!(matches!(answer, Ok(Answer::Done(_))), "a{n}: {answer:?}");
        }
        assert!(runtime.stop().await);
    });
}

const FLOODERS: usize = 150;
const VISITS: usize = 30;

fn by(subject: &str, action: String) -> ActionRequest {
    let mut asked = request(&action, SAFE);
    asked["subject_id"] = json!(subject);
    parsed(&asked)
}

/// Lets another subject use the same tool.
pub(crate) fn add_other(place: &Place) {
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (planner, other) = ("agent://planner@deviceA", "agent://other@deviceA");
    let speaks = format!("subjects = [\"{planner}\"");
    assert!(
        text.contains(&speaks),
        "the demo policy names who may be spoken for"
    );
    let text = text.replacen(&speaks, &format!("{speaks}, \"{other}\""), 1);
    let more = format!(
        "\n[subjects.\"{other}\"]\nroles = [\"planner\"]\n\n[[consents]]\nsubject = \"{other}\"\n\
         space = \"shared:household\"\npurpose = \"tool:{SAFE}\"\n"
    );
    std::fs::write(file, text + &more).unwrap();
}

/// How many of the flood's actions end while one of another subject is on its way. In the order of arrival it would be about
/// as many as are on their way.
fn fairness() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let runtime = Arc::new(place.runtime(|_| ()).await);
        let (ended, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let flood: Vec<_> = (0..FLOODERS)
            .map(|lane| {
                let (runtime, ended, over) = (runtime.clone(), ended.clone(), over.clone());
                tokio::spawn(async move {
                    let mut n = 0;
                    while !over.load(Ordering::Relaxed) {
                        n += 1;
                        let asked = by("agent://planner@deviceA", format!("flood-{lane}-{n}"));
                        if matches!(runtime.exec(asked).await, Answer::Done(_)) {
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let mut passed = Vec::new();
        // The flood is at its height when each of its lanes has ended one.
        while ended.load(Ordering::Relaxed) < FLOODERS {
            tokio::task::yield_now().await;
        }
        for n in 0..VISITS {
            let before = ended.load(Ordering::Relaxed);
            match runtime
                .exec(by("agent://other@deviceA", format!("other-{n}")))
                .await
            {
                Answer::Done(done) => assert_eq!(done.receipt.error, None),
                Answer::Held(held) => panic!("{held:?}"),
                Answer::Refused(failure) => panic!("{failure}"),
            }
            passed.push(ended.load(Ordering::Relaxed) - before);
        }
        over.store(true, Ordering::Relaxed);
        for lane in flood {
            lane.await.unwrap();
        }
        passed.sort_unstable();
        let median = passed[VISITS / 2];
        println!(
            "while one of another subject was on its way, {median} of {FLOODERS} of the flood ended (median)"
        );
        assert!(median < FLOODERS / 2, "{passed:?}");
        assert!(Arc::try_unwrap(runtime).expect("all are back").stop().await);
    });
}
