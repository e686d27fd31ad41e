//! The description of the interface is checked in, so that a change of it shows in review.

use serde_json::Value;

use crate::harness::{Place, Serving, root};

#[test]
fn the_checked_in_description_is_the_one_that_is_served() {
    let made = effectd_gateway::openapi::document();
    let path = root().join("docs/openapi.json");
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        std::fs::write(
            &path,
            format!("{}\n", serde_json::to_string_pretty(&made).unwrap()),
        )
        .unwrap();
    }
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(
        kept, made,
        "docs/openapi.json is out of step; EFFECTD_BLESS=1 writes it anew"
    );
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    assert_eq!(daemon.get("/openapi.json").json(200), made);
}
