//! The policies that `effectd init` writes. Their comments say how to extend them.

use crate::source::{POLICY_FILE, Source};

/// A policy to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// For an agent that works on source code: writes are done, deletions and unnamed commands need a person.
    Coding,
    /// For a planner that keeps notes: it permits the quickstart; deletions need a person.
    Household,
    /// For a first look at a planner that nobody trusts: it reads, and each write needs a person.
    Locked,
}

impl Preset {
    pub const ALL: [Preset; 3] = [Preset::Coding, Preset::Household, Preset::Locked];

    pub const fn as_str(self) -> &'static str {
        match self {
            Preset::Coding => "coding",
            Preset::Household => "household",
            Preset::Locked => "locked",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.as_str() == name)
    }

    /// Its files, by name.
    pub const fn files(self) -> [(&'static str, &'static str); 2] {
        macro_rules! files {
            ($name:literal) => {
                [
                    (POLICY_FILE, include_str!(concat!("../presets/", $name, "/policy.toml"))),
                    (
                        concat!($name, ".cedar"),
                        include_str!(concat!("../presets/", $name, "/", $name, ".cedar")),
                    ),
                ]
            };
        }
        match self {
            Preset::Coding => files!("coding"),
            Preset::Household => files!("household"),
            Preset::Locked => files!("locked"),
        }
    }

    pub fn source(self) -> Source {
        let [(_, policy), (name, rules)] = self.files();
        Source::new(policy, [(name.to_owned(), rules.to_owned())])
    }
}
