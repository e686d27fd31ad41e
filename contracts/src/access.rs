//! How exchanges reach the service of a connection: how it proves itself, who asks, and what may be asked.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{AddressRange, Host, HostInvalid};
use crate::exchange::{Method, check_path, may_be_set};
use crate::limits::{
    AUTHORITY_BYTES_MAX, CONNECTION_RANGES_MAX, DATABASE_NAME_BYTES_MAX, OAUTH_TEXT_BYTES_MAX,
    ROUTE_BYTES_MAX, ROUTES_MAX,
};
use crate::text::is_unprintable;
use crate::wire::text_type;

/// The sources of tools that are connections to services by HTTP begin with this: `http.crm`.
pub const HTTP_SOURCE: &str = "http.";
/// The sources of tools that are connections to databases begin with this: `db:<uuid>`.
pub const DATABASE_SOURCE: &str = "db:";

/// A service that has tools of its own in effectd: what a connection to it needs. Its source has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The source of its tools.
    pub source: &'static str,
    /// Its name, for people.
    pub name: &'static str,
    /// The host, unless somebody runs the service elsewhere.
    pub host: &'static str,
    /// What stands before the secret in the header `authorization`.
    pub prefix: &'static str,
    /// What its tools ask, and what effectd itself asks.
    pub routes: &'static [&'static str],
}

/// The services that effectd has tools for.
pub const PRESETS: [Preset; 3] = [
    Preset {
        source: "linear",
        name: "Linear",
        host: "api.linear.app",
        prefix: "",
        routes: &["POST /graphql"],
    },
    Preset {
        source: "sentry",
        name: "Sentry",
        host: "sentry.io",
        prefix: "Bearer ",
        routes: &[
            "GET /api/0/projects/{organization_slug}/{project_slug}/issues/",
            "GET /api/0/issues/{issue_id}/",
            "PUT /api/0/issues/{issue_id}/",
            "GET /api/0/issues/{issue_id}/events/",
            "GET /api/0/issues/{issue_id}/events/{event_id}/",
        ],
    },
    Preset {
        source: "slack",
        name: "Slack",
        host: "slack.com",
        prefix: "Bearer ",
        routes: &[
            "POST /api/chat.postMessage",
            "POST /api/chat.delete",
            "POST /api/chat.update",
            "POST /api/chat.postEphemeral",
            "GET /api/conversations.history",
            "GET /api/conversations.replies",
        ],
    },
];

impl Preset {
    /// The preset of a source.
    pub fn of(source: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.source == source)
    }
}

/// Whether the tools of a source reach their service by exchanges, over the organisation's connection.
pub fn is_wired(source: &str) -> bool {
    [HTTP_SOURCE, DATABASE_SOURCE].into_iter().any(|kind| source.starts_with(kind))
        || Preset::of(source).is_some()
}

crate::wire_enum! {
    /// The scheme of a service.
    #[derive(Default)]
    pub enum Scheme {
        /// HTTP over TLS.
        #[default]
        Https = "https",
        /// HTTP in clear: only to an address in a range that the connection allows.
        Http = "http",
        /// PostgreSQL over TLS.
        Postgres = "postgres",
        /// PostgreSQL in clear: only to an address in a range that the connection allows.
        PostgresInClear = "postgres_in_clear",
    }
}

impl Scheme {
    /// The port of a service that names none.
    pub const fn port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
            Self::Postgres | Self::PostgresInClear => 5432,
        }
    }

    /// Whether nothing proves who the server is, and anybody on the way reads what is sent.
    pub const fn is_in_clear(self) -> bool {
        matches!(self, Self::Http | Self::PostgresInClear)
    }

    /// Whether it is that of a database.
    pub const fn is_database(self) -> bool {
        matches!(self, Self::Postgres | Self::PostgresInClear)
    }
}

/// By what a server proves who it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// A certificate for its name by one of the system's authorities.
    #[default]
    System,
    /// A certificate for its name by one of these authorities, in PEM, and by no other.
    Authority(String),
    /// The key whose SubjectPublicKeyInfo has this SHA-256, in small hexadecimal digits, whatever its certificate says.
    Key(String),
}

