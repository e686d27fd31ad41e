//! The command line: one file per command. Results go to standard output, everything else to standard error.

mod action_output;
mod actions;
mod approval_view;
mod approvals;
mod artifacts;
mod automations;
mod backend;
mod backup;
mod batch;
mod breaker;
mod budgets;
mod bus;
mod caches;
mod cancel;
mod check;
mod completions;
mod config;
mod connections;
mod connectors;
mod console;
mod context;
mod dlq;
mod doctor;
mod erase;
mod event_command;
mod grants;
mod init;
mod keys;
mod mcp;
mod mutation;
mod notifications;
mod orgs;
mod output;
mod overlay;
mod pause;
mod plan;
mod plugins;
mod policy;
mod preview;
mod progress;
mod quarantine;
mod receipt_filter;
mod receipt_ref;
mod receipt_view;
mod receipts;
mod request_args;
mod run;
mod secrets;
mod serve;
mod sessions;
mod short_id;
mod slack;
mod span;
mod status;
mod store;
mod submit;
mod support_bundle;
mod tokens;
mod tools;
mod top;
mod trace_context;
mod undo;
mod version;
mod wait;
mod webhooks;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use effectd_gateway::client::{Notice, Remote};

use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::host::runtime::Depth;
use crate::settings::config::state_of_environment;
use crate::settings::{self, Overrides, SOCKET_VARIABLE, Settings, SettingsError};
use crate::telemetry::{self, LogForm};

// What every command uses.
use action_output::ActionReply;
use backend::{CliError, Session, get, is_in_process, pages, post, state_dir_of, with_client};
use mutation::Confirm;
use output::{ColorChoice, Form, Printer, data, line, lines, print_json, print_one, print_rows, second};
use span::{TIME, span, span_text};

