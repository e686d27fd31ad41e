//! What an operator can set, and where each value came from: the configuration file, the environment, the command line,
//! each above the one before.
//!
//! A value is never silently ignored. A key that nobody knows is an error that names the nearest known one, since a
//! misspelt bound is no bound.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_gateway::Settings as DoorSettings;

mod keys;

use keys::nearest;
pub use keys::{KEYS, Key};

/// The configuration file, in the state directory.
pub const FILE: &str = "config.toml";
/// The largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 65_536;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(&'static str),
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag => f.write_str("flag"),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file is there and cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is no TOML.
    #[error("{} is not acceptable TOML: {why}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// Nobody knows the key.
    #[error("{origin}: there is no key `{key}`; did you mean `{nearest}`? (`effectd config show` lists all)")]
    UnknownKey {
        /// Where it stands.
        origin: Origin,
        /// What it says.
        key: String,
        /// What is known and looks like it.
        nearest: &'static str,
    },
    /// The value does not fit the key.
    #[error("{origin}: `{key}` is {value:?}; it must be {expected}")]
    Value {
        /// Where it stands.
        origin: Origin,
        /// Which key.
        key: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        expected: String,
    },
    /// A `--set` without its equals sign.
    #[error("--set {0}: say key=value")]
    NotAPair(String),
}

/// Everything that can be set, with where each value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
}

/// What is said above the file.
pub struct Above<'a> {
    /// Looks up a variable of the environment.
    pub environment: &'a dyn Fn(&str) -> Option<OsString>,
    /// Keys and values of the command line.
    pub flags: Vec<(String, String)>,
}

impl fmt::Debug for Above<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Above")
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads all layers. A file that is not there says nothing; without a state directory there is none.
    pub fn load(state: Option<&Path>, above: &Above<'_>) -> Result<Self, SettingsError> {
        let mut settings = Self {
            values: KEYS
                .iter()
                .map(|key| (key.name, ((key.default)(), Origin::Default)))
                .collect(),
        };
        if let Some(path) = state.map(|state| state.join(FILE)) {
            for (name, value) in read_file(&path)? {
                settings.set(&name, value, Origin::File(path.clone()))?;
            }
        }
        for key in &KEYS {
            let said = (above.environment)(key.variable).filter(|value| !value.is_empty());
            if let Some(value) = said {
                let value = value.to_string_lossy().into_owned();
                settings.set(key.name, value, Origin::Environment(key.variable))?;
            }
        }
        for (name, value) in &above.flags {
            settings.set(name, value.clone(), Origin::Flag)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: String, origin: Origin) -> Result<(), SettingsError> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(SettingsError::UnknownKey {
                origin,
                key: name.to_owned(),
                nearest: nearest(name),
            });
        };
        if let Err(expected) = key.kind.check(&value) {
            return Err(SettingsError::Value {
                origin,
                key: key.name,
                value,
                expected,
            });
        }
        self.values.insert(key.name, (value, origin));
        Ok(())
    }

    /// Every key with its value and origin, in the order of the keys.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &str, &Origin)> {
        self.values
            .iter()
            .map(|(name, (value, origin))| (*name, value.as_str(), origin))
    }

    /// The keys whose values differ.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let differs = |name: &&'static str| self.text(name) != other.text(name);
        self.values.keys().copied().filter(differs).collect()
    }

    fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", |(value, _)| value.as_str())
    }

    /// A number; values are checked when they are set.
    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }

    fn count(&self, name: &str) -> usize {
        usize::try_from(self.number(name)).unwrap_or(usize::MAX)
    }

    /// Where the daemon listens.
    pub fn socket(&self, state: &Path) -> PathBuf {
        match self.text("gateway.socket") {
            "" => default_socket(state),
            path => PathBuf::from(path),
        }
    }

    /// Whether somebody said where the daemon listens.
    pub fn names_socket(&self) -> bool {
        !self.text("gateway.socket").is_empty()
    }

    /// Who may connect.
    pub fn socket_mode(&self) -> u32 {
        u32::from_str_radix(self.text("gateway.socket_mode"), 8).unwrap_or(0o600)
    }

    /// How long work on its way may take to finish.
    pub fn stop_grace(&self) -> Duration {
        self.millis("runtime.stop_grace_ms")
    }

    /// What is logged.
    pub fn log_level(&self) -> &str {
        self.text("log.level")
    }

    /// Whether log lines are JSON.
    pub fn log_is_json(&self) -> bool {
        self.text("log.form") == "json"
    }

    /// What the door takes.
    pub fn door(&self) -> DoorSettings {
        DoorSettings {
            connections_max: self.count("gateway.connections_max"),
            connections_per_user_max: self.count("gateway.connections_per_user_max"),
            header_time_max: self.millis("gateway.header_time_ms_max"),
            body_time_max: self.millis("gateway.body_time_ms_max"),
            write_time_max: self.millis("gateway.write_time_ms_max"),
            wait_time_max: self.millis("gateway.wait_time_ms_max"),
            backlog_max: self.number("gateway.backlog_max"),
        }
    }
}

