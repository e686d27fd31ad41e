//! Modes by owner (an organisation or an automation) and tool.

use std::collections::{BTreeMap, HashMap};

use effectd_contracts::{Mode, Timestamp, ToolId};

use super::{OVERLAY_RULE, policy_rule};
use crate::error::PolicyError;
use crate::overlay::SetMode;

/// All modes of one level of the cascade.
#[derive(Debug, Clone, Default)]
pub(crate) struct Modes {
    files: HashMap<String, HashMap<String, ModeRule>>,
    overlay: HashMap<String, HashMap<String, SetMode>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ModeRule {
    mode: Mode,
    /// `None` for the overlay.
    line: Option<u32>,
}

/// The key of a tool's mode, or of one named command: `command.run cargo-fmt`.
pub fn mode_key(tool: &str, command: Option<&str>) -> String {
    command.map_or_else(|| tool.to_owned(), |command| format!("{tool} {command}"))
}

/// The tool ids that a key may mean: the key itself, or `<source>:<action>` with a dot. The key of a named command has one
/// spelling.
fn tool_ids(key: &str) -> impl Iterator<Item = String> {
    let view = Some(key).filter(|key| !key.contains(' ')).and_then(ToolId::from_colon);
    std::iter::once(key.to_owned()).chain(view)
}

impl Modes {
    /// Adds a mode of the files. Fails with the earlier mode if the tool has a different one under its other spelling.
    pub(crate) fn add(&mut self, owner: &str, key: &str, mode: Mode, line: u32) -> Result<(), Mode> {
        let tools = self.files.entry(owner.to_owned()).or_default();
        for id in tool_ids(key) {
            if let Some(other) = tools.insert(id, ModeRule { mode, line: Some(line) })
                && other.mode != mode
            {
                return Err(other.mode);
            }
        }
        Ok(())
    }

    /// Adds an owner without modes.
    pub(crate) fn introduce(&mut self, owner: &str) {
        self.files.entry(owner.to_owned()).or_default();
    }

    /// Whether the files name this owner.
    pub(crate) fn knows(&self, owner: &str) -> bool {
        self.files.contains_key(owner)
    }

    /// The owners that the files name, in order.
    pub(crate) fn owners(&self) -> Vec<&str> {
        let mut owners: Vec<&str> = self.files.keys().map(String::as_str).collect();
        owners.sort_unstable();
        owners
    }

    /// Applies the overlay. It replaces the modes of the files, except a deny.
    pub(crate) fn with_changes(
        &self,
        changes: &BTreeMap<String, BTreeMap<String, SetMode>>,
    ) -> Result<Self, PolicyError> {
        let mut all = self.clone();
        for (owner, modes) in changes {
            let of_files = all.files.get(owner);
            let tools = all.overlay.entry(owner.clone()).or_default();
            for (key, mode) in modes {
                for id in tool_ids(key) {
                    let rule = of_files.and_then(|rules| rules.get(&id));
                    if rule.is_some_and(|rule| rule.mode == Mode::Deny) {
                        continue;
                    }
                    if tools.insert(id, *mode).is_some_and(|old| old != *mode) {
                        let message = format!("{owner:?} has two modes for {key:?}, in two spellings");
                        return Err(PolicyError::Overlay(message));
                    }
                }
            }
        }
        Ok(all)
    }

    /// The mode of the named command, if it has its own, or of the tool. A deny of the tool denies its commands.
    pub(crate) fn get(
        &self,
        owner: &str,
        tool: &str,
        command: Option<&str>,
        now: Timestamp,
    ) -> Option<(Mode, String)> {
        let of_tool = self.rule(owner, tool, now);
        let own = command.and_then(|_| self.rule(owner, &mode_key(tool, command), now));
        let rule = own.filter(|_| of_tool.is_none_or(|rule| rule.mode != Mode::Deny)).or(of_tool)?;
        let name = rule.line.map_or_else(|| OVERLAY_RULE.to_owned(), policy_rule);
        Some((rule.mode, name))
    }

    /// Whether one has ended in this time.
    pub(crate) fn has_ended(&self, since: Timestamp, now: Timestamp) -> bool {
        self.overlay.values().flat_map(HashMap::values).any(|set| set.has_ended(since, now))
    }

