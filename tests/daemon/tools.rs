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
    // The receipt of a new file names its digest and no artifact; that of a write names what was there before, which can be read.
    let new = &attempt(&["files.write_text", "path=workspace/y", "text=one"])["receipt"];
    assert_eq!(
        (&new["outputs"]["bytes_written"], &new["outputs"]["artifact_ids"]),
        (&3.into(), &serde_json::json!([]))
    );
    assert!(new["effects"]["observed"]["changes"][0]["after"]["file"]["digest"].is_string(), "{new}");
    let written = attempt(&["files.write_text", "path=workspace/y", "text=three"]);
    let (of, outputs) = (written["receipt"]["receipt_id"].as_str().unwrap(), &written["receipt"]["outputs"]);
    assert_eq!(outputs["bytes_written"], 5);
    let id = outputs["artifact_ids"][0].as_str().unwrap();
    assert_eq!(place.effectd(&["artifacts", "get", of, id], None).stdout(), "one");
    let listed = place.effectd(&["artifacts", "list", of, "-o", "json"], None).json(0);
    assert_eq!(listed, serde_json::json!([{ "artifact_id": id, "name": "workspace/y", "bytes": 3 }]));
    // Without a name, `get` means what the tool put out, which is nothing.
    assert_eq!(place.effectd(&["artifacts", "get", of], None).code(), 1);
    let dry = place.effectd(&["undo", "--dry-run", "-o", "json", receipt], None).json(0);
    assert_eq!(dry["outcome"], "dry_run");
    let undone = place.effectd(&["undo", "-o", "json", receipt], None).json(0);
    assert_eq!(undone["outcome"], "executed");
    assert_eq!(attempt(&["files.read_text", "path=workspace/x"])["result"]["text"], "one");
    let unknown = place.effectd(&["undo", "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a99"], None);
    assert_eq!(unknown.code(), 2, "{}", unknown.stderr());
    // The result of the earlier read stays what it was.
    let action = read["action_id"].as_str().unwrap();
    let status = place.effectd(&["status", "-o", "json", action], None).json(0);
    assert_eq!(status["result"], read["result"]);
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn the_daemon_does_not_hand_out_a_quarantined_artifact() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(place.note("big"), &content).unwrap();
    let run = |arguments: &[&str]| place.effectd(arguments, None);
    let put = run(&["tools", "try", "-o", "json", "artifact.put", "path=workspace/big"]).json(0);
    let receipt = put["receipt"]["receipt_id"].as_str().unwrap();
    let id = put["receipt"]["outputs"]["artifact_ids"][0].as_str().unwrap();
    let path = format!("/v1/receipts/{receipt}/artifacts/{id}");
    assert!(run(&["artifacts", "get", receipt]).0.stdout == content);
    let aside = run(&["artifacts", "quarantine", id, "--yes", "-o", "json"]).json(0);
    assert!(aside["by"].as_str().unwrap().starts_with("user://"), "{aside}");
    daemon.get(&path).problem(403, "artifact_quarantined");
    let refused = run(&["artifacts", "get", receipt]);
    assert!(refused.stderr().contains("artifact_quarantined"), "{}", refused.stderr());
    assert_eq!(run(&["artifacts", "quarantined", "-o", "json"]).json(0)[0]["artifact_id"], id);
    assert_eq!(run(&["artifacts", "release", id, "--yes"]).code(), 0);
    assert!(run(&["artifacts", "get", receipt]).0.stdout == content);
    daemon.post("/v1/artifacts/short/quarantine", &serde_json::json!({})).problem(400, "query_invalid");
    // A preview refuses what the operation would.
    let long =
        serde_json::json!({ "do": "quarantine_artifact", "artifact_id": id, "reason": "x".repeat(1_025) });
    for route in ["/v1/operations", "/v1/operations?preview=true"] {
        daemon.post(route, &long).problem(400, "query_invalid");
    }
}
