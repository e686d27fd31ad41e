//! Attribute rules in Cedar: device, actor, space, tool, tier and the runtime's clock.
//!
//! Cedar skips a rule whose evaluation fails. Skipping a `forbid` would permit the action, so here every failure denies it.
//! Rules are validated strictly against the schema, warnings are errors, and roles, subjects and spaces in rules must exist.

mod request;
mod slices;
mod statements;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use cedar_policy::{
    Authorizer, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, Policy, PolicyId, PolicySet,
    Request, RestrictedExpression, Schema, ValidationMode, Validator,
};
use effectd_contracts::{Digest, SideEffect, SpaceId, canonical};

use crate::error::{Faults, Location, PolicyError};
use crate::facts::Facts;
use crate::limits::{CEDAR_RULES_MAX, CEDAR_STACK_BYTES};
use crate::risk::Risk;
use crate::source::{POLICY_FILE, SourceFile};
use crate::tables::Tables;

use request::subject_kind;
use slices::Slices;

/// The Cedar schema: the entities and the context that rules can use.
const CEDAR_SCHEMA: &str = include_str!("../../schema/effectd.cedarschema");

#[expect(clippy::expect_used, reason = "the schema is part of the program, and tests parse it")]
static SCHEMA: LazyLock<Schema> =
    LazyLock::new(|| Schema::from_cedarschema_str(CEDAR_SCHEMA).expect("the built-in schema parses").0);

pub(crate) struct Abac {
    authorizer: Authorizer,
    slices: Slices,
    /// The rules as far as they are the same for every call of a tool: see [`request::for_any_call`].
    for_any_call: Slices,
    /// What these use of a tool.
    of_tool_used: BTreeSet<String>,
    /// All rules in one set; tests compare the slices with it.
    #[cfg(test)]
    whole: PolicySet,
    entities: Entities,
    citations: HashMap<PolicyId, String>,
    names: Names,
    /// Whether a rule depends on what an action would change.
    needs_preview: bool,
    /// The parameters that each rule uses, for rules that use some.
    params_used: HashMap<PolicyId, BTreeSet<String>>,
    digest: Digest,
}

impl std::fmt::Debug for Abac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abac").field("rules", &self.citations.len()).finish_non_exhaustive()
    }
}

/// Type names, parsed once.
#[derive(Clone)]
struct Names {
    role: EntityTypeName,
    subject: EntityTypeName,
    space: EntityTypeName,
    space_class: EntityTypeName,
    action: EntityTypeName,
}

impl Names {
    #[expect(clippy::expect_used, reason = "the names are constants, and every test parses them")]
    fn new() -> Self {
        let name = |text: &str| text.parse::<EntityTypeName>().expect("a constant type name parses");
        Self {
            role: name("Role"),
            subject: name("Subject"),
            space: name("Space"),
            space_class: name("SpaceClass"),
            action: name("Action"),
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

/// What the rules say about every call, by kind of tool: for one caller, under one policy.
#[derive(Debug, Default)]
pub struct RuleAnswers(HashMap<Kind, bool>);

/// All that rules see of a tool: its risk, whether it is reversible, its side effects, and its name as far as a rule uses it.
type Kind = (Risk, bool, BTreeSet<SideEffect>, String);

/// What a policy knows: its tables, and the same for Cedar.
pub(crate) type Known<'p> = (&'p Tables, &'p Entities);

/// Runs Cedar, which recurses once a level of a rule, with enough stack in any build and on any thread.
fn with_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(CEDAR_STACK_BYTES, 2 * CEDAR_STACK_BYTES, work)
}

impl Abac {
    pub(crate) fn compile(files: &[SourceFile], tables: &Tables) -> Result<Self, PolicyError> {
        with_stack(|| Self::compile_here(files, tables))
    }

    fn compile_here(files: &[SourceFile], tables: &Tables) -> Result<Self, PolicyError> {
        let names = Names::new();
        let mut rules = PolicySet::new();
        let mut locations = HashMap::new();
        let mut texts = BTreeSet::new();
        let mut faults = Faults::default();
        for statement in Self::statements(files, &mut faults) {
            let at = statement.location();
            let named = statement.parse().and_then(|policy| {
                check_names(&policy, &at, tables)?;
                Ok(policy)
            });
            let Some(policy) = faults.keep(named) else { continue };
            texts.insert(statement.text());
            if locations.len() >= CEDAR_RULES_MAX {
                let message = format!("more than {CEDAR_RULES_MAX} rules");
                return Err(PolicyError::invalid(at, message));
            }
            if let Some(other) = locations.insert(policy.id().clone(), at.clone()) {
                let message = format!("the rule {} is already defined at {other}", policy.id());
                faults.keep(Err::<(), _>(PolicyError::invalid(at, message)));
                continue;
            }
            let added = rules.add(policy);
            faults.keep(added.map_err(|error| PolicyError::invalid(at, error.to_string())));
        }
        faults.keep(validate(&rules, &locations));
        faults.result()?;
        let in_file = |file| move |message: String| PolicyError::invalid(Location::new(file, 1), message);
        let (needs_preview, params_used) = uses(&rules).map_err(in_file("*.cedar"))?;
        let entities = entities(&names, tables).map_err(in_file(POLICY_FILE))?;
        let slices = Slices::new(&rules).map_err(in_file("*.cedar"))?;
        let (for_any_call, of_tool_used) = for_any_call(&rules).map_err(in_file("*.cedar"))?;
        Ok(Self {
            authorizer: Authorizer::new(),
            slices,
            for_any_call,
            of_tool_used,
            #[cfg(test)]
            whole: rules,
            entities,
            citations: locations.iter().map(|(id, location)| (id.clone(), cite(id, location))).collect(),
            names,
            needs_preview,
            params_used,
            // Over the rules' texts alone: a rule may move to another file or line.
            digest: canonical::digest(&serde_json::json!(texts)),
        })
    }

    /// The rules of all files that can be split into rules.
    fn statements<'f>(files: &'f [SourceFile], faults: &mut Faults) -> Vec<statements::Statement<'f>> {
        files.iter().filter_map(|file| faults.keep(statements::split(file))).flatten().collect()
    }

