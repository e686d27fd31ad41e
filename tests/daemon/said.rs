//! What commands say: names that they take, and what there is where there is nothing to show.

use crate::harness::{Place, Serving, write_note};

#[test]
fn whatever_takes_a_receipt_takes_the_id_of_its_action() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let done = daemon
        .post("/v1/actions?wait", &write_note("named-1", "n.txt", "n"))
        .json(200);
    let receipt = done["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    let mut daemon = Some(daemon);
    for _ in 0..2 {
        for words in [
            &["receipts", "show"][..],
            &["receipts", "proof"],
            &["receipts", "amend", "--success", "false", "--yes"],
            &["policy", "explain"],
            &["artifacts", "list"],
            &["undo", "--dry-run"],
        ] {
            for (name, code) in [(receipt.as_str(), 0), ("named-1", 0), ("named-2", 2)] {
                let ran = place.effectd(&[words, &[name]].concat(), None);
                assert_eq!(ran.code(), code, "{words:?} {name}: {}", ran.stderr());
                assert!(code == 0 || ran.stderr().contains(name), "{}", ran.stderr());
            }
        }
        // What is told is the same, also where no daemon runs.
        if let Some(daemon) = daemon.take() {
            assert_eq!(daemon.stop(), 0);
        }
    }
}
