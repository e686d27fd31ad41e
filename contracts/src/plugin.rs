//! Plugins: tools that an operator installs as packages of scripts, each described by its file `action.json`.
//!
//! A package is a folder with `action.json`, a script that acts, and perhaps one that verifies and one that rolls back. What is said here
//! is checked before anything of a package runs. Which bytes run is pinned when an operator adds the package.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical;
use crate::digest::Digest;
use crate::json;
use crate::limits::{
    CONTRACT_LIST_MAX, PLUGIN_NAME_BYTES_MAX, PLUGIN_SCRIPT_BYTES_MAX, TIMEOUT_MS_MAX, TOOL_WORDS_BYTES_MAX,
};
use crate::request::Verification;
use crate::risk::RiskTier;

/// The source of tools of plugins: the tool of the package `tidy` is `plugin.tidy`, and has the alias `tidy`.
pub const PLUGIN_SOURCE: &str = "plugin";
/// The file that describes a package.
pub const MANIFEST: &str = "action.json";
/// The time of a script whose package names none.
const TIMEOUT_MS: u64 = 30_000;
/// What every description has.
const REQUIRED: [&str; 9] = [
    "name",
    "riskTier",
    "inputSchema",
    "outputSchema",
    "permissions.commands",
    "permissions.filesystem",
    "verification.required",
    "verification.commands",
    "rollback.required",
];

crate::wire_enum! {
    /// The scripts of a package.
    pub enum Script {
        /// Has the effect.
        Execute = "execute",
        /// Says whether the effect is as it should be.
        Verify = "verify",
        /// Undoes what is not files.
        Rollback = "rollback",
    }
}

crate::wire_enum! {
    /// The files that a package's scripts see.
    pub enum Filesystem {
        /// Those of the action's space. Only a package of tier R2 or more may change them.
        Workspace = "workspace",
        /// None.
        None = "none",
    }
}

/// What a package declares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The name of the package and of its folder.
    pub name: String,
    /// `major.minor.patch`.
    #[serde(default = "version")]
    pub version: String,
    /// One sentence for people and planners.
    #[serde(default)]
    pub description: String,
    /// How much can go wrong.
    pub risk_tier: RiskTier,
    /// JSON Schema of the input.
    pub input_schema: Value,
    /// JSON Schema of the output.
    pub output_schema: Value,
    /// What the scripts may use.
    pub permissions: Permissions,
    /// How success is verified.
    pub verification: Verification,
    /// Whether a rollback is needed.
    pub rollback: Rollback,
    /// The files of the scripts, if they are not `execute.js`, `verify.js` and `rollback.js`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<Script, String>,
    /// Time of one script.
    #[serde(default = "timeout")]
    pub timeout_ms: u64,
}

/// A package as it was when somebody looked at it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pinned {
    /// What it declares.
    pub manifest: Manifest,
    /// The digests of its files, by their names.
    pub files: BTreeMap<String, Digest>,
}

impl Pinned {
    /// What an operator accepts who adds it.
    pub fn digest(&self) -> Digest {
        let files = self.files.iter().map(|(name, digest)| (name.clone(), digest.to_string().into()));
        canonical::digest(&files.collect::<Map<String, Value>>())
    }
}

/// What a child gets before the script that it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptHead {
    /// Its name in the package.
    pub file: String,
    /// The interpreter, by its path, and its arguments before the script.
    pub argv: Vec<String>,
}

/// What the scripts of a package may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permissions {
    /// The commands by which its effect may be verified, each with all its words.
    pub commands: Vec<String>,
    /// The files that the scripts see.
    pub filesystem: Filesystem,
}

/// Whether a rollback is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Whether the package has a script for it, without which it is refused.
    pub required: bool,
}

fn version() -> String {
    "1.0.0".to_owned()
}

fn timeout() -> u64 {
    TIMEOUT_MS
}