/// Where the daemon of a state directory listens, unless it is told otherwise.
pub fn default_socket(state: &Path) -> PathBuf {
    state.join("run").join("effectd.sock")
}

/// A pair of `--set`.
pub fn pair(text: &str) -> Result<(String, String), SettingsError> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| SettingsError::NotAPair(text.to_owned()))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn read_file(path: &Path) -> Result<Vec<(String, String)>, SettingsError> {
    let failed = |source| SettingsError::File {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(io::Error::other(format!(
            "it is larger than {FILE_BYTES_MAX} bytes"
        ))));
    }
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| SettingsError::Syntax {
            path: path.to_owned(),
            why: error.to_string().trim_end().to_owned(),
        })?;
    let mut found = Vec::new();
    flatten("", &table, &mut found);
    Ok(found)
}

/// `[gateway]` with `socket` in it is `gateway.socket`.
fn flatten(prefix: &str, table: &toml::Table, found: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let name = format!("{prefix}{name}");
        match value {
            toml::Value::Table(inner) => flatten(&format!("{name}."), inner, found),
            toml::Value::String(text) => found.push((name, text.clone())),
            toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Array(_) => found.push((name, value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn load(file: &str, variable: Option<(&str, &str)>, flags: &[&str]) -> Result<Settings, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), file).unwrap();
        let environment = |name: &str| {
            variable
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        };
        let above = Above {
            environment: &environment,
            flags: flags.iter().map(|flag| pair(flag).unwrap()).collect(),
        };
        Settings::load(Some(folder.path()), &above)
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let file = "[gateway]\nbacklog_max = 5\nsocket = \"/run/a.sock\"\n";
        let backlog = |settings: &Settings| {
            let (_, value, origin) = settings
                .all()
                .find(|(name, ..)| *name == "gateway.backlog_max")
                .unwrap();
            (
                value.to_owned(),
                origin.to_string().split(' ').next().unwrap().to_owned(),
            )
        };
        let variable = Some(("EFFECTD_GATEWAY_BACKLOG_MAX", "6"));
        let pair = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
        assert_eq!(backlog(&load("", None, &[]).unwrap()), pair("100000", "default"));
        assert_eq!(backlog(&load(file, None, &[]).unwrap()), pair("5", "file"));
        assert_eq!(
            backlog(&load(file, variable, &[]).unwrap()),
            pair("6", "environment")
        );
        let flagged = load(file, variable, &["gateway.backlog_max=7"]).unwrap();
        assert_eq!(backlog(&flagged), pair("7", "flag"));
        assert_eq!(flagged.door().backlog_max, 7);
        assert_eq!(flagged.socket(Path::new("/s")), Path::new("/run/a.sock"));
        assert_eq!(
            flagged.differing(&load(file, None, &[]).unwrap()),
            ["gateway.backlog_max"]
        );
    }

    #[test]
    fn the_defaults_are_the_limits() {
        assert_eq!(load("", None, &[]).unwrap().door(), DoorSettings::default());
    }

    #[test]
    fn an_unknown_key_is_told_with_the_nearest_known_one() {
        let cases = [
            (
                "[gateway]\nbacklogmax = 1",
                "gateway.backlogmax",
                "gateway.backlog_max",
            ),
            ("socket = \"x\"", "socket", "gateway.socket"),
            (
                "[runtime]\nstop_grace = 1",
                "runtime.stop_grace",
                "runtime.stop_grace_ms",
            ),
        ];
        for (file, key, nearest) in cases {
            let told = load(file, None, &[]).unwrap_err().to_string();
            assert!(
                told.contains(&format!("there is no key `{key}`; did you mean `{nearest}`?")),
                "{told}"
            );
        }
    }

    #[test]
    fn values_are_checked_wherever_they_come_from() {
        let cases = [
            load("[gateway]\nconnections_max = 0", None, &[]),
            load("[gateway]\nconnections_max = \"many\"", None, &[]),
            load("[gateway]\nconnections_max = [1]", None, &[]),
            load("", Some(("EFFECTD_GATEWAY_SOCKET_MODE", "0666")), &[]),
            load("", None, &["log.form=xml"]),
        ];
        for refused in cases {
            assert!(matches!(refused, Err(SettingsError::Value { .. })), "{refused:?}");
        }
        assert!(matches!(
            load("[gateway", None, &[]),
            Err(SettingsError::Syntax { .. })
        ));
    }
}
