//! The command line: one file a command. Data goes to standard output, talk to standard error.

mod approvals;
mod artifacts;
mod ask;
mod backend;
mod backup;
mod breaker;
mod bus;
mod cancel;
mod check;
mod completions;
mod config;
mod context;
mod dlq;
mod doctor;
mod erase;
mod grants;
mod init;
mod keys;
mod listing;
mod named;
mod notifications;
mod operate;
mod output;
mod pause;
mod policy;
mod preview;
mod prompt;
mod quarantine;
mod receipts;
mod run;
mod serve;
mod show;
mod status;
mod store;
mod submit;
mod support;
mod told;
mod tools;
mod top;
mod undo;
mod wait;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::Error;
use crate::exit::Exit;
use crate::settings::{self, Above, Settings, SettingsError};
use crate::telemetry::{self, LogForm};

/// effectd carries out what AI planners decide: gated by policy, confined by the kernel, with a signed receipt for each.
#[derive(Debug, Parser)]
#[command(
    name = "effectd",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Example:\n  effectd run examples/write_note.json\n\nExit codes: 0 done, 1 failed, 2 usage, \
    3 denied, 4 held for approval, 5 quarantined, 6 outcome unknown, 69 unavailable, 70 broken, 75 try again"
)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, clap::Args)]
struct Common {
    /// Where everything is kept [default: $EFFECTD_STATE, or ./.effectd; /var/lib/effectd for serve, and for commands that
    /// look for a state and find no ./.effectd]
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Log what happens, not only what goes wrong ($EFFECTD_LOG chooses in detail)
    #[arg(long, short, global = true)]
    verbose: bool,
    /// How log lines look [default: text; json for serve]
    #[arg(long, global = true, value_enum, value_name = "FORM")]
    log: Option<LogForm>,
    /// Where the daemon listens [default: $EFFECTD_SOCKET, or run/effectd.sock in the state directory]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Set something, above configuration file and environment; `config show` lists what can be set
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Common {
    /// Everything that is set, with the configuration file of this state directory if there is one.
    fn settings(&self, state: Option<&Path>) -> Result<Settings, SettingsError> {
        let mut flags = self
            .set
            .iter()
            .map(|text| settings::pair(text))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(socket) = &self.socket {
            flags.push(("gateway.socket".to_owned(), socket.to_string_lossy().into_owned()));
        }
        if let Some(form) = self.log {
            flags.push(("log.form".to_owned(), form.as_str().to_owned()));
        }
        if self.verbose {
            flags.push(("log.level".to_owned(), "debug".to_owned()));
        }
        Settings::load(state, &Above::of_process(flags))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Submit(submit::Submit),
    Status(status::Status),
    Wait(wait::Wait),
    Cancel(cancel::Cancel),
    Preview(preview::Preview),
    Approvals(approvals::ApprovalsCommand),
    Grants(grants::GrantsCommand),
    Quarantine(quarantine::QuarantineCommand),
    Tools(tools::ToolsCommand),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Undo(undo::Undo),
    Serve(serve::Serve),
    Init(init::Init),
    Receipts(receipts::ReceiptsCommand),
    #[command(visible_alias = "events")]
    Bus(bus::BusCommand),
    Keys(keys::KeysCommand),
    Artifacts(artifacts::ArtifactsCommand),
    Notifications(notifications::NotificationsCommand),
    Policy(policy::PolicyCommand),
    Breaker(breaker::BreakerCommand),
    Config(config::ConfigCommand),
    Dlq(dlq::DlqCommand),
    Store(store::StoreCommand),
    Top(top::Top),
    Check(check::Check),
    Backup(backup::Backup),
    Restore(backup::Restore),
    SupportBundle(support::SupportBundle),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    Man(completions::Man),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let said = error.print();
            if error.use_stderr() {
                return Exit::Usage.into();
            }
            // A failure is noted.
            let _ = output::note(said);
            return output::ended(Exit::Done).into();
        }
    };
    let Arguments { common, command } = arguments;
    if let Command::Serve(serve) = command {
        return start_serving(serve, &common).into();
    }
    let traced = matches!(&command, Command::Run(run) if run.trace);
    let level = if traced || common.verbose { "info" } else { "warn" };
    telemetry::start(level, common.log.unwrap_or(LogForm::Text));
    output::ended(match command {
        Command::Run(run) => run.main(&common),
        Command::Submit(submit) => submit.main(&common),
        Command::Status(status) => status.main(&common),
        Command::Wait(wait) => wait.main(&common),
        Command::Cancel(cancel) => cancel.main(&common),
        Command::Preview(preview) => preview.main(&common),
        Command::Approvals(approvals) => approvals.main(&common),
        Command::Grants(grants) => grants.main(&common),
        Command::Quarantine(quarantine) => quarantine.main(&common),
        Command::Tools(tools) => tools.main(&common),
        Command::Pause(pause) => pause.main(&common),
        Command::Resume(resume) => resume.main(&common),
        Command::Undo(undo) => undo.main(&common),
        Command::Serve(serve) => start_serving(serve, &common),
        Command::Config(config) => config.main(&common),
        Command::Dlq(dlq) => dlq.main(&common),
        Command::Store(store) => store.main(&common),
        Command::Completions(completions) => completions.main(),
        Command::Man(man) => man.main(),
        Command::Init(init) => init.main(&common),
        Command::Receipts(receipts) => receipts.main(&common),
        Command::Bus(bus) => bus.main(&common),
        Command::Top(top) => top.main(&common),
        Command::Check(check) => check.main(&common),
        Command::Backup(backup) => backup.main(&common),
        Command::Restore(restore) => restore.main(&common),
        Command::SupportBundle(bundle) => bundle.main(&common),
        Command::Keys(keys) => keys.main(&common),
        Command::Artifacts(artifacts) => artifacts.main(&common),
        Command::Notifications(notifications) => notifications.main(&common),
        Command::Policy(policy) => policy.main(&common),
        Command::Breaker(breaker) => breaker.main(&common),
        Command::Doctor(doctor) => doctor.main(&common),
    })
    .into()
}

/// The daemon's log is set up by its settings, not by the flags alone.
fn start_serving(serve: serve::Serve, common: &Common) -> Exit {
    let settings = match common.settings(Some(&serve::state(common))) {
        Ok(settings) => settings,
        Err(error) => {
            complain(&error);
            return Exit::Usage;
        }
    };
    let form = if settings.values().log_form == "json" {
        LogForm::Json
    } else {
        LogForm::Text
    };
    let log = telemetry::start(&settings.values().log_level, form);
    serve.main(common, settings, log)
}

/// The whole command line, for shells and manual pages.
fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the asynchronous part of a command, and says what went wrong.
fn block_on(work: impl Future<Output = Result<Exit, backend::Trouble>>) -> Exit {
    let outcome = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => Err(Error::Internal(format!("no threads can be started: {error}")).into()),
    };
    outcome.unwrap_or_else(|trouble| {
        complain(&trouble);
        trouble.exit()
    })
}

/// One line that says what went wrong and what to do.
#[expect(clippy::print_stderr, reason = "this is where the program talks to people")]
fn complain(what: &dyn std::fmt::Display) {
    // What others wrote may be quoted; it must not command the terminal.
    eprintln!("effectd: {}", crate::tui::shown_text(&what.to_string()));
}
