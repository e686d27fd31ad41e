//! The policy: compiled from its files, with the overlay applied.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cedar_policy::Entities;
use effectd_contracts::text::counted;
use effectd_contracts::{
    COMMAND_TOOL, Digest, Mode, PolicyList, SpaceId, SubjectId, Timestamp, ToolId, ToolSpec, Touch,
};
use serde_json::{Map, Value};

use crate::abac::Abac;
use crate::document::PrincipalRole;
use crate::error::{Faults, Location, PolicyError};
use crate::example;
use crate::inspect::{ContentRules, Inspection, inspect_for_people, inspect_with, is_host, plain_name};
use crate::overlay::{Change, Overlay};
use crate::risk::{is_listed, left_to_mode};
use crate::source::{POLICY_FILE, Source};
use crate::tables::commands::NamedCommand;
use crate::tables::consents::{ConsentAnswer, Consents};
use crate::tables::modes::Modes;
use crate::tables::roles::Holder;
use crate::tables::spaces::Space;
use crate::tables::{self, OVERLAY_RULE, Tables, policy_rule};

/// A compiled policy. It is immutable and cheap to clone, so that a decision uses one policy from beginning to end.
#[derive(Debug, Clone)]
pub struct Policy {
    base: Arc<Base>,
    overlay: Arc<Overlay>,
    /// Those of the files, with the entries of the overlay.
    tables: Arc<Tables>,
    /// Cedar's entities of these tables, if the overlay has entries.
    entities: Option<Arc<Entities>>,
    consents: Arc<Consents>,
    pub(crate) org_modes: Arc<Modes>,
    digest: Digest,
}

/// The part that comes from the files alone.
#[derive(Debug)]
struct Base {
    tables: Arc<Tables>,
    abac: Abac,
    content: ContentRules,
    examples: usize,
    source: Source,
    source_digest: Digest,
}

/// The registered tool of an example, if there is one: its spec, or why the example's parameters do not fit it.
pub type RealTool<'a> = &'a dyn Fn(&ToolId, &Map<String, Value>) -> Option<Result<ToolSpec, String>>;

impl Policy {
    /// [`Policy::compile_with`] where no tools are registered: all tools of the examples are in `example_tools`.
    pub fn compile(source: &Source, overlay: &Overlay) -> Result<Self, PolicyError> {
        Self::compile_with(source, overlay, &|_, _| None)
    }

    /// Parses, checks and compiles a policy; the error names every fault that can be found. Its examples are checked with the
    /// registered tools and without the overlay: a change that a command made earlier cannot prevent the policy from loading.
    pub fn compile_with(source: &Source, overlay: &Overlay, real: RealTool<'_>) -> Result<Self, PolicyError> {
        Self::compile_checking(source, overlay, Some(real))
    }

    /// [`Policy::compile_with`] without the examples, for files that passed them before: a tool that has changed since does not
    /// prevent the policy from loading.
    pub fn compile_unchecked(source: &Source, overlay: &Overlay) -> Result<Self, PolicyError> {
        Self::compile_checking(source, overlay, None)
    }

    fn compile_checking(
        source: &Source,
        overlay: &Overlay,
        real: Option<RealTool<'_>>,
    ) -> Result<Self, PolicyError> {
        tables::check_sizes(source)?;
        let mut faults = Faults::default();
        let Some((document, lines)) = faults.keep(tables::read(source)) else {
            return Err(with_form_of_rules(source, faults));
        };
        let content = faults.keep(ContentRules::compile(&document, &lines));
        let Some(tables) = faults.keep(Tables::compile(&document, &lines)) else {
            return Err(with_form_of_rules(source, faults));
        };
        let abac = faults.keep(Abac::compile(&source.rules, &tables));
        let (Some(content), Some(abac)) = (content, abac) else {
            return Err(refused(faults));
        };
        let (examples, source_digest) = (document.examples.len(), source.digest());
        let (tables, source) = (Arc::new(tables), source.clone());
        let base = Base { tables, abac, content, examples, source, source_digest };
        let bare = Self::apply(Arc::new(base), Overlay::default())?;
        if let Some(real) = real {
            example::check_all(&document, &lines, &bare, real)?;
        }
        bare.with_overlay(overlay)
    }

    /// The files that it was compiled from.
    pub fn source(&self) -> &Source {
        &self.base.source
    }

