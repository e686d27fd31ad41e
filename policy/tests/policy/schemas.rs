//! The published schemas are those of the program.

use effectd_policy::{Document, Preset};
use schemars::schema_for;

const SCHEMA_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/policy.schema.json");

/// `EFFECTD_BLESS=1 cargo test -p effectd-policy schemas` writes it.
#[test]
fn the_json_schema_of_policy_toml_is_made_from_the_types() {
    let made = format!("{}\n", serde_json::to_string_pretty(&schema_for!(Document)).unwrap());
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        std::fs::write(SCHEMA_FILE, &made).unwrap();
    }
    let published = std::fs::read_to_string(SCHEMA_FILE).unwrap_or_default();
    assert_eq!(published, made, "run with EFFECTD_BLESS=1");
}

#[test]
fn the_demo_fits_the_published_schema_and_a_typo_does_not() {
    let schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(SCHEMA_FILE).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut value: serde_json::Value = toml::from_str(Preset::Household.files()[0].1).unwrap();
    assert!(validator.is_valid(&value), "{:?}", validator.iter_errors(&value).next());
    value["consents"][0]["revokd"] = serde_json::json!(true);
    assert!(!validator.is_valid(&value));
}
