//! `effectd run`: carry out one request, here and now, and show its receipt.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use effectd_actors::Answer;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Outcome};
use effectd_gateway::views::HeldView;

use super::backend::by_daemon;
use super::output::{Form, for_programs, line};
use super::{Common, complain, context, show};
use crate::config::{Config, state_dir};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Runtime;
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

impl Run {
    pub(super) fn main(self, common: &Common) -> Exit {
        let request = match self.read() {
            Ok(request) => request,
            Err(what) => {
                complain(&what);
                return Exit::Usage;
            }
        };
        let outcome = match crate::threads() {
            Ok(runtime) => runtime.block_on(self.carry_out(common, request)),
            Err(error) => Err(Error::Internal(format!("no threads can be started: {error}"))),
        };
        match outcome {
            Ok(answer) => self.tell(&answer),
            Err(error) => {
                complain(&error);
                error.exit()
            }
        }
    }

    fn read(&self) -> Result<ActionRequest, String> {
        read(&self.request)
    }

    async fn carry_out(&self, common: &Common, request: ActionRequest) -> Result<Answer, Error> {
        let state = state_dir(common.state.clone());
        // A daemon that has the state has it for itself; it carries the request out the same way.
        if let Some(answer) = by_daemon(common, &state, &request).await {
            return Ok(answer);
        }
        let mut config = Config::embedded(&state)?;
        let settings = common.settings(Some(&state));
        settings
            .map_err(|error| Error::Request(error.to_string()))?
            .apply(&mut config);
        config.interactive = std::io::stdin().is_terminal();
        let signals = Signals::listen()?;
        let runtime = Runtime::start(config).await?;
        if runtime.state().seeded() {
            let policy = runtime.state().policy_dir();
            let note = format!(
                "first use: a demo policy is in {}; it permits the example and little else",
                policy.display()
            );
            complain(&note);
        }
        let answer = obey(&runtime, request, signals).await;
        let broken = runtime.broken();
        runtime.stop().await;
        match (answer, broken) {
            (Answer::Refused(_), Some(reason)) => Err(Error::Broken(reason)),
            (answer, _) => Ok(answer),
        }
    }

    fn tell(&self, answer: &Answer) -> Exit {
        match answer {
            Answer::Done(done) => {
                if !for_programs(self.output, &*done.receipt) {
                    line(show::receipt(&done.receipt, done.before).trim_end());
                } else if done.before && done.receipt.outcome == Outcome::Executed {
                    complain(&"already done before; this is the receipt of that time");
                }
            }
            Answer::Held(held) => {
                for_programs(self.output, &serde_json::json!({ "held": HeldView::from(held) }));
                complain(&held_words(held));
            }
            Answer::Refused(failure) => {
                for_programs(self.output, &serde_json::json!({ "refused": failure }));
                complain(failure);
            }
        }
        Exit::of_answer(answer)
    }
}

/// What to do about an action that waits for a person.
fn held_words(held: &effectd_actors::Held) -> String {
    let id = &held.approval_id;
    format!(
        "a person must decide until {} ({}): `effectd approvals show {id}`",
        held.expires_at,
        held.reasons.join("; ")
    )
}

/// Carries out the request, unless a signal says to stop: then it may finish within its grace, and a second signal takes
/// even that. What is not finished is on the bus, and the next start goes on with it.
async fn obey(runtime: &Runtime, request: ActionRequest, mut signals: Signals) -> Answer {
    let mut answer = std::pin::pin!(runtime.exec(request));
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = signals.stop() => complain(&"stopping once this action has ended; a second signal stops at once"),
    }
    let (_, answer) = tokio::join!(runtime.wind_down(signals.stop()), answer);
    answer
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
