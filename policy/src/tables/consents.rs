//! Consents. A revoked consent overrides every given one.

use std::collections::HashMap;

use effectd_contracts::Timestamp;

use super::{OVERLAY_RULE, policy_rule};
use crate::document::ConsentRule;
use crate::glob::Glob;
use crate::overlay::ConsentChange;

/// All consents, indexed by exact subject and purpose.
#[derive(Debug, Clone, Default)]
pub(crate) struct Consents {
    by_name: HashMap<(String, String), Vec<Consent>>,
    by_pattern: Vec<(Glob, Glob, Consent)>,
    count: usize,
}

#[derive(Debug, Clone)]
struct Consent {
    space: Glob,
    revoked: bool,
    until: Option<Timestamp>,
    /// Whether subject and purpose are exact names, not patterns.
    explicit: bool,
    /// `None` for the overlay.
    line: Option<u32>,
}

impl Consent {
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
    /// Adds a consent to a purpose. `line` is `None` for the overlay.
    pub(crate) fn add(&mut self, rule: &ConsentRule, named: &str, line: Option<u32>) {
        self.count += 1;
        let (subject, purpose) = (Glob::new(&rule.subject), Glob::new(named));
        let consent = Consent {
            space: Glob::new(&rule.space),
            revoked: rule.revoked,
            until: rule.until,
            explicit: subject.is_exact() && purpose.is_exact(),
            line,
        };
        if consent.explicit {
            let key = (rule.subject.clone(), named.to_owned());
            self.by_name.entry(key).or_default().push(consent);
        } else {
            self.by_pattern.push((subject, purpose, consent));
        }
    }

    /// Applies the overlay, which has no patterns.
    pub(crate) fn with_changes(&self, changes: &[ConsentChange]) -> Self {
        let mut all = self.clone();
        for change in changes {
            let rule = ConsentRule {
                subject: change.subject.to_string(),
                space: change.space.to_string(),
                purpose: None,
                tools: Vec::new(),
                revoked: change.revoked,
                until: None,
            };
            all.add(&rule, &change.purpose, None);
        }
        all
    }

    /// Whether one has ended in this time.
    pub(crate) fn has_ended(&self, since: Timestamp, now: Timestamp) -> bool {
        let patterns = self.by_pattern.iter().map(|(_, _, consent)| consent);
        let mut ends = self.by_name.values().flatten().chain(patterns).filter_map(|consent| consent.until);
        ends.any(|until| since < until && until <= now)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn answer(&self, subject: &str, space: &str, purpose: &str, now: Timestamp) -> ConsentAnswer {
        let named = self.by_name.get(&(subject.to_owned(), purpose.to_owned()));
        let patterns = self.by_pattern.iter();
        let matched = patterns.filter(|(s, p, _)| p.matches(purpose) && s.matches(subject));
        let all = named.into_iter().flatten().chain(matched.map(|(_, _, consent)| consent));
        let mut best = ConsentAnswer::Missing;
        for consent in all.filter(|consent| consent.space.matches(space)) {
            if consent.revoked {
                return ConsentAnswer::Revoked { rule: consent.rule() };
            }
            let expired = consent.until.is_some_and(|until| now >= until);
            best = match best {
                ConsentAnswer::Given { explicit: true, .. } => best,
                ConsentAnswer::Given { .. } if expired || !consent.explicit => best,
                ConsentAnswer::Missing | ConsentAnswer::Expired { .. } if expired => {
                    ConsentAnswer::Expired { rule: consent.rule() }
                }
                ConsentAnswer::Missing
                | ConsentAnswer::Expired { .. }
                | ConsentAnswer::Given { .. }
                | ConsentAnswer::Revoked { .. } => {
                    ConsentAnswer::Given { explicit: consent.explicit, rule: consent.rule() }
                }
            };
        }
        best
    }
}