/// effectd carries out what AI planners decide: gated by policy, confined by the kernel, with a signed receipt for each.
#[derive(Debug, Parser)]
#[command(name = "effectd", version, disable_help_subcommand = true, arg_required_else_help = true)]
#[command(
    after_help = "Example:\n  effectd run examples/write_note.json\n\nExit codes: 0 done, 1 failed, 2 usage, \
    3 denied, 4 held for approval, 5 quarantined, 6 outcome unknown, 69 unavailable, 70 broken, 75 try again\n\n\
    The beginning of a UUID stands for it, if only one id begins so; a decision needs 18 characters"
)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// The arguments of every command.
#[derive(Debug, Clone, clap::Args)]
struct Common {
    /// State directory [default: $EFFECTD_STATE, or that of the project here (`mcp install`), or ./.effectd, or that of a
    /// project around here; /var/lib/effectd for serve, and for commands that find none of these]
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Log more than warnings and errors ($EFFECTD_LOG sets levels in detail)
    #[arg(long, short, global = true)]
    verbose: bool,
    /// Format of log lines [default: text; json for serve]
    #[arg(long, global = true, value_enum, value_name = "FORM")]
    log: Option<LogForm>,
    /// The daemon's socket [default: $EFFECTD_SOCKET unless --state names another state than $EFFECTD_STATE, or
    /// run/effectd.sock in the state directory]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The context to use, which names a daemon at a URL; `local` is this machine [default: $EFFECTD_CONTEXT, or the current one]
    #[arg(long, global = true, value_name = "NAME", add = completions::complete(completions::contexts))]
    context: Option<String>,
    /// The URL of the daemon, for the token in $EFFECTD_TOKEN [default: $EFFECTD_URL]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// The daemon at a URL that this command speaks to.
    #[arg(skip)]
    remote: Option<Arc<Remote>>,
    /// What is said before the first change.
    #[arg(skip)]
    notice: Option<Arc<Notice>>,
    /// Output format
    #[arg(long, short, global = true, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    color: ColorChoice,
    /// Override a setting of the configuration file and the environment; `config show` lists all settings
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Common {
    /// The settings, with the configuration file of this state directory if there is one.
    fn settings(&self, state: Option<&Path>) -> Result<Settings, SettingsError> {
        Settings::load(state, &self.overrides()?)
    }

    fn overrides(&self) -> Result<Overrides, SettingsError> {
        let mut flags = self.set.iter().map(|text| settings::pair(text)).collect::<Result<Vec<_>, _>>()?;
        if let Some(socket) = &self.socket {
            flags.push(("gateway.socket".to_owned(), socket.to_string_lossy().into_owned()));
        }
        if let Some(form) = self.log {
            flags.push(("log.form".to_owned(), form.as_str().to_owned()));
        }
        if self.verbose {
            flags.push(("log.level".to_owned(), "debug".to_owned()));
        }
        let mut overrides = Overrides::of_process(flags);
        // The environment's socket belongs to the environment's state, so it does not count if `--state` names another one.
        if self.state.as_deref().is_some_and(|state| !is_state_of_environment(state)) {
            overrides.environment.retain(|(name, _)| name != SOCKET_VARIABLE);
        }
        Ok(overrides)
    }
}

/// Whether the environment names this state directory, perhaps by another path.
fn is_state_of_environment(state: &Path) -> bool {
    state_of_environment().is_some_and(|named| {
        named == state
            || named.canonicalize().is_ok_and(|named| state.canonicalize().is_ok_and(|state| state == named))
    })
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    #[command(subcommand)]
    Actions(actions::ActionsCommand),
    Submit(submit::Submit),
    #[command(subcommand)]
    Batch(batch::BatchCommand),
    Status(status::Status),
    Wait(wait::Wait),
    Cancel(cancel::Cancel),
    Preview(preview::Preview),
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    #[command(subcommand)]
    Approvals(approvals::ApprovalsCommand),
    #[command(subcommand)]
    Grants(grants::GrantsCommand),
    #[command(subcommand)]
    Quarantine(quarantine::QuarantineCommand),
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    #[command(subcommand)]
    Automations(automations::AutomationsCommand),
    #[command(subcommand)]
    Orgs(orgs::OrgsCommand),
    #[command(subcommand)]
    Connections(connections::ConnectionsCommand),
    #[command(subcommand)]
    Connectors(connectors::ConnectorsCommand),
    #[command(subcommand)]
    Plugins(plugins::PluginsCommand),
    #[command(subcommand)]
    Webhooks(webhooks::WebhooksCommand),
    #[command(subcommand)]
    Slack(slack::SlackCommand),
    #[command(subcommand)]
    Secrets(secrets::SecretsCommand),
    #[command(subcommand)]
    Tokens(tokens::TokensCommand),
    #[command(subcommand)]
    Tools(tools::ToolsCommand),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Undo(undo::Undo),
    Serve(serve::Serve),
    Mcp(mcp::Mcp),
    Init(init::Init),
    #[command(subcommand)]
    Receipts(receipts::ReceiptsCommand),
    #[command(visible_alias = "events")]
    #[command(subcommand)]
    Bus(bus::BusCommand),
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    #[command(subcommand)]
    Artifacts(artifacts::ArtifactsCommand),
    Notifications(notifications::NotificationsCommand),
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    #[command(subcommand)]
    Breaker(breaker::BreakerCommand),
    Budgets(budgets::Budgets),
    #[command(subcommand)]
    Caches(caches::CachesCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Console(console::Console),
    #[command(subcommand)]
    Context(context::ContextCommand),
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    #[command(subcommand)]
    Store(store::StoreCommand),
    Top(top::Top),
    Check(check::Check),
    Backup(backup::Backup),
    Restore(backup::Restore),
    SupportBundle(support_bundle::SupportBundle),
    Doctor(doctor::Doctor),
    Version(version::Version),
    Completions(completions::Completions),
    Man(completions::Man),
}

/// The commands, in the order of the help.
const GROUPS: [(&str, &str); 7] = [
    ("Act", "run plan submit batch wait status cancel preview undo actions"),
    ("Decide", "approvals grants quarantine policy"),
    ("Organise", "orgs secrets connections connectors plugins webhooks slack sessions automations tokens"),
    ("Look", "receipts artifacts notifications tools bus top"),
    (
        "Operate",
        "init serve console mcp config context check doctor pause resume breaker budgets caches dlq support-bundle",
    ),
    ("Store", "store keys backup restore"),
    ("More", "version completions man"),
];

/// The command line as people see it: commands in groups, and global options once, in the help of the program.
fn command() -> clap::Command {
    let program = Arguments::command();
    let mut listed = String::new();
    for (group, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(listed, "{group}:");
        for command in names.split(' ').filter_map(|name| program.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let aliases: String =
                command.get_visible_aliases().map(|name| format!(" [alias: {name}]")).collect();
            let _ = writeln!(listed, "  {:<15} {about}{aliases}", command.get_name());
        }
        listed.push('\n');
    }
    let hidden = program.get_arguments().filter(|argument| argument.is_global_set());
    let hidden: Vec<Arg> = hidden.map(|argument| argument.clone().hide(true)).collect();
    program
        .mut_subcommands(|below| without_globals(below, &hidden))
        .help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}Global options:\n{{options}}{{after-help}}"))
}

/// Hides the global options in the help of a command.
fn without_globals(command: clap::Command, hidden: &[Arg]) -> clap::Command {
    let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let is_own = |argument: &&Arg| command.get_arguments().any(|own| own.get_id() == argument.get_id());
    let below: Vec<Arg> = hidden.iter().filter(|argument| !is_own(argument)).cloned().collect();
    command
        .after_help(format!("{more}\n\nGlobal options, such as -o json and --state: see `effectd --help`"))
        .args(below)
        .mut_subcommands(|below| without_globals(below, hidden))
}

/// Commands that print in one way only, and the output formats that name it.
const OUTPUTS: [(&str, &[Form]); 20] = [
    ("actions guide", &[]),
    ("approvals watch", &[]),
    ("artifacts get", &[]),
    ("automations export", &[]),
    ("automations new", &[]),
    ("bus export", &[Form::Jsonl]),
    ("bus replay", &[Form::Jsonl]),
    ("bus tail", &[Form::Jsonl]),
    ("check", &[Form::Json, Form::Jsonl, Form::Table]),
    ("completions", &[]),
    ("dlq drain", &[]),
    ("dlq export", &[Form::Jsonl]),
    ("man", &[]),
    ("receipts export", &[Form::Jsonl]),
    ("receipts head", &[Form::Json, Form::Jsonl]),
    ("receipts proof", &[Form::Json, Form::Jsonl]),
    ("receipts tail", &[Form::Jsonl]),
    ("serve", &[]),
    ("store export", &[Form::Jsonl]),
    ("support-bundle", &[]),
];

/// Parses the arguments, and names the command. Refuses an `--output` that would be ignored.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(Arguments, String), clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    let (mut names, mut last): (Vec<&str>, &ArgMatches) = (Vec::new(), &matches);
    while let Some((name, below)) = last.subcommand() {
        names.push(name);
        last = below;
    }
    let name = names.join(" ");
    let given = matches.value_source("output") == Some(ValueSource::CommandLine);
    let arguments = Arguments::from_arg_matches(&matches)?;
    let allowed = OUTPUTS.iter().find(|(command, _)| *command == name).map(|(_, forms)| *forms);
    if let Some(forms) = allowed.filter(|forms| given && !forms.contains(&arguments.common.output)) {
        let why = match forms.first() {
            Some(Form::Jsonl) => format!("`effectd {name}` prints JSON lines: use -o jsonl"),
            Some(Form::Json | Form::Table) => format!("`effectd {name}` prints JSON: use -o json"),
            None => format!("`effectd {name}` has no --output"),
        };
        return Err(command().error(ErrorKind::UnknownArgument, why));
    }
    Ok((arguments, name))
}

