//! From the document to tables: every name is looked up once, here, and a policy that names what does not exist is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use effectd_contracts::{SpaceId, canonical};

use super::clock::{ClockTable, Zone, minute_of_day};
use super::consents::Consents;
use super::modes::Modes;
use super::roles::{self, Caps, Holder, Role};
use super::spaces::{self, Space};
use crate::authority::PrincipalRole;
use crate::document::{DOCUMENT_VERSION, Document, ModeRules, TimeoutRules};
use crate::error::{Location, PolicyError};
use crate::glob::Glob;
use crate::inspect::ContentRules;
use crate::inspect::safety::Safety;
use crate::limits;
use crate::overlay::is_purpose;
use crate::source::{Lines, Source, SourceFile, Step, toml_error};

/// Everything of `policy.toml` that decisions look up.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) clock: ClockTable,
    pub(crate) principals: Principals,
    pub(crate) roles: BTreeMap<String, Arc<Role>>,
    pub(crate) subjects: HashMap<String, Holder>,
    pub(crate) actors: HashMap<String, Holder>,
    pub(crate) devices: HashMap<String, String>,
    pub(crate) spaces: BTreeMap<SpaceId, Space>,
    pub(crate) consents: Consents,
    pub(crate) org_modes: Modes,
    pub(crate) automation_modes: Modes,
    pub(crate) cross_space: BTreeSet<String>,
    pub(crate) hosts: Vec<Glob>,
    pub(crate) commands: Vec<Glob>,
    pub(crate) allow_line: u32,
    pub(crate) timeouts: TimeoutRules,
}

#[derive(Debug, Default)]
pub(crate) struct Principals {
    exact: HashMap<String, Principal>,
    globs: Vec<(Glob, Principal)>,
}

#[derive(Debug)]
pub(crate) struct Principal {
    pub(crate) subjects: Vec<Glob>,
    pub(crate) actors: Vec<Glob>,
    pub(crate) roles: Vec<PrincipalRole>,
    pub(crate) line: u32,
}

impl Principal {
    /// Whether it may submit at all.
    pub(crate) fn is_planner(&self) -> bool {
        self.roles.contains(&PrincipalRole::Planner)
    }
}

impl Principals {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Principal> {
        self.exact
            .values()
            .chain(self.globs.iter().map(|(_, entry)| entry))
    }

    pub(crate) fn len(&self) -> usize {
        self.exact.len() + self.globs.len()
    }

    /// All entries that mean this principal.
    pub(crate) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Principal> {
        let matching = self
            .globs
            .iter()
            .filter(move |(glob, _)| glob.matches(name))
            .map(|(_, entry)| entry);
        self.exact.get(name).into_iter().chain(matching)
    }
}

/// The bounds of files, before anything is parsed.
pub(crate) fn check_sizes(source: &Source) -> Result<(), PolicyError> {
    let too_large = |file: &str, what, actual, max| {
        Err(PolicyError::TooLarge {
            file: file.to_owned(),
            what,
            actual,
            max,
        })
    };
    let count = source.files().count();
    if count > limits::POLICY_FILES_MAX {
        return too_large(
            "the policy",
            "the number of files",
            count,
            limits::POLICY_FILES_MAX,
        );
    }
    for file in source.files() {
        if file.text.len() > limits::POLICY_FILE_BYTES_MAX {
            return too_large(
                &file.name,
                "the size in bytes",
                file.text.len(),
                limits::POLICY_FILE_BYTES_MAX,
            );
        }
    }
    let total: usize = source.files().map(|file| file.text.len()).sum();
    if total > limits::POLICY_BYTES_MAX {
        return too_large("the policy", "the size in bytes", total, limits::POLICY_BYTES_MAX);
    }
    Ok(())
}

/// The document, and where everything in it stands.
pub(crate) fn read(source: &Source) -> Result<(Document, Lines<'_>), PolicyError> {
    let file: &SourceFile = &source.policy;
    let lines = Lines::parse(file)?;
    let document: Document = toml::from_str(&file.text).map_err(|error| toml_error(file, &error))?;
    if document.version != DOCUMENT_VERSION {
        let message = format!(
            "version {} is unknown; this program reads version {DOCUMENT_VERSION}",
            document.version
        );
        return Err(PolicyError::invalid(lines.at(&[Step::Name("version")]), message));
    }
    Ok((document, lines))
}

