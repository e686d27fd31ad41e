//! What the command line changed since the files were written.
//!
//! The policy directory is read-only to effectd. Changes are kept beside it, as a plain value that the Store remembers,
//! and are laid over the files whenever a policy is compiled. Where both speak, the stricter one counts: an overlay can
//! give a consent that the files do not mention, but never one that they revoke; it can make a band stricter, never
//! milder; it can ask more capabilities of a tool, never fewer; it can set any mode, except over a deny in the files.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::text::is_unprintable;
use effectd_contracts::{Band, Capability, Mode, SpaceId, SubjectId, ToolId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::PolicyError;
use crate::limits::{NAME_BYTES_MAX, OVERLAY_ENTRIES_MAX};

/// All changes in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Overlay {
    /// Consents given and taken back. The last word about one subject, space and purpose counts.
    pub consents: Vec<ConsentChange>,
    /// Modes by organisation and tool.
    pub org_modes: BTreeMap<String, BTreeMap<String, Mode>>,
    /// Modes by automation and tool.
    pub automation_modes: BTreeMap<String, BTreeMap<String, Mode>>,
    /// Stricter bands.
    pub bands: BTreeMap<SpaceId, Band>,
    /// Capabilities that a tool requires beyond its own: the way to stop a noisy tool is to ask for one nobody has.
    pub caps: BTreeMap<ToolId, BTreeSet<Capability>>,
}

/// One consent given or taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsentChange {
    /// Whose.
    pub subject: SubjectId,
    /// Where.
    pub space: SpaceId,
    /// What for: `tool:<id>` or `pii:<id>`.
    pub purpose: String,
    /// Taken back instead of given.
    #[serde(default)]
    pub revoked: bool,
}

/// One change by the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "change", deny_unknown_fields)]
pub enum Change {
    /// Gives a consent.
    GrantConsent {
        /// Whose.
        subject: SubjectId,
        /// Where.
        space: SpaceId,
        /// What for.
        purpose: String,
    },
    /// Takes a consent back.
    RevokeConsent {
        /// Whose.
        subject: SubjectId,
        /// Where.
        space: SpaceId,
        /// What for.
        purpose: String,
    },
    /// Sets an organisation's mode of a tool, or with no mode goes back to the files.
    SetOrgMode {
        /// Which organisation.
        org: String,
        /// Which tool, as id or `<source>:<action>`.
        tool: String,
        /// The mode.
        mode: Option<Mode>,
    },
    /// Sets an automation's mode of a tool, or with no mode goes back to the files.
    SetAutomationMode {
        /// Which automation.
        automation: String,
        /// Which tool, as id or `<source>:<action>`.
        tool: String,
        /// The mode.
        mode: Option<Mode>,
    },
    /// Makes a space more careful, or with no band goes back to the files.
    SetBand {
        /// Which space.
        space: SpaceId,
        /// The band.
        band: Option<Band>,
    },
    /// Asks more capabilities of a tool, or with none goes back to its own.
    SetCaps {
        /// Which tool.
        tool: ToolId,
        /// The capabilities beyond its own.
        caps: BTreeSet<Capability>,
    },
}

