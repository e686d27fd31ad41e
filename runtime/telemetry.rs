//! Log lines: on standard error, for people or as JSON, each with the trace of the action it is about.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// The environment variable that chooses what is logged: `info`, `effectd_actors=debug` …
pub const LOG_VARIABLE: &str = "EFFECTD_LOG";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogForm {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

impl LogForm {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogForm::Text => "text",
            LogForm::Json => "json",
        }
    }
}

/// Starts logging, once for the whole process. What is asked for by the environment wins.
pub fn start(level: &str, form: LogForm) {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE)
        .with_target(false);
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A second start, in a program that has its own logging, changes nothing.
    let _ = match form {
        LogForm::Text => builder.with_ansi(colours).without_time().compact().try_init(),
        LogForm::Json => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .try_init(),
    };
}
