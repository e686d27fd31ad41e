//! `effectd connectors …`: the tools of MCP servers, and their review.

use clap::Subcommand;
use effectd_contracts::{
    AddressRange, Connection, ConnectionId, Connector, CredentialHeader, Digest, HttpAccess, OrgId,
    RiskLevel, Scheme, ToolOverlay, Transport, Trust,
};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::connections::ConnectionBody;
use effectd_gateway::views::connectors::{
    ConnectorCheck, ConnectorTool, ConnectorView, OverlayBody, ReviewBody,
};
use effectd_gateway::views::operations::OperationView;
use hyper::Method;
use serde::Serialize;
use serde_json::json;

use super::mutation::{ChangeArgs, RunMode, confirm_at, json_body, no_body, render, run_at};
use super::output::{Tone, line, toned};
use super::overlay::Says;
use super::{CliError, Common, Depth, Form, eprint_line, get, post, print_json, print_rows, short_id};
use crate::exit::Exit;

/// List, add, review and remove MCP servers, whose tools effectd offers
///
/// A connector is a connection to an MCP server, by HTTP or as a confined program. Its tools ask a person until somebody has reviewed how
/// they are described, and again when that changes. Operators and the organisation's admins change it;
/// a program is connected and enabled by operators alone.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd connectors list")]
pub(super) enum ConnectorsCommand {
    /// List the connectors that you may see
    #[command(after_help = "Example:\n  effectd connectors list -o json")]
    List,
    /// Add an MCP server, and ask it for its tools
    #[command(
        visible_alias = "create",
        after_help = "Examples:\n  effectd connectors add --org home --name Docs --server https://docs.example.org/mcp --secret docs-token --yes\n  effectd connectors add --org home --name Notes --preset filesystem --package /opt/mcp --folder workspace/notes --yes\n  effectd connectors add --org home --name Time --program /opt/time --yes -- /opt/time/bin/python -m mcp_server_time"
    )]
    Add(Box<Create>),
    /// Show a connector with its tools, and what has changed since a person reviewed them
    #[command(after_help = "Example:\n  effectd connectors show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
    Show {
        /// The connector's id
        #[arg(value_name = "CONNECTOR")]
        id: ConnectionId,
    },
    /// Look whether an MCP server can be used, and say what is wrong if not
    #[command(after_help = "Example:\n  effectd connectors validate 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
    Validate {
        /// The connector's id
        #[arg(value_name = "CONNECTOR")]
        id: ConnectionId,
    },
    /// Ask an MCP server for its tools now; effectd does so each day
    #[command(
        after_help = "Example:\n  effectd connectors harvest 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Harvest(Change),
    /// Show what has changed since the last review, and accept it
    #[command(after_help = "Example:\n  effectd connectors review 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
    Review(Review),
    /// Say about a tool what its server says otherwise; without options, restore the server's words
    ///
    /// What was said before and is not named stays. An empty title or description restores the server's.
    #[command(
        after_help = "Example:\n  effectd connectors overlay 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 search --risk read --yes"
    )]
    Overlay(Overlay),
    /// Let a connector be used again
    #[command(
        after_help = "Example:\n  effectd connectors enable 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Enable(Change),
    /// Stop the use of a connector
    #[command(
        after_help = "Example:\n  effectd connectors disable 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Disable(Change),
    /// Remove a connector, with its tools and their review
    #[command(
        visible_alias = "delete",
        after_help = "Example:\n  effectd connectors remove 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Remove(Change),
    /// List well-known MCP servers that run as programs, and what they need
    #[command(after_help = "Example:\n  effectd connectors presets -o json")]
    Presets,
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The organisation, as named in the policy
    #[arg(long, value_name = "NAME")]
    org: OrgId,
    /// Makes this connector lead to another server, instead of adding one; its tools are reviewed anew
    #[arg(long, value_name = "CONNECTOR")]
    replace: Option<ConnectionId>,
    /// Its name, for people
    #[arg(long, value_name = "TEXT")]
    name: String,
    /// Where the server is: https://docs.example.org/mcp
    #[arg(long, value_name = "URL", conflicts_with_all = ["preset", "argv"], required_unless_present_any = ["preset", "argv"])]
    server: Option<String>,
    /// The name of the secret that says who asks
    #[arg(long, value_name = "NAME", requires = "server")]
    secret: Option<String>,
    /// The header that says who asks
    #[arg(long, value_name = "NAME", default_value = "authorization", requires = "server")]
    header: String,
    /// What stands before the secret in that header
    #[arg(long, value_name = "TEXT", default_value = "Bearer ", requires = "server")]
    prefix: String,
    /// A range of addresses that are not public, and may be dialled: 10.1.0.0/16; may be repeated
    #[arg(long = "allow", value_name = "RANGE", requires = "server")]
    allow: Vec<AddressRange>,
    /// The SHA-256 of the server's key (SubjectPublicKeyInfo), instead of the system's authorities
    #[arg(long, value_name = "HEX", requires = "server")]
    key: Option<String>,
    /// A server of `effectd connectors presets`
    #[arg(long, value_name = "NAME", requires = "package", conflicts_with = "argv")]
    preset: Option<String>,
    /// The folder in which the preset is installed
    #[arg(long, value_name = "DIR")]
    package: Option<String>,
    /// A folder that the program reads and executes; may be repeated
    #[arg(long = "program", value_name = "DIR", conflicts_with = "server")]
    programs: Vec<String>,
    /// The one folder of the action's space that the program sees: workspace/notes
    #[arg(long, value_name = "PATH", conflicts_with = "server")]
    folder: Option<String>,
    /// The risk of tools about which the server says nothing: read, write or danger
    #[arg(long, value_name = "RISK", value_parser = risk)]
    risk: Option<RiskLevel>,
    /// The program and its arguments; {folder} stands for the folder
    #[arg(last = true, value_name = "PROGRAM")]
    argv: Vec<String>,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The connector's id
    #[arg(value_name = "CONNECTOR")]
    id: ConnectionId,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Review {
    /// The connector's id
    #[arg(value_name = "CONNECTOR")]
    id: ConnectionId,
    /// Accept only this digest, which `show` has printed
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Overlay {
    /// The connector's id
    #[arg(value_name = "CONNECTOR")]
    id: ConnectionId,
    /// The name by which the server knows the tool
    #[arg(value_name = "TOOL")]
    tool: String,
    #[command(flatten)]
    says: Says,
    /// What it does to the world: read, write or danger
    #[arg(long, value_name = "RISK", value_parser = risk)]
    risk: Option<RiskLevel>,
    #[command(flatten)]
    args: ChangeArgs,
}

fn risk(text: &str) -> Result<RiskLevel, String> {
    let known = RiskLevel::ALL.into_iter().find(|level| level.as_str() == text);
    known.ok_or_else(|| format!("a risk is {}", RiskLevel::ALL.map(RiskLevel::as_str).join(", ")))
}

/// A well-known server: `{package}` stands for where it is installed.
#[derive(Debug, Clone, Copy, Serialize)]
struct Preset {
    name: &'static str,
    what: &'static str,
    /// What puts it into the folder that `--package` names.
    install: &'static str,
    argv: &'static [&'static str],
    needs_folder: bool,
}

