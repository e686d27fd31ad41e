//! Roles, flattened, and whether a set of capabilities covers another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::document::RoleRule;
use crate::error::PolicyError;
use crate::glob::Glob;
use crate::limits::ROLE_DEPTH_MAX;
use crate::source::{Lines, Step};

/// A role with everything it inherits.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) parents: Vec<String>,
    /// Itself and all it inherits from.
    pub(crate) includes: BTreeSet<String>,
    pub(crate) caps: Caps,
}

/// Capabilities, each with the line that grants it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caps {
    exact: BTreeMap<String, u32>,
    globs: Vec<(Glob, u32)>,
}

impl Caps {
    pub(crate) fn add(&mut self, cap: &str, line: u32) {
        let glob = Glob::new(cap);
        if glob.is_exact() {
            self.exact.entry(cap.to_owned()).or_insert(line);
        } else {
            self.globs.push((glob, line));
        }
    }

    fn extend(&mut self, other: &Caps) {
        for (cap, line) in &other.exact {
            self.exact.entry(cap.clone()).or_insert(*line);
        }
        self.globs.extend(other.globs.iter().cloned());
    }

    /// The line that grants the capability.
    pub(crate) fn covers(&self, cap: &str) -> Option<u32> {
        let by_name = self.exact.get(cap).copied();
        by_name.or_else(|| {
            self.globs
                .iter()
                .find(|(glob, _)| glob.matches(cap))
                .map(|(_, line)| *line)
        })
    }

    /// As they were written.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.exact
            .keys()
            .map(String::as_str)
            .chain(self.globs.iter().map(|(glob, _)| glob.as_str()))
    }
}

/// Someone with roles: a subject or an actor.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) roles: Vec<Arc<Role>>,
    pub(crate) own: Caps,
    pub(crate) line: u32,
}

impl Holder {
    pub(crate) fn covers(&self, cap: &str) -> Option<u32> {
        self.own
            .covers(cap)
            .or_else(|| self.roles.iter().find_map(|role| role.caps.covers(cap)))
    }

    pub(crate) fn has_role(&self, name: &str) -> bool {
        self.roles.iter().any(|role| role.includes.contains(name))
    }
}

/// Compiles all roles; refuses unknown and cyclic inheritance.
pub(crate) fn compile(
    rules: &BTreeMap<String, RoleRule>,
    lines: &Lines<'_>,
) -> Result<BTreeMap<String, Arc<Role>>, PolicyError> {
    let mut done = BTreeMap::new();
    for name in rules.keys() {
        compile_one(name, rules, lines, &mut done, &mut Vec::new())?;
    }
    Ok(done)
}

fn compile_one(
    name: &str,
    rules: &BTreeMap<String, RoleRule>,
    lines: &Lines<'_>,
    done: &mut BTreeMap<String, Arc<Role>>,
    way: &mut Vec<String>,
) -> Result<Arc<Role>, PolicyError> {
    if let Some(role) = done.get(name) {
        return Ok(Arc::clone(role));
    }
    let here = |field: &str| lines.at(&[Step::Name("roles"), Step::Name(name), Step::Name(field)]);
    if way.iter().any(|above| above == name) {
        let circle = way.join(" -> ");
        return Err(PolicyError::invalid(
            here("inherits"),
            format!("roles inherit in a circle: {circle} -> {name}"),
        ));
    }
    way.push(name.to_owned());
    if way.len() > ROLE_DEPTH_MAX {
        let message = format!("roles inherit from each other more than {ROLE_DEPTH_MAX} times");
        return Err(PolicyError::invalid(here("inherits"), message));
    }
    let mut includes = BTreeSet::from([name.to_owned()]);
    let mut caps = Caps::default();
    let Some(rule) = rules.get(name) else {
        return Err(PolicyError::invalid(
            here("inherits"),
            format!("unknown role {name:?}"),
        ));
    };
    rule.caps.iter().for_each(|cap| caps.add(cap, here("caps").line));
    for parent in &rule.inherits {
        if !rules.contains_key(parent) {
            return Err(PolicyError::invalid(
                here("inherits"),
                format!("role {name:?} inherits the unknown role {parent:?}"),
            ));
        }
        let parent = compile_one(parent, rules, lines, done, way)?;
        includes.extend(parent.includes.iter().cloned());
        caps.extend(&parent.caps);
    }
    way.pop();
    let role = Arc::new(Role {
        name: name.to_owned(),
        parents: rule.inherits.clone(),
        includes,
        caps,
    });
    done.insert(name.to_owned(), Arc::clone(&role));
    Ok(role)
}
