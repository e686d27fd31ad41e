//! The cost of a policy decision, and its share of a whole action: `cargo bench --bench policy`.
//!
//! A policy with 200 Cedar rules and 1,000 subjects. First the parts of a decision in a loop: the median and the 99th
//! percentile of single calls. Then real actions under the same policy, one after the other, through the embedded store and
//! the real sandbox: how long each takes, and how long the gate took in its place, among everything else that a processor
//! remembers. A line that says `MISSED` is above what a decision may take, and makes the exit code 1. The state lies in
//! `$EFFECTD_BENCH_DIR` or the system's temporary directory, which must be on a real disk.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures the machine")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use effectd_contracts::{ActionRequest, Principal, Timestamp, ToolId, ToolSpec};
use effectd_policy::{
    Facts, Overlay, Policy, Preset, Source, Verdict, evaluate, inspect, prune_result, redact_secrets,
};
use serde_json::json;

#[path = "policy/actions.rs"]
mod actions;

const RULES: usize = 200;
const SUBJECTS: usize = 1_000;
const CALLS: usize = 20_000;
/// A decision may take this part of an action's time.
const SHARE_MAX: f64 = 0.05;

fn main() {
    // In a process that the sandbox started this does not return.
    effectd::init(&[]);
    let source = source();
    let compiling = Instant::now();
    let policy = Policy::compile(&source, &Overlay::default()).expect("the policy compiles");
    println!("policy: {}", policy.summary());
    println!("{:<52} {:>9.1} ms", "compile", compiling.elapsed().as_secs_f64() * 1e3);
    let (whole, record) = decisions(&policy);
    let (action, judge) = actions::measure(&source);
    println!();
    println!("in a loop: the gate takes {:.1} % of an action", 100.0 * share(whole, action));
    let in_place = share(judge + record, action);
    let word = if in_place <= SHARE_MAX { "reached" } else { "MISSED" };
    println!(
        "in its place, with the record: {:.1} % of an action (at most {:.0} %: {word})",
        100.0 * in_place,
        100.0 * SHARE_MAX
    );
    std::process::exit(i32::from(in_place > SHARE_MAX));
}

fn share(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64()
}

/// The parts of a decision. Gives the medians of all of it, and of making the record.
fn decisions(policy: &Policy) -> (Duration, Duration) {
    let spec = spec();
    let requests: Vec<ActionRequest> = (0..SUBJECTS).map(|n| request(n, n)).collect();
    let principal = Principal::new("user://alice").expect("a principal");
    let look = |request: &ActionRequest| inspect(&request.params, &spec, &request.space_id, policy);
    let collect = |request: &ActionRequest| {
        Facts::of(request, &spec, &principal, Timestamp::UNIX_EPOCH, &look(request).facts)
    };
    let facts: Vec<Facts> = requests.iter().map(collect).collect();
    let permitted = |facts: &Facts| evaluate(facts, policy).verdict == Verdict::Permit;
    assert!(facts.iter().all(permitted), "all are permitted");

    measure("inspect 1 KiB of parameters", |n| {
        black_box(look(&requests[n % SUBJECTS]));
    });
    measure(&format!("evaluate, {RULES} rules, {SUBJECTS} subjects"), |n| {
        black_box(evaluate(&facts[n % SUBJECTS], policy));
    });
    let decision = evaluate(&facts[0], policy);
    let record = measure("record", |n| {
        black_box(decision.record(&facts[n % SUBJECTS]));
    });
    let whole = measure("all of it: inspect, collect facts, evaluate, record", |n| {
        let facts = collect(&requests[n % SUBJECTS]);
        black_box(evaluate(&facts, policy).record(&facts));
    });
    let small = Policy::compile(&Preset::Household.source(), &Overlay::default()).expect("the demo compiles");
    let mut demo_facts = facts[0].clone();
    demo_facts.subject = "agent://planner@deviceA".parse().expect("a subject");
    measure("evaluate, the demo policy", |_| {
        black_box(evaluate(&demo_facts, &small));
    });
    let applying = Policy::compile(&all_apply(), &Overlay::default()).expect("the policy compiles");
    measure(&format!("evaluate, {RULES} rules that all apply"), |n| {
        black_box(evaluate(&facts[n % SUBJECTS], &applying));
    });
    let result = json!({ "rows": vec![json!({ "id": 7, "text": "a line of text", "token": "x" }); 2_000] });
    measure_few("redact secrets and prune a result of 100 KiB", 200, |_| {
        let mut result = result.clone();
        redact_secrets(&mut result);
        black_box(prune_result(result));
    });
    (whole, record)
}

