//! Tools tried and undone through a running daemon.

use crate::harness::{Place, Serving};

#[test]
fn a_tool_is_tried_and_undone_through_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let attempt = |arguments: &[&str]| {
        let arguments = [&["tools", "try", "-o", "json"], arguments].concat();
        let ran = place.effectd(&arguments, None);
        assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
        ran.json(0)
    };
    attempt(&["files.write_text", "path=workspace/x", "text=one"]);
    let added = attempt(&["files.append_text", "path=workspace/x", "text= two"]);
    let read = attempt(&["files.read_text", "path=workspace/x"]);
    assert_eq!(read["result"]["text"], "one two");
    let receipt = added["receipt"]["receipt_id"].as_str().unwrap();
    let dry = place
        .effectd(&["undo", "--dry-run", "-o", "json", receipt], None)
        .json(0);
    assert_eq!(dry["outcome"], "dry_run");
    let undone = place.effectd(&["undo", "-o", "json", receipt], None).json(0);
    assert_eq!(undone["outcome"], "executed");
    assert_eq!(
        attempt(&["files.read_text", "path=workspace/x"])["result"]["text"],
        "one"
    );
    let unknown = place.effectd(&["undo", "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a99"], None);
    assert_eq!(unknown.code(), 2, "{}", unknown.stderr());
    // A result is told to whoever waits, and kept nowhere.
    let action = read["action_id"].as_str().unwrap();
    let status = place.effectd(&["status", "-o", "json", action], None).json(0);
    assert!(status.get("result").is_none() && !status.to_string().contains("one two"));
    assert_eq!(daemon.stop(), 0);
}
