//! `effectd connections …`: connections of organisations to sources of tools.

use std::path::PathBuf;

use clap::Subcommand;
use effectd_contracts::access::DATABASE_SOURCE;
use effectd_contracts::{
    AddressRange, Connection, ConnectionId, CredentialHeader, DatabaseLogin, HttpAccess, OAuth, OrgId,
    Preset, Route, Scheme, Trust, access,
};
use effectd_gateway::views::connections::{ConnectionBody, ConnectionTest};
use hyper::Method;
use serde_json::json;

use super::mutation::{ChangeArgs, json_body, no_body, run_at};
use super::output::line;
use super::{CliError, Common, Depth, get, post, print_json, print_rows, short_id};
use crate::exit::Exit;
use crate::tui::shown;

/// List, create, enable, disable and delete connections
///
/// A connection says where the tools of a source may reach, for one organisation, and which secrets they need there. Operators and
/// the organisation's admins change it.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd connections list")]
pub(super) enum ConnectionsCommand {
    /// List the connections that you may see
    #[command(after_help = "Example:\n  effectd connections list -o json")]
    List,
    /// Create a connection, enabled
    ///
    /// One to a service by HTTP has a source `http.<name>` and says with --route what may be asked. Its tools are then
    /// `http.<name>.read` and `http.<name>.request`. One to a PostgreSQL database has a source `db:<uuid>`, which is made up if you
    /// name none, and the tool `db:<uuid>.run_query`.
    ///
    /// For a service that effectd has tools for, --preset fills in everything but the organisation and the secret.
    #[command(
        visible_alias = "create",
        after_help = "Examples:\n  effectd connections add --org home --preset linear --secret linear-token --yes\n  effectd connections add --org home --source http.crm --name CRM --host crm.example.org --secret crm-token --route 'GET /v1/items/{id}' --route 'POST /v1/items' --yes\n  effectd connections add --org home --source http.mail --name Mail --host mail.example.org --secret mail-client --oauth-source http.idp --client-id effectd --refresh-secret mail-refresh --route 'GET /v1/messages' --yes\n  effectd connections add --org home --name Shop --host db.example.org --postgres shop --user effectd_reader --secret shop-password --yes"
    )]
    Add(Box<Create>),
    /// Look whether a connection can be reached: its addresses, its certificate, and what it answers
    #[command(after_help = "Example:\n  effectd connections test 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
    Test {
        /// The connection's id
        #[arg(value_name = "CONNECTION")]
        id: ConnectionId,
    },
    /// Let a connection be used again
    #[command(
        after_help = "Example:\n  effectd connections enable 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Enable(Change),
    /// Stop the use of a connection
    #[command(
        after_help = "Example:\n  effectd connections disable 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Disable(Change),
    /// Delete a connection
    #[command(
        after_help = "Example:\n  effectd connections delete 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Delete(Change),
}