impl Trust {
    fn is_system(&self) -> bool {
        *self == Self::System
    }
}

/// How exchanges reach a service.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpAccess {
    /// The scheme.
    #[serde(default)]
    pub scheme: Scheme,
    /// The port; that of the scheme if left out.
    pub port: Option<u16>,
    /// By what the service proves who it is.
    #[serde(default, skip_serializing_if = "Trust::is_system")]
    pub trust: Trust,
    /// Ranges of addresses that are not public, and may be dialled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AddressRange>,
    /// The header that says who asks.
    pub credential: Option<CredentialHeader>,
    /// What may be asked: `GET /v1/items/{id}`. A database has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Which database, and who asks. Only a database has one.
    pub database: Option<DatabaseLogin>,
}

/// Which database of a server, and who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatabaseLogin {
    /// The name of the database.
    pub name: String,
    /// The role that logs in. Give it no rights to write.
    pub user: String,
    /// The name of the secret with its password. The connection names it among its secrets.
    pub password: String,
}

/// The header that says who asks: a secret of the organisation, with words before it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CredentialHeader {
    /// The name of the header, in small letters.
    pub header: String,
    /// What stands before the secret: `Bearer ` with its space.
    #[serde(default)]
    pub prefix: String,
    /// The name of the secret. The connection names it among its secrets.
    pub secret: String,
    /// If the secret is that of an OAuth client: the header then has an access token, which effectd gets for it.
    pub oauth: Option<OAuth>,
}

/// How effectd gets access tokens: by a refresh token, or by the client's secret alone (`client_credentials`).
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuth {
    /// The source of the organisation's connection to the token endpoint, which is its first route with `POST`: `http.idp`.
    pub token_source: String,
    /// Who the client is.
    pub client_id: String,
    /// What the tokens are for, in the service's words, with spaces between them.
    pub scope: Option<String>,
    /// The name of the secret with the first refresh token. The connection names it among its secrets.
    pub refresh_token: Option<String>,
}

/// Headers that a credential may not be: each means something to the connection itself.
const NOT_A_CREDENTIAL: [&str; 12] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// Whether a header of this name can say who asks.
pub fn is_credential(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(plain)
        && !NOT_A_CREDENTIAL.contains(&name)
        && !may_be_set(name)
}

/// A request that a connection allows: a method, and a path in which `{name}` stands for one segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path.
    pub path: String,
}

impl Route {
    fn parse(text: &str) -> Result<Self, RouteInvalid> {
        let invalid = || RouteInvalid(text.chars().take(64).collect());
        let (method, path) = text.split_once(' ').ok_or_else(invalid)?;
        let method = Method::ALL.into_iter().find(|known| known.as_str() == method && !known.is_sql());
        let method = method.ok_or_else(invalid)?;
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let plain: Vec<_> = path
            .split('/')
            .map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(name) if is_name(name) => "x",
                Some(_) | None => part,
            })
            .collect();
        let is_sound = path.len() <= ROUTE_BYTES_MAX && check_path(&plain.join("/")).is_ok();
        is_sound.then(|| Self { method, path: path.to_owned() }).ok_or_else(invalid)
    }

    /// Whether it allows this request. The path is one that [`crate::Exchange::check`] accepts.
    pub fn allows(&self, method: Method, path: &str) -> bool {
        let (mut route, mut asked) = (self.path.split('/'), path.split('/'));
        self.method == method
            && loop {
                match (route.next(), asked.next()) {
                    (None, None) => break true,
                    (Some(part), Some(segment)) if part.starts_with('{') && !segment.is_empty() => {}
                    (Some(part), Some(segment)) if part == segment => {}
                    (Some(_) | None, Some(_)) | (Some(_), None) => break false,
                }
            }
    }
}

/// Text that is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no route; write a method and a path such as GET /v1/items/{{id}}")]
pub struct RouteInvalid(String);

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method.as_str(), self.path)
    }
}

impl FromStr for Route {
    type Err = RouteInvalid;
    fn from_str(text: &str) -> Result<Self, RouteInvalid> {
        Self::parse(text)
    }
}

