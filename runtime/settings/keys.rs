//! The table of all settings.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use effectd_actors::limits::WEIGHT_MAX;
use effectd_bus::Keep;
use effectd_bus::embedded::JournalKind;
use effectd_bus::limits::RECEIPT_BYTES_MIN;
use effectd_contracts::filter::{span, span_text};
use tracing_subscriber::EnvFilter;

use super::Values;
use super::config::Every;

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// On SIGHUP.
    Reload,
    /// At the next start.
    Restart,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The name in the configuration file and after `--set`.
    pub name: &'static str,
    pub about: &'static str,
    pub takes: Takes,
    kind: Kind,
    field: fn(&mut Values) -> &mut dyn Value,
}

pub(crate) const SOCKET_VARIABLE: &str = "EFFECTD_SOCKET";
/// Settings whose environment variables are shorter than [`Key::variable`] would derive, since people type them.
const SHORT: [(&str, &str); 2] = [("gateway.socket", SOCKET_VARIABLE), ("log.level", "EFFECTD_LOG")];

impl Key {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    pub fn default(&self) -> String {
        self.shown(&Values::default())
    }

    pub(super) fn shown(&self, values: &Values) -> String {
        (self.field)(&mut values.clone()).shown()
    }

    /// Sets the value; the error describes the permitted values.
    pub(super) fn set(&self, values: &mut Values, text: &str) -> Result<(), String> {
        let fits = self.kind.fits(text) && (self.field)(values).set(text);
        if fits { Ok(()) } else { Err(self.expected()) }
    }

    /// The permitted values, in words.
    pub fn expected(&self) -> String {
        match self.kind {
            Kind::Text => "a text".to_owned(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Number(min, max) => format!("a number from {min} to {max}"),
            Kind::Decimal(min, max) => format!("a number from {min} to {max}"),
            Kind::AnyOrFrom(min) => format!("0 (any number) or at least {min}"),
            Kind::Every => {
                format!("`off`, or a span of time from 1s to {}: 90s, 15m, 2h, 7d", span_text(EVERY_MAX))
            }
            Kind::Mode => "\"0600\" or \"0660\"".to_owned(),
            Kind::Address => "an IP address and a port (`127.0.0.1:9464`), or empty".to_owned(),
            Kind::Uid => "the uid of an ordinary user, or empty".to_owned(),
            Kind::Collector => {
                "`http://`, an address of this machine and a port, such as http://127.0.0.1:4318, or empty"
                    .to_owned()
            }
            Kind::Log => "a level (`info`) or levels of modules (`warn,effectd_actors=debug`)".to_owned(),
        }
    }

    /// Whether the value may name a person, a path or a machine.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self.kind, Kind::Text | Kind::Uid | Kind::Address)
    }

    /// The name of the environment variable.
    pub fn variable(&self) -> String {
        let short = SHORT.iter().find(|(name, _)| *name == self.name);
        short.map_or_else(
            || format!("EFFECTD_{}", self.name.replace('.', "_").to_uppercase()),
            |(_, variable)| (*variable).to_owned(),
        )
    }
}

/// The permitted values of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Word(&'static [&'static str]),
    /// A whole number from the first to the second, inclusive.
    Number(u64, u64),
    /// A number from the first to the second, inclusive.
    Decimal(f64, f64),
    /// 0 for no limit, or at least this number.
    AnyOrFrom(u64),
    /// A span of time with its unit, or `off`.
    Every,
    /// File permissions, in octal.
    Mode,
    /// An IP address and a port, or empty.
    Address,
    /// The uid of an ordinary user, or empty.
    Uid,
    /// A collector of spans at a loopback address, or empty.
    Collector,
    Log,
}

impl Kind {
    fn fits(self, text: &str) -> bool {
        let number = text.parse::<u64>();
        match self {
            Kind::Text => true,
            Kind::Word(words) => words.contains(&text),
            Kind::Number(min, max) => number.is_ok_and(|number| (min..=max).contains(&number)),
            Kind::Decimal(min, max) => text.parse::<f64>().is_ok_and(|number| (min..=max).contains(&number)),
            Kind::AnyOrFrom(min) => number.is_ok_and(|number| number == 0 || number >= min),
            Kind::Every => {
                text == "off" || span(text).is_some_and(|every| !every.is_zero() && every <= EVERY_MAX)
            }
            // Connecting to a socket needs write permission, which users outside of the group never get.
            Kind::Mode => matches!(u32::from_str_radix(text, 8), Ok(0o600 | 0o660)),
            Kind::Address => text.is_empty() || text.parse::<SocketAddr>().is_ok(),
            Kind::Uid => text.is_empty() || number.is_ok_and(|uid| uid > 0 && uid < u64::from(u32::MAX)),
            Kind::Collector => text.is_empty() || Collector::parse(text).is_some(),
            Kind::Log => EnvFilter::try_new(text).is_ok(),
        }
    }
}

