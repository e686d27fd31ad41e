//! The settings and their origins: the command line overrides the environment, which overrides the configuration file.
//!
//! No value is silently ignored: an unknown key is an error that names the nearest known one.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_actors::Settings as PipelineSettings;
use effectd_actors::limits::LEASE_TTL;
use effectd_bus::{Keep, TopicKeep};
use effectd_contracts::Topic;
use effectd_gateway::Settings as DoorSettings;

use config::{Config, JobSettings, STOP_GRACE, SandboxSettings, StoreSettings};

pub(crate) mod config;
mod keys;
mod layers;

pub(crate) use keys::SOCKET_VARIABLE;
use keys::{Collector, nearest, nearest_variable};
pub use keys::{KEYS, Key, Takes};
use layers::read_file;
pub(crate) use layers::{Overrides, pair};

/// The configuration file, in the state directory.
const FILE: &str = "config.toml";

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
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
pub(crate) enum SettingsError {
    #[error("{} cannot be read: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not valid TOML: {why}", path.display())]
    Syntax { path: PathBuf, why: String },
    #[error("{origin}: unknown key `{key}`; did you mean `{nearest}`? (`effectd config show` lists all)")]
    UnknownKey { origin: Origin, key: String, nearest: &'static str },
    #[error(
        "environment: unknown variable {name}; did you mean {nearest}? (`effectd config show --origin` lists all keys)"
    )]
    UnknownVariable { name: String, nearest: String },
    /// Two values contradict each other.
    #[error("`{left}` is {left_value} and `{right}` is {right_value}; the first must {rule}")]
    Together {
        left: &'static str,
        left_value: String,
        right: &'static str,
        right_value: String,
        rule: &'static str,
    },
    #[error("{origin}: `{key}` is {value:?}; it must be {expected}")]
    Value { origin: Origin, key: &'static str, value: String, expected: String },
    /// A `--set` without an equals sign.
    #[error("--set {0}: write key=value")]
    NotAPair(String),
}

/// The values of all settings; [`KEYS`] describes each.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Values {
    /// If empty, [`default_socket`].
    pub(crate) socket: String,
    pub(crate) socket_mode: String,
    pub(crate) log_level: String,
    pub(crate) log_form: String,
    pub(crate) otlp: Option<Collector>,
    pub(crate) desktop: String,
    pub(crate) telemetry_listen: Option<SocketAddr>,
    pub(crate) stop_grace: Duration,
    pub(crate) lease_ttl: Duration,
    pub(crate) jobs: JobSettings,
    /// If empty, [`crate::state::plugins_in`] the state directory.
    pub(crate) plugins_root: String,
    pub(crate) door: DoorSettings,
    pub(crate) pipeline: PipelineSettings,
    pub(crate) store: StoreSettings,
    pub(crate) sandbox: SandboxSettings,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            socket: String::new(),
            socket_mode: "0600".to_owned(),
            log_level: "info".to_owned(),
            log_form: "json".to_owned(),
            otlp: None,
            desktop: "auto".to_owned(),
            telemetry_listen: None,
            stop_grace: STOP_GRACE,
            lease_ttl: LEASE_TTL,
            jobs: JobSettings::default(),
            plugins_root: String::new(),
            door: DoorSettings::default(),
            pipeline: PipelineSettings::default(),
            store: StoreSettings::default(),
            sandbox: SandboxSettings::default(),
        }
    }
}

impl Values {
    fn decisions(&mut self) -> &mut Keep {
        let others = self.pipeline.retention.others.keep;
        let topics = &mut self.pipeline.retention.topics;
        let kept = topics
            .entry(Topic::ActionDecision.into())
            .or_insert(TopicKeep { keep: others, unacknowledged: true });
        &mut kept.keep
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    values: Values,
    /// The origins of values that are not defaults.
    origins: BTreeMap<&'static str, Origin>,
}

/// The keys of changed settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Changes {
    /// In force now.
    pub(crate) taken: Vec<&'static str>,
    /// In force after a restart.
    pub(crate) left: Vec<&'static str>,
}

