//! Long contents: outputs of programs, and files that an undo restores, beyond the size of one message.

use effectd::contracts::{Digest, Outcome};
use serde_json::{Value, json};

use crate::approvals::{allowing, approved, request};
use crate::harness::{Place, Running};

/// Bytes without repetition.
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
        (&told[0]["name"], &told[0]["bytes"], told.as_array().unwrap().len()),
        (&json!("stdout"), &json!(expected.len()), 1)
    );
    assert_eq!(receipt.outputs["artifact_ids"], json!([told[0]["artifact_id"]]));
    assert_eq!(receipt.outputs["stdout_kept_bytes"], json!(expected.len()));
    assert!(runtime.stop().await);
    assert_eq!(blobs(&place, "artifacts").len(), 1);

    let id = receipt.receipt_id.as_str();
    let got = place.effectd(&["artifacts", "get", id], None);
    assert!(got.0.stdout == expected.as_bytes(), "{}", got.stderr());
    let listed = place.effectd(&["artifacts", "list", id, "-o", "json"], None).json(0);
    assert_eq!(&listed, told);
}

#[test]
fn a_file_of_20_mib_is_undone_and_redone_byte_for_byte() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let big = counted(20 << 20);
    std::fs::write(place.note("big"), &big).unwrap();
    let run = |arguments: &[&str]| place.effectd(arguments, None);
    std::fs::write(place.note("note"), "small").unwrap();
    // This tool and files.undo have thirty seconds: to keep 20 MiB takes long on a machine that stalls.
    let pack = ["from_path=workspace/note", "to_path=workspace/big", "format=zip", "overwrite=true"];
    let written = run(&[&["tools", "try", "-o", "json", "files.archive"][..], &pack].concat()).json(0);
    let small = std::fs::read(place.note("big")).unwrap();
    assert!(small.starts_with(b"PK"), "{small:?}");
    assert_eq!(written["receipt"]["effects"]["observed"]["undoable"], true);
    let undo = |told: &Value| {
        let id = told["receipt"]["receipt_id"].as_str().unwrap();
        run(&["undo", "-o", "json", id]).json(0)
    };
    let undone = undo(&written);
    assert_eq!(Digest::of(&std::fs::read(place.note("big")).unwrap()), Digest::of(&big));
    let redone = undo(&undone);
    assert!(std::fs::read(place.note("big")).unwrap() == small);
    undo(&redone);
    assert!(std::fs::read(place.note("big")).unwrap() == big);
    let kept = blobs(&place, "preimages");
    assert!(kept.len() >= 2 && kept.iter().all(|name| !name.contains("draft")), "{kept:?}");
}

/// A reversible tool does not replace what exceeds the quota.
#[test]
fn what_could_not_be_put_back_is_not_replaced() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let big = counted(9 << 20);
    std::fs::write(place.note("big"), &big).unwrap();
    let tight = |tool: &[&str]| {
        let set = ["tools", "try", "-o", "json", "--set", "store.blob_quota_bytes=8388608"];
        place.effectd(&[&set, tool].concat(), None)
    };
    let refused = tight(&["files.write_text", "path=workspace/big", "text=small"]);
    assert_eq!(refused.json(1)["code"], "file_limit", "{}", refused.stdout());
    assert!(std::fs::read(place.note("big")).unwrap() == big);
}

