//! Named commands: calls of `command.run` that may happen without a person, because the sandbox lets them change only what they
//! declare.
//!
//! The words of a call do not make it safe: a configuration file in the space can make almost any program execute another. They
//! decide which confinement the call gets.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use effectd_contracts::tool::is_path_name;
use effectd_contracts::{COMMAND_TOOL, Digest, ToolId, canonical};
use serde_json::{Map, Value};

use super::{check_count, check_name};
use crate::document::CommandRule;
use crate::error::{Faults, PolicyError};
use crate::limits::{
    COMMAND_MEMORY_MIB_MAX, COMMAND_MEMORY_MIB_MIN, COMMAND_PATHS_MAX, COMMAND_TIMEOUT_S_MAX,
    COMMAND_WORDS_MAX,
};
use crate::source::Lines;

/// One word without a hyphen at its beginning.
const ONE: &str = "*";
/// Any number of such words, at the end.
const REST: &str = "**";

/// A command that the policy names: its confinement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCommand {
    pub name: String,
    argv: Vec<String>,
    /// Paths beneath the root of the space that it may change; empty if it only reads.
    pub writes: Vec<PathBuf>,
    /// Paths beneath the root of the space where its caches are mounted.
    pub caches: Vec<PathBuf>,
    /// Folders of the host whose programs it may execute.
    pub programs: Vec<PathBuf>,
    pub timeout_ms: u64,
    pub memory_bytes: u64,
    pub(crate) line: u32,
}

impl NamedCommand {
    fn compile(name: &str, rule: &CommandRule, lines: &Lines<'_>) -> Result<Self, PolicyError> {
        let at = |field| ["commands", name, field];
        let invalid = |field, message: String| Err(lines.invalid(&at(field), message));
        check_name(name, lines, &at("argv"))?;
        check_count(rule.argv.len(), COMMAND_WORDS_MAX, lines, &at("argv"))?;
        for (index, word) in rule.argv.iter().enumerate() {
            check_name(word, lines, &at("argv"))?;
            let stands_for = match word.as_str() {
                ONE => index > 0,
                REST => index > 0 && index + 1 == rule.argv.len(),
                word => !word.contains('*'),
            };
            if !stands_for {
                let message = format!(
                    "{word:?}: `*` stands alone for one word after the program, and `**` for all words at the end; write every \
                     other word in full"
                );
                return invalid("argv", message);
            }
        }
        if rule.argv.is_empty() {
            return invalid("argv", format!("{name:?} needs a program: argv = [\"git\", \"status\"]"));
        }
        let (writes, caches) = (&rule.writes, &rule.caches);
        for (field, list) in [("writes", writes), ("caches", caches), ("programs", &rule.programs)] {
            check_count(list.len(), COMMAND_PATHS_MAX, lines, &at(field))?;
            list.iter().try_for_each(|path| check_name(path, lines, &at(field)))?;
        }
        for (field, list) in [("writes", writes), ("caches", caches)] {
            if let Some(path) = list.iter().find(|path| !is_inside(path)) {
                let message = format!("{path:?} is no path beneath the space: write `src` or `docs/api`");
                return invalid(field, message);
            }
        }
        if let Some(path) = rule.programs.iter().find(|path| !is_plain_absolute(path)) {
            let message = format!("{path:?} is no absolute path without `.` and `..`");
            return invalid("programs", message);
        }
        if let Some(path) = rule.programs.iter().find(|path| path.contains(':')) {
            let message =
                format!("{path:?} has a colon, which separates the folders in PATH: rename the folder");
            return invalid("programs", message);
        }
        let all: Vec<_> = writes.iter().chain(caches).map(Path::new).collect();
        let nested = |one: &&Path| all.iter().filter(|other| one.starts_with(other)).count() > 1;
        if let Some(path) = all.iter().copied().find(nested) {
            let message = format!("{path:?} lies in another path of writes or caches; name each once");
            return invalid("writes", message);
        }
        if !(1..=COMMAND_TIMEOUT_S_MAX).contains(&rule.timeout_s) {
            let message = format!("timeout_s must be from 1 to {COMMAND_TIMEOUT_S_MAX}");
            return invalid("timeout_s", message);
        }
        if !(COMMAND_MEMORY_MIB_MIN..=COMMAND_MEMORY_MIB_MAX).contains(&rule.memory_mib) {
            let message =
                format!("memory_mib must be from {COMMAND_MEMORY_MIB_MIN} to {COMMAND_MEMORY_MIB_MAX}");
            return invalid("memory_mib", message);
        }
        let paths = |list: &[String]| list.iter().map(PathBuf::from).collect();
        Ok(Self {
            name: name.to_owned(),
            argv: rule.argv.clone(),
            writes: paths(writes),
            caches: paths(caches),
            programs: paths(&rule.programs),
            timeout_ms: rule.timeout_s * 1_000,
            memory_bytes: rule.memory_mib * 1_048_576,
            line: lines.line(&["commands", name]),
        })
    }