    /// Checks only the form of the rules, for a policy whose tables have faults.
    pub(crate) fn check_form(files: &[SourceFile], faults: &mut Faults) {
        for statement in Self::statements(files, faults) {
            faults.keep(with_stack(|| statement.parse()));
        }
    }

    /// The digest of all rules.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) fn needs_preview(&self) -> bool {
        self.needs_preview
    }

    pub(crate) fn len(&self) -> usize {
        self.citations.len()
    }

    /// The roles, subjects and spaces of the files.
    pub(crate) fn entities(&self) -> &Entities {
        &self.entities
    }

    /// The same of other tables.
    pub(crate) fn entities_of(&self, tables: &Tables) -> Result<Entities, String> {
        entities(&self.names, tables)
    }

    /// Evaluates the rules for a known subject in a known space.
    pub(crate) fn ask(&self, facts: &Facts, risk: &Risk, known: Known<'_>) -> AbacAnswer {
        self.ask_these(&self.slices_of(&self.slices, facts, known.1), facts, risk, known)
    }

    /// Whether the rules might permit another call of the tool, at this or another time. They are asked once about each kind of tool.
    pub(crate) fn might_permit(
        &self,
        facts: &Facts,
        risk: &Risk,
        known: Known<'_>,
        answers: &mut RuleAnswers,
    ) -> bool {
        let (tool, used) = (&facts.tool, |member: &str| self.of_tool_used.contains(member));
        let name = if used("id") {
            tool.id.as_str()
        } else if used("source") {
            tool.id.source()
        } else {
            ""
        };
        let kind = (*risk, tool.reversible, tool.side_effects.clone(), name.to_owned());
        *answers.0.entry(kind).or_insert_with(|| {
            let slices = self.slices_of(&self.for_any_call, facts, known.1);
            match self.ask_these(&slices, facts, risk, known) {
                // A condition that fails may be guarded by one that is left out here.
                AbacAnswer::Permit { .. } | AbacAnswer::Failed { .. } => true,
                AbacAnswer::Forbid { .. } | AbacAnswer::Silent => false,
            }
        })
    }

    fn slices_of<'s>(&self, all: &'s Slices, facts: &Facts, entities: &Entities) -> Vec<&'s PolicySet> {
        let subject = uid(&self.names.subject, facts.subject.as_str());
        let space = uid(&self.names.space, facts.space.as_str());
        all.of(&subject, &space, entities)
    }

    /// A rule whose evaluation fails overrides all others; a rule that forbids overrides those that permit.
    fn ask_these(
        &self,
        slices: &[&PolicySet],
        facts: &Facts,
        risk: &Risk,
        (tables, entities): Known<'_>,
    ) -> AbacAnswer {
        let (mut permits, mut forbids, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(message) = self.hidden_from(slices, facts) {
            return AbacAnswer::Failed { message };
        }
        let request = match self.request(facts, risk, tables) {
            Ok(request) => request,
            Err(message) => return AbacAnswer::Failed { message },
        };
        for rules in slices {
            let response = with_stack(|| self.authorizer.is_authorized(&request, rules, entities));
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

    /// The first rule that uses a parameter which it cannot see: without its value, no rule about it may decide.
    fn hidden_from(&self, slices: &[&PolicySet], facts: &Facts) -> Option<String> {
        let hidden = &facts.inspection.as_ref()?.params_hidden;
        let rules = slices.iter().filter(|_| !hidden.is_empty()).flat_map(|rules| rules.policies());
        let blind = rules.filter_map(|rule| {
            let name = self.params_used.get(rule.id())?.intersection(hidden).next()?;
            let rule = self.cite(rule.id());
            let why = "it is not public, has another type, is too long, or has a secret or personal data";
            Some(format!("{rule} uses the parameter `{name}`, which no rule can see in this call: {why}"))
        });
        blind.min()
    }

    fn request(&self, facts: &Facts, risk: &Risk, tables: &Tables) -> Result<Request, String> {
        Request::new(
            uid(&self.names.subject, facts.subject.as_str()),
            uid(&self.names.action, risk.level.as_str()),
            uid(&self.names.space, facts.space.as_str()),
            request::context(facts, risk, tables)?,
            None,
        )
        .map_err(|error| error.to_string())
    }

    fn cite(&self, id: &PolicyId) -> String {
        self.citations.get(id).cloned().unwrap_or_else(|| id.to_string())
    }
}

/// Whether a rule depends on a preview, and the parameters that each rule uses.
fn uses(rules: &PolicySet) -> Result<(bool, HashMap<PolicyId, BTreeSet<String>>), String> {
    let (mut needs_preview, mut params_used) = (false, HashMap::new());
    for rule in rules.policies() {
        let json = rule.to_json().map_err(|error| error.to_string())?;
        needs_preview |= request::foresees(&json);
        let mut names = BTreeSet::new();
        request::params_used(&json, &mut names);
        if !names.is_empty() {
            params_used.insert(rule.id().clone(), names);
        }
    }
    Ok((needs_preview, params_used))
}

/// The rules for [`Abac::might_permit`], and what they use of a tool.
fn for_any_call(rules: &PolicySet) -> Result<(Slices, BTreeSet<String>), String> {
    let (mut all, mut used) = (PolicySet::new(), BTreeSet::new());
    for rule in rules.policies() {
        let json = rule.to_json().map_err(|error| error.to_string())?;
        let Some(general) = request::for_any_call(json.clone()) else { continue };
        request::of_tool_used(&general, &mut used);
        let rule = if general == json {
            rule.clone()
        } else {
            Policy::from_json(Some(rule.id().clone()), general).map_err(|error| error.to_string())?
        };
        all.add(rule).map_err(|error| error.to_string())?;
    }
    Ok((Slices::new(&all)?, used))
}

/// `night-rest (rules.cedar:4)`, or only the location of a rule without an id.
fn cite(id: &PolicyId, location: &Location) -> String {
    let (name, location): (&str, _) = (id.as_ref(), location.to_string());
    if location == name { location } else { format!("{name} ({location})") }
}

fn validate(rules: &PolicySet, locations: &HashMap<PolicyId, Location>) -> Result<(), PolicyError> {
    let result = Validator::new(SCHEMA.clone()).validate(rules, ValidationMode::Strict);
    let errors = result.validation_errors().map(|error| (error.policy_id(), 0, error.to_string()));
    let warnings = result.validation_warnings().map(|warning| (warning.policy_id(), 1, warning.to_string()));
    let located =
        errors.chain(warnings).map(|(id, order, message)| (locations.get(id).cloned(), order, message));
    // By location, and there errors before warnings, so that the same policy always gets the same error.
    let mut located: Vec<_> = located.collect();
    located.sort();
    // One for each rule.
    located.dedup_by(|next, first| next.0 == first.0);
    let mut faults = Faults::default();
    for (at, _, message) in located {
        let at = at.unwrap_or_else(|| Location::new("*.cedar", 1));
        faults.keep(Err::<(), _>(PolicyError::invalid(at, message)));
    }
    faults.result()
}

/// Refuses unknown entities. Cedar accepts any id, and a rule with a misspelt id would never apply.
fn check_names(policy: &cedar_policy::Policy, at: &Location, tables: &Tables) -> Result<(), PolicyError> {
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
            let message = format!("the rule names {literal}, which policy.toml does not define");
            return Err(PolicyError::invalid(at.clone(), message));
        }
    }
    Ok(())
}

