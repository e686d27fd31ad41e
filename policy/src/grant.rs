//! Grants: approvals in advance, for a number of calls or until a time.
//!
//! A grant counts only after the cascade has demanded an approval. It weakens no rule; it spares a person the same question.

use effectd_contracts::{Digest, GrantId, Principal, Timestamp, ToolId};
use serde::{Deserialize, Serialize};

use crate::decision::{Decision, Verdict};

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub grant_id: GrantId,
    /// Whether it is active, or only requested.
    pub state: GrantState,
    /// The organisation in whose spaces it applies.
    pub org: String,
    /// The session that it covers; `None` covers the whole organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The tools: an id, `<source>.*`, or `*`.
    pub tool: String,
    /// The named command that it covers. Without one it covers no named command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How many calls it covers; `None` is any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_max: Option<u32>,
    /// How many calls it has covered.
    #[serde(default)]
    pub calls_used: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// When it was created or requested.
    pub created_at: Timestamp,
    /// Who created or requested it.
    pub created_by: Principal,
    /// Who activated it, if not `created_by`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_by: Option<Principal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The digest of the named command when the grant was made or requested. A command that the policy changed is not covered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_digest: Option<Digest>,
}

/// Whether a grant is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantState {
    /// Requested; it covers nothing yet.
    Requested,
    Active,
}

/// The call for which a grant is looked up.
#[derive(Debug, Clone, Copy)]
pub struct GrantAsk<'a> {
    pub org: &'a str,
    pub session: &'a str,
    pub tool: &'a ToolId,
    pub now: Timestamp,
}

impl Grant {
    /// Whether it cannot cover calls any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        let used_up = self.calls_max.is_some_and(|most| self.calls_used >= most);
        self.revoked_at.is_some() || used_up || self.expires_at.is_some_and(|end| end <= now)
    }

    fn names(&self, tool: &ToolId) -> bool {
        match self.tool.strip_suffix('*') {
            None => self.tool == tool.as_str(),
            Some("") => true,
            Some(source) => tool.as_str().strip_prefix(source).is_some_and(|action| !action.is_empty()),
        }
    }

    /// Whether it replaces the approval of this call. The decision must demand an approval and allow a grant.
    pub fn covers(&self, decision: &Decision, ask: &GrantAsk<'_>) -> bool {
        matches!(decision.verdict, Verdict::NeedsApproval { .. })
            && decision.grant_allowed
            && self.state == GrantState::Active
            && !self.is_over(ask.now)
            && self.org == ask.org
            && self.session.as_deref().is_none_or(|session| session == ask.session)
            && self.names(ask.tool)
            && self.command.as_ref() == decision.command.as_ref().map(|command| &command.name)
            && self.command_digest == decision.command.as_ref().map(|command| command.digest())
    }
}

/// Whether a tool pattern is valid: an id, `<source>.*`, or `*`.
pub fn is_tool_pattern(text: &str) -> bool {
    let stem = text.strip_suffix('*').unwrap_or(text);
    let plain = !stem.contains('*') && ToolId::new(text).is_ok();
    plain && (stem.is_empty() || stem == text || stem.ends_with('.'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn patterns_are_an_id_a_source_or_everything() {
        for good in ["files.write_text", "files.*", "*"] {
            assert!(is_tool_pattern(good), "{good}");
        }
        for bad in ["", "*.write_text", "fil*", "files.*x", "a**", " x"] {
            assert!(!is_tool_pattern(bad), "{bad}");
        }
    }
}
