//! Grants: approvals in advance, for a number of calls or until a time.
//!
//! A grant counts only after the cascade has demanded an approval. It weakens no rule; it spares a person the same question.

use effectd_contracts::{Digest, GrantId, Principal, Timestamp, ToolId};
use serde::{Deserialize, Serialize};

use crate::decision::{Decision, Verdict};

/// A grant.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub grant_id: GrantId,
    /// Whether it is active, or only requested.
    pub state: GrantState,
    /// The organisation in whose spaces it applies.
    pub org: String,
    /// The session that it covers; `None` covers the whole organisation.
    pub session: Option<String>,
    /// The tools: an id, `<source>.*`, `*.<action>`, or `*`.
    pub tool: String,
    /// The named command that it covers. Without one it covers no named command.
    pub command: Option<String>,
    /// How many calls it covers; `None` is any number.
    pub calls_max: Option<u32>,
    /// How many calls it has covered.
    #[serde(default)]
    pub calls_used: u32,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// When it was created or requested.
    pub created_at: Timestamp,
    /// Who created or requested it.
    pub created_by: Principal,
    /// Who activated it, if not `created_by`.
    pub activated_by: Option<Principal>,
    pub reason: Option<String>,
    /// The digest of the named command when the grant was made or requested. A command that the policy changed is not covered.
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

    /// The source of the tools that it covers; `*` for every source.
    pub fn integration(&self) -> &str {
        parts(&self.tool).0
    }

    /// The action that it covers; `*` for every action.
    pub fn action(&self) -> &str {
        parts(&self.tool).1
    }

    fn names(&self, tool: &ToolId) -> bool {
        let fits = |wanted: &str, found: &str| wanted == "*" || wanted == found;
        fits(self.integration(), tool.source()) && fits(self.action(), tool.action())
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

/// Whether a tool pattern is valid: an id, `<source>.*`, `*.<action>`, or `*`.
pub fn is_tool_pattern(text: &str) -> bool {
    let (source, action) = parts(text);
    let whole = |part: &str| part == "*" || !part.contains('*');
    // An alias has no action.
    let named = !source.is_empty() && (!action.is_empty() || !text.contains('*'));
    ToolId::new(text).is_ok() && text != "*.*" && named && whole(source) && whole(action)
}

/// The source and the action of a pattern.
fn parts(pattern: &str) -> (&str, &str) {
    match (pattern.strip_suffix(".*"), pattern.strip_prefix("*.")) {
        (Some(source), _) => (source, "*"),
        (None, Some(action)) => ("*", action),
        (None, None) if pattern == "*" => ("*", "*"),
        (None, None) => ToolId::split(pattern),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FAR: &str = "connector:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50";

    #[test]
    fn patterns_are_an_id_a_source_an_action_or_everything() {
        let far = format!("{FAR}.*");
        for good in ["files.write_text", "files.*", "*", "*.write_text", "*.issues.list-all", &far] {
            assert!(is_tool_pattern(good), "{good}");
        }
        for bad in ["", "*.", ".*", "*.*", "*.w*", "*w.x", "fil*", "fil*.x", "files.*x", "a**", " x"] {
            assert!(!is_tool_pattern(bad), "{bad}");
        }
    }

    #[test]
    fn a_grant_matches_source_and_action_each_as_a_whole() {
        let grant = |tool: &str| -> Grant {
            serde_json::from_value(serde_json::json!({
                "grant_id": "g", "state": "active", "org": "home", "tool": tool,
                "created_at": "2026-01-01T00:00:00Z", "created_by": "user://alice",
            }))
            .unwrap()
        };
        let issue = &*format!("{FAR}.issues.create");
        for (pattern, integration, action, covered) in [
            ("*", "*", "*", vec!["files.create", "linear.create", issue]),
            ("*.create", "*", "create", vec!["files.create", "linear.create"]),
            ("*.issues.create", "*", "issues.create", vec![issue]),
            ("linear.*", "linear", "*", vec!["linear.create"]),
            (&format!("{FAR}.*"), FAR, "*", vec![issue]),
            (issue, FAR, "issues.create", vec![issue]),
            ("linear.create", "linear", "create", vec!["linear.create"]),
            ("lin.*", "lin", "*", vec![]),
        ] {
            let grant = grant(pattern);
            assert_eq!((grant.integration(), grant.action()), (integration, action), "{pattern}");
            for tool in ["files.create", "linear.create", issue, "linear2.created"] {
                let wanted = covered.contains(&tool) || pattern == "*";
                assert_eq!(grant.names(&tool.parse().unwrap()), wanted, "{pattern} {tool}");
            }
        }
    }
}