    /// The digest of what it executes and may change: a grant and a cache are for one such command.
    pub fn digest(&self) -> Digest {
        // Paths of a TOML document, which serde_json always writes.
        let value = serde_json::to_value((&self.argv, &self.writes, &self.caches, &self.programs));
        canonical::digest(&value.unwrap_or_default())
    }

    fn matches(&self, argv: &[&str]) -> bool {
        let (rest, fixed) = match self.argv.split_last() {
            Some((last, fixed)) if last == REST => (true, fixed),
            Some(_) | None => (false, self.argv.as_slice()),
        };
        let enough = if rest { argv.len() >= fixed.len() } else { argv.len() == fixed.len() };
        let fits = |(pattern, word): (&String, &&str)| match pattern.as_str() {
            ONE => is_argument(word),
            literal => literal == *word,
        };
        enough && fixed.iter().zip(argv).all(fits) && argv[fixed.len()..].iter().all(|word| is_argument(word))
    }
}

/// Whether a word may stand where the policy has a pattern. It is no option (`-c`), no response file (`@options`), no toolchain
/// (`+nightly`) and no absolute path, and no part of it is `..`.
fn is_argument(word: &str) -> bool {
    let begins = word.chars().next().is_some_and(|c| c.is_alphanumeric() || "._".contains(c));
    begins && !word.chars().any(char::is_control) && !word.split('/').any(|part| part == "..")
}

fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_))) && !path.ends_with('/')
}

fn is_plain_absolute(path: &str) -> bool {
    let rest = path.strip_prefix('/');
    rest.is_some_and(|rest| is_inside(rest) && !rest.split('/').any(|part| part.is_empty() || part == "."))
}

/// Whether a mode may have this key: a tool, or `command.run` and the name of a known command.
pub(super) fn is_mode_key(key: &str, knows: impl Fn(&str) -> bool) -> bool {
    key.split_once(' ').is_none_or(|(tool, name)| tool == COMMAND_TOOL && knows(name))
}

/// All named commands, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Commands(BTreeMap<String, Arc<NamedCommand>>);

