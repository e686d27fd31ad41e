//! The policy in JSON: the one in force, changes beside its files, and explanations of its decisions.

use effectd_actors::services::shadow::{Flip, Report};
use effectd_contracts::text::counted;
use effectd_contracts::{Band, Mode, Operation, PolicyList, SpaceId, SubjectId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A valid policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// Over the files and the changes beside them.
    pub digest: String,
    pub in_force: bool,
    /// One line, for people.
    pub summary: String,
    /// What is valid but probably a mistake; for a preview, also which bands become laxer.
    pub warnings: Vec<String>,
    /// The receipt that names the operator; left out if nothing changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// Spaces whose root is another folder than the known one: a reload accepts it, or has accepted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<RootChange>,
    /// Spaces whose root cannot be used, each with the reason and the remediation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<String>,
    /// Why the files on disk are not in force; left out if they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Pending approvals that the change makes unnecessary: their actions start.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: u64,
    /// Pending approvals whose actions the changed policy denies: they end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ended: u64,
}

pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The policy in force: its files, and the changes beside them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyFiles {
    /// Over the files and the changes beside them.
    pub digest: String,
    /// `policy.toml` first.
    pub files: Vec<PolicyFile>,
    /// Consents, modes and bands that commands have set.
    #[schema(value_type = Object)]
    pub overlay: serde_json::Value,
}

/// A file of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    pub name: String,
    pub text: String,
}

/// A space whose root is another folder than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootChange {
    pub space_id: String,
    /// The known folder: path, inode, device and file system.
    pub before: String,
    /// The present folder; left out if the first use of the space creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A change of the policy beside its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "change", deny_unknown_fields)]
pub enum PolicyChange {
    /// Records a consent.
    GrantConsent {
        #[schema(value_type = String)]
        subject: SubjectId,
        #[schema(value_type = String)]
        space: SpaceId,
        /// `tool:<id>`.
        purpose: String,
    },
    /// Revokes a consent.
    RevokeConsent {
        #[schema(value_type = String)]
        subject: SubjectId,
        #[schema(value_type = String)]
        space: SpaceId,
        /// `tool:<id>`.
        purpose: String,
    },
    /// Sets an organisation's mode of a tool; without a mode, that of the files applies again.
    SetOrgMode {
        org: String,
        tool: String,
        /// `allow`, `require_approval` or `deny`.
        #[schema(value_type = Option<String>)]
        mode: Option<Mode>,
    },
    /// Makes a space stricter than its files; without a band, that of the files applies again.
    SetBand {
        #[schema(value_type = String)]
        space: SpaceId,
        /// `GREEN`, `AMBER`, `RED` or `BLACK`.
        #[schema(value_type = Option<String>)]
        band: Option<Band>,
    },
    /// Adds an entry to a list of the policy, or strikes it out; without `allowed`, the files apply again.
    SetEntry {
        /// `roles`, `hosts`, `commands` or `cross_space`.
        #[schema(value_type = String)]
        list: PolicyList,
        /// Whose roles; only for these.
        #[schema(value_type = Option<String>)]
        subject: Option<SubjectId>,
        /// The role, host, program or tool, without `*`.
        entry: String,
        allowed: Option<bool>,
    },
    /// Takes all changes back: the files alone count again.
    Clear {},
}

impl PolicyChange {
    /// The operation that its receipt records.
    pub(crate) fn operation(&self) -> Operation {
        match self.clone() {
            PolicyChange::GrantConsent { subject, space, purpose } => {
                Operation::GrantConsent { subject, space, purpose }
            }
            PolicyChange::RevokeConsent { subject, space, purpose } => {
                Operation::RevokeConsent { subject, space, purpose }
            }
            PolicyChange::SetOrgMode { org, tool, mode } => Operation::SetMode { org, tool, mode },
            PolicyChange::SetBand { space, band } => Operation::SetBand { space, band },
            PolicyChange::SetEntry { list, subject, entry, allowed } => {
                Operation::SetEntry { list, subject, entry, allowed }
            }
            PolicyChange::Clear {} => Operation::ClearOverlay {},
        }
    }
}

/// A candidate policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShadowFiles {
    /// `policy.toml`, and any number of `*.cedar`.
    pub files: Vec<PolicyFile>,
}