pub(crate) fn content_rules(document: &Document, lines: &Lines<'_>) -> Result<ContentRules, PolicyError> {
    let safety = Safety::compile(&document.safety).map_err(|error| {
        let at = lines.at(&[
            Step::Name("safety"),
            Step::Name(error.list),
            Step::Index(error.index),
        ]);
        PolicyError::invalid(at, error.message)
    })?;
    let face_fields = document
        .redaction
        .face_fields
        .iter()
        .map(|name| name.to_lowercase())
        .collect();
    // Plain data with text keys, for which serde_json has no failure.
    let value = serde_json::to_value((&document.safety, &document.redaction)).unwrap_or_default();
    Ok(ContentRules {
        safety,
        face_fields,
        digest: canonical::digest(&value),
    })
}

impl Tables {
    pub(crate) fn compile(document: &Document, lines: &Lines<'_>) -> Result<Self, PolicyError> {
        check_counts(document, lines)?;
        let roles = roles::compile(&document.roles, lines)?;
        let subjects = holders(
            "subjects",
            document
                .subjects
                .iter()
                .map(|(name, rule)| (name, &rule.roles, &rule.caps)),
            &roles,
            lines,
        )?;
        let actors = holders(
            "actors",
            document
                .actors
                .iter()
                .map(|(name, rule)| (name, &rule.roles, &rule.caps)),
            &roles,
            lines,
        )?;
        let org_modes = modes("orgs", &document.orgs, lines)?;
        let automation_modes = modes("automations", &document.automations, lines)?;
        let spaces = spaces::compile(&document.spaces, &roles, |org| org_modes.knows(org), lines)?;
        let principals = principals(document, lines, &subjects)?;
        let consents = consents(document, lines, &subjects, &spaces)?;
        let globs = |patterns: &[String]| patterns.iter().map(Glob::new).collect();
        Ok(Self {
            clock: clock(document, lines)?,
            principals,
            roles,
            subjects,
            actors,
            devices: document
                .devices
                .iter()
                .map(|(name, rule)| (name.clone(), rule.class.clone()))
                .collect(),
            spaces,
            consents,
            org_modes,
            automation_modes,
            cross_space: document.allow.cross_space.iter().cloned().collect(),
            hosts: document
                .allow
                .hosts
                .iter()
                .map(|host| Glob::new(host.to_lowercase()))
                .collect(),
            commands: globs(&document.allow.commands),
            allow_line: lines.line(&[Step::Name("allow")]),
            timeouts: timeouts(document, lines)?,
        })
    }
}

fn check_counts(document: &Document, lines: &Lines<'_>) -> Result<(), PolicyError> {
    let tables = [
        ("principals", document.principals.len()),
        ("roles", document.roles.len()),
        ("subjects", document.subjects.len()),
        ("actors", document.actors.len()),
        ("devices", document.devices.len()),
        ("orgs", document.orgs.len()),
        ("automations", document.automations.len()),
        ("spaces", document.spaces.len()),
        ("consents", document.consents.len()),
    ];
    for (name, count) in tables {
        bounded(count, limits::TABLE_ENTRIES_MAX, name, || {
            lines.at(&[Step::Name(name)])
        })?;
    }
    bounded(document.examples.len(), limits::EXAMPLES_MAX, "examples", || {
        lines.at(&[Step::Name("examples")])
    })?;
    let lists = [
        ("safety", "words", &document.safety.words),
        ("safety", "patterns", &document.safety.patterns),
        ("safety", "types", &document.safety.types),
        ("redaction", "face_fields", &document.redaction.face_fields),
        ("allow", "cross_space", &document.allow.cross_space),
        ("allow", "hosts", &document.allow.hosts),
        ("allow", "commands", &document.allow.commands),
    ];
    for (table, name, list) in lists {
        let at = || lines.at(&[Step::Name(table), Step::Name(name)]);
        bounded(list.len(), limits::LIST_ENTRIES_MAX, name, at)?;
        check_names(list, at)?;
    }
    Ok(())
}

