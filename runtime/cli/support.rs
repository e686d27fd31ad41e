//! `effectd support-bundle`: what somebody who helps needs to know, and nothing that is anybody's.
//!
//! It is put together from fields that are named here one by one. What is not named is not in it, however the answers that it
//! is made from grow.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::letters::CauseView;
use effectd_gateway::replay::GroupView;
use effectd_gateway::upkeep::StoreView;
use effectd_gateway::views::approvals::ApprovalList;
use effectd_gateway::views::{BreakerView, Health, PolicyView};
use hyper::Method;
use hyper::body::Bytes;
use serde::Serialize;

use super::backend::{Trouble, client_state, socket};
use super::output::data;
use super::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::settings::Settings;

/// Write what somebody who helps you needs to know, without anything that is anybody's
///
/// Versions, bounds, figures, and how store, breakers and dead letters stand. No parameters, subjects, paths, names, ids or messages: every
/// field of it is chosen, and nothing else can get in. It is JSON; read it before you hand it on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd support-bundle -\n  effectd support-bundle bundle.json")]
pub(super) struct SupportBundle {
    /// A file that is not there yet, or - for standard output
    #[arg(value_name = "FILE")]
    into: PathBuf,
}

#[derive(Debug, Serialize)]
struct Bundle {
    bundle: u32,
    version: &'static str,
    made_at: String,
    kernel: String,
    machine: &'static str,
    /// Amounts that are not at their defaults.
    bounds: BTreeMap<&'static str, String>,
    /// Why there is no more: no daemon answered, or it refused.
    daemon: &'static str,
    #[serde(flatten)]
    running: Option<Running>,
}

/// What only a running daemon knows.
#[derive(Debug, Serialize)]
struct Running {
    ready: bool,
    paused: bool,
    backlog: u64,
    policy_digest: String,
    policy_warnings: usize,
    store: Store,
    breakers: Vec<Breaker>,
    dead_letters: Vec<Cause>,
    questions_open: usize,
    /// Labels of metrics are tools, outcomes, codes, routes and stages, never anybody's.
    metrics: String,
}

#[derive(Debug, Serialize)]
struct Store {
    /// How many events each of effectd's own topics has had, and how many there are of others.
    events: BTreeMap<String, u64>,
    dead_letters: u64,
    open_intents: u64,
    /// How far each group is behind, without its name.
    groups_behind: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct Breaker {
    /// A tool's id. Keys that requests made up are not told.
    key: String,
    state: String,
    cause: Option<String>,
    calls: u32,
    failures: u32,
}

#[derive(Debug, Serialize)]
struct Cause {
    cause: String,
    code: String,
    count: u64,
    first: String,
    last: String,
    tool_id: Option<String>,
}

/// Topics that effectd itself has; others are counted together.
const TOPICS: [&str; 6] = [
    "ACTION_DECISION",
    "ACTION_EXECUTED",
    "APPROVALS",
    "ARTIFACTS",
    "DEAD_LETTERS",
    "ERASURES",
];

impl SupportBundle {
    pub(super) fn main(&self, common: &Common) -> Exit {
        super::block_on(async {
            let bundle = gather(common).await?;
            // Plain data with text keys, for which serde_json has no failure.
            let text = serde_json::to_string_pretty(&bundle).unwrap_or_default();
            if self.into.as_os_str() == "-" {
                data(&text);
            } else {
                write(&self.into, &text)?;
                complain(&"read it before you hand it on");
            }
            Ok(Exit::Done)
        })
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| writeln!(file, "{text}").and_then(|()| file.sync_all()))
        .map_err(|error| Error::Request(format!("{}: {error}", path.display())))
}

fn amounts(settings: &Settings) -> BTreeMap<&'static str, String> {
    let amounts = settings.all().filter(|(key, ..)| key.is_amount());
    let set = amounts.filter(|(key, value, _)| *value != key.default());
    set.map(|(key, value, _)| (key.name, value)).collect()
}

async fn gather(common: &Common) -> Result<Bundle, Trouble> {
    let state = client_state(common);
    let mut client = Client::new(socket(common, &state)?);
    let (daemon, running) = match running(&mut client).await {
        Ok(running) => ("answers", Some(running)),
        Err(Trouble::Client(_)) => ("does not answer", None),
        Err(Trouble::Refused(_) | Trouble::Runtime(_) | Trouble::Settings(_)) => ("refuses", None),
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(Bundle {
        bundle: 1,
        version: env!("CARGO_PKG_VERSION"),
        made_at: SystemClock.now().to_string(),
        kernel: kernel.trim().to_owned(),
        machine: std::env::consts::ARCH,
        bounds: common
            .settings(Some(&state))
            .map_or_else(|_| BTreeMap::new(), |set| amounts(&set)),
        daemon,
        running,
    })
}

async fn running(client: &mut Client) -> Result<Running, Trouble> {
    let health: Health = client.get("/healthz").await?;
    let (ready, _) = client.ask(Method::GET, "/readyz", Bytes::new()).await?;
    let policy: PolicyView = client.get("/v1/policy").await?;
    let tools: Vec<serde_json::Value> = client.get("/v1/tools").await?;
    let is_tool = |key: &str| tools.iter().any(|tool| tool["tool_id"] == key);
    let breakers: Vec<BreakerView> = client.get("/v1/breakers").await?;
    let causes: Vec<CauseView> = client.get("/v1/dlq/causes").await?;
    let split = |page: ApprovalList| (page.approvals, page.next);
    let questions_open = client.pages("/v1/approvals", split).await?.len();
    let (_, metrics) = client.ask(Method::GET, "/metrics", Bytes::new()).await?;
    Ok(Running {
        ready: ready == 200,
        paused: health.paused,
        backlog: health.backlog,
        policy_digest: policy.digest,
        policy_warnings: policy.warnings.len(),
        store: store(client).await?,
        breakers: breakers
            .into_iter()
            .map(|breaker| Breaker {
                key: if is_tool(&breaker.key) {
                    breaker.key
                } else {
                    "of a request".to_owned()
                },
                state: breaker.state,
                cause: breaker.cause,
                calls: breaker.calls,
                failures: breaker.failures,
            })
            .collect(),
        dead_letters: causes
            .into_iter()
            .map(|cause| Cause {
                tool_id: cause.tool_id.filter(|tool| is_tool(tool)),
                cause: cause.cause,
                code: cause.code,
                count: cause.count,
                first: cause.first,
                last: cause.last,
            })
            .collect(),
        questions_open,
        metrics: String::from_utf8_lossy(&metrics).into_owned(),
    })
}

async fn store(client: &mut Client) -> Result<Store, Trouble> {
    let view: StoreView = client.get("/v1/store").await?;
    let (mut events, mut groups_behind) = (BTreeMap::new(), Vec::new());
    for (topic, end) in &view.events {
        let path = format!("/v1/store/topics/{}/groups", percent_encoded(topic));
        let groups: Vec<GroupView> = client.get(&path).await?;
        groups_behind.extend(groups.iter().map(|group| group.behind));
        let name = if TOPICS.contains(&topic.as_str()) {
            topic
        } else {
            "others"
        };
        *events.entry(name.to_owned()).or_insert(0) += end;
    }
    Ok(Store {
        events,
        dead_letters: view.dead_letters,
        open_intents: view.open_intents,
        groups_behind,
    })
}