/// Runs the program.
pub fn main() -> ExitCode {
    completions::answer();
    let arguments = match parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && wants_json(std::env::args_os()) => {
            output::set_look(ColorChoice::Never, Form::Jsonl);
            let said = error.render().to_string();
            report_error(&CliError::request(said.trim_end().trim_start_matches("error: ")));
            return Exit::Usage.into();
        }
        Err(error) => {
            let said = error.print();
            if error.use_stderr() {
                return Exit::Usage.into();
            }
            // `note` remembers a failure.
            let _ = output::note(said);
            return output::ended(Exit::Done).into();
        }
    };
    let (Arguments { mut common, command }, name) = arguments;
    output::set_look(common.color, common.output);
    match context::resolve(&common, &name) {
        Ok(remote) => common.remote = remote,
        Err(error) => return exit_of(Err(error)).into(),
    }
    common.notice = context::notice(&common, &name);
    if let Command::Serve(serve) = command {
        return start_serving(serve, &common).into();
    }
    let traced = matches!(&command, Command::Run(run) if run.trace);
    let level = match (traced, common.verbose) {
        (true, _) => "info,effectd_actors=debug",
        (false, true) => "info",
        // What its attacks would log is in its findings.
        (false, false) if matches!(command, Command::Doctor(_)) => "off",
        (false, false) => "warn",
    };
    telemetry::start(level, common.log.unwrap_or(LogForm::Text), common.color.applies_to(&std::io::stderr()));
    output::ended(exit_of(match command {
        Command::Run(run) => block_on(run.main(&common)),
        Command::Actions(actions) => block_on(actions.main(&common)),
        Command::Submit(submit) => block_on(submit.main(&common)),
        Command::Batch(batch) => block_on(batch.main(&common)),
        Command::Status(status) => block_on(status.main(&common)),
        Command::Wait(wait) => block_on(wait.main(&common)),
        Command::Cancel(cancel) => block_on(cancel.main(&common)),
        Command::Preview(preview) => block_on(preview.main(&common)),
        Command::Plan(plan) => block_on(plan.main(&common)),
        Command::Approvals(approvals) => block_on(approvals.main(&common)),
        Command::Grants(grants) => block_on(grants.main(&common)),
        Command::Quarantine(quarantine) => block_on(quarantine.main(&common)),
        Command::Automations(automations) => block_on(automations.main(&common)),
        Command::Sessions(sessions) => block_on(sessions.main(&common)),
        Command::Orgs(orgs) => block_on(orgs.main(&common)),
        Command::Connections(connections) => block_on(connections.main(&common)),
        Command::Connectors(connectors) => block_on(connectors.main(&common)),
        Command::Plugins(plugins) => block_on(plugins.main(&common)),
        Command::Webhooks(webhooks) => block_on(webhooks.main(&common)),
        Command::Slack(slack) => block_on(slack.main(&common)),
        Command::Secrets(secrets) => block_on(secrets.main(&common)),
        Command::Tokens(tokens) => block_on(tokens.main(&common)),
        Command::Tools(tools) => block_on(tools.main(&common)),
        Command::Pause(pause) => block_on(pause.main(&common)),
        Command::Resume(resume) => block_on(resume.main(&common)),
        Command::Undo(undo) => block_on(undo.main(&common)),
        Command::Serve(serve) => Ok(start_serving(serve, &common)),
        Command::Mcp(mcp) => block_on(mcp.main(&common)),
        Command::Config(config) => config.main(&common),
        Command::Console(console) => block_on(console.main(&common)),
        Command::Context(context) => context.main(&common),
        Command::Dlq(dlq) => block_on(dlq.main(&common)),
        Command::Store(store) => store.main(&common),
        Command::Version(version) => version.main(&common),
        Command::Completions(completions) => completions.main(),
        Command::Man(man) => man.main(),
        Command::Init(init) => init.main(&common),
        Command::Receipts(receipts) => block_on(receipts.main(&common)),
        Command::Bus(bus) => block_on(bus.main(&common)),
        Command::Top(top) => block_on(top.main(&common)),
        Command::Check(check) => block_on(check.main(&common)),
        Command::Backup(backup) => backup.main(&common),
        Command::Restore(restore) => restore.main(&common),
        Command::SupportBundle(bundle) => block_on(bundle.main(&common)),
        Command::Keys(keys) => block_on(keys.main(&common)),
        Command::Artifacts(artifacts) => block_on(artifacts.main(&common)),
        Command::Notifications(notifications) => block_on(notifications.main(&common)),
        Command::Policy(policy) => block_on(policy.main(&common)),
        Command::Breaker(breaker) => block_on(breaker.main(&common)),
        Command::Budgets(budgets) => block_on(budgets.main(&common)),
        Command::Caches(caches) => caches.main(&common),
        Command::Doctor(doctor) => doctor.main(&common),
    }))
    .into()
}

