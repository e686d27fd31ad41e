//! The tables that decisions look up, compiled from `policy.toml`. A document that names something unknown is refused.

pub(crate) mod clock;
pub(crate) mod commands;
pub(crate) mod consents;
pub(crate) mod modes;
pub(crate) mod roles;
pub(crate) mod spaces;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use effectd_contracts::{PolicyList, SpaceId};

use crate::document::{
    ClaimRule, ConsentRule, DOCUMENT_VERSION, Document, HolderRule, ModeRules, OrgRole, PrincipalRole,
    PrincipalRule, TimeoutRules,
};
use crate::error::{Faults, Location, PolicyError};
use crate::glob::{Glob, GlobMap, any_matches};
use crate::limits;
use crate::overlay::{EntryChange, is_purpose};
use crate::source::{Lines, POLICY_FILE, Source, SourceFile};

use clock::{ClockTable, Zone, minute_of_day};
use commands::{Commands, is_mode_key};
use consents::Consents;
use modes::Modes;
use roles::{Caps, Holder, Role};
use spaces::Space;

/// The name of rules that the overlay adds.
pub(crate) const OVERLAY_RULE: &str = "overlay";

/// The name of a rule of `policy.toml`: its file and line.
pub(crate) fn policy_rule(line: u32) -> String {
    Location::new(POLICY_FILE, line).to_string()
}

/// All tables.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) clock: ClockTable,
    pub(crate) principals: GlobMap<Principal>,
    /// By the value of a JWT's claim.
    pub(crate) claims: HashMap<String, Principal>,
    pub(crate) roles: BTreeMap<String, Arc<Role>>,
    pub(crate) subjects: HashMap<String, Holder>,
    pub(crate) actors: HashMap<String, Holder>,
    pub(crate) devices: HashMap<String, String>,
    pub(crate) spaces: BTreeMap<SpaceId, Space>,
    pub(crate) consents: Consents,
    pub(crate) org_modes: Modes,
    pub(crate) automation_modes: Modes,
    pub(crate) cross_space: BTreeSet<String>,
    pub(crate) hosts: AllowList,
    pub(crate) commands: AllowList,
    /// Commands that may run without a person.
    pub(crate) named: Commands,
    pub(crate) allow_line: u32,
    pub(crate) timeouts: TimeoutRules,
}

/// Names and patterns of the files, without what a command struck out.
#[derive(Debug, Clone)]
pub(crate) struct AllowList {
    globs: Vec<Glob>,
    struck: BTreeSet<String>,
}

