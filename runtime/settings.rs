//! What an operator can set, and where each value came from: the configuration file, the environment, the command line,
//! each above the one before.
//!
//! A value is never silently ignored. A key that nobody knows is an error that names the nearest known one, since a
//! misspelt bound is no bound.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_actors::Settings as PipelineSettings;
use effectd_actors::reward::Weights;
use effectd_bus::embedded::JournalKind;
use effectd_contracts::RewardWeights;
use effectd_gateway::Settings as DoorSettings;

use crate::config::{Config, SandboxSettings, StoreSettings};

mod bounds;
mod control;
mod keys;
mod kinds;
mod layers;
mod retention;

pub use bounds::bounds;
pub(crate) use bounds::{hear, told};
pub use keys::{KEYS, Key, Takes};
use keys::{nearest, nearest_variable};
use layers::read_file;
pub use layers::{Above, pair};

/// The configuration file, in the state directory.
pub const FILE: &str = "config.toml";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
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
    /// Nobody knows the variable.
    #[error(
        "environment: there is no variable {name}; did you mean {nearest}? (`effectd config show --origin` lists all keys)"
    )]
    UnknownVariable {
        /// What it is called.
        name: String,
        /// What is known and looks like it.
        nearest: String,
    },
    /// Two values do not fit each other.
    #[error(
        "`{lesser}` is {lesser_value} and `{greater}` is {greater_value}; the first must not be the greater"
    )]
    Together {
        /// The one that must not be greater.
        lesser: &'static str,
        /// What it is.
        lesser_value: String,
        /// The one that it must not exceed.
        greater: &'static str,
        /// What it is.
        greater_value: String,
    },
    /// Something must be kept longer than something else, and is not.
    #[error(
        "`{longer}` is {longer_value} and `{shorter}` is {shorter_value}; the first must be longer (0 is for ever)"
    )]
    Longer {
        /// What must be longer.
        longer: &'static str,
        /// What it is.
        longer_value: String,
        /// What it must exceed.
        shorter: &'static str,
        /// What it is.
        shorter_value: String,
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

/// Keys of which the first must not exceed the second.
const ORDERED: [(&str, &str); 8] = [
    ("control.start_time_ms_max", "pipeline.lease_ttl_ms"),
    ("gateway.list_default", "gateway.list_max"),
    ("gateway.pulse_every_ms", "gateway.pulse_age_ms_max"),
    ("gateway.retry_after_ms", "gateway.retry_after_ms_max"),
    ("pipeline.backoff_first_ms", "pipeline.backoff_ms_max"),
    ("pipeline.lease_ttl_ms", "store.lease_ttl_ms_max"),
    ("policy.file_bytes_max", "policy.bytes_max"),
    ("sandbox.ready_min", "sandbox.ready_max"),
];

/// What became of changed settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Keys that are in force now.
    pub taken: Vec<&'static str>,
    /// Keys that need a restart.
    pub left: Vec<&'static str>,
}

impl Settings {
    /// Reads all layers. A file that is not there says nothing; without a state directory there is none.
    pub fn load(state: Option<&Path>, above: &Above) -> Result<Self, SettingsError> {
        let mut settings = Self {
            values: KEYS
                .iter()
                .map(|key| (key.name, (key.default(), Origin::Default)))
                .collect(),
        };
        if let Some(path) = state.map(|state| state.join(FILE)) {
            for (name, value) in read_file(&path)? {
                settings.set(&name, value, Origin::File(path.clone()))?;
            }
        }
        settings.hear(&above.environment)?;
        for (name, value) in &above.flags {
            settings.set(name, value.clone(), Origin::Flag)?;
        }
        settings.check_together()?;
        settings.check_retention()?;
        Ok(settings)
    }