impl Overlay {
    pub fn len(&self) -> usize {
        let modes = self
            .org_modes
            .values()
            .chain(self.automation_modes.values())
            .map(BTreeMap::len)
            .sum::<usize>();
        self.consents.len() + modes + self.bands.len() + self.caps.values().map(BTreeSet::len).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds one change. On an error nothing has changed.
    pub fn apply(&mut self, change: Change) -> Result<(), PolicyError> {
        let mut next = self.clone();
        match change {
            Change::GrantConsent {
                subject,
                space,
                purpose,
            } => next.set_consent(subject, space, purpose, false)?,
            Change::RevokeConsent {
                subject,
                space,
                purpose,
            } => next.set_consent(subject, space, purpose, true)?,
            Change::SetOrgMode { org, tool, mode } => set_mode(&mut next.org_modes, org, tool, mode)?,
            Change::SetAutomationMode {
                automation,
                tool,
                mode,
            } => {
                set_mode(&mut next.automation_modes, automation, tool, mode)?;
            }
            Change::SetBand {
                space,
                band: Some(band),
            } => {
                next.bands.insert(space, band);
            }
            Change::SetBand { space, band: None } => {
                next.bands.remove(&space);
            }
            Change::SetCaps { tool, caps } if caps.is_empty() => {
                next.caps.remove(&tool);
            }
            Change::SetCaps { tool, caps } => {
                next.caps.insert(tool, caps);
            }
        }
        next.check()?;
        *self = next;
        Ok(())
    }

    /// The bounds that types alone do not hold; for overlays that were read back from somewhere.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.len() > OVERLAY_ENTRIES_MAX {
            let message = format!(
                "{} changes; at most {} are allowed",
                self.len(),
                OVERLAY_ENTRIES_MAX
            );
            return Err(PolicyError::Overlay(message));
        }
        for consent in &self.consents {
            check_purpose(&consent.purpose)?;
            let names = [consent.subject.as_str(), consent.space.as_str(), &consent.purpose];
            if let Some(name) = names.iter().find(|name| name.contains('*')) {
                let message = format!(
                    "{name:?}: a consent by command names one subject, space and purpose, no pattern"
                );
                return Err(PolicyError::Overlay(message));
            }
        }
        for (owner, modes) in self.org_modes.iter().chain(&self.automation_modes) {
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
        self.consents
            .retain(|old| (&old.subject, &old.space, &old.purpose) != (&subject, &space, &purpose));
        self.consents.push(ConsentChange {
            subject,
            space,
            purpose,
            revoked,
        });
        Ok(())
    }
}

fn set_mode(
    modes: &mut BTreeMap<String, BTreeMap<String, Mode>>,
    owner: String,
    tool: String,
    mode: Option<Mode>,
) -> Result<(), PolicyError> {
    check_name(&owner)?;
    check_name(&tool)?;
    let of_owner = modes.entry(owner.clone()).or_default();
    match mode {
        Some(mode) => of_owner.insert(tool, mode),
        None => of_owner.remove(&tool),
    };
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

/// The two kinds of purposes there are.
pub(crate) fn is_purpose(purpose: &str) -> bool {
    let tool = purpose
        .strip_prefix("tool:")
        .or_else(|| purpose.strip_prefix("pii:"));
    tool.is_some_and(|tool| {
        !tool.is_empty() && tool.len() <= NAME_BYTES_MAX && !tool.chars().any(is_unprintable)
    })
}

fn check_purpose(purpose: &str) -> Result<(), PolicyError> {
    if is_purpose(purpose) {
        return Ok(());
    }
    Err(PolicyError::Overlay(format!(
        "{purpose:?} is no purpose; write tool:<tool id> or pii:<tool id>"
    )))
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
            Change::RevokeConsent {
                subject,
                space,
                purpose,
            }
        } else {
            Change::GrantConsent {
                subject,
                space,
                purpose,
            }
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
        let set = |mode| Change::SetOrgMode {
            org: "home".into(),
            tool: "files:write_text".into(),
            mode,
        };
        overlay.apply(set(Some(Mode::Deny))).unwrap();
        assert_eq!(overlay.len(), 1);
        overlay.apply(set(None)).unwrap();
        assert_eq!(overlay, Overlay::default());
    }

    #[test]
    fn nonsense_is_refused_and_leaves_no_trace() {
        let mut overlay = Overlay::default();
        let bad = Change::SetOrgMode {
            org: "a\u{1b}".into(),
            tool: "x".into(),
            mode: Some(Mode::Allow),
        };
        assert!(overlay.apply(bad).unwrap_err().to_string().contains("printable"));
        assert!(overlay.is_empty());
    }
}
