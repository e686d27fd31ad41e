//! `effectd connections …`: connections of organisations to sources of tools.

use clap::Subcommand;
use effectd_contracts::{Connection, ConnectionId, OrgId};
use effectd_gateway::views::connections::ConnectionBody;
use hyper::Method;

use super::mutation::{ChangeArgs, json_body, no_body, run_at};
use super::{CliError, Common, Depth, get, print_rows, short_id};
use crate::exit::Exit;

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
    #[command(
        after_help = "Example:\n  effectd connections create --org home --source linear --name Tracker --host api.linear.app --secret linear-token --yes"
    )]
    Create(Create),
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
    #[command(flatten)]
    args: ChangeArgs,
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
            Self::Create(Create { org, source, name, hosts, secrets, args }) => {
                let body = ConnectionBody { org, source, name, hosts, secrets };
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

async fn all(common: &Common) -> Result<Vec<Connection>, CliError> {
    get(common, Depth::Policy, "/v1/connections").await
}

fn cells(known: &Connection) -> [String; 6] {
    let Connection { connection_id, org, source, name, hosts, enabled, .. } = known;
    let state = if *enabled { "enabled" } else { "disabled" };
    let (id, org, hosts) = (connection_id.to_string(), org.to_string(), hosts.join(", "));
    [id, state.to_owned(), org, source.clone(), name.clone(), hosts]
}