const PRESETS: [Preset; 6] = [
    Preset {
        name: "filesystem",
        what: "reads and writes files of one folder",
        install: "npm install --prefix DIR @modelcontextprotocol/server-filesystem",
        argv: &[
            "/usr/bin/node",
            "{package}/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js",
            "{folder}",
        ],
        needs_folder: true,
    },
    Preset {
        name: "memory",
        what: "keeps a graph of facts in one folder",
        install: "npm install --prefix DIR @modelcontextprotocol/server-memory",
        argv: &[
            "/usr/bin/env",
            "MEMORY_FILE_PATH={folder}/memory.json",
            "/usr/bin/node",
            "{package}/node_modules/@modelcontextprotocol/server-memory/dist/index.js",
        ],
        needs_folder: true,
    },
    Preset {
        name: "everything",
        what: "shows all that MCP can do, for a first look",
        install: "npm install --prefix DIR @modelcontextprotocol/server-everything",
        argv: &[
            "/usr/bin/node",
            "{package}/node_modules/@modelcontextprotocol/server-everything/dist/index.js",
        ],
        needs_folder: false,
    },
    Preset {
        name: "git",
        what: "looks at and commits to one repository",
        install: "python3 -m venv DIR && DIR/bin/pip install mcp-server-git",
        // It refuses to list its tools in the empty folder of a harvest if a repository is named.
        argv: &["{package}/bin/python", "-I", "-m", "mcp_server_git"],
        needs_folder: true,
    },
    Preset {
        name: "time",
        what: "knows the time in other zones",
        install: "python3 -m venv DIR && DIR/bin/pip install mcp-server-time",
        argv: &["{package}/bin/python", "-I", "-m", "mcp_server_time", "--local-timezone", "UTC"],
        needs_folder: false,
    },
    Preset {
        name: "sqlite",
        what: "queries and changes one database",
        install: "python3 -m venv DIR && DIR/bin/pip install mcp-server-sqlite 'mcp<2'",
        argv: &[
            "{package}/bin/python",
            "-I",
            "{package}/bin/mcp-server-sqlite",
            "--db-path",
            "{folder}/data.sqlite",
        ],
        needs_folder: true,
    },
];

