//! What a decision costs: `cargo bench --bench policy`.
//!
//! A policy with 200 Cedar rules and 1,000 subjects; each figure is the median and the 99th percentile of single calls.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::expect_used,
    reason = "a benchmark that cannot be set up has nothing to say"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use effectd_contracts::{ActionRequest, Principal, Timestamp, ToolSpec};
use effectd_policy::{
    Facts, Overlay, Policy, Source, Verdict, demo, evaluate, inspect, prune_result, redact_secrets,
};
use serde_json::json;

const RULES: usize = 200;
const SUBJECTS: usize = 1_000;
const CALLS: usize = 20_000;
/// An action alone, end to end, takes at most this long; a decision may take a twentieth of it.
const ACTION: Duration = Duration::from_micros(1_500);

fn main() {
    let source = source();
    let compiling = Instant::now();
    let policy = Policy::compile(&source, &Overlay::default()).expect("the policy compiles");
    println!("policy: {}", policy.summary());
    println!(
        "{:<44} {:>9.1} ms",
        "compile",
        compiling.elapsed().as_secs_f64() * 1e3
    );

    let spec = spec();
    let requests: Vec<ActionRequest> = (0..SUBJECTS).map(request).collect();
    let principal = Principal::new("user://alice").expect("a principal");
    let facts: Vec<Facts> = requests
        .iter()
        .map(|request| {
            let seen = inspect(&request.params, &spec, &policy);
            Facts::of(request, &spec, &principal, Timestamp::UNIX_EPOCH, &seen)
        })
        .collect();
    assert!(
        facts
            .iter()
            .all(|facts| evaluate(facts, &policy).verdict == Verdict::Permit),
        "all are permitted"
    );

    let full = measure(&format!("evaluate, {RULES} rules, {SUBJECTS} subjects"), |n| {
        black_box(evaluate(&facts[n % SUBJECTS], &policy));
    });
    measure("inspect 1 KiB of parameters", |n| {
        black_box(inspect(&requests[n % SUBJECTS].params, &spec, &policy));
    });
    let whole = measure("inspect, collect facts, evaluate, record", |n| {
        let request = &requests[n % SUBJECTS];
        let seen = inspect(&request.params, &spec, &policy);
        let facts = Facts::of(request, &spec, &principal, Timestamp::UNIX_EPOCH, &seen);
        black_box(evaluate(&facts, &policy).record(&facts));
    });
    let small = Policy::compile(&demo::source(), &Overlay::default()).expect("the demo compiles");
    let mut demo_facts = facts[0].clone();
    demo_facts.subject = "agent://planner@deviceA".parse().expect("a subject");
    measure("evaluate, the demo policy", |_| {
        black_box(evaluate(&demo_facts, &small));
    });
    let result = json!({ "rows": vec![json!({ "id": 7, "text": "a line of text", "token": "x" }); 2_000] });
    measure_few("redact secrets and prune a result of 100 KiB", 200, |_| {
        let mut result = result.clone();
        redact_secrets(&mut result);
        black_box(prune_result(result));
    });
    let share = |median: Duration| 100.0 * median.as_secs_f64() / ACTION.as_secs_f64();
    println!(
        "share of an action of {ACTION:?}: evaluate {:.1} %, all of it {:.1} %",
        share(full),
        share(whole)
    );
}

fn measure(name: &str, call: impl FnMut(usize)) -> Duration {
    measure_few(name, CALLS, call)
}

fn measure_few(name: &str, calls: usize, mut call: impl FnMut(usize)) -> Duration {
    (0..calls / 10).for_each(&mut call);
    let mut times: Vec<Duration> = (0..calls)
        .map(|n| {
            let begun = Instant::now();
            call(n);
            begun.elapsed()
        })
        .collect();
    times.sort();
    let (median, late) = (times[calls / 2], times[calls * 99 / 100]);
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{name:<44} {:>9.1} µs   p99 {:>9.1} µs",
        micros(median),
        micros(late)
    );
    median
}

/// A large household: rules about devices, hours, tools, roles and single subjects, of which a few apply to any request.
fn source() -> Source {
    let mut toml = "version = 1\n[principals.\"user://*\"]\nsubjects = [\"agent://*\"]\n".to_owned();
    for role in 0..20 {
        let _ = writeln!(
            toml,
            "[roles.r{role}]\ncaps = [\"files.write\", \"workspace:shared:write\", \"extra.{role}\"]"
        );
    }
    for subject in 0..SUBJECTS {
        let _ = writeln!(
            toml,
            "[subjects.\"agent://s{subject}\"]\nroles = [\"r{}\"]",
            subject % 20
        );
    }
    toml += "[devices.phone1]\nclass = \"phone\"\n[orgs.home]\n";
    toml += "[spaces.\"shared:household\"]\nband = \"GREEN\"\nvisible_to = [\"agent://*\"]\norg = \"home\"\n";
    for subject in 0..SUBJECTS {
        let _ = writeln!(
            toml,
            "[[consents]]\nsubject = \"agent://s{subject}\"\nspace = \"shared:household\"\npurpose = \"tool:files.write_text\""
        );
    }
    let mut rules = "permit (principal, action, resource in SpaceClass::\"shared\");\n".to_owned();
    for n in 1..RULES {
        let _ = match n % 5 {
            0 => writeln!(
                rules,
                "forbid (principal in Role::\"r{}\", action, resource) when {{ context.clock.unix < {n} - 1000 }};",
                n % 20
            ),
            1 => writeln!(
                rules,
                "forbid (principal, action, resource) when {{ context.device.class == \"class{n}\" }};"
            ),
            2 => writeln!(
                rules,
                "forbid (principal == Subject::\"agent://s{n}\", action == Action::\"danger\", resource);"
            ),
            3 => writeln!(
                rules,
                "forbid (principal, action, resource) when {{ context.tool.id == \"tool.t{n}\" && context.clock.night }};"
            ),
            _ => writeln!(
                rules,
                "forbid (principal, action, resource) unless {{ context.tool.tier < 4 || context.actor.known }};"
            ),
        };
    }
    Source::new(toml, [("rules.cedar".to_owned(), rules)])
}

fn spec() -> ToolSpec {
    let spec = json!({
        "tool_id": "files.write_text", "version": "1.0.0",
        "caps_required": ["files.write", "workspace:shared:write"],
        "params_schema": { "type": "object", "properties": { "text": { "type": "string" } } },
        "result_schema": { "type": "object" },
        "side_effects": ["filesystem_write"], "safety_class": "LOW", "risk_level": "write", "reversible": true,
    });
    serde_json::from_value(spec).expect("a tool")
}

fn request(n: usize) -> ActionRequest {
    let text = "A line of ordinary text, as notes have them. ".repeat(22);
    let request = json!({
        "action_id": format!("a-{n}"), "subject_id": format!("agent://s{n}"), "space_id": "shared:household",
        "tool_id": "files.write_text", "policy_ctx": { "device": "phone1" },
        "params": { "path": "notes/w36.txt", "text": text, "space_id": "shared:household" },
    });
    serde_json::from_value(request).expect("a request")
}
