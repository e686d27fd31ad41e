//! Rules in slices, so that a request meets only those whose head can match it.
//!
//! A slice has the rules whose heads name the same subject or role, or else the same space or class of spaces. A rule that
//! names none of them is in the slice of all requests. Cedar evaluates every rule of a slice that is asked.

use std::collections::HashMap;

use cedar_policy::{Entities, EntityUid, Policy, PolicySet, PrincipalConstraint, ResourceConstraint};

#[derive(Default)]
pub(crate) struct Slices {
    always: PolicySet,
    by_entity: HashMap<EntityUid, PolicySet>,
}

impl Slices {
    pub(crate) fn new(rules: &PolicySet) -> Result<Self, String> {
        let mut slices = Self::default();
        for rule in rules.policies() {
            let slice = match key(rule) {
                Some(entity) => slices.by_entity.entry(entity).or_default(),
                None => &mut slices.always,
            };
            slice.add(rule.clone()).map_err(|error| error.to_string())?;
        }
        Ok(slices)
    }

    /// The slices of a subject in a space: by themselves, and by the roles and the class that they are in.
    pub(crate) fn of<'s>(
        &'s self,
        subject: &EntityUid,
        space: &EntityUid,
        entities: &Entities,
    ) -> Vec<&'s PolicySet> {
        let mut found = vec![&self.always];
        for entity in [subject, space] {
            found.extend(self.by_entity.get(entity));
            let above = entities.ancestors(entity).into_iter().flatten();
            found.extend(above.filter_map(|entity| self.by_entity.get(entity)));
        }
        found.retain(|rules| !rules.is_empty());
        found
    }
}

fn key(rule: &Policy) -> Option<EntityUid> {
    let space = || match rule.resource_constraint() {
        ResourceConstraint::Eq(uid) | ResourceConstraint::In(uid) | ResourceConstraint::IsIn(_, uid) => {
            Some(uid)
        }
        ResourceConstraint::Is(_) | ResourceConstraint::Any => None,
    };
    match rule.principal_constraint() {
        PrincipalConstraint::Eq(uid) | PrincipalConstraint::In(uid) | PrincipalConstraint::IsIn(_, uid) => {
            Some(uid)
        }
        PrincipalConstraint::Is(_) | PrincipalConstraint::Any => space(),
    }
}
