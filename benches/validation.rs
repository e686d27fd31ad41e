//! The cost of parsing a request and validating it against its tool's schema: `cargo bench --bench validation`.
//!
//! From bytes to a request (bounds on depth, number of values and bytes are checked on the way), its parameters against the
//! schema and the tool's own rules, and its digests; for small and for large parameters.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement prints, and stops on errors"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use effectd_contracts::ActionRequest;
use serde_json::json;

/// Bytes of text in the parameters. The last fills a request nearly to its bound.
const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
/// What is read in all for each line, so that each takes about as long.
const BYTES: usize = 30_000_000;

fn main() {
    let registry = effectd::internal::registry(&[]).unwrap();
    println!("{:<28} {:>12} {:>10} {:>10}", "", "bytes", "p50 µs", "p99 µs");
    for size in SIZES {
        let asked = json!({
            "action_id": "a-1", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
            "tool_id": "files.write_text", "policy_ctx": { "actor": "alice", "device": "phone1" },
            "params": {
                "path": "workspace/notes/n.txt", "text": "a line of text ".repeat(size / 15 + 1),
                "space_id": "shared:household",
            },
        });
        let bytes = asked.to_string().into_bytes();
        let request = ActionRequest::parse(&bytes).unwrap();
        let entry = registry.find(&request.tool_id).unwrap();
        let rounds = (BYTES / bytes.len()).clamp(30, 5_000);
        let show = |what: &str, times: Vec<Duration>| report(what, bytes.len(), times);
        show("decode", measure(rounds, || drop(black_box(ActionRequest::parse(&bytes)))));
        show(
            "check against the schema",
            measure(rounds, || entry.check_params(black_box(&request.params)).unwrap()),
        );
        show(
            "digests",
            measure(rounds, || {
                black_box((request.digest(), request.params_digest()));
            }),
        );
    }
    refusals(&registry);
}

/// Invalid parameters are refused as fast as valid ones are accepted.
fn refusals(registry: &effectd_actors::Registry) {
    let tool = "files.write_text".parse().unwrap();
    let entry = registry.find(&tool).unwrap();
    let wrong = json!({ "path": "workspace/../..", "text": 7, "space_id": "shared:household", "more": true });
    let wrong = wrong.as_object().unwrap();
    let times = measure(2_000, || assert!(entry.check_params(black_box(wrong)).is_err()));
    report("refuse what does not fit", 80, times);
}

fn measure(rounds: usize, mut call: impl FnMut()) -> Vec<Duration> {
    (0..rounds / 10).for_each(|_| call());
    let times = (0..rounds).map(|_| {
        let begun = Instant::now();
        call();
        begun.elapsed()
    });
    times.collect()
}

fn report(what: &str, bytes: usize, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    println!("{what:<28} {bytes:>12} {:>10.1} {:>10.1}", at(50), at(99));
}
