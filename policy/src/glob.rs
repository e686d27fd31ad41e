//! Patterns with `*`, the only wildcard of a policy.
//!
//! Regular expressions in a rule about names are a trap: `.` matches more than its author means. Here `*` stands for any
//! text, also none, and everything else for itself.

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Glob(String);

impl Glob {
    /// Takes a pattern; every text is one.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether the text is meant. Greedy with one point of return, so that no pattern takes more than
    /// `pattern × text` steps.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut p, mut t) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            if pattern.get(p) == Some(&b'*') {
                retry = Some((p + 1, t));
                p += 1;
            } else if pattern.get(p) == Some(&text[t]) {
                p += 1;
                t += 1;
            } else if let Some((after_star, from)) = retry {
                retry = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
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
            assert_eq!(
                Glob::new(pattern).matches(text),
                expected,
                "{pattern:?} on {text:?}"
            );
        }
    }

    #[test]
    fn a_hostile_pattern_stays_quick() {
        let pattern = Glob::new("a*".repeat(100));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(50))));
        assert!(!Glob::new(format!("{}b", "*a".repeat(50))).matches(&"a".repeat(4_000)));
    }
}