/// The longest time between two jobs: a leap year.
const EVERY_MAX: Duration = Duration::from_secs(366 * 86_400);

/// The address in `http://127.0.0.1:4318`. Only this machine's own: spans name actions, tools and spaces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Collector(pub(crate) SocketAddr);

impl Collector {
    fn parse(text: &str) -> Option<Self> {
        let address = text.strip_prefix("http://")?.trim_end_matches('/').parse::<SocketAddr>().ok()?;
        (address.ip().is_loopback() && address.port() > 0).then_some(Self(address))
    }
}

/// A time: from a millisecond to a day.
const MILLIS: Kind = Kind::Number(1, 86_400_000);
/// The budget window: up to a year.
const WINDOW: Kind = Kind::Number(1_000, 31_536_000_000);
/// A lease. A shorter one would expire during normal work, and the store grants no longer one.
const LEASE: Kind = Kind::Number(1_000, 3_600_000);
/// The time limit of a preview: shorter than that of a stage.
const PREVIEW: Kind = Kind::Number(100, 20_000);
/// A number of things that cost little.
const COUNT: Kind = Kind::Number(1, 1_000_000_000);
/// A number of things that cost a thread, a descriptor or a megabyte each.
const FEW: Kind = Kind::Number(1, 10_000);
/// A number of processes.
const CHILDREN: Kind = Kind::Number(1, 256);
/// A number of deliveries; the store counts no further.
const DELIVERIES: Kind = Kind::Number(1, 1_000);
const SCAN: Kind = Kind::Number(0, 1_000_000);
/// A limit; 0 for none.
const AMOUNT: Kind = Kind::Number(0, 1_000_000_000_000);
const RATE: Kind = Kind::Number(0, 1_000_000);
const ANY_BYTES: Kind = Kind::Number(0, u64::MAX);
/// A number of days, up to a hundred years; 0 is for ever.
const DAYS: Kind = Kind::Number(0, 36_500);
/// A size: from a mebibyte to a pebibyte.
const BYTES: Kind = Kind::Number(1_048_576, 1_125_899_906_842_624);
/// A quota for blobs: from the largest blob that is read in one piece to a tebibyte.
const QUOTA: Kind = Kind::Number(8_388_608, 1_099_511_627_776);
/// The size of a segment; offsets in a segment have four bytes.
const SEGMENT: Kind = Kind::Number(1_048_576, 1_073_741_824);
const SHARE: Kind = Kind::Decimal(0.0, 1.0);
const FORMULA: Kind = Kind::Number(1, 2);
const WEIGHT: Kind = Kind::Decimal(0.0, WEIGHT_MAX);
const COST: Kind = Kind::Decimal(0.001, 86_400_000.0);
const WATTS: Kind = Kind::Decimal(0.1, 1_000.0);

/// A field of [`Values`], set and shown as text.
trait Value {
    fn shown(&self) -> String;
    /// Returns `false` if the text is not a permitted value.
    fn set(&mut self, text: &str) -> bool;
}

fn parsed<T: FromStr, V>(into: &mut V, text: &str, make: impl FnOnce(T) -> V) -> bool {
    text.parse().map(|value| *into = make(value)).is_ok()
}

macro_rules! plain {
    ($($kind:ty),*) => { $(impl Value for $kind {
        fn shown(&self) -> String { self.to_string() }
        fn set(&mut self, text: &str) -> bool { parsed(self, text, |value: $kind| value) }
    })* };
}

plain!(bool, usize, u32, u64, f64, String);

/// In milliseconds.
impl Value for Duration {
    fn shown(&self) -> String {
        self.as_millis().to_string()
    }

    fn set(&mut self, text: &str) -> bool {
        parsed(self, text, Duration::from_millis)
    }
}