/// A package that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginInvalid {
    /// Not a description of a package.
    #[error("{MANIFEST}: {0}")]
    Manifest(String),
    /// Something is missing.
    #[error("{MANIFEST} lacks {}", .0.join(", "))]
    Lacks(Vec<&'static str>),
    /// A name that cannot be one of a tool.
    #[error(
        "{0:?} is no name of a package; it begins with a lower-case letter, and has at most {PLUGIN_NAME_BYTES_MAX} lower-case \
         letters, digits and underscores"
    )]
    Name(String),
    /// A command that a shell would have to read.
    #[error(
        "{command:?} is no command: {why}; it is a program and its arguments, separated by blanks and never read by a shell"
    )]
    Command {
        /// The command.
        command: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A command that verifies and that the package has no permission for.
    #[error("verification.commands has {0:?}, which permissions.commands does not list")]
    NotPermitted(String),
    /// A script that is missing, or cannot be one.
    #[error("the script {file:?}: {why}")]
    Script {
        /// Its name in the package.
        file: String,
        /// What is wrong.
        why: String,
    },
}

impl Manifest {
    /// Reads `action.json`. Members that this version does not know are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, PluginInvalid> {
        let invalid = |why: &dyn std::fmt::Display| PluginInvalid::Manifest(why.to_string());
        let value = json::parse_value(bytes, PLUGIN_SCRIPT_BYTES_MAX).map_err(|error| invalid(&error))?;
        let is_missing = |path: &&str| value.pointer(&format!("/{}", path.replace('.', "/"))).is_none();
        let lacks: Vec<_> = REQUIRED.into_iter().filter(is_missing).collect();
        if !lacks.is_empty() {
            return Err(PluginInvalid::Lacks(lacks));
        }
        let manifest: Self = serde_path_to_error::deserialize(value).map_err(|error| invalid(&error))?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), PluginInvalid> {
        let invalid = |why: String| Err(PluginInvalid::Manifest(why));
        if !is_package_name(&self.name) {
            return Err(PluginInvalid::Name(self.name.clone()));
        }
        if self.description.len() > TOOL_WORDS_BYTES_MAX {
            return invalid(format!("its description has more than {TOOL_WORDS_BYTES_MAX} bytes"));
        }
        if !(1..=TIMEOUT_MS_MAX).contains(&self.timeout_ms) {
            return invalid(format!("timeoutMs must be from 1 to {TIMEOUT_MS_MAX}"));
        }
        let Permissions { commands, .. } = &self.permissions;
        if commands.len().max(self.verification.commands.len()) > CONTRACT_LIST_MAX {
            return invalid(format!("a list of commands has more than {CONTRACT_LIST_MAX} entries"));
        }
        for command in commands {
            words(command)?;
        }
        if let Some(other) = self.verification.commands.iter().find(|one| !commands.contains(one)) {
            return Err(PluginInvalid::NotPermitted(other.clone()));
        }
        let is_plain = |name: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            (1..=PLUGIN_NAME_BYTES_MAX).contains(&name.len())
                && name.bytes().all(plain)
                && !name.starts_with('.')
        };
        match self.scripts.values().find(|name| !is_plain(name) || *name == MANIFEST) {
            Some(file) => {
                let why = "it must be a file of the package itself, by a plain name".to_owned();
                Err(PluginInvalid::Script { file: file.clone(), why })
            }
            None => Ok(()),
        }
    }

    /// The file of a script, and whether the package must have it.
    pub fn file(&self, script: Script) -> (String, bool) {
        let named = self.scripts.get(&script);
        let is_needed = named.is_some()
            || match script {
                Script::Execute => true,
                Script::Verify => self.verification.required,
                Script::Rollback => self.rollback.required,
            };
        (named.cloned().unwrap_or_else(|| format!("{}.js", script.as_str())), is_needed)
    }

    /// Whether its scripts may change files of the space.
    pub fn writes(&self) -> bool {
        self.permissions.filesystem == Filesystem::Workspace && self.risk_tier >= RiskTier::R2
    }
}