/// The parts of `https://docs.example.org:8443/mcp`.
fn parts(url: &str) -> Option<(Scheme, String, Option<u16>, String)> {
    let (scheme, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (Scheme::Https, rest),
        (None, Some(rest)) => (Scheme::Http, rest),
        (None, None) => return None,
    };
    let at = rest.find('/').unwrap_or(rest.len());
    let (place, path) = rest.split_at(at);
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (place, None),
    };
    let path = if path.is_empty() { "/" } else { path };
    (!host.is_empty() && !host.contains('@')).then(|| (scheme, host.to_owned(), port, path.to_owned()))
}

impl Create {
    fn body(self) -> Result<(ConnectionBody, ChangeArgs), CliError> {
        let wrong = |why: String| CliError::request(why);
        let Self { org, name, server, secret, header, prefix, allow, key, risk: default_risk, args, .. } =
            self;
        let (mut hosts, mut access) = (Vec::new(), None);
        let transport = if let Some(url) = server {
            let (scheme, host, port, path) = parts(&url)
                .ok_or_else(|| wrong(format!("{url} is no address; write https://docs.example.org/mcp")))?;
            hosts.push(host);
            let transport = Transport::Http { path };
            access = Some(HttpAccess {
                scheme,
                port,
                trust: key.map_or(Trust::System, Trust::Key),
                allow,
                credential: secret.clone().map(|secret| CredentialHeader {
                    header,
                    prefix,
                    secret,
                    oauth: None,
                }),
                routes: transport.route().into_iter().collect(),
                database: None,
            });
            transport
        } else if let Some(preset) = self.preset {
            let known = PRESETS.iter().find(|known| known.name == preset);
            let known = known.ok_or_else(|| {
                wrong(format!(
                    "there is no preset {preset}; there are {}",
                    PRESETS.map(|preset| preset.name).join(", ")
                ))
            })?;
            if known.needs_folder && self.folder.is_none() {
                return Err(wrong(format!("the preset {preset} needs a --folder such as workspace/notes")));
            }
            let package = self.package.unwrap_or_default();
            let argv = known.argv.iter().map(|arg| arg.replace("{package}", &package)).collect();
            let mut programs = self.programs;
            programs.insert(0, package);
            Transport::Stdio { argv, programs, folder: self.folder }
        } else {
            Transport::Stdio { argv: self.argv, programs: self.programs, folder: self.folder }
        };
        let connector = Connector { transport, default_risk, overlay: Default::default() };
        connector.check().map_err(|why| wrong(why.to_string()))?;
        // The daemon makes the source from the new id.
        let (source, secrets) = ("connector".to_owned(), secret.into_iter().collect());
        let body = ConnectionBody { org, source, name, hosts, secrets, access, connector: Some(connector) };
        Ok((body, args))
    }
}

const COLUMNS: [(&str, usize); 7] = [
    ("CONNECTOR", 36),
    ("STATE", 9),
    ("ORG", 12),
    ("NAME", 16),
    ("TOOLS", 5),
    ("REVIEW", 6),
    ("LEADS TO", 40),
];
const PRESET_COLUMNS: [(&str, usize); 3] = [("PRESET", 12), ("WHAT IT DOES", 40), ("INSTALL", 80)];
const ROOT: &str = "/v1/connectors";