/// With its unit; `off` is never.
impl Value for Every {
    fn shown(&self) -> String {
        self.0.map_or_else(|| "off".to_owned(), span_text)
    }

    fn set(&mut self, text: &str) -> bool {
        *self = Every(span(text));
        true
    }
}

/// In days; 0 is for ever (`None`).
impl Value for Option<Duration> {
    fn shown(&self) -> String {
        self.map_or(0, |age| age.as_secs() / 86_400).to_string()
    }

    fn set(&mut self, text: &str) -> bool {
        parsed(self, text, |days| Keep::days(days).age.filter(|_| days > 0))
    }
}

/// 0 is no limit (`None`).
impl Value for Option<u64> {
    fn shown(&self) -> String {
        self.unwrap_or(0).to_string()
    }

    fn set(&mut self, text: &str) -> bool {
        parsed(self, text, |most| Some(most).filter(|most| *most > 0))
    }
}

/// 0 is no limit (`None`).
impl Value for Option<NonZeroU32> {
    fn shown(&self) -> String {
        self.map_or(0, NonZeroU32::get).to_string()
    }

    fn set(&mut self, text: &str) -> bool {
        parsed(self, text, NonZeroU32::new)
    }
}

/// The number of a user; empty is `None`.
impl Value for Option<u32> {
    fn shown(&self) -> String {
        self.map(|uid| uid.to_string()).unwrap_or_default()
    }

    fn set(&mut self, text: &str) -> bool {
        *self = text.parse().ok();
        true
    }
}

/// Empty is `None`.
impl Value for Option<Collector> {
    fn shown(&self) -> String {
        self.map(|Collector(to)| format!("http://{to}")).unwrap_or_default()
    }

    fn set(&mut self, text: &str) -> bool {
        *self = Collector::parse(text);
        true
    }
}

/// An address; empty is `None`.
impl Value for Option<SocketAddr> {
    fn shown(&self) -> String {
        self.map(|address| address.to_string()).unwrap_or_default()
    }

    fn set(&mut self, text: &str) -> bool {
        *self = text.parse().ok();
        true
    }
}

impl Value for JournalKind {
    fn shown(&self) -> String {
        self.as_str().to_owned()
    }

    fn set(&mut self, text: &str) -> bool {
        JournalKind::named(text).map(|kind| *self = kind).is_some()
    }
}

macro_rules! key {
    ($name:literal, $kind:expr, $takes:ident, $about:literal, $($field:tt)+) => {
        Key {
            name: $name,
            about: $about,
            takes: Takes::$takes,
            kind: $kind,
            field: |values| &mut values.$($field)+,
        }
    };
}