impl Settings {
    /// Reads the configuration file of the state directory, if there is one, and applies the overrides.
    pub(crate) fn load(state: Option<&Path>, overrides: &Overrides) -> Result<Self, SettingsError> {
        let mut settings = Self { values: Values::default(), origins: BTreeMap::new() };
        if let Some(path) = state.map(|state| state.join(FILE)) {
            for (name, value) in read_file(&path)? {
                settings.set(&name, value, Origin::File(path.clone()))?;
            }
        }
        settings.set_from_environment(&overrides.environment)?;
        for (name, value) in &overrides.flags {
            settings.set(name, value.clone(), Origin::Flag)?;
        }
        settings.check_together()?;
        Ok(settings)
    }

    /// An unknown variable with effectd's prefix is an error, unless it is reserved.
    fn set_from_environment(&mut self, environment: &[(String, String)]) -> Result<(), SettingsError> {
        for (name, value) in environment {
            let key = KEYS.iter().find(|key| key.variable() == *name);
            match key {
                // Empty means unset.
                Some(_) if value.is_empty() => {}
                Some(key) => self.set(key.name, value.clone(), Origin::Environment(name.clone()))?,
                None if layers::reserved(name) => {}
                None => {
                    return Err(SettingsError::UnknownVariable {
                        name: name.clone(),
                        nearest: nearest_variable(name),
                    });
                }
            }
        }
        Ok(())
    }

    fn check_together(&self) -> Result<(), SettingsError> {
        let together = |fits: bool, left, right, rule| {
            let text = |name| Key::named(name).map_or_else(String::new, |key| key.shown(&self.values));
            let error = || SettingsError::Together {
                left,
                left_value: text(left),
                right,
                right_value: text(right),
                rule,
            };
            fits.then_some(()).ok_or_else(error)
        };
        let Values { sandbox, pipeline, jobs, door, .. } = &self.values;
        together(
            door.tls_cert.is_empty() == door.tls_key.is_empty(),
            "gateway.tls_cert",
            "gateway.tls_key",
            "be set with the second, or both be empty",
        )?;
        // Tokens in clear text are for nobody on the way.
        together(
            door.listen.is_none_or(|address| address.ip().is_loopback())
                || !door.tls_cert.is_empty()
                || door.behind_proxy,
            "gateway.listen",
            "gateway.tls_cert",
            "be an address of this machine alone (127.0.0.1:7070), unless gateway.tls_cert and gateway.tls_key name a \
             certificate and its key, or gateway.behind_proxy is true because a proxy does TLS",
        )?;
        let oidc = &door.oidc;
        for (needed, value) in [("oidc.audience", &oidc.audience), ("oidc.org", &oidc.org)] {
            let fits = oidc.issuer.is_empty() || !value.is_empty();
            together(fits, "oidc.issuer", needed, "be empty while the second is empty")?;
        }
        together(
            oidc.issuer.is_empty() || oidc.jwks_file.is_empty() != oidc.jwks_source.is_empty(),
            "oidc.jwks_file",
            "oidc.jwks_source",
            "name the issuer's keys, or else the second, and not both",
        )?;
        together(
            jobs.backup_every.0.is_none() || !jobs.backup_to.is_empty(),
            "backup.every",
            "backup.to",
            "be off while the second is empty",
        )?;
        together(
            sandbox.ready_min <= sandbox.ready_max,
            "sandbox.ready_min",
            "sandbox.ready_max",
            "not be greater than the second",
        )?;
        // A dead letter is the last trace of a failure, so it must outlive the receipt.
        let (letters, receipts) = (pipeline.retention.letters, pipeline.retention.receipts.age);
        together(
            letters.is_none_or(|letters| receipts.is_some_and(|receipts| letters > receipts)),
            "store.retention.letter_days",
            "store.retention.receipt_days",
            "be longer than the second (0 means forever)",
        )
    }

    fn set(&mut self, name: &str, value: String, origin: Origin) -> Result<(), SettingsError> {
        let Some(key) = Key::named(name) else {
            return Err(SettingsError::UnknownKey { origin, key: name.to_owned(), nearest: nearest(name) });
        };
        if let Err(expected) = key.set(&mut self.values, &value) {
            return Err(SettingsError::Value { origin, key: key.name, value, expected });
        }
        self.origins.insert(key.name, origin);
        Ok(())
    }

