//! Access tokens of connections whose service speaks OAuth 2.0.
//!
//! A token is got from the token endpoint, which is another connection, and kept sealed. However many calls need one, one exchange gets
//! it. The exchange is a task of its own: a call that gives up does not lose a refresh token that the service has replaced.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, Store, StoreError, Swap};
use effectd_contracts::exchange::form;
use effectd_contracts::{
    Clock, Code, Connection, ConnectionId, CredentialHeader, Exchange, ExchangeFailure, ExchangeFault,
    ExchangeReply, Failure, Method, OAuth, OrgId, Phase, Timestamp,
};
use effectd_egress::{Broker, Credential, Order, Origin, Secret};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::Services;
use super::connections::{CONNECTIONS, Enabled, SecretValue};
use super::egress::origin;
use crate::limits::{
    SECRET_BYTES_MAX, TOKEN_ANSWER_BYTES_MAX, TOKEN_LEFT_MIN, TOKEN_MS_MAX, TOKEN_VALID, TOKEN_VALID_MAX,
};
use crate::metrics::Metrics;
use crate::stored::{delete, json_bytes, read_json};

/// Tokens by the id of their connection, sealed.
const TOKENS: &str = "oauth-tokens";

/// What the sealed entry of a connection's tokens holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Tokens {
    access: Option<Access>,
    /// The refresh token that the service gave in place of the one in the secret.
    refresh: Option<SecretValue>,
    /// When the secret was set that the tokens come from: another value of it is a new beginning.
    secret_set_at: Option<Timestamp>,
    /// Whether a refresh was begun and its end is unknown: the service may have replaced the refresh token by one that is lost.
    in_doubt: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Access {
    value: SecretValue,
    expires_at: Timestamp,
}

/// The entry of a connection's tokens.
#[derive(Clone)]
struct Entry {
    store: Arc<dyn Store>,
    changes: Arc<tokio::sync::Mutex<()>>,
    connection_id: ConnectionId,
}

impl Entry {
    /// The tokens that come from the secret of this time, with their version.
    fn read(&self, secret_set_at: Option<Timestamp>) -> Result<(Tokens, Expect), StoreError> {
        let entry = self.store.entry(&FamilyName::new(TOKENS)?, self.connection_id.as_str())?;
        let expect = entry.as_ref().map_or(Expect::Absent, |entry| Expect::Version(entry.version));
        let tokens = entry
            .as_ref()
            .and_then(read_json)
            .filter(|tokens: &Tokens| tokens.secret_set_at == secret_set_at);
        Ok((tokens.unwrap_or_else(|| Tokens { secret_set_at, ..Tokens::default() }), expect))
    }

    /// Changes the tokens, unless the connection was deleted meanwhile.
    async fn write(
        &self,
        secret_set_at: Option<Timestamp>,
        edit: impl FnOnce(&mut Tokens),
    ) -> Result<(), StoreError> {
        let _lock = self.changes.lock().await;
        let connection = self.store.entry(&FamilyName::new(CONNECTIONS)?, self.connection_id.as_str())?;
        let Some(connection) = connection.as_ref().and_then(read_json::<Connection>) else {
            return Ok(());
        };
        let (mut tokens, expect) = self.read(secret_set_at)?;
        let before = tokens.clone();
        edit(&mut tokens);
        tokens.access.take_if(|_| !connection.enabled);
        if tokens == before {
            return Ok(());
        }
        let swaps = vec![put(&self.connection_id, expect, &tokens)?];
        self.store.change(Change { swaps, ..Change::default() }).await.map(drop)
    }
}

fn put(id: &ConnectionId, expect: Expect, tokens: &Tokens) -> Result<Swap, StoreError> {
    let change = KvChange::Put(NewBody::Sealed(json_bytes(tokens)));
    Ok(Swap { family: FamilyName::new(TOKENS)?, key: id.to_string(), expect, change })
}