    /// The same files with another overlay. Nothing is parsed or compiled again.
    pub fn with_overlay(&self, overlay: &Overlay) -> Result<Self, PolicyError> {
        Self::apply(Arc::clone(&self.base), overlay.clone())
    }

    fn apply(base: Arc<Base>, overlay: Overlay) -> Result<Self, PolicyError> {
        overlay.check()?;
        let consents = base.tables.consents.with_changes(&overlay.consents);
        let org_modes = base.tables.org_modes.with_changes(&overlay.org_modes)?;
        let digest = digest(&base.source_digest, &overlay);
        let (mut tables, mut entities) = (Arc::clone(&base.tables), None);
        if !overlay.entries.is_empty() {
            tables = Arc::new(base.tables.with_entries(&overlay.entries));
            entities = Some(Arc::new(base.abac.entities_of(&tables).map_err(PolicyError::Overlay)?));
        }
        Ok(Self {
            base,
            overlay: Arc::new(overlay),
            tables,
            entities,
            consents: Arc::new(consents),
            org_modes: Arc::new(org_modes),
            digest,
        })
    }

    /// The digest of the files and the overlay.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Whether a consent, or a mode that a command set, has ended in this time. Nothing else says so.
    pub fn has_ended(&self, since: Timestamp, now: Timestamp) -> bool {
        self.consents.has_ended(since, now) || self.org_modes.has_ended(since, now)
    }

    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// The number of examples in the files.
    pub fn examples(&self) -> usize {
        self.base.examples
    }

    pub fn rules(&self) -> usize {
        self.base.abac.len()
    }

    /// The sizes of the tables, for `policy check`.
    pub fn summary(&self) -> String {
        let tables = &self.base.tables;
        let sizes = [
            (tables.principals.iter().count(), "principal"),
            (tables.roles.len(), "role"),
            (tables.subjects.len(), "subject"),
            (tables.spaces.len(), "space"),
            (tables.consents.len(), "consent"),
            (self.rules(), "rule"),
            (self.examples(), "example"),
            (self.overlay.len(), "change"),
        ];
        let sizes = sizes.map(|(size, noun)| counted(size as u64, noun));
        format!("{} over the files", sizes.join(", "))
    }

    /// Whether `allow.hosts` lists a host.
    pub fn allows_host(&self, host: &str) -> bool {
        is_listed(&self.tables().hosts, host)
    }

    /// The spaces, in order of their names.
    pub fn spaces(&self) -> impl Iterator<Item = &SpaceId> {
        self.base.tables.spaces.keys()
    }

    /// The directory of a space; `None` if the space is unknown.
    pub fn space_root(&self, space: &SpaceId) -> Option<PathBuf> {
        self.base.tables.spaces.get(space).map(|space| PathBuf::from(&space.root))
    }

    /// The protected paths of a space that a call with these changes would change.
    pub fn protected(&self, space: &SpaceId, touched: impl FnOnce() -> Vec<Touch>) -> Vec<String> {
        let Some(space) = self.base.tables.spaces.get(space).filter(|space| !space.protected.is_empty())
        else {
            return Vec::new();
        };
        let paths = touched().into_iter().flat_map(|touch| [Some(touch.path), touch.goes_to]).flatten();
        // Without `workspace/`.
        let beneath = |path: String| path.split_once('/').map_or(path.clone(), |(_, rest)| rest.to_owned());
        space.protected_among(&paths.map(beneath).collect::<Vec<_>>())
    }

    /// The commands that may run without a person, in order of their names.
    pub fn commands(&self) -> impl Iterator<Item = &NamedCommand> {
        self.base.tables.named.iter()
    }

    /// The named command that covers these words, as [`COMMAND_TOOL`](effectd_contracts::COMMAND_TOOL) runs them.
    pub fn command_of(&self, argv: &[String]) -> Option<Arc<NamedCommand>> {
        self.base.tables.named.covering(&argv.iter().map(String::as_str).collect::<Vec<_>>()).cloned()
    }

    /// The mode that the space's organisation gives to a named command, if it gives one.
    pub fn command_mode(&self, space: &SpaceId, command: &str, now: Timestamp) -> Option<Mode> {
        let org = self.base.tables.spaces.get(space)?.org.as_deref()?;
        self.org_modes.get(org, COMMAND_TOOL, Some(command), now).map(|(mode, _)| mode)
    }

