//! A policy that was read, checked and compiled, with the changes of the command line laid over it.

pub(crate) mod clock;
pub(crate) mod consents;
pub(crate) mod modes;
pub(crate) mod roles;
pub(crate) mod spaces;
pub(crate) mod tables;

use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::{Capability, Digest, SpaceId, Timestamp, ToolId};

use crate::abac::Abac;
use crate::document::{Document, TimeoutRules};
use crate::error::{Location, PolicyError};
use crate::example;
use crate::glob::Glob;
use crate::inspect::ContentRules;
use crate::overlay::Overlay;
use crate::source::{POLICY_FILE, Source};

use consents::{ConsentAnswer, Consents};
use modes::Modes;
use spaces::Space;
use tables::Tables;

/// Where a rule stands that the command line made.
pub(crate) const OVERLAY_RULE: &str = "overlay";

/// A compiled policy. Cheap to clone; nothing in it changes, so a decision sees one policy from beginning to end.
#[derive(Debug, Clone)]
pub struct Policy {
    base: Arc<Base>,
    overlay: Arc<Overlay>,
    consents: Arc<Consents>,
    org_modes: Arc<Modes>,
    automation_modes: Arc<Modes>,
    digest: Digest,
}

/// What comes from the files alone.
#[derive(Debug)]
struct Base {
    tables: Tables,
    abac: Abac,
    content: ContentRules,
    examples: usize,
    source_digest: Digest,
}

impl Policy {
    /// Reads, checks and compiles a policy. Its examples are tried on the files alone: what the command line changed
    /// later must not keep a policy from loading.
    pub fn compile(source: &Source, overlay: &Overlay) -> Result<Self, PolicyError> {
        tables::check_sizes(source)?;
        let (document, lines) = tables::read(source)?;
        let content = tables::content_rules(&document, &lines)?;
        let tables = Tables::compile(&document, &lines)?;
        let abac = Abac::compile(&source.rules, &tables)?;
        let source_digest = source.digest();
        let base = Base {
            tables,
            abac,
            content,
            examples: document.examples.len(),
            source_digest,
        };
        let bare = Self::lay_over(Arc::new(base), Overlay::default())?;
        example::check_all(&document, &lines, &bare)?;
        bare.with_overlay(overlay)
    }

    /// The same files under other changes; nothing is read or compiled again.
    pub fn with_overlay(&self, overlay: &Overlay) -> Result<Self, PolicyError> {
        Self::lay_over(Arc::clone(&self.base), overlay.clone())
    }

    fn lay_over(base: Arc<Base>, overlay: Overlay) -> Result<Self, PolicyError> {
        overlay.check()?;
        let consents = base.tables.consents.with_changes(&overlay.consents);
        let org_modes = base.tables.org_modes.with_changes(&overlay.org_modes)?;
        let automation_modes = base
            .tables
            .automation_modes
            .with_changes(&overlay.automation_modes)?;
        let digest = digest(&base.source_digest, &overlay);
        Ok(Self {
            base,
            overlay: Arc::new(overlay),
            consents: Arc::new(consents),
            org_modes: Arc::new(org_modes),
            automation_modes: Arc::new(automation_modes),
            digest,
        })
    }

    /// Names this policy: its files and the changes over them.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// How many examples the files carry; all of them hold.
    pub fn examples(&self) -> usize {
        self.base.examples
    }

    pub fn rules(&self) -> usize {
        self.base.abac.len()
    }

    /// The document's tables, counted, for `policy check`.
    pub fn summary(&self) -> String {
        let tables = &self.base.tables;
        format!(
            "{} principals, {} roles, {} subjects, {} spaces, {} consents, {} rules, {} examples, {} changes over the files",
            tables.principals.len(),
            tables.roles.len(),
            tables.subjects.len(),
            tables.spaces.len(),
            tables.consents.len(),
            self.rules(),
            self.examples(),
            self.overlay.len(),
        )
    }

    /// The spaces, in order of their names.
    pub fn spaces(&self) -> impl Iterator<Item = &SpaceId> {
        self.base.tables.spaces.keys()
    }

