//! The overlay: changes that operators make by commands, applied on top of the policy's files.
//!
//! The policy directory is read-only to effectd. The Store keeps the overlay, and every compiled policy includes it. Where
//! overlay and files both have a rule, the stricter one counts: the overlay can give a consent, but not one that the files
//! revoke; it can make a band stricter, never milder; it can set any mode, but not replace a deny in the files. What it strikes out
//! of a list, no pattern of the files brings back.

use std::collections::BTreeMap;

use effectd_contracts::text::is_unprintable;
use effectd_contracts::{Band, Mode, PolicyList, SpaceId, SubjectId, Timestamp};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::PolicyError;
use crate::limits::{NAME_BYTES_MAX, OVERLAY_ENTRIES_MAX};

/// All changes in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::manual_non_exhaustive, reason = "the private field is one that was stored")]
pub struct Overlay {
    /// Consents, given and revoked. The last one for a subject, space and purpose counts.
    pub consents: Vec<ConsentChange>,
    pub org_modes: BTreeMap<String, BTreeMap<String, SetMode>>,
    pub bands: BTreeMap<SpaceId, Band>,
    /// Entries of lists, in order. Left out if there are none, so that the digest of earlier overlays stays the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<EntryChange>,
    /// Accepted and dropped: earlier builds of this stored format kept modes here that nothing read.
    #[serde(skip_serializing, deserialize_with = "dropped")]
    automation_modes: (),
}

fn dropped<'de, D: Deserializer<'de>>(value: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(value).map(drop)
}

/// A mode by command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SetMode {
    /// Until a command changes it.
    Lasting(Mode),
    /// From `until` on, the mode counts that an earlier command set without an end, or else that of the files.
    Ending {
        mode: Mode,
        until: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Mode>,
    },
}

impl SetMode {
    /// The mode at this time; `None` for that of the files.
    pub(crate) fn at(self, now: Timestamp) -> Option<Mode> {
        match self {
            Self::Ending { mode, until, .. } if now < until => Some(mode),
            Self::Ending { then, .. } => then,
            Self::Lasting(mode) => Some(mode),
        }
    }

    /// Whether its end was in this time.
    pub(crate) fn has_ended(self, since: Timestamp, now: Timestamp) -> bool {
        matches!(self, Self::Ending { until, .. } if since < until && until <= now)
    }

    /// This mode after another one: an end brings back what has none.
    fn after(self, before: Option<Self>) -> Self {
        match (self, before) {
            (Self::Ending { mode, until, .. }, Some(Self::Lasting(then))) => {
                Self::Ending { mode, until, then: Some(then) }
            }
            (Self::Ending { mode, until, .. }, Some(Self::Ending { then, .. })) => {
                Self::Ending { mode, until, then }
            }
            (set, _) => set,
        }
    }

    /// For people.
    fn text(self, now: Timestamp) -> String {
        match self {
            Self::Lasting(mode) => mode.as_str().to_owned(),
            Self::Ending { mode, until, then } => {
                let (mode, then) = (mode.as_str(), then.map_or("as in the files", |then| then.as_str()));
                if now < until {
                    format!("{mode} until {until}, then {then}")
                } else {
                    format!("{mode} ended at {until}, now {then}")
                }
            }
        }
    }
}

/// A consent that was given or revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsentChange {
    pub subject: SubjectId,
    pub space: SpaceId,
    /// The purpose: `tool:<id>` or `pii:<id>`.
    pub purpose: String,
    #[serde(default)]
    pub revoked: bool,
}

/// An entry that was added to a list, or struck out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryChange {
    pub list: PolicyList,
    /// Whose roles; `None` for the other lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<SubjectId>,
    pub entry: String,
    pub allowed: bool,
}

/// One change by a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "change", deny_unknown_fields)]
pub enum Change {
    GrantConsent {
        subject: SubjectId,
        space: SpaceId,
        purpose: String,
    },
    RevokeConsent {
        subject: SubjectId,
        space: SpaceId,
        purpose: String,
    },
    /// Sets an organisation's mode of a tool; without a mode, restores that of the files.
    SetOrgMode {
        org: String,
        /// The tool, as id or `<source>:<action>`.
        tool: String,
        mode: Option<SetMode>,
    },
    /// Makes a space more careful; without a band, restores that of the files.
    SetBand {
        space: SpaceId,
        band: Option<Band>,
    },
    /// Adds an entry to a list or strikes it out; without `allowed`, restores the files.
    SetEntry {
        list: PolicyList,
        subject: Option<SubjectId>,
        entry: String,
        allowed: Option<bool>,
    },
    /// Takes all changes back: the files alone count again.
    Clear {},
}

