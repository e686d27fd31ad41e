//! Pre-approvals with a budget. They are asked here and nowhere else, and only after the cascade has said that a person
//! must be asked: a grant weakens no rule, it only spares a person the same question again.

use effectd_contracts::{GrantId, Principal, Timestamp, ToolId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::{Decision, Verdict};

/// A pre-approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Names it.
    pub grant_id: GrantId,
    /// Whether it is in force, or only asked for.
    pub state: GrantState,
    /// The organisation in whose spaces it holds.
    pub org: String,
    /// The session that it is for; none is the whole organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The tools: an id, `<source>.*`, or `*`.
    pub tool: String,
    /// How many calls it is good for; none is any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_max: Option<u32>,
    /// How many it has been used for.
    #[serde(default)]
    pub calls_used: u32,
    /// Until when it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// When it was made or asked for.
    pub created_at: Timestamp,
    /// Who asked for it, or made it.
    pub created_by: Principal,
    /// Who put it in force, if that was somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_by: Option<Principal>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a grant is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantState {
    /// Somebody asked for it; it stands in for nobody.
    Requested,
    /// It is in force.
    Active,
}

/// What a pre-approval is looked for.
#[derive(Debug, Clone, Copy)]
pub struct GrantAsk<'a> {
    pub org: &'a str,
    pub session: &'a str,
    pub tool: &'a ToolId,
    pub now: Timestamp,
}

impl Grant {
    /// Whether it is for everything of a source or for everything: only administrators make such.
    pub fn is_wide(&self) -> bool {
        self.session.is_none() || self.tool.contains('*')
    }

    /// Whether it can never be used again.
    pub fn is_over(&self, now: Timestamp) -> bool {
        let used_up = self.calls_max.is_some_and(|most| self.calls_used >= most);
        self.revoked_at.is_some() || used_up || self.expires_at.is_some_and(|end| end <= now)
    }

    fn names(&self, tool: &ToolId) -> bool {
        match self.tool.strip_suffix('*') {
            None => self.tool == tool.as_str(),
            Some("") => true,
            Some(source) => tool
                .as_str()
                .strip_prefix(source)
                .is_some_and(|action| !action.is_empty()),
        }
    }

    /// Whether it stands in for a person here. The decision must have asked for one, and must allow a stand-in.
    pub fn covers(&self, decision: &Decision, ask: &GrantAsk<'_>) -> bool {
        matches!(decision.verdict, Verdict::NeedsApproval { .. })
            && decision.grant_allowed
            && self.state == GrantState::Active
            && !self.is_over(ask.now)
            && self.org == ask.org
            && self
                .session
                .as_deref()
                .is_none_or(|session| session == ask.session)
            && self.names(ask.tool)
    }
}

/// Whether a pattern of tools can be understood: an id, `<source>.*`, or `*`.
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
