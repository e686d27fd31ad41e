//! `effectd doctor`: what this machine can enforce.

use std::path::Path;
use std::time::Duration;

use effectd_contracts::Connection;
use effectd_contracts::access::DATABASE_SOURCE;
use effectd_gateway::client::Client;
use effectd_gateway::views::connections::ConnectionTest;
use effectd_policy::Overlay;
use effectd_sandbox::SandboxConfig;
use effectd_sandbox::doctor::{Finding, Verdict, examine};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::backend::daemon_client;
use super::{CliError, Common, block_on, line, print_json, state_dir_of};
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::state::State;
use crate::state::spaces::Roots;
use crate::tool_registry;

/// Attack a sandbox, and show what this machine can enforce
///
/// Every line is tested in a real child. If there is a state directory, the roots of its spaces are checked, too. If its daemon answers
/// you, it asks each connected database what the role of the connection may do beside reading. The exit code is 0 if effectd can run
/// here, otherwise 69; an unusable space or a role with too many rights does not prevent that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd doctor")]
pub(super) struct Doctor {}

impl Doctor {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => {
                let why = format!("this program cannot be found on disk: {error}");
                return Err(CliError::request(why).exiting(Exit::Unavailable));
            }
        };
        let mut report = examine(&SandboxConfig::new(program), &std::env::temp_dir());
        report.findings.extend(roots(&state_dir_of(common)));
        report.findings.extend(block_on(databases(common))?);
        if !print_json(common.output, &report) {
            line(&report.to_string());
        }
        Ok(if report.may_serve() { Exit::Done } else { Exit::Unavailable })
    }
}

/// Findings about the roots of spaces. Empty if there is no readable state.
fn roots(state: &Path) -> Vec<Finding> {
    let Ok(state) = State::existing(state) else {
        return Vec::new();
    };
    let registry = tool_registry::registry(tool_registry::own()).map_err(Error::from);
    let found = registry.and_then(|registry| state.load_policy(&Overlay::default(), &registry));
    let found = found.and_then(|policy| {
        let roots = Roots::of(&state)?;
        Ok(roots.survey(&policy, &roots.pins()))
    });
    let finding =
        |verdict, what| Finding { promise: "space roots", verdict, what, fix: None, required: false };
    let found = match found {
        Ok(found) => found,
        Err(error) => return vec![finding(Verdict::Missing, chain(&error))],
    };
    let unusable = found.unusable.iter().map(|(space, error)| format!("{space}: {error}"));
    let changed = found.changes.iter().map(|change| {
        let space = &change.space_id;
        format!("{space}: its root is another folder than before; `effectd policy reload` shows the change and accepts it")
    });
    let wrong = unusable.chain(changed).map(|what| finding(Verdict::Missing, what));
    let mut findings: Vec<_> = wrong.collect();
    if findings.is_empty() {
        let what = "nobody else can replace them, and none has changed";
        findings.push(finding(Verdict::Enforced, what.to_owned()));
    }
    findings
}

/// How long one database may take. The daemon gives up earlier.
const DATABASE_TIME_MAX: Duration = Duration::from_secs(15);
/// Databases that are asked at the same time.
const DATABASES_AT_ONCE: usize = 8;
/// The most databases that are asked.
const DATABASES_MAX: usize = 64;

/// Findings about the roles by which connections ask databases. Only the daemon's broker has their passwords; empty if no daemon tells of
/// connections.
async fn databases(common: &Common) -> Result<Vec<Finding>, CliError> {
    let Ok(mut client) = daemon_client(common) else { return Ok(Vec::new()) };
    let Ok(Ok(known)) = timeout(DATABASE_TIME_MAX, client.get::<Vec<Connection>>("/v1/connections")).await
    else {
        return Ok(Vec::new());
    };
    let is_database = |known: &Connection| known.enabled && known.source.starts_with(DATABASE_SOURCE);
    let known: Vec<_> = known.into_iter().filter(is_database).collect();
    let mut findings = Vec::new();
    for some in known[..known.len().min(DATABASES_MAX)].chunks(DATABASES_AT_ONCE) {
        let asked: JoinSet<_> = some.iter().map(|known| role(client.another(), known.clone())).collect();
        findings.extend(asked.join_all().await);
    }
    findings.sort_by(|one: &Finding, other| one.what.cmp(&other.what));
    if let Some(more) = known.len().checked_sub(DATABASES_MAX).filter(|more| *more > 0) {
        let what = format!("{more} more are not looked at: `effectd connections test` looks at one");
        findings.push(of_role(Verdict::Missing, what, None));
    }
    Ok(findings)
}

fn of_role(verdict: Verdict, what: String, fix: Option<String>) -> Finding {
    Finding { promise: "database roles", verdict, what, fix, required: false }
}

/// What the role of a connection may do.
async fn role(mut client: Client, known: Connection) -> Finding {
    let Connection { connection_id: id, source, name, .. } = known;
    let path = format!("/v1/connections/{id}/test");
    let asked = timeout(DATABASE_TIME_MAX, client.post::<ConnectionTest>(&path, &json!({}))).await;
    let untold = |why: String| {
        of_role(Verdict::Missing, format!("{source} ({name}): its role cannot be looked at: {why}"), None)
    };
    let found = match asked {
        Err(_) => return untold("the daemon does not answer in time".to_owned()),
        Ok(Err(error)) => return untold(chain(&error)),
        Ok(Ok(ConnectionTest { fault: Some(fault), .. })) => return untold(fault),
        Ok(Ok(found)) => found,
    };
    let role = found.role.unwrap_or_default();
    match found.warnings.first() {
        None => {
            let what = format!("{source} ({name}): {role} has no right that a query does not need");
            of_role(Verdict::Enforced, what, None)
        }
        // The gravest comes first.
        Some(gravest) => {
            let what = format!("{source} ({name}), as {role}: {gravest}");
            let fix = format!(
                "ask as a role that only reads (docs/postgres.md); `effectd connections test {id}` shows all"
            );
            of_role(Verdict::Weaker, what, Some(fix))
        }
    }
}