/// A preset, by the source of its tools.
fn preset(name: &str) -> Result<&'static Preset, String> {
    let known = || access::PRESETS.iter().map(|preset| preset.source).collect::<Vec<_>>().join(", ");
    Preset::of(name).ok_or_else(|| format!("there is no such preset; there are {}", known()))
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("service").args(["routes", "preset", "postgres"]).multiple(true)))]
#[command(group(clap::ArgGroup::new("by_http").args(["routes", "preset"]).multiple(true)))]
pub(super) struct Create {
    /// The organisation, as named in the policy
    #[arg(long, value_name = "NAME")]
    org: OrgId,
    /// Makes this connection lead elsewhere, instead of adding one; its source stays
    #[arg(long, value_name = "CONNECTION")]
    replace: Option<ConnectionId>,
    /// A service that effectd has tools for: fills in what is left out of source, name, host, routes, header and prefix
    #[arg(long, value_name = "SERVICE", value_parser = preset, conflicts_with_all = ["source", "oauth_source"], requires = "secrets")]
    preset: Option<&'static Preset>,
    /// The source of the tools that use it: the part of their ids before the action
    #[arg(long, value_name = "SOURCE", required_unless_present_any = ["preset", "postgres"])]
    source: Option<String>,
    /// Its name, for people
    #[arg(long, value_name = "TEXT", required_unless_present = "preset")]
    name: Option<String>,
    /// A host that it leads to; may be repeated
    #[arg(long = "host", value_name = "HOST", required_unless_present = "preset")]
    hosts: Vec<String>,
    /// The name of a secret that it needs; may be repeated
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
    /// What may be asked, such as 'GET /v1/items/{id}'; may be repeated
    #[arg(long = "route", value_name = "ROUTE")]
    routes: Vec<Route>,
    /// The name of a PostgreSQL database
    #[arg(long, value_name = "DATABASE", requires_all = ["user", "secrets"], conflicts_with = "by_http")]
    postgres: Option<String>,
    /// The role that asks the database; its password is the first --secret
    #[arg(long, value_name = "ROLE", requires = "postgres")]
    user: Option<String>,
    /// The header that says who asks; its value is --prefix and the first --secret
    #[arg(long, value_name = "NAME", default_value = "authorization", requires = "by_http")]
    header: String,
    /// What stands before the secret in that header [default: "Bearer ", or that of the preset]
    #[arg(long, value_name = "TEXT", requires = "by_http")]
    prefix: Option<String>,
    /// The first --secret is that of an OAuth client; its access tokens come from the first POST route of this connection
    #[arg(long, value_name = "SOURCE", requires_all = ["routes", "secrets", "client_id"])]
    oauth_source: Option<String>,
    /// Who the OAuth client is
    #[arg(long, value_name = "ID", requires = "oauth_source")]
    client_id: Option<String>,
    /// The name of the secret with the first refresh token; without it, the client gets tokens for itself
    #[arg(long, value_name = "NAME", requires = "oauth_source")]
    refresh_secret: Option<String>,
    /// What the access tokens are for, as the service names it
    #[arg(long, value_name = "TEXT", requires = "oauth_source")]
    scope: Option<String>,
    /// The port, if it is not that of the scheme
    #[arg(long, value_name = "PORT", requires = "service")]
    port: Option<u16>,
    /// A range of addresses that are not public, and may be dialled: 10.1.0.0/16; may be repeated
    #[arg(long = "allow", value_name = "RANGE", requires = "service")]
    allow: Vec<AddressRange>,
    /// A file with the authority that signs the service's certificate, in PEM, instead of the system's
    #[arg(long, value_name = "FILE", requires = "service", conflicts_with = "key")]
    authority: Option<PathBuf>,
    /// The SHA-256 of the service's key (SubjectPublicKeyInfo), instead of an authority
    #[arg(long, value_name = "HEX", requires = "service")]
    key: Option<String>,
    /// Speak in clear, without TLS, which only ranges of --allow may
    #[arg(long, requires = "allow")]
    no_tls: bool,
    #[command(flatten)]
    args: ChangeArgs,
}

