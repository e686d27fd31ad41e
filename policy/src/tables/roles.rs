//! Roles with everything that they inherit, and the capabilities of subjects and actors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::document::RoleRule;
use crate::error::{Faults, PolicyError};
use crate::glob::GlobMap;
use crate::limits::ROLE_DEPTH_MAX;
use crate::source::Lines;

/// A role with everything it inherits.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) parents: Vec<String>,
    /// Itself and all roles that it inherits from.
    pub(crate) includes: BTreeSet<String>,
    pub(crate) caps: Caps,
}

impl Role {
    /// In place of a role with a fault, in a policy that is refused.
    fn empty(name: String) -> Self {
        Self { name, parents: Vec::new(), includes: BTreeSet::new(), caps: Caps::default() }
    }
}

/// Capabilities, each with the line that grants it.
pub(crate) type Caps = GlobMap<u32>;

/// A subject or an actor, with its roles and capabilities.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub(crate) roles: Vec<Arc<Role>>,
    pub(crate) own: Caps,
    pub(crate) line: u32,
}

impl Holder {
    /// The line that grants the capability.
    pub(crate) fn covers(&self, cap: &str) -> Option<u32> {
        let roles = self.roles.iter().map(|role| &role.caps);
        let mut all = std::iter::once(&self.own).chain(roles);
        all.find_map(|caps| caps.matching(cap).next().copied())
    }

    pub(crate) fn has_role(&self, name: &str) -> bool {
        self.roles.iter().any(|role| role.includes.contains(name))
    }

    /// Adds a role, or takes every role that includes it.
    pub(super) fn set_role(&mut self, role: &Arc<Role>, given: bool) {
        if !given {
            self.roles.retain(|held| !held.includes.contains(&role.name));
        } else if !self.roles.iter().any(|held| held.name == role.name) {
            self.roles.push(Arc::clone(role));
        }
    }
}

/// Compiles all roles; refuses unknown and cyclic inheritance.
pub(crate) fn compile(
    rules: &BTreeMap<String, RoleRule>,
    lines: &Lines<'_>,
    faults: &mut Faults,
) -> BTreeMap<String, Arc<Role>> {
    let mut done = BTreeMap::new();
    for name in rules.keys() {
        let mut path = Vec::new();
        let compiled = compile_one(name, rules, lines, &mut done, &mut path);
        if faults.keep(compiled).is_none() {
            // A fault in an inherited role is one fault, however many roles inherit it: those on the way to it count as done.
            done.extend(path.into_iter().map(|name| (name.clone(), Arc::new(Role::empty(name)))));
        }
    }
    done
}

fn compile_one(
    name: &str,
    rules: &BTreeMap<String, RoleRule>,
    lines: &Lines<'_>,
    done: &mut BTreeMap<String, Arc<Role>>,
    path: &mut Vec<String>,
) -> Result<Arc<Role>, PolicyError> {
    if let Some(role) = done.get(name) {
        return Ok(Arc::clone(role));
    }
    let invalid = |message: String| Err(lines.invalid(&["roles", name, "inherits"], message));
    if path.iter().any(|above| above == name) {
        let circle = path.join(" -> ");
        return invalid(format!("roles inherit in a circle: {circle} -> {name}"));
    }
    path.push(name.to_owned());
    if path.len() > ROLE_DEPTH_MAX {
        return invalid(format!("roles inherit more than {ROLE_DEPTH_MAX} levels deep"));
    }
    let mut includes = BTreeSet::from([name.to_owned()]);
    let mut caps = Caps::default();
    let Some(rule) = rules.get(name) else {
        return invalid(format!("unknown role {name:?}"));
    };
    let line = lines.line(&["roles", name, "caps"]);
    rule.caps.iter().for_each(|cap| caps.add(cap, line));
    for parent in &rule.inherits {
        if !rules.contains_key(parent) {
            return invalid(format!("role {name:?} inherits the unknown role {parent:?}"));
        }
        let parent = compile_one(parent, rules, lines, done, path)?;
        includes.extend(parent.includes.iter().cloned());
        parent.caps.iter().for_each(|(cap, line)| caps.add(cap, *line));
    }
    path.pop();
    let role = Arc::new(Role { name: name.to_owned(), parents: rule.inherits.clone(), includes, caps });
    done.insert(name.to_owned(), Arc::clone(&role));
    Ok(role)
}
