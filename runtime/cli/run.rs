//! `effectd run`: carry out one request and show its receipt.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_actors::Answer;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Code, Failure, Outcome, Phase};
use effectd_gateway::client::{Client, ClientError};
use effectd_gateway::problem::Problem;

use super::action_output::WithResult;
use super::backend::{WAIT_MAX, client_of, submit_with_retry};
use super::receipt_view::Detail;
use super::{
    ActionReply, CliError, Common, Depth, Form, Session, action_output, eprint_line, print_json,
    trace_context,
};
use crate::daemon::signals::Signals;
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::host::in_process::failure_of;
use crate::host::runtime::Runtime;
use crate::settings::config::{Config, state_dir};

/// Carry out one request and show its receipt
///
/// The request passes validation and every gate of the policy, runs in a fresh sandbox, and ends in one signed receipt. The same
/// request again is not carried out again: you get the first receipt. JSON output has the tool's `result` beside the members of the receipt.
/// An empty state directory gets the policy `household` first (`effectd init`).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd run examples/write_note.json\n  planner | effectd run - -o json"
)]
pub(super) struct Run {
    /// The request, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    request: PathBuf,
    /// Log the stages that the action passes
    #[arg(long)]
    pub(super) trace: bool,
    /// Show all of the receipt: gates, sandbox, timing, cost and ids
    #[arg(long)]
    full: bool,
}

/// How long a request to an overloaded or restarting daemon is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

impl Run {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let request = read(&self.request)?;
        let reply = carry_out(common, &request).await?;
        let detail = if self.full { Detail::Full } else { Detail::Short };
        Ok(print(&reply, common.output, detail))
    }
}

fn print(reply: &ActionReply, form: Form, detail: Detail) -> Exit {
    let (receipt, before) = action_output::receipt_of(reply);
    if let Some(receipt) = receipt {
        if !print_json(form, &WithResult::new(receipt, reply)) {
            action_output::print_receipt(reply, receipt, before, detail);
        } else if before && receipt.outcome == Outcome::Executed {
            eprint_line(&"already done; this is the first receipt");
        }
        return match receipt.error.as_ref().map(|failure| failure.code) {
            Some(Code::SandboxUnavailable) => Exit::Unavailable,
            Some(_) | None => Exit::of(receipt.outcome),
        };
    }
    let failure = match reply {
        ActionReply::View(view) => match &view.approval {
            Some(held) => {
                print_json(form, &serde_json::json!({ "held": held }));
                action_output::explain(reply);
                return Exit::Held;
            }
            None => Failure::new(Code::Overloaded, Phase::Accept, "it has not ended yet"),
        },
        ActionReply::Problem(problem) => failure_of(problem),
    };
    print_json(form, &serde_json::json!({ "refused": failure }));
    eprint_line(&failure);
    Exit::of_answer(&Answer::Refused(failure))
}

/// Lets the daemon of the state, or this process, carry out a request.
async fn carry_out(common: &Common, request: &ActionRequest) -> Result<ActionReply, CliError> {
    if let Some(remote) = &common.remote {
        let mut client = Client::remote(remote.clone());
        return Ok(submit_with_retry(&mut client, request, Some(WAIT_MAX), PATIENCE).await?);
    }
    let state = state_dir(common.state.clone());
    let settings = common.settings(Some(&state));
    let settings = settings.map_err(|error| CliError::request(chain(&error)))?;
    let mut client = client_of(common, &state)?;
    match client.connect().await {
        Err(ClientError::NoDaemon(_)) => {}
        // A refused check of the daemon's state is repeated with the request.
        Ok(()) | Err(ClientError::Refused(_)) => {
            let reply = submit_with_retry(&mut client, request, Some(WAIT_MAX), PATIENCE).await;
            return Ok(reply.unwrap_or_else(|error| unreachable(&error)));
        }
        Err(error @ ClientError::OtherState { .. }) => return Err(error.into()),
        Err(error) => return Ok(unreachable(&error)),
    }
    let mut config = Config::embedded(&state)?;
    settings.apply(&mut config);
    let signals = Signals::listen()?;
    let mut session = Session::inside(config, &settings, Depth::Pipeline).await?;
    let runtime = session.runtime();
    let state = runtime.as_ref().map(|runtime| runtime.state());
    if let Some(state) = state.filter(|state| state.seeded()) {
        eprint_line(&format!(
            "first use: wrote the policy `household` to {}; `effectd init --preset` has others",
            state.policy_dir().display()
        ));
    }
    let reply = submit_until_signal(runtime.as_deref(), &mut session.client, request, signals).await;
    let broken = runtime.as_ref().and_then(|runtime| runtime.broken());
    drop(runtime);
    session.close().await?;
    match (reply?, broken) {
        (ActionReply::Problem(problem), Some(reason)) if problem.receipt.is_none() => {
            Err(Error::Broken(reason).into())
        }
        (reply, _) => Ok(reply),
    }
}

fn unreachable(error: &ClientError) -> ActionReply {
    let failure = Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string());
    ActionReply::Problem(Problem::failed(&failure))
}

/// Carries out the request. After a signal, the action may finish within the grace period; a second signal stops at once. An
/// unfinished action stays on the bus for the next start.
async fn submit_until_signal(
    runtime: Option<&Runtime>,
    client: &mut Client,
    request: &ActionRequest,
    mut signals: Signals,
) -> Result<ActionReply, ClientError> {
    let mut reply = std::pin::pin!(submit_with_retry(client, request, Some(WAIT_MAX), Duration::ZERO));
    tokio::select! {
        biased;
        reply = &mut reply => return reply,
        () = signals.stop() => eprint_line(&"stopping once this action has ended; a second signal stops at once"),
    }
    let stopped = async {
        if let Some(runtime) = runtime {
            runtime.wind_down(signals.stop()).await;
        }
    };
    tokio::join!(stopped, reply).1
}

/// Reads at most one byte more than a request may have, so that a longer request is refused and not cut.
pub(super) fn read_bounded(file: &Path) -> std::io::Result<Vec<u8>> {
    let input: Box<dyn Read> =
        if file.as_os_str() == "-" { Box::new(std::io::stdin()) } else { Box::new(File::open(file)?) };
    let mut bytes = Vec::new();
    input.take(REQUEST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A request from a file or, with `-`, from standard input.
pub(super) fn read(file: &Path) -> Result<ActionRequest, CliError> {
    let name = file.display();
    let bytes = read_bounded(file).map_err(|error| {
        CliError::request(format!("{name} cannot be read: {error}; name a file that holds a request"))
    })?;
    let mut request = ActionRequest::parse(&bytes).map_err(|failure| {
        let why = failure.message;
        CliError::request(format!("{name} is not a valid request: {why}; see examples/write_note.json"))
    })?;
    trace_context::adopt(&mut request);
    Ok(request)
}