    /// What the environment says. Only names that begin with ours are looked at, and all of those must be known.
    fn hear(&mut self, environment: &[(String, String)]) -> Result<(), SettingsError> {
        for (name, value) in environment {
            let key = KEYS.iter().find(|key| key.variable() == *name);
            match key {
                // Empty is as good as unset, as everywhere.
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
        for (lesser, greater) in ORDERED {
            // Each has a default that fits the other's: only what somebody said can be wrong.
            if self.number(lesser) > self.number(greater) {
                return Err(SettingsError::Together {
                    lesser,
                    lesser_value: self.text(lesser).to_owned(),
                    greater,
                    greater_value: self.text(greater).to_owned(),
                });
            }
        }
        Ok(())
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

    /// Takes over what may change while the daemon runs, and says what became of each key that has changed.
    pub fn take_over(&mut self, now: &Self) -> Changes {
        let mut changes = Changes::default();
        for name in now.differing(self) {
            let takes = KEYS.iter().find(|key| key.name == name).map(|key| key.takes);
            match (takes, now.values.get(name)) {
                (Some(Takes::Reload), Some(value)) => {
                    self.values.insert(name, value.clone());
                    changes.taken.push(name);
                }
                (Some(Takes::Reload | Takes::Restart) | None, _) => changes.left.push(name),
            }
        }
        changes
    }

    fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", |(value, _)| value.as_str())
    }

    /// A number; values are checked when they are set.
    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn decimal(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }

    fn small(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).unwrap_or(u32::MAX)
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

    /// How many connections may wait in the kernel.
    pub fn listen_backlog(&self) -> u32 {
        self.small("gateway.listen_backlog")
    }

    /// Free space on the disk of the state below which new work is refused.
    pub fn disk_free_bytes_min(&self) -> u64 {
        self.number("store.disk_free_bytes_min")
    }

    /// Sets up a runtime with these settings, and the bounds of this process. To be called before anything looks at them.
    pub fn apply(&self, config: &mut Config) {
        for bound in KEYS.iter().filter_map(Key::bound) {
            // Every value was checked when it was set here.
            let _ = bound.set(self.number(bound.key()));
        }
        config.stop_grace = self.millis("runtime.stop_grace_ms");
        config.lease_ttl = self.millis("pipeline.lease_ttl_ms");
        config.desktop = self.text("notifications.desktop") == "auto";
        config.pipeline = self.pipeline();
        config.weights = Weights {
            parts: RewardWeights {
                success: self.decimal("reward.weight_success"),
                quality: self.decimal("reward.weight_quality"),
                cost: self.decimal("reward.weight_cost"),
                latency: self.decimal("reward.weight_latency"),
            },
            cost_budget_ms: self.decimal("reward.cost_budget_ms"),
        };
        config.store = StoreSettings {
            disk_free_bytes_min: self.disk_free_bytes_min(),
            index_cache_bytes: self.number("store.index_cache_bytes"),
            journal: match self.text("store.journal") {
                "sled" => JournalKind::Sled,
                _ => JournalKind::Segments,
            },
            segment_bytes: self.count("store.segment_bytes"),
            journal_cache_bytes: self.number("store.journal_cache_bytes"),
        };
        config.sandbox = SandboxSettings {
            ready_min: self.count("sandbox.ready_min"),
            ready_max: self.count("sandbox.ready_max"),
            zygotes_max: self.count("sandbox.zygotes_max"),
            uid: self.text("sandbox.uid").parse().ok(),
        };
    }

    fn pipeline(&self) -> PipelineSettings {
        PipelineSettings {
            in_flight_max: self.count("pipeline.in_flight_max"),
            waiting_workers: self.count("pipeline.waiting_workers"),
            computing_workers: self.count("pipeline.computing_workers"),
            deliveries_max: self.small("pipeline.deliveries_max"),
            restarts_max: self.count("pipeline.restarts_max"),
            restart_window: self.millis("pipeline.restart_window_ms"),
            backoff_first: self.millis("pipeline.backoff_first_ms"),
            backoff_factor: self.decimal("pipeline.backoff_factor"),
            backoff_spread: self.decimal("pipeline.backoff_spread"),
            backoff_max: self.millis("pipeline.backoff_ms_max"),
            probe_time_min: self.millis("pipeline.probe_time_ms_min"),
            commit_tries: self.small("pipeline.commit_tries"),
            sweep_every: self.millis("pipeline.sweep_every_ms"),
            core_watts: self.decimal("pipeline.core_watts"),
            held_per_session_max: self.count("approvals.per_session_max"),
            held_interactive_max: self.millis("approvals.interactive_ms_max"),
            held_unattended_max: self.millis("approvals.unattended_ms_max"),
            control: self.control(),
            retention: self.retention(),
        }
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
            backlog_bytes_max: self.number("gateway.backlog_bytes_max"),
            headers_max: self.count("gateway.headers_max"),
            header_bytes_max: self.count("gateway.header_bytes_max"),
            bodies_bytes_max: self.count("gateway.bodies_bytes_max"),
            pulse_every: self.millis("gateway.pulse_every_ms"),
            pulse_age_max: self.millis("gateway.pulse_age_ms_max"),
            close_time_max: self.millis("gateway.close_time_ms_max"),
        }
    }
}

/// Where the daemon of a state directory listens, unless it is told otherwise.
pub fn default_socket(state: &Path) -> PathBuf {
    state.join("run").join("effectd.sock")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn load(file: &str, variable: Option<(&str, &str)>, flags: &[&str]) -> Result<Settings, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), file).unwrap();
        let named = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let above = Above {
            environment: variable.map(named).into_iter().collect(),
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
        let settings = load("", None, &[]).unwrap();
        assert_eq!(settings.door(), DoorSettings::default());
        let mut config = Config::embedded("unused").unwrap();
        let before = config.clone();
        settings.apply(&mut config);
        assert_eq!(
            (config.pipeline, config.store, config.sandbox),
            (before.pipeline, before.store, before.sandbox)
        );
        assert_eq!(
            (config.lease_ttl, config.stop_grace),
            (before.lease_ttl, before.stop_grace)
        );
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
    fn an_unknown_variable_is_told_with_the_nearest_known_one() {
        let told = load("", Some(("EFFECTD_GATEWAY_BACKLOG", "5")), &[]).unwrap_err();
        let told = told.to_string();
        assert!(
            told.contains("did you mean EFFECTD_GATEWAY_BACKLOG_MAX?"),
            "{told}"
        );
        for reserved in [
            "EFFECTD_STATE",
            "EFFECTD_BLESS",
            "EFFECTD_TEST_X",
            "EFFECTD_FAILPOINT_FD",
        ] {
            assert!(load("", Some((reserved, "x")), &[]).is_ok(), "{reserved}");
        }
        assert!(load("", Some(("EFFECTD_STATES", "x")), &[]).is_err());
    }

    #[test]
    fn what_may_change_while_running_is_taken_over_and_the_rest_is_named() {
        let mut settings = load("", None, &[]).unwrap();
        let now = load(
            "",
            None,
            &[
                "gateway.backlog_max=7",
                "pipeline.in_flight_max=9",
                "log.level=warn",
            ],
        );
        let changes = settings.take_over(&now.unwrap());
        assert_eq!(changes.taken, ["gateway.backlog_max", "log.level"]);
        assert_eq!(changes.left, ["pipeline.in_flight_max"]);
        assert_eq!((settings.door().backlog_max, settings.log_level()), (7, "warn"));
        assert_eq!(
            settings.pipeline().in_flight_max,
            PipelineSettings::default().in_flight_max
        );
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        let told = load("", None, &["sandbox.ready_min=20"]).unwrap_err().to_string();
        assert!(told.contains("`sandbox.ready_max` is 16"), "{told}");
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
            load("", None, &["pipeline.backoff_spread=1.5"]),
            load("", None, &["sandbox.uid=0"]),
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