/// All settings, sorted by name.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key!("approvals.interactive_ms_max", MILLIS, Restart, "how long an approval stays open when somebody waits at a terminal", pipeline.held_interactive_max),
    key!("approvals.per_session_max", FEW, Restart, "actions of one session that may await approval at the same time", pipeline.held_per_session_max),
    key!("approvals.unattended_ms_max", MILLIS, Restart, "how long an approval stays open when nobody waits at a terminal", pipeline.held_unattended_max),
    key!("backup.every", Kind::Every, Restart, "how often the daemon makes a backup: `24h`; `off` for never", jobs.backup_every),
    key!("backup.keep", FEW, Restart, "scheduled backups that are kept; the oldest go first", jobs.backup_keep),
    key!("backup.keys", Kind::Text, Restart, "directory of the backups' keys, best on another disk; empty to copy none", jobs.backup_keys),
    key!("backup.to", Kind::Text, Restart, "directory of the scheduled backups, each in a directory named by its time and the state's id", jobs.backup_to),
    key!("check.every", Kind::Every, Restart, "how often the daemon reads the whole journal and checks every block: `7d`; `off` for never", jobs.check_every),
    key!("control.admission_wait_ms_max", MILLIS, Restart, "how long a caller waits for a free slot before it is refused as `overloaded`", pipeline.control.admission_wait_max),
    key!("control.breaker_cool_down_ms", MILLIS, Restart, "how long a breaker stays open the first time", pipeline.control.breaker.cool_down),
    key!("control.breaker_error_share_max", SHARE, Restart, "share of failed calls that opens a breaker", pipeline.control.breaker.error_share_max),
    key!("control.breaker_failures_max", FEW, Restart, "failures in a row that open a breaker", pipeline.control.breaker.failures_max),
    key!("control.budget_calls_max", AMOUNT, Restart, "actions of one subject within the budget window; 0 for no limit", pipeline.control.budgets.calls_max),
    key!("control.budget_cost_micros_max", AMOUNT, Restart, "cost of one subject's actions within the budget window, by the prices of their tools, in millionths; 0 for no limit", pipeline.control.budgets.cost_micros_max),
    key!("control.budget_cpu_ms_max", AMOUNT, Restart, "processor time of one subject within the budget window, in milliseconds; 0 for no limit", pipeline.control.budgets.cpu_ms_max),
    key!("control.budget_window_ms", WINDOW, Restart, "the budget window", pipeline.control.budgets.window),
    key!("control.principal_rate_max", RATE, Restart, "actions per second of one principal; 0 for no limit", pipeline.control.rates.principal),
    key!("control.quarantined_subject_max", FEW, Restart, "quarantined actions kept for one subject; beyond that, only the receipt is stored", pipeline.quarantined_max),
    key!("control.session_actions_max", COUNT, Restart, "actions per minute of one session; no request names a session yet", pipeline.control.session_actions_max),
    key!("control.space_rate_max", RATE, Restart, "actions per second in one space; 0 for no limit", pipeline.control.rates.space),
    key!("control.subject_in_flight_max", FEW, Restart, "actions of one subject in flight", pipeline.control.subject_in_flight_max),
    key!("control.subject_rate_max", RATE, Restart, "actions per second of one subject; 0 for no limit", pipeline.control.rates.subject),
    key!("control.tool_in_flight_max", FEW, Restart, "actions of one tool in flight", pipeline.control.tool_in_flight_max),
    key!("control.tool_rate_max", RATE, Restart, "actions per second of one tool; 0 for no limit", pipeline.control.rates.tool),
    key!("control.waiting_max", COUNT, Restart, "callers that may wait for a free slot; one subject may have a quarter of them", pipeline.control.waiting_max),
    key!("gateway.backlog_bytes_max", BYTES, Reload, "bytes of accepted, unfinished decisions above which new ones are refused", door.backlog_bytes_max),
    key!("gateway.backlog_max", COUNT, Reload, "accepted, unfinished decisions above which new ones are refused", door.backlog_max),
    key!("gateway.behind_proxy", Kind::Word(&["true", "false"]), Restart, "`true` if a proxy does TLS before gateway.listen: the last address in X-Forwarded-For is then the client's", door.behind_proxy),
    key!("gateway.body_time_ms_max", MILLIS, Reload, "how long a client may take to send a request body", door.body_time_max),
    key!("gateway.connections_max", COUNT, Reload, "open connections at the socket, and as many over TCP; the limit of open files may bound it", door.connections_max),
    key!("gateway.connections_per_user_max", COUNT, Reload, "open connections of one user; one address or account over TCP has an eighth of it", door.connections_per_user_max),
    key!("gateway.header_time_ms_max", MILLIS, Reload, "how long a client may take to send headers, or idle", door.header_time_max),
    key!("gateway.hosts", Kind::Text, Reload, "names of this daemon in `Host`, without ports, beside localhost and the address of gateway.listen: `effectd.example, …`", door.hosts),
    key!("gateway.listen", Kind::Address, Restart, "TCP address for holders of tokens; off loopback only with a certificate or behind a proxy; empty for none", door.listen),
    key!("gateway.socket", Kind::Text, Restart, "the daemon's socket; empty for run/effectd.sock in the state directory", socket),
    key!("gateway.socket_mode", Kind::Mode, Restart, "who may connect: 0600 for the daemon's user, 0660 for its group too", socket_mode),
    key!("gateway.tls_cert", Kind::Text, Restart, "file of the certificate for gateway.listen, with those above it, in PEM; read again when it changes; empty for no TLS", door.tls_cert),
    key!("gateway.tls_key", Kind::Text, Restart, "file of the certificate's key, in PEM", door.tls_key),
    key!("gateway.token_rate_max", RATE, Restart, "requests per second of one token; 0 for no limit", door.token_rate_max),
    key!("gateway.wait_time_ms_max", MILLIS, Reload, "how long one request may wait for a receipt", door.wait_time_max),
    key!("gateway.write_time_ms_max", MILLIS, Reload, "how long a client may leave a response unread", door.write_time_max),
    key!("log.form", Kind::Word(&["text", "json"]), Restart, "format of the daemon's log lines", log_form),
    key!("log.level", Kind::Log, Reload, "log level of the daemon: `info`, `effectd_actors=debug` …", log_level),
    key!("log.otlp", Kind::Collector, Restart, "an OpenTelemetry collector on this machine that gets the spans of actions, such as http://127.0.0.1:4318; needs the cargo feature `otlp`", otlp),
    key!("notifications.desktop", Kind::Word(&["auto", "off"]), Restart, "notifications on the desktop: `auto` (if there is one) or `off`", desktop),
    key!("notifications.kept_max", FEW, Restart, "notifications that are kept; the oldest go first", pipeline.notifications_max),
    key!("oidc.audience", Kind::Text, Reload, "what the `aud` of a JWT must name", door.oidc.audience),
    key!("oidc.issuer", Kind::Text, Reload, "the `iss` of the JWTs that are accounts; empty for none", door.oidc.issuer),
    key!("oidc.jwks_file", Kind::Text, Reload, "the file of the issuer's public keys (JWKS), read again when it changes", door.oidc.jwks_file),
    key!("oidc.jwks_source", Kind::Text, Reload, "instead of the file: the connection by HTTP of oidc.org whose first GET route gives the issuer's public keys, such as `http.idp`", door.oidc.jwks_source),
    key!("oidc.name_claim", Kind::Text, Reload, "the claim that names the account; tokens of the same organisation and name are the same account", door.oidc.name_claim),
    key!("oidc.org", Kind::Text, Reload, "the organisation of the issuer's accounts, as named in the policy", door.oidc.org),
    key!("oidc.roles_claim", Kind::Text, Reload, "the claim whose values `[claims]` of the policy maps to roles", door.oidc.roles_claim),
    key!("pipeline.core_watts", WATTS, Restart, "power of one busy processor core, for the energy figure of receipts", pipeline.core_watts),
    key!("pipeline.deliveries_max", DELIVERIES, Restart, "deliveries of one decision before it becomes a dead letter", pipeline.deliveries_max),
    key!("pipeline.in_flight_max", FEW, Restart, "actions in flight", pipeline.in_flight_max),
    key!("pipeline.lease_ttl_ms", LEASE, Restart, "how long a stalled stage holds a decision before another worker takes it", lease_ttl),
    key!("pipeline.preview_time_ms_max", PREVIEW, Restart, "time limit of a preview", pipeline.preview_time_max),
    key!("pipeline.scan_entries_max", SCAN, Restart, "files and folders of a space that are compared before and after a tool of the embedding program runs; 0 for none", pipeline.scan_entries_max),
    key!("pipeline.sweep_every_ms", MILLIS, Restart, "how often expired things are removed", pipeline.sweep_every),
    key!("plugins.allow_code_execution", Kind::Word(&["true", "false"]), Restart, "`true` to let scripts of plugins run; otherwise plugins are listed, and their calls refused", pipeline.plugins.allow_code_execution),
    key!("plugins.root", Kind::Text, Restart, "folder with the folder `actions`, which has the packages of plugins; outside of every space; empty for plugins in the state directory", plugins_root),
    key!("reward.cost_budget_ms", COST, Restart, "processor time at which an action's cost counts fully in its reward", pipeline.weights.cost_budget_ms),
    key!("reward.formula", FORMULA, Restart, "2 to add the reward by formula 2 to receipts and events; otherwise 1", pipeline.weights.formula),
    key!("reward.weight_cost", WEIGHT, Restart, "weight of the cost in the reward", pipeline.weights.parts.cost),
    key!("reward.weight_latency", WEIGHT, Restart, "weight of the latency in the reward", pipeline.weights.parts.latency),
    key!("reward.weight_quality", WEIGHT, Restart, "weight of the quality in the reward", pipeline.weights.parts.quality),
    key!("reward.weight_success", WEIGHT, Restart, "weight of success in the reward", pipeline.weights.parts.success),
    key!("runtime.stop_grace_ms", MILLIS, Restart, "how long running actions may take to finish when the daemon stops", stop_grace),
    key!("sandbox.ready_max", CHILDREN, Restart, "maximum of children kept ready for each profile and space", sandbox.ready_max),
    key!("sandbox.ready_min", CHILDREN, Restart, "children kept ready for each profile and space when idle", sandbox.ready_min),
    key!("sandbox.uid", Kind::Uid, Restart, "uid that tools run as, not root; empty for the owner of the workspace", sandbox.uid),
    key!("sandbox.zygotes_max", CHILDREN, Restart, "maximum of pairs of profile and space that are kept ready", sandbox.zygotes_max),
    key!("store.blob_quota_bytes", QUOTA, Restart, "space on disk for pre-images, as much for artifacts and as much for results, in each space", store.blob_quota_bytes),
    key!("store.disk_free_bytes_min", BYTES, Restart, "free disk space below which new work is refused", store.disk_free_bytes_min),
    key!("store.index_cache_bytes", BYTES, Restart, "memory for the cache of the store's index", store.index_cache_bytes),
    key!("store.journal", Kind::Word(&["files", "sled"]), Restart, "journal engine of a new store: plain files, or a sled database", store.journal),
    key!("store.journal_cache_bytes", BYTES, Restart, "memory for the cache of a sled journal", store.journal_cache_bytes),
    key!("store.retention.decision_bytes_max", ANY_BYTES, Restart, "bytes of ACTION_DECISION that are kept; the oldest go first; 0 for no limit. Unfinished decisions are always kept", decisions().bytes),
    key!("store.retention.decision_days", DAYS, Restart, "days that events of ACTION_DECISION are kept; 0 for ever. Unfinished decisions are always kept", decisions().age),
    key!("store.retention.executed_bytes_max", ANY_BYTES, Restart, "bytes of ACTION_EXECUTED, and of every other topic, that are kept; 0 for no limit", pipeline.retention.others.keep.bytes),
    key!("store.retention.executed_days", DAYS, Restart, "days that events of ACTION_EXECUTED, and of every other topic, are kept; 0 for ever", pipeline.retention.others.keep.age),
    key!("store.retention.letter_days", DAYS, Restart, "days that dead letters are kept, always longer than receipts; 0 for ever", pipeline.retention.letters),
    key!("store.retention.receipt_bytes_max", Kind::AnyOrFrom(RECEIPT_BYTES_MIN), Restart, "bytes of receipts that are kept; the oldest go first; 0 for no limit", pipeline.retention.receipts.bytes),
    key!("store.retention.receipt_days", DAYS, Restart, "days that receipts are kept, with their keys and pre-images; 0 for ever", pipeline.retention.receipts.age),
    key!("store.segment_bytes", SEGMENT, Restart, "size of a journal segment", store.segment_bytes),
    key!("telemetry.listen", Kind::Address, Restart, "TCP address at which everybody may read `/metrics`, `/healthz` and `/readyz`; empty for none", telemetry_listen),
];

