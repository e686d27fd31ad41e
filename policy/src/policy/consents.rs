//! Who agreed to what, where. A consent that was taken back goes before every one that was given.

use std::collections::HashMap;

use effectd_contracts::Timestamp;

use super::{OVERLAY_RULE, policy_rule};
use crate::document::ConsentRule;
use crate::glob::Glob;
use crate::overlay::ConsentChange;

/// All consents, so arranged that the usual question (exact subject, exact purpose) looks at a handful of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Consents {
    by_name: HashMap<(String, String), Vec<Entry>>,
    by_pattern: Vec<(Glob, Glob, Entry)>,
    count: usize,
}

#[derive(Debug, Clone)]
struct Entry {
    space: Glob,
    revoked: bool,
    until: Option<Timestamp>,
    /// Subject and purpose are named, not matched by a pattern.
    explicit: bool,
    /// `None` for the overlay.
    line: Option<u32>,
}

impl Entry {
    fn rule(&self) -> String {
        self.line.map_or_else(|| OVERLAY_RULE.to_owned(), policy_rule)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConsentAnswer {
    Given { explicit: bool, rule: String },
    Revoked { rule: String },
    Expired { rule: String },
    Missing,
}

impl Consents {
    pub(crate) fn add(&mut self, consent: &ConsentRule, line: u32) {
        let (subject, purpose) = (Glob::new(&consent.subject), Glob::new(&consent.purpose));
        let explicit = subject.is_exact() && purpose.is_exact();
        let space = Glob::new(&consent.space);
        let entry = Entry {
            space,
            revoked: consent.revoked,
            until: consent.until,
            explicit,
            line: Some(line),
        };
        self.insert(subject, purpose, entry);
    }

    fn insert(&mut self, subject: Glob, purpose: Glob, entry: Entry) {
        self.count += 1;
        if entry.explicit {
            let key = (subject.as_str().to_owned(), purpose.as_str().to_owned());
            self.by_name.entry(key).or_default().push(entry);
        } else {
            self.by_pattern.push((subject, purpose, entry));
        }
    }

    /// The same with the overlay's changes, which hold no patterns.
    pub(crate) fn with_changes(&self, changes: &[ConsentChange]) -> Self {
        let mut all = self.clone();
        for change in changes {
            let entry = Entry {
                space: Glob::new(change.space.as_str()),
                revoked: change.revoked,
                until: None,
                explicit: true,
                line: None,
            };
            all.insert(
                Glob::new(change.subject.as_str()),
                Glob::new(&change.purpose),
                entry,
            );
        }
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn answer(&self, subject: &str, space: &str, purpose: &str, now: Timestamp) -> ConsentAnswer {
        let named = self
            .by_name
            .get(&(subject.to_owned(), purpose.to_owned()))
            .into_iter()
            .flatten();
        let matched = self
            .by_pattern
            .iter()
            .filter(|(s, p, _)| p.matches(purpose) && s.matches(subject));
        let all = named
            .chain(matched.map(|(_, _, entry)| entry))
            .filter(|entry| entry.space.matches(space));
        let mut best = ConsentAnswer::Missing;
        for entry in all {
            if entry.revoked {
                return ConsentAnswer::Revoked { rule: entry.rule() };
            }
            let expired = entry.until.is_some_and(|until| now >= until);
            best = match best {
                ConsentAnswer::Given { explicit: true, .. } => best,
                ConsentAnswer::Given { .. } if expired || !entry.explicit => best,
                ConsentAnswer::Missing | ConsentAnswer::Expired { .. } if expired => {
                    ConsentAnswer::Expired { rule: entry.rule() }
                }
                ConsentAnswer::Missing
                | ConsentAnswer::Expired { .. }
                | ConsentAnswer::Given { .. }
                | ConsentAnswer::Revoked { .. } => ConsentAnswer::Given {
                    explicit: entry.explicit,
                    rule: entry.rule(),
                },
            };
        }
        best
    }
}
