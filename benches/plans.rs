//! Plans: `cargo bench --bench plans`.
//!
//! First what a verified plan with one file and one check costs, beside the two calls of the sandbox that it makes: the same write, and the
//! same command, each as an action of its own (goal at most 1.6 times both). Then the rollback of a thousand files beneath one allowed folder
//! (goal 2 s). `$EFFECTD_BENCH_DIR` says where the state lies.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd::contracts::{ActionRequest, Origin, Plan, PlanStatus, Receipt};
use effectd::internal::{Config, Runtime};
use effectd_actors::approvals::decide::{Approve, approve};
use effectd_actors::{Answer, Decider, Incoming};
use effectd_policy::Preset;
use serde_json::{Value, json};

const SPACE: &str = "shared:household";
const SUBJECT: &str = "agent://planner@deviceA";
const ROUNDS: usize = 60;
const FILES: usize = 1_000;
const COST_GOAL: f64 = 1.6;
const ROLLBACK_GOAL: Duration = Duration::from_secs(2);

fn main() {
    effectd::init(&[]);
    // Under `cargo test --all-targets`, a benchmark only has to build.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let threads = tokio::runtime::Runtime::new().expect("threads");
    threads.block_on(measure());
}

fn seed(folder: &Path) {
    let policy = folder.join(".effectd/policy");
    std::fs::create_dir_all(&policy).unwrap();
    std::fs::create_dir_all(folder.join("workspace/out")).unwrap();
    for (file, text) in Preset::Household.files() {
        let mut text = text.to_owned();
        if file == "policy.toml" {
            text = text.split("[example_tools").next().unwrap().to_owned();
            text = text.replace(
                "night_from = \"22:00\"\nnight_until = \"06:00\"",
                "night_from = \"00:00\"\nnight_until = \"00:00\"",
            );
            text = text.replace("\"diagnose\"]", "\"diagnose\", \"command.run\"]");
            text = text.replace("commands = []", "commands = [\"sh\"]");
            text = text.replace("[clock]\n", "[timeouts]\nlow_ms = 60000\nmedium_ms = 59000\n\n[clock]\n");
            text += &format!(
                "\n[[consents]]\nsubject = \"{SUBJECT}\"\nspace = \"{SPACE}\"\npurpose = \"tool:command.run\"\n\
                 [commands.good]\nargv = [\"grep\", \"-q\", \"good\", \"a.txt\"]\n[commands.never]\nargv = [\"false\"]\n"
            );
        }
        std::fs::write(policy.join(file), text).unwrap();
    }
}

fn incoming(plan: &Value) -> Incoming {
    let plan = Plan::parse(plan.to_string().as_bytes()).expect("a plan");
    let (request, contract) = plan.compile(None, None).expect("a plan");
    let principal = Config::embedded(".").expect("a config").principal;
    let (request, contract) = (Arc::new(request), Some(contract));
    Incoming { request, principal, origin: Origin::Plan, contract, interactive: false }
}

fn plan(id: &str, tool: &str, input: Value, check: &str) -> Value {
    json!({
        "actionId": id, "actionType": tool, "riskTier": "R2", "input": input, "rollbackPlan": {},
        "verification": { "required": true, "commands": [check] }, "spaceId": SPACE, "subjectId": SUBJECT,
    })
}

async fn act(runtime: &Runtime, id: &str, tool: &str, params: Value) -> Duration {
    let request = json!({ "action_id": id, "subject_id": SUBJECT, "space_id": SPACE, "tool_id": tool, "params": params });
    let request = ActionRequest::parse(request.to_string().as_bytes()).expect("a request");
    let begun = Instant::now();
    let answer = runtime.exec(request).await;
    let took = begun.elapsed();
    assert!(matches!(&answer, Answer::Done(done) if done.receipt.error.is_none()), "{answer:?}");
    took
}

async fn carry_out(runtime: &Runtime, plan: &Value) -> (Duration, Receipt) {
    let begun = Instant::now();
    match runtime.pipeline().exec(incoming(plan)).await {
        Answer::Done(done) => (begun.elapsed(), (*done.receipt).clone()),
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

async fn measure() {
    let base = std::env::var_os("EFFECTD_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(base).expect("a folder");
    seed(folder.path());
    let config = Config::embedded(folder.path().join(".effectd")).expect("a config");
    let runtime = Runtime::start(config).await.expect("a runtime");
    let (mut planned, mut apart) = (Vec::new(), Vec::new());
    let write = |text: String| json!({ "path": "workspace/a.txt", "text": text, "space_id": SPACE });
    // In turns, so that a slow moment is everybody's.
    for round in 0..ROUNDS {
        let verified = plan(
            &format!("p-{round}"),
            "files.write_text",
            write(format!("good {round}")),
            "grep -q good a.txt",
        );
        let (took, receipt) = carry_out(&runtime, &verified).await;
        assert_eq!(
            receipt.plan.map(|plan| plan.result_status),
            Some(PlanStatus::Succeeded),
            "{:?}",
            receipt.error
        );
        planned.push(took);
        let written =
            act(&runtime, &format!("w-{round}"), "files.write_text", write(format!("good, {round}"))).await;
        let argv = json!({ "argv": ["grep", "-q", "good", "a.txt"], "space_id": SPACE });
        apart.push(written + act(&runtime, &format!("c-{round}"), "command.run", argv).await);
    }
    let (planned, apart) = (median(planned), median(apart));
    let times = planned.as_secs_f64() / apart.as_secs_f64();
    println!(
        "a verified plan: {planned:.2?}, its two calls as actions: {apart:.2?}, {times:.2} times (goal {COST_GOAL})"
    );

    let out = folder.path().join("workspace/out");
    for number in 0..FILES {
        std::fs::write(out.join(format!("f{number}")), "as it was").unwrap();
    }
    std::fs::write(folder.path().join("workspace/job.sh"), "for f in out/*; do echo changed > $f; done")
        .unwrap();
    let argv = json!({ "argv": ["sh", "job.sh"], "space_id": SPACE });
    let mut wrong = plan("rolled-back", "command.run", argv, "false");
    wrong["scope"] = json!({ "allowedDirs": ["out"] });
    // Without a repair: the time of the plan is over. What is measured is the whole plan but for the tool.
    let Answer::Held(held) = runtime.pipeline().exec(incoming(&wrong)).await else {
        panic!("nobody is asked")
    };
    let by = Decider::local(Config::embedded(".").expect("a config").principal, true);
    let begun = Instant::now();
    approve(runtime.pipeline().services(), &held.approval_id, &by, Approve::default())
        .await
        .expect("approved");
    let action = "rolled-back".parse().expect("an id");
    runtime.pipeline().wait(&action).await.expect("an end");
    let (_, receipt) = carry_out(&runtime, &wrong).await;
    let all = begun.elapsed();
    let record = receipt.plan.expect("a plan");
    assert!(record.rollback.ok, "{:?}", receipt.error);
    let ran: f64 = receipt.attempts.iter().map(|attempt| attempt.exec_ms.as_f64() / 1_000.0).sum();
    // Two rollbacks: before the repair, and at the end.
    let each = (all.as_secs_f64() - ran) / 2.0;
    println!(
        "rollback of {FILES} files, with its snapshot: {each:.2} s (goal {:.0} s)",
        ROLLBACK_GOAL.as_secs_f64()
    );
    assert!(runtime.stop().await);
    assert!(times <= COST_GOAL && each <= ROLLBACK_GOAL.as_secs_f64(), "a goal is missed");
}