fn bounded(count: usize, max: usize, what: &str, at: impl Fn() -> Location) -> Result<(), PolicyError> {
    if count > max {
        return Err(PolicyError::invalid(
            at(),
            format!("{what} has {count} entries; at most {max} are allowed"),
        ));
    }
    Ok(())
}

fn check_names(names: &[String], at: impl Fn() -> Location) -> Result<(), PolicyError> {
    let bad = |name: &&String| {
        name.is_empty() || name.len() > limits::NAME_BYTES_MAX || name.chars().any(char::is_control)
    };
    match names.iter().find(bad) {
        Some(name) => {
            let message = format!(
                "{name:?} must be printable text of 1 to {} bytes",
                limits::NAME_BYTES_MAX
            );
            Err(PolicyError::invalid(at(), message))
        }
        None => Ok(()),
    }
}

fn holders<'d>(
    table: &str,
    rules: impl Iterator<Item = (&'d String, &'d Vec<String>, &'d Vec<String>)>,
    roles: &BTreeMap<String, Arc<Role>>,
    lines: &Lines<'_>,
) -> Result<HashMap<String, Holder>, PolicyError> {
    let mut holders = HashMap::new();
    for (name, role_names, caps) in rules {
        let at = |field: &str| lines.at(&[Step::Name(table), Step::Name(name), Step::Name(field)]);
        check_names(std::slice::from_ref(name), || at("roles"))?;
        bounded(caps.len(), limits::LIST_ENTRIES_MAX, "caps", || at("caps"))?;
        bounded(role_names.len(), limits::LIST_ENTRIES_MAX, "roles", || {
            at("roles")
        })?;
        check_names(caps, || at("caps"))?;
        if Glob::new(name).is_exact() {
            let mut own = Caps::default();
            caps.iter().for_each(|cap| own.add(cap, at("caps").line));
            let mut held = Vec::new();
            for role in role_names {
                let Some(role) = roles.get(role) else {
                    return Err(PolicyError::invalid(
                        at("roles"),
                        format!("{name:?} has the unknown role {role:?}"),
                    ));
                };
                held.push(Arc::clone(role));
            }
            holders.insert(
                name.clone(),
                Holder {
                    roles: held,
                    own,
                    line: lines.entry(table, name),
                },
            );
        } else {
            let message =
                format!("{name:?}: each of the {table} is named in full; patterns are not allowed here");
            return Err(PolicyError::invalid(at("roles"), message));
        }
    }
    Ok(holders)
}

fn principals(
    document: &Document,
    lines: &Lines<'_>,
    subjects: &HashMap<String, Holder>,
) -> Result<Principals, PolicyError> {
    let mut principals = Principals::default();
    for (name, rule) in &document.principals {
        let at = |field: &str| lines.at(&[Step::Name("principals"), Step::Name(name), Step::Name(field)]);
        check_names(std::slice::from_ref(name), || at("subjects"))?;
        for (field, list) in [("subjects", &rule.subjects), ("actors", &rule.actors)] {
            bounded(list.len(), limits::LIST_ENTRIES_MAX, field, || at(field))?;
            check_names(list, || at(field))?;
        }
        for subject in rule
            .subjects
            .iter()
            .filter(|subject| Glob::new(*subject).is_exact())
        {
            if !subjects.contains_key(subject) {
                return Err(PolicyError::invalid(
                    at("subjects"),
                    format!("unknown subject {subject:?}"),
                ));
            }
        }
        for actor in rule.actors.iter().filter(|actor| Glob::new(*actor).is_exact()) {
            if !document.actors.contains_key(actor) {
                return Err(PolicyError::invalid(
                    at("actors"),
                    format!("unknown actor {actor:?}"),
                ));
            }
        }
        let entry = Principal {
            subjects: rule.subjects.iter().map(Glob::new).collect(),
            actors: rule.actors.iter().map(Glob::new).collect(),
            roles: rule.roles.clone(),
            line: lines.entry("principals", name),
        };
        let glob = Glob::new(name);
        if glob.is_exact() {
            principals.exact.insert(name.clone(), entry);
        } else {
            principals.globs.push((glob, entry));
        }
    }
    Ok(principals)
}

