//! Named commands: they run without a person, and the kernel lets them change only what they declare.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use effectd::contracts::{ActionRequest, Code, Digest, Effects, Outcome, Receipt, RiskTier};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_actors::control::breaker::BreakerState;
use effectd_actors::limits::CHANGES_MAX;
use effectd_bus::{Asker, Claim, ClaimAnswer, ResourceName};
use serde_json::{Value, json};

use crate::approvals::{allowing, approved, request};
use crate::harness::{LONG, Place, Running, root, until};
use crate::mounts::{Mount, is_root};

/// A place whose policy names these commands, with this mode of `command.run`.
fn naming(commands: &str, mode: Option<&str>) -> Place {
    let place = allowing(&["true", "sleep", "sha256sum"]);
    let file = place.state().join("policy/policy.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    if let Some(mode) = mode {
        let with = text.replace("modes = {", &format!("modes = {{ \"command.run\" = \"{mode}\","));
        assert_ne!(with, text, "the demo policy has no modes");
        text = with;
    }
    std::fs::write(&file, format!("{text}\n{commands}\n")).unwrap();
    place
}

fn command(action: &str, argv: Value) -> ActionRequest {
    request(action, "command.run", json!({ "argv": argv }))
}

/// The receipt and the result of an action that no person is asked about.
async fn done(runtime: &Runtime, request: ActionRequest) -> (Receipt, Value) {
    match runtime.exec(request).await {
        Answer::Done(done) => {
            let result = done.result.unwrap().as_deref().cloned().unwrap_or_default();
            ((*done.receipt).clone(), result)
        }
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

/// Everything about a file that a command could change.
fn state_of(path: &Path) -> (Vec<u8>, [i64; 6]) {
    let it = std::fs::metadata(path).unwrap();
    let numbers =
        [it.mode().into(), it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec(), it.nlink() as i64];
    (std::fs::read(path).unwrap(), numbers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_socket_of_a_command_is_in_the_receipt_and_counted() {
    let place = naming("[commands.dial]\nargv = [\"bash\", \"dial.sh\"]", None);
    std::fs::write(place.note("dial.sh"), "exec 3<>/dev/tcp/127.0.0.1/9").unwrap();
    let runtime = place.runtime().await;
    let (receipt, result) = done(&runtime, command("n-1", json!(["bash", "dial.sh"]))).await;
    assert_ne!(result["exit_code"], 0, "{result}");
    let denials = receipt.attempts.iter().flat_map(|attempt| &attempt.denials);
    let refused: u32 =
        denials.filter(|denial| denial.code == Code::NetworkDenied).map(|denial| denial.count).sum();
    assert!(refused > 0, "{receipt:?}");
    let page = prometheus::TextEncoder::new().encode_to_string(&runtime.metrics().gather()).unwrap();
    let series = "effectd_sandbox_denials_total{code=\"network_denied\",tool_id=\"command.run\"}";
    assert!(page.contains(&format!("{series} {refused}\n")), "{page}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_command_reads_without_a_person() {
    let place = naming("[commands.show]\nargv = [\"cat\", \"*\"]", None);
    std::fs::write(place.note("lines.txt"), "one\n").unwrap();
    let runtime = place.runtime().await;
    let (receipt, result) = done(&runtime, command("r-1", json!(["cat", "lines.txt"]))).await;
    assert_eq!((receipt.outcome, &result["stdout"]), (Outcome::Executed, &json!("one\n")));
    assert_eq!(receipt.effects, Effects::None);
    let decision = receipt.decision.unwrap();
    assert_eq!(
        (decision.tier, &decision.facts["inspection"]["named_command"]),
        (RiskTier::R1, &json!("show"))
    );
    assert!(receipt.isolation.unwrap().mechanisms["filesystem"].contains("read-only"));
    // Other words are another command, which the policy does not list.
    for (number, argv) in [
        json!(["cat", "-n", "lines.txt"]),
        json!(["cat", "/etc/passwd"]),
        json!(["cat", "../lines.txt"]),
        json!(["cat"]),
        json!(["cat", "lines.txt", "lines.txt"]),
    ]
    .into_iter()
    .enumerate()
    {
        let (receipt, _) = done(&runtime, command(&format!("w-{number}"), argv.clone())).await;
        assert_eq!(receipt.outcome, Outcome::DeniedPolicy, "{argv}");
    }
    let fed = request("w-9", "command.run", json!({ "argv": ["cat", "lines.txt"], "stdin": "x" }));
    assert_eq!(done(&runtime, fed).await.0.outcome, Outcome::DeniedPolicy);
    // A listed program that is not named is asked about, as before.
    let receipt = approved(&runtime, command("w-10", json!(["true"]))).await;
    assert_eq!(receipt.decision.unwrap().tier, RiskTier::R3);
    assert!(runtime.stop().await);
}

/// What the attack says when it gets through; each line is one attempt.
const ATTACK: &str = "\
    echo x > lines.txt && echo content
    chmod 777 lines.txt && echo mode
    touch -d 2001-01-01 lines.txt && echo time
    rm lines.txt && echo removed
    mv lines.txt other && echo moved
    mkdir new && echo folder
    ln lines.txt out/link && echo link
    cp /bin/true out/program && out/program && echo executed
    cp /bin/true /tmp/program && /tmp/program && echo executed
    ls /root /home && echo outside
    cp /bin/true cache/program && cache/program && echo built
    echo kept > cache/kept
    echo changed > out/old
    mkdir out/deep && echo new > out/deep/new
    rm out/gone
    echo end
";

#[tokio::test(flavor = "multi_thread")]
async fn a_command_changes_only_what_it_declares_and_is_undone() {
    let rule = "[commands.attack]\nargv = [\"sh\", \"attack.sh\"]\nwrites = [\"out\"]\ncaches = [\"cache\"]";
    let place = naming(rule, Some("allow"));
    for folder in ["out", "cache"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    for (name, text) in [
        ("attack.sh", ATTACK),
        ("lines.txt", "1\n"),
        ("out/old", "old"),
        ("out/gone", "gone"),
        ("out/same", "s"),
    ] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let before = state_of(&place.note("lines.txt"));
    let runtime = place.runtime().await;
    let (receipt, result) = done(&runtime, command("a-1", json!(["sh", "attack.sh"]))).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    assert_eq!(result["stdout"], "built\nend\n", "{result}");
    assert_eq!(state_of(&place.note("lines.txt")), before);
    assert_eq!(receipt.decision.as_ref().unwrap().tier, RiskTier::R2);
    assert_eq!(std::fs::read_dir(place.note("cache")).unwrap().count(), 0, "the space has no cache");
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    let expected = ["deep", "deep/new", "gone", "old", "program"].map(|name| format!("workspace/out/{name}"));
    assert_eq!(changed(&receipt), expected);
    assert!(observed.undoable && observed.undeclared.is_empty());

    let undo = request("a-2", "files.undo", json!({ "receipt_id": receipt.receipt_id }));
    let (undone, _) = done(&runtime, undo).await;
    assert_eq!(undone.outcome, Outcome::Executed, "{:?}", undone.error);
    let mut left: Vec<_> =
        std::fs::read_dir(place.note("out")).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["gone", "old", "same"]);
    for (name, text) in [("old", "old"), ("gone", "gone")] {
        assert_eq!(std::fs::read_to_string(place.note(&format!("out/{name}"))).unwrap(), text);
    }
    assert!(runtime.stop().await);
    let caches = place.effectd(&["caches", "list", "-o", "json"], None).json(0);
    assert_eq!(
        (&caches[0]["space"], &caches[0]["command"], &caches[0]["path"], &caches[0]["files"]),
        (&json!("shared:household"), &json!("attack"), &json!("cache"), &json!(2))
    );
    assert_eq!(place.effectd(&["caches", "clear", "shared:household", "--yes"], None).code(), 0);
    assert_eq!(place.effectd(&["caches", "list", "-o", "json"], None).json(0), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_executes_nothing_that_another_has_cached() {
    let rules = "[commands.plant]\nargv = [\"sh\", \"plant.sh\"]\ncaches = [\"cache\"]\n\
        [commands.build]\nargv = [\"sh\", \"build.sh\"]\nwrites = [\"out\"]\ncaches = [\"cache\"]";
    let place = naming(rules, Some("allow"));
    for folder in ["out", "cache"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    std::fs::write(place.note("plant.sh"), "cp /bin/true cache/tool && ls cache").unwrap();
    std::fs::write(place.note("build.sh"), "cache/tool && echo planted; ls cache; echo own > cache/own")
        .unwrap();
    let runtime = place.runtime().await;
    for (action, script, tier, shown) in [
        ("c-1", "plant.sh", RiskTier::R1, "tool\n"),
        ("c-2", "build.sh", RiskTier::R2, ""),
        ("c-3", "build.sh", RiskTier::R2, "own\n"),
        ("c-4", "plant.sh", RiskTier::R1, "tool\n"),
    ] {
        let (receipt, result) = done(&runtime, command(action, json!(["sh", script]))).await;
        assert_eq!((receipt.outcome, receipt.decision.unwrap().tier), (Outcome::Executed, tier), "{action}");
        assert_eq!(result["stdout"], shown, "{action}: {result}");
    }
    assert!(runtime.stop().await);
    // The name alone makes no command: with other rights it starts with an empty cache.
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("[\"sh\", \"plant.sh\"]", "[\"sh\", \"plant.sh\"]\nwrites = [\"more\"]"),
    )
    .unwrap();
    std::fs::create_dir(place.note("more")).unwrap();
    std::fs::write(place.note("plant.sh"), "ls cache").unwrap();
    let runtime = place.runtime().await;
    let (receipt, result) = done(&runtime, command("c-5", json!(["sh", "plant.sh"]))).await;
    assert_eq!((receipt.outcome, receipt.decision.unwrap().tier), (Outcome::Executed, RiskTier::R2));
    assert_eq!(result["stdout"], "", "{result}");
    assert!(runtime.stop().await);
}

fn cached(place: &Place) -> Vec<(String, Value)> {
    let all = place.effectd(&["caches", "list", "-o", "json"], None).json(0);
    let one = |it: &Value| (it["command"].as_str().unwrap().to_owned(), it["files"].clone());
    all.as_array().unwrap().iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_starts_no_command_that_writes() {
    let rules = "[commands.fill]\nargv = [\"sh\", \"fill.sh\"]\nwrites = [\"out\"]\ncaches = [\"cache\"]\n\
        [commands.look]\nargv = [\"cat\", \"fill.sh\"]";
    let place = naming(rules, Some("allow"));
    for folder in ["out", "cache"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    std::fs::write(place.note("fill.sh"), "echo x > cache/file; echo x > out/file").unwrap();
    let fill = |action: &str| command(action, json!(["sh", "fill.sh"]));
    let runtime = place.runtime().await;
    let (receipt, _) = done(&runtime, fill("f-1")).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    assert!(runtime.stop().await);
    assert_eq!(cached(&place), [("fill".to_owned(), json!(1))]);

    std::fs::remove_file(place.note("out/file")).unwrap();
    // Commands leave twice what the store needs, which is more than is free.
    let disk = nix::sys::statvfs::statvfs(&place.state()).unwrap();
    let mut config = place.config();
    config.store.disk_free_bytes_min = disk.blocks_available() * disk.fragment_size() / 10 * 7;
    let runtime = Runtime::start(config).await.unwrap();
    assert!(cached(&place).is_empty(), "the start removes caches");
    let (receipt, _) = done(&runtime, fill("f-2")).await;
    let error = receipt.error.unwrap();
    assert!(error.code == Code::DiskFull && error.message.contains("not started"), "{error}");
    assert_eq!((receipt.outcome, receipt.effects), (Outcome::Failed, Effects::None));
    assert!(!place.note("out/file").exists());
    let (receipt, _) = done(&runtime, command("f-3", json!(["cat", "fill.sh"]))).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "it writes nothing: {:?}", receipt.error);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_fills_the_disk_loses_its_cache_alone() {
    if !is_root("commands::a_command_that_fills_the_disk_loses_its_cache_alone") {
        return;
    }
    let rules = "[commands.keep]\nargv = [\"sh\", \"keep.sh\"]\ncaches = [\"cache\"]\n\
        [commands.hog]\nargv = [\"sh\", \"hog.sh\"]\ncaches = [\"cache\"]\n\
        [commands.hog-out]\nargv = [\"sh\", \"hog.sh\", \"*\"]\nwrites = [\"out\"]\ncaches = [\"cache\"]";
    let place = naming(rules, Some("allow"));
    let (state, away) = (place.state(), place.path("away"));
    std::fs::rename(&state, &away).unwrap();
    let disk = Mount::tmpfs(state.clone(), 192);
    assert!(Command::new("cp").arg("-a").arg(away.join(".")).arg(&state).status().unwrap().success());
    for folder in ["out", "cache"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    std::fs::write(place.note("keep.sh"), "echo x > cache/file").unwrap();
    let mut config = place.config();
    config.store.segment_bytes = 1 << 20;
    config.store.disk_free_bytes_min = 16 << 20;
    let runtime = Runtime::start(config).await.unwrap();
    let (receipt, _) = done(&runtime, command("g-1", json!(["sh", "keep.sh"]))).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);

    // Each ends at once. Less is left than commands must leave, and more than the store needs.
    let fill_bytes = || {
        let it = nix::sys::statvfs::statvfs(&state).unwrap();
        let bytes = it.blocks_available() * it.fragment_size() - (24 << 20);
        format!("head -c {bytes} /dev/zero > cache/big")
    };
    let hogging = async |action: &str, argv: Value, script: String| {
        std::fs::write(place.note("hog.sh"), script).unwrap();
        let mut hog = command(action, argv);
        hog.qos.max_retries = Some(3);
        let (receipt, _) = done(&runtime, hog).await;
        assert_eq!(receipt.attempts.len(), 1, "{action}: {:?}", receipt.attempts);
        assert_eq!(receipt.attempts[0].code, Some(Code::DiskFull), "{action}");
        assert_eq!(cached(&place), [("keep".to_owned(), json!(1))], "{action}");
        receipt.error.unwrap()
    };
    let error = hogging("g-2", json!(["sh", "hog.sh"]), fill_bytes()).await;
    assert_eq!((error.code, error.retryable), (Code::DiskFull, false), "{error}");
    let error = hogging("g-3", json!(["sh", "hog.sh", "out"]), fill_bytes()).await;
    assert_eq!(error.code, Code::OutcomeUnknown, "{error}");
    assert!(error.message.contains("disk_full: the disk of the state directory"), "{error}");
    // The same for a disk that takes few more files.
    let it = nix::sys::statvfs::statvfs(&state).unwrap();
    disk.limit_files(u32::try_from(it.files() - it.files_available()).unwrap() + 1_500);
    let many = "for n in $(seq 900); do : > cache/$n; done".to_owned();
    let error = hogging("g-4", json!(["sh", "hog.sh"]), many).await;
    assert_eq!(error.code, Code::DiskFull, "{error}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_over_its_limits_fails_the_run_and_is_emptied() {
    let place = naming("[commands.nest]\nargv = [\"sh\", \"nest.sh\"]\ncaches = [\"cache\"]", None);
    std::fs::create_dir(place.note("cache")).unwrap();
    let deep = "d/".repeat(effectd_sandbox::limits::CACHE_DEPTH_MAX + 1);
    std::fs::write(place.note("nest.sh"), format!("ls cache; mkdir -p cache/{deep}")).unwrap();
    let runtime = place.runtime().await;
    let nest = |action: &str| command(action, json!(["sh", "nest.sh"]));
    let error = done(&runtime, nest("n-1")).await.0.error.unwrap();
    assert_eq!(error.code, Code::FileLimit, "{error}");
    assert_eq!(error.change.as_deref(), Some("send it again; the cache is emptied"));
    std::fs::write(place.note("nest.sh"), "ls cache; echo end").unwrap();
    let (receipt, result) = done(&runtime, nest("n-2")).await;
    assert_eq!((receipt.outcome, &result["stdout"]), (Outcome::Executed, &json!("end\n")), "{result}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_over_its_deadline_can_be_undone() {
    let rule = "[commands.slow]\nargv = [\"sh\", \"slow.sh\"]\nwrites = [\"out\"]";
    let place = naming(rule, Some("allow"));
    std::fs::create_dir(place.note("out")).unwrap();
    for (name, text) in
        [("slow.sh", "echo changed > out/old; echo new > out/new; sleep 50"), ("out/old", "old")]
    {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = place.runtime().await;
    let mut slow = command("d-1", json!(["sh", "slow.sh"]));
    slow.qos.timeout_ms = Some(6_000);
    let (receipt, _) = done(&runtime, slow).await;
    assert_eq!(receipt.error.unwrap().code, Code::OutcomeUnknown);
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(observed.undoable && observed.changes.len() == 2, "{observed:?}");
    let undo = request("d-2", "files.undo", json!({ "receipt_id": receipt.receipt_id }));
    let (undone, _) = done(&runtime, undo).await;
    assert_eq!(undone.outcome, Outcome::Executed, "{:?}", undone.error);
    assert_eq!(std::fs::read_to_string(place.note("out/old")).unwrap(), "old");
    assert!(!place.note("out/new").exists());
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_its_declared_paths_does_not_run() {
    let rule = "[commands.touch]\nargv = [\"touch\", \"*\"]\nwrites = [\"out\"]\ncaches = [\"cache\"]";
    let place = naming(rule, Some("allow"));
    let touch = |action: &str| command(action, json!(["touch", "out/x"]));
    let runtime = place.runtime().await;
    std::os::unix::fs::symlink("/tmp", place.note("out")).unwrap();
    let (receipt, _) = done(&runtime, touch("m-1")).await;
    assert_eq!(receipt.outcome.as_str(), "failed", "{:?}", receipt.error);
    std::fs::remove_file(place.note("out")).unwrap();
    std::fs::create_dir(place.note("out")).unwrap();
    let (receipt, _) = done(&runtime, touch("m-2")).await;
    let error = receipt.error.unwrap();
    assert_eq!(error.code.as_str(), "file_not_found", "{error}");
    assert!(error.change.unwrap().contains("create cache"), "it names what to do");
    std::fs::create_dir(place.note("cache")).unwrap();
    let (receipt, _) = done(&runtime, touch("m-3")).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    // A folder that is replaced while the runtime runs is the new one from then on, also if it gets the inode of the old one.
    std::fs::remove_dir_all(place.note("out")).unwrap();
    std::fs::create_dir(place.note("out")).unwrap();
    let (receipt, result) = done(&runtime, touch("m-4")).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)));
    assert!(place.note("out/x").exists());
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_promises_no_undo_of_links_and_hidden_names() {
    let rules = "[commands.link]\nargv = [\"ln\", \"-s\", \"*\", \"*\"]\nwrites = [\"out\"]\n\
        [commands.touch]\nargv = [\"touch\", \"*\"]\nwrites = [\"hidden\"]";
    let place = naming(rules, Some("allow"));
    for folder in ["out", "hidden"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    let runtime = place.runtime().await;
    let link = |action: &str, at: &str| command(action, json!(["ln", "-s", "elsewhere", at]));
    let (receipt, result) = done(&runtime, link("k-1", "out/link")).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert_eq!((observed.changes[0].path.as_str(), observed.undoable), ("workspace/out/link", false));
    // The next command could change where the link leads, which no receipt shows.
    let (receipt, _) = done(&runtime, link("k-2", "out/other")).await;
    let error = receipt.error.unwrap();
    assert_eq!(error.code, Code::PathDenied);
    assert!(error.message.contains("is a link or a special file: \"workspace/out/link\""), "{error}");
    assert!(place.note("out/other").symlink_metadata().is_err());

    let (receipt, result) =
        done(&runtime, command("k-3", json!(["touch", "hidden/.effectd-mine.draft"]))).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(observed.incomplete && !observed.undoable && observed.changes.is_empty(), "{observed:?}");
    // Another tool's draft would be gone soon.
    let touch = |action: &str| command(action, json!(["touch", "hidden/x"]));
    let error = done(&runtime, touch("k-4")).await.0.error.unwrap();
    assert!(error.code == Code::ToolBusy && error.retryable, "{error}");
    assert!(error.message.contains(": \"workspace/hidden/.effectd-mine.draft\""), "{error}");
    std::fs::remove_file(place.note("hidden/.effectd-mine.draft")).unwrap();
    std::fs::create_dir_all(place.note(&format!("hidden{}", "/deep".repeat(40)))).unwrap();
    let error = done(&runtime, touch("k-5")).await.0.error.unwrap();
    assert_eq!(error.code, Code::FileLimit, "{error}");
    assert!(error.message.contains("too deep: \"workspace/hidden/deep/"), "{error}");
    assert!(error.change.unwrap().starts_with("narrow"));
    assert!(!place.note("hidden/x").exists());
    assert!(runtime.stop().await);
}

/// The names of the changed files, in order.
fn changed(receipt: &Receipt) -> Vec<&str> {
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    let mut changed: Vec<_> = observed.changes.iter().map(|change| change.path.as_str()).collect();
    changed.sort_unstable();
    changed
}

#[tokio::test(flavor = "multi_thread")]
async fn an_odd_name_or_too_many_files_hide_no_known_change() {
    let rules = "[commands.odd]\nargv = [\"sh\", \"odd.sh\"]\nwrites = [\"out\"]\n\
        [commands.many]\nargv = [\"sh\", \"many.sh\"]\nwrites = [\"many\", \"more\"]";
    let place = naming(rules, Some("allow"));
    for folder in ["out", "many", "more"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    let odd = r#"echo changed > out/old; echo new > out/new; touch "out/$(printf 'a\nb')""#;
    let many = "for n in $(seq 2500); do : > many/$n; done; for n in $(seq 1500); do : > more/$n; done";
    for (name, text) in [("odd.sh", odd), ("many.sh", many), ("out/old", "old")] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = place.runtime().await;
    let run = |action: &str, script: &str| command(action, json!(["sh", script]));
    let (receipt, result) = done(&runtime, run("o-1", "odd.sh")).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    assert_eq!(changed(&receipt), ["workspace/out/new", "workspace/out/old"]);
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(observed.incomplete && !observed.undoable, "{observed:?}");
    let undo = request("o-2", "files.undo", json!({ "receipt_id": receipt.receipt_id }));
    let error = done(&runtime, undo).await.0.error.unwrap();
    assert!(error.code == Code::UndoGone && error.message.contains("more than effectd can list"), "{error}");

    let error = done(&runtime, run("o-3", "odd.sh")).await.0.error.unwrap();
    assert_eq!(error.code, Code::PathDenied, "{error}");
    assert!(error.message.contains(r#"a control character: "workspace/out/a\nb""#), "{error}");
    assert!(error.change.unwrap().starts_with("remove"));
    std::fs::remove_file(place.note("out/a\nb")).unwrap();
    let (receipt, _) = done(&runtime, run("o-4", "odd.sh")).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);

    let (receipt, result) = done(&runtime, run("o-5", "many.sh")).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(observed.incomplete && !observed.undoable);
    assert_eq!(observed.changes.len(), CHANGES_MAX);
    let error = done(&runtime, run("o-6", "many.sh")).await.0.error.unwrap();
    assert_eq!(error.code, Code::FileLimit, "{error}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_grew_too_large_hides_no_other_change() {
    let rule = "[commands.grow]\nargv = [\"sh\", \"grow.sh\"]\nwrites = [\"out\"]";
    let place = naming(rule, Some("allow"));
    std::fs::create_dir(place.note("out")).unwrap();
    let grow = "echo changed > out/other; echo new > out/new; truncate -s 65M out/old";
    for (name, text) in [("grow.sh", grow), ("out/old", "old"), ("out/other", "other")] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = place.runtime().await;
    let run = |action: &str| command(action, json!(["sh", "grow.sh"]));
    let (receipt, result) = done(&runtime, run("g-1")).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    assert_eq!(changed(&receipt), ["workspace/out/new", "workspace/out/other"]);
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(observed.incomplete && !observed.undoable, "{observed:?}");
    let undo = request("g-2", "files.undo", json!({ "receipt_id": receipt.receipt_id }));
    let error = done(&runtime, undo).await.0.error.unwrap();
    assert!(error.code == Code::UndoGone && error.message.contains("more than effectd can list"), "{error}");
    // The next run is refused for the size, by the path.
    let error = done(&runtime, run("g-3")).await.0.error.unwrap();
    assert!(error.code == Code::FileLimit && error.message.contains(": \"workspace/out/old\""), "{error}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_becomes_a_file_or_a_link_is_listed_whole() {
    let rule = "[commands.swap]\nargv = [\"sh\", \"swap.sh\"]\nwrites = [\"out\"]";
    let place = naming(rule, Some("allow"));
    let swap = "rm -r out/a out/b; echo text > out/a; ln -s other out/b";
    for folder in ["out/a/deep", "out/b"] {
        std::fs::create_dir_all(place.note(folder)).unwrap();
    }
    for (name, text) in [("swap.sh", swap), ("out/a/deep/one", "1"), ("out/b/two", "2")] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = place.runtime().await;
    let (receipt, result) = done(&runtime, command("s-1", json!(["sh", "swap.sh"]))).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    let expected = ["a", "a/deep", "a/deep/one", "b", "b/two"].map(|name| format!("workspace/out/{name}"));
    assert_eq!(changed(&receipt), expected);
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    assert!(!observed.incomplete && !observed.undoable, "{observed:?}");
    let undo = request("s-2", "files.undo", json!({ "receipt_id": receipt.receipt_id }));
    let error = done(&runtime, undo).await.0.error.unwrap();
    assert!(error.code == Code::UndoGone && error.message.contains("replaced a folder"), "{error}");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_a_name_outside_of_writes_is_refused() {
    let rule = "[commands.touch]\nargv = [\"touch\", \"*\"]\nwrites = [\"out\", \"one\"]";
    let place = naming(rule, Some("allow"));
    std::fs::create_dir(place.note("out")).unwrap();
    let (outside, shared, one) = (place.path("outside"), place.note("out/shared"), place.note("one"));
    for file in [&outside, &one] {
        std::fs::write(file, "text").unwrap();
    }
    let runtime = place.runtime().await;
    let touch = |action: &str| command(action, json!(["touch", "out/shared"]));
    std::fs::hard_link(&outside, &shared).unwrap();
    let before = state_of(&outside);
    let error = done(&runtime, touch("h-1")).await.0.error.unwrap();
    assert!(error.code == Code::PathDenied && error.message.contains("\"workspace/out/shared\""), "{error}");
    assert_eq!(state_of(&outside), before);

    for file in [&shared, &one] {
        std::fs::remove_file(file).unwrap();
    }
    std::fs::hard_link(&outside, &one).unwrap();
    let error = done(&runtime, touch("h-2")).await.0.error.unwrap();
    assert!(error.code == Code::PathDenied && error.message.contains("\"workspace/one\""), "{error}");

    // Links between what the command may write anyway reach nothing else.
    std::fs::remove_file(&one).unwrap();
    std::fs::write(&one, "text").unwrap();
    std::fs::hard_link(&one, &shared).unwrap();
    let (receipt, result) = done(&runtime, touch("h-3")).await;
    assert_eq!(
        (receipt.outcome, &result["exit_code"]),
        (Outcome::Executed, &json!(0)),
        "{:?}",
        receipt.error
    );
    assert!(runtime.stop().await);
}

/// A pipe in the space, and its end for writing once a command reads from it. The command runs until that end is dropped.
fn pipe(place: &Place, name: &str) -> impl FnOnce() -> File {
    let path = place.note(name);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    move || {
        let mut end = None;
        until("a command reads the pipe", || {
            // Without a reader this fails.
            end = File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).ok();
            end.is_some()
        });
        end.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reading_command_blocks_nobody_and_a_writing_one_does() {
    let rules = "[commands.show]\nargv = [\"cat\", \"*\"]\ntimeout_s = 300\n\
        [commands.wait]\nargv = [\"sh\", \"wait.sh\"]\nwrites = [\"out\"]\ntimeout_s = 300";
    let place = naming(rules, Some("allow"));
    std::fs::create_dir(place.note("out")).unwrap();
    for (name, text) in [("lines.txt", "1\n"), ("wait.sh", "cat second")] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let (first, second) = (pipe(&place, "first"), pipe(&place, "second"));
    let runtime = place.runtime().await;
    let reading = runtime.submit(command("q-1", json!(["cat", "first"]))).await.unwrap();
    let first = first();
    let beside = done(&runtime, command("q-2", json!(["cat", "lines.txt"])));
    let (receipt, _) = tokio::time::timeout(LONG, beside).await.expect("it waits for the other reader");
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);

    let writing = runtime.submit(command("q-3", json!(["sh", "wait.sh"]))).await.unwrap();
    let second = second();
    // What an unnamed command would claim is taken, by the writing command and not by the reading one.
    let digest = Digest::of(b"other");
    let unnamed = Claim {
        action_id: "q-4".parse().unwrap(),
        action_digest: digest,
        asker: Asker {
            space: "shared:household".parse().unwrap(),
            subject: "agent://planner@deviceA".parse().unwrap(),
            principal: place.config().principal,
        },
        key: None,
        params_digest: digest,
        intent: Vec::new(),
        resources: vec![ResourceName::new("space:shared:household").unwrap()],
        depends: Vec::new(),
        stale: None,
    };
    let busy = ClaimAnswer::ResourceBusy { action_id: "q-3".parse().unwrap() };
    assert_eq!(runtime.store().claim(unnamed).await.unwrap(), busy);
    drop((first, second));
    for ticket in [reading, writing] {
        let answer = ticket.receipt().await.unwrap();
        assert!(matches!(answer, Answer::Done(done) if done.receipt.outcome == Outcome::Executed));
    }
    assert!(runtime.stop().await);
}

#[test]
fn folders_of_programs_are_checked_with_the_policy() {
    let place = naming("", None);
    let file = place.state().join("policy/policy.toml");
    let policy = std::fs::read_to_string(&file).unwrap();
    let open = place.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink("/usr", place.path("link")).unwrap();
    let (tools, inside, linked) = (place.path("tools"), place.note("tools"), place.path("linked"));
    for folder in [&tools.join("bin"), &inside, &linked] {
        std::fs::create_dir_all(folder).unwrap();
    }
    // Others can change where it leads.
    std::os::unix::fs::symlink(&open, linked.join("bin")).unwrap();
    std::fs::set_permissions(tools.join("bin"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let state = place.state().canonicalize().unwrap();
    for (folder, why) in [
        ("/no/such/folder".to_owned(), "No such file"),
        (open.display().to_string(), "mode 0777"),
        (place.path("link").display().to_string(), "link"),
        (tools.display().to_string(), "mode 0777"),
        (linked.display().to_string(), "has a symbolic link"),
        (inside.canonicalize().unwrap().display().to_string(), "shares files"),
        (format!("{}:", tools.display()), "has a colon"),
        (state.display().to_string(), "shares files"),
        ("/proc/self".to_owned(), "link"),
        ("/tmp".to_owned(), "/tmp"),
    ] {
        let rule = format!("{policy}\n[commands.x]\nargv = [\"true\"]\nprograms = [\"{folder}\"]\n");
        std::fs::write(&file, rule).unwrap();
        let checked = place.effectd(&["policy", "check"], None);
        assert_ne!(checked.code(), 0, "{folder}");
        assert!(checked.stderr().contains(why), "{folder}: {}", checked.stderr());
    }
}

/// The first block of this language on the page.
fn block<'p>(page: &'p str, language: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_on_commands_lets_an_agent_run_cargo_test() {
    let page = std::fs::read_to_string(root().join("docs/commands.md")).unwrap();
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = std::fs::canonicalize(String::from_utf8(sysroot.stdout).unwrap().trim()).unwrap();
    let theirs = "/HOME/.rustup/toolchains/stable-x86_64-unknown-linux-gnu";
    let rules = block(&page, "toml");
    assert!(rules.contains(theirs), "the page names a toolchain");
    let place = naming(&rules.replace(theirs, sysroot.to_str().unwrap()), None);
    for folder in ["src", "target"] {
        std::fs::create_dir(place.note(folder)).unwrap();
    }
    let test = |sum: u32| {
        format!("pub fn two() -> u32 {{ 2 }}\n#[test]\nfn sums() {{ assert_eq!(two() + two(), {sum}); }}\n")
    };
    let package = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    let lock = "version = 3\n\n[[package]]\nname = \"tiny\"\nversion = \"0.1.0\"\n";
    for (name, text) in [("Cargo.toml", package), ("Cargo.lock", lock), ("src/lib.rs", &test(4))] {
        std::fs::write(place.note(name), text).unwrap();
    }
    let runtime = place.runtime().await;
    let json = block(&page, "json");
    assert!(json.contains("shared:code"), "the page uses the preset `coding`");
    let asked: Value = serde_json::from_str(&json.replace("shared:code", "shared:household")).unwrap();
    let ask = |action: &str| {
        let mut asked = asked.clone();
        asked["action_id"] = action.into();
        serde_json::from_value(asked).unwrap()
    };
    let (receipt, result) = done(&runtime, ask("t-1")).await;
    assert_eq!(
        (receipt.outcome, &result["exit_code"]),
        (Outcome::Executed, &json!(0)),
        "{result} {:?}",
        receipt.error
    );
    assert!(result["stdout"].as_str().unwrap().contains("test sums ... ok"), "{result}");
    std::fs::write(place.note("src/lib.rs"), test(5)).unwrap();
    let (receipt, result) = done(&runtime, ask("t-2")).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(101)), "{result}");
    assert_eq!(
        std::fs::read_dir(place.note("target")).unwrap().count(),
        0,
        "the project has no build results"
    );
    assert!(runtime.stop().await);
}

/// As shipped: the demo policy sets no time, so a command has the minute that it declares, and each process thirty seconds of the
/// processor.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_into_the_time_limits_as_shipped() {
    let place = naming("", None);
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once("[timeouts]").unwrap();
    let (_, after) = after.split_once("[clock]").unwrap();
    std::fs::write(&file, format!("{before}[clock]{after}")).unwrap();
    // Commands of one space run one after another, so the second runs in another place.
    let other = naming("", None);
    let (runtime, beside) = (place.runtime().await, other.runtime().await);
    let slept = approved(&runtime, command("l-1", json!(["sleep", "100"])));
    let busy = approved(&beside, command("l-2", json!(["sha256sum", "/dev/zero"])));
    let (slept, busy) = tokio::join!(slept, busy);
    let exec = |receipt: &Receipt| receipt.attempts[0].exec_ms.as_f64();
    assert_eq!(slept.outcome, Outcome::Indeterminate, "{:?}", slept.error);
    assert!((59_000.0..90_000.0).contains(&exec(&slept)), "{}", exec(&slept));
    // The limit that is reached first ends the program: 30 s of a processor (the kernel sends SIGXCPU), or a minute.
    match busy.outputs.get("signal") {
        Some(signal) => {
            assert_eq!((busy.outcome, signal), (Outcome::Executed, &json!(24)), "{:?}", busy.error)
        }
        None => {
            let cpu = busy.cost.cpu_ms.as_f64();
            assert_eq!(busy.outcome, Outcome::Indeterminate, "{:?}", busy.error);
            assert!(exec(&busy) >= 59_000.0 && cpu < 30_000.0, "{} ms, {cpu} ms of a processor", exec(&busy));
        }
    }
    assert!(runtime.stop().await && beside.stop().await);
}

/// It reaches the tool's own deadline, and all that this tells is what the planner chose to run.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hangs_shuts_no_tool_for_others() {
    let place = naming("", None);
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let short = text.replace("_ms = 59000", "_ms = 300");
    assert_ne!(short, text, "the policy of these tests sets no time");
    std::fs::write(&file, short).unwrap();
    let runtime = place.runtime().await;
    for number in 0..6 {
        let hang = command(&format!("h-{number}"), json!(["sleep", format!("5{number}")]));
        let receipt = approved(&runtime, hang).await;
        assert_eq!(receipt.attempts[0].code, Some(Code::TimedOut), "{receipt:?}");
    }
    let breaker = runtime.pipeline().services().control.breakers.show_one("command.run").unwrap();
    assert_eq!((breaker.state, breaker.failures), (BreakerState::Closed, 0));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_own_deadline_shuts_no_tool_for_others() {
    let place = naming("[commands.nap]\nargv = [\"sleep\", \"*\"]", None);
    let runtime = place.runtime().await;
    // More failures in a row than a breaker takes.
    for number in 0..6 {
        let mut nap = command(&format!("n-{number}"), json!(["sleep", "50"]));
        nap.qos.timeout_ms = Some(100);
        nap.qos.circuit_breaker_key = Some("command.run".to_owned());
        let (receipt, _) = done(&runtime, nap).await;
        let expected = if number < 5 { Outcome::TimedOut } else { Outcome::BreakerOpen };
        assert_eq!((receipt.outcome, &receipt.effects), (expected, &Effects::None), "{:?}", receipt.error);
    }
    let (receipt, _) = done(&runtime, command("n-9", json!(["sleep", "0"]))).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "the key is the subject's own: {:?}", receipt.error);
    assert!(runtime.stop().await);
}
