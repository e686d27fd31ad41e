//! `effectd run`: carry out one request, here and now, and show its receipt.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_actors::Answer;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Code, Failure, Outcome, Phase};
use effectd_gateway::client::{Client, ClientError, Told};
use effectd_gateway::problem::Problem;

use super::backend::{Session, Trouble, WAIT_MAX, patiently};
use super::output::{Form, for_programs, line};
use super::told::explain;
use super::{Common, complain, context, show};
use crate::config::{Config, state_dir};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::{Depth, Runtime};
use crate::signals::Signals;

/// Carry out one request and show its receipt
///
/// The request passes validation and every gate of the policy, runs in a fresh sandbox, and ends in one signed receipt.
/// The same request again is not done again: you get the receipt of the first time. In an empty state directory a demo
/// policy is put in place first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd run examples/write_note.json\n  planner | effectd run - -o json"
)]
pub(super) struct Run {
    /// The request, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    request: PathBuf,
    /// How the receipt is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
    /// Show the action's way through the stages
    #[arg(long)]
    pub(super) trace: bool,
}

/// How long a daemon that is overloaded or about to come back is asked again.
const PATIENCE: Duration = Duration::from_secs(10);

impl Run {
    pub(super) fn main(self, common: &Common) -> Exit {
        let request = match self.read() {
            Ok(request) => request,
            Err(what) => {
                complain(&what);
                return Exit::Usage;
            }
        };
        super::block_on(async {
            let told = self.carry_out(common, &request).await?;
            Ok(self.tell(&told))
        })
    }

    fn read(&self) -> Result<ActionRequest, String> {
        read(&self.request)
    }

    /// Has it carried out by the daemon that has the state, or here.
    async fn carry_out(&self, common: &Common, request: &ActionRequest) -> Result<Told, Trouble> {
        let state = state_dir(common.state.clone());
        let settings = common.settings(Some(&state));
        let settings = settings.map_err(|error| Error::Request(error.to_string()))?;
        let mut client = Client::new(settings.socket(&state));
        match client.connect().await {
            Err(ClientError::NoDaemon(_)) => {}
            Ok(()) => {
                let told = patiently(&mut client, request, Some(WAIT_MAX), PATIENCE).await;
                return Ok(told.unwrap_or_else(|error| unreachable(&error)));
            }
            Err(error) => return Ok(unreachable(&error)),
        }
        let mut config = Config::embedded(&state)?;
        settings.apply(&mut config);
        let signals = Signals::listen()?;
        let mut session = Session::inside(config, &settings, Depth::Pipeline).await?;
        let runtime = session.runtime();
        let seeded = runtime.as_ref().map(|runtime| runtime.state());
        if let Some(state) = seeded.filter(|state| state.seeded()) {
            complain(&format!(
                "first use: a demo policy is in {}; it permits the example and little else",
                state.policy_dir().display()
            ));
        }
        let told = obey(runtime.as_deref(), &mut session.client, request, signals).await;
        let broken = runtime.as_ref().and_then(|runtime| runtime.broken());
        drop(runtime);
        session.close().await?;
        match (told?, broken) {
            (Told::Problem(problem), Some(reason)) if problem.receipt.is_none() => {
                Err(Error::Broken(reason).into())
            }
            (told, _) => Ok(told),
        }
    }

    fn tell(&self, told: &Told) -> Exit {
        let (receipt, before) = match told {
            Told::View(view) => (view.receipt.as_deref(), view.already_done),
            Told::Problem(problem) => (problem.receipt.as_deref(), false),
        };
        if let Some(receipt) = receipt {
            if !for_programs(self.output, receipt) {
                line(show::receipt(receipt, before).trim_end());
            } else if before && receipt.outcome == Outcome::Executed {
                complain(&"already done before; this is the receipt of that time");
            }
            return match receipt.error.as_ref().map(|failure| failure.code) {
                Some(Code::SandboxUnavailable) => Exit::Unavailable,
                Some(_) | None => Exit::of(receipt.outcome),
            };
        }
        let problem = match told {
            Told::View(view) => match &view.approval {
                Some(held) => {
                    for_programs(self.output, &serde_json::json!({ "held": held }));
                    explain(told);
                    return Exit::Held;
                }
                None => &Problem::failed(&Failure::new(
                    Code::Overloaded,
                    Phase::Accept,
                    "it has not ended yet",
                )),
            },
            Told::Problem(problem) => problem,
        };
        let code = problem.code.parse().unwrap_or(Code::Internal);
        let phase = problem.phase.unwrap_or(Phase::Accept);
        let mut failure = Failure::new(code, phase, problem.detail.clone());
        failure.retryable = problem.retryable;
        failure.gate = problem.gate;
        failure.retry_after_ms = problem.retry_after_ms;
        for_programs(self.output, &serde_json::json!({ "refused": failure }));
        complain(&failure);
        Exit::of_answer(&Answer::Refused(failure))
    }
}

fn unreachable(error: &ClientError) -> Told {
    let failure = Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string());
    Told::Problem(Problem::failed(&failure))
}

/// Carries out the request, unless a signal says to stop: then it may finish within its grace, and a second signal takes
/// even that. What is not finished is on the bus, and the next start goes on with it.
async fn obey(
    runtime: Option<&Runtime>,
    client: &mut Client,
    request: &ActionRequest,
    mut signals: Signals,
) -> Result<Told, ClientError> {
    let mut told = std::pin::pin!(patiently(client, request, Some(WAIT_MAX), Duration::ZERO));
    tokio::select! {
        biased;
        told = &mut told => return told,
        () = signals.stop() => complain(&"stopping once this action has ended; a second signal stops at once"),
    }
    let stopped = async {
        if let Some(runtime) = runtime {
            runtime.wind_down(signals.stop()).await;
        }
    };
    tokio::join!(stopped, told).1
}

/// A request, from a file or, with `-`, from standard input.
pub(super) fn read(file: &Path) -> Result<ActionRequest, String> {
    let name = file.display();
    let read = |input: &mut dyn Read| {
        // One byte more than is allowed, so that what is too large is refused and not cut.
        let mut bytes = Vec::new();
        input
            .take(REQUEST_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map(|_| bytes)
    };
    let bytes = if file.as_os_str() == "-" {
        read(&mut std::io::stdin().lock())
    } else {
        File::open(file).and_then(|mut file| read(&mut file))
    };
    let bytes =
        bytes.map_err(|error| format!("{name} cannot be read: {error}; name a file that holds a request"))?;
    let mut request = ActionRequest::parse(&bytes).map_err(|failure| {
        format!(
            "{name} is no request: {}; examples/write_note.json is one",
            failure.message
        )
    })?;
    context::adopt(&mut request);
    Ok(request)
}
