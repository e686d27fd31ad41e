//! Attributes, in Cedar: device, actor, space, tool, tier and the runtime's clock.
//!
//! Cedar leaves out a rule that fails while it is evaluated. For a rule that forbids, that would be a permit; so here any
//! such failure is a denial. Rules are validated strictly against the schema, warnings count as errors, and names of
//! roles, subjects and spaces in them must exist.

mod circumstances;
mod groups;
mod statements;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use cedar_policy::{
    Authorizer, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicyId, PolicySet,
    Request, RestrictedExpression, Schema, ValidationMode, Validator,
};
use effectd_contracts::{RiskLevel, SpaceId};

use crate::error::{Location, PolicyError};
use crate::facts::Facts;
use crate::limits::CEDAR_RULES_MAX;
use crate::policy::Policy;
use crate::policy::tables::Tables;
use crate::risk::Risk;
use crate::source::SourceFile;

use circumstances::{Texts, context};
use groups::Groups;

/// What rules may look at.
pub const CEDAR_SCHEMA: &str = include_str!("../../schema/effectd.cedarschema");

#[expect(
    clippy::expect_used,
    reason = "the schema is part of the program, and tests parse it"
)]
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    Schema::from_cedarschema_str(CEDAR_SCHEMA)
        .expect("the built-in schema parses")
        .0
});

/// Compiled attribute rules.
pub(crate) struct Abac {
    authorizer: Authorizer,
    groups: Groups,
    /// All rules in one, to hold the groups against.
    #[cfg(test)]
    whole: PolicySet,
    entities: Entities,
    /// Where each rule stands.
    places: HashMap<PolicyId, Location>,
    names: Names,
}

impl std::fmt::Debug for Abac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abac")
            .field("rules", &self.places.len())
            .finish_non_exhaustive()
    }
}

/// Type names, parsed once.
#[derive(Clone)]
struct Names {
    role: EntityTypeName,
    subject: EntityTypeName,
    space: EntityTypeName,
    space_class: EntityTypeName,
    read: EntityUid,
    write: EntityUid,
    danger: EntityUid,
}

impl Names {
    #[expect(
        clippy::expect_used,
        reason = "the names are constants, and every test parses them"
    )]
    fn new() -> Self {
        let name = |text: &str| {
            text.parse::<EntityTypeName>()
                .expect("a constant type name parses")
        };
        let action = |text: &str| uid(&name("Action"), text);
        Self {
            role: name("Role"),
            subject: name("Subject"),
            space: name("Space"),
            space_class: name("SpaceClass"),
            read: action("read"),
            write: action("write"),
            danger: action("danger"),
        }
    }

    fn action(&self, level: RiskLevel) -> EntityUid {
        match level {
            RiskLevel::Read => self.read.clone(),
            RiskLevel::Write => self.write.clone(),
            RiskLevel::Danger => self.danger.clone(),
        }
    }
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// What the rules said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AbacAnswer {
    /// These rules permitted.
    Permit { rules: Vec<String> },
    /// These rules forbade.
    Forbid { rules: Vec<String> },
    /// No rule permitted.
    Silent,
    /// A rule could not be evaluated.
    Failed { message: String },
}