/// Starts the daemon. Its log follows its settings, not only the flags.
fn start_serving(serve: serve::Serve, common: &Common) -> Exit {
    let common = &serve.with_setting(common);
    let settings = match common.settings(Some(&serve::state(common))) {
        Ok(settings) => settings,
        Err(error) => return exit_of(Err(error.into())),
    };
    let form = if settings.values().log_form == "json" { LogForm::Json } else { LogForm::Text };
    let (spans, exporter) = match telemetry::exporter(settings.values().otlp.map(|to| to.0)) {
        Ok(both) => both,
        Err(why) => return exit_of(Err(CliError::request(why))),
    };
    let colours = common.color.applies_to(&std::io::stderr());
    let log = telemetry::start_with(&settings.values().log_level, form, colours, spans);
    exit_of(block_on(serve.main(common, settings, log, exporter)))
}

fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let threads = tokio::runtime::Runtime::new();
    let threads = threads.map_err(|error| Error::Internal(format!("no threads can be started: {error}")))?;
    threads.block_on(work)
}

/// The exit code; prints an error with its causes.
fn exit_of(ended: Result<Exit, CliError>) -> Exit {
    ended.unwrap_or_else(|error| {
        report_error(&error);
        error.exit()
    })
}

/// Whether the arguments, which could not be parsed, ask for JSON.
fn wants_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let arguments: Vec<String> = arguments.map(|it| it.to_string_lossy().into_owned()).collect();
    let pairs = arguments.windows(2).any(|pair| match pair {
        [name, value] => ["-o", "--output"].contains(&name.as_str()) && value.starts_with("json"),
        _ => false,
    });
    pairs || arguments.iter().any(|it| it.starts_with("-ojson") || it.starts_with("--output=json"))
}

