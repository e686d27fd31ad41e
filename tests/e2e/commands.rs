//! Named commands: they run without a person, and the kernel lets them change only what they declare.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use effectd::contracts::{ActionRequest, Code, Effects, Outcome, Receipt, RiskTier};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use serde_json::{Value, json};

use crate::approvals::{allowing, approved, request};
use crate::harness::{Place, Running, root};

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
    assert_eq!(receipt.decision.unwrap().tier, RiskTier::R2);
    assert_eq!(std::fs::read_dir(place.note("cache")).unwrap().count(), 0, "the space has no cache");
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    let mut changed: Vec<_> = observed.changes.iter().map(|change| change.path.as_str()).collect();
    changed.sort_unstable();
    let expected = ["deep", "deep/new", "gone", "old", "program"].map(|name| format!("workspace/out/{name}"));
    assert_eq!(changed, expected);
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
        (&caches[0]["space"], &caches[0]["path"], &caches[0]["files"]),
        (&json!("shared:household"), &json!("cache"), &json!(2))
    );
    assert_eq!(place.effectd(&["caches", "clear", "shared:household", "--yes"], None).code(), 0);
    assert_eq!(place.effectd(&["caches", "list", "-o", "json"], None).json(0), json!([]));
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
    assert!(receipt.error.unwrap().message.contains("create cache"), "it names what to do");
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
    assert!(receipt.error.unwrap().message.contains("workspace/out/link, a link"), "it names the link");
    assert!(place.note("out/other").symlink_metadata().is_err());

    let (receipt, result) =
        done(&runtime, command("k-3", json!(["touch", "hidden/.effectd-mine.draft"]))).await;
    assert_eq!((receipt.outcome, &result["exit_code"]), (Outcome::Executed, &json!(0)), "{result}");
    assert_eq!(receipt.effects, Effects::Unobserved);
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
    let state = place.state().canonicalize().unwrap();
    for (folder, why) in [
        ("/no/such/folder".to_owned(), "No such file"),
        (open.display().to_string(), "mode 0777"),
        (place.path("link").display().to_string(), "link"),
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
    let asked: Value = serde_json::from_str(block(&page, "json")).unwrap();
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
