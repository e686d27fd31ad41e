//! `effectd support-bundle`: a report for support, without personal data.
//!
//! Every field is listed here by name, so that a new field of a view does not get into the report by itself.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use effectd_actors::operator::erasure;
use effectd_contracts::{Clock, SystemClock, Topic};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::approvals::ApprovalList;
use effectd_gateway::views::dead_letters::CauseView;
use effectd_gateway::views::store::{GroupView, StoreView};
use effectd_gateway::views::{BreakerView, Health, PolicyView};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::backend::daemon_client;
use super::{CliError, Common, data, eprint_line, state_dir_of};
use crate::exit::Exit;
use crate::settings::Settings;

/// Write a report for the person who helps you, without personal data
///
/// Versions, limits, metrics, and the state of the store, the breakers and the dead letters. No parameters, subjects, paths, names, ids or
/// messages: every field is chosen, and nothing else can get in. It is JSON; read it before you hand it on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd support-bundle -\n  effectd support-bundle bundle.json")]
pub(super) struct SupportBundle {
    /// A new file, or - for standard output
    #[arg(value_name = "FILE")]
    into: PathBuf,
}

impl SupportBundle {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let bundle = gather(common).await?;
        // Cannot fail: the report is plain data with text keys.
        let text = serde_json::to_string_pretty(&bundle).unwrap_or_default();
        if self.into.as_os_str() == "-" {
            data(&text);
        } else {
            write(&self.into, &text)?;
            eprint_line(&"read it before you share it");
        }
        Ok(Exit::Done)
    }
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| writeln!(file, "{text}").and_then(|()| file.sync_all()))
        .map_err(|error| CliError::request(format!("{}: {error}", path.display())))
}

/// The numeric settings that are not at their defaults.
fn limits(settings: &Settings) -> BTreeMap<&'static str, String> {
    let amounts = settings.all().filter(|(key, ..)| key.is_amount());
    let set = amounts.filter(|(key, value, _)| *value != key.default());
    set.map(|(key, value, _)| (key.name, value)).collect()
}

async fn gather(common: &Common) -> Result<Value, CliError> {
    let mut client = daemon_client(common)?;
    let (daemon, running) = match running(&mut client).await {
        Ok(running) => ("answers", running),
        Err(CliError::Client(_)) => ("does not answer", json!({})),
        Err(CliError::Refused(_) | CliError::Runtime(_) | CliError::Settings(_) | CliError::Exiting(..)) => {
            ("refuses", json!({}))
        }
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let settings = common.settings(Some(&state_dir_of(common)));
    let mut bundle = json!({
        "bundle": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "made_at": SystemClock.now().to_string(),
        "kernel": kernel.trim(),
        "machine": std::env::consts::ARCH,
        "bounds": settings.map_or_else(|_| BTreeMap::new(), |set| limits(&set)),
        "daemon": daemon,
    });
    if let (Some(bundle), Value::Object(mut running)) = (bundle.as_object_mut(), running) {
        bundle.append(&mut running);
    }
    Ok(bundle)
}

/// The part of the report that only a running daemon knows.
async fn running(client: &mut Client) -> Result<Value, CliError> {
    let health: Health = client.get("/healthz").await?;
    let (ready, _) = client.ask(Method::GET, "/readyz", Bytes::new()).await?;
    let policy: PolicyView = client.get("/v1/policy").await?;
    let tools: Vec<Value> = client.get("/v1/tools").await?;
    let is_tool = |key: &str| tools.iter().any(|tool| tool["tool_id"] == key);
    let breakers: Vec<BreakerView> = client.get("/v1/breakers").await?;
    let breakers = breakers.iter().map(|breaker| {
        // A key that comes from a request may be personal.
        let key = if is_tool(&breaker.key) { &breaker.key } else { "of a request" };
        json!({ "key": key, "state": breaker.state, "cause": breaker.cause, "calls": breaker.calls, "failures": breaker.failures })
    });
    let causes: Vec<CauseView> = client.get("/v1/dlq/causes").await?;
    let causes = causes.iter().map(|cause| {
        json!({
            "cause": cause.cause, "code": cause.code, "count": cause.count, "first": cause.first, "last": cause.last,
            "tool_id": cause.tool_id.as_ref().filter(|tool| is_tool(tool)),
        })
    });
    let (breakers, causes): (Vec<Value>, Vec<Value>) = (breakers.collect(), causes.collect());
    let split = |page: ApprovalList| (page.approvals, page.next);
    let questions = client.pages("/v1/approvals", split).await?.len();
    // Safe to report: the labels of metrics are tools, outcomes, codes, routes and stages.
    let (_, metrics) = client.ask(Method::GET, "/metrics", Bytes::new()).await?;
    Ok(json!({
        "ready": ready == 200, "paused": health.paused, "backlog": health.backlog,
        "policy_digest": policy.digest, "policy_warnings": policy.warnings.len(),
        "store": store(client).await?, "breakers": breakers, "dead_letters": causes, "questions_open": questions,
        "metrics": String::from_utf8_lossy(&metrics),
    }))
}

/// The number of events of each topic, and how far each consumer group is behind, without the group's name.
async fn store(client: &mut Client) -> Result<Value, CliError> {
    let view: StoreView = client.get("/v1/store").await?;
    let (mut events, mut groups_behind) = (BTreeMap::new(), Vec::new());
    for (topic, end) in &view.events {
        let path = format!("/v1/store/topics/{}/groups", percent_encoded(topic));
        let groups: Vec<GroupView> = client.get(&path).await?;
        groups_behind.extend(groups.iter().map(|group| group.behind));
        // effectd's own topics; all others are counted together.
        let is_own = topic == erasure::TOPIC || Topic::ALL.iter().any(|own| own.as_str() == topic);
        let name = if is_own { topic } else { "others" };
        *events.entry(name.to_owned()).or_insert(0) += end;
    }
    Ok(json!({
        "events": events, "dead_letters": view.dead_letters, "open_intents": view.open_intents, "groups_behind": groups_behind,
    }))
}