impl Commands {
    pub(crate) fn compile(
        rules: &BTreeMap<String, CommandRule>,
        lines: &Lines<'_>,
        faults: &mut Faults,
    ) -> Self {
        let compiled = rules.iter().filter_map(|(name, rule)| {
            let command = faults.keep(NamedCommand::compile(name, rule, lines))?;
            Some((name.clone(), Arc::new(command)))
        });
        Self(compiled.collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<NamedCommand>> {
        self.0.get(name)
    }

    /// The first command, in the order of names, that covers these words.
    pub(crate) fn covering(&self, argv: &[&str]) -> Option<&Arc<NamedCommand>> {
        self.0.values().find(|command| command.matches(argv))
    }

    pub(crate) fn is_mode_key(&self, key: &str) -> bool {
        is_mode_key(key, |name| self.get(name).is_some())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamedCommand> {
        self.0.values().map(AsRef::as_ref)
    }

    /// The name of the first command, in the order of names, that covers the call. A call with an input for the program is covered
    /// by none: to many programs their input is a program.
    pub(crate) fn matching(&self, tool: &ToolId, params: &Map<String, Value>) -> Option<String> {
        if tool.as_str() != COMMAND_TOOL {
            return None;
        }
        let is_bare = |(name, value): (&String, &Value)| {
            name == "argv" || name == "space_id" || is_path_name(name) || value == ""
        };
        let argv = params.get("argv")?.as_array()?;
        let argv: Vec<&str> = argv.iter().map(Value::as_str).collect::<Option<_>>()?;
        let found = self.covering(&argv);
        found.filter(|_| params.iter().all(is_bare)).map(|command| command.name.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn covers(argv: &[&str], call: &[&str]) -> bool {
        let command = NamedCommand {
            name: "c".to_owned(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            writes: Vec::new(),
            caches: Vec::new(),
            programs: Vec::new(),
            timeout_ms: 1,
            memory_bytes: 1,
            line: 1,
        };
        command.matches(call)
    }

    #[test]
    fn words_are_exact_and_patterns_take_no_options() {
        let status = ["git", "status"];
        assert!(covers(&status, &["git", "status"]));
        for call in [
            &["git"][..],
            &["git", "status", "--short"],
            &["git", "-c", "core.pager=evil", "status"],
            &["/usr/bin/git", "status"],
            &["git", "Status"],
            &["git", "status "],
            &[],
        ] {
            assert!(!covers(&status, call), "{call:?}");
        }
        let show = ["git", "show", "*"];
        for word in ["HEAD", "v1.0", "a/b.rs", "_x", "naïve", "tests/t.py::T::t"] {
            assert!(covers(&show, &["git", "show", word]), "{word}");
        }
        for word in
            ["", "-p", "--ext-diff", "@options", "+nightly", "/etc/passwd", "../x", "a/../../x", "a\nb", "*"]
        {
            assert!(!covers(&show, &["git", "show", word]), "{word:?}");
        }
        assert!(!covers(&show, &["git", "show"]) && !covers(&show, &["git", "show", "a", "b"]));
        let test = ["cargo", "test", "--", "**"];
        for call in [&["cargo", "test", "--"][..], &["cargo", "test", "--", "one", "two"]] {
            assert!(covers(&test, call), "{call:?}");
        }
        for call in [&["cargo", "test"][..], &["cargo", "test", "--", "one", "--exact"]] {
            assert!(!covers(&test, call), "{call:?}");
        }
    }

    #[test]
    fn only_bare_calls_of_the_one_tool_are_covered() {
        let toml = "version = 1\n[commands.all]\nargv = [\"ls\", \"**\"]\n";
        let source = crate::source::Source::new(toml, []);
        let (document, lines) = crate::tables::read(&source).unwrap();
        let mut faults = Faults::default();
        let commands = Commands::compile(&document.commands, &lines, &mut faults);
        faults.result().unwrap();
        let matching = |tool: &str, params: Value| {
            commands.matching(&tool.parse().unwrap(), params.as_object().unwrap())
        };
        let found = matching(
            COMMAND_TOOL,
            serde_json::json!({ "argv": ["ls", "a"], "stdin": "", "directory_path": "workspace/b" }),
        );
        assert_eq!(found.as_deref(), Some("all"));
        for (tool, params) in [
            ("other.run", serde_json::json!({ "argv": ["ls"] })),
            (COMMAND_TOOL, serde_json::json!({ "argv": ["ls"], "stdin": "x" })),
            (COMMAND_TOOL, serde_json::json!({ "argv": ["ls", 1] })),
            (COMMAND_TOOL, serde_json::json!({ "argv": "ls" })),
            (COMMAND_TOOL, serde_json::json!({})),
        ] {
            assert_eq!(matching(tool, params.clone()), None, "{tool} {params}");
        }
    }

    #[test]
    fn a_faulty_command_is_refused_with_its_reason() {
        for (rule, why) in [
            ("argv = []", "needs a program"),
            ("argv = [\"*\"]", "stands alone"),
            ("argv = [\"ls\", \"**\", \"a\"]", "stands alone"),
            ("argv = [\"ls\", \"*.rs\"]", "in full"),
            ("argv = [\"ls\"]\nwrites = [\"../x\"]", "beneath the space"),
            ("argv = [\"ls\"]\nwrites = [\".\"]", "beneath the space"),
            ("argv = [\"ls\"]\nwrites = [\"a\"]\ncaches = [\"a/b\"]", "lies in another"),
            ("argv = [\"ls\"]\nwrites = [\"a\", \"a\"]", "lies in another"),
            ("argv = [\"ls\"]\ncaches = [\"/a\"]", "beneath the space"),
            ("argv = [\"ls\"]\nprograms = [\"opt\"]", "no absolute path"),
            ("argv = [\"ls\"]\nprograms = [\"/opt/../etc\"]", "no absolute path"),
            ("argv = [\"ls\"]\nprograms = [\"/opt/a:b\"]", "has a colon"),
            ("argv = [\"ls\"]\ntimeout_s = 601", "from 1 to 600"),
            ("argv = [\"ls\"]\nmemory_mib = 1", "from 16"),
            ("argv = [\"ls\"]\nnetwork = \"all\"", "none"),
        ] {
            let toml = format!("version = 1\n[commands.c]\n{rule}\n");
            let source = crate::source::Source::new(toml, []);
            let overlay = crate::overlay::Overlay::default();
            let error = crate::policy::Policy::compile(&source, &overlay).unwrap_err().to_string();
            assert!(error.contains(why), "{rule}: {error}");
        }
    }
}