impl Create {
    /// How requests reach the service; `None` without routes and without a database.
    fn access(&self) -> Result<Option<HttpAccess>, CliError> {
        let of_preset = self.preset.map_or(&[][..], |preset| preset.routes).iter();
        let routes: Vec<Route> = match self.routes.is_empty() {
            true => of_preset.filter_map(|route| route.parse().ok()).collect(),
            false => self.routes.clone(),
        };
        if routes.is_empty() && self.postgres.is_none() {
            return Ok(None);
        }
        let prefix = self.preset.map_or("Bearer ", |preset| preset.prefix);
        let trust = match (&self.authority, &self.key) {
            (Some(file), _) => Trust::Authority(
                std::fs::read_to_string(file)
                    .map_err(|error| CliError::request(format!("{}: {error}", file.display())))?,
            ),
            (None, Some(key)) => Trust::Key(key.clone()),
            (None, None) => Trust::System,
        };
        let login = |name: &String| {
            let (user, password) = (self.user.clone(), self.secrets.first().cloned());
            let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
            DatabaseLogin { name: name.clone(), user, password }
        };
        let database = self.postgres.as_ref().map(login);
        let of_http = self.secrets.first().filter(|_| database.is_none());
        let credential = of_http.map(|secret| CredentialHeader {
            header: self.header.clone(),
            prefix: self.prefix.as_deref().unwrap_or(prefix).to_owned(),
            secret: secret.clone(),
            oauth: self.oauth_source.as_ref().zip(self.client_id.as_ref()).map(|(source, client)| OAuth {
                token_source: source.clone(),
                client_id: client.clone(),
                scope: self.scope.clone(),
                refresh_token: self.refresh_secret.clone(),
            }),
        });
        Ok(Some(HttpAccess {
            scheme: match (&database, self.no_tls) {
                (None, false) => Scheme::Https,
                (None, true) => Scheme::Http,
                (Some(_), false) => Scheme::Postgres,
                (Some(_), true) => Scheme::PostgresInClear,
            },
            port: self.port,
            trust,
            allow: self.allow.clone(),
            credential,
            routes,
            database,
        }))
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The connection's id
    #[arg(value_name = "CONNECTION")]
    id: ConnectionId,
    #[command(flatten)]
    args: ChangeArgs,
}

const COLUMNS: [(&str, usize); 6] =
    [("CONNECTION", 36), ("STATE", 8), ("ORG", 12), ("SOURCE", 20), ("NAME", 20), ("HOSTS", 32)];

impl ConnectionsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let (change, method, verb) = match self {
            Self::List => return Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Test { id } => return test(common, &id).await,
            Self::Add(new) => {
                let access = new.access()?;
                let Create {
                    org,
                    replace,
                    preset,
                    source,
                    name,
                    mut hosts,
                    mut secrets,
                    refresh_secret,
                    args,
                    ..
                } = *new;
                let or = |given: Option<String>, of: fn(&Preset) -> &str| {
                    given.or_else(|| preset.map(|preset| of(preset).to_owned())).unwrap_or_default()
                };
                let (source, name) = (or(source, |preset| preset.source), or(name, |preset| preset.name));
                if hosts.is_empty() {
                    hosts.extend(preset.map(|preset| preset.host.to_owned()));
                }
                secrets.extend(refresh_secret.filter(|name| !secrets.contains(name)));
                let source = match source.is_empty() {
                    true => format!("{DATABASE_SOURCE}{}", ConnectionId::fresh()),
                    false => source,
                };
                let body = ConnectionBody { org, source, name, hosts, secrets, access, connector: None };
                let at = match &replace {
                    Some(id) => (Method::PUT, format!("/v1/connections/{id}")),
                    None => (Method::POST, "/v1/connections".to_owned()),
                };
                return run_at(common, (at.0, &at.1), json_body(&body), args).await;
            }
            Self::Enable(change) => (change, Method::POST, "/enable"),
            Self::Disable(change) => (change, Method::POST, "/disable"),
            Self::Delete(change) => (change, Method::DELETE, ""),
        };
        let (root, word) = ("/v1/connections", change.id.as_str());
        let path = short_id::path(root, word, all(common), |known| known.connection_id.as_str()).await?;
        let path = path + verb;
        run_at(common, (method, &path), no_body, change.args).await
    }
}

/// Asks the daemon, since only its broker may dial.
async fn test(common: &Common, id: &ConnectionId) -> Result<Exit, CliError> {
    let root = "/v1/connections";
    let path = short_id::path(root, id.as_str(), all(common), |known| known.connection_id.as_str()).await?;
    let view: ConnectionTest = post(common, Depth::Pipeline, &format!("{path}/test"), &json!({})).await?;
    if !print_json(common.output, &view) {
        for (name, value) in found(&view) {
            line(&format!("{name:<12} {}", shown(&value, usize::MAX)));
        }
    }
    Ok(if view.fault.is_none() { Exit::Done } else { Exit::Failed })
}

fn found(view: &ConnectionTest) -> Vec<(&'static str, String)> {
    let class = view.address_class.as_deref().unwrap_or_default();
    let reached = view.address.as_ref().map(|address| format!("{address} ({class})"));
    let names = (!view.certificate_names.is_empty()).then(|| view.certificate_names.join(", "));
    let asked = view.asked.clone().or_else(|| {
        let why = "nothing: no route that only reads is without a placeholder";
        view.fault.is_none().then(|| why.to_owned())
    });
    let rows = [
        ("host", Some(view.host.clone())),
        ("address", reached),
        ("certificate", names),
        ("expires", view.certificate_expires_at.map(|at| at.to_string())),
        ("version", view.version.clone()),
        ("role", view.role.clone()),
        ("asked", asked.filter(|_| view.role.is_none())),
        ("status", view.status.map(|status| status.to_string())),
        ("took", Some(format!("{:.0} ms", view.took_ms))),
        ("fault", view.fault.clone()),
    ];
    let rows = rows.into_iter().filter_map(|(name, value)| Some((name, value?)));
    rows.chain(view.warnings.iter().map(|warning| ("warning", warning.clone()))).collect()
}

async fn all(common: &Common) -> Result<Vec<Connection>, CliError> {
    get(common, Depth::Policy, "/v1/connections").await
}

fn cells(known: &Connection) -> [String; 6] {
    let Connection { connection_id, org, source, name, hosts, enabled, .. } = known;
    let state = if *enabled { "enabled" } else { "disabled" };
    let (id, org, hosts) = (connection_id.to_string(), org.to_string(), hosts.join(", "));
    [id, state.to_owned(), org, source.clone(), name.clone(), hosts]
}