/// Removes the tokens of a connection that is deleted. One that is disabled keeps a refresh token that its service has replaced, since
/// it is stored nowhere else.
pub(crate) fn drop_tokens(
    store: &dyn Store,
    id: &ConnectionId,
    is_deleted: bool,
) -> Result<Option<Swap>, StoreError> {
    let family = FamilyName::new(TOKENS)?;
    let Some(entry) = store.entry(&family, id.as_str())? else {
        return Ok(None);
    };
    let expect = Expect::Version(entry.version);
    match read_json::<Tokens>(&entry).filter(|_| !is_deleted) {
        Some(tokens) => put(id, expect, &Tokens { access: None, ..tokens }).map(Some),
        None => Ok(Some(delete(family, id.as_str(), expect))),
    }
}

/// The access token of one call.
pub(crate) struct TokenInUse {
    pub(crate) access: SecretValue,
    refresh: Option<SecretValue>,
    secret_set_at: Option<Timestamp>,
    entry: Entry,
}

impl TokenInUse {
    /// All that no answer may show.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SecretValue> {
        std::iter::once(&self.access).chain(&self.refresh)
    }

    /// The service does not accept it.
    pub(crate) async fn forget(&self) {
        let forgotten = self.entry.write(self.secret_set_at, |tokens| {
            tokens.access.take_if(|access| access.value == self.access);
        });
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "an access token that its service refused cannot be removed");
        }
    }
}

/// The connections whose tokens are being refreshed.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<ConnectionId, Arc<Flight>>>);

/// The refreshes of one connection, one after the other. Who waited for one shares its end.
#[derive(Default)]
struct Flight {
    ended: AtomicU64,
    last: tokio::sync::Mutex<Option<Result<(), Failure>>>,
}

impl Flights {
    fn of(&self, id: &ConnectionId) -> Arc<Flight> {
        let mut flights = self.0.lock();
        flights.retain(|_, flight| Arc::strong_count(flight) > 1);
        flights.entry(id.clone()).or_default().clone()
    }
}

fn failed(why: impl Into<String>) -> Failure {
    Failure::new(Code::EgressFailed, Phase::Dispatch, why)
}

fn store_failed(error: &StoreError) -> Failure {
    error.failure(Phase::Dispatch)
}

impl Services {
    /// An access token of a connection by OAuth: the one that is kept, or another if that ends soon.
    pub(super) async fn access_token(
        &self,
        org: &OrgId,
        enabled: &Enabled,
        wait: Duration,
    ) -> Result<TokenInUse, Failure> {
        let refresh = Refresh::new(self, org, enabled)?;
        let (entry, set_at) = (refresh.entry.clone(), refresh.secret_set_at());
        let in_use = |tokens: Tokens| {
            let Tokens { access, refresh, secret_set_at, .. } = tokens;
            let access = access.map(|access| access.value);
            access.map(|access| TokenInUse { access, refresh, secret_set_at, entry: entry.clone() })
        };
        let read = || entry.read(set_at).map(|(tokens, _)| tokens).map_err(|error| store_failed(&error));
        let (known, now) = (read()?, self.clock.now());
        if known.is_valid(now)
            && let Some(in_use) = in_use(known)
        {
            return Ok(in_use);
        }
        let flight = self.egress.flights.of(&enabled.connection_id);
        let seen = flight.ended.load(Ordering::Acquire);
        let shared = tokio::spawn(async move {
            let mut last = flight.last.lock().await;
            if flight.ended.load(Ordering::Acquire) > seen
                && let Some(shared) = &*last
            {
                return shared.clone();
            }
            let end = refresh.run().await;
            *last = Some(end.clone());
            flight.ended.fetch_add(1, Ordering::AcqRel);
            end
        });
        match timeout(wait, shared).await {
            Ok(Ok(end)) => end?,
            Ok(Err(_)) => return Err(failed("the refresh of the access token ended")),
            Err(_) => return Err(failed("the token endpoint has not answered in the time of this call")),
        }
        in_use(read()?).ok_or_else(|| failed("the connection has changed while its access token was got"))
    }
}