/// Prints an error with its causes; as a line of JSON if results are JSON.
fn report_error(error: &CliError) {
    if output::form() == Form::Table {
        eprint_line(&chain(error));
    } else {
        eprint_raw(&error.to_json().to_string());
    }
}

/// Prints a message on standard error.
fn eprint_line(what: &dyn std::fmt::Display) {
    // The message may quote foreign text, which must not control the terminal.
    eprint_raw(&format!("effectd: {}", crate::tui::shown_text(&what.to_string())));
}

#[expect(clippy::print_stderr, reason = "messages go to standard error")]
fn eprint_raw(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(line: &str) -> Result<(Arguments, String), clap::Error> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn an_output_format_that_would_be_ignored_is_refused() {
        for (line, says) in [
            ("effectd serve -o json", "has no --output"),
            ("effectd -o json completions bash", "has no --output"),
            ("effectd actions guide --integration files -o json", "has no --output"),
            ("effectd receipts head -o table", "use -o json"),
            ("effectd events tail --output json", "use -o jsonl"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.use_stderr() && error.to_string().contains(says), "{line}: {error}");
        }
        for line in [
            "effectd check dlq",
            "effectd check dlq -o json",
            "effectd top -o json",
            "effectd events tail --output jsonl",
            "effectd receipts head -o json",
            "effectd receipts list -o json",
            "effectd -o json tools list",
            "effectd top -o json",
            "effectd init -o json",
            "effectd keys rotate -o jsonl",
            "effectd caches clear private:a -o json",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn a_budget_of_a_grant_is_a_positive_number() {
        let line = "effectd actions grant request --integration files --action copy --max-calls";
        for calls in ["0", "-1", "x", "1.5", "4294967296"] {
            assert!(parsed(&format!("{line} {calls}")).is_err(), "{calls}");
        }
        assert!(parsed(&format!("{line} 5 --scope org")).is_ok());
        assert!(parsed(&format!("{line} 5 --scope all")).is_err());
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.split(' ')).collect();
        let program = Arguments::command();
        let mut all: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn a_line_that_cannot_be_parsed_may_still_ask_for_json() {
        let wants = |line: &str| wants_json(line.split(' ').map(OsString::from));
        for line in ["a -o json --x", "a --output jsonl", "a -ojson", "a --output=json b"] {
            assert!(wants(line), "{line}");
        }
        for line in ["a -o table", "a --log json", "a json -o", "-o"] {
            assert!(!wants(line), "{line}");
        }
    }

    #[test]
    fn commands_without_an_output_format_exist() {
        for (name, _) in OUTPUTS {
            let mut command = &Arguments::command();
            for part in name.split(' ') {
                command = command.find_subcommand(part).unwrap();
            }
            assert!(!command.has_subcommands(), "{name}");
        }
    }
}