/// Whether a package, and so its folder, may have this name.
pub fn is_package_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    begins && name.len() <= PLUGIN_NAME_BYTES_MAX && name.bytes().all(plain)
}

/// The words of a command. There is no quoting: what only a shell understands is refused.
pub fn words(command: &str) -> Result<Vec<&str>, PluginInvalid> {
    const FOR_SHELLS: &str = ";&|<>$`\\\"'(){}[]*?!#~";
    let refused = |why| Err(PluginInvalid::Command { command: command.to_owned(), why });
    let words: Vec<_> = command.split(' ').collect();
    if command.chars().any(|c| c.is_control() || FOR_SHELLS.contains(c)) {
        return refused("it has a character that is for shells");
    }
    match words.first() {
        _ if words.contains(&"") => refused("it is empty, or has two blanks in a row"),
        None => refused("it is empty"),
        Some(program) if program.contains('/') || program.starts_with(['.', '-']) => {
            refused("its program is not a plain name")
        }
        Some(_) => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn whole() -> Value {
        json!({
            "name": "tidy", "riskTier": "R2", "inputSchema": { "type": "object" }, "outputSchema": { "type": "object" },
            "permissions": { "commands": ["node --check src/a.js"], "filesystem": "workspace" },
            "verification": { "required": true, "commands": ["node --check src/a.js"] },
            "rollback": { "required": true }, "of_tomorrow": 1,
        })
    }

    fn refused(change: impl FnOnce(&mut Value)) -> String {
        let mut value = whole();
        change(&mut value);
        Manifest::parse(value.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn each_part_that_is_missing_is_named() {
        assert!(Manifest::parse(whole().to_string().as_bytes()).is_ok());
        for path in REQUIRED {
            let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
            let at = if parent.is_empty() { String::new() } else { format!("/{parent}") };
            let why = refused(|value| {
                drop(value.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove(name));
            });
            assert_eq!(why, format!("action.json lacks {path}"));
        }
        let why = refused(|value| drop(value.as_object_mut().unwrap().remove("permissions")));
        assert_eq!(why, "action.json lacks permissions.commands, permissions.filesystem");
    }

    #[test]
    fn what_a_package_may_not_say_is_refused() {
        for (pointer, value, why) in [
            ("/permissions/filesystem", json!("everything"), "permissions.filesystem: unknown variant"),
            ("/riskTier", json!("R9"), "riskTier: unknown variant"),
            ("/name", json!("files.write_text"), "is no name of a package"),
            ("/name", json!("../tidy"), "is no name of a package"),
            ("/verification/commands", json!(["node a.js"]), "permissions.commands does not list"),
            ("/verification/required", json!("yes"), "verification.required"),
        ] {
            let said = refused(|whole| *whole.pointer_mut(pointer).unwrap() = value);
            assert!(said.contains(why), "{said}");
        }
        for file in ["../execute.js", "a/b.js", ".hidden", "", "action.json"] {
            let said = refused(|value| value["scripts"] = json!({ "execute": file }));
            assert!(said.contains("by a plain name"), "{said}");
        }
        let said = refused(|value| value["timeoutMs"] = json!(0));
        assert!(said.contains("timeoutMs"), "{said}");
    }

    #[test]
    fn a_command_is_words_and_never_for_a_shell() {
        assert_eq!(words("node --check src/a.js"), Ok(vec!["node", "--check", "src/a.js"]));
        for command in [
            "node --check src/a.js; rm -rf x",
            "node a.js && rm x",
            "node $(id)",
            "node `id`",
            "node > x",
            "node *.js",
            "node 'a b'",
            "node a\nrm x",
            "/usr/bin/node a.js",
            "./node",
            "-c",
            "",
            "  ",
            "node  a.js",
        ] {
            assert!(words(command).is_err(), "{command:?}");
            let said = refused(|value| value["permissions"]["commands"] = json!([command]));
            assert!(said.contains("is no command"), "{said}");
        }
    }
}