    /// The error of a command whose folders of programs cannot be used.
    pub fn faulty_command(&self, command: &NamedCommand, message: String) -> PolicyError {
        PolicyError::invalid(Location::new(POLICY_FILE, command.line), message)
    }

    /// Refuses a change for an organisation, a space or a command that the files do not name: a misspelt stop would stop nothing.
    pub fn check_change(&self, change: &Change) -> Result<(), PolicyError> {
        let tables = &self.base.tables;
        match change {
            Change::SetOrgMode { tool, mode: Some(_), .. } if !tables.named.is_mode_key(tool) => {
                Err(PolicyError::Overlay(tables::unknown_command(tool)))
            }
            Change::SetOrgMode { org, mode: Some(_), .. } if !tables.org_modes.knows(org) => {
                Err(PolicyError::Overlay(format!("the policy has no organisation {org:?}")))
            }
            Change::SetBand { space, band: Some(_) } | Change::GrantConsent { space, .. }
                if !tables.spaces.contains_key(space) =>
            {
                Err(PolicyError::Overlay(format!("the policy has no space {space}")))
            }
            Change::SetEntry { list, subject, entry, allowed: Some(_) } => {
                // What no call can name would stop nothing.
                let wrong = match list {
                    PolicyList::Roles => self.unknown_role(subject.as_ref(), entry),
                    PolicyList::Hosts => (!is_host(&entry.to_ascii_lowercase()))
                        .then(|| format!("{entry:?} is not a host without scheme, port and path")),
                    PolicyList::Commands => (plain_name(entry) != *entry)
                        .then(|| format!("{entry:?} is not the name of a program")),
                    // Only the registry knows the tools.
                    PolicyList::CrossSpace => None,
                };
                wrong.map_or(Ok(()), |why| Err(PolicyError::Overlay(why)))
            }
            Change::SetOrgMode { .. }
            | Change::GrantConsent { .. }
            | Change::RevokeConsent { .. }
            | Change::SetBand { .. }
            | Change::SetEntry { .. }
            | Change::Clear {} => Ok(()),
        }
    }

    /// Why a role by command changes nothing, if the files do not have the subject or the role.
    fn unknown_role(&self, subject: Option<&SubjectId>, role: &str) -> Option<String> {
        let tables = &self.base.tables;
        let unknown = |subject: &&SubjectId| !tables.subjects.contains_key(subject.as_str());
        match subject.filter(unknown) {
            Some(subject) => Some(format!("the policy has no subject {subject}")),
            None => (!tables.roles.contains_key(role)).then(|| format!("the policy has no role {role:?}")),
        }
    }

    /// Warnings about spaces and commands that the overlay names and the files do not have, and about principals that only read by
    /// their own entry and do more by another one.
    pub fn warnings(&self) -> Vec<String> {
        let unknown = |space: &&SpaceId| !self.base.tables.spaces.contains_key(*space);
        let bands = self.overlay.bands.keys().filter(unknown);
        let consents = self.overlay.consents.iter().map(|consent| &consent.space).filter(unknown);
        let mut warnings: Vec<String> = bands
            .chain(consents)
            .map(|space| format!("the overlay names the unknown space {space}"))
            .collect();
        warnings.dedup();
        let modes = self.overlay.org_modes.values();
        let unknown = modes.flat_map(BTreeMap::keys).filter(|key| !self.base.tables.named.is_mode_key(key));
        warnings.extend(unknown.map(|key| format!("the overlay has a mode of the unknown command {key:?}")));
        let roles = self.overlay.entries.iter().filter(|change| change.list == PolicyList::Roles);
        let unknown = roles.filter_map(|change| self.unknown_role(change.subject.as_ref(), &change.entry));
        warnings.extend(unknown.map(|why| format!("the overlay has a role that changes nothing: {why}")));
        let principals = &self.base.tables.principals;
        let only_reads = |entry: &tables::Principal| {
            let reads = [PrincipalRole::Learner, PrincipalRole::Look];
            entry.roles.iter().all(|role| reads.contains(role))
        };
        for (name, _) in principals.iter().filter(|(_, entry)| only_reads(entry)) {
            if let Some(more) = principals.matching(name).find(|entry| !only_reads(entry)) {
                let rule = policy_rule(more.line);
                warnings.push(format!(
                    "{name} may do more than read: the entry in {rule} applies to it, too; write names instead of its `*`"
                ));
            }
        }
        warnings
    }

