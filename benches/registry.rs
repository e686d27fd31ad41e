//! The cost of a registry that changes: `cargo bench --bench registry`.
//!
//! 10,000 tools are registered, then one of them changes, again and again, while a reader asks for the registry as the gate does.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement prints, and stops on errors"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use effectd_actors::{CurrentRegistry, Definition, ParamRule, Registry, Source};
use serde_json::json;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOOLS: usize = 10_000;
const ROUNDS: usize = 50;

fn main() {
    let rule: ParamRule = Arc::new(|_| Ok(()));
    let mut definitions: Vec<_> = (0..TOOLS).map(|number| definition(number, &rule)).collect();
    let wanted = definitions.clone();
    let begun = Instant::now();
    let (registry, refused) = Registry::assemble(wanted);
    report("register all as new", vec![begun.elapsed()]);
    assert!(refused.is_empty(), "{refused:?}");
    let (current, done) = (CurrentRegistry::new(Arc::new(registry)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                black_box(current.get());
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        for (what, is_whole) in
            [("one changed, all described", true), ("one changed, it alone described", false)]
        {
            let times = (0..ROUNDS).map(|round| {
                definitions[round].spec.description.push('!');
                let id = definitions[round].spec.tool_id.clone();
                let wanted = if is_whole { &definitions[..] } else { &definitions[round..=round] };
                let begun = Instant::now();
                let base = current.get();
                let (next, refused) = base.replace(|tool| is_whole || tool.spec().tool_id == id, wanted);
                current.swap(&base, Arc::new(next)).unwrap();
                drop(base);
                let took = begun.elapsed();
                assert!(refused.is_empty(), "{refused:?}");
                took
            });
            report(what, times.collect());
        }
        done.store(true, Ordering::Relaxed);
        report("longest wait of a reader", vec![reader.join().unwrap()]);
    });
}

fn definition(number: usize, rule: &ParamRule) -> Definition {
    let spec = json!({
        "tool_id": format!("connector:0199f6a2-5a4e-7c10-8d53-{:012x}.action-{number}", number / 500),
        "version": "1.0.0", "description": "Creates an issue", "caps_required": [],
        "side_effects": ["network_call"], "safety_class": "LOW", "risk_level": "write",
        "params_schema": {
            "type": "object", "required": ["title"], "additionalProperties": false,
            "properties": {
                "title": { "type": "string", "maxLength": 200 },
                "labels": { "type": "array", "items": { "type": "string" } },
                "state": { "enum": ["open", "done"] },
            },
        },
        "result_schema": { "type": "object", "properties": { "id": { "type": "string" } } },
    });
    Definition::new(Source::Connector, serde_json::from_value(spec).unwrap(), rule.clone())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!("{what:<32} p50 {:>9.3} ms, max {:>9.3} ms", at(50), at(100));
}
