//! Rules in groups, so that a request meets only the rules that could apply to it.
//!
//! A rule belongs to the group of one condition that it cannot do without: its subject, role or space, or a comparison such
//! as `context.device.class == "phone"` that its conditions begin with. A rule whose group is not asked would be left out
//! by its own [sieve](super::sieve) too, so groups change no answer; they only spare the looking.

use std::collections::HashMap;

use cedar_policy::{Policy, PolicySet};

use super::circumstances::{Field, Needs, Seen, Value};
use super::sieve::Sieve;

/// Rules that are asked together.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) rules: PolicySet,
    /// What they look at.
    pub(crate) needs: Needs,
}

/// Rules with a condition in common.
#[derive(Default)]
struct Group {
    /// Those that the condition alone decides about.
    plain: Asked,
    /// Those that a closer look may leave out, one by one.
    sieved: Vec<(Sieve, Asked)>,
    /// All of them. To ask many at once is cheaper than one by one.
    all: Asked,
}

/// All rules, in groups.
#[derive(Default)]
pub(crate) struct Groups {
    always: Group,
    by_subject: HashMap<String, Group>,
    by_role: HashMap<String, Group>,
    by_space: HashMap<String, Group>,
    by_text: Vec<(Field, HashMap<String, Group>)>,
}

impl Groups {
    pub(crate) fn new(rules: &PolicySet) -> Result<Self, String> {
        let mut groups = Self::default();
        for rule in rules.policies() {
            groups.add(rule)?;
        }
        Ok(groups)
    }

    fn add(&mut self, rule: &Policy) -> Result<(), String> {
        let json = rule.to_json().map_err(|error| error.to_string())?;
        let (sieve, needs) = (Sieve::of(rule, &json), Needs::of(&json));
        let group = self.home(&sieve);
        group.all.add(rule, needs)?;
        if sieve.is_useful() {
            let mut alone = Asked::default();
            alone.add(rule, needs)?;
            group.sieved.push((sieve, alone));
            Ok(())
        } else {
            group.plain.add(rule, needs)
        }
    }

    /// The group of the most telling condition.
    fn home(&mut self, sieve: &Sieve) -> &mut Group {
        let scope = sieve.scope();
        if let Some(subject) = &scope.subject {
            return self.by_subject.entry(subject.clone()).or_default();
        }
        if let Some((field, text)) = sieve.first_text() {
            let known = self.by_text.iter().position(|(known, _)| *known == field);
            let index = known.unwrap_or_else(|| {
                self.by_text.push((field, HashMap::new()));
                self.by_text.len() - 1
            });
            return self.by_text[index].1.entry(text.to_owned()).or_default();
        }
        if let Some(space) = &scope.space {
            return self.by_space.entry(space.clone()).or_default();
        }
        if let Some(role) = &scope.role {
            return self.by_role.entry(role.clone()).or_default();
        }
        &mut self.always
    }

    /// The rules that could apply to a request.
    pub(crate) fn of(&self, seen: &Seen<'_>) -> Vec<&Asked> {
        let mut groups = vec![&self.always];
        groups.extend(self.by_subject.get(seen.subject()));
        groups.extend(self.by_space.get(seen.space().as_str()));
        for (field, by_text) in &self.by_text {
            match seen.get(*field) {
                Value::Text(text) => groups.extend(by_text.get(text)),
                // A comparison with a text is about a text.
                Value::Truth(_) | Value::Number(_) => {}
            }
        }
        let mut roles: Vec<&str> = seen.roles().collect();
        roles.sort_unstable();
        roles.dedup();
        groups.extend(roles.into_iter().filter_map(|role| self.by_role.get(role)));
        let mut asked = Vec::new();
        groups.into_iter().for_each(|group| group.ask(seen, &mut asked));
        asked
    }
}

impl Group {
    fn ask<'g>(&'g self, seen: &Seen<'_>, asked: &mut Vec<&'g Asked>) {
        let begin = asked.len();
        let kept = self.sieved.iter().filter(|(sieve, _)| !sieve.leaves_out(seen));
        asked.extend(kept.map(|(_, alone)| alone));
        let kept = asked.len() - begin;
        if kept > 1 && 2 * kept > self.sieved.len() {
            asked.truncate(begin);
            asked.push(&self.all);
        } else if !self.plain.rules.is_empty() {
            asked.push(&self.plain);
        }
    }
}

impl Asked {
    fn add(&mut self, rule: &Policy, needs: Needs) -> Result<(), String> {
        self.needs = self.needs.and(needs);
        self.rules.add(rule.clone()).map_err(|error| error.to_string())
    }
}
