//! The gateway's settings, and how they are shared while it runs.

use std::fs::metadata;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::limits::{NETWORK_PART, NETWORK_WAITS_PART, STREAMS_MAX};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Open connections at the socket, and as many over TCP: neither fills the other. A planner needs one, and so does each stream;
    /// 5,000 streams leave a thousand for requests. An idle one costs about ten kilobytes and a file, so that both doors
    /// together stay below 13,000 files.
    pub connections_max: usize,
    /// Open connections of one user: fewer than all, so that one user leaves room for others.
    pub connections_per_user_max: usize,
    /// How long a client may take to send its headers, and how long a connection may idle between two requests.
    pub header_time_max: Duration,
    /// How long a client may take to send its body: a megabyte over a local socket takes milliseconds.
    pub body_time_max: Duration,
    /// How long a client may leave its answer unread before its connection is closed.
    pub write_time_max: Duration,
    /// How long one request may wait for a receipt. To wait longer, a client repeats the request.
    pub wait_time_max: Duration,
    /// Accepted decisions that have not ended; more are refused as `overloaded`.
    pub backlog_max: u64,
    /// Bytes of these decisions, which wait on disk.
    pub backlog_bytes_max: u64,
    /// The TCP address for holders of tokens.
    pub listen: Option<SocketAddr>,
    /// The file of the certificate and those above it, in PEM; empty for no TLS.
    pub tls_cert: String,
    /// The file of its key.
    pub tls_key: String,
    /// A proxy ends TLS, and adds the address of its client to `X-Forwarded-For`.
    pub behind_proxy: bool,
    /// The names in `Host` that mean this daemon, beside `localhost` and the address; with commas between them.
    pub hosts: String,
    /// Requests a second with one token, and as many at once. In force from the start on.
    pub token_rate_max: Option<NonZeroU32>,
    pub oidc: OidcSettings,
}

impl Settings {
    /// The most connections over TCP: of all together, and of one address. As many requests of one account are in progress.
    pub(crate) fn network_connections(&self) -> (usize, usize) {
        (self.connections_max, (self.connections_per_user_max / NETWORK_PART).max(1))
    }

    /// Whether browsers reach this daemon over TLS, its own or that of a proxy.
    pub(crate) fn is_tls(&self) -> bool {
        self.behind_proxy || !self.tls_cert.is_empty()
    }

    /// These settings for a process that may open this many files. Each door has at most three eighths of them: when both are full,
    /// the store and the sandbox still have a quarter.
    pub fn within_files(mut self, files: usize) -> Self {
        let (wanted, fit) = (self.connections_max, (files / 8 * 3).max(1));
        if wanted > fit {
            tracing::info!(wanted, fit, files, "the limit of open files bounds gateway.connections_max");
            self.connections_max = fit;
            self.connections_per_user_max = (self.connections_per_user_max * fit / wanted).max(1);
        }
        self
    }

    /// The most requests over TCP that wait: of all together, and of one account.
    pub(crate) fn network_waits(&self) -> (usize, usize) {
        let (all, each) = self.network_connections();
        ((all / NETWORK_WAITS_PART).max(1), (each / NETWORK_WAITS_PART).max(1))
    }
}

/// The OpenID Connect issuer whose JWTs are accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcSettings {
    /// The `iss` of its tokens; empty for none.
    pub issuer: String,
    /// What the `aud` of a token must name.
    pub audience: String,
    /// The file of its keys; empty if they come from `jwks_source`.
    pub jwks_file: String,
    /// The source of the connection of `org` that gives its keys: `http.idp`.
    pub jwks_source: String,
    /// The organisation of its accounts.
    pub org: String,
    /// The claim that has the name of the account.
    pub name_claim: String,
    /// The claim whose values `[claims]` of the policy maps to roles.
    pub roles_claim: String,
}

impl Default for OidcSettings {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            audience: String::new(),
            jwks_file: String::new(),
            jwks_source: String::new(),
            org: String::new(),
            name_claim: "sub".to_owned(),
            roles_claim: "roles".to_owned(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: STREAMS_MAX,
            connections_per_user_max: STREAMS_MAX / 2,
            header_time_max: Duration::from_secs(15),
            body_time_max: Duration::from_secs(10),
            write_time_max: Duration::from_secs(15),
            wait_time_max: Duration::from_secs(600),
            backlog_max: 100_000,
            backlog_bytes_max: 1 << 30,
            listen: None,
            tls_cert: String::new(),
            tls_key: String::new(),
            behind_proxy: false,
            hosts: String::new(),
            token_rate_max: NonZeroU32::new(200),
            oidc: OidcSettings::default(),
        }
    }
}

/// Inode, size, and when the kernel last saw a change of a file or of its permissions.
pub(crate) type Stamp = (u64, u64, i64, i64);

/// How a file is now; `None` if it is missing.
pub(crate) fn stamp(file: &str) -> Option<Stamp> {
    let found = metadata(file).ok()?;
    Some((found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}

/// Settings that can be replaced while the gateway runs. Every new connection and request reads the current ones.
#[derive(Debug, Clone)]
pub struct SharedSettings(Arc<RwLock<Arc<Settings>>>);

impl SharedSettings {
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    pub fn get(&self) -> Arc<Settings> {
        self.0.read().clone()
    }

    pub fn set(&self, settings: Settings) {
        *self.0.write() = Arc::new(settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{STREAMS_PER_ACCOUNT_MAX, STREAMS_RESERVE};

    #[test]
    fn waits_over_tcp_leave_connections_for_others() {
        let settings = Settings::default();
        assert_eq!((settings.network_connections(), settings.network_waits()), ((6_144, 384), (3_072, 192)));
        let least = Settings { connections_max: 1, connections_per_user_max: 1, ..settings };
        assert_eq!((least.network_connections(), least.network_waits()), ((1, 1), (1, 1)));
    }

    #[test]
    fn connections_fit_into_streams_and_files() {
        let settings = Settings::default();
        let ((all, each), tokens) = (settings.network_connections(), STREAMS_MAX - STREAMS_RESERVE);
        assert!(tokens >= 5_000 && all - tokens >= 1_000, "streams leave connections for requests");
        assert!(each >= STREAMS_PER_ACCOUNT_MAX && each * 16 <= all, "no address has a large part of them");
        // What the unit allows, a machine with few, and with hardly any.
        let fit = |files: usize| {
            let Settings { connections_max, connections_per_user_max, .. } =
                settings.clone().within_files(files);
            (connections_max, connections_per_user_max)
        };
        assert_eq!([65_536, 1_024, 1].map(fit), [(6_144, 3_072), (384, 192), (1, 1)]);
    }
}
