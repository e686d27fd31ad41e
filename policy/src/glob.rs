//! Patterns with `*`, the only wildcard of a policy.
//!
//! A regular expression in a rule about names is a trap: `.` matches more than its author means. Here `*` stands for any text,
//! also none, and every other character for itself.

use std::collections::BTreeMap;

use effectd_contracts::text::matches_pattern;

/// A pattern. Every text is a valid pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glob(String);

impl Glob {
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern has no `*`, so that it matches only its own text.
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }

    pub fn matches(&self, text: &str) -> bool {
        matches_pattern(&self.0, text)
    }
}

pub(crate) fn any_matches(globs: &[Glob], text: &str) -> bool {
    globs.iter().any(|glob| glob.matches(text))
}

/// Values by name or pattern.
#[derive(Debug, Clone)]
pub(crate) struct GlobMap<T> {
    exact: BTreeMap<String, T>,
    globs: Vec<(Glob, T)>,
}

impl<T> Default for GlobMap<T> {
    fn default() -> Self {
        Self { exact: BTreeMap::new(), globs: Vec::new() }
    }
}

impl<T> GlobMap<T> {
    /// Adds a value. A name without `*` keeps its first value.
    pub(crate) fn add(&mut self, pattern: &str, value: T) {
        let glob = Glob::new(pattern);
        if glob.is_exact() {
            self.exact.entry(glob.0).or_insert(value);
        } else {
            self.globs.push((glob, value));
        }
    }

    /// The values of all patterns that match a name, an exact match first.
    pub(crate) fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a T> {
        let globs = self.globs.iter().filter(move |(glob, _)| glob.matches(name));
        self.exact.get(name).into_iter().chain(globs.map(|(_, value)| value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let exact = self.exact.iter().map(|(name, value)| (name.as_str(), value));
        exact.chain(self.globs.iter().map(|(glob, value)| (glob.as_str(), value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_nothing_else_does() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "user://alice", true),
            ("user://*", "user://alice", true),
            ("user://*", "agent://alice", false),
            ("user://alice", "user://alice2", false),
            ("*@deviceA", "agent://planner@deviceA", true),
            ("a*b*c", "a--b--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("tool:files.*", "tool:filesXread", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_hostile_pattern_stays_quick() {
        let pattern = Glob::new("a*".repeat(100));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(50))));
        assert!(!Glob::new(format!("{}b", "*a".repeat(50))).matches(&"a".repeat(4_000)));
    }
}
