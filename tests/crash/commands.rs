//! Named commands that are killed with the runtime: what they wrote is seen, and undone where the receipt says so.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use effectd::contracts::{Code, Effects, Outcome, Receipt};
use serde_json::{Value, json};

use crate::Test;
use crate::every_tool::{SPACE, request};
use crate::harness::until_blocking;
use crate::place::{Order, Place};
use crate::tools::GATE;

pub(crate) const TESTS: &[Test] = &[
    ("a_killed_command_has_one_receipt_of_what_it_wrote", undone),
    ("a_killed_command_that_left_an_odd_name_is_seen_all_the_same", odd_name),
    ("a_killed_command_that_may_write_now_does_not_run_again", may_write_now),
    ("a_killed_command_that_may_write_less_now_is_seen_whole", may_write_less_now),
];

/// Lets the planner run `sh write.sh` without a person, with these `writes`.
fn set_writes(place: &Place, writes: &[&str]) {
    place.set_policy(&[]);
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    // The policy's own examples depend on what this changes.
    let text = text.split("[example_tools").next().unwrap();
    let text = text.replace("\"diagnose\"]", "\"diagnose\", \"command.run\"]");
    let text = text.replace("modes = {", "modes = { \"command.run\" = \"allow\",");
    let added = format!(
        "[[consents]]\nsubject = \"agent://planner@deviceA\"\nspace = \"{SPACE}\"\npurpose = \"tool:command.run\"\n\
         [commands.write]\nargv = [\"sh\", \"write.sh\"]\nwrites = {writes:?}\n"
    );
    std::fs::write(file, format!("{text}\n{added}")).unwrap();
}

/// A place where the command may write to `out`.
fn naming() -> Place {
    let place = Place::new();
    set_writes(&place, &["out"]);
    let space = place.workspace();
    std::fs::create_dir(space.join("out")).unwrap();
    for name in ["old", "gone"] {
        std::fs::write(space.join("out").join(name), name).unwrap();
    }
    place
}

/// Kills the runtime when the script has run to its last line, and returns the one receipt that the next start writes.
fn killed(place: &Place, script: &str) -> Receipt {
    let asked = interrupted(place, script);
    settled(place, asked)
}

/// Kills the runtime when the script has run to its last line, and returns the request.
fn interrupted(place: &Place, script: &str) -> Value {
    let out = place.workspace().join("out");
    let script = format!("{script}\nrm out/gone\nsleep 100\n");
    std::fs::write(place.workspace().join("write.sh"), script).unwrap();
    let asked = request("a", "command.run", &json!({ "argv": ["sh", "write.sh"], "space_id": SPACE }));
    let process = place.start(&Order { mode: "exec", requests: vec![asked.clone()], stop_at: None });
    until_blocking("the command has written", || !out.join("gone").exists());
    process.kill();
    asked
}

/// The one receipt of an interrupted command: nobody knows how far it came.
fn settled(place: &Place, asked: Value) -> Receipt {
    let ended = place.run("wait", &[asked]);
    ended.report.all_settled();
    let receipt = ended.report.the_receipt("a").clone();
    let code = receipt.error.as_ref().map(|error| error.code);
    assert_eq!((receipt.outcome, code), (Outcome::Indeterminate, Some(Code::OutcomeUnknown)));
    assert_eq!(ended.report.letters_of("a").len(), 1, "a person is asked");
    receipt
}

/// The changed paths in order, whether they can be undone, and whether they are all.
fn observed(receipt: &Receipt) -> (Vec<&str>, bool, bool) {
    let Effects::Observed(observed) = &receipt.effects else { panic!("{:?}", receipt.effects) };
    let mut changed: Vec<_> = observed.changes.iter().map(|change| change.path.as_str()).collect();
    changed.sort_unstable();
    (changed, observed.undoable, !observed.incomplete)
}

fn undo(place: &Place, receipt: &Receipt) -> Receipt {
    let params = json!({ "receipt_id": receipt.receipt_id, "space_id": SPACE });
    let mut ended = place.run("exec", &[request("undo", "files.undo", &params)]);
    serde_json::from_value(ended.answers.remove(0)).unwrap()
}

fn undone() {
    let place = naming();
    let receipt = killed(&place, "echo changed > out/old; mkdir out/deep; echo new > out/deep/new");
    let changed = ["deep", "deep/new", "gone", "old"].map(|name| format!("workspace/out/{name}"));
    assert_eq!(observed(&receipt), (changed.iter().map(String::as_str).collect(), true, true));
    let undone = undo(&place, &receipt);
    assert_eq!(undone.outcome, Outcome::Executed, "{:?}", undone.error);
    let out = place.workspace().join("out");
    for name in ["old", "gone"] {
        assert_eq!(std::fs::read_to_string(out.join(name)).unwrap(), name);
    }
    assert!(!out.join("deep").exists());
}

fn odd_name() {
    let place = naming();
    let script = r#"echo changed > out/old; touch "out/$(printf 'a\nb')"; ln -s old out/link"#;
    let receipt = killed(&place, script);
    let changed = ["workspace/out/gone", "workspace/out/link", "workspace/out/old"];
    assert_eq!(observed(&receipt), (changed.to_vec(), false, false));
    let refused = undo(&place, &receipt).error.unwrap();
    assert_eq!(refused.code, Code::UndoGone, "{refused}");
    assert!(refused.message.contains("more than effectd can list"), "{refused}");
}

/// A command that only reads may be repeated. One that may write since then has no snapshot from before its first run.
fn may_write_now() {
    let place = naming();
    set_writes(&place, &[]);
    let script = format!("test -e go || cat {GATE}\necho new > out/new\n");
    std::fs::write(place.workspace().join("write.sh"), script).unwrap();
    let asked = request("a", "command.run", &json!({ "argv": ["sh", "write.sh"], "space_id": SPACE }));
    let process = place.start(&Order { mode: "exec", requests: vec![asked.clone()], stop_at: None });
    let (gate, mut end) = (place.workspace().join(GATE), None);
    until_blocking("the command reads the pipe", || {
        // Without a reader this fails.
        end = File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&gate).ok();
        end.is_some()
    });
    process.kill();
    std::fs::write(place.workspace().join("go"), "").unwrap();
    set_writes(&place, &["out"]);
    settled(&place, asked);
    assert!(!place.workspace().join("out/new").exists(), "it ran again");
}

/// What it changed is compared beneath the `writes` of its own run.
fn may_write_less_now() {
    for writes in [&["other"][..], &[]] {
        let place = naming();
        let asked = interrupted(&place, "echo changed > out/old; mkdir out/deep; echo new > out/deep/new");
        set_writes(&place, writes);
        let receipt = settled(&place, asked);
        let changed = ["deep", "deep/new", "gone", "old"].map(|name| format!("workspace/out/{name}"));
        let changed = changed.iter().map(String::as_str).collect();
        assert_eq!(observed(&receipt), (changed, true, true), "{writes:?}");
    }
}