impl Overlay {
    pub fn len(&self) -> usize {
        let modes = self.org_modes.values().map(BTreeMap::len).sum::<usize>();
        self.consents.len() + modes + self.bands.len() + self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The changes as lines for people. A mode whose end has come is marked.
    pub fn lines(&self, now: Timestamp) -> Vec<String> {
        let consents = self.consents.iter().map(|consent| {
            let ConsentChange { subject, space, purpose, revoked } = consent;
            let given = if *revoked { "revoked" } else { "given" };
            format!("consent {given}: {subject} in {space} for {purpose}")
        });
        let modes = self.org_modes.iter().flat_map(|(org, modes)| {
            modes.iter().map(move |(tool, mode)| format!("mode of {tool} in org {org}: {}", mode.text(now)))
        });
        let bands = self.bands.iter().map(|(space, band)| format!("band of {space}: {}", band.as_str()));
        let entries = self.entries.iter().map(|EntryChange { list, subject, entry, allowed }| {
            let of = subject.as_ref().map(|subject| format!(" of {subject}")).unwrap_or_default();
            let word = if *allowed { "added" } else { "struck out" };
            format!("{entry} in {}{of}: {word}", list.as_str())
        });
        consents.chain(modes).chain(bands).chain(entries).collect()
    }

    /// Adds one change. On an error nothing has changed.
    pub fn apply(&mut self, change: Change) -> Result<(), PolicyError> {
        let mut next = self.clone();
        match change {
            Change::GrantConsent { subject, space, purpose } => {
                next.set_consent(subject, space, purpose, false)?
            }
            Change::RevokeConsent { subject, space, purpose } => {
                next.set_consent(subject, space, purpose, true)?
            }
            Change::SetOrgMode { org, tool, mode } => set_mode(&mut next.org_modes, org, tool, mode)?,
            Change::SetBand { space, band } => set(&mut next.bands, space, band),
            Change::SetEntry { list, subject, mut entry, allowed } => {
                if list == PolicyList::Hosts {
                    entry.make_ascii_lowercase();
                }
                next.entries.retain(|old| (old.list, &old.subject, &old.entry) != (list, &subject, &entry));
                next.entries.extend(allowed.map(|allowed| EntryChange { list, subject, entry, allowed }));
                next.entries.sort();
            }
            Change::Clear {} => next = Self::default(),
        }
        next.check()?;
        *self = next;
        Ok(())
    }

    /// Checks the bounds that the types do not enforce.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.len() > OVERLAY_ENTRIES_MAX {
            let message = format!("{} changes; at most {OVERLAY_ENTRIES_MAX} are allowed", self.len());
            return Err(PolicyError::Overlay(message));
        }
        for consent in &self.consents {
            check_purpose(&consent.purpose)?;
            let names = [consent.subject.as_str(), consent.space.as_str(), &consent.purpose];
            if let Some(name) = names.iter().find(|name| name.contains('*')) {
                let message = format!(
                    "{name:?}: a consent given by command must name one subject, space and purpose; patterns are not allowed"
                );
                return Err(PolicyError::Overlay(message));
            }
        }
        for EntryChange { list, subject, entry, .. } in &self.entries {
            check_name(entry)?;
            if entry.contains('*') {
                let message =
                    format!("{entry:?}: an entry by command must be one name; patterns are not allowed");
                return Err(PolicyError::Overlay(message));
            }
            if subject.is_some() != (*list == PolicyList::Roles) {
                let message = "roles have a subject, and the other lists have none".to_owned();
                return Err(PolicyError::Overlay(message));
            }
        }
        for (owner, modes) in &self.org_modes {
            for name in std::iter::once(owner).chain(modes.keys()) {
                check_name(name)?;
            }
        }
        Ok(())
    }

    fn set_consent(
        &mut self,
        subject: SubjectId,
        space: SpaceId,
        purpose: String,
        revoked: bool,
    ) -> Result<(), PolicyError> {
        check_purpose(&purpose)?;
        self.consents.retain(|old| (&old.subject, &old.space, &old.purpose) != (&subject, &space, &purpose));
        self.consents.push(ConsentChange { subject, space, purpose, revoked });
        Ok(())
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

fn set_mode(
    modes: &mut BTreeMap<String, BTreeMap<String, SetMode>>,
    owner: String,
    tool: String,
    mode: Option<SetMode>,
) -> Result<(), PolicyError> {
    check_name(&owner)?;
    check_name(&tool)?;
    let of_owner = modes.entry(owner.clone()).or_default();
    let mode = mode.map(|mode| mode.after(of_owner.get(&tool).copied()));
    set(of_owner, tool, mode);
    if of_owner.is_empty() {
        modes.remove(&owner);
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), PolicyError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(is_unprintable) {
        let message = format!("{name:?} must be printable text of 1 to {NAME_BYTES_MAX} bytes");
        return Err(PolicyError::Overlay(message));
    }
    Ok(())
}

/// Whether the text is a purpose: `tool:<id>` or `pii:<id>`.
pub(crate) fn is_purpose(purpose: &str) -> bool {
    let tool = purpose.strip_prefix("tool:").or_else(|| purpose.strip_prefix("pii:"));
    tool.is_some_and(|tool| {
        !tool.is_empty() && tool.len() <= NAME_BYTES_MAX && !tool.chars().any(is_unprintable)
    })
}

fn check_purpose(purpose: &str) -> Result<(), PolicyError> {
    if is_purpose(purpose) {
        return Ok(());
    }
    Err(PolicyError::Overlay(format!("{purpose:?} is not a purpose; write tool:<tool id> or pii:<tool id>")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn consent(revoked: bool) -> Change {
        let subject = SubjectId::new("agent://a").unwrap();
        let space = SpaceId::new("shared:h").unwrap();
        let purpose = "tool:files.write_text".to_owned();
        if revoked {
            Change::RevokeConsent { subject, space, purpose }
        } else {
            Change::GrantConsent { subject, space, purpose }
        }
    }

    #[test]
    fn the_last_word_counts_and_the_overlay_does_not_grow() {
        let mut overlay = Overlay::default();
        for revoked in [false, true, false, true] {
            overlay.apply(consent(revoked)).unwrap();
        }
        assert_eq!(overlay.len(), 1);
        assert!(overlay.consents[0].revoked);
    }

    #[test]
    fn what_is_set_can_be_unset() {
        let mut overlay = Overlay::default();
        let set = |mode| Change::SetOrgMode { org: "home".into(), tool: "files:write_text".into(), mode };
        overlay.apply(set(Some(SetMode::Lasting(Mode::Deny)))).unwrap();
        assert_eq!(overlay.len(), 1);
        overlay.apply(set(None)).unwrap();
        assert_eq!(overlay, Overlay::default());
    }

    #[test]
    fn an_overlay_of_an_earlier_build_is_read() {
        let stored = r#"{"consents":[],"org_modes":{"home":{"files.copy":"deny"}},
            "automation_modes":{"nightly":{"files.copy":"deny"}},"bands":{}}"#;
        let overlay: Overlay = serde_json::from_str(stored).unwrap();
        assert_eq!(overlay.lines(Timestamp::UNIX_EPOCH), ["mode of files.copy in org home: deny"]);
        assert!(!serde_json::to_string(&overlay).unwrap().contains("automation"));
        // A later build's field may make something stricter.
        assert!(serde_json::from_str::<Overlay>(r#"{"quotas":{}}"#).is_err());
    }

    #[test]
    fn nonsense_is_refused_and_leaves_no_trace() {
        let mut overlay = Overlay::default();
        let mode = Some(SetMode::Lasting(Mode::Allow));
        let bad = Change::SetOrgMode { org: "a\u{1b}".into(), tool: "x".into(), mode };
        assert!(overlay.apply(bad).unwrap_err().to_string().contains("printable"));
        assert!(overlay.is_empty());
    }
}
