//! `docs/openapi.json` is checked in, so that a change of the interface shows in review.

use serde_json::Value;

use crate::harness::{Place, Serving, root};

#[test]
fn the_checked_in_description_is_the_one_that_is_served() {
    let made = effectd_gateway::openapi::document();
    let path = root().join("docs/openapi.json");
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&made).unwrap())).unwrap();
    }
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(kept, made, "docs/openapi.json is out of step; EFFECTD_BLESS=1 writes it anew");
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    assert_eq!(daemon.get("/openapi.json").json(200), made);
}

/// Clients are generated from the document: its path parameters must be those in the path.
#[test]
fn every_path_parameter_is_described_and_nothing_else_is() {
    let made = effectd_gateway::openapi::document();
    let mut seen = 0;
    for (path, methods) in made["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let parameters = described["parameters"].as_array().cloned().unwrap_or_default();
            let told = parameters.iter().filter(|one| one["in"] == "path");
            let mut told: Vec<String> =
                told.map(|one| format!("{{{}}}", one["name"].as_str().unwrap())).collect();
            let mut parts: Vec<&str> = path.split('/').filter(|part| part.starts_with('{')).collect();
            told.sort();
            parts.sort_unstable();
            assert_eq!(told, parts, "{method} {path}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}
