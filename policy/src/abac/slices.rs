//! Slices of the Cedar rules, so that a request is evaluated only against rules whose scope can match it.
//!
//! A rule is in the slice of the subject or role that its scope names, or else of the space or class of spaces. A rule that
//! names none of them is in the slice for all requests. Cedar evaluates every rule of a slice.

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

    /// The slices for a request: those of its subject, the subject's roles, the space and its class, and the slice for all.
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