text_type!(Route, Route::parse, RouteInvalid, { "type": "string", "minLength": 5, "maxLength": ROUTE_BYTES_MAX + 8 });

/// A rule that an access breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessInvalid {
    /// Several hosts, or none.
    #[error("a connection to a service leads to one host")]
    Hosts,
    /// The host is no name and no address.
    #[error("the host: {0}")]
    Host(#[from] HostInvalid),
    /// No route, or too many.
    #[error("a connection by HTTP has 1 to {ROUTES_MAX} routes")]
    Routes,
    /// Too many ranges.
    #[error("a connection allows at most {CONNECTION_RANGES_MAX} ranges of addresses")]
    Ranges,
    /// Without TLS, anybody on the way could read the secret.
    #[error("a connection without TLS is only for addresses that the connection allows: name a range")]
    InClear,
    /// Another authority or key than can be used.
    #[error(
        "the trust is a certificate in PEM of at most {AUTHORITY_BYTES_MAX} bytes, or a SHA-256 in 64 small hexadecimal digits"
    )]
    Trust,
    /// A credential that is no header of its own, or whose secret the connection does not name.
    #[error(
        "the credential is a header that means nothing to the connection itself, such as authorization, and a secret of the connection"
    )]
    Credential,
    /// Tokens that could not be asked for.
    #[error(
        "oauth needs a token_source such as http.idp, a client_id and a scope in printable ASCII, and a refresh_token that is a secret of the connection"
    )]
    OAuth,
    /// A database without a login, a login without a database, or one that cannot be sent.
    #[error(
        "a database has a scheme such as postgres, no routes, and a login: the printable names of the database and of a user, and a password that is a secret of the connection"
    )]
    Database,
}

impl OAuth {
    fn check(&self, secrets: &[String]) -> Result<(), AccessInvalid> {
        let Self { token_source, client_id, scope, refresh_token } = self;
        let is_plain = |text: &str| {
            (1..=OAUTH_TEXT_BYTES_MAX).contains(&text.len())
                && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        let is_sound = token_source.len() > HTTP_SOURCE.len()
            && token_source.starts_with(HTTP_SOURCE)
            && is_plain(client_id)
            && scope.as_deref().is_none_or(is_plain)
            && refresh_token.as_ref().is_none_or(|name| secrets.contains(name));
        is_sound.then_some(()).ok_or(AccessInvalid::OAuth)
    }
}

impl HttpAccess {
    /// Refuses an access that could not be used, or that two programs would read differently.
    pub fn check(&self, hosts: &[String], secrets: &[String]) -> Result<(), AccessInvalid> {
        let Self { scheme, port: _, trust, allow, credential, routes, database } = self;
        let [host] = hosts else {
            return Err(AccessInvalid::Hosts);
        };
        Host::parse(host)?;
        if scheme.is_database() != database.is_some() {
            return Err(AccessInvalid::Database);
        }
        if let Some(DatabaseLogin { name, user, password }) = database {
            let is_name = |name: &str| {
                (1..=DATABASE_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(is_unprintable)
            };
            if !(is_name(name)
                && is_name(user)
                && secrets.contains(password)
                && routes.is_empty()
                && credential.is_none())
            {
                return Err(AccessInvalid::Database);
            }
        } else if !(1..=ROUTES_MAX).contains(&routes.len()) {
            return Err(AccessInvalid::Routes);
        }
        if allow.len() > CONNECTION_RANGES_MAX {
            return Err(AccessInvalid::Ranges);
        }
        if scheme.is_in_clear() && allow.is_empty() {
            return Err(AccessInvalid::InClear);
        }
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_usable = match trust {
            Trust::System => true,
            Trust::Authority(pem) => {
                pem.len() <= AUTHORITY_BYTES_MAX && pem.contains("-----BEGIN CERTIFICATE-----")
            }
            Trust::Key(digits) => digits.len() == 64 && digits.bytes().all(is_hex),
        };
        if !is_usable {
            return Err(AccessInvalid::Trust);
        }
        let Some(CredentialHeader { header, prefix, secret, oauth }) = credential else {
            return Ok(());
        };
        if let Some(oauth) = oauth {
            oauth.check(secrets)?;
        }
        let is_plain = prefix.len() <= 64 && prefix.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        (is_credential(header) && is_plain && secrets.contains(secret))
            .then_some(())
            .ok_or(AccessInvalid::Credential)
    }

    /// The port that is dialled.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(self.scheme.port())
    }

