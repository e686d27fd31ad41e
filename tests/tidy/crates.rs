//! Rules about crates: who may depend on whom, and what every crate has.

use std::collections::BTreeSet;

use crate::tree::{files_ending, members, none, packages, root, text, toml};

/// Who may depend on whom. The root package may use everything.
const MAY_USE: [(&str, &[&str]); 9] = [
    ("contracts", &[]),
    ("policy", &["contracts"]),
    ("bus", &["contracts"]),
    ("sandbox", &["contracts"]),
    ("egress", &["contracts", "sandbox"]),
    ("adapters", &["contracts"]),
    ("actors", &["contracts", "policy", "bus", "sandbox", "egress"]),
    ("automations", &["contracts", "policy", "actors"]),
    ("gateway", &["contracts", "bus", "actors", "automations"]),
];

/// Third-party crates that stay in few places, and the packages they are in.
const CONFINED: [(&str, &[&str]); 8] = [
    ("sled", &["bus"]),
    ("backoff", &["actors"]),
    ("ractor", &["actors"]),
    ("cedar-policy", &["policy"]),
    ("landlock", &["sandbox"]),
    ("tokio-rustls", &["egress", "gateway"]),
    ("rmcp", &["gateway"]),
    ("minijinja", &["automations"]),
];

/// Features that exist for tests alone.
const TEST_FEATURES: [&str; 3] = ["failpoints", "conformance", "testing"];

/// The tables of dependencies of a Cargo.toml; whether they are for tests only.
fn tables(manifest: &toml::Table) -> Vec<(bool, &toml::Table)> {
    let kinds = [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let places = std::iter::once(manifest)
        .chain(targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table));
    let found = places.flat_map(|place| {
        kinds.iter().filter_map(move |(kind, tests)| Some((*tests, place.get(*kind)?.as_table()?)))
    });
    found.collect()
}

fn own_crate(package: &str) -> Option<&str> {
    package.strip_prefix("effectd-")
}

#[test]
fn crates_depend_in_one_direction_only() {
    let mut findings = Vec::new();
    for name in members() {
        let rule = MAY_USE.iter().find(|(known, _)| *known == name);
        let (_, allowed) = rule
            .unwrap_or_else(|| panic!("say in MAY_USE of tests/tidy/crates.rs what {name} may depend on"));
        for (tests, table) in tables(&toml(&format!("{name}/Cargo.toml"))) {
            for used in table.keys().filter_map(|package| own_crate(package)) {
                // A crate's tests may use the crate itself, with its test features.
                let may = allowed.contains(&used) || (tests && used == name);
                if !may {
                    findings.push(format!("{name} -> {used}"));
                }
            }
        }
    }
    none(
        &findings,
        "These dependencies point the wrong way; move what is needed down, or hand it in as a value:",
    );
}

#[test]
fn the_root_package_brings_every_crate_together() {
    let manifest = toml("Cargo.toml");
    let used: BTreeSet<_> = tables(&manifest)
        .into_iter()
        .filter(|(tests, _)| !tests)
        .flat_map(|(_, table)| table.keys())
        .filter_map(|package| own_crate(package).map(str::to_owned))
        .collect();
    let unused: Vec<_> = members().into_iter().filter(|member| !used.contains(member)).collect();
    none(
        &unused,
        "Nothing ships these members; use them in [dependencies] of the root package, or remove them:",
    );
}

#[test]
fn crates_with_sharp_edges_stay_where_they_are_handled() {
    let mut findings = Vec::new();
    for (name, manifest, _) in packages() {
        for (_, table) in tables(&toml(&manifest)) {
            let is_stray = |(krate, homes): &&(&str, &[&str])| {
                table.contains_key(*krate) && !homes.contains(&name.as_str())
            };
            let strays = CONFINED.iter().filter(is_stray);
            findings.extend(
                strays.map(|(krate, homes)| format!("{manifest}: {krate} belongs in {}", homes.join(", "))),
            );
        }
    }
    none(&findings, "Reach these crates through the one that wraps them:");
}

#[test]
fn what_exists_for_tests_is_not_shipped() {
    let mut findings = Vec::new();
    for (_, manifest, _) in packages() {
        let parsed = toml(&manifest);
        for (_, table) in tables(&parsed).into_iter().filter(|(tests, _)| !tests) {
            for (package, value) in table {
                let features = value.get("features").and_then(toml::Value::as_array);
                let asked = features.into_iter().flatten().filter_map(toml::Value::as_str);
                let bad =
                    asked.filter(|feature| TEST_FEATURES.contains(feature) && own_crate(package).is_some());
                findings.extend(bad.map(|feature| format!("{manifest}: {package} with {feature}")));
            }
        }
        let default = parsed.get("features").and_then(|features| features.get("default"));
        let default =
            default.and_then(toml::Value::as_array).into_iter().flatten().filter_map(toml::Value::as_str);
        let bad = default.filter(|feature| TEST_FEATURES.contains(feature));
        findings.extend(bad.map(|feature| format!("{manifest}: {feature} is a default feature")));
    }
    none(&findings, "Ask for these features only in [dev-dependencies]:");
}