    /// By command, until its end; otherwise by the files.
    fn rule(&self, owner: &str, key: &str, now: Timestamp) -> Option<ModeRule> {
        let set = self.overlay.get(owner).and_then(|modes| modes.get(key));
        let set = set.and_then(|set| set.at(now)).map(|mode| ModeRule { mode, line: None });
        set.or_else(|| self.files.get(owner)?.get(key).copied())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_source_may_hold_a_colon() {
        const FAR: &str = "connector:0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50";
        let mut modes = Modes::default();
        modes.add("home", &format!("{FAR}:search_docs"), Mode::Allow, 1).unwrap();
        // The last colon does not separate: the mode is of no tool of a source `<FAR>:ns`.
        modes.add("home", &format!("{FAR}:ns:get"), Mode::Allow, 5).unwrap();
        modes.add("home", &format!("{FAR}.ns:get"), Mode::Allow, 6).unwrap();
        modes.add("home", "files:write_text", Mode::Deny, 2).unwrap();
        modes.add("home", "github:repos.list", Mode::Deny, 3).unwrap();
        let mode = |tool: &str| modes.get("home", tool, None, Timestamp::UNIX_EPOCH).map(|(mode, _)| mode);
        assert_eq!(mode(&format!("{FAR}.search_docs")), Some(Mode::Allow));
        assert_eq!(mode(&format!("{FAR}.ns:get")), Some(Mode::Allow));
        assert_eq!((mode(&format!("{FAR}:ns.get")), mode(&format!("{FAR}.ns.get"))), (None, None));
        assert_eq!(mode("files.write_text"), Some(Mode::Deny));
        assert_eq!(mode("github.repos.list"), Some(Mode::Deny));
        assert_eq!(mode("files.read_text"), None);
        assert_eq!(modes.add("home", "files.write_text", Mode::Allow, 4), Err(Mode::Deny));
    }

    #[test]
    fn the_overlay_replaces_everything_but_a_deny_until_it_ends() {
        let mut modes = Modes::default();
        modes.add("home", "a.x", Mode::Deny, 1).unwrap();
        modes.add("home", "a.y", Mode::RequireApproval, 2).unwrap();
        let until = Timestamp::from_second(60).unwrap();
        let (lasting, ending) =
            (SetMode::Lasting(Mode::Allow), SetMode::Ending { mode: Mode::Allow, until, then: None });
        let changes = [("a:x", lasting), ("a:y", ending), ("a:z", ending)];
        let changes = BTreeMap::from(changes.map(|(key, mode)| (key.to_owned(), mode)));
        let all = modes.with_changes(&BTreeMap::from([("home".to_owned(), changes)])).unwrap();
        let at = |tool: &str, second| {
            let rule = all.get("home", tool, None, Timestamp::from_second(second).unwrap());
            rule.map(|(mode, rule)| (mode.as_str(), rule))
        };
        let by = |mode, rule: &str| Some((mode, rule.to_owned()));
        assert_eq!(at("a.x", 0), by("deny", "policy.toml:1"));
        assert_eq!((at("a.y", 59), at("a.z", 59)), (by("allow", "overlay"), by("allow", "overlay")));
        assert_eq!((at("a.y", 60), at("a.z", 60)), (by("require_approval", "policy.toml:2"), None));
    }

    #[test]
    fn the_mode_of_a_command_is_its_own_unless_the_tool_is_denied() {
        let mut modes = Modes::default();
        modes.add("home", "command.run a:b", Mode::Allow, 1).unwrap();
        let mode = |modes: &Modes, command| {
            modes.get("home", "command.run", command, Timestamp::UNIX_EPOCH).map(|(mode, _)| mode)
        };
        assert_eq!(mode(&modes, Some("a:b")), Some(Mode::Allow));
        assert_eq!((mode(&modes, Some("a.b")), mode(&modes, None)), (None, None));
        modes.add("home", "command.run", Mode::RequireApproval, 2).unwrap();
        assert_eq!(mode(&modes, Some("a:b")), Some(Mode::Allow));
        assert_eq!(mode(&modes, Some("c")), Some(Mode::RequireApproval));
        let deny = BTreeMap::from([("command.run".to_owned(), SetMode::Lasting(Mode::Deny))]);
        let denied = modes.with_changes(&BTreeMap::from([("home".to_owned(), deny)])).unwrap();
        assert_eq!(mode(&denied, Some("a:b")), Some(Mode::Deny));
    }
}