    /// Every key with its value and origin, sorted by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static Key, String, &Origin)> {
        KEYS.iter().map(|key| {
            let origin = self.origins.get(key.name).unwrap_or(&Origin::Default);
            (key, key.shown(&self.values), origin)
        })
    }

    fn differing(&self, other: &Self) -> Vec<&'static Key> {
        let differs = |key: &&Key| key.shown(&self.values) != key.shown(&other.values);
        KEYS.iter().filter(differs).collect()
    }

    /// Applies the changes that need no restart. Returns the keys of all changes.
    pub(crate) fn take_over(&mut self, now: &Self) -> Changes {
        let mut changes = Changes::default();
        for key in now.differing(self) {
            match key.takes {
                Takes::Reload if key.set(&mut self.values, &key.shown(&now.values)).is_ok() => {
                    changes.taken.push(key.name);
                }
                Takes::Reload | Takes::Restart => changes.left.push(key.name),
            }
        }
        changes
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// The path of the daemon's socket.
    pub(crate) fn socket(&self, state: &Path) -> PathBuf {
        match self.values.socket.as_str() {
            "" => default_socket(state),
            path => PathBuf::from(path),
        }
    }

    /// Whether the socket was set explicitly.
    pub(crate) fn names_socket(&self) -> bool {
        !self.values.socket.is_empty()
    }

    /// Whether the socket is that of the state directory: set in its file, or the default.
    pub(crate) fn is_own_socket(&self) -> bool {
        !matches!(self.origins.get("gateway.socket"), Some(Origin::Flag | Origin::Environment(_)))
    }

    pub(crate) fn socket_mode(&self) -> u32 {
        u32::from_str_radix(&self.values.socket_mode, 8).unwrap_or(0o600)
    }

    pub(crate) fn apply(&self, config: &mut Config) {
        let values = self.values.clone();
        config.stop_grace = values.stop_grace;
        config.lease_ttl = values.lease_ttl;
        config.listens_at = values.door.listen.into_iter().chain(values.telemetry_listen).collect();
        config.desktop = values.desktop == "auto";
        config.pipeline = values.pipeline;
        config.pipeline.plugins.root = PathBuf::from(values.plugins_root);
        config.store = values.store;
        config.sandbox = values.sandbox;
    }
}

