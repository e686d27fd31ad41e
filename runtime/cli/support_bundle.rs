//! `effectd support-bundle`: a report for support, without personal data.
//!
//! Every field is listed here by name, so that a new field of a view does not get into the report by itself. Log lines are in it only if
//! the operator gives them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use effectd_actors::operator::erasure;
use effectd_actors::services::webhooks;
use effectd_contracts::{Clock, SystemClock, Topic};
use effectd_gateway::client::Client;
use effectd_gateway::views::dead_letters::CauseView;
use effectd_gateway::views::store::StoreView;
use effectd_gateway::views::{BreakerView, Health, PolicyView};
use effectd_sandbox::SandboxConfig;
use effectd_sandbox::doctor::examine;
use hyper::Method;
use hyper::body::Bytes;
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};

use super::backend::daemon_client;
use super::bus::all_groups;
use super::{CliError, Common, approvals, data, eprint_line, state_dir_of};
use crate::exit::Exit;
use crate::settings::{Origin, Settings};

/// The last lines of a log that are taken, and the bytes of one; a longer line is taken in pieces.
const LOG_LINES_MAX: usize = 1_000;
const LOG_LINE_BYTES_MAX: u64 = 4_096;
/// The end of a log file that is read.
const LOG_FILE_BYTES_MAX: u64 = 4_194_304;
/// Files and folders of the state that are counted.
const ENTRIES_MAX: usize = 200_000;
/// The folders of a state directory; what else is there is counted together.
const PARTS: [&str; 8] = ["blobs", "bus", "caches", "index", "journal", "keys", "log", "policy"];

/// Write a report for the person who helps you, without personal data
///
/// Versions, settings and their origins, what this machine can enforce (as `effectd doctor`), the disk, metrics, and the state of the
/// store, the breakers and the dead letters. No parameters, subjects, paths, names, ids or messages: every field is chosen, and nothing
/// else can get in. It has log lines only with --log-file, as you give them: they name actions, tools, spaces, users and paths. It is JSON;
/// read it before you hand it on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd support-bundle -\n  effectd support-bundle bundle.json\n  \
    journalctl -u effectd -o cat -n 1000 | effectd support-bundle bundle.json --log-file -")]
pub(super) struct SupportBundle {
    /// A new file, or - for standard output
    #[arg(value_name = "FILE")]
    into: PathBuf,
    /// Add the last 1,000 lines of this log; - reads standard input
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

impl SupportBundle {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let log = self.log_file.as_deref().map(last_lines).transpose()?;
        let mut bundle = gather(common).await?;
        if let Some(log) = log {
            bundle["log"] = json!(log);
        }
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

/// Every setting, with its origin but without paths. A value that names a user or a path is left out.
fn settings(settings: &Settings) -> Vec<Value> {
    let rows = settings.all().map(|(key, value, origin)| {
        let origin = match origin {
            Origin::Default => "default",
            Origin::File(_) => "file",
            Origin::Environment(_) => "environment",
            Origin::Flag => "flag",
        };
        let value = if key.is_private() && value != key.default() { "withheld" } else { value.as_str() };
        json!({ "key": key.name, "value": value, "origin": origin })
    });
    rows.collect()
}

/// What this machine can enforce, without the words, which may have paths.
fn doctor() -> Value {
    let Ok(program) = std::env::current_exe() else {
        return Value::Null;
    };
    let report = examine(&SandboxConfig::new(program), &std::env::temp_dir());
    let findings = report.findings.iter().map(|finding| {
        json!({ "promise": finding.promise, "verdict": finding.verdict, "required": finding.required })
    });
    json!({ "may_serve": report.may_serve(), "findings": findings.collect::<Vec<_>>() })
}

/// The disk of the state directory, and what its parts take.
fn disk(state: &Path) -> Value {
    let Ok(disk) = statvfs(state) else {
        return Value::Null;
    };
    let block = disk.fragment_size();
    let (mut parts, mut left) = (BTreeMap::new(), ENTRIES_MAX);
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let part = PARTS.into_iter().find(|part| name == *part).unwrap_or("others");
        *parts.entry(part).or_insert(0) += bytes_of(&entry.path(), &mut left);
    }
    json!({
        "free_bytes": block * disk.blocks_available(), "size_bytes": block * disk.blocks(),
        "state_bytes": parts, "state_counted_whole": left > 0,
    })
}

/// The bytes on disk of a file, or of everything in a folder, as long as there are entries `left` to count.
fn bytes_of(path: &Path, left: &mut usize) -> u64 {
    let (mut bytes, mut paths) = (0, vec![path.to_owned()]);
    while let Some(path) = paths.pop().filter(|_| *left > 0) {
        *left -= 1;
        let Ok(entry) = std::fs::symlink_metadata(&path) else { continue };
        bytes += entry.blocks() * 512;
        if entry.is_dir() {
            let inside = std::fs::read_dir(&path).into_iter().flatten().flatten();
            paths.extend(inside.take(*left).map(|entry| entry.path()));
        }
    }
    bytes
}

/// The last lines of a log: a file, or `-` for standard input.
fn last_lines(log: &Path) -> Result<Vec<String>, CliError> {
    let read = || {
        if log.as_os_str() == "-" {
            return last_of(io::stdin().lock());
        }
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_FILE_BYTES_MAX)))?;
        last_of(BufReader::new(file))
    };
    read().map_err(|error| CliError::request(format!("--log-file {}: {error}", log.display())))
}

fn last_of(mut log: impl BufRead) -> io::Result<Vec<String>> {
    let mut lines = VecDeque::new();
    loop {
        let mut line = Vec::new();
        if log.by_ref().take(LOG_LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(lines.into());
        }
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
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
    let state = state_dir_of(common);
    let set = common.settings(Some(&state));
    let mut bundle = json!({
        "bundle": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "made_at": SystemClock.now().to_string(),
        "kernel": kernel.trim(),
        "machine": std::env::consts::ARCH,
        "settings": set.map_or(Value::Null, |set| settings(&set).into()),
        "doctor": doctor(),
        "disk": disk(&state),
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
    let questions = approvals::all(client).await?.len();
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
    let groups_behind: Vec<u64> = all_groups(client).await?.iter().map(|of| of.group.behind).collect();
    let mut events = BTreeMap::new();
    for (topic, end) in &view.events {
        // effectd's own topics; all others are counted together.
        let mut own = Topic::ALL.iter().map(|own| own.as_str()).chain([erasure::TOPIC, webhooks::RETRIES]);
        let name = if own.any(|own| own == topic) { topic } else { "others" };
        *events.entry(name.to_owned()).or_insert(0) += end;
    }
    Ok(json!({
        "events": events, "dead_letters": view.dead_letters, "open_intents": view.open_intents, "groups_behind": groups_behind,
    }))
}
