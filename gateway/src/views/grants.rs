//! Grants in JSON.

use effectd_actors::{Grant, GrantState};
use effectd_contracts::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A grant: an approval given in advance.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantView {
    pub grant_id: String,
    /// `requested`, `active`, `revoked`, `expired` or `used_up`.
    pub state: String,
    /// The organisation whose spaces it covers.
    pub org: String,
    /// The session that it covers; left out for the whole organisation.
    pub session: Option<String>,
    /// The tools that it covers: an id, `<source>.*`, `*.<action>`, or `*`.
    pub tool: String,
    /// The source of these tools; `*` for every source.
    pub integration: String,
    /// The action of these tools; `*` for every action.
    pub action: String,
    /// The named command that it covers. A grant without one covers no named command.
    pub command: Option<String>,
    /// How many calls it covers.
    pub calls_max: Option<u32>,
    pub calls_used: u32,
    pub expires_at: Option<String>,
    pub created_at: String,
    /// Who requested or created it.
    pub created_by: String,
    /// Who activated it, if that was somebody else.
    pub activated_by: Option<String>,
    pub reason: Option<String>,
}

/// A page of grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantList {
    /// Oldest first.
    pub grants: Vec<GrantView>,
    /// The `after` of the next page; left out on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What a request for a grant would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantWould {
    /// The grant would be active at once, since you may create it; otherwise it waits for somebody who may.
    pub in_force: bool,
    /// Pending approvals that the active grant makes unnecessary: their actions start.
    #[serde(default)]
    pub released: u64,
}

/// A grant to create or to request.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantBody {
    /// The organisation whose spaces it covers.
    pub org: String,
    /// The session; left out for the whole organisation. A planner without a session has `agent:<subject>`.
    pub session: Option<String>,
    /// The tools: an id, `<source>.*`, `*.<action>`, or `*`.
    pub tool: String,
    /// The name of one command in the policy; required for the tool `command.run`, and for no other.
    pub command: Option<String>,
    pub calls_max: Option<u32>,
    pub lasts_s: Option<u64>,
    pub reason: Option<String>,
}

/// The state of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GrantWord {
    Requested,
    Active,
    Revoked,
    Expired,
    UsedUp,
}

impl GrantWord {
    pub(crate) fn of(grant: &Grant, now: Timestamp) -> Self {
        match grant.state {
            _ if grant.revoked_at.is_some() => Self::Revoked,
            _ if grant.expires_at.is_some_and(|end| end <= now) => Self::Expired,
            _ if grant.is_over(now) => Self::UsedUp,
            GrantState::Requested => Self::Requested,
            GrantState::Active => Self::Active,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Active => "active",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::UsedUp => "used_up",
        }
    }
}

impl GrantView {
    /// A grant, as it is at this time.
    pub(crate) fn of(grant: &Grant, now: Timestamp) -> Self {
        Self {
            grant_id: grant.grant_id.to_string(),
            state: GrantWord::of(grant, now).as_str().to_owned(),
            org: grant.org.clone(),
            session: grant.session.clone(),
            tool: grant.tool.clone(),
            integration: grant.integration().to_owned(),
            action: grant.action().to_owned(),
            command: grant.command.clone(),
            calls_max: grant.calls_max,
            calls_used: grant.calls_used,
            expires_at: grant.expires_at.map(|end| end.to_string()),
            created_at: grant.created_at.to_string(),
            created_by: grant.created_by.to_string(),
            activated_by: grant.activated_by.as_ref().map(ToString::to_string),
            reason: grant.reason.clone(),
        }
    }
}
