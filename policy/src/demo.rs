//! The demo policy. It permits exactly what the quickstart does, and its comments say how to extend it.

use crate::source::{POLICY_FILE, Source};

pub const DEMO_POLICY: &str = include_str!("../demo/policy.toml");
pub const DEMO_RULES_FILE: &str = "household.cedar";
pub const DEMO_RULES: &str = include_str!("../demo/household.cedar");

/// The files of the demo, by name.
pub const DEMO_FILES: [(&str, &str); 2] = [(POLICY_FILE, DEMO_POLICY), (DEMO_RULES_FILE, DEMO_RULES)];

pub fn source() -> Source {
    Source::new(DEMO_POLICY, [(DEMO_RULES_FILE.to_owned(), DEMO_RULES.to_owned())])
}