/// The candidate policy that judges each live decision beside the policy in force, and decides nothing.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ShadowView {
    /// Whether there is a candidate.
    pub on: bool,
    /// Over the candidate's files.
    pub digest: Option<String>,
    /// When it was started.
    pub since: Option<String>,
    /// Why it cannot judge; left out if it can.
    pub fault: Option<String>,
    /// Since when the figures below count: a restart of the daemon begins again.
    pub counted_since: Option<String>,
    /// Decisions that the candidate has judged.
    pub decisions: u64,
    /// Decisions with the same verdict.
    pub same: u64,
    pub flips: u64,
    /// Decisions that it could not judge.
    pub errors: u64,
    /// The last error.
    pub error: Option<String>,
    /// Flips that are alike, the most frequent first.
    pub groups: Vec<ShadowGroup>,
    /// The last flips, newest first.
    pub last: Vec<ShadowFlip>,
    /// The receipt that names the operator; left out if nothing changed.
    pub receipt_id: Option<String>,
}

/// Flips of one tool with the same verdicts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShadowGroup {
    pub tool_id: String,
    /// The verdict of the policy in force: `permit`, `deny by consent` …
    pub from: String,
    /// The verdict of the candidate.
    pub to: String,
    pub count: u64,
}

/// A decision that would be another one under the candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShadowFlip {
    pub at: String,
    pub action_id: String,
    pub tool_id: String,
    /// The verdict of the policy in force.
    pub from: String,
    /// The verdict of the candidate.
    pub to: String,
    /// The candidate's rule.
    pub rule: String,
    /// The candidate's reasons; empty for a permit.
    pub why: String,
}

impl ShadowView {
    pub(crate) fn of(report: Option<Report>) -> Self {
        let Some(Report { digest, since, fault, figures }) = report else {
            return Self::default();
        };
        let group = |((tool_id, from, to), count)| ShadowGroup { tool_id, from, to, count };
        let mut groups: Vec<_> = figures.groups.into_iter().map(group).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        let flip = |Flip { at, action_id, tool_id, from, to, rule, why }| ShadowFlip {
            at: at.to_string(),
            action_id: action_id.to_string(),
            tool_id,
            from,
            to,
            rule,
            why,
        };
        Self {
            on: true,
            digest: Some(digest.to_string()),
            since: Some(since.to_string()),
            fault,
            counted_since: Some(figures.since.to_string()),
            decisions: figures.same + figures.flips + figures.errors,
            same: figures.same,
            flips: figures.flips,
            errors: figures.errors,
            error: figures.error,
            groups,
            last: figures.last.into_iter().map(flip).collect(),
            receipt_id: None,
        }
    }
}

/// Past decisions under another policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplayView {
    /// Decisions that were made again.
    pub total: u64,
    /// Decisions with the same verdict.
    pub same: u64,
    pub flips: u64,
    /// Decisions whose receipts do not say enough.
    pub unknowable: u64,
    /// All that are not the same, in the order of the receipts.
    pub changes: Vec<ReplayChange>,
    /// The `after` that goes on; left out at the end of the receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A decision that would be another one, or cannot be made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayChange {
    pub receipt_id: String,
    pub action_id: String,
    pub tool_id: String,
    /// The recorded verdict.
    pub from: String,
    /// The verdict of the other policy; `unknowable` if it has none.
    pub to: String,
    /// The other policy's rule; empty for `unknowable`.
    pub rule: String,
    /// The other policy's reasons, or why it has no verdict; empty for a permit.
    pub why: String,
}

impl std::fmt::Display for ReplayView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { total, same, flips, unknowable, .. } = self;
        let total = counted(*total, "decision");
        write!(f, "{total}: {same} stay, {flips} flip, {unknowable} unknowable")
    }
}

impl ReplayView {
    /// Adds what follows.
    pub fn add(&mut self, later: Self) {
        let Self { total, same, flips, unknowable, changes, next } = later;
        self.total += total;
        self.same += same;
        self.flips += flips;
        self.unknowable += unknowable;
        self.changes.extend(changes);
        self.next = next;
    }
}

/// Why the policy decides as it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The verdict of the policy in force: `permit`, `deny` …
    pub verdict: String,
    /// Every gate, what it saw and what has to change, for people.
    pub text: String,
    pub policy_digest: String,
    /// The receipt was decided under another policy; this is the verdict of the one in force on the same facts.
    pub policy_changed: bool,
}
