//! Reads settings from the file, the environment and the command line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::SettingsError;
use crate::settings::config::{CONTEXT_VARIABLE, STATE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE};

/// The largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 65_536;
const PREFIX: &str = "EFFECTD_";
/// Variables with effectd's prefix that are not settings: the state directory, a daemon at a URL, what `bus tail --exec` tells a
/// command, and variables of tests.
const RESERVED: [&str; 8] = [
    STATE_VARIABLE,
    URL_VARIABLE,
    TOKEN_VARIABLE,
    CONTEXT_VARIABLE,
    "EFFECTD_EVENT_",
    "EFFECTD_BLESS",
    "EFFECTD_TEST_",
    "EFFECTD_FAILPOINT",
];

/// Values that override the configuration file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    /// Environment variables with effectd's prefix.
    pub(crate) environment: Vec<(String, String)>,
    /// Keys and values from the command line.
    pub(crate) flags: Vec<(String, String)>,
}

impl Overrides {
    /// The environment of this process, and the given flags.
    pub(crate) fn of_process(flags: Vec<(String, String)>) -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let ours = std::env::vars_os()
            .map(|(name, value)| (text(name), text(value)))
            .filter(|(name, _)| name.starts_with(PREFIX));
        Self { environment: ours.collect(), flags }
    }
}

pub(super) fn reserved(name: &str) -> bool {
    RESERVED.iter().any(|reserved| {
        name == *reserved
            || (name.starts_with(reserved) && (reserved.ends_with('_') || *reserved == "EFFECTD_FAILPOINT"))
    })
}

/// Splits the `key=value` after `--set`.
pub(crate) fn pair(text: &str) -> Result<(String, String), SettingsError> {
    let (key, value) = text.split_once('=').ok_or_else(|| SettingsError::NotAPair(text.to_owned()))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn read_file(path: &Path) -> Result<Vec<(String, String)>, SettingsError> {
    let failed = |source| SettingsError::File { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(io::Error::other(format!("it is larger than {FILE_BYTES_MAX} bytes"))));
    }
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| SettingsError::Syntax {
        path: path.to_owned(),
        why: error.to_string().trim_end().to_owned(),
    })?;
    let mut found = Vec::new();
    flatten("", &table, &mut found);
    Ok(found)
}

/// Flattens tables: `socket` in `[gateway]` becomes `gateway.socket`.
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