#[test]
fn every_version_is_declared_once_for_all() {
    let mut findings = Vec::new();
    for (_, manifest, _) in packages() {
        for (_, table) in tables(&toml(&manifest)) {
            // A package may name itself, with the features of its tests.
            let is_shared = |value: &toml::Value| {
                value.get("workspace").and_then(toml::Value::as_bool) == Some(true)
                    || value.get("path").and_then(toml::Value::as_str) == Some(".")
            };
            let own = table.iter().filter(|(_, value)| !is_shared(value));
            findings.extend(own.map(|(package, _)| format!("{manifest}: {package}")));
        }
    }
    none(&findings, "Declare these in [workspace.dependencies], and write `workspace = true`:");
}

#[test]
fn every_crate_says_what_it_is_for() {
    let mut findings = Vec::new();
    for (name, manifest, lib) in packages() {
        let parsed = toml(&manifest);
        let description =
            parsed["package"].get("description").and_then(toml::Value::as_str).unwrap_or_default();
        if description.len() < 20 || description.to_uppercase().contains("TODO") {
            findings.push(format!("{manifest}: give {name} a description of one line"));
        }
        if !text(&lib).starts_with("//! ") {
            findings.push(format!("{lib}: begin with `//!` and say why the crate exists"));
        }
        let lints =
            parsed.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        if lints != Some(true) {
            findings.push(format!("{manifest}: add `[lints]` with `workspace = true`"));
        }
    }
    none(&findings, "A newcomer opens these first:");
}

/// A proof that any file could make would prove nothing.
#[test]
fn only_the_stage_that_earns_a_proof_makes_it() {
    let makers = [
        ("Validated::new(", "validator"),
        ("Gated::new(", "gate"),
        ("Evidence::found(", "approval"),
        ("Claimed::new(", "idempotency"),
        ("Finished::new(", "executor"),
    ];
    let sources = files_ending(".rs").into_iter().filter(|file| file.starts_with("actors/src/"));
    let sources: Vec<_> = sources.map(|file| (text(&file), file)).collect();
    for (maker, stage) in makers {
        let found: Vec<_> =
            sources.iter().filter(|(source, _)| source.contains(maker)).map(|(_, file)| file).collect();
        assert_eq!(found, [&format!("actors/src/stages/{stage}.rs")], "{maker}");
    }
}

#[test]
fn undocumented_items_and_aborting_profiles_are_refused() {
    let manifest = toml("Cargo.toml");
    let lints = &manifest["workspace"]["lints"]["rust"];
    let level = lints.get("unsafe_code").and_then(toml::Value::as_str);
    assert!(
        matches!(level, Some("deny" | "forbid")),
        "set unsafe_code = \"deny\" in [workspace.lints.rust]: unsafe stays in sandbox"
    );
    for lib in ["contracts/src/lib.rs", "runtime/lib.rs"] {
        assert!(
            text(lib).lines().any(|line| line == "#![deny(missing_docs)]"),
            "{lib}: add `#![deny(missing_docs)]`: others read what it exports"
        );
    }
    let profiles = manifest.get("profile").and_then(toml::Value::as_table);
    for (name, profile) in profiles.into_iter().flatten() {
        let panic = profile.get("panic").and_then(toml::Value::as_str);
        assert_ne!(panic, Some("abort"), "[profile.{name}]: a panic must end one worker, not the process");
    }
}

#[test]
fn every_module_says_why_it_exists() {
    let sources = files_ending(".rs");
    let shipped = sources.iter().filter(|file| file.starts_with("runtime/") || file.contains("/src/"));
    let findings: Vec<_> = shipped
        .filter(|file| !file.ends_with("tests.rs") && !text(file).starts_with("//!"))
        .cloned()
        .collect();
    none(&findings, "Begin these files with a `//!` line that says why they exist:");
}

#[test]
fn the_lock_file_is_committed_with_the_code() {
    assert!(root().join("Cargo.lock").is_file(), "commit Cargo.lock: a fresh clone builds what was tested");
    let ignored = text(".gitignore");
    assert!(!ignored.lines().any(|line| line.contains("Cargo.lock")), "take Cargo.lock out of .gitignore");
}