impl Tokens {
    /// Whether the access token will be valid until its request has arrived.
    fn is_valid(&self, now: Timestamp) -> bool {
        let until = now.checked_add(TOKEN_LEFT_MIN).unwrap_or(Timestamp::MAX);
        self.access.as_ref().is_some_and(|access| access.expires_at > until)
    }
}

/// One exchange with a token endpoint, with all that it needs.
struct Refresh {
    entry: Entry,
    clock: Arc<dyn Clock>,
    broker: Arc<Broker>,
    metrics: Metrics,
    origin: Origin,
    path: String,
    oauth: OAuth,
    client_secret: SecretValue,
    /// The refresh token of the secret, and when it was set.
    first: Option<(SecretValue, Timestamp)>,
}

/// Why there is no token.
struct NoToken {
    failure: Failure,
    /// Whether the service may have replaced the refresh token all the same.
    in_doubt: bool,
}

impl Refresh {
    fn new(services: &Services, org: &OrgId, enabled: &Enabled) -> Result<Self, Failure> {
        let credential = enabled.access.as_ref().and_then(|access| access.credential.as_ref());
        let Some(CredentialHeader { secret, oauth: Some(oauth), .. }) = credential else {
            return Err(failed("the connection has no oauth"));
        };
        let source = oauth.token_source.as_str();
        let missing =
            |why: &str| Failure::new(Code::ConnectionMissing, Phase::Dispatch, format!("{source} {why}"));
        let endpoint = services
            .connection(org, source)
            .ok_or_else(|| missing("is no enabled connection of the organisation"))?;
        // Its own credential is not used: the client proves who it is.
        let (access, origin) = origin(source, &endpoint)?;
        let route =
            access.routes.iter().find(|route| route.method == Method::Post && !route.path.contains('{'));
        let path = route.ok_or_else(|| missing("has no route with POST"))?.path.clone();
        if !services.policy().allows_host(&origin.host) {
            let why = format!("the policy's allow.hosts does not list {}, the host of {source}", origin.host);
            return Err(Failure::new(Code::NetworkNotWhitelisted, Phase::Dispatch, why));
        }
        let first = oauth.refresh_token.as_ref().map(|name| services.secret(org, name)).transpose()?;
        Ok(Self {
            entry: Entry {
                store: services.store.clone(),
                changes: services.connections.changes.clone(),
                connection_id: enabled.connection_id.clone(),
            },
            clock: services.clock.clone(),
            broker: services.egress.broker.clone(),
            metrics: services.metrics.clone(),
            origin,
            path,
            client_secret: services.secret(org, secret)?.value,
            first: first.map(|secret| (secret.value, secret.set_at)),
            oauth: oauth.clone(),
        })
    }

    fn secret_set_at(&self) -> Option<Timestamp> {
        self.first.as_ref().map(|(_, set_at)| *set_at)
    }