    /// The directory of a space; `None` if the policy does not know it.
    pub fn space_root(&self, space: &SpaceId) -> Option<PathBuf> {
        self.base
            .tables
            .spaces
            .get(space)
            .map(|space| PathBuf::from(&space.root))
    }

    /// What the overlay says about spaces or tools that the files do not have; worth a warning, not a refusal.
    pub fn warnings(&self) -> Vec<String> {
        let unknown = |space: &&SpaceId| !self.base.tables.spaces.contains_key(*space);
        let bands = self.overlay.bands.keys().filter(unknown);
        let consents = self
            .overlay
            .consents
            .iter()
            .map(|consent| &consent.space)
            .filter(unknown);
        let mut warnings: Vec<String> = bands
            .chain(consents)
            .map(|space| format!("the overlay names the unknown space {space}"))
            .collect();
        warnings.dedup();
        warnings
    }

    /// The digest of the rules about content; see [`crate::facts::InspectionFacts::rules`].
    pub fn content_digest(&self) -> Digest {
        self.base.content.digest
    }

    pub(crate) fn content(&self) -> &ContentRules {
        &self.base.content
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.base.tables
    }

    /// Whether some rule looks at what would change: then that must be found out before an action is judged.
    pub fn foresees(&self) -> bool {
        self.base.abac.foresees()
    }

    /// Over what the rules in Cedar say, wherever they stand: another one may judge otherwise what somebody has agreed to.
    pub fn rules_digest(&self) -> Digest {
        self.base.abac.digest()
    }

    pub(crate) fn abac(&self) -> &Abac {
        &self.base.abac
    }

    pub(crate) fn timeouts(&self) -> &TimeoutRules {
        &self.base.tables.timeouts
    }

    pub(crate) fn consent(&self, subject: &str, space: &str, purpose: &str, now: Timestamp) -> ConsentAnswer {
        self.consents.answer(subject, space, purpose, now)
    }

    pub(crate) fn org_modes(&self) -> &Modes {
        &self.org_modes
    }

    pub(crate) fn automation_modes(&self) -> &Modes {
        &self.automation_modes
    }

    /// The space's band: the stricter of the files' and the overlay's.
    pub(crate) fn band(&self, id: &SpaceId, space: &Space) -> (effectd_contracts::Band, String) {
        match self.overlay.bands.get(id) {
            Some(band) if *band > space.band => (*band, OVERLAY_RULE.to_owned()),
            Some(_) | None => (space.band, policy_rule(space.line)),
        }
    }

    /// Capabilities that the overlay asks of a tool beyond its own.
    pub(crate) fn extra_caps(&self, tool: &ToolId) -> impl Iterator<Item = &Capability> {
        self.overlay.caps.get(tool).into_iter().flatten()
    }
}

pub(crate) fn policy_rule(line: u32) -> String {
    Location::new(POLICY_FILE, line).to_string()
}

pub(crate) fn any_matches(globs: &[Glob], text: &str) -> bool {
    globs.iter().any(|glob| glob.matches(text))
}

fn digest(source: &Digest, overlay: &Overlay) -> Digest {
    // Consents are a list in order of time; which came first makes no difference, so it makes none here.
    let mut sorted = overlay.clone();
    sorted
        .consents
        .sort_by(|a, b| (&a.subject, &a.space, &a.purpose).cmp(&(&b.subject, &b.space, &b.purpose)));
    // An overlay is plain data with text keys, for which serde_json has no failure.
    let overlay = serde_json::to_vec(&sorted).unwrap_or_default();
    let mut bytes = b"effectd-policy-v1".to_vec();
    bytes.extend_from_slice(source.as_bytes());
    bytes.extend_from_slice(&overlay);
    Digest::of(&bytes)
}

/// Reads `policy.toml` alone, without checking what it says; for tools that show or edit it.
pub fn read_document(source: &Source) -> Result<Document, PolicyError> {
    tables::check_sizes(source)?;
    tables::read(source).map(|(document, _)| document)
}
