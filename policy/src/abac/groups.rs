//! Rules in groups, so that a request meets only the rules that could apply to it.
//!
//! A rule belongs to the group of one condition that it cannot do without: its subject, role or space, or a comparison such
//! as `context.device.class == "phone"` that its conditions begin with. A rule whose group is not asked would be left out
//! by its own [sieve](super::sieve) too, so groups change no answer; they only spare the looking.

use std::collections::HashMap;

use cedar_policy::{Effect, Policy, PolicyId, PolicySet};

use super::circumstances::{Field, Needs, Seen, Value};
use super::sieve::{Applies, Sieve};

/// Rules that are asked together.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) rules: PolicySet,
    /// What they look at.
    pub(crate) needs: Needs,
}

/// What is known of a request before Cedar is asked, and what is not.
#[derive(Default)]
pub(crate) struct Found<'g> {
    /// Rules that certainly apply.
    pub(crate) apply: Vec<(Effect, &'g PolicyId)>,
    /// Rules that Cedar has to be asked about.
    pub(crate) ask: Vec<&'g Asked>,
}

/// Rules with a condition in common.
#[derive(Default)]
struct Group {
    /// Those of which only Cedar can say more.
    plain: Asked,
    /// Those that a closer look may decide about, one by one.
    sieved: Vec<Sieved>,
    /// All of them. To ask many at once is cheaper than one by one.
    all: Asked,
}

struct Sieved {
    sieve: Sieve,
    effect: Effect,
    id: PolicyId,
    alone: Asked,
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
            group.sieved.push(Sieved {
                sieve,
                effect: rule.effect(),
                id: rule.id().clone(),
                alone,
            });
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

    /// The rules that apply to a request, and those that could.
    pub(crate) fn of(&self, seen: &Seen<'_>) -> Found<'_> {
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
        let mut found = Found::default();
        groups.into_iter().for_each(|group| group.look(seen, &mut found));
        found
    }
}

impl Group {
    fn look<'g>(&'g self, seen: &Seen<'_>, found: &mut Found<'g>) {
        let (applied, asked) = (found.apply.len(), found.ask.len());
        for rule in &self.sieved {
            match rule.sieve.look(seen) {
                Applies::No => {}
                Applies::Yes => found.apply.push((rule.effect, &rule.id)),
                Applies::CannotTell => found.ask.push(&rule.alone),
            }
        }
        let unclear = found.ask.len() - asked;
        if unclear > 1 && 2 * unclear > self.sieved.len() {
            found.apply.truncate(applied);
            found.ask.truncate(asked);
            found.ask.push(&self.all);
        } else if !self.plain.rules.is_empty() {
            found.ask.push(&self.plain);
        }
    }
}

impl Asked {
    fn add(&mut self, rule: &Policy, needs: Needs) -> Result<(), String> {
        self.needs = self.needs.and(needs);
        self.rules.add(rule.clone()).map_err(|error| error.to_string())
    }
}
