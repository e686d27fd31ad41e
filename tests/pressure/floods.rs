//! Floods: bounded memory, typed refusals, nothing lost, and a noisy tenant does not delay another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use effectd::contracts::{ActionRequest, Code, Event, ExecutedData, Topic};
use effectd::internal::{Config, Runtime};
use effectd_actors::Answer;
use effectd_actors::control::rates::Rules;
use effectd_actors::limits::STARTS_PER_CORE;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::Test;
use crate::harness::{asynchronously, until};
use crate::place::{PATIENCE, Place, parsed, request, request_how};
use crate::tools::SAFE;

pub(crate) const TESTS: &[Test] = &[
    ("a_flood_gets_receipts_or_overloaded_and_memory_stays_flat", flood),
    ("a_flooding_subject_does_not_hold_up_another", fairness),
    ("a_flooding_subject_leaves_starts_for_the_others", starts),
];

/// Decisions of the flood, unless the environment asks for more.
const DECISIONS: usize = 4_000;
const DECISIONS_VARIABLE: &str = "EFFECTD_TEST_FLOOD";
const CALLERS: usize = 1_000;
/// How much memory may grow between the first quarter of the flood and its end, while the caches of the store fill.
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

/// One caller: every eighth decision is submitted, the others are executed.
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
        let runtime =
            Arc::new(place.runtime(|config| config.pipeline.control.rates = Rules::UNLIMITED).await);
        let tally = Arc::new(Tally::default());
        let callers: Vec<_> =
            (0..CALLERS).map(|_| tokio::spawn(call(runtime.clone(), tally.clone(), all))).collect();
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
        assert_eq!(count(&tally.done) + count(&tally.submitted) + count(&tally.overloaded), all);
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
const PLANNER: &str = "agent://planner@deviceA";
pub(crate) const OTHER: &str = "agent://other@deviceA";

fn by(subject: &str, action: String) -> ActionRequest {
    let mut asked = request(&action, SAFE);
    asked["subject_id"] = json!(subject);
    parsed(&asked)
}

/// Lets another subject use the same tool.
pub(crate) fn add_other(place: &Place) {
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let speaks = format!("subjects = [\"{PLANNER}\"");
    assert!(text.contains(&speaks), "the demo policy names who may be spoken for");
    let text = text.replacen(&speaks, &format!("{speaks}, \"{OTHER}\""), 1);
    let more = format!(
        "\n[subjects.\"{OTHER}\"]\nroles = [\"planner\"]\n\n[[consents]]\nsubject = \"{OTHER}\"\n\
         space = \"shared:household\"\npurpose = \"tool:{SAFE}\"\n"
    );
    std::fs::write(file, text + &more).unwrap();
}

fn carry_out(runtime: &Arc<Runtime>, asked: ActionRequest) -> JoinHandle<()> {
    let runtime = runtime.clone();
    tokio::spawn(async move {
        match runtime.exec(asked).await {
            Answer::Done(done) => assert_eq!(done.receipt.error, None),
            Answer::Held(held) => panic!("{held:?}"),
            Answer::Refused(failure) => panic!("{failure}"),
        }
    })
}

/// One subject has a hundred and fifty actions in the queue for the only place, another comes behind them. From then on their turns
/// alternate; in the order of arrival, the first of the other would come after all of the flood.
fn fairness() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let marker = place.marker();
        let one_place = |config: &mut Config| {
            config.pipeline.in_flight_max = 1;
            config.pipeline.control.admission_wait_max = PATIENCE;
            config.pipeline.control.rates = Rules::UNLIMITED;
        };
        let runtime = Arc::new(place.runtime(one_place).await);
        let queue = &runtime.pipeline().services().control.slots;
        // The place is taken until all of them wait for it.
        let mut all = vec![carry_out(&runtime, parsed(&request_how("first", SAFE, "wait")))];
        let said = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE)).await;
        assert_eq!(said.unwrap().unwrap(), "waiting");
        all.extend((0..FLOODERS).map(|n| carry_out(&runtime, by(PLANNER, format!("flood-{n}")))));
        until("the flood waits", || queue.waiting() == FLOODERS).await;
        all.extend((0..VISITS).map(|n| carry_out(&runtime, by(OTHER, format!("other-{n}")))));
        until("the other waits", || queue.waiting() == FLOODERS + VISITS).await;
        place.open_gate();
        for one in all {
            one.await.unwrap();
        }
        let events = runtime.store().read(&Topic::ActionExecuted.into(), 0, 1_000).unwrap().events;
        let ended = events.iter().map(|event| {
            let event: Event<ExecutedData> = serde_json::from_slice(event.body.bytes().unwrap()).unwrap();
            event.data.action_id.to_string()
        });
        let ended: Vec<String> = ended.collect();
        assert_eq!(ended.len(), 1 + FLOODERS + VISITS);
        // Behind the first there is one of the flood for each of the other's.
        let others = ended.iter().enumerate().filter(|(_, action)| action.starts_with("other-"));
        for (nth, (position, action)) in others.enumerate() {
            assert!(position <= 2 * nth + 2, "{action} ended as number {position}: {ended:?}");
        }
        assert!(Arc::try_unwrap(runtime).expect("all are back").stop().await);
    });
}

/// However much one subject starts, a third of the starts is left for the others.
fn starts() {
    asynchronously(async {
        let place = Place::new();
        add_other(&place);
        let runtime =
            Arc::new(place.runtime(|config| config.pipeline.control.rates = Rules::UNLIMITED).await);
        let over = Arc::new(AtomicBool::new(false));
        let flood: Vec<_> = (0..FLOODERS)
            .map(|lane| {
                let (runtime, over) = (runtime.clone(), over.clone());
                tokio::spawn(async move {
                    let mut n = 0;
                    while !over.load(Ordering::Relaxed) {
                        n += 1;
                        let asked = by(PLANNER, format!("flood-{lane}-{n}"));
                        drop(runtime.exec(asked).await);
                    }
                })
            })
            .collect();
        let queue = &runtime.pipeline().services().control.starts;
        let all = std::thread::available_parallelism().unwrap().get() * STARTS_PER_CORE;
        for n in 0..VISITS {
            // The flood is at its height when some of it waits for a start, though it has all that one subject may have.
            until("the flood waits for starts", || queue.waiting() > 0).await;
            let taken = queue.taken();
            assert!(taken <= all - all / 3, "{taken} of {all} starts");
            carry_out(&runtime, by(OTHER, format!("other-{n}"))).await.unwrap();
        }
        over.store(true, Ordering::Relaxed);
        for lane in flood {
            lane.await.unwrap();
        }
        assert!(Arc::try_unwrap(runtime).expect("all are back").stop().await);
    });
}
