//! Everything that can be set, as one table.

use effectd_gateway::limits;

use crate::config::STOP_GRACE;

/// What values a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A number within these bounds.
    Number { min: u64, max: u64 },
    /// Permissions, in octal.
    Mode,
}

/// One thing that can be set.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file and after `--set`.
    pub name: &'static str,
    /// Its name in the environment.
    pub variable: &'static str,
    /// What it is for.
    pub about: &'static str,
    pub(super) default: fn() -> String,
    pub(super) kind: Kind,
}

macro_rules! key {
    ($name:literal, $variable:literal, $kind:expr, $default:expr, $about:literal) => {
        Key {
            name: $name,
            variable: $variable,
            about: $about,
            default: || $default.to_string(),
            kind: $kind,
        }
    };
}

const MILLIS: Kind = Kind::Number {
    min: 1,
    max: 86_400_000,
};
const COUNT: Kind = Kind::Number {
    min: 1,
    max: 1_000_000_000,
};

/// Everything that can be set.
pub const KEYS: [Key; 12] = [
    key!(
        "gateway.backlog_max",
        "EFFECTD_GATEWAY_BACKLOG_MAX",
        COUNT,
        limits::BACKLOG_MAX,
        "decisions that are accepted and not yet ended before more are turned away"
    ),
    key!(
        "gateway.body_time_ms_max",
        "EFFECTD_GATEWAY_BODY_TIME_MS_MAX",
        MILLIS,
        limits::BODY_TIME_MAX.as_millis(),
        "how long a client may take to send its body"
    ),
    key!(
        "gateway.connections_max",
        "EFFECTD_GATEWAY_CONNECTIONS_MAX",
        COUNT,
        limits::CONNECTIONS_MAX,
        "connections open at one time"
    ),
    key!(
        "gateway.connections_per_user_max",
        "EFFECTD_GATEWAY_CONNECTIONS_PER_USER_MAX",
        COUNT,
        limits::CONNECTIONS_PER_USER_MAX,
        "connections of one user at one time"
    ),
    key!(
        "gateway.header_time_ms_max",
        "EFFECTD_GATEWAY_HEADER_TIME_MS_MAX",
        MILLIS,
        limits::HEADER_TIME_MAX.as_millis(),
        "how long a client may take to send its headers, or idle"
    ),
    key!(
        "gateway.socket",
        "EFFECTD_SOCKET",
        Kind::Text,
        "",
        "where the daemon listens; empty for run/effectd.sock in the state directory"
    ),
    key!(
        "gateway.socket_mode",
        "EFFECTD_GATEWAY_SOCKET_MODE",
        Kind::Mode,
        "0600",
        "who may connect: 0600 for the daemon's user, 0660 for its group too"
    ),
    key!(
        "gateway.wait_time_ms_max",
        "EFFECTD_GATEWAY_WAIT_TIME_MS_MAX",
        MILLIS,
        limits::WAIT_TIME_MAX.as_millis(),
        "how long one request may wait for a receipt"
    ),
    key!(
        "gateway.write_time_ms_max",
        "EFFECTD_GATEWAY_WRITE_TIME_MS_MAX",
        MILLIS,
        limits::WRITE_TIME_MAX.as_millis(),
        "how long a client may leave its answer unread"
    ),
    key!(
        "log.form",
        "EFFECTD_LOG_FORM",
        Kind::Word(&["text", "json"]),
        "json",
        "how the daemon's log lines look"
    ),
    key!(
        "log.level",
        "EFFECTD_LOG",
        Kind::Text,
        "info",
        "what the daemon logs: `info`, `effectd_actors=debug` …"
    ),
    key!(
        "runtime.stop_grace_ms",
        "EFFECTD_RUNTIME_STOP_GRACE_MS",
        MILLIS,
        STOP_GRACE.as_millis(),
        "how long work on its way may take to finish when the daemon stops"
    ),
];

impl Kind {
    pub(super) fn check(self, value: &str) -> Result<(), String> {
        match self {
            Kind::Text => Ok(()),
            Kind::Word(words) if words.contains(&value) => Ok(()),
            Kind::Word(words) => Err(format!("one of {}", words.join(", "))),
            Kind::Number { min, max } => match value.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(()),
                Ok(_) | Err(_) => Err(format!("a number from {min} to {max}")),
            },
            // Without write permission nobody can connect; others are never let in.
            Kind::Mode => match u32::from_str_radix(value, 8) {
                Ok(0o600 | 0o660) => Ok(()),
                Ok(_) | Err(_) => Err("\"0600\" or \"0660\"".to_owned()),
            },
        }
    }
}

/// The known key that looks most like this one.
pub(super) fn nearest(name: &str) -> &'static str {
    // Somebody who forgets the section means the key.
    let likeness = |key: &Key| {
        let bare = key.name.rsplit('.').next().unwrap_or(key.name);
        distance(name, key.name).min(distance(name, bare))
    };
    KEYS.iter()
        .min_by_key(|key| likeness(key))
        .map_or("", |key| key.name)
}

/// How many letters must be changed, put in or left out to make one text from the other.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    // A name that long is not a slip; it is not worth the work.
    for (at, letter) in left.chars().take(128).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (place, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[right.len()]
}