impl ConnectorsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let at = async |root: &str, id: &ConnectionId, verb: &str| {
            let named = short_id::path(ROOT, id.as_str(), all(common), |known| known.connection_id.as_str());
            Ok::<_, CliError>(named.await?.replacen(ROOT, root, 1) + verb)
        };
        let (change, root, method, verb) = match self {
            Self::List => return Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Presets => {
                let cells = |known: &Preset| [known.name, known.what, known.install].map(str::to_owned);
                return Ok(print_rows(common.output, &PRESET_COLUMNS, &PRESETS, cells));
            }
            Self::Add(new) => return add(common, *new).await,
            Self::Show { id } => return show(common, &at(ROOT, &id, "").await?).await,
            Self::Validate { id } => return validate(common, &at(ROOT, &id, "/validate").await?).await,
            Self::Review(review) => {
                let path = at(ROOT, &review.id, "").await?;
                return accept(common, &path, review).await;
            }
            Self::Overlay(says) => return overlay(common, &at(ROOT, &says.id, "").await?, says).await,
            Self::Harvest(change) => (change, ROOT, Method::POST, "/harvest"),
            Self::Enable(change) => (change, "/v1/connections", Method::POST, "/enable"),
            Self::Disable(change) => (change, "/v1/connections", Method::POST, "/disable"),
            Self::Remove(change) => (change, "/v1/connections", Method::DELETE, ""),
        };
        let path = at(root, &change.id, verb).await?;
        run_at(common, (method, &path), no_body, change.args).await
    }
}

async fn all(common: &Common) -> Result<Vec<ConnectorView>, CliError> {
    get(common, Depth::Policy, ROOT).await
}

fn cells(known: &ConnectorView) -> [String; 7] {
    let ConnectorView { connection_id, org, name, offered, to_review, leads_to, .. } = known;
    let state = known.state().to_owned();
    let (tools, review) = (offered.to_string(), to_review.to_string());
    [connection_id.clone(), state, org.clone(), name.clone(), tools, review, leads_to.clone()]
}

/// Adds a connector. Its server is asked for its tools at once; one that does not answer stays, and says why.
async fn add(common: &Common, new: Create) -> Result<Exit, CliError> {
    let replaced = new.replace.clone();
    let (body, args) = new.body()?;
    let confirm = args.confirm;
    let at = match &replaced {
        Some(id) => (Method::PUT, format!("/v1/connections/{id}")),
        None => (Method::POST, "/v1/connections".to_owned()),
    };
    let Some(done) = confirm_at(common, (at.0, &at.1), json_body(&body), args).await? else {
        return Ok(confirm.declined());
    };
    render(&done, common.output);
    let Some(id) = replaced.map(|id| id.to_string()).or(done.id).filter(|_| !confirm.dry_run) else {
        return Ok(Exit::Done);
    };
    let asked: Result<OperationView, _> =
        post(common, Depth::Pipeline, &format!("{ROOT}/{id}/harvest"), &json!({})).await;
    match asked {
        Ok(asked) => asked.says.iter().for_each(|says| eprint_line(says)),
        // It is there all the same, and is asked again each hour.
        Err(error) => eprint_line(&error),
    }
    eprint_line(&format!(
        "its tools ask a person until you have reviewed them: effectd connectors review {id}"
    ));
    Ok(Exit::Done)
}

async fn validate(common: &Common, path: &str) -> Result<Exit, CliError> {
    let check: ConnectorCheck = post(common, Depth::Pipeline, path, &json!({})).await?;
    if !print_json(common.output, &check) {
        check.says.iter().for_each(|says| toned(&format!("ok    {says}"), Tone::Good));
        check.fault.iter().for_each(|fault| toned(&format!("fault {fault}"), Tone::Bad));
        check.advice.iter().for_each(|advice| line(&format!("do    {advice}")));
    }
    Ok(if check.fault.is_none() { Exit::Done } else { Exit::Failed })
}

async fn show(common: &Common, path: &str) -> Result<Exit, CliError> {
    let view: ConnectorView = get(common, Depth::Policy, path).await?;
    if !print_json(common.output, &view) {
        print(&view, false);
    }
    Ok(Exit::Done)
}