    /// Gets an access token and commits it, before anybody uses it.
    async fn run(self) -> Result<(), Failure> {
        let set_at = self.secret_set_at();
        let failed_at_store = |error: StoreError| store_failed(&error);
        let (known, _) = self.entry.read(set_at).map_err(failed_at_store)?;
        // Another flight may have ended since the call looked.
        if known.is_valid(self.clock.now()) {
            return Ok(());
        }
        let refresh = self.first.as_ref().map(|(first, _)| known.refresh.as_ref().unwrap_or(first));
        if known.in_doubt {
            tracing::warn!(connection = %self.entry.connection_id, "an earlier refresh was interrupted: its new refresh token may be lost");
        }
        if refresh.is_some() {
            self.entry.write(set_at, |tokens| tokens.in_doubt = true).await.map_err(failed_at_store)?;
        }
        let asked_at = self.clock.now();
        match self.ask(refresh).await {
            Ok(got) => {
                let expires_at = asked_at.checked_add(got.valid()).unwrap_or(Timestamp::MAX);
                let committed = self.entry.write(set_at, |tokens| {
                    tokens.access = Some(Access { value: got.access_token, expires_at });
                    tokens.refresh = got.refresh_token.or(tokens.refresh.take()).filter(|_| set_at.is_some());
                    tokens.in_doubt = false;
                });
                committed.await.map_err(failed_at_store)
            }
            Err(NoToken { mut failure, in_doubt }) => {
                // The same refresh token is not spent twice in one action.
                failure.retryable &= !in_doubt;
                if !in_doubt {
                    self.entry
                        .write(set_at, |tokens| tokens.in_doubt = known.in_doubt)
                        .await
                        .map_err(failed_at_store)?;
                }
                let name = self.oauth.refresh_token.as_deref().filter(|_| known.in_doubt);
                Err(match name {
                    Some(name) => failure.unless(format!("an earlier refresh was interrupted, so the refresh token may be lost: set the secret {name:?} again")),
                    None => failure,
                })
            }
        }
    }

    async fn ask(&self, refresh: Option<&SecretValue>) -> Result<Got, NoToken> {
        let OAuth { token_source, client_id, scope, .. } = &self.oauth;
        let mut pairs = match refresh {
            Some(token) => vec![("grant_type", "refresh_token"), ("refresh_token", token.as_str())],
            None => vec![("grant_type", "client_credentials")],
        };
        pairs.extend(scope.as_deref().map(|scope| ("scope", scope)));
        let mut exchange = Exchange::new(token_source.as_str(), Method::Post, self.path.as_str());
        exchange.headers =
            [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        exchange.body = form(pairs).into_bytes();
        // RFC 6749, 2.3.1: each encoded as in a form, with a colon between them.
        let client =
            Zeroizing::new(form([(client_id.as_str(), self.client_secret.as_str())]).replacen('=', ":", 1));
        let value = Secret::from(format!("Basic {}", STANDARD.encode(client.as_bytes())));
        let order = Order {
            id: 0,
            origin: self.origin.clone(),
            credential: Some(Credential { header: "authorization".to_owned(), value }),
            // The answer is for the daemon alone, and may repeat the refresh token.
            secrets: Vec::new(),
            exchange,
            time_ms: TOKEN_MS_MAX,
            bytes_max: TOKEN_ANSWER_BYTES_MAX,
            only_dial: false,
            login: None,
            own_headers: Vec::new(),
        };
        let carried = self.broker.carry(order, None).await;
        let (status, fault) = (carried.record.status, carried.record.fault);
        let outcome = fault.map_or("answered", ExchangeFault::as_str);
        self.metrics.egress.with_label_values(&[outcome]).inc();
        let (connection, host) = (self.entry.connection_id.as_str(), self.origin.host.as_str());
        tracing::info!(
            connection,
            source = token_source,
            host,
            status,
            outcome,
            "an access token was asked for"
        );
        let is_refresh = refresh.is_some();
        let answer = match carried.reply {
            ExchangeReply::Answered(answer) => answer,
            ExchangeReply::Failed(ExchangeFailure { message, sent, .. }) => {
                let failure = failed(format!("the token endpoint {token_source}: {message}"));
                return Err(NoToken { failure, in_doubt: sent && is_refresh });
            }
        };
        let body = Zeroizing::new(answer.body);
        let refused = matches!(answer.status, 300..=499);
        let got =
            serde_json::from_slice::<Got>(&body).ok().filter(|got| answer.status < 300 && got.is_usable());
        got.ok_or_else(|| {
            let word = known_error(&body).map(|word| format!(", {word}")).unwrap_or_default();
            let mut failure = failed(format!(
                "the token endpoint {token_source} gave no access token (status {}{word})",
                answer.status
            ));
            failure.retryable &= answer.status >= 500 || answer.status == 429;
            NoToken { failure, in_doubt: is_refresh && !refused }
        })
    }
}

/// What a token endpoint answers.
#[derive(Deserialize)]
struct Got {
    access_token: SecretValue,
    /// Seconds. Some services write them as text.
    expires_in: Option<Value>,
    refresh_token: Option<SecretValue>,
}

impl Got {
    /// Whether the tokens can be sent as they are: nothing in them begins another header.
    fn is_usable(&self) -> bool {
        let is_plain = |token: &SecretValue| {
            (1..=SECRET_BYTES_MAX).contains(&token.len())
                && token.as_str().bytes().all(|byte| byte.is_ascii_graphic())
        };
        is_plain(&self.access_token) && self.refresh_token.as_ref().is_none_or(is_plain)
    }

