//! Presets, and consents that list tools.

use effectd_policy::{Overlay, Policy, PolicyError, Preset, Source};

/// Compiling also tries the examples of a policy.
fn compiled(toml: &str) -> Result<Policy, PolicyError> {
    Policy::compile(&Source::new(toml, []), &Overlay::default())
}

#[test]
fn every_preset_holds_its_examples() {
    for preset in Preset::ALL {
        let policy = Policy::compile(&preset.source(), &Overlay::default());
        let policy = policy.unwrap_or_else(|error| panic!("{}: {error}", preset.as_str()));
        assert!(policy.examples() >= 4, "{}", preset.as_str());
        assert_eq!(Preset::named(preset.as_str()), Some(preset));
    }
    assert_eq!(Preset::named("demo"), None);
}

#[test]
fn a_consent_lists_tools_or_has_a_purpose() {
    let with =
        |consent: &str| format!("version = 1\n[[consents]]\nsubject = \"*\"\nspace = \"*\"\n{consent}\n");
    for good in ["purpose = \"tool:files.*\"", "tools = [\"files.stat\", \"mail.*\"]"] {
        compiled(&with(good)).unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for (bad, why) in [
        ("", "either tools or a purpose"),
        ("tools = []", "either tools or a purpose"),
        ("tools = [\"files.stat\"]\npurpose = \"tool:files.stat\"", "either tools or a purpose"),
        ("tools = [\"\"]", "is not a purpose"),
    ] {
        let error = compiled(&with(bad)).map(drop).unwrap_err().to_string();
        assert!(error.contains(why), "{bad}: {error}");
    }
    // Each tool of a list counts.
    let tools: Vec<String> =
        (0..=effectd_policy::limits::TABLE_ENTRIES_MAX).map(|n| format!("a.t{n}")).collect();
    let error = compiled(&with(&format!("tools = {tools:?}"))).map(drop).unwrap_err().to_string();
    assert!(error.contains("consents has"), "{error}");
}
