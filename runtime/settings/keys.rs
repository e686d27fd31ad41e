//! Everything that can be set, as one table.

use std::sync::LazyLock;
use std::time::Duration;

use effectd_actors::limits as pipeline;
use effectd_bus::limits as store;
use effectd_contracts::bound::Tunable;
use effectd_gateway::limits as gateway;
use effectd_sandbox::limits as sandbox;

use super::bounds::bounds;
use super::kinds::{BYTES, COUNT, DAYS, FEW, Kind, MILLIS};
use crate::config::{INDEX_CACHE_BYTES, JOURNAL_CACHE_BYTES, STOP_GRACE};

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// On SIGHUP, while the daemon runs.
    Reload,
    /// When the daemon is started the next time.
    Restart,
}

/// One thing that can be set.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name in the file and after `--set`.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// The constant that is its default, if that is one of `docs/limits.md`: `gateway::BACKLOG_MAX`.
    pub limit: Option<&'static str>,
    /// When a changed value takes effect.
    pub takes: Takes,
    pub(super) default: Default,
    pub(super) kind: Kind,
}

/// What a key is unless somebody says something.
#[derive(Debug, Clone, Copy)]
pub(super) enum Default {
    /// A constant.
    Constant(fn() -> String),
    /// A bound of one of the parts, which holds its own.
    Bound(&'static dyn Tunable),
}

/// Keys whose variables are shorter than the rule has it: people type them.
const SHORT: [(&str, &str); 2] = [("gateway.socket", "EFFECTD_SOCKET"), ("log.level", "EFFECTD_LOG")];

impl Key {
    fn of(bound: &'static dyn Tunable) -> Self {
        let about = bound.about().trim();
        // What it is; why it has its default is on the page of limits.
        let short = about.find([':', ';', '.']).map_or(about, |end| &about[..end]);
        let (min, max) = bound.range();
        Self {
            name: bound.key(),
            about: short,
            limit: None,
            takes: Takes::Restart,
            default: Default::Bound(bound),
            kind: Kind::Number { min, max },
        }
    }

    /// What it is unless somebody says something.
    pub fn default(&self) -> String {
        match self.default {
            Default::Constant(written) => written(),
            Default::Bound(bound) => bound.default().to_string(),
        }
    }

    /// What values it takes, in words.
    pub fn expected(&self) -> String {
        self.kind.expected()
    }

    /// The bound that it sets, if it is one.
    pub(super) fn bound(&self) -> Option<&'static dyn Tunable> {
        match self.default {
            Default::Constant(_) => None,
            Default::Bound(bound) => Some(bound),
        }
    }

    /// Its name in the environment.
    pub fn variable(&self) -> String {
        let short = SHORT.iter().find(|(name, _)| *name == self.name);
        short.map_or_else(
            || format!("EFFECTD_{}", self.name.replace('.', "_").to_uppercase()),
            |(_, variable)| (*variable).to_owned(),
        )
    }
}

/// How a default is written: times in milliseconds.
trait Written {
    fn written(&self) -> String;
}

macro_rules! written {
    ($($kind:ty),*) => { $(impl Written for $kind {
        fn written(&self) -> String { self.to_string() }
    })* };
}

written!(usize, u32, u64, f64, &str);

impl Written for Duration {
    fn written(&self) -> String {
        self.as_millis().to_string()
    }
}

macro_rules! key {
    ($name:literal = $module:ident::$limit:ident, $kind:expr, $takes:ident, $about:literal) => {
        Key {
            name: $name,
            about: $about,
            limit: Some(concat!(stringify!($module), "::", stringify!($limit))),
            takes: Takes::$takes,
            default: Default::Constant(|| $module::$limit.written()),
            kind: $kind,
        }
    };
    ($name:literal = $default:expr, $kind:expr, $takes:ident, $about:literal) => {
        Key {
            name: $name,
            about: $about,
            limit: None,
            takes: Takes::$takes,
            default: Default::Constant(|| $default.written()),
            kind: $kind,
        }
    };
}