fn measure(name: &str, call: impl FnMut(usize)) -> Duration {
    measure_few(name, CALLS, call)
}

fn measure_few(name: &str, calls: usize, mut call: impl FnMut(usize)) -> Duration {
    (0..calls / 10).for_each(&mut call);
    let times = (0..calls).map(|n| {
        let begun = Instant::now();
        call(n);
        begun.elapsed()
    });
    report(name, times.collect())
}

/// Prints a line of figures, and gives the median.
fn report(name: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let (median, late) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!("{name:<52} {:>9.1} µs   p99 {:>9.1} µs", micros(median), micros(late));
    median
}

/// The worst case: no rule can be left out, and none forbids.
fn all_apply() -> Source {
    let mut rules = String::new();
    for n in 0..RULES {
        let _ = writeln!(
            rules,
            "permit (principal, action, resource) when {{ context.clock.unix > {n} - 1000 && context.device.class == \"phone\" }};"
        );
    }
    Source::new(tables(), [("rules.cedar".to_owned(), rules)])
}

/// A large household: rules about devices, hours, tools, roles and single subjects, of which a few apply to any request.
fn source() -> Source {
    Source::new(tables(), [("rules.cedar".to_owned(), rules())])
}

fn tables() -> String {
    let mut toml = "version = 1\n[principals.\"user://*\"]\nsubjects = [\"agent://*\"]\n".to_owned();
    for role in 0..20 {
        let _ = writeln!(
            toml,
            "[roles.r{role}]\ncaps = [\"files.write\", \"workspace:shared:write\", \"extra.{role}\"]"
        );
    }
    for subject in 0..SUBJECTS {
        let _ = writeln!(toml, "[subjects.\"agent://s{subject}\"]\nroles = [\"r{}\"]", subject % 20);
    }
    toml +=
        "[devices.phone1]\nclass = \"phone\"\n[orgs.home]\nmodes = { \"files.write_text\" = \"allow\" }\n";
    toml += "[spaces.\"shared:household\"]\nband = \"GREEN\"\nvisible_to = [\"agent://*\"]\norg = \"home\"\n";
    for subject in 0..SUBJECTS {
        let _ = writeln!(
            toml,
            "[[consents]]\nsubject = \"agent://s{subject}\"\nspace = \"shared:household\"\npurpose = \"tool:files.write_text\""
        );
    }
    toml
}

fn rules() -> String {
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
    rules
}

/// The tool that writes a text, as it describes itself.
fn spec() -> ToolSpec {
    let tools = effectd::internal::registry(&[]).expect("the tools");
    let id = ToolId::new("files.write_text").expect("an id");
    tools.get(&id).expect("the tool").spec().clone()
}

fn request(n: usize, subject: usize) -> ActionRequest {
    let text = "A line of ordinary text, as notes have them. ".repeat(22);
    let request = json!({
        "action_id": format!("a-{n}"), "subject_id": format!("agent://s{}", subject % SUBJECTS),
        "space_id": "shared:household", "tool_id": "files.write_text", "policy_ctx": { "device": "phone1" },
        "params": { "path": format!("workspace/notes/n{n}.txt"), "text": text, "space_id": "shared:household" },
    });
    serde_json::from_value(request).expect("a request")
}