/// Prints a connector: all of it, or only what a review is about.
fn print(view: &ConnectorView, only_changes: bool) {
    toned(&format!("{} ({})", view.name, view.leads_to), Tone::Heading);
    let said = [("server", &view.server), ("protocol", &view.protocol), ("reviewed by", &view.reviewed_by)];
    for (name, value) in said {
        value.iter().for_each(|value| line(&format!("  {name:<12} {value}")));
    }
    view.error.iter().for_each(|error| toned(&format!("  does not answer: {error}"), Tone::Bad));
    for tool in view.tools.iter().filter(|tool| !only_changes || tool.state != "reviewed") {
        print_tool(tool);
    }
    for refused in &view.refused {
        line(&format!("  {} is not offered: {}", refused.name, refused.why));
    }
    line(&format!("  digest       {}", view.digest));
}

fn print_tool(tool: &ConnectorTool) {
    let asks = if tool.asks { ", asks a person" } else { "" };
    let tone = match tool.state.as_str() {
        "reviewed" => Tone::Good,
        "prose" => Tone::Waiting,
        _ if tool.asks => Tone::Bad,
        _ => Tone::Waiting,
    };
    toned(&format!("{} {} ({}{asks})", tool.state, tool.name, tool.risk), tone);
    tool.why.iter().for_each(|why| line(&format!("  {why}")));
    tool.warnings.iter().for_each(|warning| toned(&format!("  ! {warning}"), Tone::Bad));
    for changed in &tool.diff {
        let text = format!("  {} {}", changed.sign, changed.text);
        match changed.sign.as_str() {
            "+" => toned(&text, Tone::Good),
            "-" => toned(&text, Tone::Bad),
            _ => line(&text),
        }
    }
}

/// Says about a tool what is given, and keeps what was said before. Nothing at all restores the server's words.
async fn overlay(common: &Common, path: &str, of: Overlay) -> Result<Exit, CliError> {
    let Overlay { tool, says, risk, args, .. } = of;
    let said: Vec<Connection> = get(common, Depth::Policy, "/v1/connections").await?;
    let connector = said.into_iter().find(|known| path.ends_with(known.connection_id.as_str()));
    let was = connector.and_then(|known| known.connector?.overlay.remove(&tool)).unwrap_or_default();
    let ToolOverlay { title, description, risk, tier } = says.beside(was, risk, "the server's");
    let body = OverlayBody { title, description, risk, tier };
    let path = format!("{path}/tools/{}", percent_encoded(&tool));
    run_at(common, (Method::PUT, &path), json_body(&body), args).await
}

/// Shows what has changed, and accepts exactly that.
async fn accept(common: &Common, path: &str, Review { digest, args, .. }: Review) -> Result<Exit, CliError> {
    let view: ConnectorView = get(common, Depth::Policy, path).await?;
    if common.output == Form::Table {
        print(&view, true);
    }
    let shown = Digest::try_from(digest.unwrap_or(view.digest));
    let shown = shown.map_err(|error| CliError::request(error.to_string()))?;
    let body = move |_: RunMode| {
        serde_json::to_vec(&ReviewBody { digest: shown })
            .map_err(|error| CliError::request(error.to_string()))
    };
    run_at(common, (Method::POST, &format!("{path}/review")), body, args).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_is_read_into_its_parts() {
        let of = |url: &str| parts(url).map(|(scheme, host, port, path)| (scheme.as_str(), host, port, path));
        assert_eq!(of("https://a.example/mcp"), Some(("https", "a.example".into(), None, "/mcp".into())));
        assert_eq!(of("http://127.0.0.1:8080"), Some(("http", "127.0.0.1".into(), Some(8080), "/".into())));
        for wrong in
            ["a.example/mcp", "ftp://a", "https://", "https:///mcp", "https://u:p@a/mcp", "https://a:x/"]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_preset_is_a_connector_that_can_be_stored() {
        for preset in PRESETS {
            let argv = preset.argv.iter().map(|arg| arg.replace("{package}", "/opt/mcp")).collect();
            let folder = preset.needs_folder.then(|| "workspace/notes".to_owned());
            let transport = Transport::Stdio { argv, programs: vec!["/opt/mcp".to_owned()], folder };
            let connector = Connector { transport, default_risk: None, overlay: Default::default() };
            assert_eq!(connector.check(), Ok(()), "{}", preset.name);
        }
    }
}