fn consents(
    document: &Document,
    lines: &Lines<'_>,
    subjects: &HashMap<String, Holder>,
    spaces: &BTreeMap<SpaceId, Space>,
) -> Result<Consents, PolicyError> {
    let mut consents = Consents::default();
    for (index, rule) in document.consents.iter().enumerate() {
        let at = |field| lines.at(&[Step::Name("consents"), Step::Index(index), Step::Name(field)]);
        if !is_purpose(&rule.purpose) {
            let message = format!(
                "{:?} is no purpose; write tool:<tool id> or pii:<tool id>",
                rule.purpose
            );
            return Err(PolicyError::invalid(at("purpose"), message));
        }
        if Glob::new(&rule.subject).is_exact() && !subjects.contains_key(&rule.subject) {
            return Err(PolicyError::invalid(
                at("subject"),
                format!("unknown subject {:?}", rule.subject),
            ));
        }
        let known = |id: &str| SpaceId::new(id).is_ok_and(|id| spaces.contains_key(&id));
        if Glob::new(&rule.space).is_exact() && !known(&rule.space) {
            return Err(PolicyError::invalid(
                at("space"),
                format!("unknown space {:?}", rule.space),
            ));
        }
        consents.add(rule, lines.line(&[Step::Name("consents"), Step::Index(index)]));
    }
    Ok(consents)
}

fn modes(table: &str, owners: &BTreeMap<String, ModeRules>, lines: &Lines<'_>) -> Result<Modes, PolicyError> {
    let mut modes = Modes::default();
    for (owner, rules) in owners {
        modes.introduce(owner);
        for (key, mode) in &rules.modes {
            let at = lines.at(&[
                Step::Name(table),
                Step::Name(owner),
                Step::Name("modes"),
                Step::Name(key),
            ]);
            check_names(std::slice::from_ref(key), || at.clone())?;
            if modes.add(owner, key, *mode, at.line).is_err() {
                let message = format!("{key:?} has two modes, in two spellings");
                return Err(PolicyError::invalid(at, message));
            }
        }
    }
    Ok(modes)
}

fn clock(document: &Document, lines: &Lines<'_>) -> Result<ClockTable, PolicyError> {
    let rules = &document.clock;
    let at = |field| lines.at(&[Step::Name("clock"), Step::Name(field)]);
    if rules.skew_s_max > limits::SKEW_S_MAX {
        let message = format!(
            "skew_s_max is {}; at most {} are allowed",
            rules.skew_s_max,
            limits::SKEW_S_MAX
        );
        return Err(PolicyError::invalid(at("skew_s_max"), message));
    }
    let zone = Zone::parse(&rules.zone).ok_or_else(|| {
        let message = format!(
            "{:?} is no zone; write local, utc or an offset such as +02:00",
            rules.zone
        );
        PolicyError::invalid(at("zone"), message)
    })?;
    let minute = |field, text: &str| {
        let error = || PolicyError::invalid(at(field), format!("{text:?} is no time of day; write HH:MM"));
        minute_of_day(text).ok_or_else(error)
    };
    Ok(ClockTable {
        skew_s_max: u64::from(rules.skew_s_max),
        zone,
        night_from: minute("night_from", &rules.night_from)?,
        night_until: minute("night_until", &rules.night_until)?,
        line: lines.line(&[Step::Name("clock"), Step::Name("skew_s_max")]),
    })
}

fn timeouts(document: &Document, lines: &Lines<'_>) -> Result<TimeoutRules, PolicyError> {
    let rules = &document.timeouts;
    let at = |field| lines.at(&[Step::Name("timeouts"), Step::Name(field)]);
    let max = effectd_contracts::limits::TIMEOUT_MS_MAX;
    let all = [
        ("low_ms", rules.low_ms),
        ("medium_ms", rules.medium_ms),
        ("high_ms", rules.high_ms),
        ("egress_ms", rules.egress_ms),
    ];
    for (field, value) in all {
        if !(1..=max).contains(&value) {
            return Err(PolicyError::invalid(
                at(field),
                format!("{field} is {value}; it must be from 1 to {max}"),
            ));
        }
    }
    if rules.medium_ms >= rules.low_ms {
        let message = format!(
            "medium_ms ({}) must be less than low_ms ({})",
            rules.medium_ms, rules.low_ms
        );
        return Err(PolicyError::invalid(at("medium_ms"), message));
    }
    Ok(rules.clone())
}