impl Abac {
    pub(crate) fn compile(files: &[SourceFile], tables: &Tables) -> Result<Self, PolicyError> {
        let names = Names::new();
        let mut rules = PolicySet::new();
        let mut places = HashMap::new();
        for file in files {
            for statement in statements::split(file)? {
                let policy = statement.parse()?;
                let place = statement.location();
                check_names(&policy, &place, tables)?;
                if places.len() >= CEDAR_RULES_MAX {
                    let message = format!("more than {CEDAR_RULES_MAX} rules");
                    return Err(PolicyError::invalid(place, message));
                }
                if let Some(other) = places.insert(policy.id().clone(), place.clone()) {
                    let message = format!("the rule {} stands already at {other}", policy.id());
                    return Err(PolicyError::invalid(place, message));
                }
                let added = rules.add(policy);
                added.map_err(|error| PolicyError::invalid(statement.location(), error.to_string()))?;
            }
        }
        validate(&rules, &places)?;
        let entities = entities(&names, tables)
            .map_err(|message| PolicyError::invalid(Location::new(crate::source::POLICY_FILE, 1), message))?;
        let groups = Groups::new(&rules)
            .map_err(|message| PolicyError::invalid(Location::new("*.cedar", 1), message))?;
        Ok(Self {
            authorizer: Authorizer::new(),
            groups,
            #[cfg(test)]
            whole: rules,
            entities,
            places,
            names,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Asks the rules about a known subject in a known space.
    pub(crate) fn ask(&self, facts: &Facts, risk: &Risk, policy: &Policy) -> AbacAnswer {
        let tables = policy.tables();
        let holder = tables.subjects.get(facts.subject.as_str());
        let roles: BTreeSet<&str> = holder
            .iter()
            .flat_map(|holder| &holder.roles)
            .flat_map(|role| role.includes.iter().map(String::as_str))
            .collect();
        let texts = Texts::of(facts, risk, tables);
        let groups = self
            .groups
            .of(facts.subject.as_str(), facts.space.as_str(), roles, &texts);
        self.ask_groups(groups, facts, risk, policy)
    }

    /// A failure in any group is a failure; then any rule that forbids goes before every rule that permits.
    fn ask_groups<'g>(
        &self,
        groups: impl Iterator<Item = &'g PolicySet>,
        facts: &Facts,
        risk: &Risk,
        policy: &Policy,
    ) -> AbacAnswer {
        let request = match self.request(facts, risk, policy) {
            Ok(request) => request,
            Err(message) => return AbacAnswer::Failed { message },
        };
        let (mut permits, mut forbids, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for group in groups {
            let response = self.authorizer.is_authorized(&request, group, &self.entities);
            failures.extend(response.diagnostics().errors().map(ToString::to_string));
            let rules = response.diagnostics().reason().map(|id| self.cite(id));
            match response.decision() {
                Decision::Allow => permits.extend(rules),
                Decision::Deny => forbids.extend(rules),
            }
        }
        permits.sort();
        forbids.sort();
        match failures.into_iter().min() {
            Some(message) => AbacAnswer::Failed { message },
            None if !forbids.is_empty() => AbacAnswer::Forbid { rules: forbids },
            None if !permits.is_empty() => AbacAnswer::Permit { rules: permits },
            None => AbacAnswer::Silent,
        }
    }

    fn request(&self, facts: &Facts, risk: &Risk, policy: &Policy) -> Result<Request, String> {
        Request::new(
            uid(&self.names.subject, facts.subject.as_str()),
            self.names.action(facts.tool.risk_level),
            uid(&self.names.space, facts.space.as_str()),
            context(facts, risk, policy)?,
            None,
        )
        .map_err(|error| error.to_string())
    }

    /// `night-rest (rules.cedar:4)`, or only the place if the rule has no id of its own.
    fn cite(&self, id: &PolicyId) -> String {
        let name: &str = id.as_ref();
        match self.places.get(id).map(ToString::to_string) {
            Some(place) if place != name => format!("{name} ({place})"),
            Some(place) => place,
            None => name.to_owned(),
        }
    }
}

fn validate(rules: &PolicySet, places: &HashMap<PolicyId, Location>) -> Result<(), PolicyError> {
    let result = Validator::new(SCHEMA.clone()).validate(rules, ValidationMode::Strict);
    let errors = result
        .validation_errors()
        .map(|error| (error.policy_id(), 0, error.to_string()));
    let warnings = result
        .validation_warnings()
        .map(|warning| (warning.policy_id(), 1, warning.to_string()));
    let located = errors
        .chain(warnings)
        .map(|(id, order, message)| (places.get(id).cloned(), order, message));
    // The first by place, errors before warnings, so that the same policy always gets the same answer.
    match located.min() {
        Some((at, _, message)) => Err(PolicyError::invalid(
            at.unwrap_or_else(|| Location::new("*.cedar", 1)),
            message,
        )),
        None => Ok(()),
    }
}

/// Cedar takes any id for an entity; a misspelt one would be a rule that never applies.
fn check_names(policy: &cedar_policy::Policy, place: &Location, tables: &Tables) -> Result<(), PolicyError> {
    for literal in policy.entity_literals() {
        let id = literal.id().unescaped();
        let known = match literal.type_name().to_string().as_str() {
            "Role" => tables.roles.contains_key(id),
            "Subject" => tables.subjects.contains_key(id),
            "Space" => SpaceId::new(id).is_ok_and(|id| tables.spaces.contains_key(&id)),
            "SpaceClass" => tables.spaces.keys().any(|space| space.class() == id),
            _ => true,
        };
        if !known {
            let message = format!("the rule names {literal}, which policy.toml does not have");
            return Err(PolicyError::invalid(place.clone(), message));
        }
    }
    Ok(())
}

fn entities(names: &Names, tables: &Tables) -> Result<Entities, String> {
    let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let entity = |uid, attributes: Vec<(&str, RestrictedExpression)>, parents: HashSet<EntityUid>| {
        let attributes = attributes
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        Entity::new(uid, attributes, parents).map_err(|error| error.to_string())
    };
    let mut all = Vec::new();
    for role in tables.roles.values() {
        let parents = role
            .parents
            .iter()
            .map(|parent| uid(&names.role, parent))
            .collect();
        all.push(entity(uid(&names.role, &role.name), Vec::new(), parents)?);
    }
    for (id, holder) in &tables.subjects {
        let parents = holder
            .roles
            .iter()
            .map(|role| uid(&names.role, &role.name))
            .collect();
        let kind = id.split_once("://").map_or("", |(kind, _)| kind);
        all.push(entity(
            uid(&names.subject, id),
            vec![("kind", text(kind))],
            parents,
        )?);
    }
    let mut classes = BTreeMap::new();
    for (id, space) in &tables.spaces {
        let class = uid(&names.space_class, id.class());
        classes.insert(id.class(), class.clone());
        let attributes = vec![
            ("class", text(id.class())),
            ("org", text(space.org.as_deref().unwrap_or_default())),
        ];
        all.push(entity(
            uid(&names.space, id.as_str()),
            attributes,
            HashSet::from([class]),
        )?);
    }
    for class in classes.into_values() {
        all.push(entity(class, Vec::new(), HashSet::new())?);
    }
    Entities::from_entities(all, Some(&SCHEMA)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Overlay, demo};
    use serde_json::json;

    /// Requests are made without checking them against the schema, since that costs as much as evaluating them; so what
    /// is made must fit it by construction.
    #[test]
    fn the_circumstances_fit_the_schema_that_rules_are_validated_with() {
        let policy = Policy::compile(&demo::source(), &Overlay::default()).unwrap();
        let names = Names::new();
        for (level, actor, effects) in [
            ("read", json!(null), json!([])),
            (
                "write",
                json!("alice"),
                json!(["filesystem_write", "user_visible"]),
            ),
            (
                "danger",
                json!("mallory"),
                json!(["filesystem_delete", "network_call", "cross_space"]),
            ),
        ] {
            let facts: Facts = serde_json::from_value(json!({
                "principal": "user://a", "subject": "agent://planner@deviceA", "space": "shared:household", "actor": actor,
                "device": "phone1", "now": "2026-01-07T12:00:00Z",
                "tool": {
                    "id": "files.write_text", "caps": [], "side_effects": effects, "safety_class": "LOW",
                    "risk_level": level, "tier": "R1",
                },
            }))
            .unwrap();
            let risk = crate::risk::assess(&facts, &policy);
            let context = context(&facts, &risk, &policy).unwrap();
            context
                .validate(&SCHEMA, &names.action(facts.tool.risk_level))
                .unwrap();
        }
    }

    const GROUPED: &str = r#"
        permit (principal, action, resource) when { context.clock.hour < 20 };
        permit (principal in Role::"planner", action, resource) when { context.tool.tier == 1 };
        permit (principal == Subject::"agent://planner@deviceA", action == Action::"read", resource);
        permit (principal is Subject in Role::"planner", action, resource is Space) when { context.dry_run };
        permit (principal, action, resource == Space::"shared:household") unless { context.actor.known };
        forbid (principal, action, resource) when { context.device.class == "phone" && context.clock.night };
        forbid (principal, action, resource) when { context.clock.night && context.device.class == "phone" };
        forbid (principal, action, resource) when { "unknown" == context.device.class };
        forbid (principal, action, resource) when { context.tool.id == "files.write_text" || context.dry_run };
        forbid (principal, action, resource) when { context.tool.id == "a.b" } when { context.clock.hour == 3 };
        forbid (principal, action, resource) unless { context.tool.source == "files" || context.clock.hour < 22 };
        forbid (principal, action, resource) when { context.actor.id == "mallory" && context.clock.unix * 9223372036854775807 > 5 };
        forbid (principal, action, resource) when { context.clock.unix * 9223372036854775807 > 5 && context.actor.id == "nobody" };
        forbid (principal, action == Action::"danger", resource) when { context.principal == "user://a" };
        forbid (principal, action, resource) when { context.automation == "" && context.tool.safety_class == "HIGH" };
    "#;

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]
        #[test]
        fn asking_groups_is_asking_everyone(
            picked in proptest::sample::subsequence((0..15).collect::<Vec<usize>>(), 0..15),
            (level, device, actor) in (0_usize..3, 0_usize..4, 0_usize..4),
            (tool, class, hour, dry_run) in (0_usize..3, 0_usize..3, 0_i64..24, proptest::bool::ANY),
        ) {
            let all: Vec<&str> = GROUPED.trim().lines().collect();
            let rules: Vec<&str> = picked.iter().map(|index| all[*index]).collect();
            let source = crate::Source::new(demo_tables(), [("r.cedar".to_owned(), rules.join("\n"))]);
            let policy = Policy::compile(&source, &Overlay::default()).unwrap();
            let facts: Facts = serde_json::from_value(json!({
                "principal": (["user://a", "user://b"][tool % 2]), "subject": "agent://planner@deviceA",
                "space": "shared:household", "actor": ([None, Some("alice"), Some("mallory"), Some("x")][actor]),
                "device": ([None, Some("phone1"), Some("phone2"), Some("x")][device]), "dry_run": dry_run,
                "now": effectd_contracts::Timestamp::from_second(hour * 3_600).unwrap(),
                "tool": {
                    "id": (["files.write_text", "a.b", "files.read"][tool]), "caps": [], "side_effects": [],
                    "safety_class": (["LOW", "MEDIUM", "HIGH"][class]), "risk_level": (["read", "write", "danger"][level]),
                    "tier": (["R1", "R2"][class % 2]),
                },
            }))
            .unwrap();
            let risk = crate::risk::assess(&facts, &policy);
            let abac = policy.abac();
            let everyone = abac.ask_groups(std::iter::once(&abac.whole), &facts, &risk, &policy);
            proptest::prop_assert_eq!(abac.ask(&facts, &risk, &policy), everyone);
        }
    }

    /// The demo's tables without its examples, which are about its own rules.
    fn demo_tables() -> String {
        let (tables, _) = demo::DEMO_POLICY.split_once("[example_tools").unwrap();
        tables.to_owned()
    }
}
