//! Operators trip and reset breakers, with and without a daemon.

use serde_json::json;

use crate::harness::{Place, Serving, write_note};

const KEY: &str = "files.write_text";

#[test]
fn a_tripped_breaker_refuses_with_a_receipt_until_it_is_reset() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    assert_eq!(place.effectd(&["breaker", "list", "-o", "json"], None).json(0), json!([]));
    let untouched = place.effectd(&["breaker", "show", KEY, "-o", "json"], None).json(0);
    assert_eq!((&untouched["state"], &untouched["calls"]), (&json!("closed"), &json!(0)));
    for dry in [&["--dry-run"][..], &["--yes"]] {
        let misspelt = place.effectd(&[&["breaker", "trip", "files.wirte_text"], dry].concat(), None);
        let says = misspelt.stderr();
        assert!(misspelt.code() != 0 && says.contains("did you mean files.write_text?"), "{says}");
        let alias = place.effectd(&[&["breaker", "trip", "diagnose_error"], dry].concat(), None);
        let says = alias.stderr();
        assert!(alias.code() != 0 && says.contains("did you mean core.diagnose_error?"), "{says}");
    }
    let tripped = place.effectd(&["breaker", "trip", KEY, "--yes", "-o", "json"], None).json(0);
    assert_eq!((&tripped["state"], &tripped["cause"]), (&json!("open"), &json!("operator")));
    let refused = daemon.post("/v1/actions?wait=true", &write_note("a1", "a.txt", "x"));
    let problem = refused.problem(502, "breaker_open");
    assert_eq!(problem["receipt"]["outcome"], "breaker_open");
    assert!(!place.note("a.txt").exists());
    drop(daemon);
    // Also without a daemon, and over a restart.
    let shown = place.effectd(&["breaker", "show", KEY], None);
    assert!(shown.stdout().contains("operator"), "{}", shown.stdout());
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait=true", &write_note("a2", "a.txt", "x")).problem(502, "breaker_open");
    let reset = place.effectd(&["breaker", "reset", KEY, "--yes", "-o", "json"], None).json(0);
    assert_eq!(reset["state"], "closed");
    let done = daemon.post("/v1/actions?wait=true", &write_note("a3", "a.txt", "x"));
    assert_eq!(done.json(200)["outcome"], "executed");
}