impl AllowList {
    fn new(globs: impl Iterator<Item = Glob>) -> Self {
        Self { globs: globs.collect(), struck: BTreeSet::new() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        any_matches(&self.globs, name) && !self.struck.contains(name)
    }

    /// Something on the list, if anything is; a pattern matches itself.
    pub(crate) fn first(&self) -> Option<&str> {
        self.globs.iter().map(Glob::as_str).find(|name| self.has(name))
    }

    fn set(&mut self, name: String, allowed: bool) {
        if allowed {
            self.globs.push(Glob::new(name));
        } else {
            self.struck.insert(name);
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Principal {
    pub(crate) subjects: Vec<Glob>,
    pub(crate) actors: Vec<Glob>,
    pub(crate) roles: Vec<PrincipalRole>,
    pub(crate) orgs: BTreeMap<String, OrgRole>,
    pub(crate) line: u32,
}

impl Principal {
    /// Whether it may submit.
    pub(crate) fn is_planner(&self) -> bool {
        self.roles.contains(&PrincipalRole::Planner)
    }

    /// Whether it has this role or a higher one.
    pub(crate) fn has_role(&self, least: PrincipalRole) -> bool {
        self.roles.iter().any(|role| *role >= least)
    }

    /// Whether it is an admin or an owner of this organisation.
    pub(crate) fn administers(&self, org: Option<&str>) -> bool {
        org.and_then(|org| self.orgs.get(org)).is_some_and(|role| *role >= OrgRole::Admin)
    }
}

/// Checks the sizes of files before they are parsed.
pub(crate) fn check_sizes(source: &Source) -> Result<(), PolicyError> {
    let bounded = |file: &str, what, actual, max| {
        if actual <= max {
            return Ok(());
        }
        let file = file.to_owned();
        Err(PolicyError::TooLarge { file, what, actual, max })
    };
    let (files, bytes) = ("the number of files", "the size in bytes");
    bounded("the policy", files, source.files().count(), limits::POLICY_FILES_MAX)?;
    let mut total = 0;
    for file in source.files() {
        total += file.text.len();
        bounded(&file.name, bytes, file.text.len(), limits::POLICY_FILE_BYTES_MAX)?;
    }
    bounded("the policy", bytes, total, limits::POLICY_BYTES_MAX)
}

/// Parses `policy.toml`: the document, and the lines of its values.
pub(crate) fn read(source: &Source) -> Result<(Document, Lines<'_>), PolicyError> {
    let file: &SourceFile = &source.policy;
    let lines = Lines::parse(file)?;
    let document: Document = lines.deserialize(file)?;
    if document.version != DOCUMENT_VERSION {
        let message =
            format!("version {} is unknown; this program reads version {DOCUMENT_VERSION}", document.version);
        return Err(lines.invalid(&["version"], message));
    }
    Ok((document, lines))
}

impl Tables {
    pub(crate) fn compile(document: &Document, lines: &Lines<'_>) -> Result<Self, PolicyError> {
        check_counts(document, lines)?;
        // Names are looked up in the document, so that a faulty entry is not told again as unknown.
        let mut all = Faults::default();
        let faults = &mut all;
        let roles = roles::compile(&document.roles, lines, faults);
        let subjects = holders("subjects", document, &roles, lines, faults);
        let actors = holders("actors", document, &roles, lines, faults);
        let org_modes = modes("orgs", &document.orgs, document, lines, faults);
        let automation_modes = modes("automations", &document.automations, document, lines, faults);
        let spaces = spaces::compile(document, lines, faults);
        let principals = principals(document, lines, faults);
        let claims = claims(document, lines, faults);
        let consents = consents(document, lines, faults);
        let clock = faults.keep(clock(document, lines));
        let named = Commands::compile(&document.commands, lines, faults);
        let timeouts = faults.keep(timeouts(document, lines));
        let (Some(clock), Some(timeouts), ()) = (clock, timeouts, all.result()?) else {
            // Not reached: what is missing left a fault.
            return Err(lines.invalid(&["version"], "the policy is incomplete"));
        };
        let devices = document.devices.iter();
        let allow = &document.allow;
        Ok(Self {
            clock,
            principals,
            claims,
            roles,
            subjects,
            actors,
            devices: devices.map(|(name, rule)| (name.clone(), rule.class.clone())).collect(),
            spaces,
            consents,
            org_modes,
            automation_modes,
            cross_space: allow.cross_space.iter().cloned().collect(),
            hosts: AllowList::new(allow.hosts.iter().map(|host| Glob::new(host.to_lowercase()))),
            commands: AllowList::new(allow.commands.iter().map(Glob::new)),
            named,
            allow_line: lines.line(&["allow"]),
            timeouts,
        })
    }

    /// With the entries of the overlay. What is struck out comes last, so that it counts.
    pub(crate) fn with_entries(&self, changes: &[EntryChange]) -> Self {
        let mut all = self.clone();
        let struck = changes.iter().filter(|change| !change.allowed);
        for EntryChange { list, subject, entry, allowed } in
            changes.iter().filter(|change| change.allowed).chain(struck)
        {
            match list {
                PolicyList::Roles => {
                    let holder = subject.as_ref().and_then(|subject| all.subjects.get_mut(subject.as_str()));
                    if let (Some(holder), Some(role)) = (holder, self.roles.get(entry)) {
                        holder.set_role(role, *allowed);
                    }
                }
                PolicyList::Hosts => all.hosts.set(entry.clone(), *allowed),
                PolicyList::Commands => all.commands.set(entry.clone(), *allowed),
                PolicyList::CrossSpace => {
                    all.cross_space.remove(entry);
                    all.cross_space.extend(allowed.then(|| entry.clone()));
                }
            }
        }
        all
    }
}

fn check_counts(document: &Document, lines: &Lines<'_>) -> Result<(), PolicyError> {
    let max = limits::TABLE_ENTRIES_MAX;
    for (name, count, max) in [
        ("principals", document.principals.len(), max),
        ("claims", document.claims.len(), max),
        ("roles", document.roles.len(), max),
        ("subjects", document.subjects.len(), max),
        ("actors", document.actors.len(), max),
        ("devices", document.devices.len(), max),
        ("orgs", document.orgs.len(), max),
        ("automations", document.automations.len(), max),
        ("spaces", document.spaces.len(), max),
        ("consents", document.consents.iter().map(|rule| rule.tools.len().max(1)).sum(), max),
        ("commands", document.commands.len(), limits::COMMANDS_MAX),
        ("examples", document.examples.len(), limits::EXAMPLES_MAX),
    ] {
        check_count(count, max, lines, &[name])?;
    }
    for (path, list) in [
        (["safety", "words"], &document.safety.words),
        (["safety", "patterns"], &document.safety.patterns),
        (["safety", "types"], &document.safety.types),
        (["redaction", "face_fields"], &document.redaction.face_fields),
        (["allow", "cross_space"], &document.allow.cross_space),
        (["allow", "hosts"], &document.allow.hosts),
        (["allow", "commands"], &document.allow.commands),
    ] {
        check_list(list, lines, &path)?;
    }
    let (rules, at) = (&document.redaction.rules, ["redaction", "rules"]);
    check_count(rules.len(), limits::LIST_ENTRIES_MAX, lines, &at)?;
    let mut names = rules.iter().flat_map(|rule| [&rule.space, &rule.tool, &rule.field]);
    names.try_for_each(|name| check_name(name, lines, &at))
}

fn check_count(count: usize, max: usize, lines: &Lines<'_>, path: &[&str]) -> Result<(), PolicyError> {
    if count <= max {
        return Ok(());
    }
    let what = path.last().copied().unwrap_or_default();
    let message = format!("{what} has {count} entries; at most {max} are allowed");
    Err(lines.invalid(path, message))
}

fn check_list(names: &[String], lines: &Lines<'_>, path: &[&str]) -> Result<(), PolicyError> {
    check_count(names.len(), limits::LIST_ENTRIES_MAX, lines, path)?;
    names.iter().try_for_each(|name| check_name(name, lines, path))
}

fn check_name(name: &str, lines: &Lines<'_>, path: &[&str]) -> Result<(), PolicyError> {
    let max = limits::NAME_BYTES_MAX;
    if name.is_empty() || name.len() > max || name.chars().any(char::is_control) {
        let message = format!("{name:?} must be printable text of 1 to {max} bytes");
        return Err(lines.invalid(path, message));
    }
    Ok(())
}

fn holders(
    table: &str,
    document: &Document,
    roles: &BTreeMap<String, Arc<Role>>,
    lines: &Lines<'_>,
    faults: &mut Faults,
) -> HashMap<String, Holder> {
    let rules = if table == "subjects" { &document.subjects } else { &document.actors };
    let holder = |name: &String, rule: &HolderRule| {
        let (at_roles, at_caps) = ([table, name, "roles"], [table, name, "caps"]);
        check_name(name, lines, &at_roles)?;
        check_list(&rule.caps, lines, &at_caps)?;
        check_count(rule.roles.len(), limits::LIST_ENTRIES_MAX, lines, &at_roles)?;
        if !Glob::new(name).is_exact() {
            let message =
                format!("{name:?}: names in {table} must be complete; patterns are not allowed here");
            return Err(lines.invalid(&at_roles, message));
        }
        let mut own = Caps::default();
        rule.caps.iter().for_each(|cap| own.add(cap, lines.line(&at_caps)));
        if let Some(role) = rule.roles.iter().find(|role| !document.roles.contains_key(*role)) {
            return Err(lines.invalid(&at_roles, format!("{name:?} has the unknown role {role:?}")));
        }
        let held = rule.roles.iter().filter_map(|role| roles.get(role)).map(Arc::clone).collect();
        Ok((name.clone(), Holder { roles: held, own, line: lines.line(&[table, name]) }))
    };
    rules.iter().filter_map(|(name, rule)| faults.keep(holder(name, rule))).collect()
}

fn principals(document: &Document, lines: &Lines<'_>, faults: &mut Faults) -> GlobMap<Principal> {
    let principal = |name: &String, rule: &PrincipalRule| {
        let at_subjects = ["principals", name, "subjects"];
        let at_actors = ["principals", name, "actors"];
        check_name(name, lines, &at_subjects)?;
        check_list(&rule.subjects, lines, &at_subjects)?;
        check_list(&rule.actors, lines, &at_actors)?;
        let exact = |name: &&String| Glob::new(*name).is_exact();
        let mut named = rule.subjects.iter().filter(exact);
        if let Some(subject) = named.find(|name| !document.subjects.contains_key(*name)) {
            return Err(lines.invalid(&at_subjects, format!("unknown subject {subject:?}")));
        }
        let mut named = rule.actors.iter().filter(exact);
        if let Some(actor) = named.find(|name| !document.actors.contains_key(*name)) {
            return Err(lines.invalid(&at_actors, format!("unknown actor {actor:?}")));
        }
        check_orgs(&rule.orgs, document, lines, &["principals", name, "orgs"])?;
        Ok(Principal {
            subjects: rule.subjects.iter().map(Glob::new).collect(),
            actors: rule.actors.iter().map(Glob::new).collect(),
            roles: rule.roles.clone(),
            orgs: rule.orgs.clone(),
            line: lines.line(&["principals", name]),
        })
    };
    let mut principals = GlobMap::default();
    for (name, rule) in &document.principals {
        if let Some(principal) = faults.keep(principal(name, rule)) {
            principals.add(name, principal);
        }
    }
    principals
}

/// Refuses roles in organisations that the policy does not have.
fn check_orgs(
    orgs: &BTreeMap<String, OrgRole>,
    document: &Document,
    lines: &Lines<'_>,
    at: &[&str],
) -> Result<(), PolicyError> {
    check_count(orgs.len(), limits::LIST_ENTRIES_MAX, lines, at)?;
    match orgs.keys().find(|org| !document.orgs.contains_key(*org)) {
        Some(org) => Err(lines.invalid(at, format!("unknown organisation {org:?}"))),
        None => Ok(()),
    }
}

fn claims(document: &Document, lines: &Lines<'_>, faults: &mut Faults) -> HashMap<String, Principal> {
    let claim = |value: &String, rule: &ClaimRule| {
        let at_roles = ["claims", value, "roles"];
        check_name(value, lines, &at_roles)?;
        let no_claim = [PrincipalRole::Planner, PrincipalRole::Erase];
        if let Some(role) = rule.roles.iter().find(|role| no_claim.contains(role)) {
            let role = role.as_str();
            let message = format!("no claim gives the role {role:?}; name the principal in [principals]");
            return Err(lines.invalid(&at_roles, message));
        }
        check_orgs(&rule.orgs, document, lines, &["claims", value, "orgs"])?;
        let (roles, orgs) = (rule.roles.clone(), rule.orgs.clone());
        let line = lines.line(&["claims", value]);
        Ok((value.clone(), Principal { subjects: Vec::new(), actors: Vec::new(), roles, orgs, line }))
    };
    document.claims.iter().filter_map(|(value, rule)| faults.keep(claim(value, rule))).collect()
}

fn consents(document: &Document, lines: &Lines<'_>, faults: &mut Faults) -> Consents {
    let mut consents = Consents::default();
    let mut add = |index: &str, rule: &ConsentRule| {
        let invalid = |field, message| Err(lines.invalid(&["consents", index, field], message));
        let (subject, space) = (&rule.subject, &rule.space);
        if rule.purpose.is_some() != rule.tools.is_empty() {
            return invalid("tools", "a consent needs either tools or a purpose".to_owned());
        }
        let tools = rule.tools.iter().map(|tool| ("tools", format!("tool:{tool}")));
        let purposes = rule.purpose.iter().map(|purpose| ("purpose", purpose.clone()));
        let purposes: Vec<_> = tools.chain(purposes).collect();
        if let Some((field, purpose)) = purposes.iter().find(|(_, purpose)| !is_purpose(purpose)) {
            let message = format!("{purpose:?} is not a purpose; write tool:<tool id> or pii:<tool id>");
            return invalid(*field, message);
        }
        if Glob::new(subject).is_exact() && !document.subjects.contains_key(subject) {
            return invalid("subject", format!("unknown subject {subject:?}"));
        }
        if Glob::new(space).is_exact() && !document.spaces.contains_key(space) {
            return invalid("space", format!("unknown space {space:?}"));
        }
        let line = lines.line(&["consents", index]);
        purposes.iter().for_each(|(_, purpose)| consents.add(rule, purpose, Some(line)));
        Ok(())
    };
    for (index, rule) in document.consents.iter().enumerate() {
        faults.keep(add(&index.to_string(), rule));
    }
    consents
}

/// Says that a mode has the key of no tool and no named command.
pub(crate) fn unknown_command(key: &str) -> String {
    format!("{key:?} is no named command: write `command.run`, one blank and a name from [commands]")
}

fn modes(
    table: &str,
    owners: &BTreeMap<String, ModeRules>,
    document: &Document,
    lines: &Lines<'_>,
    faults: &mut Faults,
) -> Modes {
    let mut modes = Modes::default();
    for (owner, rules) in owners {
        modes.introduce(owner);
        for (key, mode) in &rules.modes {
            let path = [table, owner, "modes", key];
            let mut add = || {
                check_name(key, lines, &path)?;
                if !is_mode_key(key, |name| document.commands.contains_key(name)) {
                    return Err(lines.invalid(&path, unknown_command(key)));
                }
                let twice = |_| lines.invalid(&path, format!("{key:?} has two modes, under two spellings"));
                modes.add(owner, key, *mode, lines.line(&path)).map_err(twice)
            };
            faults.keep(add());
        }
    }
    modes
}

fn clock(document: &Document, lines: &Lines<'_>) -> Result<ClockTable, PolicyError> {
    let rules = &document.clock;
    let (skew, max) = (rules.skew_s_max, limits::SKEW_S_MAX);
    let invalid = |field, message| lines.invalid(&["clock", field], message);
    if skew > max {
        let message = format!("skew_s_max is {skew}; at most {max} are allowed");
        return Err(invalid("skew_s_max", message));
    }
    let zone = Zone::parse(&rules.zone).ok_or_else(|| {
        let zone = &rules.zone;
        let message = format!("{zone:?} is not a time zone; write local, utc or an offset such as +02:00");
        invalid("zone", message)
    })?;
    let minute = |field, text: &str| {
        let error = || invalid(field, format!("{text:?} is not a time of day; write HH:MM"));
        minute_of_day(text).ok_or_else(error)
    };
    Ok(ClockTable {
        skew_s_max: u64::from(skew),
        zone,
        night_from: minute("night_from", &rules.night_from)?,
        night_until: minute("night_until", &rules.night_until)?,
        line: lines.line(&["clock", "skew_s_max"]),
    })
}

fn timeouts(document: &Document, lines: &Lines<'_>) -> Result<TimeoutRules, PolicyError> {
    let rules = &document.timeouts;
    let low = rules.low_ms.unwrap_or(limits::TIMEOUT_MS_LOW);
    let medium = rules.medium_ms.unwrap_or(limits::TIMEOUT_MS_MEDIUM.min(low.saturating_sub(1)));
    let invalid = |field, message| Err(lines.invalid(&["timeouts", field], message));
    let max = effectd_contracts::limits::TIMEOUT_MS_MAX;
    let set = [
        ("low_ms", rules.low_ms),
        ("medium_ms", rules.medium_ms),
        ("high_ms", rules.high_ms),
        ("egress_ms", rules.egress_ms),
    ];
    for (field, value) in set {
        if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
            return invalid(field, format!("{field} is {value}; it must be from 1 to {max}"));
        }
    }
    if medium >= low {
        let message = format!("medium_ms ({medium}) must be less than low_ms ({low})");
        return invalid("medium_ms", message);
    }
    Ok(rules.clone())
}
