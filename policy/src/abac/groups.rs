//! Rules in groups, so that a request meets only the rules that could apply to it.
//!
//! A rule belongs to the group of one condition that it cannot do without: its subject, role or space, or a comparison such
//! as `context.device.class == "phone"` that stands first in its `when`. Cedar looks at the scope and then at conditions
//! from left to right, and stops at the first that is false. So a rule whose group is not asked would have been false, and
//! could not have failed either; leaving it out changes no answer.

use std::collections::HashMap;

use cedar_policy::{EntityUid, Policy, PolicySet, PrincipalConstraint, ResourceConstraint};
use serde_json::Value;

use super::Texts;

/// The condition that all rules of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Guard {
    Always,
    Subject(String),
    Role(String),
    Space(String),
    Text(&'static str, String),
}

/// All rules, in groups.
pub(crate) struct Groups {
    groups: HashMap<Guard, PolicySet>,
    /// The texts that some rule is grouped by.
    texts: Vec<&'static str>,
}

impl Groups {
    pub(crate) fn new(rules: &PolicySet) -> Result<Self, String> {
        let mut groups: HashMap<Guard, PolicySet> = HashMap::new();
        for rule in rules.policies() {
            groups
                .entry(guard(rule))
                .or_default()
                .add(rule.clone())
                .map_err(|error| error.to_string())?;
        }
        let used = |name: &&'static str| {
            groups
                .keys()
                .any(|guard| matches!(guard, Guard::Text(text, _) if text == name))
        };
        let texts = Texts::NAMES.iter().copied().filter(used).collect();
        Ok(Self { groups, texts })
    }

    /// The groups that could apply to a request.
    pub(crate) fn of<'g>(
        &'g self,
        subject: &str,
        space: &str,
        roles: impl IntoIterator<Item = &'g str>,
        texts: &Texts<'_>,
    ) -> impl Iterator<Item = &'g PolicySet> {
        let mut guards = vec![
            Guard::Always,
            Guard::Subject(subject.to_owned()),
            Guard::Space(space.to_owned()),
        ];
        guards.extend(roles.into_iter().map(|role| Guard::Role(role.to_owned())));
        guards.extend(
            self.texts
                .iter()
                .map(|name| Guard::Text(name, texts.get(name).to_owned())),
        );
        guards.into_iter().filter_map(|guard| self.groups.get(&guard))
    }
}

/// The most telling condition that the rule cannot do without.
fn guard(rule: &Policy) -> Guard {
    let named = |uid: &EntityUid, kind: &str| {
        (uid.type_name().to_string() == kind).then(|| uid.id().unescaped().to_owned())
    };
    let by_principal = match rule.principal_constraint() {
        PrincipalConstraint::Eq(uid) => named(&uid, "Subject").map(Guard::Subject),
        PrincipalConstraint::In(uid) | PrincipalConstraint::IsIn(_, uid) => {
            named(&uid, "Role").map(Guard::Role)
        }
        PrincipalConstraint::Any | PrincipalConstraint::Is(_) => None,
    };
    if let Some(guard @ Guard::Subject(_)) = by_principal {
        return guard;
    }
    let by_space = match rule.resource_constraint() {
        ResourceConstraint::Eq(uid) => named(&uid, "Space").map(Guard::Space),
        ResourceConstraint::In(_)
        | ResourceConstraint::IsIn(_, _)
        | ResourceConstraint::Any
        | ResourceConstraint::Is(_) => None,
    };
    by_text(rule)
        .or(by_space)
        .or(by_principal)
        .unwrap_or(Guard::Always)
}

/// `context.<text> == "literal"`, if that is what the first `when` begins with.
fn by_text(rule: &Policy) -> Option<Guard> {
    let rule = rule.to_json().ok()?;
    let first = rule.get("conditions")?.get(0)?;
    if first.get("kind")? != "when" {
        return None;
    }
    let mut body = first.get("body")?;
    while let Some(and) = body.get("&&") {
        body = and.get("left")?;
    }
    let comparison = body.get("==")?;
    let literal = comparison.get("right")?.get("Value")?.as_str()?;
    let path = path_in_context(comparison.get("left")?)?;
    let name = Texts::NAMES.iter().find(|name| **name == path)?;
    Some(Guard::Text(name, literal.to_owned()))
}

fn path_in_context(expression: &Value) -> Option<String> {
    let access = expression.get(".")?;
    let attribute = access.get("attr")?.as_str()?;
    let of = access.get("left")?;
    if of.get("Var").and_then(Value::as_str) == Some("context") {
        return Some(attribute.to_owned());
    }
    path_in_context(of).map(|path| format!("{path}.{attribute}"))
}
