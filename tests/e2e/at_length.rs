//! What is too long for a message: outputs of programs, and files that are put back.

use effectd::contracts::{Digest, Outcome};
use serde_json::{Value, json};

use crate::harness::{Place, Running};
use crate::held::{allowing, approved, request};

/// Bytes that are not the same anywhere.
fn counted(length: usize) -> Vec<u8> {
    let numbers = (0..length.div_ceil(8) as u64).flat_map(|number| (number * 0x9E37_79B9).to_le_bytes());
    numbers.take(length).collect()
}

fn blobs(place: &Place, shelf: &str) -> Vec<String> {
    let names = place.state_bytes().into_iter().filter_map(|(path, _)| {
        let path = path.to_str()?;
        let (_, name) = path.split_once(&format!("/blobs/{shelf}/"))?;
        Some(name.to_owned())
    });
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_output_is_kept_whole_and_read_back_in_pieces() {
    let place = allowing(&["seq"]);
    let runtime = place.runtime().await;
    let count = request("c-1", "command.run", json!({ "argv": ["seq", "1", "3000000"] }));
    let receipt = approved(&runtime, count).await;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    let expected: String = (1..=3_000_000).map(|number| format!("{number}\n")).collect();
    let told = &receipt.outputs["artifacts"];
    assert_eq!(
        (
            &told[0]["name"],
            &told[0]["bytes"],
            told.as_array().unwrap().len()
        ),
        (&json!("stdout"), &json!(expected.len()), 1)
    );
    assert_eq!(receipt.outputs["artifact_ids"], json!([told[0]["artifact_id"]]));
    assert_eq!(receipt.outputs["stdout_kept_bytes"], json!(expected.len()));
    assert!(runtime.stop().await);
    assert_eq!(blobs(&place, "artifacts").len(), 1);

    let id = receipt.receipt_id.as_str();
    let got = place.effectd(&["artifacts", "get", id], None);
    assert!(got.0.stdout == expected.as_bytes(), "{}", got.stderr());
    let listed = place
        .effectd(&["artifacts", "list", id, "-o", "json"], None)
        .json(0);
    assert_eq!(&listed, told);
}

#[test]
fn a_file_of_twenty_mebibytes_is_undone_and_redone_byte_for_byte() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let big = counted(20 << 20);
    std::fs::write(place.note("big"), &big).unwrap();
    let run = |arguments: &[&str]| place.effectd(arguments, None);
    let written = run(&[
        "tools",
        "try",
        "-o",
        "json",
        "files.write_text",
        "path=workspace/big",
        "text=small",
    ])
    .json(0);
    assert_eq!(std::fs::read(place.note("big")).unwrap(), b"small");
    assert_eq!(written["receipt"]["effects"]["observed"]["undoable"], true);
    let undo = |told: &Value| {
        let id = told["receipt"]["receipt_id"].as_str().unwrap();
        run(&["undo", "-o", "json", id]).json(0)
    };
    let undone = undo(&written);
    assert_eq!(
        Digest::of(&std::fs::read(place.note("big")).unwrap()),
        Digest::of(&big)
    );
    let redone = undo(&undone);
    assert_eq!(std::fs::read(place.note("big")).unwrap(), b"small");
    undo(&redone);
    assert!(std::fs::read(place.note("big")).unwrap() == big);
    let kept = blobs(&place, "preimages");
    assert!(
        kept.len() >= 2 && kept.iter().all(|name| !name.contains("draft")),
        "{kept:?}"
    );
}

/// What does not fit into the quota is not replaced by a tool that promises to be undone.
#[test]
fn what_could_not_be_put_back_is_not_replaced() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let big = counted(9 << 20);
    std::fs::write(place.note("big"), &big).unwrap();
    let tight = |tool: &[&str]| {
        let set = [
            "tools",
            "try",
            "-o",
            "json",
            "--set",
            "store.blob_quota_bytes=8388608",
        ];
        place.effectd(&[&set, tool].concat(), None)
    };
    let refused = tight(&["files.write_text", "path=workspace/big", "text=small"]);
    assert_eq!(refused.json(1)["code"], "file_limit", "{}", refused.stdout());
    assert!(std::fs::read(place.note("big")).unwrap() == big);
}
