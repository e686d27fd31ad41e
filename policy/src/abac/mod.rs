//! Attributes, in Cedar: device, actor, space, tool, tier and the runtime's clock.
//!
//! Cedar leaves out a rule that fails while it is evaluated. For a rule that forbids, that would be a permit; so here any
//! such failure is a denial. Rules are validated strictly against the schema, warnings count as errors, and names of
//! roles, subjects and spaces in them must exist.

mod request;
mod slices;
mod statements;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use cedar_policy::{
    Authorizer, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicyId, PolicySet,
    Request, RestrictedExpression, Schema, ValidationMode, Validator,
};
use effectd_contracts::{Digest, RiskLevel, SpaceId, canonical};

use crate::error::{Location, PolicyError};
use crate::facts::Facts;
use crate::limits::CEDAR_RULES_MAX;
use crate::policy::Policy;
use crate::policy::tables::Tables;
use crate::risk::Risk;
use crate::source::SourceFile;

use request::subject_kind;
use slices::Slices;

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

pub(crate) struct Abac {
    authorizer: Authorizer,
    slices: Slices,
    /// All rules in one, to compare the slices with.
    #[cfg(test)]
    whole: PolicySet,
    entities: Entities,
    citations: HashMap<PolicyId, String>,
    names: Names,
    /// Some rule looks at what would change.
    foresees: bool,
    digest: Digest,
}

impl std::fmt::Debug for Abac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abac")
            .field("rules", &self.citations.len())
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
        let mut texts = BTreeSet::new();
        for file in files {
            for statement in statements::split(file)? {
                let policy = statement.parse()?;
                texts.insert(statement.text());
                let place = statement.location();
                check_names(&policy, &place, tables)?;
                if places.len() >= CEDAR_RULES_MAX {
                    let message = format!("more than {} rules", CEDAR_RULES_MAX);
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
        let foresees =
            foresees(&rules).map_err(|message| PolicyError::invalid(Location::new("*.cedar", 1), message))?;
        let entities = entities(&names, tables)
            .map_err(|message| PolicyError::invalid(Location::new(crate::source::POLICY_FILE, 1), message))?;
        let slices = Slices::new(&rules)
            .map_err(|message| PolicyError::invalid(Location::new("*.cedar", 1), message))?;
        Ok(Self {
            authorizer: Authorizer::new(),
            slices,
            #[cfg(test)]
            whole: rules,
            entities,
            citations: places
                .iter()
                .map(|(id, place)| (id.clone(), cite(id, place)))
                .collect(),
            names,
            foresees,
            // Whatever file and line they stand at.
            digest: canonical::digest(&serde_json::json!(texts)),
        })
    }

    /// Over what all rules say.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) fn foresees(&self) -> bool {
        self.foresees
    }

    pub(crate) fn len(&self) -> usize {
        self.citations.len()
    }

    /// Asks the rules about a known subject in a known space.
    pub(crate) fn ask(&self, facts: &Facts, risk: &Risk, policy: &Policy) -> AbacAnswer {
        self.ask_these(&self.slices_of(facts), facts, risk, policy)
    }

    fn slices_of(&self, facts: &Facts) -> Vec<&PolicySet> {
        let subject = uid(&self.names.subject, facts.subject.as_str());
        let space = uid(&self.names.space, facts.space.as_str());
        self.slices.of(&subject, &space, &self.entities)
    }

    /// A failure of any rule is a failure; then any rule that forbids goes before every rule that permits.
    fn ask_these(&self, slices: &[&PolicySet], facts: &Facts, risk: &Risk, policy: &Policy) -> AbacAnswer {
        let (mut permits, mut forbids, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        let request = match self.request(facts, risk, policy) {
            Ok(request) => request,
            Err(message) => return AbacAnswer::Failed { message },
        };
        for rules in slices {
            let response = self.authorizer.is_authorized(&request, rules, &self.entities);
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
            request::context(facts, risk, policy)?,
            None,
        )
        .map_err(|error| error.to_string())
    }

    fn cite(&self, id: &PolicyId) -> String {
        self.citations.get(id).cloned().unwrap_or_else(|| id.to_string())
    }
}

fn foresees(rules: &PolicySet) -> Result<bool, String> {
    for rule in rules.policies() {
        let json = rule.to_json().map_err(|error| error.to_string())?;
        if request::foresees(&json) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `night-rest (rules.cedar:4)`, or only the place if the rule has no id of its own.
fn cite(id: &PolicyId, place: &Location) -> String {
    let (name, place): (&str, _) = (id.as_ref(), place.to_string());
    if place == name {
        place
    } else {
        format!("{name} ({place})")
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
        all.push(entity(
            uid(&names.subject, id),
            vec![("kind", text(subject_kind(id)))],
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
mod tests;