fn entities(names: &Names, tables: &Tables) -> Result<Entities, String> {
    let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let entity = |uid, attributes: Vec<(&str, RestrictedExpression)>, parents: HashSet<EntityUid>| {
        let attributes = attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Entity::new(uid, attributes, parents).map_err(|error| error.to_string())
    };
    let role_uid = |name: &String| uid(&names.role, name);
    let mut all = Vec::new();
    for role in tables.roles.values() {
        let parents = role.parents.iter().map(role_uid).collect();
        all.push(entity(role_uid(&role.name), Vec::new(), parents)?);
    }
    for (id, holder) in &tables.subjects {
        let parents = holder.roles.iter().map(|role| role_uid(&role.name)).collect();
        let attributes = vec![("kind", text(subject_kind(id)))];
        all.push(entity(uid(&names.subject, id), attributes, parents)?);
    }
    let mut classes = BTreeMap::new();
    for (id, space) in &tables.spaces {
        let class = uid(&names.space_class, id.class());
        classes.insert(id.class(), class.clone());
        let attributes =
            vec![("class", text(id.class())), ("org", text(space.org.as_deref().unwrap_or_default()))];
        let parents = HashSet::from([class]);
        all.push(entity(uid(&names.space, id.as_str()), attributes, parents)?);
    }
    for class in classes.into_values() {
        all.push(entity(class, Vec::new(), HashSet::new())?);
    }
    Entities::from_entities(all, Some(&SCHEMA)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
