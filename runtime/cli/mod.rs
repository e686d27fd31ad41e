//! The command line: one file a command. Data goes to standard output, talk to standard error.

mod doctor;
mod init;
mod policy;
mod run;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::Exit;
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
#[derive(Debug, clap::Args)]
struct Common {
    /// Where everything is kept [default: $EFFECTD_STATE, or ./.effectd]
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Log what happens, not only what goes wrong ($EFFECTD_LOG chooses in detail)
    #[arg(long, short, global = true)]
    verbose: bool,
    /// How log lines look
    #[arg(long, global = true, value_enum, default_value = "text", value_name = "FORM")]
    log: LogForm,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Init(init::Init),
    Policy(policy::PolicyCommand),
    Doctor(doctor::Doctor),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let exit = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
            // Help that cannot be printed has no reader.
            let _ = error.print();
            return exit.into();
        }
    };
    let Arguments { common, command } = arguments;
    let traced = matches!(&command, Command::Run(run) if run.trace);
    let level = if traced || common.verbose { "info" } else { "warn" };
    telemetry::start(level, common.log);
    match command {
        Command::Run(run) => run.main(&common),
        Command::Init(init) => init.main(&common),
        Command::Policy(policy) => policy.main(&common),
        Command::Doctor(doctor) => doctor.main(&common),
    }
    .into()
}

/// One line that says what went wrong and what to do.
#[expect(clippy::print_stderr, reason = "this is where the program talks to people")]
fn complain(what: &dyn std::fmt::Display) {
    eprintln!("effectd: {what}");
}