/// A lease that is shorter would be lost by honest work, and a longer one the store does not give.
const LEASE: Kind = Kind::Number {
    min: 1_000,
    max: 3_600_000,
};
/// Beyond this, a factor or a power is a slip.
const FACTOR: Kind = Kind::Decimal { min: 1.0, max: 100.0 };
/// None is no limit.
const AMOUNT: Kind = Kind::Number {
    min: 0,
    max: 1_000_000_000_000,
};
const RATE: Kind = Kind::Number {
    min: 0,
    max: 1_000_000,
};
const SHARE: Kind = Kind::Decimal { min: 0.0, max: 1.0 };
const WEIGHT: Kind = Kind::Decimal {
    min: 0.0,
    max: pipeline::WEIGHT_MAX,
};
const WATTS: Kind = Kind::Decimal {
    min: 0.1,
    max: 1_000.0,
};

/// Everything that can be set, in the order of the names.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys: Vec<Key> = bounds().map(Key::of).collect();
    keys.extend_from_slice(TABLE);
    keys.sort_by_key(|key| key.name);
    keys
});

/// What can be set and is no bound, section by section.
#[rustfmt::skip]
const TABLE: &[Key] = &[
    key!("approvals.interactive_ms_max" = pipeline::HELD_INTERACTIVE_MAX, MILLIS, Restart, "how long an action waits for a person when somebody sits at a terminal"),
    key!("approvals.per_session_max" = pipeline::HELD_PER_SESSION_MAX, FEW, Restart, "actions of one session that may wait for a person at once"),
    key!("approvals.unattended_ms_max" = pipeline::HELD_UNATTENDED_MAX, MILLIS, Restart, "how long an action waits for a person when nobody sits there"),
    key!("control.admission_wait_ms_max" = pipeline::ADMISSION_WAIT_MAX, MILLIS, Restart, "how long a caller waits for a place before it is told `overloaded`"),
    key!("control.breaker_calls_min" = pipeline::BREAKER_CALLS_MIN, COUNT, Restart, "calls before their share of failures means anything to a breaker"),
    key!("control.breaker_cool_down_ms" = pipeline::BREAKER_COOL_DOWN, MILLIS, Restart, "how long a breaker stays open the first time"),
    key!("control.breaker_cool_down_ms_max" = pipeline::BREAKER_COOL_DOWN_MAX, MILLIS, Restart, "how long a breaker stays open at most"),
    key!("control.breaker_error_share_max" = pipeline::BREAKER_ERROR_SHARE_MAX, SHARE, Restart, "share of failed calls that opens a breaker"),
    key!("control.breaker_failures_max" = pipeline::BREAKER_FAILURES_MAX, FEW, Restart, "failures in a row that open a breaker"),
    key!("control.breaker_probes" = pipeline::BREAKER_PROBES, FEW, Restart, "calls let through at once to find out whether a tool works again"),
    key!("control.breaker_release_max" = pipeline::BREAKER_RELEASE_MAX, FEW, Restart, "calls at once at the end of a gradual release"),
    key!("control.breaker_window_ms" = pipeline::BREAKER_WINDOW, MILLIS, Restart, "the time over which a breaker looks at the share of failures"),
    key!("control.budget_calls_max" = "0", AMOUNT, Restart, "actions that may run on behalf of one subject within the window of budgets; 0 for any number"),
    key!("control.budget_cost_micros_max" = "0", AMOUNT, Restart, "what the actions of one subject may cost within the window of budgets, by the prices of their tools, in millionths; 0 for any"),
    key!("control.budget_cpu_ms_max" = "0", AMOUNT, Restart, "processor time that one subject may use within the window of budgets, in milliseconds; 0 for any"),
    key!("control.budget_window_ms" = pipeline::BUDGET_WINDOW, Kind::Number { min: 1_000, max: 31_536_000_000 }, Restart, "the window of budgets"),
    key!("control.principal_rate_max" = "0", RATE, Restart, "actions a second that one principal may ask for; 0 for any number"),
    key!("control.session_actions_max" = pipeline::SESSION_ACTIONS_MAX, COUNT, Restart, "actions a minute that one session may ask for"),
    key!("control.space_rate_max" = "0", RATE, Restart, "actions a second in one space; 0 for any number"),
    key!("control.starts_alone_per_core" = pipeline::STARTS_ALONE_PER_CORE, FEW, Restart, "children that may be starting at once while there is one subject only, for each processor"),
    key!("control.starts_per_core" = pipeline::STARTS_PER_CORE, FEW, Restart, "children that may be starting at once, for each processor"),
    key!("control.subject_in_flight_max" = pipeline::SUBJECT_IN_FLIGHT_MAX, FEW, Restart, "actions on their way on behalf of one subject"),
    key!("control.subject_rate_max" = "0", RATE, Restart, "actions a second on behalf of one subject; 0 for any number"),
    key!("control.tool_in_flight_max" = pipeline::TOOL_IN_FLIGHT_MAX, FEW, Restart, "actions on their way with one tool"),
    key!("control.tool_rate_max" = "0", RATE, Restart, "actions a second with one tool; 0 for any number"),
    key!("control.waiting_max" = pipeline::WAITING_MAX, COUNT, Restart, "callers that may wait for a place, a quarter of them for one subject"),
    key!("gateway.backlog_bytes_max" = gateway::BACKLOG_BYTES_MAX, BYTES, Reload, "bytes of decisions that are accepted and not yet ended before more are turned away"),
    key!("gateway.backlog_max" = gateway::BACKLOG_MAX, COUNT, Reload, "decisions that are accepted and not yet ended before more are turned away"),
    key!("gateway.bodies_bytes_max" = gateway::BODIES_BYTES_MAX, BYTES, Restart, "bytes of bodies that are held for all clients together"),
    key!("gateway.body_time_ms_max" = gateway::BODY_TIME_MAX, MILLIS, Reload, "how long a client may take to send its body"),
    key!("gateway.close_time_ms_max" = gateway::CLOSE_TIME_MAX, MILLIS, Reload, "how long last answers may take when the daemon stops"),
    key!("gateway.connections_max" = gateway::CONNECTIONS_MAX, COUNT, Reload, "connections open at one time"),
    key!("gateway.connections_per_user_max" = gateway::CONNECTIONS_PER_USER_MAX, COUNT, Reload, "connections of one user at one time"),
    key!("gateway.header_bytes_max" = gateway::HEADER_BYTES_MAX, Kind::Number { min: 8_192, max: 1_048_576 }, Reload, "bytes of a request's first line and headers"),
    key!("gateway.header_time_ms_max" = gateway::HEADER_TIME_MAX, MILLIS, Reload, "how long a client may take to send its headers, or idle"),
    key!("gateway.headers_max" = gateway::HEADERS_MAX, Kind::Number { min: 8, max: 1_000 }, Reload, "headers of one request"),
    key!("gateway.listen_backlog" = gateway::LISTEN_BACKLOG, FEW, Restart, "connections that may wait in the kernel to be taken"),
    key!("gateway.pulse_age_ms_max" = gateway::PULSE_AGE_MAX, MILLIS, Restart, "how old the store's last answer may be before the daemon is not ready"),
    key!("gateway.pulse_every_ms" = gateway::PULSE_EVERY, MILLIS, Restart, "how often the store is asked how it stands"),
    key!("gateway.socket" = "", Kind::Text, Restart, "where the daemon listens; empty for run/effectd.sock in the state directory"),
    key!("gateway.socket_mode" = "0600", Kind::Mode, Restart, "who may connect: 0600 for the daemon's user, 0660 for its group too"),
    key!("gateway.wait_time_ms_max" = gateway::WAIT_TIME_MAX, MILLIS, Reload, "how long one request may wait for a receipt"),
    key!("gateway.write_time_ms_max" = gateway::WRITE_TIME_MAX, MILLIS, Reload, "how long a client may leave its answer unread"),
    key!("log.form" = "json", Kind::Word(&["text", "json"]), Restart, "how the daemon's log lines look"),
    key!("log.level" = "info", Kind::Log, Reload, "what the daemon logs: `info`, `effectd_actors=debug` …"),
    key!("notifications.desktop" = "auto", Kind::Word(&["auto", "off"]), Restart, "whether notifications are shown on the desktop: `auto` where there is one, or `off`"),
    key!("pipeline.backoff_factor" = pipeline::BACKOFF_FACTOR, FACTOR, Restart, "by how much each further pause before a retry is longer"),
    key!("pipeline.backoff_first_ms" = pipeline::BACKOFF_FIRST, MILLIS, Restart, "first pause before a passing failure is tried again"),
    key!("pipeline.backoff_ms_max" = pipeline::BACKOFF_MAX, MILLIS, Restart, "longest pause before a retry"),
    key!("pipeline.backoff_spread" = pipeline::BACKOFF_SPREAD, SHARE, Restart, "how far a pause is spread at random, as a share of it"),
    key!("pipeline.commit_tries" = pipeline::COMMIT_TRIES, Kind::Number { min: 1, max: 100 }, Restart, "tries to write a receipt before the action is left to redelivery"),
    key!("pipeline.computing_workers" = pipeline::COMPUTING_WORKERS, Kind::Number { min: 1, max: 256 }, Restart, "workers of a stage that only computes"),
    key!("pipeline.core_watts" = pipeline::CORE_WATTS, WATTS, Restart, "power of one busy processor core, for the energy figure of receipts"),
    key!("pipeline.deliveries_max" = pipeline::DELIVERIES_MAX, Kind::Number { min: 1, max: 1_000 }, Restart, "deliveries of one decision before it is recorded as poison"),
    key!("pipeline.in_flight_max" = pipeline::IN_FLIGHT_MAX, FEW, Restart, "actions between acceptance and receipt at one time"),
    key!("pipeline.lease_ttl_ms" = pipeline::LEASE_TTL, LEASE, Restart, "how long a decision is held by a part that does not get on"),
    key!("pipeline.probe_time_ms_min" = pipeline::PROBE_TIME_MIN, MILLIS, Restart, "time that a probe has in any case"),
    key!("pipeline.restart_window_ms" = pipeline::RESTART_WINDOW, MILLIS, Restart, "the time over which restarts are counted"),
    key!("pipeline.restarts_max" = pipeline::RESTARTS_MAX, Kind::Number { min: 1, max: 1_000 }, Restart, "restarts of one part before the process gives up"),
    key!("pipeline.sweep_every_ms" = pipeline::SWEEP_EVERY, MILLIS, Restart, "how often is looked for what has expired"),
    key!("pipeline.waiting_workers" = pipeline::WAITING_WORKERS, FEW, Restart, "workers of a stage that waits for the disk or for a child"),
    key!("reward.cost_budget_ms" = pipeline::COST_BUDGET_MS, Kind::Decimal { min: 0.001, max: 86_400_000.0 }, Restart, "processor time that counts as the whole cost of an action in its reward"),
    key!("reward.weight_cost" = pipeline::WEIGHT_COST, WEIGHT, Restart, "what cost counts against a reward"),
    key!("reward.weight_latency" = pipeline::WEIGHT_LATENCY, WEIGHT, Restart, "what time counts against a reward"),
    key!("reward.weight_quality" = pipeline::WEIGHT_QUALITY, WEIGHT, Restart, "what quality counts for in a reward"),
    key!("reward.weight_success" = pipeline::WEIGHT_SUCCESS, WEIGHT, Restart, "what being done counts for in a reward"),
    key!("runtime.stop_grace_ms" = STOP_GRACE, MILLIS, Restart, "how long work on its way may take to finish when the daemon stops"),
    key!("sandbox.ready_max" = sandbox::READY_MAX, Kind::Number { min: 1, max: 256 }, Restart, "most children kept ready for each profile and space"),
    key!("sandbox.ready_min" = sandbox::READY_MIN, Kind::Number { min: 1, max: 256 }, Restart, "children kept ready for each profile and space when nothing is going on"),
    key!("sandbox.uid" = "", Kind::Uid, Restart, "the ordinary user that tools run as; empty for the owner of the workspace"),
    key!("sandbox.zygotes_max" = sandbox::ZYGOTES_MAX, Kind::Number { min: 1, max: 256 }, Restart, "most pairs of profile and space that are kept ready"),
    key!("store.disk_free_bytes_min" = store::DISK_FREE_BYTES_MIN, BYTES, Restart, "free space below which new work is refused"),
    key!("store.index_cache_bytes" = INDEX_CACHE_BYTES, BYTES, Restart, "what the store's index may cache in memory"),
    key!("store.journal" = "segments", Kind::Word(&["segments", "sled"]), Restart, "what carries the journal of a store that is made: plain files, or a sled database"),
    key!("store.journal_cache_bytes" = JOURNAL_CACHE_BYTES, BYTES, Restart, "what a journal in sled may cache in memory"),
    key!("store.retention.decision_bytes_max" = 0_u64, Kind::Number { min: 0, max: u64::MAX }, Restart, "how many bytes of ACTION_DECISION are kept, the oldest go first; 0 is any number. What is not settled is kept all the same"),
    key!("store.retention.decision_days" = store::RECEIPT_DAYS, DAYS, Restart, "how long events of ACTION_DECISION are kept; 0 is for ever. What is not settled is kept all the same"),
    key!("store.retention.executed_bytes_max" = 0_u64, Kind::Number { min: 0, max: u64::MAX }, Restart, "how many bytes of ACTION_EXECUTED, and of every other topic, are kept; 0 is any number"),
    key!("store.retention.executed_days" = store::RECEIPT_DAYS, DAYS, Restart, "how long events of ACTION_EXECUTED, and of every other topic, are kept; 0 is for ever"),
    key!("store.retention.letter_days" = store::LETTER_DAYS, DAYS, Restart, "how long dead letters are kept, always longer than receipts; 0 is for ever"),
    key!("store.retention.receipt_bytes_max" = 0_u64, Kind::Number { min: 0, max: u64::MAX }, Restart, "how many bytes of receipts are kept, the oldest go first; 0 is any number, and less than 16777216 is refused: a receipt answers who asks again"),
    key!("store.retention.receipt_days" = store::RECEIPT_DAYS, DAYS, Restart, "how long receipts are kept, and with them their keys and what they replaced; 0 is for ever"),
    key!("store.segment_bytes" = store::SEGMENT_BYTES, Kind::Number { min: 1_048_576, max: 1_073_741_824 }, Restart, "size at which a file of the journal is full"),
];