/// What an undo restores and its own pre-image may exceed the quota together.
#[test]
fn an_undo_does_not_push_out_what_it_puts_back() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let (one, mut other) = (counted(6 << 20), counted(6 << 20));
    other.reverse();
    std::fs::write(place.note("one"), &one).unwrap();
    std::fs::write(place.note("other"), &other).unwrap();
    let tight = ["-o", "json", "--set", "store.blob_quota_bytes=8388608"];
    let copy = ["files.copy", "from_path=workspace/other", "to_path=workspace/one", "overwrite=true"];
    let mut last = place.effectd(&[&["tools", "try"], &tight[..], &copy].concat(), None).json(0);
    assert!(std::fs::read(place.note("one")).unwrap() == other);
    for round in 0..3 {
        let id = last["receipt"]["receipt_id"].as_str().unwrap();
        last = place.effectd(&[&["undo"], &tight[..], &[id]].concat(), None).json(0);
        let wanted = if round % 2 == 0 { &one } else { &other };
        assert!(&std::fs::read(place.note("one")).unwrap() == wanted, "{round}");
        assert_eq!(last["receipt"]["effects"]["observed"]["undoable"], true, "{round}");
        let kept: usize = place
            .state_bytes()
            .into_iter()
            .filter(|(path, _)| path.to_string_lossy().contains("/blobs/preimages/"))
            .map(|(_, bytes)| bytes.len())
            .sum();
        assert!(kept <= 8_388_608 + 65_536, "{round}: {kept} bytes are kept");
    }
}

fn attempt(place: &Place, arguments: &[&str]) -> crate::harness::Ran {
    place.effectd(&[&["tools", "try", "-o", "json"], arguments].concat(), None)
}

#[test]
fn an_artifact_is_put_got_taken_aside_and_released() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let content = counted(3 << 20);
    std::fs::write(place.note("big"), &content).unwrap();
    let put = attempt(&place, &["artifact.put", "path=workspace/big"]).json(0);
    let id = put["result"]["artifact_id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&put["result"]["bytes"], &put["result"]["sha256"]),
        (&json!(content.len()), &json!(Digest::of(&content).hex()))
    );
    let receipt = &put["receipt"];
    assert_eq!(receipt["outputs"]["artifact_ids"], json!([id]));
    assert!(!receipt.to_string().contains(&Digest::of(&content).hex()), "a receipt has keyed digests alone");
    let get = |to: &str| {
        let (id, to) = (format!("artifact_id={id}"), format!("to_path=workspace/{to}"));
        attempt(&place, &["artifact.get", &id, &to])
    };
    let got = get("copy").json(0);
    assert!(std::fs::read(place.note("copy")).unwrap() == content);
    let undone = place.effectd(&["undo", got["receipt"]["receipt_id"].as_str().unwrap()], None);
    assert_eq!((undone.code(), place.note("copy").exists()), (0, false));
    let none =
        attempt(&place, &["artifact.get", &format!("artifact_id={}", "0".repeat(64)), "to_path=workspace/x"]);
    assert_eq!(none.json(1)["code"], "file_not_found");

    let by_hand = |arguments: &[&str]| place.effectd(&[&["artifacts"], arguments].concat(), None);
    let receipt_id = receipt["receipt_id"].as_str().unwrap();
    let aside =
        by_hand(&["quarantine", &id, "--reason", "it has secrets in it", "--yes", "-o", "json"]).json(0);
    assert_eq!((&aside["artifact_id"], &aside["reason"]), (&json!(id), &json!("it has secrets in it")));
    assert_eq!(by_hand(&["quarantined", "-o", "json"]).json(0), json!([aside]));
    assert_eq!(by_hand(&["list", receipt_id, "-o", "json"]).json(0)[0]["artifact_id"], json!(id));
    let refused = get("again");
    assert_eq!(refused.json(5)["code"], "safety_quarantined", "{}", refused.stdout());
    let refused = by_hand(&["get", receipt_id]);
    assert!(refused.code() != 0 && refused.stderr().contains("quarantined"), "{}", refused.stderr());
    assert!(refused.0.stdout.is_empty() && !place.note("again").exists());
    let news = place.effectd(&["store", "export", "ARTIFACTS"], None).stdout();
    assert!(news.contains("quarantined") && news.contains(&id), "{news}");

    assert_eq!(by_hand(&["release", &id, "--yes"]).code(), 0);
    assert_eq!(by_hand(&["release", &id, "--yes"]).code(), 1, "it is not quarantined any more");
    assert_eq!(by_hand(&["quarantined", "-o", "json"]).json(0), json!([]));
    get("again").json(0);
    assert!(by_hand(&["get", receipt_id]).0.stdout == content);
    assert_eq!(by_hand(&["quarantine", "../x", "--yes"]).code(), 2);
}