pub(super) fn nearest(name: &str) -> &'static str {
    // The name may lack its section.
    let likeness = |key: &&Key| {
        let bare = key.name.rsplit('.').next().unwrap_or(key.name);
        distance(name, key.name).min(distance(name, bare))
    };
    KEYS.iter().min_by_key(likeness).map_or("", |key| key.name)
}

pub(super) fn nearest_variable(name: &str) -> String {
    let known = KEYS.iter().map(Key::variable);
    known.min_by_key(|known| distance(name, known)).unwrap_or_default()
}

/// The Levenshtein distance of two texts.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    // A name of more than 128 characters is not a typing error.
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
        assert!(KEYS.is_sorted_by(|left, right| left.name < right.name), "keep the table in order");
        for key in KEYS {
            let default = key.default();
            let mut values = Values::default();
            assert_eq!(key.set(&mut values, &default), Ok(()), "{}: {default}", key.name);
            assert_eq!(values, Values::default(), "{}", key.name);
        }
    }

    #[test]
    fn variables_follow_from_names() {
        let variable = |name: &str| Key::named(name).map(Key::variable);
        let expected = Some("EFFECTD_PIPELINE_IN_FLIGHT_MAX".to_owned());
        assert_eq!(variable("pipeline.in_flight_max"), expected);
        assert_eq!(variable("log.level"), Some("EFFECTD_LOG".to_owned()));
        assert_eq!(nearest_variable("EFFECTD_PIPELINE_INFLIGHT_MAX"), "EFFECTD_PIPELINE_IN_FLIGHT_MAX");
    }
}