    /// Whether the connection allows this request: a database every statement, and any other service what its routes name.
    pub fn allows(&self, method: Method, path: &str) -> bool {
        match self.database {
            Some(_) => method.is_sql(),
            None => self.routes.iter().any(|route| route.allows(method, path)),
        }
    }

    /// What the connection allows, for people.
    pub fn allowed(&self) -> String {
        let routes: Vec<_> = self.routes.iter().map(ToString::to_string).collect();
        if self.database.is_some() { "SQL statements that read".to_owned() } else { routes.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_route_stands_for_whole_segments_and_one_method() {
        let route: Route = "GET /v1/items/{id}/notes".parse().unwrap();
        assert_eq!(route.to_string(), "GET /v1/items/{id}/notes");
        for (path, allowed) in [
            ("/v1/items/7/notes", true),
            ("/v1/items/a%2Fb/notes", true),
            ("/v1/items//notes", false),
            ("/v1/items/7", false),
            ("/v1/items/7/notes/", false),
            ("/v1/items/7/notes/8", false),
            ("/v1/items/7/notesx", false),
            ("/v1/item/7/notes", false),
        ] {
            assert_eq!(route.allows(Method::Get, path), allowed, "{path}");
            assert!(!route.allows(Method::Post, path));
        }
        for text in [
            "",
            "GET",
            "GET ",
            "get /v1",
            "TRACE /v1",
            "GET v1",
            "GET /v1/../x",
            "GET /v1?x=1",
            "GET /v1/{}",
            "GET /v1/{a/b}",
            "GET /v1/{id}x",
            "GET  /v1",
            "GET //host/v1",
            "GET /v1\r\nHost: x",
            "GET /{..}",
            "SELECT /",
        ] {
            assert!(text.parse::<Route>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_preset_is_a_sound_access() {
        for preset in PRESETS {
            let access = HttpAccess {
                credential: Some(CredentialHeader {
                    header: "authorization".to_owned(),
                    prefix: preset.prefix.to_owned(),
                    secret: "token".to_owned(),
                    oauth: None,
                }),
                routes: preset.routes.iter().map(|route| route.parse().unwrap()).collect(),
                ..HttpAccess::default()
            };
            assert_eq!(access.check(&[preset.host.to_owned()], &["token".to_owned()]), Ok(()));
            assert!(is_wired(preset.source), "{preset:?}");
        }
        assert!(is_wired("http.crm") && !is_wired("files") && !is_wired("linears"));
    }

    #[test]
    fn an_access_that_could_leak_its_secret_is_refused() {
        let sound = HttpAccess {
            credential: Some(CredentialHeader {
                header: "authorization".to_owned(),
                prefix: "Bearer ".to_owned(),
                secret: "crm".to_owned(),
                oauth: None,
            }),
            routes: vec!["GET /v1".parse().unwrap()],
            ..HttpAccess::default()
        };
        let (hosts, secrets) = (vec!["crm.example".to_owned()], vec!["crm".to_owned()]);
        assert_eq!(sound.check(&hosts, &secrets), Ok(()));
        assert_eq!(sound.check(&[], &secrets), Err(AccessInvalid::Hosts));
        assert_eq!(sound.check(&["127.1".to_owned()], &secrets), Err(HostInvalid::Number.into()));
        assert_eq!(sound.check(&hosts, &[]), Err(AccessInvalid::Credential));
        let clear = HttpAccess { scheme: Scheme::Http, ..sound.clone() };
        assert_eq!(clear.check(&hosts, &secrets), Err(AccessInvalid::InClear));
        let inside = HttpAccess { allow: vec!["10.0.0.0/8".parse().unwrap()], ..clear };
        assert_eq!(inside.check(&hosts, &secrets), Ok(()));
        let none = HttpAccess { routes: Vec::new(), ..sound.clone() };
        assert_eq!(none.check(&hosts, &secrets), Err(AccessInvalid::Routes));
        for trust in [Trust::Key("AB".repeat(32)), Trust::Key("ab".into()), Trust::Authority("x".into())] {
            let access = HttpAccess { trust, ..sound.clone() };
            assert_eq!(access.check(&hosts, &secrets), Err(AccessInvalid::Trust));
        }
        for (header, prefix) in [
            ("host", ""),
            ("Authorization", ""),
            ("content-type", ""),
            ("te", ""),
            ("", ""),
            ("x y", ""),
            ("authorization", "Bearer\r\nHost: x "),
            ("idempotency-key", ""),
        ] {
            let secret = "crm".to_owned();
            let credential =
                CredentialHeader { header: header.into(), prefix: prefix.into(), secret, oauth: None };
            let access = HttpAccess { credential: Some(credential), ..sound.clone() };
            assert_eq!(access.check(&hosts, &secrets), Err(AccessInvalid::Credential), "{header} {prefix:?}");
        }
        let oauth = OAuth {
            token_source: "http.idp".to_owned(),
            client_id: "effectd".to_owned(),
            scope: Some("read write".to_owned()),
            refresh_token: Some("crm".to_owned()),
        };
        let by = |oauth: OAuth| {
            let credential =
                sound.credential.clone().map(|known| CredentialHeader { oauth: Some(oauth), ..known });
            HttpAccess { credential, ..sound.clone() }.check(&hosts, &secrets)
        };
        assert_eq!(by(oauth.clone()), Ok(()));
        assert_eq!(by(OAuth { refresh_token: None, scope: None, ..oauth.clone() }), Ok(()));
        for wrong in [
            OAuth { token_source: "idp".to_owned(), ..oauth.clone() },
            OAuth { token_source: HTTP_SOURCE.to_owned(), ..oauth.clone() },
            OAuth { client_id: String::new(), ..oauth.clone() },
            OAuth { scope: Some("read\nwrite".to_owned()), ..oauth.clone() },
            OAuth { refresh_token: Some("other".to_owned()), ..oauth.clone() },
        ] {
            assert_eq!(by(wrong.clone()), Err(AccessInvalid::OAuth), "{wrong:?}");
        }
    }

    #[test]
    fn a_database_has_a_login_and_nothing_of_http() {
        let login = DatabaseLogin { name: "shop".into(), user: "reader".into(), password: "pg".into() };
        let sound =
            HttpAccess { scheme: Scheme::Postgres, database: Some(login.clone()), ..HttpAccess::default() };
        let (hosts, secrets) = (vec!["db.example".to_owned()], vec!["pg".to_owned()]);
        assert_eq!((sound.check(&hosts, &secrets), sound.port()), (Ok(()), 5432));
        assert!(sound.allows(Method::Select, "/") && !sound.allows(Method::Get, "/"));
        let clear = HttpAccess { scheme: Scheme::PostgresInClear, ..sound.clone() };
        assert_eq!(clear.check(&hosts, &secrets), Err(AccessInvalid::InClear));
        let by = |login| HttpAccess { database: Some(login), ..sound.clone() };
        for wrong in [
            HttpAccess { database: None, ..sound.clone() },
            HttpAccess { scheme: Scheme::Https, ..sound.clone() },
            HttpAccess { routes: vec!["GET /v1".parse().unwrap()], ..sound.clone() },
            by(DatabaseLogin { name: String::new(), ..login.clone() }),
            by(DatabaseLogin { user: "a\0b".into(), ..login.clone() }),
            by(DatabaseLogin { user: "a".repeat(64), ..login.clone() }),
            by(DatabaseLogin { password: "other".into(), ..login }),
        ] {
            assert_eq!(wrong.check(&hosts, &secrets), Err(AccessInvalid::Database), "{wrong:?}");
        }
    }
}