/// The known key that looks most like this one.
pub(super) fn nearest(name: &str) -> &'static str {
    // Somebody who forgets the section means the key.
    let likeness = |key: &&Key| {
        let bare = key.name.rsplit('.').next().unwrap_or(key.name);
        distance(name, key.name).min(distance(name, bare))
    };
    KEYS.iter().min_by_key(likeness).map_or("", |key| key.name)
}

/// The known variable that looks most like this one.
pub(super) fn nearest_variable(name: &str) -> String {
    let known = KEYS.iter().map(Key::variable);
    known
        .min_by_key(|known| distance(name, known))
        .unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_their_defaults_are_permitted() {
        assert!(TABLE.is_sorted_by_key(|key| key.name), "keep the table in order");
        assert!(
            KEYS.windows(2).all(|pair| pair[0].name != pair[1].name),
            "a name is taken once"
        );
        for key in KEYS.iter() {
            let default = key.default();
            assert_eq!(key.kind.check(&default), Ok(()), "{}: {default}", key.name);
        }
    }

    #[test]
    fn variables_follow_from_names() {
        let variable = |name: &str| KEYS.iter().find(|key| key.name == name).map(Key::variable);
        let expected = Some("EFFECTD_PIPELINE_IN_FLIGHT_MAX".to_owned());
        assert_eq!(variable("pipeline.in_flight_max"), expected);
        assert_eq!(variable("log.level"), Some("EFFECTD_LOG".to_owned()));
        assert_eq!(
            nearest_variable("EFFECTD_PIPELINE_INFLIGHT_MAX"),
            "EFFECTD_PIPELINE_IN_FLIGHT_MAX"
        );
    }
}