    /// The digest of the content rules; see [`crate::facts::InspectionFacts::rules`].
    pub fn content_digest(&self) -> Digest {
        self.base.content.digest
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(crate) fn entities(&self) -> &Entities {
        self.entities.as_deref().unwrap_or_else(|| self.base.abac.entities())
    }

    /// Whether a rule depends on what an action would change. Then a preview must come before the decision.
    pub fn needs_preview(&self) -> bool {
        self.base.abac.needs_preview()
    }

    /// The digest of all Cedar rules, whatever file they are in. When it changes, earlier approvals may no longer hold.
    pub fn rules_digest(&self) -> Digest {
        self.base.abac.digest()
    }

    pub(crate) fn abac(&self) -> &Abac {
        &self.base.abac
    }

    pub(crate) fn consent(&self, subject: &str, space: &str, purpose: &str, now: Timestamp) -> ConsentAnswer {
        self.consents.answer(subject, space, purpose, now)
    }

    /// The spaces whose band is laxer than under another policy, and what that lets run: a line each, for people.
    pub fn laxer_bands(&self, before: &Policy) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, space) in &self.tables().spaces {
            let Some(old) = before.tables().spaces.get(id) else { continue };
            let (was, now) = (before.band(id, old).0, self.band(id, space).0);
            if now < was {
                let (was, what) = (was.as_str(), left_to_mode(now));
                lines.push(format!(
                    "{id}: band {was} -> {} is laxer: {what} run without a question now, unless their mode asks",
                    now.as_str()
                ));
            }
        }
        lines
    }

    /// Whether a command struck a name out of a list.
    pub(crate) fn is_struck(&self, list: PolicyList, name: &str) -> bool {
        let mut entries = self.overlay.entries.iter();
        entries.any(|change| change.list == list && change.entry == name && !change.allowed)
    }

    /// The rule about what a subject may do: the overlay's if it changes the subject's roles.
    pub(crate) fn rule_of(&self, subject: &SubjectId, holder: &Holder) -> String {
        let is_changed = self.overlay.entries.iter().any(|change| change.subject.as_ref() == Some(subject));
        if is_changed { OVERLAY_RULE.to_owned() } else { policy_rule(holder.line) }
    }

    /// The space's band with its rule: the stricter one of files and overlay.
    pub(crate) fn band(&self, id: &SpaceId, space: &Space) -> (effectd_contracts::Band, String) {
        match self.overlay.bands.get(id) {
            Some(band) if *band > space.band => (*band, OVERLAY_RULE.to_owned()),
            Some(_) | None => (space.band, policy_rule(space.line)),
        }
    }
}

/// The faults so far, and those in the form of the Cedar rules.
fn with_form_of_rules(source: &Source, mut faults: Faults) -> PolicyError {
    Abac::check_form(&source.rules, &mut faults);
    refused(faults)
}

fn refused(faults: Faults) -> PolicyError {
    let incomplete = || PolicyError::invalid(Location::new(POLICY_FILE, 1), "the policy is incomplete");
    faults.result().err().unwrap_or_else(incomplete)
}

/// Inspects the parameters of a call in a space by the policy's content rules.
pub fn inspect(params: &Map<String, Value>, spec: &ToolSpec, space: &SpaceId, policy: &Policy) -> Inspection {
    let mut inspection = inspect_with(params, spec, space, &policy.base.content);
    inspection.facts.named_command = policy.base.tables.named.matching(&spec.tool_id, params);
    inspection
}

/// The parameters as people may see them: without personal data, whatever the tool gets.
pub fn inspect_to_show(params: &Map<String, Value>, spec: &ToolSpec, policy: &Policy) -> Inspection {
    inspect_for_people(params, spec, &policy.base.content)
}

fn digest(source: &Digest, overlay: &Overlay) -> Digest {
    // Consents are in order of time; sorted, since their order makes no difference to a decision.
    let mut sorted = overlay.clone();
    sorted
        .consents
        .sort_by(|a, b| (&a.subject, &a.space, &a.purpose).cmp(&(&b.subject, &b.space, &b.purpose)));
    // An overlay is plain data with text keys, which serde_json always writes.
    let overlay = serde_json::to_vec(&sorted).unwrap_or_default();
    let mut bytes = b"effectd-policy-v1".to_vec();
    bytes.extend_from_slice(source.as_bytes());
    bytes.extend_from_slice(&overlay);
    Digest::of(&bytes)
}
