//! `effectd connections …`: connections of organisations to sources of tools.

use std::path::PathBuf;

use clap::Subcommand;
use effectd_contracts::{
    AddressRange, Connection, ConnectionId, CredentialHeader, HttpAccess, OAuth, OrgId, Route, Scheme, Trust,
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
    /// `http.<name>.read` and `http.<name>.request`.
    #[command(
        visible_alias = "create",
        after_help = "Examples:\n  effectd connections add --org home --source http.crm --name CRM --host crm.example.org --secret crm-token --route 'GET /v1/items/{id}' --route 'POST /v1/items' --yes\n  effectd connections add --org home --source http.mail --name Mail --host mail.example.org --secret mail-client --oauth-source http.idp --client-id effectd --refresh-secret mail-refresh --route 'GET /v1/messages' --yes\n  effectd connections add --org home --source linear --name Tracker --host api.linear.app --secret linear-token --yes"
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

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The organisation, as named in the policy
    #[arg(long, value_name = "NAME")]
    org: OrgId,
    /// The source of the tools that use it: the part of their ids before the action
    #[arg(long, value_name = "SOURCE")]
    source: String,
    /// Its name, for people
    #[arg(long, value_name = "TEXT")]
    name: String,
    /// A host that it leads to; may be repeated
    #[arg(long = "host", value_name = "HOST", required = true)]
    hosts: Vec<String>,
    /// The name of a secret that it needs; may be repeated
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
    /// What may be asked, such as 'GET /v1/items/{id}'; may be repeated
    #[arg(long = "route", value_name = "ROUTE")]
    routes: Vec<Route>,
    /// The header that says who asks; its value is --prefix and the first --secret
    #[arg(long, value_name = "NAME", default_value = "authorization", requires = "routes")]
    header: String,
    /// What stands before the secret in that header
    #[arg(long, value_name = "TEXT", default_value = "Bearer ", requires = "routes")]
    prefix: String,
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
    #[arg(long, value_name = "PORT", requires = "routes")]
    port: Option<u16>,
    /// A range of addresses that are not public, and may be dialled: 10.1.0.0/16; may be repeated
    #[arg(long = "allow", value_name = "RANGE", requires = "routes")]
    allow: Vec<AddressRange>,
    /// A file with the authority that signs the service's certificate, in PEM, instead of the system's
    #[arg(long, value_name = "FILE", requires = "routes", conflicts_with = "key")]
    authority: Option<PathBuf>,
    /// The SHA-256 of the service's key (SubjectPublicKeyInfo), instead of an authority
    #[arg(long, value_name = "HEX", requires = "routes")]
    key: Option<String>,
    /// Speak HTTP in clear, which only ranges of --allow may
    #[arg(long, requires = "allow")]
    no_tls: bool,
    #[command(flatten)]
    args: ChangeArgs,
}

impl Create {
    /// How requests reach the service; `None` without routes.
    fn access(&self) -> Result<Option<HttpAccess>, CliError> {
        if self.routes.is_empty() {
            return Ok(None);
        }
        let trust = match (&self.authority, &self.key) {
            (Some(file), _) => Trust::Authority(
                std::fs::read_to_string(file)
                    .map_err(|error| CliError::request(format!("{}: {error}", file.display())))?,
            ),
            (None, Some(key)) => Trust::Key(key.clone()),
            (None, None) => Trust::System,
        };
        let credential = self.secrets.first().map(|secret| CredentialHeader {
            header: self.header.clone(),
            prefix: self.prefix.clone(),
            secret: secret.clone(),
            oauth: self.oauth_source.as_ref().zip(self.client_id.as_ref()).map(|(source, client)| OAuth {
                token_source: source.clone(),
                client_id: client.clone(),
                scope: self.scope.clone(),
                refresh_token: self.refresh_secret.clone(),
            }),
        });
        Ok(Some(HttpAccess {
            scheme: if self.no_tls { Scheme::Http } else { Scheme::Https },
            port: self.port,
            trust,
            allow: self.allow.clone(),
            credential,
            routes: self.routes.clone(),
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
                let Create { org, source, name, hosts, mut secrets, refresh_secret, args, .. } = *new;
                secrets.extend(refresh_secret.filter(|name| !secrets.contains(name)));
                let body = ConnectionBody { org, source, name, hosts, secrets, access };
                let at = (Method::POST, "/v1/connections");
                return run_at(common, at, json_body(&body), args).await;
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
        ("asked", asked),
        ("status", view.status.map(|status| status.to_string())),
        ("took", Some(format!("{:.0} ms", view.took_ms))),
        ("fault", view.fault.clone()),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
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