    fn valid(&self) -> Duration {
        let seconds = self.expires_in.as_ref().and_then(|given| match given.as_str() {
            Some(text) => text.parse().ok(),
            None => given.as_f64().map(|seconds| seconds.max(0.0) as u64),
        });
        seconds.map_or(TOKEN_VALID, |seconds| Duration::from_secs(seconds).min(TOKEN_VALID_MAX))
    }
}

/// The errors of RFC 6749, 5.2. Any other word of a service may be anything.
const ERRORS: [&str; 6] = [
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_scope",
    "unauthorized_client",
    "unsupported_grant_type",
];

fn known_error(body: &[u8]) -> Option<&'static str> {
    #[derive(Deserialize)]
    struct Refused {
        error: String,
    }
    let Refused { error } = serde_json::from_slice(body).ok()?;
    ERRORS.into_iter().find(|known| *known == error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn got(text: &str) -> Option<Got> {
        serde_json::from_str(text).ok().filter(Got::is_usable)
    }

    #[test]
    fn the_answers_of_many_services_are_read() {
        for (expires_in, valid) in [
            ("3600", 3_600),
            ("\"3599\"", 3_599),
            ("0", 0),
            ("-1", 0),
            ("12.5", 12),
            ("null", 300),
            ("\"soon\"", 300),
            ("1e300", 86_400),
        ] {
            let text =
                format!(r#"{{ "access_token": "a", "token_type": "bearer", "expires_in": {expires_in} }}"#);
            assert_eq!(got(&text).unwrap().valid(), Duration::from_secs(valid), "{expires_in}");
        }
        assert_eq!(got(r#"{ "access_token": "a" }"#).unwrap().valid(), TOKEN_VALID);
        let long = "a".repeat(SECRET_BYTES_MAX + 1);
        for token in ["", "a b", "a\\r\\nhost: evil.example", "\u{e9}", &long] {
            let (access, refresh) = (
                format!(r#"{{ "access_token": "{token}" }}"#),
                format!(r#"{{ "access_token": "a", "refresh_token": "{token}" }}"#),
            );
            assert!(got(&access).is_none() && got(&refresh).is_none(), "{token:?}");
        }
        assert!(got("{}").is_none() && got("[]").is_none() && got(r#"{ "access_token": 7 }"#).is_none());
    }

    #[test]
    fn an_error_is_told_in_the_words_of_the_standard_only() {
        let known = known_error(br#"{ "error": "invalid_grant", "error_description": "the canary sings" }"#);
        assert_eq!(known, Some("invalid_grant"));
        for other in [&br#"{ "error": "the canary sings" }"#[..], b"{}", b"canary", br#"{ "error": 7 }"#] {
            assert_eq!(known_error(other), None);
        }
    }

    #[test]
    fn no_debug_output_shows_a_token() {
        let value = || SecretValue::from("the canary sings".to_owned());
        let access = Some(Access { value: value(), expires_at: Timestamp::from_second(1).unwrap() });
        let tokens = Tokens { access, refresh: Some(value()), ..Tokens::default() };
        assert!(!format!("{tokens:?} {tokens:#?}").contains("canary"));
    }
}
