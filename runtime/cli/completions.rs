//! `effectd completions` and `effectd man`: shell completions and manual pages.
//!
//! A completion is a run of the program: the script of the shell sets a variable and passes the line. So tools, pending approvals and
//! causes of dead letters are completed as the daemon knows them now.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::{ArgValueCandidates, ValueCandidates};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, CompletionCandidate, Shell};
use effectd_gateway::views::approvals::ApprovalView;
use effectd_gateway::views::dead_letters::CauseView;
use tokio::time::timeout;

use super::backend::daemon_client;
use super::output::Stdout;
use super::{
    CliError, ColorChoice, Common, Form, approvals as approvals_command, command, context,
    tools as tools_command,
};
use crate::exit::Exit;
use crate::tui::shown;

/// The variable that makes a run of the program a completion.
const VARIABLE: &str = "_EFFECTD_COMPLETE";
/// How long a completion waits for the daemon. Without an answer, nothing is completed.
const DEADLINE: Duration = Duration::from_millis(500);
/// The longest description of a candidate, in columns.
const HELP_COLUMNS: usize = 60;

/// If a shell asks for a completion, answers it and ends the program.
pub(super) fn answer() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Lets shells complete an argument.
pub(super) fn complete(candidates: impl ValueCandidates + 'static) -> ArgValueCandidates {
    ArgValueCandidates::new(candidates)
}

/// Pending approvals.
pub(super) fn approvals() -> Vec<CompletionCandidate> {
    asked(async |common| {
        let pending = approvals_command::all(&mut daemon_client(&common)?).await?;
        let candidate = |view: &ApprovalView| {
            candidate(&view.approval_id, &format!("{} {}", view.tool_id, approvals_command::about(view)))
        };
        Ok(pending.iter().map(candidate).collect())
    })
}

/// Causes of dead letters.
pub(super) fn causes() -> Vec<CompletionCandidate> {
    asked(async |common| {
        let causes: Vec<CauseView> = daemon_client(&common)?.get("/v1/dlq/causes").await?;
        let help = |cause: &CauseView| {
            format!("{} {} {}", cause.count, cause.code, cause.tool_id.as_deref().unwrap_or_default())
        };
        Ok(causes.iter().map(|cause| candidate(&cause.cause, &help(cause))).collect())
    })
}

/// The tools of the daemon or, if it does not tell this user, of this program.
pub(super) fn tools() -> Vec<CompletionCandidate> {
    let of = |tools: Vec<serde_json::Value>| {
        let text = |tool: &serde_json::Value, name: &str| tool[name].as_str().unwrap_or_default().to_owned();
        tools.iter().map(|tool| candidate(&text(tool, "tool_id"), &text(tool, "description"))).collect()
    };
    let known: Vec<_> = asked(async |common| Ok(of(tools_command::summaries(&common).await?)));
    if known.is_empty() { tools_command::own_summaries().map(of).unwrap_or_default() } else { known }
}

/// Contexts.
pub(super) fn contexts() -> Vec<CompletionCandidate> {
    context::names().iter().map(|(name, url)| candidate(name, url)).collect()
}

/// A candidate; its description may quote a planner.
fn candidate(value: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(shown(help, HELP_COLUMNS).into()))
}

/// What effectd knows; nothing if it does not answer in time. A completion never complains.
fn asked(
    ask: impl AsyncFnOnce(Common) -> Result<Vec<CompletionCandidate>, CliError>,
) -> Vec<CompletionCandidate> {
    let Ok(threads) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let answer = threads.block_on(async { timeout(DEADLINE, ask(common_of_line())).await });
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// The state, the socket and the context that the line names.
fn common_of_line() -> Common {
    let named = |flag: &str| {
        let mut words = std::env::args_os().skip_while(|word| word != "--").skip(1);
        while let Some(word) = words.next() {
            let value = word.to_str().and_then(|word| word.strip_prefix(flag));
            match value.map(|value| (value, value.strip_prefix('='))) {
                Some(("", _)) => return words.next().map(PathBuf::from),
                Some((_, Some(value))) => return Some(PathBuf::from(value)),
                Some((_, None)) | None => {}
            }
        }
        None
    };
    let text = |flag| named(flag).map(|value| value.to_string_lossy().into_owned());
    let mut common = Common {
        state: named("--state"),
        verbose: false,
        log: None,
        socket: named("--socket"),
        context: text("--context"),
        url: text("--url"),
        remote: None,
        notice: None,
        output: Form::Table,
        color: ColorChoice::Never,
        set: Vec::new(),
    };
    // Without its context, the line is completed as on this machine.
    common.remote = context::resolve(&common, "").unwrap_or_default();
    common
}

/// Print completions for a shell
///
/// They complete commands, options, tools, pending approvals and causes of dead letters. After an upgrade, print them again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd completions bash\n  effectd completions fish")]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write those of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd man\n  effectd man --into man1")]
pub(super) struct Man {
    /// The folder for the pages of all commands; it is created if it is missing
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

impl Completions {
    pub(super) fn main(self) -> Result<Exit, CliError> {
        let (shells, mut script) = (Shells::builtins(), Vec::new());
        let none = || CliError::request(format!("there are no completions for {}", self.shell));
        let shell = shells.completer(&self.shell.to_string()).ok_or_else(none)?;
        let written = shell.write_registration(VARIABLE, "effectd", "effectd", "effectd", &mut script);
        written.map_err(|error| CliError::request(error.to_string()).exiting(Exit::Failed))?;
        Ok(print(&script))
    }
}

impl Man {
    pub(super) fn main(self) -> Result<Exit, CliError> {
        let mut page = Vec::new();
        let written = match &self.into {
            Some(folder) => std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(command(), folder))
                .map_err(|error| format!("{} cannot be written: {error}", folder.display())),
            None => clap_mangen::Man::new(command()).render(&mut page).map_err(|error| error.to_string()),
        };
        if let Err(why) = written {
            return Err(CliError::request(why).exiting(Exit::Failed));
        }
        Ok(print(&page))
    }
}

fn print(bytes: &[u8]) -> Exit {
    // [`Stdout`] remembers a failure.
    let _ = Stdout.write_all(bytes);
    Exit::Done
}