/// The default socket of the daemon of a state directory.
pub(crate) fn default_socket(state: &Path) -> PathBuf {
    state.join("run").join("effectd.sock")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_bus::limits::RECEIPT_BYTES_MIN;

    use super::*;

    fn load(file: &str, variable: Option<(&str, &str)>, flags: &[&str]) -> Result<Settings, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), file).unwrap();
        let named = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let above = Overrides {
            environment: variable.map(named).into_iter().collect(),
            flags: flags.iter().map(|flag| pair(flag).unwrap()).collect(),
        };
        Settings::load(Some(folder.path()), &above)
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let file = "[gateway]\nbacklog_max = 5\nsocket = \"/run/a.sock\"\n";
        let backlog = |settings: &Settings| {
            let (_, value, origin) =
                settings.all().find(|(key, ..)| key.name == "gateway.backlog_max").unwrap();
            (value, origin.to_string().split(' ').next().unwrap().to_owned())
        };
        let variable = Some(("EFFECTD_GATEWAY_BACKLOG_MAX", "6"));
        let pair = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
        assert_eq!(backlog(&load("", None, &[]).unwrap()), pair("100000", "default"));
        assert_eq!(backlog(&load(file, None, &[]).unwrap()), pair("5", "file"));
        assert_eq!(backlog(&load(file, variable, &[]).unwrap()), pair("6", "environment"));
        let flagged = load(file, variable, &["gateway.backlog_max=7"]).unwrap();
        assert_eq!(backlog(&flagged), pair("7", "flag"));
        assert_eq!(flagged.values().door.backlog_max, 7);
        assert_eq!(flagged.socket(Path::new("/s")), Path::new("/run/a.sock"));
        let unflagged = load(file, None, &[]).unwrap();
        let differing: Vec<_> = flagged.differing(&unflagged).iter().map(|key| key.name).collect();
        assert_eq!(differing, ["gateway.backlog_max"]);
    }

    #[test]
    fn every_key_takes_its_default_and_sets_a_field_of_its_own() {
        let others =
            "1 2 0.25 1000 20000000 0660 text off sled files 2h true 127.0.0.1:9464 http://127.0.0.1:4318"
                .split(' ');
        for key in KEYS {
            let set = |value: &str| {
                let mut settings = load("", None, &[]).unwrap();
                settings.set(key.name, value.to_owned(), Origin::Flag).map(|()| settings)
            };
            let default = key.default();
            assert_eq!(set(&default).unwrap().values(), &Values::default(), "{}", key.name);
            let other = others.clone().filter(|other| *other != default).find_map(|other| set(other).ok());
            let changed = other.unwrap_or_else(|| panic!("{}: no other value fits", key.name));
            let differing = changed.differing(&load("", None, &[]).unwrap());
            assert_eq!(differing.iter().map(|key| key.name).collect::<Vec<_>>(), [key.name]);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_parts() {
        let settings = load("", None, &[]).unwrap();
        let mut config = Config::embedded("unused").unwrap();
        let before = config.clone();
        settings.apply(&mut config);
        assert_eq!(
            (config.pipeline, config.store, config.sandbox),
            (before.pipeline, before.store, before.sandbox)
        );
        assert_eq!((config.lease_ttl, config.stop_grace), (before.lease_ttl, before.stop_grace));
    }

    #[test]
    fn an_unknown_key_is_told_with_the_nearest_known_one() {
        let cases = [
            ("[gateway]\nbacklogmax = 1", "gateway.backlogmax", "gateway.backlog_max"),
            ("socket = \"x\"", "socket", "gateway.socket"),
            ("[runtime]\nstop_grace = 1", "runtime.stop_grace", "runtime.stop_grace_ms"),
        ];
        for (file, key, nearest) in cases {
            let message = load(file, None, &[]).unwrap_err().to_string();
            assert!(
                message.contains(&format!("unknown key `{key}`; did you mean `{nearest}`?")),
                "{message}"
            );
        }
    }

    #[test]
    fn an_unknown_variable_is_told_with_the_nearest_known_one() {
        let message = load("", Some(("EFFECTD_GATEWAY_BACKLOG", "5")), &[]).unwrap_err();
        let message = message.to_string();
        assert!(message.contains("did you mean EFFECTD_GATEWAY_BACKLOG_MAX?"), "{message}");
        for reserved in [
            "EFFECTD_STATE",
            "EFFECTD_URL",
            "EFFECTD_TOKEN",
            "EFFECTD_CONTEXT",
            "EFFECTD_BLESS",
            "EFFECTD_TEST_X",
            "EFFECTD_FAILPOINT_FD",
        ] {
            assert!(load("", Some((reserved, "x")), &[]).is_ok(), "{reserved}");
        }
        assert!(load("", Some(("EFFECTD_STATES", "x")), &[]).is_err());
    }

    #[test]
    fn a_reload_applies_what_may_change_and_names_the_rest() {
        let mut settings = load("", None, &[]).unwrap();
        let now = load("", None, &["gateway.backlog_max=7", "pipeline.in_flight_max=9", "log.level=warn"]);
        let changes = settings.take_over(&now.unwrap());
        assert_eq!(changes.taken, ["gateway.backlog_max", "log.level"]);
        assert_eq!(changes.left, ["pipeline.in_flight_max"]);
        assert_eq!((settings.values().door.backlog_max, settings.values().log_level.as_str()), (7, "warn"));
        assert_eq!(settings.values().pipeline.in_flight_max, PipelineSettings::default().in_flight_max);
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        let message = load("", None, &["backup.every=24h"]).unwrap_err().to_string();
        assert!(message.contains("`backup.every` is 1d and `backup.to` is ;"), "{message}");
        assert!(load("", None, &["backup.every=24h", "backup.to=/backups"]).is_ok());
        let message = load("", None, &["oidc.issuer=https://id.example"]).unwrap_err().to_string();
        assert!(
            message.contains("`oidc.issuer` is https://id.example and `oidc.audience` is ;"),
            "{message}"
        );
        let oidc = ["oidc.issuer=https://id.example", "oidc.audience=effectd", "oidc.org=home"];
        let of = |keys: &[&str]| load("", None, &[&oidc[..], keys].concat());
        let both = ["oidc.jwks_file=/jwks.json", "oidc.jwks_source=http.idp"];
        for wrong in [&both[..0], &both[..]] {
            let message = of(wrong).unwrap_err().to_string();
            assert!(message.contains("`oidc.jwks_source` is"), "{message}");
        }
        assert!(both.iter().all(|one| of(&[one]).is_ok()));
        for wrong in ["backup.every=0s", "backup.every=10", "check.every=367d", "check.every=daily"] {
            let message = load("", None, &[wrong]).unwrap_err().to_string();
            assert!(message.contains("it must be `off`, or a span of time from 1s to 366d"), "{message}");
        }
        let message = load("", None, &["sandbox.ready_min=20"]).unwrap_err().to_string();
        assert!(message.contains("`sandbox.ready_max` is 16"), "{message}");
    }

    #[test]
    fn the_network_is_reached_with_tls_or_behind_a_proxy_alone() {
        let tls = ["gateway.tls_cert=c.pem", "gateway.tls_key=k.pem"];
        for address in ["0.0.0.0:7070", "192.0.2.1:0", "[::]:7070"] {
            let listen = format!("gateway.listen={address}");
            let message = load("", None, &[&listen]).unwrap_err().to_string();
            for named in [address, "gateway.tls_cert", "gateway.tls_key", "gateway.behind_proxy"] {
                assert!(message.contains(named), "{message}");
            }
            assert!(load("", None, &[&listen, tls[0], tls[1]]).is_ok());
            assert!(load("[gateway]\nbehind_proxy = true", None, &[&listen]).is_ok());
            assert!(load("", None, &[&listen, "gateway.behind_proxy=false"]).is_err());
        }
        for address in ["127.0.0.1:7070", "127.0.0.2:0", "[::1]:7070"] {
            assert!(load("", None, &[&format!("gateway.listen={address}")]).is_ok(), "{address}");
        }
        for half in tls {
            let message = load("", None, &[half]).unwrap_err().to_string();
            assert!(message.contains("both be empty"), "{message}");
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
            load("", None, &["log.level=effectd=loud"]),
            load("", None, &["log.otlp=http://192.0.2.1:4318"]),
            load("", None, &["log.otlp=http://localhost:4318"]),
            load("", None, &["log.otlp=https://127.0.0.1:4318"]),
            load("", None, &["log.otlp=http://127.0.0.1:4318/v1/traces"]),
            load("", None, &["control.breaker_error_share_max=1.5"]),
            load("", None, &["sandbox.uid=0"]),
            load("", None, &["telemetry.listen=9464"]),
            load("", None, &["telemetry.listen=localhost:9464"]),
        ];
        for refused in cases {
            assert!(matches!(refused, Err(SettingsError::Value { .. })), "{refused:?}");
        }
        assert!(matches!(load("[gateway", None, &[]), Err(SettingsError::Syntax { .. })));
    }

    #[test]
    fn so_few_bytes_of_receipts_that_none_would_stay_are_refused() {
        let kept = |bytes: u64| {
            let loaded = load("", None, &[&format!("store.retention.receipt_bytes_max={bytes}")]);
            loaded.map(|settings| settings.values.pipeline.retention.receipts.bytes)
        };
        for bytes in [1, RECEIPT_BYTES_MIN - 1] {
            let message = kept(bytes).unwrap_err().to_string();
            assert!(message.contains("at least 16777216"), "{message}");
        }
        assert_eq!((kept(0).unwrap(), kept(RECEIPT_BYTES_MIN).unwrap()), (None, Some(RECEIPT_BYTES_MIN)));
    }

    #[test]
    fn letters_that_go_before_receipts_are_refused_with_both_keys() {
        let load = |flags: &[&str]| load("", None, flags);
        for letters in ["179", "180"] {
            let message = load(&[&format!("store.retention.letter_days={letters}")]).unwrap_err();
            let message = message.to_string();
            assert!(message.contains("`store.retention.letter_days`"), "{message}");
            assert!(message.contains("`store.retention.receipt_days` is 180"), "{message}");
        }
        assert!(load(&["store.retention.letter_days=181"]).is_ok());
        assert!(load(&["store.retention.receipt_days=0"]).is_err(), "for ever is longer");
        let for_ever = ["store.retention.receipt_days=0", "store.retention.letter_days=0"];
        assert_eq!(load(&for_ever).unwrap().values.pipeline.retention.receipts, Keep::default());
    }
}
